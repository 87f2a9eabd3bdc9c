"""Faults are tried on owners in this process, and on real actors where processes must die."""

import pytest

from tests.contract.conftest import ray_cluster, settings

__all__ = ["ray_cluster", "settings"]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
