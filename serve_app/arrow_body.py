"""Arrow bodies on their way in: small ones whole, large ones through a bounded buffer.

Every byte passes actors.arrow_frames before anything decodes it. A large body is read by a blocking
file in one other thread while the event loop feeds it; the client is slowed down when the thread is
slower. The end-of-stream marker is held back until the whole body has arrived and is valid, so a
thread that reads to the end before it commits cannot commit half a body.
"""

import asyncio
import io
import threading
from collections import deque
from collections.abc import Awaitable
from contextlib import suppress
from typing import Any, TypeVar

import pyarrow as pa
import xxhash
from starlette.types import Message, Receive

from actors.arrow_frames import FrameScanner
from cluster.errors import InvalidInput
from cluster.settings import HttpSettings, LimitSettings

T = TypeVar("T")

BUFFER_BYTES_MAX = 8 << 20
"""Bytes that wait for the reading thread; a part of the body that passes this is still taken."""

_DISCONNECTED = "The client disconnected before the body was complete."
_CANCELLED = "The request was given up before the body was complete."


async def open_arrow_body(
    receive: Receive, limits: LimitSettings, http: HttpSettings
) -> "bytes | StreamingBody":
    """Read the beginning of an Arrow IPC stream, all of it if it is small.

    Bytes are a whole, checked stream of at most `insert_small_bytes_max` bytes, decompressed too;
    or empty, if the request has no body. Everything larger is to be fed to its reader.

    Raises:
        InvalidInput: what came is not the beginning of one, or the client disconnected.
    """
    scanner = FrameScanner(limits)
    parts: list[bytes] = []
    size, has_more = 0, True
    while has_more and size <= limits.insert_small_bytes_max:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise InvalidInput(_DISCONNECTED)
        part, has_more = _body_part(message)
        scanner.feed(part)
        parts.append(part)
        size += len(part)
    if size == 0:
        return b""
    if not has_more:
        scanner.finish()
        if max(size, scanner.decompressed_bytes) <= limits.insert_small_bytes_max:
            return b"".join(parts)
    body = StreamingBody(receive, scanner, http.refused_body_drain_bytes_max)
    body.begin(parts, is_complete=not has_more)
    return body


def _body_part(message: Message) -> tuple[bytes, bool]:
    return message.get("body", b""), bool(message.get("more_body", False))


