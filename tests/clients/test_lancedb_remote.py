"""LanceDB's remote client."""

from collections.abc import Callable

import lancedb
import pyarrow as pa
import pytest
from lancedb.index import BTree
from lancedb.remote.errors import HttpError

from tests.clients import airports, lance_folder
from tests.clients.plain_http import Database
from tests.clients.running_server import RunningServer

# Deprecated, and what most programs still call.
OLD_LISTING = "ignore:table_names:DeprecationWarning"

pytestmark = pytest.mark.cluster

Connect = Callable[..., lancedb.DBConnection]


@pytest.fixture
def connect(live_server: RunningServer, database: Database) -> Connect:
    """Opens connections: `connect(api_key, to=...)`."""

    def open_connection(
        api_key: str = live_server.admin_key, to: str = database.name
    ) -> lancedb.DBConnection:
        return lancedb.connect(
            f"db://{to}",
            api_key=api_key,
            region="local",
            host_override=live_server.url,
        )

    return open_connection


@pytest.fixture
def db(connect: Connect) -> lancedb.DBConnection:
    """The administrator's connection."""
    return connect()


def test_rows_are_created_inserted_updated_deleted_and_read_back(
    db: lancedb.DBConnection, database: Database, table: str
) -> None:
    first, rest = airports.first_and_rest()
    rows = db.create_table(table, first)
    assert rows.version == 1
    assert rows.schema.names == first.schema.names

    assert rows.add(rest).version == 2
    assert rows.count_rows() == airports.ROWS
    assert rows.count_rows("tzone IS NULL") == 3
    updated = rows.update(where=airports.IN_HONOLULU, values_sql=dict(airports.RAISED))
    assert (updated.rows_updated, updated.version) == (18, 3)
    deleted = rows.delete(airports.UNKNOWN_DST)
    assert (deleted.num_deleted_rows, deleted.version) == (47, 4)
    assert rows.version == database.version(table) == 4
    assert airports.same_rows(rows.search().to_arrow(), airports.changed())

    # As the table was, and as it is.
    rows.checkout(1)
    assert (rows.version, rows.count_rows()) == (1, first.num_rows)
    rows.checkout_latest()
    assert rows.version == 4
    assert [version["version"] for version in rows.list_versions()] == [1, 2, 3, 4]

    assert rows.add(rest, mode="overwrite").version == 5
    assert rows.count_rows() == rest.num_rows


def test_values_given_as_python_objects_are_written(db: lancedb.DBConnection, table: str) -> None:
    rows = db.create_table(table, airports.first_and_rest()[0])
    assert rows.update(where="faa = 'HNL'", values={"name": "O'Hare", "alt": 7}).rows_updated == 1
    found = rows.search().where("faa = 'HNL'").select(["name", "alt"]).to_arrow()
    assert found.to_pylist() == [{"name": "O'Hare", "alt": 7}]


def test_words_of_a_dictionary_are_read_back(db: lancedb.DBConnection, table: str) -> None:
    parts = [
        pa.table({"word": pa.array(part).dictionary_encode()})
        for part in (["a", "b"], ["c", "a"], ["d"])
    ]
    rows = db.create_table(table, parts[0])
    for part in parts[1:]:
        rows.add(part)
    found = rows.search().to_arrow()["word"]
    assert (found.type, found.to_pylist()) == (parts[0].schema.field(0).type, list("abcad"))


def test_rows_are_selected_computed_and_limited(
    db: lancedb.DBConnection, airports_table: str
) -> None:
    rows = db.open_table(airports_table)
    high = airports.airports().query("alt > 7000")
    found = (
        rows.search()
        .where("alt > 7000")
        .select({"faa": "faa", "m": "cast(alt AS double) * 0.3048"})
    )
    metres = {row["faa"]: row["m"] for row in found.to_arrow().to_pylist()}
    assert metres == pytest.approx(dict(zip(high.faa, high.alt * 0.3048, strict=True)))
    assert len(rows.search().limit(3).to_arrow()) == 3
    assert len(rows.search().limit(10).offset(airports.ROWS - 5).to_arrow()) == 5
    assert len(rows.search().offset(5_000).to_arrow()) == 0


