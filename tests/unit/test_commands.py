"""The commands `destrier key` and `destrier settings`, as their parsers run them."""

import argparse
import os
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from cluster.errors import InvalidInput
from cluster.settings import Settings, StorageSettings
from serve_app.commands import key as key_command
from serve_app.commands import settings as settings_command
from serve_app.commands.key import parse_duration
from serve_app.keys import key_store

Command = Callable[..., int]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "root"


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> Command:
    for variable in [name for name in os.environ if name.startswith("DESTRIER_")]:
        monkeypatch.delenv(variable)

    def run(*words: str) -> int:
        parser = argparse.ArgumentParser("destrier")
        subparsers = parser.add_subparsers(required=True)
        key_command.add_parser(subparsers)
        settings_command.add_parser(subparsers)
        args = parser.parse_args(words)
        exit_code: int = args.run(args)
        return exit_code

    return run


def stored_keys(root: Path) -> list[str]:
    store = key_store(Settings(storage=StorageSettings(root=str(root))))
    return [key.name for key in store.list_keys()]


def test_create_prints_the_key_alone_on_standard_output(
    command: Command, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--name", "bob", "--grant", "read+list:sales/*", "--grant", "write:sales/raw$*")
    assert command("key", "create", *words, "--expires-in", "30d", "--root", str(root)) == 0
    output = capsys.readouterr()
    assert output.out.startswith("dk_")
    assert output.out.count("\n") == 1
    assert output.out.strip() not in output.err
    (key,) = key_store(Settings(storage=StorageSettings(root=str(root)))).list_keys()
    assert [str(grant) for grant in key.grants] == ["list+read:sales/*", "write:sales/raw$*"]
    assert key.expires_at == key.created_at + timedelta(days=30)


def test_list_shows_every_key_and_no_secret(
    command: Command, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command("key", "create", "--name", "bob", "--grant", "read:sales/*", "--root", str(root))
    command("key", "create", "--name", "ann", "--admin", "--root", str(root))
    secrets = [line.split("_", 2)[2] for line in capsys.readouterr().out.splitlines()]
    assert command("key", "list", "--root", str(root)) == 0
    shown = capsys.readouterr().out
    lines = shown.splitlines()
    assert lines[0].split() == ["ID", "NAME", "CREATED", "EXPIRES", "GRANTS"]
    assert len(lines) == 3
    assert "bob" in lines[1] and "read:sales/*" in lines[1] and "never" in lines[1]
    assert "ann" in lines[2] and "administrator" in lines[2]
    assert not any(secret in shown for secret in secrets)


def test_list_of_an_empty_root_is_an_empty_table(
    command: Command, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command("key", "list", "--root", str(root)) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1
    assert not root.exists()


@pytest.mark.parametrize("prefix", ["", "dk_"])
def test_revoke_deletes_the_key_once(
    command: Command, root: Path, capsys: pytest.CaptureFixture[str], prefix: str
) -> None:
    command("key", "create", "--name", "bob", "--admin", "--root", str(root))
    key_id = prefix + capsys.readouterr().out.split("_")[1]
    assert command("key", "revoke", key_id, "--root", str(root)) == 0
    assert stored_keys(root) == []
    assert command("key", "revoke", key_id, "--root", str(root)) == 1
    assert "no key" in capsys.readouterr().err


def test_revoke_of_a_whole_key_does_not_print_it(
    command: Command, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command("key", "create", "--name", "bob", "--admin", "--root", str(root))
    key = capsys.readouterr().out.strip()
    assert command("key", "revoke", key, "--root", str(root)) == 1
    output = capsys.readouterr()
    assert key.split("_", 2)[2] not in output.out + output.err
    assert stored_keys(root) == ["bob"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--name", "bob", "--grant", "reed:*"), "'reed'"),
        (("--name", "bob", "--grant", "read"), "':'"),
        (("--name", "bob", "--grant", "read:sales"), "sales/*"),
        (("--name", "", "--admin"), "name"),
        (("--name", "bob", "--admin", "--expires-in", "soon"), "30d"),
        (("--name", "bob", "--admin", "--expires-in", "0d"), "future"),
        (("--name", "bob", "--admin", "--expires-in", "99999999d"), "9999"),
    ],
)
def test_a_key_that_makes_no_sense_is_not_made(
    command: Command,
    root: Path,
    capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...],
    says: str,
) -> None:
    assert command("key", "create", *words, "--root", str(root)) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert says in output.err
    assert not root.exists()


@pytest.mark.parametrize(
    "words",
    [
        ("key",),
        ("key", "create"),
        ("key", "create", "--name", "bob"),
        ("key", "create", "--admin"),
        ("key", "create", "--name", "bob", "--admin", "--grant", "read:*"),
        ("key", "revoke"),
        ("settings", "--section", "nothing"),
    ],
)
def test_missing_or_contradicting_arguments_end_with_the_usage(
    command: Command, words: tuple[str, ...]
) -> None:
    with pytest.raises(SystemExit) as ending:
        command(*words)
    assert ending.value.code == 2


def test_the_root_comes_from_the_file_when_the_command_line_gives_none(
    command: Command, root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "destrier.toml"
    config.write_text(f"[storage]\nroot = '{root}'\n")
    assert command("key", "create", "--name", "bob", "--admin", "--config", str(config)) == 0
    assert stored_keys(root) == ["bob"]


def test_storage_that_fails_ends_with_one(
    command: Command, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root.write_text("a file where the folder should be")
    assert command("key", "create", "--name", "bob", "--admin", "--root", str(root)) == 1
    assert "storage of API keys" in capsys.readouterr().err


def test_settings_that_are_wrong_end_with_two(
    command: Command, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "destrier.toml"
    config.write_text("[http]\nprot = 1\n")
    assert command("settings", "--config", str(config)) == 2
    assert command("key", "list", "--config", str(config)) == 2
    assert capsys.readouterr().err.count("http.prot") == 2


def test_settings_shows_the_file_and_the_environment(
    command: Command,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    config = tmp_path / "destrier.toml"
    config.write_text("[http]\nreplicas = 3\n")
    monkeypatch.setenv("DESTRIER_PORT", "99")
    assert command("settings", "--config", str(config), "--section", "http") == 0
    shown = capsys.readouterr().out
    assert f"replicas = 3  # {config}" in shown
    assert "port = 99  # DESTRIER_PORT" in shown
    assert "[auth]" not in shown


def test_the_reference_reads_no_file(
    command: Command, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command("settings", "--markdown", "--section", "http") == 0
    assert "| `port` |" in capsys.readouterr().out
    assert command("settings", "--markdown", "--config", str(tmp_path / "x.toml")) == 2


@pytest.mark.parametrize(
    ("text", "duration"),
    [
        ("90s", timedelta(seconds=90)),
        ("5m", timedelta(minutes=5)),
        ("12h", timedelta(hours=12)),
        ("30d", timedelta(days=30)),
        ("52w", timedelta(weeks=52)),
    ],
)
def test_a_time_is_a_number_and_a_unit(text: str, duration: timedelta) -> None:
    assert parse_duration(text) == duration


@pytest.mark.parametrize("text", ["", "30", "d", "-1d", "1.5h", "30 d", "1y", "30D", "999999999w"])
def test_another_time_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="time"):
        parse_duration(text)


def test_the_commands_start_without_ray_lance_or_daft() -> None:
    code = (
        "import sys, serve_app.commands.key, serve_app.commands.settings;"
        "print(sorted({'ray', 'lance', 'daft', 'fastapi'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
