"""A clock that stands still until a test moves it."""

import time


class ManualClock:
    """Satisfies cluster.clock.Clock; starts at the real second, so tokens' times make sense."""

    def __init__(self) -> None:
        self.now_s = float(int(time.time()))

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self.now_s += seconds

    def monotonic(self) -> float:
        """Seconds since 1970 here too."""
        return self.now_s

    def time(self) -> float:
        """Seconds since 1970."""
        return self.now_s
