"""What becomes of an item whose code has failed: evaluates the view's error policy.

A policy is about the code. What is not its fault (`system`: storage, or an environment that lacks
something) may be retried if a matcher says so, and is never skipped: rows would be missing that
the code can make.
"""

import json
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass

from udtf.error_policy import Backoff, ErrorAction
from udtf.refresh_model import ItemError

# Between two attempts at an item.
WAIT_S_MAX = 60.0
_JITTER_S = 1.0


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do, and for RETRY how long to wait before."""

    action: ErrorAction
    wait_s: float = 0.0


def decide(policy: str | None, error: ItemError, bases: Sequence[str], attempts: int) -> Decision:
    """What becomes of an item that has failed `attempts` times, now with `error`.

    `policy` is the canonical JSON of error_policy.py; without one everything fails. `bases` are the
    names of the error's class and of those that it inherits from.
    """
    if policy is None:
        return Decision(ErrorAction.FAIL)
    rules = json.loads(policy)
    names = {error.type, *bases}
    action = ErrorAction(rules["default"])
    for matcher in rules["matchers"]:
        if names.isdisjoint(matcher["exceptions"]):
            continue
        if "match" in matcher and re.search(matcher["match"], error.message) is None:
            continue
        action = ErrorAction(matcher["action"])
        if action is ErrorAction.RETRY:
            if attempts >= matcher["max_attempts"]:
                return Decision(ErrorAction.FAIL)
            return Decision(action, wait_s(Backoff(matcher["backoff"]), attempts))
        break
    if action is ErrorAction.SKIP and error.kind == "system":
        return Decision(ErrorAction.FAIL)
    return Decision(action)


def wait_s(backoff: Backoff, attempts: int) -> float:
    """Seconds to wait after `attempts` failed attempts, a minute at most.

    The exponential wait has up to a second of chance, so that workers that failed together do not
    come back together.
    """
    if backoff is Backoff.FIXED:
        return 1.0
    if backoff is Backoff.LINEAR:
        return min(float(attempts), WAIT_S_MAX)
    # The exponent is bounded before it is one that no float can hold.
    wait = 2.0 ** min(attempts - 1, 16) + random.uniform(0.0, _JITTER_S)  # noqa: S311 - no secret
    return min(wait, WAIT_S_MAX)
