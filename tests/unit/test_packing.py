"""What of a module travels with a function or class, and what is refused."""

import functools
import json
from pathlib import Path
from typing import Any

import pytest

from cluster.errors import InvalidInput
from cluster.settings import LimitSettings, ViewSettings
from tests.unit.code_files import imported
from tests.unit.view_requests import PYTHON
from udtf.envelope import parse_envelope
from udtf.packing import pack_code, pack_source

MODULE = '''
"""A module."""
import math
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass

WORD = re.compile(r"\\w+")
WIDTH = 2 * 3
UNUSED = os.environ.get("HOME")
AT_IMPORT = os.getpid()


@dataclass
class Word:
    text: str
    length: float


def shortened(text: str) -> str:
    # Words of this length are enough.
    return text[:WIDTH]


def words(body: str) -> Iterator[Word]:
    WIDTH_OF_ITS_OWN = UNUSED = 3
    for text in WORD.findall(body):
        yield Word(shortened(text), math.sqrt(len(text)))


def home():
    return UNUSED


def itself():
    return AT_IMPORT
'''


def run(source: str) -> dict[str, Any]:
    """Run a packed module as a worker's process does: on its own, under a name that is known."""
    import sys
    from types import ModuleType

    module = ModuleType("packed")
    sys.modules["packed"] = module
    exec(compile(source, "packed", "exec"), vars(module))
    return vars(module)


def test_a_function_travels_with_all_that_it_uses_and_nothing_else(tmp_path: Path) -> None:
    module = imported(tmp_path, MODULE)
    name, source = pack_source(module.words)
    assert name == "words"
    packed = run(source)
    found = [(word.text, word.length) for word in packed["words"]("a sesquipedalian word")]
    assert found == [("a", 1.0), ("sesqui", 14**0.5), ("word", 2.0)]
    assert {"math", "re", "WORD", "WIDTH", "Word", "shortened"} <= set(packed)
    assert not {"os", "UNUSED", "AT_IMPORT", "home"} & set(packed)


def test_the_text_is_the_authors_own_with_its_comments(tmp_path: Path) -> None:
    source = pack_source(imported(tmp_path, MODULE).words)[1]
    assert "    # Words of this length are enough.\n" in source
    assert source.startswith("from __future__ import annotations\nimport math\nimport re\n")


def test_a_class_travels_with_its_base_and_its_methods_names(tmp_path: Path) -> None:
    module = imported(
        tmp_path,
        """
        LIMIT = 2

        class Base:
            def cut(self, text):
                return text[:LIMIT]

        class Cutter(Base):
            def __init__(self, times=1):
                self.times = times

            def __call__(self, text):
                return [self.cut(text)] * self.times
        """,
    )
    packed = run(pack_source(module.Cutter)[1])
    assert packed["Cutter"](3)("abc") == ["ab", "ab", "ab"]


def test_submodules_of_one_package_all_travel(tmp_path: Path) -> None:
    module = imported(
        tmp_path,
        """
        import xml.dom
        import xml.sax.saxutils

        def escaped(text):
            return [xml.sax.saxutils.escape(text), xml.dom.XML_NAMESPACE]
        """,
    )
    source = pack_source(module.escaped)[1]
    assert "import xml.dom\n" in source
    assert "import xml.sax.saxutils\n" in source


def test_decorators_of_views_stay_behind_and_others_travel(tmp_path: Path) -> None:
    module = imported(
        tmp_path,
        """
        import functools
        import udtf as views
        from udtf import chunker

        @functools.cache
        def doubled(n):
            return 2 * n

        @chunker(output_schema={"n": int})
        def numbers(n):
            yield {"n": doubled(n)}

        @views.udtf(output_schema={"n": int})
        def all_rows(source):
            yield source
        """,
    )
    source = module.numbers.pack().envelope.decode()
    assert "chunker(" not in source
    assert "functools.cache" in source
    assert "views" not in module.all_rows.pack().envelope.decode()


def test_names_that_only_type_checkers_see_are_left_out(tmp_path: Path) -> None:
    module = imported(
        tmp_path,
        """
        from __future__ import annotations
        from typing import TYPE_CHECKING

        if TYPE_CHECKING:
            from somewhere import Thing

        def length(thing: Thing) -> int:
            return len(thing)
        """,
    )
    assert run(pack_source(module.length)[1])["length"]("abc") == 3


