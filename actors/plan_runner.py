"""Plans: what part of a table each worker gets, and how their answers become one.

The same answers, errors and order as in the process that has the table open. `run` does work items
somewhere, with Daft: on its native runner in tests, in the plan actor on a cluster.

A scan is read in windows of pieces, so that neither workers nor the reader hold more than a bounded
part of it, and its end is not read when a limit comes first. An offset into filtered rows is found
by counting; rows that are skipped do not travel.
"""

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from actors.distributed import ScanTarget
from actors.model import ScanRequest
from actors.reads import check_scan
from actors.row_changes import RowWork
from actors.sql import prepare_predicate
from actors.staging import StagedRewrite
from actors.storage import Storage
from actors.work_items import (
    CountItem,
    PlanTarget,
    ReadItem,
    StageItem,
    WorkItem,
    read_answers,
)
from cluster.errors import DestrierError
from cluster.settings import Settings
from udtf.lance_errors import translate

RunItems = Callable[[Sequence[WorkItem]], pa.Table]
# Items per worker: the second starts while the first one's answer travels.
_ITEMS_PER_WORKER = 2
# Small fragments are read together, up to this many rows; Lance's own bound on one fragment.
_STRETCH_ROWS = 1 << 20


@dataclass(frozen=True, slots=True)
class _Stretch:
    """Neighbouring fragments, and how many rows they hold."""

    fragments: tuple[int, ...]
    rows: int


