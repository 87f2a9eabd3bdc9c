"""Views: what is checked before one is made, what is told of it, and which jobs it starts."""

import asyncio
import json
from pathlib import Path
from typing import Any

import lancedb
import pyarrow as pa
import pytest

from actors.jobs_model import Trigger, WatchedView
from actors.model import LATEST, Assignment, CreateMode, InsertMode, NewTable, ScanRequest
from cluster.errors import (
    DestrierError,
    InvalidInput,
    InvalidTableState,
    PermissionDenied,
    TableAlreadyExists,
    TableColumnNotFound,
    TableNotFound,
    Unsupported,
)
from cluster.identifiers import ObjectId, TableRef
from tests.contract.domain import DATABASE, ipc, make_settings, make_table, new_key, ref
from tests.contract.view_domain import (
    OUTPUT,
    QUERY,
    ViewServer,
    define,
    request,
    rows_of,
)
from udtf.refresh_model import RefreshOptions
from udtf.resources import ImpossibleResources
from udtf.spec import ViewKind

pytestmark = pytest.mark.anyio

SOURCE = ref("src")
VIEW = ref("v")
ROWS = pa.table({"id": pa.array([1, 2, 3, 4]), "n": pa.array([10, 20, -3, 40])})
NAMES = pa.schema([("id", pa.int64()), ("n", pa.int64())])


@pytest.fixture
async def server(tmp_path: Path) -> ViewServer:
    """A server with a source."""
    server = ViewServer(make_settings(tmp_path / "root"))
    await make_table(server, SOURCE, ROWS)
    return server


def envelope(**source: Any) -> str:
    """A source query of our own form over columns of `src`, pinned by `source`."""
    return json.dumps(
        {
            "format": "lance-mv-query",
            "version": 1,
            "source": {"id": ["src"], **source},
            "columns": ["id", "n"],
        }
    )


async def is_there(server: ViewServer, table: TableRef) -> bool:
    """Whether the catalog has the name."""
    try:
        await server.catalog(DATABASE).find_table(table.id)
    except TableNotFound:
        return False
    return True


# --- create ---------------------------------------------------------------------------------------


async def test_a_view_is_made_empty_and_can_be_read(server: ViewServer) -> None:
    created = await server.create_view(VIEW, define(), new_key())
    assert (created.commit.version, created.job_id) == (1, None)
    stream = await server.scan(VIEW, LATEST, ScanRequest(), None)
    assert stream.schema.names == ["id", "twice", "__source_row_id"]
    assert sum(batch.num_rows for batch in stream.batches()) == 0
    assert server.jobs.submitted == []


async def test_creating_with_data_starts_one_refresh_however_often_it_is_sent(
    server: ViewServer,
) -> None:
    key = new_key()
    first = await server.create_view(VIEW, define(), key, with_data=True, requested_by="ann")
    again = await server.create_view(VIEW, define(), key, with_data=True, requested_by="ann")
    assert (first.commit.version, first.commit.repeated, again.commit.repeated) == (1, False, True)
    assert again.commit.transaction_id == first.commit.transaction_id
    one, two = server.jobs.submitted
    assert one.trigger is Trigger.CREATE
    assert (one.view_id, one.requested_by) == (("v",), "ann")
    assert one.idempotency_key == two.idempotency_key is not None
    with pytest.raises(TableAlreadyExists):
        await server.create_view(VIEW, define(), new_key())


async def test_a_view_whose_source_is_not_there_is_not_made(server: ViewServer) -> None:
    with pytest.raises(TableNotFound, match="table nothing, the source of view v"):
        await server.create_view(VIEW, define("SELECT id FROM nothing"), new_key())
    assert not await is_there(server, VIEW)


async def test_a_view_does_not_read_itself(server: ViewServer) -> None:
    with pytest.raises(InvalidInput, match="view v cannot read itself"):
        await server.create_view(VIEW, define("SELECT id FROM v"), new_key())


@pytest.mark.parametrize(
    ("query", "error"),
    [
        ("SELECT id, wrong AS twice FROM src", (TableColumnNotFound, InvalidInput)),
        ("SELECT id, n AS twice FROM src WHERE wrong > 0", (TableColumnNotFound, InvalidInput)),
    ],
)
async def test_a_query_that_does_not_fit_its_source_is_refused(
    server: ViewServer, query: str, error: tuple[type[DestrierError], ...]
) -> None:
    with pytest.raises(error, match="wrong"):
        await server.create_view(VIEW, define(query), new_key())
    assert not await is_there(server, VIEW)


