"""Creations that are sent twice at once: one is done between two steps of the other, which gets its
answer."""

from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from actors.model import CreatedTable, CreateMode, RequestKey, TableRecord
from actors.server import Server
from actors.view_model import CreatedView
from cluster.errors import InvalidInput, TableAlreadyExists
from cluster.identifiers import TableRef
from cluster.settings import Settings
from tests.contract.domain import ipc, make_settings, make_table, new_key, ref
from tests.contract.test_creation import (
    NESTED_TABLE,
    OTHER_BODY,
    OTHER_ROWS,
    ROOT_TABLE,
    ROWS,
    create,
    data_files,
    rows,
    server_of,
)
from tests.contract.uploading import Body
from tests.contract.view_domain import ViewServer, define

pytestmark = pytest.mark.anyio

VIEW = define("SELECT a FROM source", output=pa.schema([("a", pa.int64())]))


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return make_settings(tmp_path / "root")


async def views_of(settings: Settings) -> ViewServer:
    """A server whose database has a namespace and a table that views can read."""
    await server_of(settings)
    server = ViewServer(settings)
    await make_table(server, ref("source"), ROWS)
    return server


def interpose(
    monkeypatch: pytest.MonkeyPatch, server: Server, step: str, do: Callable[[], Awaitable[Any]]
) -> None:
    """Have `do` done once in the middle of a creation: when it has looked for the name and not yet
    at the folder (`make_way`), before it stages its rows (`stage`), before it makes a `view`."""
    uploads = server._uploads
    find, in_thread, make_view = uploads._find, uploads._in_thread, uploads.create_view
    waiting = [do]

    async def once() -> None:
        if waiting:
            await waiting.pop()()

    async def find_and_wait(table: TableRef) -> TableRecord | None:
        found = await find(table)
        await once()
        return found

    async def wait_and_work(work: Callable[..., Any], *arguments: Any) -> Any:
        if work == uploads._stage_create:
            await once()
        return await in_thread(work, *arguments)

    async def wait_and_make_view(*arguments: Any) -> CreatedTable:
        await once()
        return await make_view(*arguments)

    name, replacement = {
        "make_way": ("_find", find_and_wait),
        "stage": ("_in_thread", wait_and_work),
        "view": ("create_view", wait_and_make_view),
    }[step]
    monkeypatch.setattr(uploads, name, replacement)


@pytest.mark.parametrize("is_streamed", [False, True], ids=["small", "streamed"])
@pytest.mark.parametrize("mode", list(CreateMode))
@pytest.mark.parametrize("step", ["make_way", "stage"])
@pytest.mark.parametrize("table", [ROOT_TABLE, NESTED_TABLE], ids=["root", "nested"])
async def test_a_creation_that_was_sent_again_and_committed_meanwhile_gets_the_same_answer(
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
    table: TableRef,
    step: str,
    mode: CreateMode,
    is_streamed: bool,
) -> None:
    server = await server_of(settings)
    key = RequestKey(new_key().id, "") if is_streamed else new_key()
    first: list[CreatedTable] = []

    async def send() -> CreatedTable:
        body = Body(ipc(ROWS)) if is_streamed else ipc(ROWS)
        return await create(server, table, key, body, mode)

    async def send_first() -> None:
        first.append(await send())

    interpose(monkeypatch, server, step, send_first)
    again = await send()
    assert (again.created, again.version) == (True, 1)
    assert again.transaction_id == first[0].transaction_id is not None
    assert await rows(server, table) == ROWS.to_pylist()
    assert data_files(settings) == 1


@pytest.mark.parametrize("is_streamed", [False, True], ids=["small", "streamed"])
@pytest.mark.parametrize("step", ["make_way", "stage"])
async def test_a_creation_that_another_one_came_before_does_what_its_mode_says(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, step: str, is_streamed: bool
) -> None:
    server = await server_of(settings)

    async def race(table: TableRef, mode: CreateMode) -> CreatedTable:
        body = Body(ipc(OTHER_ROWS)) if is_streamed else ipc(OTHER_ROWS)
        with monkeypatch.context() as patched:
            interpose(patched, server, step, lambda: create(server, table, new_key()))
            return await create(server, table, new_key(), body, mode)

    with pytest.raises(TableAlreadyExists):
        await race(ref("one"), CreateMode.CREATE)
    assert not (await race(ref("two"), CreateMode.EXIST_OK)).created
    for table in (ref("one"), ref("two")):
        assert await rows(server, table) == ROWS.to_pylist()
    if is_streamed:
        # Its rows have been read, and are gone.
        with pytest.raises(TableAlreadyExists):
            await race(ref("three"), CreateMode.OVERWRITE)
    else:
        assert (await race(ref("three"), CreateMode.OVERWRITE)).version == 2
        assert await rows(server, ref("three")) == OTHER_ROWS.to_pylist()


async def test_a_creation_of_another_body_that_is_sent_at_once_with_the_same_id_is_refused(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = await server_of(settings)
    key = RequestKey(new_key().id, "")
    for step in ("make_way", "stage"):
        table = ref(step)
        with monkeypatch.context() as patched:
            first = partial(create, server, table, key, Body(ipc(ROWS)))
            interpose(patched, server, step, first)
            with pytest.raises(InvalidInput, match=OTHER_BODY):
                await create(server, table, key, Body(ipc(OTHER_ROWS)))
        assert await rows(server, table) == ROWS.to_pylist()


@pytest.mark.parametrize("view", [ref("v"), ref("ns", "v")], ids=["root", "nested"])
async def test_a_creation_of_a_view_that_is_sent_twice_at_once_makes_one_view_and_one_job(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, view: TableRef
) -> None:
    server = await views_of(settings)
    key = new_key()
    made: list[CreatedView] = []

    async def send() -> None:
        made.append(await server.create_view(view, VIEW, key, with_data=True))

    interpose(monkeypatch, server, "view", send)
    await send()
    assert made[0].commit.transaction_id == made[1].commit.transaction_id != ""
    assert [it.commit.repeated for it in made] == [False, True]
    # The owner of jobs makes one job of what has the same key.
    first, second = server.jobs.submitted
    assert first == second
    assert first.idempotency_key == f"create-{key.id}"


async def test_a_creation_of_a_view_that_another_one_came_before_is_refused(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = await views_of(settings)
    view = ref("v")
    interpose(monkeypatch, server, "view", lambda: server.create_view(view, VIEW, new_key()))
    with pytest.raises(TableAlreadyExists):
        await server.create_view(view, VIEW, new_key())
    assert (await server._reads.find_table(view)).id == view.id


async def test_a_view_stays_when_the_second_of_two_same_creations_is_refused(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = await views_of(settings)
    key, view = new_key(), ref("v")

    async def send_and_refuse_the_next() -> None:
        await server.create_view(view, VIEW, key, with_data=True)
        server.jobs.refusal = InvalidInput("no machine can hold such a worker")

    interpose(monkeypatch, server, "view", send_and_refuse_the_next)
    with pytest.raises(InvalidInput, match="no machine"):
        await server.create_view(view, VIEW, key, with_data=True)
    assert (await server._reads.find_table(view)).id == view.id