class PlanRunner:
    """Makes plans for `workers` workers and has `run` carry them out."""

    def __init__(self, settings: Settings, run: RunItems, workers: int) -> None:
        self._settings = settings
        self._storage = Storage.of(settings.storage)
        self._run = run
        self._workers = workers

    def stage(
        self,
        uri: str,
        branch: str | None,
        version: int,
        work: RowWork,
        fragments: Sequence[int],
    ) -> StagedRewrite:
        """Stage a prepared row change on some fragments of a version. Blocks.

        Raises:
            DestrierError: as in process; nothing has changed.
        """
        target = PlanTarget(uri, branch, version, self._storage)
        chosen = set(fragments)
        every = [
            item for item in _each_fragment(target.open()) if chosen.issuperset(item.fragments)
        ]
        # No more shares than workers: each writes fragments of its own, and many small ones cost
        # every later read.
        shares = _share_out(every, self._workers)
        rewrite = StagedRewrite(read_version=version, seen=frozenset())
        for parts in self._answers([StageItem(target, work, it.fragments) for it in shares]):
            for part in _checked(parts):
                rewrite = rewrite.joined(part)
        return rewrite

    def count(self, target: ScanTarget, predicate: str) -> int:
        """Count the rows that `predicate` selects. Blocks.

        Raises:
            DestrierError: as in process.
        """
        opened = PlanTarget(target.uri, target.branch, target.version, self._storage)
        dataset = opened.open()
        prepared = prepare_predicate(predicate, dataset.schema, self._settings.limits).sql
        shares = _share_out(_each_fragment(dataset), self._workers * _ITEMS_PER_WORKER)
        answers = self._answers([CountItem(opened, prepared, it.fragments) for it in shares])
        return sum(sum(_checked(parts)) for parts in answers)

    def scan(self, target: ScanTarget, request: ScanRequest) -> "PlannedRows":
        """Start a scan. Blocks.

        Raises:
            DestrierError: as in process; an expression that fails on a row raises later, from the
                rows.
        """
        opened = PlanTarget(target.uri, target.branch, target.version, self._storage)
        dataset = opened.open()
        checked = check_scan(request, dataset.schema, self._settings)
        assert checked.columns is not None
        try:
            scanner = dataset.scanner(
                columns=dict(checked.columns),
                filter=checked.filter,
                with_row_id=checked.with_row_id,
            )
            schema = scanner.projected_schema
        except BaseException as error:
            raise translate(error, context="expression") from error
        pieces = self._workers * _ITEMS_PER_WORKER
        piece_bytes = max(1, self._settings.engine.distributed_scan_bytes // pieces)
        every = _each_fragment(dataset)
        rows = sum(item.rows for item in every)
        return PlannedRows(
            schema=schema,
            target=opened,
            request=checked,
            stretches=_share_out(every, max(pieces, math.ceil(rows / _STRETCH_ROWS))),
            pieces=pieces,
            piece_bytes=piece_bytes,
            # A guess until the size of the scan's rows is known: Lance reads ahead whatever it is
            # asked for, and a worker that asked for all of a wide table took over 1 GB.
            rows_per_piece=max(1, piece_bytes * rows // max(_bytes_on_disk(dataset), 1)),
            answers=self._answers,
        )

    def _answers(self, items: Sequence[WorkItem]) -> list[list[Any]]:
        return read_answers(self._run(items), len(items)) if items else []


@dataclass(frozen=True, slots=True)
class _Piece:
    """Rows of one fragment, as a worker brought them; `cut_short` says that it stopped early."""

    batches: Sequence[pa.RecordBatch]
    rows: int
    ended: bool
    cut_short: bool
    error: DestrierError | None


@dataclass(slots=True)
class PlannedRows:
    """A scan's result, planned and read as it is asked for (ports.RowStream)."""

    schema: pa.Schema
    target: PlanTarget
    request: ScanRequest
    stretches: Sequence[_Stretch]
    pieces: int
    piece_bytes: int
    rows_per_piece: int
    answers: Callable[[Sequence[WorkItem]], list[list[Any]]]
    # Each of its plans has a deadline of its own.
    rows_timeout_s: float | None = None

    @property
    def version(self) -> int:
        """The version that is read."""
        return self.target.version

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows, in the order of the fragments.

        Raises:
            DestrierError: an expression fails on a row, or the cluster failed.
        """
        limit = self.request.limit
        left = math.inf if limit is None else limit
        if left <= 0:
            return
        for batch in self._after_offset(left):
            if batch.num_rows >= left:
                yield batch.slice(0, int(left))
                return
            left -= batch.num_rows
            yield batch

    def _after_offset(self, wanted: float) -> Iterator[pa.RecordBatch]:
        """Every row after the offset; no more than `wanted` are needed."""
        first, offset = self._find_offset()
        left = wanted
        waiting = deque(self.stretches[first:])
        while waiting and left > 0:
            window: list[tuple[_Stretch, int]] = []
            while waiting and len(window) < self.pieces and self._may_lack(window, left):
                window.append((waiting.popleft(), offset))
                offset = 0
            heads = self._read([(*place, left) for place in window])
            for (stretch, start), head in zip(window, heads, strict=True):
                for batch in self._whole(stretch, start, head, left):
                    left -= batch.num_rows
                    yield batch

    def _may_lack(self, window: Sequence[tuple[_Stretch, int]], left: float) -> bool:
        """Whether the fragments of `window` may hold fewer rows than are left to read."""
        if self.request.filter is not None:
            return True
        return sum(stretch.rows - offset for stretch, offset in window) < left

    def _whole(
        self, stretch: _Stretch, offset: int, head: _Piece, left: float
    ) -> Iterator[pa.RecordBatch]:
        """The rows of a stretch from `offset` on, of which `head` are the first."""
        ready = deque([head])
        while True:
            if not ready:
                ready.extend(self._read(self._next_pieces(stretch, offset, left)))
            piece = ready.popleft()
            yield from piece.batches
            if piece.error is not None:
                raise piece.error
            offset += piece.rows
            left -= piece.rows
            if piece.ended or offset >= stretch.rows or left <= 0:
                return
            if piece.cut_short:
                # The others begin after rows that are still to be read.
                ready.clear()

    def _next_pieces(
        self, stretch: _Stretch, offset: int, left: float
    ) -> list[tuple[_Stretch, int, float]]:
        step = self.rows_per_piece
        end = min(stretch.rows, offset + left, offset + step * self.pieces)
        return [(stretch, start, end - start) for start in range(offset, int(end), step)]

    def _read(self, wanted: Sequence[tuple[_Stretch, int, float]]) -> list[_Piece]:
        """Read pieces at the same time: each of a stretch, from an offset, at most so many rows."""
        items = [
            ReadItem(
                target=self.target,
                columns=self.request.columns or (),
                predicate=self.request.filter,
                with_row_id=self.request.with_row_id,
                fragments=stretch.fragments,
                offset=offset,
                rows=int(min(rows, self.rows_per_piece)),
                bytes_max=self.piece_bytes,
            )
            for stretch, offset, rows in wanted
        ]
        answers = self.answers(items)
        pieces = [_piece(item, parts) for item, parts in zip(items, answers, strict=True)]
        rows = sum(piece.rows for piece in pieces)
        if rows:
            size = sum(batch.nbytes for piece in pieces for batch in piece.batches)
            self.rows_per_piece = max(1, self.piece_bytes * rows // max(size, 1))
        return pieces

    def _find_offset(self) -> tuple[int, int]:
        """The stretch where the offset's row is, and how many of its selected rows to skip."""
        skip = self.request.offset or 0
        if not skip:
            return 0, 0
        for first in range(0, len(self.stretches), self.pieces):
            window = self.stretches[first : first + self.pieces]
            for index, rows in enumerate(self._selected(window)):
                if skip < rows:
                    return first + index, skip
                skip -= rows
        return len(self.stretches), 0

    def _selected(self, stretches: Sequence[_Stretch]) -> list[int]:
        """How many rows of each stretch the scan selects."""
        predicate = self.request.filter
        if predicate is None:
            return [stretch.rows for stretch in stretches]
        items = [CountItem(self.target, predicate, stretch.fragments) for stretch in stretches]
        return [sum(_checked(parts)) for parts in self.answers(items)]


def _piece(item: ReadItem, parts: Sequence[Any]) -> _Piece:
    tables = [part for part in parts if isinstance(part, pa.Table)]
    batches = [batch for table in tables for batch in table.to_batches()]
    rows = sum(batch.num_rows for batch in batches)
    last = parts[-1]
    if isinstance(last, DestrierError):
        return _Piece(batches, rows, ended=False, cut_short=False, error=last)
    return _Piece(batches, rows, bool(last), not last and rows < item.rows, None)


def _checked(parts: Sequence[Any]) -> Sequence[Any]:
    """The parts of an answer; its error is raised."""
    for part in parts:
        if isinstance(part, DestrierError):
            raise part
    return parts


def _each_fragment(dataset: Any) -> list[_Stretch]:
    return [
        _Stretch((item.fragment_id,), item.physical_rows - item.num_deletions)
        for item in dataset.get_fragments()
    ]


def _bytes_on_disk(dataset: Any) -> int:
    return sum(
        file.file_size_bytes or 0 for item in dataset.get_fragments() for file in item.data_files()
    )


def _share_out(stretches: Sequence[_Stretch], shares: int) -> list[_Stretch]:
    """At most `shares` longer stretches with about as many rows each, in the same order."""
    total = sum(stretch.rows for stretch in stretches)
    found: dict[int, list[_Stretch]] = {}
    before = 0
    for stretch in stretches:
        # Where its middle lies among all rows.
        middle = before + stretch.rows / 2
        share = min(shares - 1, int(middle * shares / total)) if total else 0
        found.setdefault(share, []).append(stretch)
        before += stretch.rows
    return [
        _Stretch(
            tuple(fragment for stretch in share for fragment in stretch.fragments),
            sum(stretch.rows for stretch in share),
        )
        for share in found.values()
    ]
