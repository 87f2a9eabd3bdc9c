"""What is decided before Ray starts: the environment, the temporary folder, our packages."""

import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster import distribution, runtime
from cluster.errors import Unsupported
from cluster.settings import Settings

NICENESS = "RAY_worker_niceness"
LOCAL = Settings()
JOINED = Settings(ray={"address": "ray.example:6379"})


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Changes of the environment and the temporary folder end with the test."""
    before = dict(os.environ)
    for name in [name for name in before if name.startswith(("RAY_", "LANCE_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(runtime.tempfile, "gettempdir", lambda: "/tmp")
    yield
    for name in set(os.environ) - set(before):
        del os.environ[name]


def test_ray_of_this_machine_has_a_secret_of_its_own_and_loopback_alone() -> None:
    runtime.prepare_environment(LOCAL)
    assert os.environ["RAY_AUTH_MODE"] == "token"
    assert len(os.environ["RAY_AUTH_TOKEN"]) == 64
    assert os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] == "0"
    assert os.environ[NICENESS] == "0"
    assert os.environ["RAY_USAGE_STATS_ENABLED"] == "0"


def test_joined_cluster_keeps_its_own_authentication() -> None:
    runtime.prepare_environment(JOINED)
    assert "RAY_AUTH_TOKEN" not in os.environ
    assert "RAY_AUTH_MODE" not in os.environ
    assert NICENESS not in os.environ
    assert os.environ["LANCE_INCLUDE_VECTOR_CENTROIDS"] == "false"


def test_what_the_operator_has_set_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "1")
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", "/etc/token")
    runtime.prepare_environment(LOCAL)
    assert os.environ["RAY_USAGE_STATS_ENABLED"] == "1"
    assert "RAY_AUTH_TOKEN" not in os.environ


def test_haproxy_is_chosen_when_serve_listens_and_only_then() -> None:
    runtime.prepare_environment(LOCAL)
    assert "RAY_SERVE_ENABLE_HA_PROXY" not in os.environ
    runtime.prepare_environment(Settings(http={"ingress": "serve"}))
    assert os.environ["RAY_SERVE_ENABLE_HA_PROXY"] == "1"


def test_haproxy_gets_ports_of_its_own_unless_the_operator_chose() -> None:
    settings = Settings(http={"ingress": "serve"})
    os.environ["RAY_SERVE_HAPROXY_STATS_PORT"] = "18404"
    with runtime.temporary_folder(settings) as folder:
        assert os.environ["RAY_SERVE_HAPROXY_SOCKET_PATH"] == f"{folder}/a"
        assert int(os.environ["RAY_SERVE_HAPROXY_METRICS_PORT"]) not in (0, 9101)
        assert os.environ["RAY_SERVE_HAPROXY_STATS_PORT"] == "18404"


def test_temporary_folder_is_private_short_and_removed() -> None:
    with runtime.temporary_folder(LOCAL) as folder:
        assert folder is not None
        assert folder.stat().st_mode & 0o777 == 0o700
        assert len(str(folder)) <= runtime.FOLDER_CHARACTERS_MAX
    assert not folder.exists()


def test_temporary_folder_is_short_when_the_usual_place_is_not(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    deep = tmp_path / ("d" * 60)
    monkeypatch.setattr(runtime.tempfile, "gettempdir", lambda: str(deep))
    with runtime.temporary_folder(LOCAL) as folder:
        assert folder is not None
        assert folder.parent == Path("/tmp")


def test_joined_cluster_needs_no_folder() -> None:
    with runtime.temporary_folder(JOINED) as folder:
        assert folder is None


def test_folder_of_a_killed_process_is_removed_by_the_next_and_a_live_one_is_kept() -> None:
    script = (
        "import os, tempfile\n"
        "from cluster import runtime\n"
        "from cluster.settings import Settings\n"
        "with runtime.temporary_folder(Settings()) as folder:\n"
        "    print(folder, flush=True)\n"
        "    os._exit(9)\n"
    )
    root = Path(runtime.__file__).parent.parent
    environment = {**os.environ, "TMPDIR": "/tmp", "PYTHONPATH": str(root)}
    killed = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=environment
    )
    left = Path(killed.stdout.strip())
    assert left.exists(), killed.stderr
    with runtime.temporary_folder(LOCAL) as live:
        assert not left.exists()
        with runtime.temporary_folder(LOCAL):
            assert live is not None
            assert live.exists()
            with (live / "lock").open("r+") as lock, pytest.raises(BlockingIOError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_packages_of_this_distribution_alone_are_accepted() -> None:
    distribution.check_packages({})
    distribution.check_packages({name: ["destrier"] for name in distribution.PACKAGES})
    with pytest.raises(Unsupported, match=r"'actors' is also installed by actors-framework"):
        distribution.check_packages({"actors": ["destrier", "actors-framework"]})


def test_packages_here_are_ours() -> None:
    distribution.check_packages()
