"""What `destrier serve` and `destrier routes` decide without starting anything."""

import socket
from pathlib import Path

import pytest

from serve_app.__main__ import main
from serve_app.commands.routes import route_lines


def test_port_that_is_taken_ends_the_start_with_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert main(["serve", "--root", str(tmp_path / "root"), "--port", str(port)]) == 1
    said = capsys.readouterr()
    assert f"cannot listen on 127.0.0.1:{port}" in said.err
    assert said.out == ""
    assert not (tmp_path / "root").exists()


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1"])
def test_host_that_others_reach_is_refused_when_everyone_is_administrator(
    host: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DESTRIER_AUTH_MODE", "off")
    assert main(["serve", "--host", host, "--port", "0"]) == 2
    assert "turn authentication on" in capsys.readouterr().err


def test_wrong_setting_is_named_with_its_source(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--port", "70000"]) == 2
    assert "http.port (command line)" in capsys.readouterr().err


def test_routes_name_operation_and_function() -> None:
    lines = [line.split() for line in route_lines()]
    count = ["POST", "/v1/table/{id}/count_rows", "CountTableRows"]
    assert [*count, "serve_app.routers.rows:count_table_rows"] in lines
    operations = [line[2] for line in lines]
    assert len(set(operations)) == len(operations)
