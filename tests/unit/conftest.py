"""Unit tests run without Ray: what is tested here is plain code."""

import pytest
import ray


@pytest.fixture(autouse=True)
def _no_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_args: object, **_kwargs: object) -> None:
        raise AssertionError("a unit test started Ray; test the plain class, or move the test")

    monkeypatch.setattr(ray, "init", refuse)
