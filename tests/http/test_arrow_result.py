"""Results on their way out: backpressure, and clients that leave."""

import asyncio
from collections.abc import MutableMapping
from typing import Any

import pyarrow as pa
import pytest
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from cluster.errors import InvalidInput, ServiceUnavailable
from cluster.settings import LimitSettings
from serve_app.arrow_result import answer_rows
from tests.http.conftest import run
from tests.http.fakes import FakeRows

SCOPE = {"type": "http", "asgi": {"spec_version": "2.4"}}
BATCH = pa.record_batch({"n": list(range(100))})
Message = MutableMapping[str, Any]


def holding(rows: int) -> LimitSettings:
    """Limits under which so many rows are held before the first byte is sent."""
    return LimitSettings(query_rows_buffered_max=rows)


def long_scan(batches: int = 200) -> FakeRows:
    return FakeRows(BATCH.schema, 1, [BATCH] * batches)


async def no_more() -> Message:
    await asyncio.Event().wait()
    raise AssertionError("unreachable")


async def until_closed(rows: FakeRows) -> None:
    while not rows.is_closed:
        await asyncio.sleep(0.001)


def test_scan_waits_for_a_slow_client() -> None:
    async def answer() -> int:
        rows = long_scan()
        response = await answer_rows(rows, holding(150))
        taken = asyncio.Event()

        async def send(message: Message) -> None:
            if message["type"] == "http.response.body":
                taken.set()
                await asyncio.Event().wait()

        sending = asyncio.create_task(response(SCOPE, no_more, send))
        await taken.wait()
        read = -1
        while read != rows.batches_read:
            read = rows.batches_read
            await asyncio.sleep(0.1)
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
        await until_closed(rows)
        return read

    # Two to know that the scan has begun well, two in the queue, one on its way into it.
    assert run(answer()) <= 5


def test_scan_ends_when_the_client_leaves() -> None:
    async def answer() -> FakeRows:
        rows = long_scan()
        response = await answer_rows(rows, holding(150))

        async def send(message: Message) -> None:
            if message["type"] == "http.response.body":
                raise OSError("connection reset")

        with pytest.raises(ClientDisconnect):
            await response(SCOPE, no_more, send)
        await until_closed(rows)
        return rows

    assert run(answer()).batches_read < 10


def test_scan_ends_when_the_request_is_given_up_before_its_first_rows() -> None:
    async def answer() -> FakeRows:
        rows = long_scan()
        waiting = asyncio.create_task(answer_rows(rows, holding(1_000_000)))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await until_closed(rows)
        return rows

    assert run(answer()).is_closed


def test_error_after_the_first_rows_reaches_whoever_sends() -> None:
    async def answer() -> None:
        failure = InvalidInput("late")
        rows = FakeRows(BATCH.schema, 1, [BATCH] * 20, failure, 20)
        response = await answer_rows(rows, holding(150))
        parts: list[bytes] = []

        async def send(message: Message) -> None:
            if message["type"] == "http.response.body":
                parts.append(message["body"])

        with pytest.raises(InvalidInput):
            await response(SCOPE, no_more, send)
        assert parts
        with pytest.raises(pa.ArrowInvalid):
            pa.ipc.open_file(b"".join(parts))

    run(answer())


def test_query_is_given_up_when_its_first_rows_do_not_come() -> None:
    async def answer() -> None:
        rows = long_scan()
        rows.rows_timeout_s, rows.held_at = 0.05, 1
        advice = r"after 0\.05 s without rows to send; use a simpler filter"
        with pytest.raises(ServiceUnavailable, match=advice) as given_up:
            await answer_rows(rows, holding(150))
        assert "write" not in str(given_up.value)
        rows.goes_on.set()
        await until_closed(rows)
        # What it was waiting for is the last that it reads.
        assert rows.batches_read == 2

    run(answer())


def test_answer_ends_early_when_later_rows_do_not_come() -> None:
    async def answer() -> None:
        rows = long_scan()
        rows.rows_timeout_s, rows.held_at = 0.05, 5
        response = await answer_rows(rows, holding(150))
        parts: list[bytes] = []

        async def send(message: Message) -> None:
            if message["type"] == "http.response.body":
                parts.append(message["body"])

        with pytest.raises(ServiceUnavailable, match="given up"):
            await response(SCOPE, no_more, send)
        rows.goes_on.set()
        await until_closed(rows)
        assert rows.batches_read == 6
        with pytest.raises(pa.ArrowInvalid):
            pa.ipc.open_file(b"".join(parts))

    run(answer())


def test_query_goes_on_when_its_client_takes_longer_than_its_rows_may() -> None:
    async def answer() -> bytes:
        rows = long_scan(20)
        rows.rows_timeout_s = 0.05
        response = await answer_rows(rows, holding(150))
        parts: list[bytes] = []

        async def send(message: Message) -> None:
            if message["type"] == "http.response.body":
                parts.append(message["body"])
                if len(parts) == 3:
                    await asyncio.sleep(0.15)

        await response(SCOPE, no_more, send)
        return b"".join(parts)

    assert pa.ipc.open_file(run(answer())).read_all().num_rows == 2_000


def test_parts_have_some_megabytes_when_rows_are_wide() -> None:
    async def answer() -> list[bytes]:
        wide = pa.record_batch({"b": [bytes(1 << 20)] * 2})
        response = await answer_rows(FakeRows(wide.schema, 1, [wide] * 20), LimitSettings())
        parts: list[bytes] = []

        async def send(message: Message) -> None:
            if message["type"] == "http.response.body":
                parts.append(message["body"])

        await response(SCOPE, no_more, send)
        return parts

    parts = run(answer())
    assert max(map(len, parts)) < 11 << 20
    assert pa.ipc.open_file(b"".join(parts)).read_all().num_rows == 40


@pytest.mark.parametrize("held", [99, 100, 20_000, 10**9])
def test_file_is_the_same_however_it_is_sent(held: int) -> None:
    async def answer() -> bytes:
        response = await answer_rows(long_scan(), holding(held))
        if type(response) is Response:
            return bytes(response.body)
        parts: list[bytes] = []

        async def send(message: Message) -> None:
            if message["type"] == "http.response.body":
                parts.append(message["body"])

        await response(SCOPE, no_more, send)
        return b"".join(parts)

    table = pa.ipc.open_file(run(answer())).read_all()
    assert table.num_rows == 20_000
    assert table.slice(19_900).to_pydict() == BATCH.to_pydict()


def test_rows_of_a_view_do_not_bring_its_code() -> None:
    async def answer() -> bytes:
        metadata = {"destrier.view.udtf_spec": "secret", "mine": "1"}
        batch = BATCH.replace_schema_metadata(metadata)
        response = await answer_rows(FakeRows(batch.schema, 1, [batch]), LimitSettings())
        return bytes(response.body)

    table = pa.ipc.open_file(run(answer())).read_all()
    assert table.schema.metadata == {b"mine": b"1"}
    assert table.to_pydict() == BATCH.to_pydict()
