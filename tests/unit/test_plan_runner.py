"""Distributed plans on Daft's native runner: the answers of Lance itself, and nothing more read."""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

from actors.distributed import ScanTarget
from actors.model import ScanRequest
from actors.plan_runner import PlanRunner
from actors.staging import UpdatePlan, delete_operation, update_operation
from actors.work_items import ReadItem, WorkItem, answer, read_answers
from cluster.errors import InvalidInput, ServiceUnavailable, TableSchemaValidationError
from cluster.settings import Settings

FRAGMENTS = 100
ROWS = pa.table(
    {
        "id": pa.array(range(1_000)),
        "group": pa.array([number % 7 for number in range(1_000)]),
        "name": pa.array([f"name {number}" for number in range(1_000)]),
    },
    schema=pa.schema(
        [
            pa.field("id", pa.int64(), nullable=False),
            pa.field("group", pa.int64()),
            pa.field("name", pa.utf8()),
        ],
        metadata={"made by": "a test"},
    ),
)


@dataclass
class Planned:
    """A runner over one table, and the items that it had done."""

    runner: PlanRunner
    dataset: Any
    items: list[WorkItem]

    @property
    def target(self) -> ScanTarget:
        version = int(self.dataset.version)
        return ScanTarget(self.dataset.uri, None, version, self.dataset.count_rows())

    def scan(self, **request: Any) -> pa.Table:
        rows = self.runner.scan(self.target, ScanRequest(**request))
        return pa.Table.from_batches(rows.batches(), rows.schema)


@pytest.fixture
def run_items() -> Callable[[Sequence[WorkItem]], pa.Table]:
    # Daft tells its makers of every import and plan unless this is set before.
    os.environ.setdefault("DAFT_ANALYTICS_ENABLED", "0")
    from actors.daft_plans import run_items

    return run_items


@pytest.fixture
def planned(
    tmp_path: Path, run_items: Callable[[Sequence[WorkItem]], pa.Table]
) -> Iterator[Planned]:
    uri = str(tmp_path / "t.lance")
    dataset = lance.write_dataset(
        ROWS, uri, max_rows_per_file=1_000 // FRAGMENTS, enable_stable_row_ids=True
    )
    assert len(dataset.get_fragments()) == FRAGMENTS
    items: list[WorkItem] = []

    def run(asked: Sequence[WorkItem]) -> pa.Table:
        items.extend(asked)
        return run_items(asked)

    settings = Settings.model_validate({"storage": {"root": str(tmp_path)}})
    yield Planned(PlanRunner(settings, run, workers=2), dataset, items)


def commit(planned: Planned, operation: Any) -> Any:
    return lance.LanceDataset.commit(
        planned.dataset, operation, read_version=planned.dataset.version
    )


def all_fragments(dataset: Any) -> list[int]:
    return [fragment.fragment_id for fragment in dataset.get_fragments()]


def test_a_limit_after_a_filter_counts_rows_of_the_whole_table(planned: Planned) -> None:
    found = planned.scan(filter="`group` = 3", limit=100)
    assert found.column("id").to_pylist() == [3 + 7 * number for number in range(100)]


def test_a_limit_of_one_gives_one_row(planned: Planned) -> None:
    assert planned.scan(limit=1).column("id").to_pylist() == [0]


@pytest.mark.parametrize("predicate", [None, "`group` = 3", "id < 0"])
def test_an_offset_beyond_the_end_gives_no_rows(planned: Planned, predicate: str | None) -> None:
    found = planned.scan(filter=predicate, offset=1_000, limit=5)
    assert found.num_rows == 0
    assert found.schema == ROWS.schema


@pytest.mark.parametrize("offset", [0, 1, 9, 10, 11, 137, 142])
@pytest.mark.parametrize("limit", [None, 0, 1, 10, 11, 500])
@pytest.mark.parametrize("predicate", [None, "`group` = 3"])
def test_offset_and_limit_are_those_of_lance(
    planned: Planned, predicate: str | None, offset: int, limit: int | None
) -> None:
    found = planned.scan(filter=predicate, offset=offset, limit=limit, with_row_id=True)
    rows = planned.dataset.to_table(filter=predicate, with_row_id=True)
    assert found == rows.slice(offset, limit)


def test_the_end_of_a_table_is_not_read_when_a_limit_comes_first(planned: Planned) -> None:
    planned.scan(limit=15)
    read = {fragment for item in planned.items for fragment in fragments_of(item)}
    assert 0 in read
    assert FRAGMENTS - 1 not in read


def test_rows_that_an_offset_skips_are_not_read(planned: Planned) -> None:
    planned.scan(offset=990)
    (item,) = planned.items
    assert FRAGMENTS - 1 in fragments_of(item)
    assert 0 not in fragments_of(item)


def fragments_of(item: WorkItem) -> tuple[int, ...]:
    assert isinstance(item, ReadItem)
    return item.fragments


