"""Counts and latencies of requests, in Prometheus' text format.

Each replica counts for itself and labels its series with its name: on a shared port a scrape
reaches one replica, and sums over `replica` stay right.
"""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"

# Seconds. A cached count takes under a millisecond, a distributed plan minutes.
_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)


class RequestMetrics:
    """Counters of one replica's gateway."""

    def __init__(self, replica: str) -> None:
        self._replica = replica
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "destrier_requests",
            "Requests answered.",
            ("replica", "operation", "status"),
            registry=self._registry,
        )
        self._seconds = Histogram(
            "destrier_request_seconds",
            "Time from a request's head to the end of its answer.",
            ("replica", "operation"),
            buckets=_BUCKETS,
            registry=self._registry,
        )
        # Label look-ups cost more than the observations; operations and statuses are few.
        self._known: dict[tuple[str, int], tuple[Counter, Histogram]] = {}

    def gauge(self, name: str, help_text: str, value: Callable[[], float]) -> None:
        """Publish `value()`, read at each scrape."""
        gauge = Gauge(f"destrier_{name}", help_text, ("replica",), registry=self._registry)
        gauge.labels(self._replica).set_function(value)

    def observe(self, operation: str, status: int, seconds: float) -> None:
        """Count one answered request."""
        series = self._known.get((operation, status))
        if series is None:
            series = (
                self._requests.labels(self._replica, operation, str(status)),
                self._seconds.labels(self._replica, operation),
            )
            self._known[operation, status] = series
        series[0].inc()
        series[1].observe(seconds)

    def expose(self) -> bytes:
        """The text that a scrape gets."""
        return generate_latest(self._registry)
