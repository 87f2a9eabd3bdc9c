"""The command `destrier view`: what it sends and prints."""

import argparse
import base64
import functools
import json
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from cluster.errors import InvalidInput
from serve_app.commands import view as view_command
from serve_app.commands.view import load_code, parse_size
from tests.unit.view_server import Server
from udtf.client import ViewClient

Command = Callable[..., int]
CREATE = "/v1/materialized_view/v/create"
REFRESH = "/v1/materialized_view/v/refresh"
DONE = {
    "job_id": "j",
    "job_state": "DONE",
    "result": {"mode": "rebuild", "rows_written": 7, "source_version": 3, "version": 2},
}
CODE = """
from collections.abc import Iterator
from typing import NamedTuple
from udtf import chunker

class Word(NamedTuple):
    text: str

@chunker
class Words:
    def __init__(self, most: int = 3) -> None:
        self.most = most

    def __call__(self, body: str) -> Iterator[Word]:
        for text in body.split()[: self.most]:
            yield Word(text)

def plain(body):
    return []
"""


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def command(server: Server, monkeypatch: pytest.MonkeyPatch) -> Command:
    transport = httpx.MockTransport(server.handle)
    monkeypatch.setattr(
        "udtf.client.ViewClient", functools.partial(ViewClient, transport=transport)
    )
    monkeypatch.setattr("time.sleep", lambda s: None)
    monkeypatch.setenv(view_command.URL_VARIABLE, "http://host")
    monkeypatch.setenv(view_command.KEY_VARIABLE, "secret")

    def run(*words: str) -> int:
        parser = argparse.ArgumentParser("destrier")
        view_command.add_parser(parser.add_subparsers(required=True))
        args = parser.parse_args(["view", *words])
        exit_code: int = args.run(args)
        return exit_code

    return run


@pytest.fixture
def code(tmp_path: Path) -> str:
    path = tmp_path / "words_of_a_test.py"
    path.write_text(textwrap.dedent(CODE))
    return str(path)


def test_create_sends_the_code_with_what_the_command_line_says(
    command: Command, server: Server, code: str, capsys: pytest.CaptureFixture[str]
) -> None:
    server.give(CREATE, {"version": 1})
    words = ("--num-gpus", "1", "--num-cpus", "0.5", "--memory", "2GiB", "--init", '{"most": 1}')
    assert command("create", "v", f"{code}:Words", "--source", "docs", *words) == 0
    spec = server.sent(CREATE)["udtf_spec"]
    assert (spec["num_gpus"], spec["num_cpus"], spec["memory"]) == (1, 0.5, 2 << 30)
    envelope = json.loads(base64.b64decode(spec["udtf"]))
    assert (envelope["entrypoint"], envelope["init"]) == ("Words", {"most": 1})
    assert capsys.readouterr().out == ""
    assert server.requests[-1][2].headers["x-api-key"] == "secret"


def test_create_with_watch_prints_the_job_and_shows_how_it_ends(
    command: Command, server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    server.give(CREATE, {"version": 1, "job_id": "j"}, status=202)
    server.give("/v1/jobs/describe", DONE)
    assert command("create", "v", "--source", "docs", "--watch") == 0
    assert server.sent(CREATE)["with_no_data"] is False
    output = capsys.readouterr()
    assert output.out == "j\n"
    assert "rebuild: 7 rows written, source version 3, view version 2" in output.err


def test_create_with_options_of_a_refresh_asks_for_it_on_its_own(
    command: Command, server: Server
) -> None:
    server.give(CREATE, {"version": 1})
    server.give(REFRESH, {"job_id": "j"}, status=202)
    words = ("create", "v", "--source", "docs", "--concurrency", "2")
    assert command(*words) == 2
    assert not server.requests
    assert command(*words, "--with-data") == 0
    assert server.sent(CREATE)["with_no_data"] is True
    assert server.sent(REFRESH) == {"id": ["v"], "concurrency": 2}


def test_a_refresh_that_fails_ends_with_1_and_its_reason(
    command: Command, server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    server.give(REFRESH, {"job_id": "j"}, status=202)
    failure = {"phase": "plan", "message": "the column x is gone"}
    server.give("/v1/jobs/describe", {"job_id": "j", "job_state": "FAILED", "failure": failure})
    assert command("refresh", "v", "--full", "--watch") == 1
    assert server.sent(REFRESH) == {"id": ["v"], "full": True}
    assert "failed in phase plan: the column x is gone" in capsys.readouterr().err


def test_errors_are_shown_with_their_tracebacks(
    command: Command, server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    error = {"kind": "user", "type": "ValueError", "message": "bad", "traceback": "line 3\n"}
    item = {"item": "i", "label": "kind=a", "state": "skipped", "attempts": 2, **error}
    server.give("/v1/jobs/errors", {"errors": [item]})
    assert command("errors", "j") == 0
    shown = capsys.readouterr().out
    assert shown == "kind=a: skipped after 2 tries: ValueError: bad\nline 3\n"


def test_status_list_cancel_and_drop(
    command: Command, server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    server.give("/v1/materialized_view/v/describe", {"kind": "query"})
    server.give("/v1/jobs/describe", DONE)
    server.give("/v1/namespace/%24/materialized_view/list", {"views": ["a", "b"]})
    server.give("/v1/jobs/cancel", {})
    server.give("/v1/materialized_view/v/drop", {})
    assert command("status", "v") == 0
    assert json.loads(capsys.readouterr().out) == {"kind": "query"}
    assert command("status", "--job", "j") == 0
    assert json.loads(capsys.readouterr().out) == DONE
    assert command("list") == 0
    assert capsys.readouterr().out == "a\nb\n"
    assert command("cancel", "j") == 0
    assert server.sent("/v1/jobs/cancel") == {"job_id": "j"}
    assert command("drop", "v") == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("create", "v", "--source", "docs", "--num-gpus", "1"), "--num-gpus is for views with"),
        (("create", "v", "nowhere.py:f", "--source", "docs"), "there is no file nowhere.py"),
        (("status", "v", "--watch"), "--watch is for a job"),
    ],
)
def test_wrong_use_ends_with_2(
    command: Command, words: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(*words) == 2
    assert message in capsys.readouterr().err


def test_code_that_is_not_there_or_not_decorated_is_refused(code: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"has no 'plain' with the decorator .* it has Words"):
        load_code(f"{code}:plain")
    with pytest.raises(InvalidInput, match=r"is not FILE\.py:NAME"):
        load_code(code)
    broken = tmp_path / "broken_file_of_a_test.py"
    broken.write_text("1 / 0")
    with pytest.raises(InvalidInput, match="cannot be run: ZeroDivisionError"):
        load_code(f"{broken}:f")


@pytest.mark.parametrize(
    ("text", "size"), [("12", 12), ("4GiB", 4 << 30), ("1.5k", 1536), ("512 MB", 512 << 20)]
)
def test_sizes_are_read_with_units(text: str, size: Any) -> None:
    assert parse_size(text) == size
    with pytest.raises(argparse.ArgumentTypeError, match="write bytes"):
        parse_size("many")