class ArrowBodyReader(io.RawIOBase):
    """A body as a blocking file, read by one thread and fed by the event loop.

    A read waits for as many bytes as are asked for, or the end. Once the body has failed every read
    raises InvalidInput.
    """

    def __init__(self) -> None:
        super().__init__()
        self._parts: deque[memoryview] = deque()
        # Tells a repeated body from another; a cryptographic hash took half as long as the write.
        self._hash = xxhash.xxh3_128()
        self._changed = threading.Condition()
        # Guarded by `_changed`: written by one side and read by the other.
        self._waiting_bytes = 0
        self._settled_bytes = 0
        self._read_bytes = 0
        self._wanted_bytes = 0
        self._is_complete = False
        self._failure: str | None = None
        self._has_failed = False
        self._room: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    # The event loop's side.

    def feed(self, part: bytes, settled_bytes: int) -> None:
        """Add bytes; the first `settled_bytes` of the body may be read now."""
        with self._changed:
            if part:
                self._parts.append(memoryview(part))
                self._waiting_bytes += len(part)
            self._settled_bytes = settled_bytes
            if settled_bytes - self._read_bytes >= self._wanted_bytes > 0:
                self._changed.notify()

    async def wait_for_room(self) -> None:
        """Wait until the thread has read half of a full buffer, or the body has failed."""
        with self._changed:
            if self._waiting_bytes < BUFFER_BYTES_MAX or self._failure is not None:
                return
            self._loop, self._room = asyncio.get_running_loop(), asyncio.Event()
            room = self._room
        await room.wait()

    def complete(self) -> None:
        """Say that the whole body has been fed and is valid."""
        with self._changed:
            self._is_complete = True
            self._settled_bytes = self._read_bytes + self._waiting_bytes
            self._changed.notify()

    def fail(self, reason: str) -> None:
        """Make this and every later read raise InvalidInput, unless the body is complete."""
        with self._changed:
            if not self._is_complete and self._failure is None:
                self._failure = reason
                self._changed.notify()

    @property
    def failure(self) -> str | None:
        """Why reads fail, once one has."""
        return self._failure if self._has_failed else None

    def digest(self) -> str:
        """XXH3 (128 bits, 32 hex digits) of the body; asked for when it is complete."""
        digest = self._hash.copy()
        for part in self._parts:
            digest.update(part)
        return digest.hexdigest()

    # The reading thread's side.

    def readable(self) -> bool:
        """True."""
        return True

    def readinto(self, target: bytearray | memoryview) -> int:  # type: ignore[override]
        """Fill `target`; returns how many bytes there were, fewer only at the body's end."""
        view = memoryview(target).cast("B")
        filled = 0
        while filled < len(view):
            ready = self._wait(len(view) - filled)
            if ready == 0:
                break
            self._take(view[filled : filled + ready])
            filled += ready
        return filled

    def read(self, size: int = -1, /) -> bytes:
        """The next `size` bytes, fewer only at the body's end; all that follow if negative."""
        if size < 0:
            return self.readall()
        target = bytearray(size)
        filled = self.readinto(target)
        return bytes(target[:filled])

    def read_buffer(self, size: int, /) -> pa.Buffer:
        """`read` for pyarrow, which takes the buffer as it is."""
        buffer = pa.allocate_buffer(size)
        filled = self.readinto(memoryview(buffer))
        return buffer if filled == size else buffer.slice(0, filled)

    def _wait(self, wanted_bytes: int) -> int:
        """Wait for that many bytes, or enough to be worth it; 0 at the body's end."""
        worth_bytes = min(wanted_bytes, BUFFER_BYTES_MAX // 2)
        with self._changed:
            while True:
                if self._failure is not None:
                    self._has_failed = True
                    raise InvalidInput(self._failure)
                ready = self._settled_bytes - self._read_bytes
                if ready >= worth_bytes or self._is_complete:
                    self._wanted_bytes = 0
                    return min(ready, wanted_bytes)
                self._wanted_bytes = worth_bytes
                self._changed.wait()

    def _take(self, target: memoryview) -> None:
        """Move waiting bytes to `target`, without the lock: only this side removes parts."""
        filled = 0
        while filled < len(target):
            part = self._parts[0]
            piece = part[: len(target) - filled]
            target[filled : filled + len(piece)] = piece
            filled += len(piece)
            if len(piece) == len(part):
                self._parts.popleft()
            else:
                self._parts[0] = part[len(piece) :]
        self._hash.update(target)
        with self._changed:
            self._read_bytes += filled
            self._waiting_bytes -= filled
            if self._room is not None and self._waiting_bytes <= BUFFER_BYTES_MAX // 2:
                assert self._loop is not None
                self._loop.call_soon_threadsafe(self._room.set)
                self._room = None


class StreamingBody:
    """A body that arrives while `reader` is read by one other thread."""

    def __init__(self, receive: Receive, scanner: FrameScanner, drain_bytes_max: int) -> None:
        self._receive = receive
        self._scanner = scanner
        self._drain_bytes_max = drain_bytes_max
        self._is_received = False
        self.reader = ArrowBodyReader()

    def begin(self, parts: list[bytes], *, is_complete: bool) -> None:
        """Take what was received and scanned already."""
        for part in parts:
            self.reader.feed(part, self._scanner.settled_bytes)
        self._is_received = is_complete
        if is_complete:
            self.reader.complete()

    def digest(self) -> str:
        """XXH3 (128 bits, 32 hex digits) of the body; known when all of it has arrived."""
        return self.reader.digest()

    async def feed_while(self, work: Awaitable[T]) -> T:
        """Feed the reader while `work`, which reads it in another thread, runs; returns its result.

        Raises:
            InvalidInput: the body is invalid or ended early; raised when `work` has failed of it.
            Exception: what `work` raised, once the client has had a chance to stop sending.
        """
        worker = asyncio.ensure_future(work)
        pump = asyncio.create_task(self._pump())
        try:
            await asyncio.wait({worker, pump}, return_when=asyncio.FIRST_COMPLETED)
            # Without a pump the reader is at its end or fails: the thread does not wait for more.
            await asyncio.wait({worker})
        finally:
            await _stop(pump, worker)
        error = None if worker.cancelled() else worker.exception()
        if error is not None and not pump.cancelled():
            pump.result()
        await self._drain()
        if error is not None and self.reader.failure is not None:
            # On its way through Lance the reader's error has lost its type.
            raise InvalidInput(self.reader.failure) from error
        return worker.result()

    async def _pump(self) -> None:
        """Move the body into the reader until it has ended or failed."""
        try:
            while not self._is_received:
                part = await self._receive_part()
                self._scanner.feed(part)
                if self._is_received:
                    self._scanner.finish()
                self.reader.feed(part, self._scanner.settled_bytes)
                await self.reader.wait_for_room()
            self.reader.complete()
        except InvalidInput as error:
            self.reader.fail(error.message)
        finally:
            self.reader.fail(_CANCELLED)

    async def _receive_part(self) -> bytes:
        message = await self._receive()
        if message["type"] == "http.disconnect":
            self._is_received = True
            raise InvalidInput(_DISCONNECTED)
        part, has_more = _body_part(message)
        self._is_received = not has_more
        return part

    async def _drain(self) -> None:
        """Read and drop what a client still sends that will not be used, within bounds."""
        left = self._drain_bytes_max
        with suppress(InvalidInput):
            while not self._is_received and left > 0:
                left -= len(await self._receive_part())


async def _stop(*tasks: asyncio.Future[Any]) -> None:
    """Cancel the tasks and wait for their end, whatever they raise."""
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    for task in tasks:
        if not task.cancelled():
            task.exception()
