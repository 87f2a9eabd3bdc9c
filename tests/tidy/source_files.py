"""The files of the project, without what tools and servers leave beside them."""

from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("cluster", "udtf", "actors", "serve_app")
_TEXT_SUFFIXES = {".py", ".md", ".toml", ".yaml", ".yml", ".txt", ".json", ""}
_LEFT_BY_TOOLS = {"__pycache__", "build", "data", "dist"}


def text_files() -> Iterator[Path]:
    """Every text file that people wrote."""
    return _walk(ROOT)


def python_files(*folders: str) -> list[Path]:
    """The Python files of the folders; of the whole project without any."""
    roots = [ROOT / folder for folder in folders] or [ROOT]
    return [path for root in roots for path in _walk(root) if path.suffix == ".py"]


def _walk(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.iterdir()):
        if path.is_dir():
            hidden = path.name.startswith(".") and path.name != ".ci"
            if not hidden and path.name not in _LEFT_BY_TOOLS and path.suffix != ".egg-info":
                yield from _walk(path)
        elif path.suffix in _TEXT_SUFFIXES:
            yield path
