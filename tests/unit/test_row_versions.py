"""Numbers of versions that are noted of rows, and which of them can be told apart."""

import json
from collections.abc import Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from lance.fragment import FragmentMetadata, RowDatasetVersionMeta

from actors.row_versions import _Runs, with_fewer_runs

# Many versions and few that are there, so that there is something to join.
_NUMBERS = st.lists(st.integers(1, 5_000), min_size=300, max_size=900)
_THERE = st.lists(st.integers(1, 6_000), max_size=20)


def noted(numbers: Sequence[int]) -> Any:
    runs = _Runs()
    for number in numbers:
        runs.runs.add(version=number).span.range.end = 1
    return from_bytes(runs.SerializeToString())


def from_bytes(encoded: bytes) -> Any:
    return RowDatasetVersionMeta.from_json(json.dumps({"inline": list(encoded)}))


def numbers_of(meta: Any) -> list[int]:
    runs = _Runs.FromString(bytes(json.loads(meta.json())["inline"])).runs
    return [run.version for run in runs for _ in range(run.span.range.start, run.span.range.end)]


class Elsewhere:
    """A note that is not in the manifest, of which pylance 14 makes none yet."""

    def json(self) -> str:
        return json.dumps({"path": "runs", "offset": 0, "size": 9})


def fragment(created: Any, updated: Any, rows: int) -> FragmentMetadata:
    return FragmentMetadata(
        id=3,
        files=[],
        physical_rows=rows,
        created_at_version_meta=created,
        last_updated_at_version_meta=updated,
    )


@given(_NUMBERS, _THERE)
def test_a_row_is_later_than_a_version_that_is_there_exactly_if_it_was(
    numbers: list[int], there: list[int]
) -> None:
    later = [number + 7 for number in numbers]
    before = fragment(noted(numbers), noted(later), len(numbers))
    for after in with_fewer_runs([before], there):
        assert after.id == 3 and after.physical_rows == len(numbers)
        for was, meta in (
            (numbers, after.created_at_version_meta),
            (later, after.last_updated_at_version_meta),
        ):
            now = numbers_of(meta)
            assert len(now) == len(was)
            for version in there:
                assert [number > version for number in now] == [number > version for number in was]


def test_runs_are_joined_where_no_version_lies_between() -> None:
    numbers = list(range(2, 1_002))
    (after,) = with_fewer_runs([fragment(noted(numbers), noted(numbers), 1_000)], [900, 500, 2_000])
    assert numbers_of(after.created_at_version_meta) == [500] * 499 + [900] * 400 + [2_000] * 101
    encoded = json.loads(after.created_at_version_meta.json())["inline"]
    assert len(encoded) < 40


def test_what_would_save_little_stays() -> None:
    numbers = list(range(2, 1_002))
    assert with_fewer_runs([fragment(noted(numbers), noted(numbers), 1_000)], numbers) == []
    assert with_fewer_runs([fragment(noted([2, 3]), noted([2, 3]), 2)], [9]) == []


def test_what_is_not_understood_stays() -> None:
    numbers = list(range(2, 1_002))
    runs = _Runs()
    for number in numbers:
        # A list of places, which this form of a span may be one day.
        runs.runs.add(version=number).span.MergeFromString(bytes([0x22, 0x02, 0x08, 0x01]))
    strange = [from_bytes(runs.SerializeToString()), from_bytes(b"\xff" * 5_000)]
    for meta in strange:
        assert with_fewer_runs([fragment(meta, meta, 1_000)], [9_999]) == []
    # What is in a file of its own would be lost.
    assert with_fewer_runs([fragment(noted(numbers), Elsewhere(), 1_000)], [9_999]) == []
    # Nor are rows added or lost if the numbers are of other rows.
    assert with_fewer_runs([fragment(noted(numbers), noted(numbers), 999)], [9_999]) == []
    assert with_fewer_runs([fragment(None, None, 1_000)], [9_999]) == []
