"""A Ray for tests that need one: started by the test run, on loopback, ended with it."""

import contextlib
from collections.abc import Iterator

from cluster import runtime
from cluster.settings import Settings


@contextlib.contextmanager
def own_ray() -> Iterator[None]:
    """A Ray that no other test run sees."""
    with runtime.ray_cluster(Settings()):
        yield


def end_owners(settings: Settings) -> None:
    """End the actors of one test's deployment."""
    runtime.end_actors(settings.ray.namespace)