def test_packed_code_passes_the_servers_check(tmp_path: Path) -> None:
    packed = pack_code(imported(tmp_path, MODULE).words, "chunker", "row-chunker")
    version = tuple(int(part) for part in PYTHON.split("."))
    envelope = parse_envelope(
        packed.envelope, "chunker", False, LimitSettings(), ViewSettings(), version[:2]
    )
    assert envelope.entrypoint == "words"
    assert envelope.udtf_version == packed.version


def test_equal_code_gives_equal_bytes_and_changed_code_another_version(tmp_path: Path) -> None:
    one = pack_code(imported(tmp_path, MODULE).words, "chunker", "row-chunker")
    same = pack_code(imported(tmp_path, MODULE).words, "chunker", "row-chunker")
    changed = imported(tmp_path, MODULE.replace("2 * 3", "2 * 4"))
    other = pack_code(changed.words, "chunker", "row-chunker")
    assert one == same
    assert other.version != one.version
    assert other.sha256 != one.sha256


def test_arguments_of_a_class_travel_as_json(tmp_path: Path) -> None:
    module = imported(tmp_path, "class Adder:\n    def __init__(self, n=1):\n        self.n = n\n")
    packed = pack_code(module.Adder, "udtf", "arrow-partition", init={"n": 3})
    assert json.loads(packed.envelope)["init"] == {"n": 3}
    with pytest.raises(InvalidInput, match="cannot be built with these arguments"):
        pack_code(module.Adder, "udtf", "arrow-partition", init={"m": 3})
    with pytest.raises(InvalidInput, match="travel as JSON"):
        pack_code(module.Adder, "udtf", "arrow-partition", init={"n": {1, 2}})


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("f = lambda row: row", "a lambda has no name"),
        (
            "def outer(n):\n    def f(row):\n        return n\n    return f\nf = outer(1)",
            "defined inside outer",
        ),
        ("class A:\n    def f(self):\n        return 1\nf = A().f", "method of an object"),
        ("class A:\n    def f(self):\n        return 1\nf = A.f", "inside a class"),
        ("async def f(row):\n    return row", "async"),
        ("f = len", "no function and no class written in Python"),
        ("import os\nX = os.getcwd()\ndef f(row):\n    return X", r"`os.getcwd\(...\)`"),
        ("import sys\nX = sys.argv\ndef f(row):\n    return X", "`sys.argv` is this machine's"),
        ("def g():\n    return 1\nX = g()\ndef f(row):\n    return X", r"`g\(...\)`"),
        ("X = 1\nX = 2\ndef f(row):\n    return X", "bound more than once"),
        ("try:\n    X = 1\nexcept Exception:\n    X = 2\ndef f(row):\n    return X", "`try`"),
        ("X, Y = 1, 2\ndef f(row):\n    return X", "together with other names"),
        ("from math import *\ndef f(row):\n    return sqrt(row)", "does not say where sqrt"),
        ("def f(row):\n    return nowhere", "defines no nowhere"),
    ],
)
def test_what_cannot_travel_is_refused_with_a_reason(
    tmp_path: Path, source: str, message: str
) -> None:
    with pytest.raises(InvalidInput, match=message):
        pack_source(imported(tmp_path, source).f)


def test_modules_of_the_authors_own_project_are_refused(tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "own_words_of_the_project.py").write_text("def split(text):\n    return [text]\n")
    monkeypatch.syspath_prepend(tmp_path)
    module = imported(
        tmp_path,
        """
        from own_words_of_the_project import split

        def words(body):
            return split(body)
        """,
    )
    with pytest.raises(InvalidInput, match=r"words uses split, but .* your own project"):
        pack_source(module.words)


def test_code_without_a_file_is_refused() -> None:
    namespace: dict[str, Any] = {"__name__": "__nowhere__"}
    exec("def f(row):\n    return row", namespace)
    with pytest.raises(InvalidInput, match="not loaded; write it in a file"):
        pack_source(namespace["f"])
    namespace = {"__name__": "builtins"}
    exec("def f(row):\n    return row", namespace)
    with pytest.raises(InvalidInput, match="no source file; write it in a file"):
        pack_source(namespace["f"])


def test_a_file_that_changed_since_it_was_imported_is_refused(tmp_path: Path) -> None:
    module = imported(tmp_path, "def f(row):\n    return row\n")
    path = Path(str(module.__file__))
    path.write_text("LINES = 1\n" + path.read_text())
    with pytest.raises(InvalidInput, match="import it again"):
        pack_source(module.f)


def test_partials_are_refused() -> None:
    with pytest.raises(InvalidInput, match="write a class"):
        pack_source(functools.partial(print, "x"))
