"""What Destrier is for, in two minutes: `make demo`.

Starts a server in a folder of its own, loads real data, makes a view of each kind, changes the
data, refreshes what changed, and stops. Nothing stays behind.
"""

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import flights
import pyarrow as pa
import topics
from tables import Tables

from udtf import ViewClient

START_TIMEOUT_S = 120
STOP_TIMEOUT_S = 60
ROWS_SHOWN = 4


def main() -> None:
    """Run all of it."""
    key = f"demo-{secrets.token_hex(16)}"
    with tempfile.TemporaryDirectory(prefix="destrier-demo-") as folder:
        say("Starting a server")
        with server(Path(folder), key) as url:
            with Tables(url, key) as tables, ViewClient(url, api_key=key) as views:
                load(tables)
                make_views(views)
                change(tables)
                refresh(views)
            say("Stopping the server")


def load(tables: Tables) -> None:
    """Two tables."""
    say("Loading Python's language reference and New York's flights of 2013")
    for name, rows in (("topics", topics.topics_table()), ("flights", flights.flights_table())):
        tables.create(name, rows)
        print(f"  {name}: {rows.num_rows:,} rows")


def make_views(views: ViewClient) -> None:
    """A view of each kind, with its first rows."""
    topics.create_views(views)
    flights.create_view(views)
    say("A chunker: each topic becomes its paragraphs")
    run(views, "passages")
    show(views, "passages", ["topic", "number", "words"])
    say("A UDTF over that view: statistics, one topic at a time")
    run(views, "topic_statistics")
    show(views, "topic_statistics", ["topic", "passages", "words", "longest"])
    say("A query: flights that left an hour late and made up half an hour")
    run(views, "made_up")
    show(views, "made_up", ["carrier", "flight", "origin", "dest", "made_up"])


def change(tables: Tables) -> None:
    """A few rows of each table."""
    say("Changing the data: one topic is new, one is longer, one is gone; so is one airline")
    tables.insert("topics", pa.table({"topic": ["destrier"], "body": ["A horse.\n\nFor knights."]}))
    tables.update("topics", "topic = 'assert'", body="concat(body, '\n\nIt ends here.')")
    tables.delete("topics", "topic = 'lambda'")
    tables.delete("flights", "carrier = 'HA'")


def refresh(views: ViewClient) -> None:
    """Bring the views up to date: those that can be are refreshed row by row."""
    say("Refreshing the statistics, and first the passages that they are made of")
    run(views, "topic_statistics", cascade=True)
    show(views, "topic_statistics", ["topic", "passages", "words"], "topic IN ('destrier')")
    say("Refreshing the flights")
    run(views, "made_up")
    say("Once more: nothing has changed, so there is nothing to do")
    run(views, "passages")


def run(views: ViewClient, name: str, cascade: bool = False) -> None:
    """Refresh a view and say what that did."""
    result = views.refresh(name, cascade=cascade).wait(progress=True).result or {}
    print(f"  {result.get('mode')}: {result.get('rows_written'):,} rows written", end="")
    reason = result.get("reason")
    print(f" ({reason})" if reason else "")


def show(views: ViewClient, name: str, columns: list[str], predicate: str | None = None) -> None:
    """The first rows of a view."""
    for row in views.rows(name, columns, filter=predicate, limit=ROWS_SHOWN).to_pylist():
        print("   ", ", ".join(f"{column} {value!r}" for column, value in row.items()))


def say(text: str) -> None:
    """A headline."""
    print(f"\n== {text}", flush=True)


@contextlib.contextmanager
def server(folder: Path, key: str) -> Iterator[str]:
    """The URL of a server that runs as long as the context."""
    log = folder / "server.log"
    with log.open("w") as output:
        process = subprocess.Popen(  # noqa: S603 - our own program
            [sys.executable, "-m", "serve_app", "serve", "--root", folder / "data", "--port", "0"],
            env={
                **os.environ,
                "DESTRIER_ADMIN_KEY": key,
                "DESTRIER_RAY_NAMESPACE": folder.name,
            },
            stdout=output,
            stderr=subprocess.STDOUT,
            # Ctrl-C comes here first, and the server is stopped in order.
            start_new_session=True,
        )
    try:
        yield wait_until_ready(process, log)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(STOP_TIMEOUT_S)


def wait_until_ready(process: subprocess.Popen[bytes], log: Path) -> str:
    """The URL that the server prints when it answers."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline and process.poll() is None:
        for line in log.read_text().splitlines():
            if line.startswith("ready "):
                return line.removeprefix("ready ").strip()
        time.sleep(0.1)
    raise SystemExit(f"the server did not start:\n{log.read_text()}")


if __name__ == "__main__":
    main()
