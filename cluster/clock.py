"""Time as an argument, so that tests decide what time it is."""

import time
from typing import Protocol


class Clock(Protocol):
    """Seconds, twice: since some start (never goes back) and since 1970."""

    def monotonic(self) -> float:
        """Seconds since an arbitrary start."""
        ...

    def time(self) -> float:
        """Seconds since 1970."""
        ...


class SystemClock:
    """The machine's clock."""

    def monotonic(self) -> float:
        """Seconds since an arbitrary start."""
        return time.monotonic()

    def time(self) -> float:
        """Seconds since 1970."""
        return time.time()
