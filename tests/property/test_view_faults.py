"""Faults that users of other systems of views have reported, each with its right value."""

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import lance
import pyarrow as pa
import pytest

from actors.model import CreateMode, NewTable
from cluster.errors import InvalidInput, TableColumnNotFound, TableNotFound
from tests.contract.domain import DATABASE, ipc, new_key, ref
from tests.property.source_history import SCHEMA
from tests.property.view_follower import SOURCE, Follower, LocalItems
from tests.property.view_oracle import View, views
from tests.unit.view_requests import check, encoded, envelope, spec
from udtf.spec import ViewDefinition


@pytest.fixture(scope="module")
def items() -> Iterator[None]:
    """Processes of user code that all tests here use."""
    with LocalItems().installed():
        yield


@pytest.fixture
def follower(tmp_path: Path, items: None) -> Iterator[Follower]:
    """A source of 40 rows at most, without views."""
    follower = Follower.local(tmp_path / "root", Random(1))
    yield follower
    follower.close()


def followed(follower: Follower) -> list[View]:
    """One view of each kind, refreshed."""
    found = [view for view in views() if view.name in ("doubled", "pairs", "words", "totals")]
    for view in found:
        follower.create(view)
        assert follower.refresh(view) == "rebuild"
        assert follower.refresh(view) == "no_op"
    return found


def some_rows(first: int, count: int) -> pa.Table:
    """Rows that are in every view."""
    return pa.table(
        {
            "id": range(first, first + count),
            "v": [n % 9 + 3 for n in range(count)],
            "s": [f"new {n % 3}" for n in range(count)],
            "w": range(count),
        },
        schema=SCHEMA,
    )


def recreate(follower: Follower, rows: pa.Table) -> None:
    """Drop the source and create another of its name, as clients do."""
    follower.wait(follower.server.catalog(DATABASE).drop_table(SOURCE.id))
    new = NewTable(SOURCE.id)
    call = follower.server.create_table(DATABASE, new, CreateMode.CREATE, new_key(), ipc(rows))
    follower.wait(call)


# --- a source that another table has taken the place of -------------------------------------------


@pytest.mark.parametrize("appended", [0, 1, 2, 3, 6])
def test_views_of_a_source_that_was_made_anew_show_the_new_one(
    follower: Follower, appended: int
) -> None:
    for _ in range(3):
        follower.history.dataset.update({"v": "v + 1"}, where="id < 5")
    found = followed(follower)
    assert follower.history.dataset.version == 4
    recreate(follower, some_rows(0, 10))
    # Up to a version that is lower than what the views show, the same, and higher.
    for number in range(appended):
        lance.write_dataset(some_rows(100 + number, 1), follower.history.uri, mode="append")
    assert follower.history.dataset.version == 1 + appended
    for view in found:
        assert follower.refresh(view) == "rebuild"
        assert follower.refresh(view) == "no_op"
    names = follower.dataset(found[0]).to_table().column("id").to_pylist()
    assert sorted(names) == [*range(10), *range(100, 100 + appended)]


def test_a_refresh_of_a_view_whose_source_is_gone_fails_and_changes_nothing(
    follower: Follower,
) -> None:
    view = followed(follower)[0]
    before = follower.shown(view)
    follower.wait(follower.server.catalog(DATABASE).drop_table(SOURCE.id))
    with pytest.raises(TableNotFound, match="table source, the source of view doubled"):
        follower.refresh(view)
    assert follower.shown(view) == before


# --- changes that are no appends ------------------------------------------------------------------


def _restored(source: Any) -> None:
    source.checkout_version(1).restore()


def _overwritten(source: Any) -> None:
    lance.write_dataset(some_rows(200, 5), source.uri, mode="overwrite")


def _upserted(source: Any) -> None:
    merge = source.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
    merge.execute(some_rows(0, 60))


def _emptied(source: Any) -> None:
    source.delete("true")


def _partition_dropped(source: Any) -> None:
    source.delete("s = 'x' OR s IS NULL")


def _renamed_and_back(source: Any) -> None:
    for old, new in (("v", "other"), ("w", "v"), ("other", "w")):
        lance.dataset(source.uri).alter_columns({"path": old, "name": new})