async def test_a_query_of_no_known_form_is_kept_but_not_refreshed(server: ViewServer) -> None:
    unknown = define("FROM src |> WHERE n > 0")
    with pytest.raises(InvalidInput, match="source_query"):
        await server.create_view(VIEW, unknown, new_key(), with_data=True)
    assert not await is_there(server, VIEW)
    with pytest.raises(InvalidInput, match="auto_refresh"):
        await server.create_view(VIEW, define("FROM src", auto_refresh=True), new_key())
    await server.create_view(VIEW, unknown, new_key())
    described = await server.describe_view(VIEW)
    assert described.definition.source_query == "FROM src |> WHERE n > 0"
    assert (described.refreshable, described.source) == (False, None)
    assert "source_query" in (described.reason or "")
    with pytest.raises(InvalidInput, match="view v cannot be refreshed"):
        await server.refresh_view(VIEW, RefreshOptions())


async def test_input_columns_are_those_of_the_query(server: ViewServer) -> None:
    chunker = define("SELECT id FROM src", "chunker", input_columns=["id", "n"])
    with pytest.raises(InvalidInput, match=r"'n'.*does not give; it gives 'id'"):
        await server.create_view(VIEW, chunker, new_key())


async def test_partitions_of_an_index_need_a_vector_index(server: ViewServer) -> None:
    vectors = pa.FixedSizeListArray.from_arrays(pa.array([0.5] * 2_048, pa.float32()), 8)
    await make_table(server, ref("vec"), pa.table({"id": range(256), "v": vectors}))
    definition = define(
        "SELECT id, v AS point FROM vec", "udtf", NAMES, partition_by_indexed_column="point"
    )
    with pytest.raises(InvalidInput, match=r"'v' has no IVF index .* create a vector index"):
        await server.create_view(VIEW, definition, new_key())
    assert not await is_there(server, VIEW)
    (await server.dataset(ref("vec"))).create_index("v", "IVF_FLAT", num_partitions=2)
    await server.create_view(VIEW, definition, new_key())
    assert await is_there(server, VIEW)


async def test_a_manifest_is_checked_before_the_view_is_made(server: ViewServer) -> None:
    manifest = json.dumps({"pip": ["numpy"]})
    with pytest.raises(PermissionDenied, match="pip"):
        await server.create_view(VIEW, define(envelope(), "chunker", manifest=manifest), new_key())
    assert not await is_there(server, VIEW)


async def test_a_view_whose_refresh_is_refused_is_not_left_behind(server: ViewServer) -> None:
    server.jobs.refusal = ImpossibleResources("v asks for 64 GPUs")
    definition = define(envelope(), "chunker", num_gpus=64)
    with pytest.raises(ImpossibleResources):
        await server.create_view(VIEW, definition, new_key(), with_data=True)
    assert not await is_there(server, VIEW)


async def test_what_workers_need_is_told_to_the_owner_of_jobs(server: ViewServer) -> None:
    definition = define(envelope(), "chunker", num_cpus=2, num_gpus=1, memory=5e9)
    await server.create_view(VIEW, definition, new_key(), with_data=True)
    (asked,) = server.jobs.submitted
    assert asked.resources is not None
    assert asked.resources.demand() == {"CPU": 2, "GPU": 1, "memory": 5e9}
    assert asked.code_name == "chunks"


async def test_a_view_that_refreshes_itself_is_watched(server: ViewServer) -> None:
    await server.create_view(VIEW, define(auto_refresh=True), new_key())
    assert server.jobs.watched == [WatchedView(DATABASE, ("v",))]
    assert (await server.describe_view(VIEW)).auto_refresh


# --- describe and list ----------------------------------------------------------------------------


async def publish_all(server: ViewServer, job_id: str = "first") -> None:
    source = await server.dataset(SOURCE)
    asked = request(await server.uri(VIEW), source, rows_of(source), job_id=job_id)
    await server.on_table(VIEW, "publish_view", asked)


