"""Views of every kind over one source, and what each is to show, computed by plain Python."""

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from tests.unit.view_requests import check, encoded, envelope, spec
from udtf.spec import ViewDefinition

Row = dict[str, Any]
# Rows of a view by what they hold, each with how often it is there.
Shown = Counter[tuple[Any, ...]]

COLUMNS = ("id", "v", "s", "w")
CAP = 5

_I64, _TEXT = pa.int64(), pa.string()
_WORDS = """
def expand(s):
    for word in (s or "").split():
        yield {"word": word}
"""
_TOTALS = """
import pyarrow as pa

def expand(source):
    rows = source.to_arrow().to_pylist()
    keys = {row["s"] for row in rows}
    yield pa.RecordBatch.from_pydict({
        "s": [rows[0]["s"] if len(keys) == 1 else "of all"],
        "rows": [len(rows)],
        "total": [sum(row["v"] for row in rows)],
    })
"""


@dataclass
class View:
    """A view, and its rows as a function of the rows of its source.

    With a `cap` any so many of these rows are right. `diligence` is how many of ten steps the view
    follows, `source` the table that it reads `columns` of. `is_foreign` says that somebody else
    changed the view's rows since its last refresh.
    """

    name: str
    definition: ViewDefinition
    exact: Callable[[list[Row]], Shown]
    diligence: int = 10
    cap: int | None = None
    source: str = "source"
    columns: tuple[str, ...] = COLUMNS
    is_foreign: bool = False

    def check(self, shown: Shown, source: list[Row], where: str, cap: int | None = None) -> None:
        """Fail unless the view shows what its definition says of the rows of its source."""
        wanted = self.exact(source)
        cap = self.cap if cap is None else cap
        if cap is None:
            missing, extra = wanted - shown, shown - wanted
            assert not missing and not extra, f"{where}: missing {missing}, not wanted {extra}"
            return
        assert shown.total() == min(cap, wanted.total()), f"{where}: {shown} of {wanted}"
        assert shown <= wanted, f"{where}: {shown - wanted}"


def _doubled(rows: list[Row]) -> Shown:
    return Counter(
        (row["id"], row["v"] * 2, row["_rowid"])
        for row in rows
        if row["v"] is not None and row["v"] > 2 and row["s"] not in (None, "x")
    )


def _pairs(rows: list[Row]) -> Shown:
    return Counter((row["id"], row["w"], row["_rowid"]) for row in rows)


def _ids(rows: list[Row]) -> Shown:
    return Counter((row["id"], row["_rowid"]) for row in rows)


def _large(rows: list[Row]) -> Shown:
    return Counter((row["id"], row["twice"], row["_rowid"]) for row in rows if row["twice"] > 8)


def _words(rows: list[Row]) -> Shown:
    return Counter(
        (row["id"], word, row["_rowid"], index)
        for row in rows
        if row["v"] is not None and row["v"] >= 0
        for index, word in enumerate((row["s"] or "").split())
    )


def _totals(rows: list[Row]) -> Shown:
    groups: dict[str | None, list[int]] = {}
    for row in rows:
        if row["v"] is not None:
            groups.setdefault(row["s"], []).append(row["v"])
    return Counter((key, len(values), sum(values)) for key, values in groups.items())


def _total(rows: list[Row]) -> Shown:
    values = [row["v"] for row in rows if row["v"] is not None]
    keys = {row["s"] for row in rows if row["v"] is not None}
    # Code without partitions is asked once, even when there are no rows.
    return Counter([(keys.pop() if len(keys) == 1 else "of all", len(values), sum(values))])


def _code(kind: str, query: str, code: str, output: pa.Schema, **more: Any) -> ViewDefinition:
    data = envelope(kind, artifact={"encoding": "python-source", "data": code})
    return check(kind, query, encoded(output), spec(kind, data, **more))


def _query(query: str, **columns: pa.DataType) -> ViewDefinition:
    return check("query", query, encoded(pa.schema(list(columns.items()))))


def views() -> list[View]:
    """One of each kind and way to be refreshed."""
    pinless = {"id": ["source"]}
    pairs = json.dumps(
        {"format": "lance-mv-query", "version": 1, "source": pinless, "columns": ["id", "w"]}
    )
    doubled = "SELECT id, v * 2 AS twice FROM source WHERE v > 2 AND s <> 'x'"
    words = pa.schema([("id", _I64), ("word", _TEXT)])
    totals = pa.schema([("s", _TEXT), ("rows", _I64), ("total", _I64)])
    present = "SELECT s, v FROM source WHERE v IS NOT NULL"
    return [
        View("doubled", _query(doubled, id=_I64, twice=_I64), _doubled),
        View("doubled_seldom", _query(doubled, id=_I64, twice=_I64), _doubled, 3),
        View("pairs", _query(pairs, id=_I64, w=_I64), _pairs, 6),
        View("star", _query("SELECT * FROM source", id=_I64, w=_I64), _pairs, 4),
        View(
            "capped",
            _query(f"SELECT id FROM source LIMIT {CAP}", id=_I64),
            _ids,
            diligence=2,
            cap=CAP,
        ),
        View(
            "words",
            _code(
                "chunker",
                "SELECT id, s FROM source WHERE v >= 0",
                _WORDS,
                words,
                input_columns=["s"],
            ),
            _words,
            7,
        ),
        View("totals", _code("udtf", present, _TOTALS, totals, partition_by="s"), _totals, 3),
        View("total", _code("udtf", present, _TOTALS, totals), _total, 2),
        View(
            "of_doubled",
            _query("SELECT id, twice FROM doubled WHERE twice > 8", id=_I64, twice=_I64),
            _large,
            6,
            source="doubled",
            columns=("id", "twice"),
        ),
    ]
