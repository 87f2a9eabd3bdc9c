"""Refreshes as a driver runs them, on Daft's native runner, published by the test itself."""

import shutil
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest

from cluster.errors import InvalidInput
from cluster.settings import Settings
from tests.unit.refresh_lab import Lab, Notes, publish, settle
from udtf.host import ItemHost
from udtf.refresh import RefreshCancelled, RefreshFailed
from udtf.refresh_model import ItemState, ItemStatus
from udtf.resources import ImpossibleResources
from udtf.spec import CHUNK_INDEX, SOURCE_ROW_ID

# Daft's runner leaves the pipes of its workers to the garbage collector.
pytestmark = [
    pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

WORDS = pa.schema([("id", pa.int64()), ("word", pa.string())])
STATS = pa.schema([("k", pa.string()), ("rows", pa.int64()), ("total", pa.int64())])
SPLIT = """
def expand(text):
    for word in text.split():
        yield {"word": word}
"""
PARTS = """
def expand(n):
    yield {"part": n}
"""
COUNT = """
import pyarrow as pa

def expand(source):
    table = source.to_arrow()
    key = table["k"][0].as_py() if table.num_rows else None
    total = sum(table["n"].to_pylist())
    yield pa.RecordBatch.from_pydict({"k": [key], "rows": [table.num_rows], "total": [total]})
"""
# Fails on the partition `b` for as long as a file is not there.
FLAKY = """
import os
import pyarrow as pa

class expand:
    def __init__(self, flag):
        self.flag = flag

    def __call__(self, source):
        table = source.to_arrow()
        key = table["k"][0].as_py()
        if key == "b" and not os.path.exists(self.flag):
            open(self.flag, "w").close()
            raise ConnectionError("rate limit")
        yield pa.RecordBatch.from_pydict({
            "k": [key], "rows": [table.num_rows], "total": [sum(table["n"].to_pylist())]
        })
"""


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    yield Lab(tmp_path)
    settle()


def texts(first: int, count: int) -> pa.Table:
    """Rows of which each third has no word."""
    values = ["" if n % 3 == 0 else f"a{n} b{n} a{n}" for n in range(first, first + count)]
    return pa.table({"id": range(first, first + count), "text": values})


def expected_words(lab: Lab) -> list[tuple[Any, ...]]:
    rows = lab.source.to_table().to_pylist()
    words = [(row["id"], w, n) for row in rows for n, w in enumerate(row["text"].split())]
    return sorted(words, key=repr)


def groups(lab: Lab) -> list[tuple[Any, ...]]:
    rows = lab.source.to_table().to_pylist()
    counts = Counter(row["k"] for row in rows)
    totals: Counter[Any] = Counter()
    for row in rows:
        totals[row["k"]] += row["n"]
    return sorted(((key, counts[key], totals[key]) for key in counts), key=repr)


def write_groups(lab: Lab, rows: int = 40) -> None:
    keys = [[None, "a", "b", "c"][n % 4] for n in range(rows)]
    lab.write_source(pa.table({"k": keys, "n": range(rows)}), rows_per_fragment=15)


# --- query views


def doubled(lab: Lab) -> list[tuple[Any, ...]]:
    rows = lab.source.to_table().to_pylist()
    return sorted(((r["id"], r["n"] * 2) for r in rows if r["n"] > 5), key=repr)


def test_a_query_view_follows_its_source(lab: Lab) -> None:
    lab.write_source(pa.table({"id": range(50), "n": [n % 20 for n in range(50)]}), 20)
    lab.query(
        "SELECT id, n * 2 AS twice FROM source WHERE n > 5",
        pa.schema([("id", pa.int64()), ("twice", pa.int64())]),
    )
    assert lab.sorted_rows() == doubled(lab)
    assert lab.notes.mode == "rebuild"
    assert lab.notes.phases == ["plan", "compute"]

    assert lab.compute() is None
    assert (lab.notes.mode, lab.notes.phases) == ("no_op", ["plan"])

    source = lab.source
    source.update({"n": "n + 3"}, where="id < 10")
    source.delete("id % 7 = 0")
    lab.write_source(pa.table({"id": [100, 101], "n": [1, 9]}))
    assert lab.sorted_rows() == doubled(lab)
    assert lab.notes.mode == "incremental"
    assert sum(status.rows_out for status in lab.notes.items) < 12
    ids = {row["_rowid"]: row["id"] for row in lab.source.to_table(with_row_id=True).to_pylist()}
    for row in lab.rows().to_pylist():
        assert ids[row[SOURCE_ROW_ID]] == row["id"]

    assert lab.sorted_rows(full=True) == doubled(lab)
    assert lab.notes.mode == "rebuild"


def test_values_that_do_not_fit_fail_a_query_view(lab: Lab) -> None:
    lab.write_source(pa.table({"n": [1, 300]}))
    lab.query("SELECT n FROM source", pa.schema([("n", pa.int8())]))
    with pytest.raises(RefreshFailed, match="'n' is int64 and does not fit int8") as failed:
        lab.compute()
    assert (failed.value.error_type, failed.value.retryable) == ("SchemaError", False)


def test_fragments_of_a_query_view_hold_as_many_rows_as_asked(lab: Lab) -> None:
    lab.write_source(pa.table({"n": range(100)}), 70)
    lab.query("SELECT n FROM source", pa.schema([("n", pa.int64())]))
    lab.refresh(max_rows_per_fragment=40)
    fragments = [part.count_rows() for part in lance.dataset(lab.view_uri).get_fragments()]
    assert fragments == [40, 40, 20]
    assert sorted(lab.rows().column("n").to_pylist()) == list(range(100))


def test_an_expression_that_fails_on_a_row_is_the_querys_fault(lab: Lab) -> None:
    lab.write_source(pa.table({"n": [1, 0]}))
    lab.query("SELECT 10 / n AS tenth FROM source", pa.schema([("tenth", pa.int64())]))
    with pytest.raises(RefreshFailed, match=r"[Dd]ivide by zero") as failed:
        lab.compute()
    assert not failed.value.retryable
    assert ".rs:" not in failed.value.message


def test_a_refresh_has_a_bounded_number_of_items(lab: Lab) -> None:
    """Items are made large enough; a size that a request gives is kept or refused."""
    lab.settings = Settings.model_validate({"views": {"items_max": 4, "source_task_rows": 10}})
    lab.write_source(pa.table({"n": range(101)}))
    for query in ("SELECT n FROM source", "SELECT n FROM source WHERE n >= 0"):
        lab.code("chunker", PARTS, pa.schema([("part", pa.int64())]), query)
        assert [item.rows_in for item in lab.plan().items] == [26, 26, 26, 23]
        assert len(lab.plan(source_task_size=30).items) == 4
        with pytest.raises(InvalidInput, match=r"source_task_size = 25 .* make it 26 or more"):
            lab.plan(source_task_size=25)
        shutil.rmtree(lab.view_uri)
    lab.query("SELECT n FROM source", pa.schema([("n", pa.int64())]))
    with pytest.raises(InvalidInput, match="max_rows_per_fragment = 1 "):
        lab.plan(max_rows_per_fragment=1)


def test_a_limited_query_view_is_computed_whole(lab: Lab) -> None:
    lab.write_source(pa.table({"n": range(30)}), 7)
    lab.query("SELECT n FROM source WHERE n >= 3 LIMIT 10", pa.schema([("n", pa.int64())]))
    assert lab.refresh().column("n").to_pylist() == list(range(3, 13))
    lab.source.delete("n = 5")
    assert lab.refresh().column("n").to_pylist() == [3, 4, *range(6, 14)]
    assert lab.notes.mode == "rebuild"


# --- chunker views


def test_a_chunker_view_follows_its_source(lab: Lab) -> None:
    lab.write_source(texts(0, 40), 15)
    lab.code("chunker", SPLIT, WORDS, input_columns=["text"])
    assert lab.sorted_rows(source_task_size=7, concurrency=2) == expected_words(lab)
    assert max(lab.notes.active) == 2
    assert sorted(status.rows_in for status in lab.notes.items) == [5, 7, 7, 7, 7, 7]

    lab.source.update({"text": "'new words'"}, where="id IN (1, 3)")
    lab.source.delete("id IN (2, 9)")
    lab.write_source(texts(40, 5))
    assert lab.sorted_rows() == expected_words(lab)
    assert lab.notes.mode == "incremental"
    assert sum(status.rows_in for status in lab.notes.items) == 7
    assert set(lab.rows().column_names) == {"id", "word", SOURCE_ROW_ID, CHUNK_INDEX}


def test_rows_that_the_query_leaves_out_are_not_given_to_the_code(lab: Lab) -> None:
    lab.write_source(texts(0, 40), 15)
    lab.code(
        "chunker",
        SPLIT,
        WORDS,
        "SELECT id, text FROM source WHERE id >= 30",
        input_columns=["text"],
    )
    rows = lab.sorted_rows(source_task_size=4)
    assert rows == [row for row in expected_words(lab) if row[0] >= 30]
    assert sorted(status.rows_in for status in lab.notes.items) == [2, 4, 4]


def test_a_column_that_the_code_makes_is_not_inherited(lab: Lab) -> None:
    code = "def expand(text):\n    return [{'text': text.upper()}]\n"
    lab.write_source(texts(1, 2))
    lab.code(
        "chunker",
        code,
        pa.schema([("id", pa.int64()), ("text", pa.string())]),
        input_columns=["text"],
    )
    assert lab.sorted_rows() == [(1, "A1 B1 A1", 0), (2, "A2 B2 A2", 0)]


def test_a_batch_chunker_says_which_rows_its_chunks_are_of(lab: Lab) -> None:
    code = """
import pyarrow as pa

def expand(batch):
    parents = [n for n in range(batch.num_rows) for _ in range(2)]
    words = [f"{batch['id'][n].as_py()}!" for n in parents]
    return pa.RecordBatch.from_pydict({"word": words, "parent": pa.array(parents, pa.int32())})
"""
    lab.settings = Settings.model_validate({"views": {"batch_rows": 4, "concurrency": 1}})
    lab.write_source(texts(0, 10))
    lab.code("chunker", code, WORDS, batch=True)
    expected = [(n, f"{n}!", index) for n in range(10) for index in (0, 1)]
    assert lab.sorted_rows() == sorted(expected, key=repr)


def test_chunks_beyond_the_limit_are_cut_off(lab: Lab) -> None:
    code = "def expand(id):\n    for n in range(10):\n        yield {'word': f'{id}.{n}'}\n"
    lab.write_source(pa.table({"id": range(12)}))
    lab.code("chunker", code, WORDS)
    request = lab.compute(output_limit=25, source_task_size=1, max_rows_per_fragment=4)
    assert request is not None
    assert request.rows_written == 25
    assert request.watermark.output_limit == 25
    publish(lab.view_uri, request)
    words = lab.rows().column("word").to_pylist()
    assert words == [f"{row}.{n}" for row in range(3) for n in range(10)][:25]

    lab.write_source(pa.table({"id": [12]}))
    lab.source.delete("id = 0")
    lab.refresh(output_limit=25, source_task_size=5)
    words = lab.rows().column("word").to_pylist()
    assert words == [f"{row}.{n}" for row in range(1, 4) for n in range(10)][:25]


def test_one_row_of_many_chunks_becomes_several_fragments(lab: Lab) -> None:
    code = "def expand(id):\n    for n in range(10_000):\n        yield {'word': str(n)}\n"
    lab.write_source(pa.table({"id": range(3)}))
    lab.code("chunker", code, WORDS)
    request = lab.compute(max_rows_per_fragment=4_000)
    assert request is not None
    assert (request.rows_written, len(request.fragments)) == (30_000, 8)


# --- UDTF views


def test_code_sees_the_whole_source_without_partitions(lab: Lab) -> None:
    write_groups(lab)
    lab.code("udtf", COUNT, STATS)
    assert lab.sorted_rows() == [(None, 40, sum(range(40)))]
    assert lab.compute() is None


def test_every_value_is_a_partition_and_null_too(lab: Lab) -> None:
    write_groups(lab)
    lab.code("udtf", COUNT, STATS, partition_by="k")
    assert lab.sorted_rows() == groups(lab)
    assert {status.label for status in lab.notes.items} == {"k = NULL", "k = a", "k = b", "k = c"}
    assert max(lab.notes.active) >= 1

    lab.source.update({"k": "'d'"}, where="n = 1")
    assert lab.sorted_rows() == groups(lab)
    assert lab.notes.mode == "rebuild"


def test_every_list_of_an_ivf_index_is_a_partition(lab: Lab) -> None:
    random = np.random.default_rng(1)
    values = pa.array(random.normal(size=2_400).astype(np.float32))
    vectors = pa.FixedSizeListArray.from_arrays(values, 8)
    source = lab.write_source(pa.table({"k": ["x"] * 300, "n": range(300), "v": vectors}))
    source.create_index("v", "IVF_FLAT", num_partitions=3, metric="l2", name="index")
    lab.write_source(pa.table({"k": ["x"] * 10, "n": range(300, 310), "v": vectors[:10]}))
    lab.code("udtf", COUNT, STATS, partition_by_indexed_column="v", input_columns=["k", "n"])
    rows = lab.sorted_rows()
    assert len(rows) == 3
    assert sum(row[1] for row in rows) == 310
    assert sum(row[2] for row in rows) == sum(range(310))


def test_several_children_of_one_worker_share_its_items(lab: Lab) -> None:
    code = COUNT.replace("import pyarrow", "import os\nimport pyarrow").replace(
        '"total": [total]', '"total": [os.getpid()]'
    )
    write_groups(lab)
    lab.code("udtf", code, STATS, partition_by="k")
    lab.refresh(concurrency=1, intra_applier_concurrency=2)
    assert len(set(lab.rows().column("total").to_pylist())) == 2


def test_a_partition_without_output_writes_nothing(lab: Lab) -> None:
    write_groups(lab)
    lab.code("udtf", "def expand(source):\n    return iter(())\n", STATS, partition_by="k")
    request = lab.compute()
    assert request is not None
    assert (request.fragments, request.rows_written) == ((), 0)
    assert [status.state for status in lab.notes.items] == [ItemState.DONE] * 4


# --- failures


def test_the_first_failure_ends_a_refresh(lab: Lab) -> None:
    code = COUNT.replace(
        "    total =", "    if key == 'b':\n        raise ValueError(key)\n    total ="
    )
    write_groups(lab)
    lab.code("udtf", code, STATS, partition_by="k")
    with pytest.raises(RefreshFailed, match="k = b: ValueError: b") as failed:
        lab.compute()
    failure = failed.value
    assert (failure.phase, failure.error_type, failure.retryable) == (
        "compute",
        "ValueError",
        False,
    )
    bad = [status for status in lab.notes.items if status.state is ItemState.FAILED]
    assert [status.id for status in bad] == [failure.item]
    assert bad[0].error is not None
    assert bad[0].error.kind == "user"
    assert lab.rows().num_rows == 0


def test_a_skipped_partition_is_left_out_and_counted(lab: Lab) -> None:
    code = COUNT.replace(
        "    total =", "    if key == 'b':\n        raise ValueError(key)\n    total ="
    )
    write_groups(lab)
    lab.code("udtf", code, STATS, partition_by="k", error_handling={"default": "skip"})
    assert lab.sorted_rows() == [row for row in groups(lab) if row[0] != "b"]
    skipped = [status for status in lab.notes.items if status.state is ItemState.SKIPPED]
    assert [(status.label, status.rows_out) for status in skipped] == [("k = b", 0)]


def test_a_partition_is_done_again_when_the_policy_says_so(lab: Lab) -> None:
    write_groups(lab)
    policy = {
        "matchers": [{"action": "retry", "exceptions": ["OSError"], "backoff": "exponential"}]
    }
    flag = str(lab.folder / "flag")
    lab.code("udtf", FLAKY, STATS, partition_by="k", error_handling=policy, init={"flag": flag})
    assert lab.sorted_rows() == groups(lab)
    attempts = {status.label: status.attempts for status in lab.notes.items}
    assert attempts == {"k = NULL": 1, "k = a": 1, "k = b": 2, "k = c": 1}


def test_what_was_done_is_not_done_again(lab: Lab) -> None:
    write_groups(lab)
    flag = str(lab.folder / "flag")
    lab.code("udtf", FLAKY, STATS, partition_by="k", init={"flag": flag})
    with pytest.raises(RefreshFailed):
        lab.compute(concurrency=1)
    key, done = lab.notes.checkpoint_key, lab.notes.items
    left = {"k = NULL", "k = a", "k = b", "k = c"} - {
        status.label for status in done if status.state is ItemState.DONE
    }
    assert "k = b" in left and len(left) < 4

    done = [replace(status, duration_ms=-1) for status in done]
    request = lab.compute(done, key)
    assert request is not None
    assert {status.label for status in lab.notes.items if status.duration_ms >= 0} == left
    publish(lab.view_uri, request)
    assert lab.sorted_rows() == groups(lab)


def test_done_items_are_done_again_when_they_are_of_no_use(lab: Lab) -> None:
    write_groups(lab)
    lab.code("udtf", COUNT, STATS, partition_by="k")
    lab.compute()
    key = lab.notes.checkpoint_key
    done = [replace(status, duration_ms=-1) for status in lab.notes.items]

    def again(items: list[ItemStatus], key: str) -> set[str]:
        lab.compute(items, key)
        return {status.label for status in lab.notes.items if status.duration_ms >= 0}

    assert again(done, key) == set()
    assert len(again(done, "another")) == 4
    for path in Path(lab.view_uri, "data").iterdir():
        path.unlink()
    assert len(again(done, key)) == 4
    lab.source.update({"n": "n + 1"}, where="n = 1")
    assert len(again(done, key)) == 4


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ("import os; os._exit(3)", "crash"),
        ("yield pa.RecordBatch.from_pydict({'k': [1.5], 'rows': [1], 'total': [1]})", "schema"),
        ("yield pa.RecordBatch.from_pydict({'k': ['x']})", "schema"),
    ],
)
def test_a_host_goes_on_after_an_item_that_failed(lab: Lab, body: str, kind: str) -> None:
    code = COUNT.replace(
        "    total =", f"    if key == 'b':\n        {body}\n        return\n    total ="
    )
    write_groups(lab)
    lab.code("udtf", code, STATS, partition_by="k")
    planned = lab.plan()
    host = ItemHost(planned.host)
    statuses = {item.label: host.run(item) for item in planned.items}
    host.close()
    error = statuses["k = b"].error
    assert error is not None
    assert error.kind == kind
    good = {status.state for label, status in statuses.items() if label != "k = b"}
    assert good == {ItemState.DONE}