async def test_a_description_says_how_far_a_view_is_behind(server: ViewServer) -> None:
    await server.create_view(VIEW, define(), new_key())
    new = await server.describe_view(VIEW)
    assert (new.source, new.source_version, new.latest_source_version) == (SOURCE.id, None, 1)
    assert new.lag is not None
    assert (new.lag.versions, new.lag.rows, new.num_rows) == (1, 4, 0)
    await publish_all(server)
    fresh = await server.describe_view(VIEW)
    assert (fresh.source_version, fresh.num_rows, fresh.drift) == (1, 3, None)
    assert fresh.lag is not None
    assert (fresh.lag.versions, fresh.lag.rows) == (0, 0)
    more = ipc(pa.table({"id": [5, 6], "n": [50, 60]}))
    await server.insert_rows(SOURCE, None, InsertMode.APPEND, new_key(), more)
    await server.update_rows(
        SOURCE, None, new_key(), [Assignment(("n",), "0")], "id = 1", None, None
    )
    behind = await server.describe_view(VIEW)
    assert (behind.source_version, behind.latest_source_version) == (1, 3)
    assert behind.lag is not None
    assert (behind.lag.versions, behind.lag.rows) == (2, 3)
    assert behind.refreshable
    assert behind.query is not None
    assert pa.ipc.read_schema(pa.py_buffer(behind.schema_ipc)).names[0] == "id"


async def test_a_view_whose_source_was_dropped_says_so(server: ViewServer) -> None:
    await server.create_view(VIEW, define(), new_key())
    await publish_all(server)
    await server.catalog(DATABASE).drop_table(SOURCE.id)
    described = await server.describe_view(VIEW)
    assert (described.refreshable, described.lag) == (False, None)
    assert "table src" in (described.reason or "")
    assert (described.source_version, described.num_rows) == (1, 3)
    with pytest.raises(TableNotFound, match="table src, the source of view v"):
        await server.refresh_view(VIEW, RefreshOptions())


async def test_a_table_is_not_described_refreshed_or_dropped_as_a_view(server: ViewServer) -> None:
    for call in (
        server.describe_view(SOURCE),
        server.refresh_view(SOURCE, RefreshOptions()),
        server.drop_view(SOURCE),
    ):
        with pytest.raises(InvalidTableState, match="table src is no materialized view"):
            await call
    assert await is_there(server, SOURCE)


async def test_views_are_listed_in_pages_and_tables_are_not(server: ViewServer) -> None:
    namespace = ObjectId(())
    assert (await server.list_views(DATABASE, namespace, None, None)).items == ()
    for name in ("c", "a", "b", "z"):
        await server.create_view(ref(name), define(), new_key())
    first = await server.list_views(DATABASE, namespace, None, 2)
    assert (first.items, first.page_token) == (("a", "b"), "b")
    second = await server.list_views(DATABASE, namespace, first.page_token, 2)
    assert (second.items, second.page_token) == (("c", "z"), None)


# --- drop -----------------------------------------------------------------------------------------


async def test_dropping_a_view_ends_its_jobs_whichever_way_it_is_dropped(
    server: ViewServer,
) -> None:
    catalog = server.catalog(DATABASE)
    await catalog.create_namespace(ObjectId(("ns",)), CreateMode.CREATE, {})
    views = [ref("a"), ref("b"), ref("c"), ref("ns", "d")]
    for view in views:
        await server.create_view(view, define(), new_key())
    await server.drop_view(views[0])
    await catalog.drop_table(views[1].id)
    await catalog.deregister_table(views[2].id)
    await catalog.drop_namespace(ObjectId(("ns",)), skip_missing=False, cascade=True)
    assert server.jobs.forgotten == [view.id.parts for view in views]
    for view in views:
        assert not await is_there(server, view)
    await catalog.drop_table(SOURCE.id)
    assert len(server.jobs.forgotten) == 4


# --- writes ---------------------------------------------------------------------------------------


async def test_nobody_writes_the_rows_of_a_view(server: ViewServer) -> None:
    await server.create_view(VIEW, define(), new_key())
    rows = ipc(pa.table({"id": [9], "twice": [9], "__source_row_id": pa.array([9], pa.uint64())}))
    new = NewTable(VIEW.id)
    for write in (
        server.insert_rows(VIEW, None, InsertMode.APPEND, new_key(), rows),
        server.insert_rows(VIEW, None, InsertMode.OVERWRITE, new_key(), rows),
        server.update_rows(VIEW, None, new_key(), [Assignment(("id",), "0")], None, None, None),
        server.delete_rows(VIEW, None, new_key(), "true", None),
        server.create_table(DATABASE, new, CreateMode.OVERWRITE, new_key(), rows),
    ):
        with pytest.raises(InvalidTableState, match=r"^v is a materialized view"):
            await write
    described = await server.describe_view(VIEW)
    assert (described.version, described.num_rows) == (1, 0)


