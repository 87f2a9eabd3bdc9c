"""New York's 336,776 flights of 2013 through the service, against the same changes in pandas."""

import ast
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

from tests.clients import nyc
from tests.clients.airports import arrow
from tests.clients.plain_http import Database, refusal, right, stream
from tests.clients.running_server import DATABASE_HEADER, direct_only

pytestmark = [
    pytest.mark.cluster,
    direct_only,
]

README = Path(__file__).parents[2] / "README.md"


@pytest.fixture(scope="module")
def flights() -> pd.DataFrame:
    """19 columns, six of them with nulls."""
    frame = nyc.read("flights.csv.zip")
    assert frame.shape == (336_776, 19)
    return frame


def ordered(table: pa.Table) -> pa.Table:
    """The rows in an order of their own."""
    keys = ["time_hour", "carrier", "flight", "origin"]
    return table.sort_by([(key, "ascending") for key in keys])


def test_a_year_of_flights_is_changed_as_pandas_changes_it(
    database: Database, table: str, flights: pd.DataFrame
) -> None:
    rows = arrow(flights)
    # Small batches, compressed: how a client streams a table that it does not hold.
    body = stream(rows, compression="zstd", rows=16_384)
    created = right(database.send_stream(table, "create", body)).json()
    assert created["version"] == 1

    assert database.count(table) == len(flights)
    assert database.count(table, "carrier = 'UA'") == (flights.carrier == "UA").sum()
    late = (flights.dep_delay > 60) & flights.dest.isin(["LAX", "SFO"])
    assert database.count(table, "dep_delay > 60 AND dest IN ('LAX', 'SFO')") == late.sum()
    assert database.count(table, "dep_time IS NULL") == flights.dep_time.isna().sum()

    expected = flights[flights.dep_time.notna()].copy()
    deleted = database.ask(table, "delete", predicate="dep_time IS NULL")
    assert deleted["num_deleted_rows"] == len(flights) - len(expected)
    early = expected.dep_delay < 0
    updated = database.ask(
        table,
        "update",
        predicate="dep_delay < 0",
        updates=[["dep_delay", "0"], ["dest", "lower(dest)"]],
    )
    assert updated["updated_rows"] == early.sum()
    expected.loc[early, "dest"] = expected.dest[early].str.lower()
    expected.loc[early, "dep_delay"] = 0

    described = {"source": "Bureau of Transportation Statistics", "year": "2013"}
    assert database.ask(table, "schema_metadata/update", **described) == described

    again = expected[expected.month == 12]
    assert database.insert(table, arrow(again))["num_inserted_rows"] == len(again)
    expected = pd.concat([expected, again])

    assert ordered(database.rows(table)).equals(ordered(arrow(expected)))
    assert database.version(table) == 5
    by_carrier = {
        carrier: database.count(table, f"carrier = '{carrier}'")
        for carrier in nyc.read("airlines.csv").carrier
    }
    assert by_carrier == expected.carrier.value_counts().to_dict()
    # As the table was.
    assert database.count(table, version=1) == len(flights)
    assert database.count(table, "dep_delay < 0", version=1) == (flights.dep_delay < 0).sum()
    assert refusal(database.post(f"table/{table}/count_rows", {"version": 9})) == (404, 11)


def code_block(heading: str, language: str) -> str:
    """The code under a heading of the readme."""
    section = README.read_text().partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    found = re.search(rf"^```{language}\n(.*?)^```$", section, re.DOTALL | re.MULTILINE)
    assert found is not None, f"the readme has no {language} under {heading!r}"
    return found[1]


def replaced(text: str, changes: dict[str, str]) -> str:
    """The text for the test's server instead of the one of the readme."""
    for said, meant in changes.items():
        assert said in text
        text = text.replace(said, meant)
    return text


def test_the_sessions_of_the_readme_give_what_they_show(
    fresh_database: Database, tmp_path: Path
) -> None:
    server = fresh_database.server
    here = {"http://127.0.0.1:2333": server.url}

    shell = code_block("A session with curl", "sh")
    shown = re.findall(r"^# (?:updated_rows is )?(\d+)$", shell, re.MULTILINE)
    # Each answer on a line of its own, and from the test's database.
    own_curl = (
        f'curl() {{ command curl -sS --fail-with-body -H "{DATABASE_HEADER}: '
        f'{fresh_database.name}" "$@"; echo; }}\n'
    )
    own = {".venv/bin/python": sys.executable, "KEY=...": f"KEY={server.admin_key}"}
    run = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", own_curl + replaced(shell, here | own)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    answers = [json.loads(line) for line in run.stdout.splitlines()]
    counts = [
        answer if isinstance(answer, int) else answer.get("updated_rows") for answer in answers
    ]
    assert [count for count in counts if count is not None] == [int(number) for number in shown]

    python = code_block("The same with Python", "python")
    own = {"db://default": f"db://{fresh_database.name}"}
    counted, found = values_of(replaced(python, here | own), KEY=server.admin_key)
    assert f"# {counted}\n" in python
    rows = ", ".join(f"{row['carrier']} {row['flight']}" for row in found.to_pylist())
    assert f"# an Arrow table: {rows}\n" in python

    view = code_block("A view by a function of yours", "python")
    own = {
        'api_key="..."': f'api_key="{server.admin_key}", database="{fresh_database.name}"',
    }
    file = tmp_path / "stops.py"
    file.write_text(replaced(view, here | own))
    run = subprocess.run([sys.executable, str(file)], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert f"# {fresh_database.count('stops'):,} rows, two of each flight\n" in view


def values_of(code: str, **names: Any) -> list[Any]:
    """What the expressions among the statements of `code` give."""
    values = []
    for statement in ast.parse(code).body:
        if isinstance(statement, ast.Expr):
            values.append(eval(compile(ast.Expression(statement.value), "readme", "eval"), names))
        else:
            exec(compile(ast.Module([statement], []), "readme", "exec"), names)
    return values
