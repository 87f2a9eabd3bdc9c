"""Faults are tried on owners in this process, and on real processes where those must die."""

from pathlib import Path

import pytest

from cluster.settings import Settings
from tests.contract.domain import make_settings
from tests.processes import OwnProcesses


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return make_settings(tmp_path / "root")


@pytest.fixture
def own() -> OwnProcesses:
    return OwnProcesses()
