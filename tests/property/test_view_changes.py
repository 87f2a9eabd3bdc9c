"""Whatever happens to a source, what a refresh plans to compute and to evict is exact.

Views of every kind follow a source through a random history. After each step the plan of changes is
carried out on a view in memory, and the outcome must be what the definition says of the source as
it is, computed by plain Python from all of its rows.
"""

from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from actors.sql import prepare_expression
from cluster.settings import LimitSettings
from tests.property.source_history import SourceHistory
from tests.unit.view_requests import check, encoded, spec
from udtf.changes import plan_changes
from udtf.items import RowIds
from udtf.refresh_model import RefreshMode, RefreshOptions, SourceLocation, Watermark
from udtf.source_query import recognise
from udtf.source_rows import SourceReader
from udtf.sources import bind, definition_sha, open_source, version_timestamp
from udtf.spec import ViewDefinition, ViewKind

LIMITS = LimitSettings()
Row = dict[str, Any]
Rows = dict[int, list[Any]]


@dataclass
class View:
    """A view in memory: of every source row, the rows that come from it."""

    name: str
    definition: ViewDefinition
    of_row: Callable[[Row], list[Any]]
    # How many refreshes of ten steps it gets.
    diligence: int = 10
    rows: Rows = field(default_factory=dict)
    mark: Watermark | None = None


def _query(text: str, **columns: pa.DataType) -> ViewDefinition:
    return check("query", text, encoded(pa.schema(list(columns.items()))))


def _positive(row: Row) -> list[Any]:
    if row["v"] is None or row["v"] <= 2 or row["s"] is None or row["s"] == "x":
        return []
    return [(row["id"], row["v"] * 2)]


def _passages(row: Row) -> list[Any]:
    return [(row["id"], word) for word in (row["s"] or "").split()]


def _views() -> list[View]:
    i64, text = pa.int64(), pa.string()
    positive = _query(
        "SELECT id, v * 2 AS twice FROM source WHERE v > 2 AND s <> 'x'", id=i64, twice=i64
    )
    chunks = encoded(pa.schema([("id", i64), ("word", text)]))
    chunker = check("chunker", "SELECT id, s FROM source", chunks, spec("chunker"))
    groups = encoded(pa.schema([("s", text), ("total", i64)]))
    udtf = check("udtf", "SELECT s, v FROM source", groups, spec("udtf", partition_by="s"))
    star = _query("SELECT * FROM source", id=i64, w=i64)
    capped = _query("SELECT id FROM source LIMIT 5", id=i64)
    return [
        View("positive", positive, _positive),
        View("positive, seldom", positive, _positive, 3),
        View("star", star, lambda row: [(row["id"], row["w"])]),
        View("star, seldom", star, lambda row: [(row["id"], row["w"])], 3),
        View("chunker", chunker, _passages),
        View("chunker, seldom", chunker, _passages, 4),
        View("udtf", udtf, lambda row: [(row["s"], row["v"])], 5),
        View("capped", capped, lambda row: [(row["id"],)], 5),
    ]


