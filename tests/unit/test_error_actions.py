"""What becomes of an item that failed, by its view's policy."""

from typing import Any

import pytest

from udtf.error_actions import Decision, decide, wait_s
from udtf.error_policy import Backoff, ErrorAction, check_error_policy
from udtf.on_error import Fail, Retry, Skip, policy_json, retry_all, retry_transient, skip_on_error
from udtf.refresh_model import ItemError

FAIL, SKIP = Decision(ErrorAction.FAIL), Decision(ErrorAction.SKIP)
TIMEOUT = ("TimeoutError", "OSError", "Exception", "BaseException")


def policy(*matchers: Any, default: str = "fail") -> str:
    value = {"default": default, "matchers": [matcher.to_json() for matcher in matchers]}
    return check_error_policy(value, "error_handling")


def named(on_error: Any) -> str:
    return check_error_policy(policy_json(on_error), "error_handling")


def error(type_: str, message: str = "", kind: str = "user") -> ItemError:
    return ItemError(kind, type_, message)


def test_everything_fails_without_a_policy() -> None:
    assert decide(None, error("ValueError"), ("ValueError", "Exception"), 1) == FAIL


def test_first_matcher_decides_and_the_default_the_rest() -> None:
    chosen = policy(Fail(KeyError), Skip(LookupError, match="row \\d+"), default="skip")
    assert decide(chosen, error("KeyError", "row 7"), ("KeyError", "LookupError"), 1) == FAIL
    assert decide(chosen, error("IndexError", "row 7"), ("IndexError", "LookupError"), 1) == SKIP
    strict = policy(Skip(LookupError, match="row \\d+"))
    assert decide(strict, error("IndexError", "row x"), ("IndexError", "LookupError"), 1) == FAIL
    assert decide(strict, error("ValueError", "row 7"), ("ValueError", "Exception"), 1) == FAIL


def test_class_is_matched_by_its_own_and_its_inherited_names() -> None:
    bases = ("Odd", "my.errors.Odd", "ValueError", "Exception", "BaseException")
    for name in ("Odd", "my.errors.Odd", "ValueError", "Exception"):
        assert decide(policy(Skip(name)), error("Odd"), bases, 1) == SKIP
    for name in ("my.Odd", "OddError", "errors.Odd"):
        assert decide(policy(Skip(name)), error("Odd"), bases, 1) == FAIL
    assert decide(policy(Skip("SchemaError")), error("SchemaError", kind="schema"), (), 1) == SKIP


def test_retry_ends_with_its_attempts() -> None:
    chosen = policy(Retry(TimeoutError, max_attempts=3, backoff="linear"))
    found = [decide(chosen, error("TimeoutError"), TIMEOUT, attempts) for attempts in (1, 2, 3, 4)]
    assert found == [
        Decision(ErrorAction.RETRY, 1.0),
        Decision(ErrorAction.RETRY, 2.0),
        FAIL,
        FAIL,
    ]
    once = policy(Retry(TimeoutError, max_attempts=1), Skip(TimeoutError))
    assert decide(once, error("TimeoutError"), TIMEOUT, 1) == FAIL


def test_policies_by_name_mean_what_they_say() -> None:
    timeout = error("TimeoutError", kind="timeout")
    assert decide(named(retry_transient()), timeout, TIMEOUT, 1).action is ErrorAction.RETRY
    assert decide(named(retry_transient()), error("ValueError"), ("ValueError",), 1) == FAIL
    crash = error("ProcessCrashed", kind="crash")
    bases = ("ProcessCrashed", "Exception", "BaseException")
    assert decide(named(retry_all()), crash, bases, 1).action is ErrorAction.RETRY
    assert decide(named(skip_on_error()), crash, bases, 1) == SKIP


def test_what_is_not_the_codes_fault_is_never_skipped() -> None:
    lost = error("ConnectionError", kind="system")
    bases = ("ConnectionError", "OSError", "Exception")
    assert decide(named(skip_on_error()), lost, bases, 1) == FAIL
    assert decide(policy(Skip(OSError)), lost, bases, 1) == FAIL
    assert decide(named(retry_transient()), lost, bases, 1).action is ErrorAction.RETRY


@pytest.mark.parametrize("attempts", [1, 2, 3, 7, 100])
def test_waits_grow_to_a_minute(attempts: int) -> None:
    assert wait_s(Backoff.FIXED, attempts) == 1.0
    assert wait_s(Backoff.LINEAR, attempts) == min(attempts, 60)
    waits = [wait_s(Backoff.EXPONENTIAL, attempts) for _ in range(50)]
    least = min(60, 2 ** (attempts - 1))
    assert all(least <= wait <= min(60, least + 1) for wait in waits)
    assert attempts > 6 or len(set(waits)) > 1
