"""Work items on their way to workers."""

import pickle

from udtf.daft_pool import batches_of
from udtf.items import AllRows, WorkItem


def test_a_partition_of_many_items_holds_its_own_alone() -> None:
    items = [WorkItem(f"item-{number:05}", "x" * 200, AllRows()) for number in range(2_001)]
    parts = list(batches_of(items, 8).iter_partitions())
    found = [pickle.loads(item) for part in parts for item in part.to_pydict()["item"]]
    assert (len(parts), found) == (251, items)
    assert max(len(pickle.dumps(part)) for part in parts) < 20_000