CHANGES: dict[str, tuple[Callable[[Any], object], str]] = {
    "deleted rows": (lambda source: source.delete("id % 3 = 0"), "incremental"),
    "a dropped partition": (_partition_dropped, "incremental"),
    "updated rows": (lambda source: source.update({"v": "v + 1"}, where="id > 4"), "incremental"),
    "upserted rows": (_upserted, "incremental"),
    "no rows left": (_emptied, "incremental"),
    "a compaction": (lambda source: source.optimize.compact_files(), "incremental"),
    "a restore": (_restored, "incremental"),
    "an overwrite": (_overwritten, "rebuild"),
    "columns with each other's names": (_renamed_and_back, "rebuild"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_no_view_is_stale_after(follower: Follower, name: str) -> None:
    change, mode = CHANGES[name]
    follower.history.dataset.update({"s": "'old'"}, where="id < 8")
    found = followed(follower)
    change(follower.history.dataset)
    modes = {view.name: follower.refresh(view) for view in found}
    assert modes["doubled"] == modes["pairs"] == modes["words"] == mode
    assert modes["totals"] == "rebuild"
    assert {follower.refresh(view) for view in found} == {"no_op"}


def test_a_view_whose_column_was_renamed_fails_until_it_is_back(follower: Follower) -> None:
    found = followed(follower)
    before = [follower.shown(view) for view in found]
    follower.history.dataset.alter_columns({"path": "v", "name": "value"})
    for view in found:
        if view.name != "pairs":
            with pytest.raises((InvalidInput, TableColumnNotFound), match="v"):
                follower.refresh(view)
    assert [follower.shown(view) for view in found] == before
    follower.history.dataset.alter_columns({"path": "value", "name": "v"})
    for view in found:
        follower.refresh(view)


# --- functions that give another answer each time -------------------------------------------------


@pytest.mark.parametrize(
    "query",
    [
        "SELECT id, random() AS n FROM source",
        "SELECT id, v AS n FROM source WHERE v > RANDOM() * 10",
        "SELECT id, v AS n FROM source WHERE now() > CAST('2020-01-01' AS timestamp)",
        "SELECT id, date_part('year', current_date()) AS n FROM source",
        "SELECT id, character_length(uuid()) AS n FROM source",
    ],
)
def test_a_view_whose_rows_would_change_by_themselves_is_not_made(
    follower: Follower, query: str
) -> None:
    output = encoded(pa.schema([("id", pa.int64()), ("n", pa.float64())]))
    with pytest.raises(InvalidInput, match="gives another answer at every refresh"):
        follower.wait(
            follower.server.create_view(ref("v"), check("query", query, output), new_key())
        )
    with pytest.raises(TableNotFound):
        follower.wait(follower.server.catalog(DATABASE).find_table(ref("v").id))


# --- types that come back as others ---------------------------------------------------------------

_STRICT = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("text", pa.string(), nullable=False),
        pa.field("large", pa.large_string()),
        pa.field("small", pa.int8(), nullable=False),
        pa.field("at", pa.timestamp("ms", "UTC")),
        pa.field("parts", pa.list_(pa.field("item", pa.string()))),
    ]
)
_ECHO = """
def expand(id, text, large, small, at, parts):
    yield {"text": text, "large": large, "small": small, "at": at, "parts": parts}
"""
_ECHO_ALL = "def expand(source):\n    yield source.to_arrow()\n"


def _strict(kind: str) -> ViewDefinition:
    query = f"SELECT {', '.join(_STRICT.names)} FROM source"
    if kind == "query":
        return check(kind, query, encoded(_STRICT))
    code = _ECHO if kind == "chunker" else _ECHO_ALL
    data = envelope(kind, artifact={"encoding": "python-source", "data": code})
    partition = {"partition_by": "text"} if kind == "udtf" else {}
    return check(kind, query, encoded(_STRICT), spec(kind, data, **partition))


def _strict_rows(first: int, count: int) -> pa.Table:
    rows = [
        {
            "id": n,
            "text": f"t{n % 4}",
            "large": None if n % 3 else f"l{n}",
            "small": n % 100,
            "at": n * 1_000,
            "parts": None if n % 5 == 0 else [f"p{n}", None],
        }
        for n in range(first, first + count)
    ]
    return pa.Table.from_pylist(rows, _STRICT)


@pytest.mark.parametrize("kind", ["query", "chunker", "udtf"])
def test_a_view_keeps_its_types_to_the_byte(follower: Follower, kind: str) -> None:
    recreate(follower, _strict_rows(0, 30))
    view = View("strict", _strict(kind), lambda rows: Counter())
    follower.create(view)
    made = follower.dataset(view).schema
    for name in _STRICT.names:
        assert made.field(name).type == _STRICT.field(name).type
    seen = set()
    for step in range(3):
        request = follower.compute(view)
        seen.add(request.mode.value)
        follower.publish(view, request)
        shown = follower.dataset(view)
        assert shown.schema.remove_metadata().serialize() == made.remove_metadata().serialize()
        wanted = follower.history.dataset.to_table().sort_by("id").to_pylist()
        assert shown.to_table(columns=_STRICT.names).sort_by("id").to_pylist() == wanted
        lance.write_dataset(_strict_rows(100 + step, 1), follower.history.uri, mode="append")
    assert seen == ({"rebuild"} if kind == "udtf" else {"rebuild", "incremental"})
