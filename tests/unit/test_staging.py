"""What staging relies on of Lance's metadata of fragments."""

import pickle
from pathlib import Path

import lance
import pyarrow as pa
import pytest


@pytest.fixture
def uri(tmp_path: Path) -> str:
    """A table with rewritten rows, deleted ones and an untouched fragment."""
    uri = str(tmp_path / "t.lance")
    rows = pa.table({"id": range(40), "n": [0] * 40})
    table = lance.write_dataset(rows, uri, max_rows_per_file=10, enable_stable_row_ids=True)
    table.update({"n": "1"}, where="id % 3 = 0 AND id < 30")
    table.delete("id = 11")
    return uri


def fragments(uri: str) -> dict[int, lance.FragmentMetadata]:
    return {item.fragment_id: item.metadata for item in lance.dataset(uri).get_fragments()}


def test_metadata_are_equal_if_the_fragments_are(uri: str) -> None:
    before = fragments(uri)
    assert any(item.deletion_file for item in before.values())
    assert all(item.row_id_meta for item in before.values())
    assert fragments(uri) == before
    lance.dataset(uri).delete("id = 12")
    changed = [number for number, item in fragments(uri).items() if item != before[number]]
    assert len(changed) == 1


def test_metadata_are_the_same_after_a_journey(uri: str) -> None:
    before = fragments(uri)
    assert pickle.loads(pickle.dumps(before)) == before