class Follower:
    """Refreshes views of one source and compares them with what they should be."""

    def __init__(self, uri: str, random: Random) -> None:
        self._uri = uri
        self._random = random
        self.counted: Counter[tuple[str, int]] = Counter()
        self.reasons: Counter[str] = Counter()

    def refresh(self, view: View) -> None:
        """Bring the view up to date, mostly with the latest version, and check it."""
        location = SourceLocation(("source",), self._uri)
        if self._random.random() < 0.05:
            versions = [item["version"] for item in open_source(location, None).versions()]
            location = SourceLocation(("source",), self._uri, version=self._random.choice(versions))
        source = open_source(location, None)
        if not {"id", "v", "w", "s"} <= set(source.schema.names):
            return
        query = recognise(view.definition.source_query)
        assert query is not None
        bound = bind(query, source, view.definition, LIMITS, prepare_expression)
        udtf = view.definition.udtf
        sha = None if udtf is None else udtf.sha256
        plan = plan_changes(
            source, view.mark, None, location, view.definition, RefreshOptions(), bound, sha, None
        )
        self.counted[plan.mode.value, plan.tier] += 1
        self.reasons[_anonymous(plan.reason)] += 1
        if plan.mode is RefreshMode.NO_OP:
            assert view.mark is not None
        else:
            reader = SourceReader(source, dict(bound.columns), bound.filter, bound.limit, 16)
            if plan.mode is RefreshMode.REBUILD:
                view.rows = {}
                ids = reader.selected_ids()
            else:
                assert plan.changed is not None
                for row_id in [*plan.changed.tolist(), *plan.deleted.tolist()]:
                    view.rows.pop(row_id, None)
                ids = reader.passing(plan.changed)
            self._compute(view, reader, ids)
            view.mark = _watermark(location, source, view.definition, sha)
        self._check(view, source, plan.reason)

    def _compute(self, view: View, reader: SourceReader, ids: Any) -> None:
        names = list(reader.columns)
        for batch in reader.read(RowIds.of(np.asarray(ids, np.uint64)), names):
            for row in batch.to_pylist():
                row_id = row.pop("_rowid")
                assert row_id not in view.rows
                if view.definition.kind is ViewKind.QUERY:
                    made = [tuple(row.values())]
                else:
                    made = view.of_row(row)
                if made:
                    view.rows[row_id] = made

    def _check(self, view: View, source: Any, reason: str) -> None:
        rows = source.scanner(columns=["id", "v", "w", "s"], with_row_id=True).to_table()
        expected = {row["_rowid"]: made for row in rows.to_pylist() if (made := view.of_row(row))}
        where = f"{view.name} at version {source.version}: {reason}"
        if "LIMIT" in view.definition.source_query:
            assert len(view.rows) == min(5, len(expected)), where
            assert view.rows.items() <= expected.items() or not view.rows, where
            return
        assert view.rows == expected, where


def _watermark(
    location: SourceLocation, source: Any, definition: ViewDefinition, sha: str | None
) -> Watermark:
    return Watermark(
        source_id=location.id,
        source_uri=location.uri,
        branch=None,
        source_version=int(source.version),
        source_version_ts=version_timestamp(source),
        definition_sha=definition_sha(definition),
        udtf_sha=sha,
        manifest_checksum=None,
        output_limit=None,
        job_id="job",
        refreshed_at_ms=0,
    )


def _anonymous(reason: str) -> str:
    return "".join("#" if character.isdigit() else character for character in reason)


def _follow(folder: Path, seed: int, steps: int, totals: dict[str, Counter[Any]]) -> None:
    random = Random(seed)
    history = SourceHistory(folder, random)
    follower = Follower(history.uri, random)
    views = _views()
    for view in views:
        follower.refresh(view)
    for _ in range(steps):
        history.step()
        for view in views:
            if random.randrange(10) < view.diligence:
                try:
                    follower.refresh(view)
                except BaseException as error:
                    error.add_note(f"seed {seed}, after {', '.join(history.happened)}")
                    raise
    totals["refreshes"] += follower.counted
    totals["operations"] += Counter(history.happened)
    totals["reasons"] += follower.reasons


def _follow_all(folder: Path, seeds: range, steps: int) -> dict[str, Counter[Any]]:
    totals: dict[str, Counter[Any]] = defaultdict(Counter)
    for seed in seeds:
        (folder / str(seed)).mkdir()
        _follow(folder / str(seed), seed, steps, totals)
    for name, counter in totals.items():
        print(name, dict(counter.most_common()))
    return totals


ALL_WAYS = {
    ("no_op", 0),
    ("incremental", 1),
    ("incremental", 2),
    ("rebuild", 3),
}


def test_views_are_exact_after_every_step(tmp_path: Path) -> None:
    totals = _follow_all(tmp_path, range(14), 16)
    assert set(totals["refreshes"]) == ALL_WAYS
    assert min(totals["refreshes"].values()) >= 20, totals["refreshes"]


@pytest.mark.soak
@pytest.mark.timeout(3_600)
def test_views_are_exact_after_long_histories(tmp_path: Path) -> None:
    totals = _follow_all(tmp_path, range(100, 300), 30)
    assert set(totals["refreshes"]) == ALL_WAYS
    assert len(totals["operations"]) == 25, totals["operations"]