@pytest.mark.parametrize("predicate", [None, "id % 5 <> 3"])
@pytest.mark.parametrize(
    ("rows", "scan_bytes"),
    [
        pytest.param(50, 1, id="a row at a time"),
        pytest.param(20_000, 200_000, id="a fragment in many pieces"),
        pytest.param(20_000, 50_000_000, id="all at once"),
    ],
)
def test_rows_come_in_order_and_in_bounded_pieces(
    tmp_path: Path,
    run_items: Callable[[Sequence[WorkItem]], pa.Table],
    predicate: str | None,
    rows: int,
    scan_bytes: int,
) -> None:
    data = pa.table({"id": range(rows), "text": [f"{number:0100}" for number in range(rows)]})
    dataset = lance.write_dataset(data, tmp_path / "t.lance", max_rows_per_file=rows // 2 + 3)
    sizes: list[int] = []

    def run(items: Sequence[WorkItem]) -> pa.Table:
        answers = run_items(items)
        sizes.append(answers.nbytes)
        return answers

    settings = Settings.model_validate(
        {"storage": {"root": str(tmp_path)}, "engine": {"distributed_scan_bytes": scan_bytes}}
    )
    runner = PlanRunner(settings, run, workers=2)
    planned = runner.scan(
        ScanTarget(dataset.uri, None, int(dataset.version), rows), ScanRequest(filter=predicate)
    )
    found = pa.Table.from_batches(planned.batches(), planned.schema)
    assert found == dataset.to_table(filter=predicate)
    # The names of the columns come with every part, and a batch is not divided.
    assert max(sizes) < 2 * scan_bytes + 20_000


def test_a_count_is_that_of_lance(planned: Planned) -> None:
    assert planned.runner.count(planned.target, "`group` = 3") == 143
    assert planned.dataset.count_rows("`group` = 3") == 143


def test_a_count_leaves_out_deleted_rows(planned: Planned) -> None:
    planned.dataset.delete("id < 505")
    assert planned.runner.count(planned.target, "id >= 0") == 495


def test_a_count_is_shared_out_among_the_workers(planned: Planned) -> None:
    planned.runner.count(planned.target, "id >= 0")
    assert len(planned.items) == 4


def test_the_version_of_the_target_is_read(planned: Planned) -> None:
    before = planned.target
    planned.dataset.delete("id < 500")
    assert planned.runner.count(before, "id >= 0") == 1_000


def test_a_branch_is_read(planned: Planned) -> None:
    branch = planned.dataset.create_branch("b")
    branch.delete("id >= 10")
    target = ScanTarget(planned.dataset.uri, "b", int(branch.version), 10)
    assert planned.runner.count(target, "id >= 0") == 10


@pytest.mark.parametrize("work", ["(id < 10)", UpdatePlan("(id < 10)", ((("group",), "(-1)"),))])
def test_a_branch_is_changed_and_main_is_not(planned: Planned, work: UpdatePlan | str) -> None:
    branch = planned.dataset.create_branch("b")
    version = int(branch.version)
    staged = planned.runner.stage(
        planned.dataset.uri, "b", version, work, all_fragments(planned.dataset)
    )
    changed = update_operation(staged, branch)
    if isinstance(work, str):
        changed = delete_operation(staged, work)
    after = lance.LanceDataset.commit(branch, changed, read_version=version)
    assert staged.rows == 10
    assert after.count_rows("id < 10 AND `group` >= 0") == 0
    assert planned.dataset.count_rows("id < 10 AND `group` >= 0") == 10


def test_an_update_keeps_the_schema_to_the_byte_and_appends_go_on(planned: Planned) -> None:
    before = planned.dataset.schema
    work = UpdatePlan("(id >= 200 AND id < 700)", ((("name",), "(concat(name, '!'))"),))
    staged = planned.runner.stage(
        planned.dataset.uri, None, 1, work, all_fragments(planned.dataset)
    )
    assert staged.rows == 500
    assert staged.seen == frozenset(range(FRAGMENTS))
    after = commit(planned, update_operation(staged, planned.dataset))
    assert after.schema.serialize() == before.serialize()
    names = {row["id"]: row["name"] for row in after.to_table().to_pylist()}
    assert names == {
        number: f"name {number}!" if 200 <= number < 700 else f"name {number}"
        for number in range(1_000)
    }
    lance.write_dataset(ROWS.slice(0, 5), planned.dataset.uri, mode="append")
    assert lance.dataset(planned.dataset.uri).count_rows() == 1_005


def test_an_update_keeps_row_ids(planned: Planned) -> None:
    before = row_ids(planned.dataset)
    work = UpdatePlan("(`group` = 2)", ((("group",), "(-1)"),))
    staged = planned.runner.stage(
        planned.dataset.uri, None, 1, work, all_fragments(planned.dataset)
    )
    assert row_ids(commit(planned, update_operation(staged, planned.dataset))) == before


def row_ids(dataset: Any) -> dict[int, int]:
    table = dataset.to_table(columns=["id"], with_row_id=True)
    return dict(zip(table["id"].to_pylist(), table["_rowid"].to_pylist(), strict=True))


def test_an_update_beside_blobs_keeps_them(
    tmp_path: Path, run_items: Callable[[Sequence[WorkItem]], pa.Table]
) -> None:
    blob = pa.field("blob", pa.large_binary(), metadata={"lance-encoding:blob": "true"})
    schema = pa.schema([pa.field("id", pa.int64()), pa.field("n", pa.int64()), blob])
    contents = [f"blob {number}".encode() for number in range(12)]
    data = pa.table([list(range(12)), [0] * 12, contents], schema=schema)
    dataset = lance.write_dataset(data, tmp_path / "t.lance", max_rows_per_file=3)
    settings = Settings.model_validate({"storage": {"root": str(tmp_path)}})
    runner = PlanRunner(settings, run_items, workers=2)
    work = UpdatePlan("(id % 4 = 0)", ((("n",), "(id + 100)"),))
    staged = runner.stage(dataset.uri, None, 1, work, all_fragments(dataset))
    assert staged.rows == 3
    after = lance.LanceDataset.commit(dataset, update_operation(staged, dataset), read_version=1)
    found = after.to_table(columns=["id", "n"]).to_pylist()
    assert [row["n"] for row in found] == [
        number + 100 if number % 4 == 0 else 0 for number in range(12)
    ]
    blobs = after.take_blobs("blob", indices=list(range(12)))
    assert [item.read() for item in blobs] == contents


def test_each_worker_writes_one_fragment_of_an_update(planned: Planned) -> None:
    work = UpdatePlan(None, ((("group",), "(0)"),))
    staged = planned.runner.stage(
        planned.dataset.uri, None, 1, work, all_fragments(planned.dataset)
    )
    assert len(staged.new) == 2
    assert sorted(staged.removed) == list(range(FRAGMENTS))


def test_a_delete_takes_the_selected_rows(planned: Planned) -> None:
    predicate = "(`group` = 3 OR id >= 985)"
    staged = planned.runner.stage(
        planned.dataset.uri, None, 1, predicate, all_fragments(planned.dataset)
    )
    after = commit(planned, delete_operation(staged, predicate))
    assert staged.rows == 143 + 15 - 2
    assert after.count_rows() == 1_000 - staged.rows
    assert after.count_rows("`group` = 3 OR id >= 985") == 0


def test_only_the_named_fragments_are_staged(planned: Planned) -> None:
    staged = planned.runner.stage(planned.dataset.uri, None, 1, "(id >= 0)", [3, 4])
    assert staged.seen == frozenset({3, 4})
    assert sorted(staged.removed) == [3, 4]
    assert staged.rows == 20


def test_a_change_of_an_empty_table_changes_nothing(planned: Planned) -> None:
    staged = planned.runner.stage(planned.dataset.uri, None, 1, "(id >= 0)", [])
    assert (staged.rows, staged.seen, planned.items) == (0, frozenset(), [])


def test_an_unknown_column_is_refused_before_any_work(planned: Planned) -> None:
    with pytest.raises(InvalidInput, match="nope"):
        planned.runner.count(planned.target, "nope = 1")
    with pytest.raises(InvalidInput, match="nope"):
        planned.scan(columns=(("x", "nope + 1"),))
    assert planned.items == []


def test_an_expression_that_fails_on_a_row_is_refused_as_in_process(planned: Planned) -> None:
    with pytest.raises(InvalidInput, match="name 0"):
        planned.runner.count(planned.target, "cast(name AS int) > 1")
    with pytest.raises(InvalidInput, match="name 0"):
        planned.scan(columns=(("x", "cast(name AS int)"),))


def test_rows_before_one_on_which_an_expression_fails_are_enough_for_a_limit(
    planned: Planned,
) -> None:
    columns = (("x", "cast(CASE WHEN id < 900 THEN '1' ELSE name END AS int)"),)
    found = planned.scan(columns=columns, limit=20)
    assert found.column("x").to_pylist() == [1] * 20


def test_a_null_for_a_column_that_takes_none_is_refused(planned: Planned) -> None:
    work = UpdatePlan("(id = 500)", ((("id",), "(NULL)"),))
    with pytest.raises(TableSchemaValidationError, match="id"):
        planned.runner.stage(planned.dataset.uri, None, 1, work, all_fragments(planned.dataset))


class TwoParts:
    """An item whose answer has two parts."""

    def perform(self) -> Iterator[int]:
        yield 1
        yield 2


def test_an_answer_is_put_together_from_parts_in_any_order() -> None:
    parts = [*answer(0, TwoParts()), *answer(1, TwoParts())]
    assert read_answers(pa.Table.from_batches(parts[::-1]), 2) == [[1, 2], [1, 2]]


@pytest.mark.parametrize(
    "arrived",
    [
        pytest.param([0, 1], id="without its end"),
        pytest.param([0, 2], id="without a part"),
        pytest.param([0, 0, 1, 2], id="a part twice"),
        pytest.param([0, 1, 2, 2], id="the end twice"),
    ],
)
def test_an_answer_that_is_not_whole_is_noticed(arrived: list[int]) -> None:
    parts = list(answer(0, TwoParts()))
    assert len(parts) == 3
    with pytest.raises(ServiceUnavailable):
        read_answers(pa.Table.from_batches([parts[number] for number in arrived]), 1)