async def test_another_name_for_a_view_is_no_way_to_write_it(server: ViewServer) -> None:
    await server.create_view(VIEW, define(), new_key())
    catalog = server.catalog(DATABASE)
    other = ref("other")
    await catalog.register_table(other.id, "v.lance", {}, overwrite=False)
    with pytest.raises(InvalidTableState, match=r"^other is a materialized view"):
        await server.delete_rows(other, None, new_key(), "true", None)
    with pytest.raises(InvalidTableState, match=r"^v is a materialized view"):
        await catalog.register_table(VIEW.id, "src.lance", {}, overwrite=True)
    assert (await server.describe_view(VIEW)).definition.source_query == QUERY


async def test_reserved_metadata_are_for_views_only(server: ViewServer) -> None:
    await server.create_view(VIEW, define(), new_key())
    for table in (SOURCE, VIEW):
        with pytest.raises(InvalidInput, match="reserved"):
            await server.update_schema_metadata(table, None, new_key(), {"mv.definition": "{}"})
    forged = NewTable(ObjectId(("forged",)), schema_metadata={"destrier.view.kind": "query"})
    with pytest.raises(InvalidInput, match="reserved"):
        await server.create_table(DATABASE, forged, CreateMode.CREATE, new_key(), ipc(ROWS))


# --- refresh --------------------------------------------------------------------------------------


async def test_a_refresh_is_a_job_with_its_options(server: ViewServer) -> None:
    await server.create_view(VIEW, define(envelope(), "chunker"), new_key())
    options = RefreshOptions(full=True, concurrency=3, source_task_size=10, output_limit=5)
    namespace = make_settings(Path("unused")).ray.namespace
    job_id = await server.refresh_view(
        VIEW, options, cluster=namespace, idempotency_key="k", requested_by="ann"
    )
    (asked,) = server.jobs.submitted
    assert job_id == "job-1"
    assert (asked.options, asked.requested_by, asked.after) == (options, "ann", ())
    assert asked.view.uri == await server.uri(VIEW)
    assert asked.view.incarnation is not None
    await server.refresh_view(VIEW, options, idempotency_key="k")
    assert server.jobs.submitted[1].idempotency_key == asked.idempotency_key


@pytest.mark.parametrize(
    ("kind", "options", "named"),
    [
        ("chunker", RefreshOptions(source_task_size=0), "source_task_size must be at least 1"),
        ("query", RefreshOptions(concurrency=0), "concurrency must be at least 1"),
        ("query", RefreshOptions(max_rows_per_fragment=-1), "max_rows_per_fragment"),
        ("query", RefreshOptions(source_task_size=5), "source_task_size is for views of kind"),
        ("query", RefreshOptions(output_limit=5), "output_limit is for views of kind chunker"),
        ("udtf", RefreshOptions(output_limit=5), "output_limit is for views of kind chunker"),
        ("chunker", RefreshOptions(intra_applier_concurrency=65), "at most 64"),
        ("query", RefreshOptions(manifest="{}"), "manifest"),
        ("chunker", RefreshOptions(manifest='{"what": 1}'), "what"),
        ("query", RefreshOptions(source_version=7), "src_version: .* has no version 7"),
    ],
)
async def test_options_that_mean_nothing_are_refused(
    server: ViewServer, kind: str, options: RefreshOptions, named: str
) -> None:
    await server.create_view(VIEW, define(envelope(), kind, NAMES), new_key())
    with pytest.raises(InvalidInput, match=named):
        await server.refresh_view(VIEW, options)
    assert server.jobs.submitted == []


async def test_another_cluster_is_refused(server: ViewServer) -> None:
    await server.create_view(VIEW, define(), new_key())
    with pytest.raises(InvalidInput, match="not on 'elsewhere'"):
        await server.refresh_view(VIEW, RefreshOptions(), cluster="elsewhere")


async def test_a_pinned_view_is_refreshed_from_its_pin_only(server: ViewServer) -> None:
    with pytest.raises(DestrierError, match="no version 9"):
        await server.create_view(VIEW, define(envelope(version=9), output=NAMES), new_key())
    await server.create_view(VIEW, define(envelope(version=1), output=NAMES), new_key())
    # Which no clean-up of old versions takes away.
    tags = (await server.dataset(SOURCE)).tags.list()
    assert {name: tag["version"] for name, tag in tags.items()} == {"destrier-pinned-1": 1}
    other = ref("other")
    await server.create_view(other, define(envelope(version=1), output=NAMES), new_key())
    await server.delete_rows(SOURCE, None, new_key(), "id = 1", None)
    with pytest.raises(InvalidInput, match="always shows version 1"):
        await server.refresh_view(VIEW, RefreshOptions(source_version=2))
    await server.refresh_view(VIEW, RefreshOptions(source_version=1))
    described = await server.describe_view(VIEW)
    assert described.latest_source_version == 1


