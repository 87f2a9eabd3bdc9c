"""What a refresh writes into its view's folder: fragments that nobody sees yet, and evictions.

Fragments are written as a stream, flushed to the disk, and named by the JSON of their metadata.
What belongs to one refresh only is in the folder `_refresh/<job id>`: also a note of every file
that it wrote, so that those which nobody commits can be deleted, whoever died meanwhile.
"""

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

import lance
import numpy as np
import pyarrow as pa
from lance.file import LanceFileSession
from lance.fragment import write_fragments
from lance.progress import FragmentWriteProgress

from cluster import disk
from udtf.items import Ids

REFRESH_FOLDER = "_refresh"
DATA_FOLDER = "data"
EVICTED_IDS = "row_id"
# An empty file `written-<name>` says that the refresh wrote the data file `<name>`.
WRITTEN_PREFIX = "written-"
_EVICT = "evict.arrow"
# Evicted ids are written so many at a time.
_IDS_AT_ONCE = 1 << 20


@dataclass(frozen=True, slots=True)
class ViewFolder:
    """The folder of a view's table, for one refresh; picklable, opens nothing by itself.

    `driver` is a name that no other driver has: what tells the workers of one to stop must not stop
    those of the next. `storage_options` are Lance's own. `fsync` flushes files of a local folder.
    """

    uri: str
    job_id: str
    driver: str
    storage_options: tuple[tuple[str, str], ...]
    fsync: bool

    @property
    def local(self) -> Path | None:
        """The folder, if it is one of this machine."""
        parsed = urlparse(self.uri)
        if parsed.scheme not in ("", "file"):
            return None
        return Path(unquote(parsed.path) if parsed.scheme else self.uri)

    def open(self) -> Any:
        """The view's dataset, at its latest version."""
        return lance.dataset(self.uri, storage_options=dict(self.storage_options) or None)

    def write(
        self, view: Any, schema: pa.Schema, batches: Iterator[pa.RecordBatch], rows_max: int
    ) -> tuple[str, ...]:
        """Write rows as fragments of up to `rows_max` rows each; none if there are no rows.

        `batches` are read as they are written. An exception of theirs arrives as it was raised:
        Lance would make an OSError of every one.
        """
        stream = _Remembering(batch for batch in batches if batch.num_rows)
        first = next(stream, None)
        if first is None:
            return ()
        rows = pa.RecordBatchReader.from_batches(schema, _again(first, stream))
        noting = _Noting(self)
        try:
            fragments = write_fragments(
                rows,
                view,
                schema=schema,
                mode="append",
                max_rows_per_file=rows_max,
                progress=noting,
            )
        except BaseException:
            if stream.error is not None:
                raise stream.error from None
            raise
        # Lance tells of every fragment but the last.
        for fragment in fragments:
            noting.complete(fragment)
        texts = tuple(json.dumps(fragment.to_json()) for fragment in fragments)
        self._flush(data_files(texts))
        return texts

    def flush_names(self) -> None:
        """Flush the names of all files that were written; call it before they are committed.

        One whose name a power cut takes before is missing, and is written again.
        """
        self._flush([DATA_FOLDER])

    def note_written(self, name: str) -> None:
        """Note that this refresh wrote the data file `name`."""
        self._mark(f"{WRITTEN_PREFIX}{name}")

    def missing(self, fragments: Sequence[str]) -> bool:
        """Whether a file of these fragments is gone: Lance would commit them all the same."""
        paths = data_files(fragments)
        if self.local is not None:
            return not all((self.local / path).exists() for path in paths)
        session = self._session()
        return not all(session.contains(path) for path in paths)

    def read(self, fragment: str, rows: int, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """The first `rows` rows of a fragment that `write` has written."""
        (path,) = data_files([fragment])
        reader = self._session().open_reader(path)
        for batch in reader.read_range(0, rows).to_batches():
            yield batch.select(schema.names).cast(schema)

    def write_evictions(self, ids: Ids) -> str | None:
        """Store the ids of source rows whose rows are to go; the file's URI, None if none is."""
        if not len(ids):
            return None
        schema = pa.schema([pa.field(EVICTED_IDS, pa.uint64(), nullable=False)])
        with self._new_file(_EVICT) as path, pa.ipc.new_file(str(path), schema) as writer:
            for start in range(0, len(ids), _IDS_AT_ONCE):
                part = np.ascontiguousarray(ids[start : start + _IDS_AT_ONCE])
                writer.write_batch(pa.record_batch([pa.array(part)], schema=schema))
        name = self._name(_EVICT)
        self._flush([name, str(Path(name).parent)])
        return f"{self.uri}/{name}"

    def stop(self) -> None:
        """Tell every worker of this refresh to begin no other item."""
        self._mark(self._stop)

    def is_stopped(self) -> bool:
        """Whether `stop` was called, in whatever process."""
        name = self._name(self._stop)
        if self.local is not None:
            return os.path.exists(self.local / name)
        return bool(self._session().contains(name))

    def clear(self) -> None:
        """Remove what was stored for this refresh alone; fragments stay."""
        if self.local is not None:
            shutil.rmtree(self.local / REFRESH_FOLDER / self.job_id, ignore_errors=True)
            return
        session = self._session()
        for name in session.list(f"{REFRESH_FOLDER}/{self.job_id}"):
            session.delete_file(name)

    @property
    def _stop(self) -> str:
        return f"stop-{self.driver}"

    def _name(self, file: str) -> str:
        return f"{REFRESH_FOLDER}/{self.job_id}/{file}"

    def _session(self) -> Any:
        return LanceFileSession(self.uri, storage_options=dict(self.storage_options) or None)

    def _mark(self, name: str) -> None:
        """Make an empty file; not flushed: after a power cut nobody is left whom it tells."""
        with self._new_file(name) as path:
            path.touch()

    @contextlib.contextmanager
    def _new_file(self, name: str) -> Iterator[Path]:
        """A local file to write, which is in the view's folder afterwards."""
        if self.local is not None:
            target = self.local / self._name(name)
            target.parent.mkdir(parents=True, exist_ok=True)
            temporary = target.with_name(f".{name}")
            yield temporary
            temporary.replace(target)
            return
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / name
            yield path
            self._session().upload_file(str(path), self._name(name))

    def _flush(self, paths: Sequence[str]) -> None:
        """Flush local files or folders; object stores are durable when they answer."""
        if self.local is not None and self.fsync:
            disk.sync(self.local / path for path in paths)


def data_files(fragments: Sequence[str]) -> list[str]:
    """Paths of the data files of fragments, inside their table's folder."""
    return [
        f"{DATA_FOLDER}/{file['path']}" for text in fragments for file in json.loads(text)["files"]
    ]


def fragment_rows(fragment: str) -> int:
    """How many rows an uncommitted fragment holds."""
    return int(json.loads(fragment)["physical_rows"])


class _Noting(FragmentWriteProgress):  # type: ignore[misc]  # lance is untyped
    """Notes each data file as soon as it is there: a worker may die before its item has ended."""

    def __init__(self, folder: ViewFolder) -> None:
        super().__init__()
        self._folder = folder
        self._noted: set[str] = set()

    def begin(self, fragment: Any, **keywords: Any) -> None:
        """Its file has no name yet."""

    def complete(self, fragment: Any, **keywords: Any) -> None:
        """Its file is written."""
        for file in fragment.files:
            if file.path not in self._noted:
                self._folder.note_written(file.path)
                self._noted.add(file.path)


class _Remembering(Iterator[pa.RecordBatch]):
    """Passes batches on and keeps the exception that ended them."""

    def __init__(self, batches: Iterator[pa.RecordBatch]) -> None:
        self._batches = batches
        self.error: BaseException | None = None

    def __next__(self) -> pa.RecordBatch:
        try:
            return next(self._batches)
        except StopIteration:
            raise
        except BaseException as error:
            self.error = error
            raise


def _again(first: pa.RecordBatch, rest: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield first
    yield from rest
