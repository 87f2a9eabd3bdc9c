"""Arrow bodies on their way in: small ones whole, large ones through the bounded buffer."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import pyarrow as pa
import pytest
import xxhash

from cluster.errors import InvalidInput, TableNotFound
from cluster.settings import HttpSettings, LimitSettings
from serve_app.arrow_body import BUFFER_BYTES_MAX, ArrowBodyReader, StreamingBody, open_arrow_body
from tests.unit.arrow_streams import stream_of

SMALL = 1_000
LIMITS = LimitSettings(insert_small_bytes_max=SMALL)
HTTP = HttpSettings(refused_body_drain_bytes_max=500_000)
ROWS = pa.table({"id": range(20_000), "text": [f"row {i}" for i in range(20_000)]})
LARGE = stream_of(ROWS, rows_per_batch=1_000)
LITTLE = stream_of(pa.table({"id": [1, 2, 3]}))
END_BYTES = 8


class Client:
    """Sends parts of a body, and knows which were received.

    With `is_gone` it disconnects after the parts; with `stalls` it then sends nothing more.
    """

    def __init__(
        self, parts: Iterable[bytes], *, is_gone: bool = False, stalls: bool = False
    ) -> None:
        self._parts = list(parts)
        self._is_gone = is_gone
        self._stalls = stalls
        self.received_bytes = 0
        self.is_waiting = asyncio.Event()

    async def receive(self) -> dict[str, Any]:
        """One ASGI message."""
        await asyncio.sleep(0)
        if self._parts:
            part = self._parts.pop(0)
            self.received_bytes += len(part)
            more = bool(self._parts) or self._is_gone or self._stalls
            return {"type": "http.request", "body": part, "more_body": more}
        if self._stalls:
            self.is_waiting.set()
            await asyncio.Event().wait()
        return {"type": "http.disconnect"}


def parts_of(body: bytes, size: int = 1_500) -> list[bytes]:
    return [body[start : start + size] for start in range(0, len(body), size)]


async def opened(client: Client) -> StreamingBody:
    body = await open_arrow_body(client.receive, LIMITS, HTTP)
    assert isinstance(body, StreamingBody)
    return body


class Worker:
    """Reads a body in a thread and says whether it would have committed."""

    def __init__(self, body: StreamingBody) -> None:
        self._body = body
        self.has_committed = False
        self.error: BaseException | None = None
        self.thread: threading.Thread | None = None

    def _work(self) -> pa.Table:
        self.thread = threading.current_thread()
        try:
            rows = pa.ipc.open_stream(self._body.reader).read_all()
        except BaseException as error:
            self.error = error
            raise
        self.has_committed = True
        return rows

    def start(self) -> Awaitable[pa.Table]:
        """The work, to be awaited."""
        return asyncio.to_thread(self._work)


def run(test: Callable[[], Awaitable[None]]) -> None:
    """Run a test; what it started must have ended within the time that a hang would take."""

    async def limited() -> None:
        before = len(asyncio.all_tasks())
        async with asyncio.timeout(20):
            await test()
        assert len(asyncio.all_tasks()) == before

    asyncio.run(limited())


# The beginning of a body


@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_a_small_body_is_returned_whole(size: int) -> None:
    async def test() -> None:
        client = Client(parts_of(LITTLE, size))
        assert await open_arrow_body(client.receive, LIMITS, HTTP) == LITTLE

    run(test)


def test_no_body_is_empty_bytes() -> None:
    async def test() -> None:
        assert await open_arrow_body(Client([b""]).receive, LIMITS, HTTP) == b""

    run(test)


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (LITTLE[:-END_BYTES], "ended before Arrow's end-of-stream marker"),
        (LITTLE + b"!", "after Arrow's end-of-stream marker"),
        (b"ARROW1\0\0" + b"x" * 5_000, "send the stream format"),
        (b"{}", "not a valid Arrow IPC stream"),
    ],
)
def test_a_beginning_that_is_invalid_is_refused(body: bytes, told: str) -> None:
    async def test() -> None:
        with pytest.raises(InvalidInput, match=told):
            await open_arrow_body(Client(parts_of(body)).receive, LIMITS, HTTP)

    run(test)


def test_a_client_that_leaves_before_a_small_body_is_whole_is_told_apart() -> None:
    async def test() -> None:
        client = Client([LITTLE[:100]], is_gone=True)
        with pytest.raises(InvalidInput, match="disconnected"):
            await open_arrow_body(client.receive, LIMITS, HTTP)

    run(test)


def test_a_body_is_small_only_if_it_is_small_after_decompression() -> None:
    async def test() -> None:
        rows = pa.table({"zeros": [0] * 5_000})
        body = stream_of(rows, 5_000, compression="zstd")
        assert len(body) < SMALL
        streaming = await opened(Client([body]))
        assert (await streaming.feed_while(Worker(streaming).start())).equals(rows)

    run(test)


# Streaming


@pytest.mark.parametrize("size", [7_777, 64 << 10, len(LARGE)])
def test_a_large_body_is_read_while_it_arrives(size: int) -> None:
    async def test() -> None:
        body = await opened(Client(parts_of(LARGE, size)))
        worker = Worker(body)
        assert (await body.feed_while(worker.start())).equals(ROWS)
        assert body.digest() == xxhash.xxh3_128(LARGE).hexdigest()
        assert body.reader.digest() == body.digest()

    run(test)


@pytest.mark.parametrize(
    ("end", "is_gone", "told"),
    [
        (len(LARGE) - END_BYTES, False, "ended before Arrow's end-of-stream marker"),
        (len(LARGE) - END_BYTES, True, "disconnected"),
        (len(LARGE) // 2, False, "ended before Arrow's end-of-stream marker"),
        (len(LARGE) // 2, True, "disconnected"),
    ],
)
def test_a_body_that_is_not_whole_is_never_read_to_its_end(
    end: int, is_gone: bool, told: str
) -> None:
    async def test() -> None:
        body = await opened(Client(parts_of(LARGE[:end]), is_gone=is_gone))
        worker = Worker(body)
        with pytest.raises(InvalidInput, match=told):
            await body.feed_while(worker.start())
        assert not worker.has_committed
        assert isinstance(worker.error, InvalidInput)

    run(test)


def test_bytes_after_the_end_keep_the_end_from_being_read() -> None:
    async def test() -> None:
        body = await opened(Client([*parts_of(LARGE), b"more"]))
        worker = Worker(body)
        with pytest.raises(InvalidInput, match="after Arrow's end-of-stream marker"):
            await body.feed_while(worker.start())
        assert not worker.has_committed

    run(test)


def test_the_end_marker_waits_for_the_end_of_the_request() -> None:
    async def test() -> None:
        # All of the stream has arrived, but the client has not said that this is all.
        client = Client(parts_of(LARGE), stalls=True)
        body = await opened(client)
        worker = Worker(body)
        feeding = asyncio.create_task(body.feed_while(worker.start()))
        await client.is_waiting.wait()
        done, _ = await asyncio.wait({feeding}, timeout=0.3)
        assert not done
        assert not worker.has_committed
        feeding.cancel()
        await asyncio.wait({feeding})
        assert feeding.cancelled()
        await thread_has_ended(worker)
        assert not worker.has_committed

    run(test)


async def thread_has_ended(worker: Worker) -> None:
    """The thread of a pool lives on; that its work has ended shows in the error."""
    async with asyncio.timeout(5):
        while worker.error is None:
            await asyncio.sleep(0.01)


def test_a_body_that_turns_invalid_fails_in_the_thread_and_in_the_request() -> None:
    async def test() -> None:
        client = Client([*parts_of(LARGE[: len(LARGE) // 2]), b"\x7f" * 300_000, b"x" * 100_000])
        body = await opened(client)
        worker = Worker(body)
        with pytest.raises(InvalidInput, match="not a valid Arrow IPC stream"):
            await body.feed_while(worker.start())
        assert not worker.has_committed
        # The client is let finish, so that it can read the answer.
        assert client.received_bytes == len(LARGE) // 2 + 400_000

    run(test)


def test_work_that_fails_early_is_told_after_a_bounded_rest_is_dropped() -> None:
    async def test() -> None:
        rest = [b"x" * 100_000] * 20
        client = Client([*parts_of(LARGE)[:3], *rest])
        body = await opened(client)

        async def refuse() -> None:
            raise TableNotFound("no such table")

        with pytest.raises(TableNotFound, match="no such table"):
            await body.feed_while(refuse())
        assert client.received_bytes <= 4_500 + HTTP.refused_body_drain_bytes_max + 100_000
        assert client.received_bytes >= HTTP.refused_body_drain_bytes_max

    run(test)


def test_work_that_needs_no_more_of_the_body_gives_its_result() -> None:
    async def test() -> None:
        body = await opened(Client(parts_of(LARGE)))

        async def answer_as_before() -> str:
            return "the first answer"

        assert await body.feed_while(answer_as_before()) == "the first answer"

    run(test)


def test_cancelling_the_request_ends_the_thread() -> None:
    async def test() -> None:
        client = Client(parts_of(LARGE)[:10], stalls=True)
        body = await opened(client)
        worker = Worker(body)
        feeding = asyncio.create_task(body.feed_while(worker.start()))
        await client.is_waiting.wait()
        feeding.cancel()
        with pytest.raises(asyncio.CancelledError):
            await feeding
        await thread_has_ended(worker)
        assert not worker.has_committed
        with pytest.raises(InvalidInput, match="given up"):
            body.reader.read(1)

    run(test)


def test_a_slow_reader_slows_the_client_down() -> None:
    part = b"x" * (64 << 10)

    async def test() -> None:
        rows = pa.table({"bytes": pa.array([part] * 800, pa.binary())})
        stream = stream_of(rows, rows_per_batch=100)
        client = Client(parts_of(stream, len(part)))
        body = await opened(client)
        may_read = threading.Event()

        def work() -> int:
            may_read.wait(10)
            return int(pa.ipc.open_stream(body.reader).read_all().num_rows)

        feeding = asyncio.create_task(body.feed_while(asyncio.to_thread(work)))
        for _ in range(2_000):
            await asyncio.sleep(0)
        held = client.received_bytes
        assert BUFFER_BYTES_MAX <= held <= BUFFER_BYTES_MAX + 2 * len(part)
        may_read.set()
        assert await feeding == 800

    run(test)


# The reader as a file


def filled_reader(data: bytes) -> ArrowBodyReader:
    reader = ArrowBodyReader()
    for part in parts_of(data, 10):
        reader.feed(part, len(data))
    reader.complete()
    return reader


def test_the_reader_is_a_file() -> None:
    data = bytes(range(100))
    reader = filled_reader(data)
    assert reader.readable()
    assert not reader.closed
    assert reader.read(3) == data[:3]
    target = bytearray(20)
    assert reader.readinto(target) == 20
    assert target == data[3:23]
    assert reader.read_buffer(7).to_pybytes() == data[23:30]
    assert reader.read(0) == b""
    assert reader.read() == data[30:]
    assert reader.read(5) == b""
    assert reader.read_buffer(5).size == 0
    assert reader.digest() == xxhash.xxh3_128(data).hexdigest()
    reader.close()
    assert reader.closed


def test_a_read_over_the_end_is_short() -> None:
    assert filled_reader(b"abcdef").read(10) == b"abcdef"
    assert filled_reader(b"abcdef").read_buffer(10).to_pybytes() == b"abcdef"


def test_the_digest_covers_what_was_not_read() -> None:
    reader = filled_reader(b"abcdefghijklmnop")
    reader.read(3)
    assert reader.digest() == xxhash.xxh3_128(b"abcdefghijklmnop").hexdigest()


def test_a_read_waits_for_bytes_that_are_settled() -> None:
    reader = ArrowBodyReader()
    reader.feed(b"abcdef", 4)
    assert reader.read(4) == b"abcd"
    got: list[bytes] = []
    thread = threading.Thread(target=lambda: got.append(reader.read(2)))
    thread.start()
    thread.join(0.2)
    assert thread.is_alive()
    reader.feed(b"gh", 8)
    thread.join(5)
    assert got == [b"ef"]


def test_a_complete_body_does_not_fail_any_more() -> None:
    reader = filled_reader(b"abc")
    reader.fail("too late")
    assert reader.read() == b"abc"