def test_a_table_that_exists_is_opened_replaced_or_refused(
    db: lancedb.DBConnection, table: str
) -> None:
    first, rest = airports.first_and_rest()
    db.create_table(table, first)
    with pytest.raises(ValueError, match="already exists"):
        db.create_table(table, rest)
    assert db.create_table(table, rest, exist_ok=True).count_rows() == first.num_rows
    assert db.create_table(table, rest, mode="overwrite").count_rows() == rest.num_rows
    assert db.open_table(table).count_rows() == rest.num_rows


def test_a_table_made_from_a_schema_takes_rows_without_all_columns(
    db: lancedb.DBConnection, table: str
) -> None:
    schema = airports.first_and_rest()[0].schema
    rows = db.create_table(table, schema=schema)
    assert rows.count_rows() == 0
    rows.add([{"faa": "ABC", "alt": 10}])
    nothing = dict.fromkeys(schema.names)
    assert rows.search().to_arrow().to_pylist() == [nothing | {"faa": "ABC", "alt": 10}]


@pytest.mark.filterwarnings(OLD_LISTING)
def test_names_that_the_client_cannot_hold_do_not_break_its_listing(
    connect: Connect, fresh_database: Database
) -> None:
    first, _ = airports.first_and_rest()
    for name in ("plain", "with space", "%C3%A9t%C3%A9", "a.b-c_d"):
        fresh_database.create(name, first)
    db = connect(to=fresh_database.name)
    assert db.table_names() == ["a.b-c_d", "plain"]
    assert db.table_names(limit=1) == ["a.b-c_d"]
    assert db.table_names(page_token="a.b-c_d", limit=1) == ["plain"]
    assert db.list_tables().tables == ["a.b-c_d", "plain"]
    # A dropped table is gone, for other connections too.
    db.drop_table("plain")
    assert db.table_names() == ["a.b-c_d"]
    with pytest.raises(ValueError, match="'plain' was not found"):
        connect(to=fresh_database.name).open_table("plain")


def test_an_index_is_described_with_its_rows(
    db: lancedb.DBConnection, database: Database, table: str
) -> None:
    first, rest = (lance_folder.with_places(part) for part in airports.first_and_rest())
    rows = db.create_table(table, first)
    location = database.ask(table, "describe")["location"]
    lance_folder.index_altitudes(location)
    lance_folder.index_places(location)
    rows.add(rest)
    tree = rows.index_stats("by_altitude")
    assert tree is not None
    assert (tree.num_indexed_rows, tree.num_unindexed_rows) == (first.num_rows, rest.num_rows)
    vectors = rows.index_stats("by_place")
    assert vectors is not None
    assert (vectors.index_type, vectors.distance_type) == ("IVF_FLAT", "cosine")
    assert rows.index_stats("no such index") is None


def test_a_writer_sees_its_own_rows_through_any_connection(connect: Connect, table: str) -> None:
    first, _ = airports.first_and_rest()
    connect().create_table(table, first[:1])
    for done in range(1, 9):
        connect().open_table(table).add(first[done : done + 1])
        assert connect().open_table(table).count_rows() == done + 1


def test_refusals_are_told(
    db: lancedb.DBConnection, connect: Connect, reader_key: str, airports_table: str
) -> None:
    rows = db.open_table(airports_table)
    with pytest.raises(ValueError, match="'nowhere' was not found"):
        db.open_table("nowhere")
    with pytest.raises(HttpError, match="400"):
        rows.count_rows("alt >")
    with pytest.raises(HttpError, match=r"400.*runways"):
        rows.update(where="runways = 1", values={"alt": 0})
    with pytest.raises(HttpError, match="401"):
        connect("wrong").open_table(airports_table)
    reader = connect(reader_key)
    assert reader.open_table(airports_table).count_rows() == airports.ROWS
    with pytest.raises(HttpError, match="403"):
        reader.open_table(airports_table).delete("true")
    with pytest.raises(HttpError, match="403"):
        reader.drop_table(airports_table)
    with pytest.raises(HttpError, match="403"):
        reader.create_table("mine", airports.first_and_rest()[0])


def test_what_is_not_built_is_refused_at_once(db: lancedb.DBConnection, table: str) -> None:
    vectors = pa.FixedSizeListArray.from_arrays(pa.array([0.0, 1.0], pa.float32()), 2)
    rows = db.create_table(table, pa.table({"place": vectors}))
    with pytest.raises(HttpError, match=r"406.*vector search is not built"):
        rows.search([0.0, 1.0]).to_arrow()
    with pytest.raises(HttpError, match=r"406.*is not built"):
        rows.create_index("place", config=BTree())
