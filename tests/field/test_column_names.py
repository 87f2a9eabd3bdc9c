"""Names that other systems read as something else: quoted, in mixed case, nested."""

import pyarrow as pa
import pytest

from tests.clients.plain_http import Database, refusal, stream
from tests.clients.running_server import direct_only

pytestmark = [
    pytest.mark.cluster,
    direct_only,
]

PEOPLE = pa.table(
    {
        "PartyAbbrev": ["D", "R", "R", "D"],
        "Status": ["x", "y", "x", "x"],
        "imageId": [1, 2, 3, 4],
    }
)


def test_a_mixed_case_name_means_its_column_however_it_is_written(
    database: Database, table: str
) -> None:
    """Lance takes double quotes for a text: `"Status" != 'x'` would select every row."""
    database.create(table, PEOPLE)
    for predicate, count in (
        ("PartyAbbrev = 'D'", 2),
        ("`PartyAbbrev` = 'D'", 2),
        ("partyabbrev = 'D'", 2),
        ("\"PartyAbbrev\" = 'D'", 2),
        ("\"Status\" != 'x'", 1),
        ("imageId > 2", 2),
        ("`imageId` > 2 AND \"PartyAbbrev\" = 'D'", 1),
    ):
        assert database.count(table, predicate) == count
        assert len(database.rows(table, filter=predicate)) == count
        changed = database.ask(
            table, "update", predicate=predicate, updates=[["imageId", '"imageId" + 0']]
        )
        assert changed["updated_rows"] == count
    assert ordered(database.rows(table)).equals(PEOPLE)

    for predicate, deleted in (
        ("\"Status\" != 'x'", 1),
        ("`PartyAbbrev` = 'D'", 2),
        ("imageId = 3", 1),
    ):
        answer = database.ask(table, "delete", predicate=predicate)
        assert answer["num_deleted_rows"] == deleted
    assert database.count(table) == 0


@pytest.mark.parametrize("predicate", ['"D" = PartyAbbrev', "\"x\" != 'y'", "`D` = 'D'"])
def test_a_quoted_name_of_no_column_is_refused(
    database: Database, table: str, predicate: str
) -> None:
    database.create(table, PEOPLE)
    for operation, body in (
        ("count_rows", {"predicate": predicate}),
        ("query", {"vector": [], "filter": predicate}),
        ("delete", {"predicate": predicate}),
        ("update", {"predicate": predicate, "updates": [["Status", "'z'"]]}),
    ):
        assert refusal(database.post(f"table/{table}/{operation}", body)) == (400, 13)
    assert database.rows(table).equals(PEOPLE)


def ordered(rows: pa.Table) -> pa.Table:
    """The rows in the order that they were made in."""
    return rows.sort_by("imageId")


def test_names_that_differ_in_case_alone_are_two_columns(database: Database, table: str) -> None:
    database.create(table, pa.table({"a": [1, 2], "A": [10, 20]}))
    assert database.count(table, "`a` = 1") == 1
    assert database.count(table, "`A` = 1") == 0
    assert database.count(table, "`A` = 10") == 1
    for column in ("a", "A"):
        changed = database.ask(table, "update", updates=[[column, f"`{column}` * 2"]])
        assert changed["updated_rows"] == 2
    assert database.rows(table).to_pydict() == {"a": [2, 4], "A": [20, 40]}


NESTED = pa.table(
    {
        "id": [1, 2, 3],
        "s": pa.array(
            [{"x": 1, "y.z": 10, "q`r": "a"}, None, {"x": None, "y.z": 30, "q`r": "c"}],
            pa.struct([("x", pa.int64()), ("y.z", pa.int64()), ("q`r", pa.string())]),
        ),
    }
)


@pytest.fixture(scope="module")
def nested_table(database: Database) -> str:
    """A table of NESTED that no test changes."""
    database.create("nested", NESTED)
    return "nested"


def test_an_update_of_a_nested_field_changes_nothing_else(database: Database, table: str) -> None:
    database.create(table, NESTED)
    first = {"x": 1, "y.z": 10, "q`r": "a"}
    for updates, change in (
        ([["s.x", "s.x + 1"]], {"x": 2}),
        ([["`s`.`x`", "s.`x` + 1"]], {"x": 3}),
        ([["s.`y.z`", "s.`y.z` + 1"]], {"y.z": 11}),
        ([["s.`q``r`", "concat(s.`q``r`, 'b')"]], {"q`r": "ab"}),
        # Each expression sees the row as it was.
        ([["s.x", "s.`y.z`"], ["s.`y.z`", "s.x"], ["id", "id"]], {"x": 11, "y.z": 3}),
    ):
        changed = database.ask(table, "update", predicate="id = 1", updates=updates)
        assert changed["updated_rows"] == 1
        first |= change
        rows = database.rows(table).sort_by("id").to_pylist()
        assert rows == [{"id": 1, "s": first}, *NESTED.to_pylist()[1:]]

    # A parent that is null stays null; a child that is null gets its value.
    assert database.ask(table, "update", updates=[["s.x", "7"]])["updated_rows"] == 3
    assert database.rows(table).sort_by("id")["s"].to_pylist() == [
        first | {"x": 7},
        None,
        {"x": 7, "y.z": 30, "q`r": "c"},
    ]


@pytest.mark.parametrize("target", ["s.none", "none", "s.x.y", "s.`y`.z", "id.x"])
def test_an_update_of_a_field_that_is_not_there_is_refused(
    database: Database, nested_table: str, target: str
) -> None:
    answer = database.post(f"table/{nested_table}/update", {"updates": [[target, "1"]]})
    assert refusal(answer) == (400, 12)
    assert database.version(nested_table) == 1


@pytest.mark.parametrize("target", ["", ".", "s.", ".x", "s..x", "`s", "s.`x", "`s`x"])
def test_a_path_that_cannot_be_read_is_refused(
    database: Database, airports_table: str, target: str
) -> None:
    answer = database.post(f"table/{airports_table}/update", {"updates": [[target, "1"]]})
    assert refusal(answer) == (400, 13)


@pytest.mark.parametrize("name", ["a.b", "a`b"])
def test_a_column_that_lance_cannot_name_is_refused_at_creation(
    database: Database, table: str, name: str
) -> None:
    answer = database.send_stream(table, "create", stream(pa.table({name: [1]})))
    assert refusal(answer) == (400, 20)
    assert refusal(database.post(f"table/{table}/describe")) == (404, 4)