def test_an_item_whose_rows_cannot_be_read_fails(lab: Lab) -> None:
    write_groups(lab)
    lab.code("udtf", COUNT, STATS, partition_by="k")
    planned = lab.plan()
    for path in Path(lab.source_uri, "data").iterdir():
        path.unlink()
    status = ItemHost(planned.host).run(planned.items[0])
    assert status.error is not None
    assert (status.state, status.error.kind) == (ItemState.FAILED, "system")


def test_a_cancelled_refresh_ends_while_its_code_still_runs(lab: Lab) -> None:
    code = COUNT.replace(
        "    total =", "    import time; time.sleep(30 * (key == 'c'))\n    total ="
    )
    write_groups(lab)
    lab.code("udtf", code, STATS, partition_by="k")
    lab.notes = Notes(cancel_after=2)
    started = time.monotonic()
    with pytest.raises(RefreshCancelled):
        lab.compute()
    assert time.monotonic() - started < 15


def test_a_refresh_that_can_never_run_is_refused(lab: Lab) -> None:
    write_groups(lab)
    lab.code("udtf", COUNT, STATS, num_cpus=4_096)
    with pytest.raises(ImpossibleResources, match="4096 CPUs"):
        lab.compute()


def test_a_column_that_the_query_lacks_is_refused(lab: Lab) -> None:
    write_groups(lab)
    lab.code("udtf", COUNT, STATS, "SELECT k FROM source", input_columns=["n"])
    with pytest.raises(InvalidInput, match="names the column 'n'"):
        lab.compute()


def test_a_view_of_an_unknown_query_is_not_refreshed(lab: Lab) -> None:
    write_groups(lab)
    lab.query("whatever this is", STATS)
    with pytest.raises(InvalidInput, match="cannot be refreshed"):
        lab.compute()
