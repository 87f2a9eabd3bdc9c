"""Modules of authors, written to a folder and imported from there."""

import importlib.util
import itertools
import sys
import textwrap
from pathlib import Path
from types import ModuleType

_NUMBERS = itertools.count(1)


def imported(folder: Path, source: str) -> ModuleType:
    """Write `source` to a file of its own and import it."""
    name = f"authors_module_{next(_NUMBERS)}"
    path = folder / f"{name}.py"
    path.write_text(textwrap.dedent(source))
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