async def test_code_that_is_accepted_no_more_is_not_run(server: ViewServer, tmp_path: Path) -> None:
    await server.create_view(VIEW, define(envelope(), "chunker"), new_key())
    for views, error in (
        ({"user_code": "off"}, Unsupported),
        ({"user_code": "allow-list"}, PermissionDenied),
    ):
        strict = ViewServer(make_settings(tmp_path / "root", views=views))
        with pytest.raises(error):
            await strict.refresh_view(VIEW, RefreshOptions())
        assert not (await strict.describe_view(VIEW)).refreshable


async def test_cascade_brings_the_sources_up_to_date_first(server: ViewServer) -> None:
    await server.create_view(VIEW, define(), new_key())
    middle, top = ref("middle"), ref("top")
    await server.create_view(middle, define("SELECT id, twice FROM v"), new_key())
    await server.create_view(top, define("SELECT id, twice FROM middle"), new_key())
    job_id = await server.refresh_view(top, RefreshOptions(), cascade=True, idempotency_key="k")
    submitted = server.jobs.submitted
    assert [job.view_id for job in submitted] == [("v",), ("middle",), ("top",)]
    assert [job.after for job in submitted] == [(), ("job-1",), ("job-2",)]
    assert [job.trigger for job in submitted] == [Trigger.CASCADE, Trigger.CASCADE, Trigger.API]
    assert len({job.idempotency_key for job in submitted}) == 3
    assert job_id == "job-3"


async def test_cascade_ends_where_views_read_each_other(server: ViewServer) -> None:
    await server.create_view(VIEW, define(), new_key())
    await server.create_view(ref("w"), define("SELECT id, twice FROM v"), new_key())
    await server.drop_view(VIEW)
    await server.create_view(VIEW, define("SELECT id, twice FROM w"), new_key())
    with pytest.raises(InvalidInput, match="reads itself"):
        await server.refresh_view(VIEW, RefreshOptions(), cascade=True)
    assert server.jobs.submitted == []


@pytest.mark.parametrize("failed_only", [False, True])
async def test_cascade_and_what_was_read_before_exclude_each_other(
    server: ViewServer, failed_only: bool
) -> None:
    await server.create_view(VIEW, define(), new_key())
    options = RefreshOptions(source_version=None if failed_only else 1)
    with pytest.raises(InvalidInput, match="cascade"):
        await server.refresh_view(VIEW, options, cascade=True, failed_only=failed_only)


# --- views that LanceDB made ----------------------------------------------------------------------


async def test_a_view_that_lancedb_made_is_a_view(server: ViewServer) -> None:
    database = lancedb.connect(Path(await server.uri(SOURCE)).parent)
    database.create_materialized_view(
        "theirs", "src", select={"id": "id", "twice": "n * 2"}, where="n > 0", with_no_data=True
    )
    theirs = ref("theirs")
    assert (await server.list_views(DATABASE, ObjectId(()), None, None)).items == ("theirs",)
    described = await server.describe_view(theirs)
    assert described.definition.kind is ViewKind.QUERY
    assert (described.source, described.refreshable) == (SOURCE.id, True)
    assert described.query is not None
    output = pa.ipc.read_schema(pa.py_buffer(described.definition.output_schema))
    assert output.names == OUTPUT.names
    await server.refresh_view(theirs, RefreshOptions())
    assert server.jobs.submitted[0].view_id == ("theirs",)
    with pytest.raises(InvalidTableState, match="theirs is a materialized view"):
        await server.delete_rows(theirs, None, new_key(), "true", None)


async def test_a_view_is_described_while_it_is_read(tmp_path: Path) -> None:
    """Lance lets nobody use an open table while the history of the same object is read."""
    server = ViewServer(make_settings(tmp_path / "root"))
    await make_table(server, SOURCE, pa.table({"id": [1, 2], "n": [10, 20]}))
    await server.create_view(VIEW, define(), new_key())
    source, uri = await server.dataset(SOURCE), await server.uri(VIEW)
    await server.on_table(VIEW, "publish_view", request(uri, source, rows_of(source)))

    async def describe() -> None:
        for _ in range(50):
            described = await server.describe_view(VIEW)
            assert described.refreshable and described.source_version == 1, described

    async def count() -> None:
        for number in range(100):
            counted = await server.count_rows(VIEW, LATEST, f"twice > {number - 1000}", None)
            assert counted.count == 2

    await asyncio.gather(*(describe() for _ in range(3)), *(count() for _ in range(3)))
