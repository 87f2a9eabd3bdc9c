"""Rows on their way out: a scan's batches as an Arrow IPC file.

One thread of its own reads and encodes a scan. The first rows are held until the scan is known to
have begun well: an error among them is still an error answer. After that the file streams through
a bounded queue, so that a slow client slows the scan down instead of filling memory. A scan whose
rows do not come in time is given up; its thread ends as soon as Lance lets it.
"""

import asyncio
import io
import threading
from collections.abc import AsyncIterator
from contextlib import closing

from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from actors.ports import RowStream
from cluster.errors import ServiceUnavailable
from cluster.settings import LimitSettings
from serve_app.row_file import RowFileWriter
from udtf.view_record import shown_schema

ARROW_FILE = "application/vnd.apache.arrow.file"
VERSION_HEADER = "x-lancedb-version"

# Encoded parts between the scan's thread and the client, beside the one being sent.
_QUEUE_PARTS_MAX = 2
# A part is sent when it has this many bytes, whatever its rows: an answer holds up to five parts,
# each larger than this by less than a batch.
_PART_BYTES = 8 << 20


async def answer_rows(stream: RowStream, limits: LimitSettings) -> Response:
    """The answer that holds the rows of `stream`.

    Raises:
        DestrierError: the scan failed within its first rows (`query_rows_buffered_max`).
        ServiceUnavailable: the first rows did not come in time.
    """
    scan = _EncodedScan(stream, limits)
    headers = {VERSION_HEADER: str(stream.version)}
    try:
        first = await scan.first_part()
    except BaseException:
        scan.close()
        raise
    if scan.is_complete:
        return Response(first, 200, headers, ARROW_FILE)
    return _ScanResponse(scan, first, headers)


class _ScanResponse(StreamingResponse):
    """Ends the scan with the answer, however that ends."""

    def __init__(self, scan: "_EncodedScan", first: bytes, headers: dict[str, str]) -> None:
        super().__init__(scan.parts(first), 200, headers, ARROW_FILE)
        self._scan = scan

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._scan.close()


class _Part(io.RawIOBase):
    """Where Arrow's writer puts bytes until they are taken."""

    def __init__(self) -> None:
        super().__init__()
        self._pieces: list[bytes] = []
        self._position = 0
        self.held = 0

    def writable(self) -> bool:
        return True

    def write(self, data: object) -> int:
        piece = bytes(data)  # type: ignore[call-overload]  # any buffer
        self._pieces.append(piece)
        self._position += len(piece)
        self.held += len(piece)
        return len(piece)

    def tell(self) -> int:
        return self._position

    def take(self) -> bytes:
        """What was written since the last call."""
        pieces, self._pieces, self.held = self._pieces, [], 0
        return b"".join(pieces)


class _Closed(BaseException):
    """Nobody wants the rows any more."""


class _EncodedScan:
    """A scan that runs in its own thread from the start."""

    def __init__(self, stream: RowStream, limits: LimitSettings) -> None:
        self._stream = stream
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        self._first: asyncio.Future[bytes] = self._loop.create_future()
        self._rest: asyncio.Queue[bytes | Exception | None] = asyncio.Queue(_QUEUE_PARTS_MAX)
        self._is_closed = threading.Event()
        self._has_begun = False
        self._waits_since_s: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.is_complete = False
        threading.Thread(target=self._run, name="scan", daemon=True).start()

    async def first_part(self) -> bytes:
        """The whole file if it is short (`is_complete`), else its beginning."""
        try:
            async with asyncio.timeout(self._stream.rows_timeout_s):
                return await self._first
        except TimeoutError:
            raise self._given_up() from None

    async def parts(self, first: bytes) -> AsyncIterator[bytes]:
        """The file, `first` included; an error ends it early, which the client sees."""
        yield first
        self._watch()
        while True:
            self._waits_since_s = self._loop.time()
            part = await self._rest.get()
            self._waits_since_s = None
            if part is None:
                return
            if isinstance(part, Exception):
                raise part
            yield part

    def close(self) -> None:
        """Let the thread stop at its next batch."""
        self._is_closed.set()
        if self._timer is not None:
            self._timer.cancel()
        while not self._rest.empty():
            self._rest.get_nowait()

    def _watch(self) -> None:
        """End the answer when a part does not come. A timer for each of many would be felt."""
        timeout_s = self._stream.rows_timeout_s
        if timeout_s is None:
            return
        since_s, now_s = self._waits_since_s, self._loop.time()
        if since_s is None or now_s < since_s + timeout_s or not self._rest.empty():
            due_s = (since_s or now_s) + timeout_s
            self._timer = self._loop.call_at(max(due_s, now_s), self._watch)
        else:
            self._rest.put_nowait(self._given_up())

    def _given_up(self) -> ServiceUnavailable:
        return ServiceUnavailable(
            f"the query was given up after {self._stream.rows_timeout_s:g} s without rows to send;"
            " use a simpler filter or simpler expressions, or fewer rows"
        )

    def _run(self) -> None:
        try:
            try:
                self._encode()
            except Exception as error:  # noqa: BLE001 - it is the request's, not this thread's
                self._deliver(error)
        except _Closed:
            return

    def _encode(self) -> None:
        part = _Part()
        batches = self._stream.batches()
        rows = 0
        schema = shown_schema(self._stream.schema)
        bytes_max = self._limits.query_dictionary_bytes_max
        try:
            with closing(RowFileWriter(part, schema, bytes_max)) as writer:
                for batch in batches:
                    if self._is_closed.is_set():
                        raise _Closed
                    writer.write(batch)
                    rows += batch.num_rows
                    if rows > self._limits.query_rows_buffered_max or part.held >= _PART_BYTES:
                        self._deliver(part.take())
        finally:
            close = getattr(batches, "close", None)
            if close is not None:
                close()
        self.is_complete = not self._has_begun
        self._deliver(part.take())
        if not self.is_complete:
            self._deliver(None)

    def _deliver(self, part: bytes | Exception | None) -> None:
        """Hand over the first part, or wait for room in the queue for a later one."""
        if self._has_begun:
            asyncio.run_coroutine_threadsafe(self._rest.put(part), self._loop).result()
        else:
            self._has_begun = True
            self._loop.call_soon_threadsafe(self._set_first, part)
        if self._is_closed.is_set():
            raise _Closed

    def _set_first(self, part: bytes | Exception | None) -> None:
        if self._first.done():
            return
        if isinstance(part, Exception):
            self._first.set_exception(part)
        else:
            self._first.set_result(part or b"")
