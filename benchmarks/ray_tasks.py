"""What a chunker view of Destrier is compared with: plain Ray tasks that do the same work.

    python -m benchmarks.ray_tasks SOURCE TARGET ROWS_PER_TASK

Each task reads its rows of the table, calls the same function for each, and writes a fragment; the
fragments are committed once. Ray, its workers and their imports are warm before the clock starts.
Prints the seconds that it took.
"""

import json
import logging
import sys
import time
from collections.abc import Iterator
from typing import Any

import lance
import pyarrow as pa
import ray
from lance.fragment import FragmentMetadata, write_fragments

SCHEMA = pa.schema(
    [
        pa.field("word", pa.string()),
        pa.field("__source_row_id", pa.uint64(), nullable=False),
        pa.field("__chunk_index", pa.int32(), nullable=False),
    ]
)


def one_chunk(text: str) -> Iterator[dict[str, str]]:
    """A chunker that does nothing: one chunk of each row, as it is."""
    yield {"word": text}


def work(source: str, target: str, offset: int, rows: int) -> list[str]:
    """Chunk some rows of `source`; the JSON of the fragments written to `target`."""
    table = lance.dataset(source).to_table(
        columns=["text"], with_row_id=True, offset=offset, limit=rows
    )
    words: list[str] = []
    parents: list[int] = []
    indexes: list[int] = []
    for text, row_id in zip(
        table.column("text").to_pylist(), table.column("_rowid").to_pylist(), strict=True
    ):
        for index, chunk in enumerate(one_chunk(text=text)):
            words.append(chunk["word"])
            parents.append(row_id)
            indexes.append(index)
    chunks = pa.table([words, parents, indexes], schema=SCHEMA)
    fragments = write_fragments(chunks, target, schema=SCHEMA, mode="append")
    return [json.dumps(fragment.to_json()) for fragment in fragments]


def main(source: str, target: str, rows_per_task: int) -> float:
    """Seconds from the first task to the commit."""
    ray.init(logging_level=logging.ERROR, include_dashboard=False)
    task: Any = ray.remote(num_cpus=1)(work)
    lance.write_dataset(SCHEMA.empty_table(), target, enable_stable_row_ids=True)
    workers = int(ray.cluster_resources()["CPU"])  # type: ignore[no-untyped-call]
    ray.get([task.remote(source, target, 0, 1) for _ in range(4 * workers)])
    started_s = time.perf_counter()
    dataset = lance.dataset(source)
    answers = ray.get(
        [
            task.remote(source, target, offset, rows_per_task)
            for offset in range(0, dataset.count_rows(), rows_per_task)
        ]
    )
    fragments = [FragmentMetadata.from_json(text) for answer in answers for text in answer]
    lance.LanceDataset.commit(
        target, lance.LanceOperation.Append(fragments), read_version=lance.dataset(target).version
    )
    seconds = time.perf_counter() - started_s
    assert lance.dataset(target).count_rows() == dataset.count_rows()
    ray.shutdown()
    return seconds


if __name__ == "__main__":
    print(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
