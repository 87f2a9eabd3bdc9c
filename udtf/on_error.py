"""What authors write to say what becomes of a partition whose code raises.

`on_error=retry_transient()`, or a list of `Retry`, `Skip` and `Fail`, of which the first that
matches the exception decides; what none matches fails the refresh. The server reads the same as
JSON, see error_policy.py.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from cluster.errors import InvalidInput
from udtf.error_policy import ATTEMPTS_DEFAULT, Backoff, ErrorAction, check_error_policy

ExceptionName: TypeAlias = type[BaseException] | str

_FIELD = "on_error"
_TRANSIENT: tuple[ExceptionName, ...] = (ConnectionError, TimeoutError, OSError)


class Matcher:
    """Which exceptions are meant, by class or by a class's name, and what to do then.

    A class stands for those that inherit from it too; `match` is a regular expression that must be
    found in the message.
    """

    action: ErrorAction

    def __init__(self, *exceptions: ExceptionName, match: str | None = None) -> None:
        if not exceptions:
            raise InvalidInput(
                f"{type(self).__name__} names no exception; write for example"
                f" {type(self).__name__}(ValueError)"
            )
        self._exceptions = [_name(exception) for exception in exceptions]
        self._match = match

    def to_json(self) -> dict[str, Any]:
        """As a request spells it."""
        matcher = {"action": self.action.value, "exceptions": self._exceptions}
        return matcher if self._match is None else {**matcher, "match": self._match}


class Retry(Matcher):
    """Run the partition again, after a wait that grows with `backoff`; out of attempts it fails."""

    action = ErrorAction.RETRY

    def __init__(
        self,
        *exceptions: ExceptionName,
        max_attempts: int = ATTEMPTS_DEFAULT,
        backoff: str = Backoff.EXPONENTIAL,
        match: str | None = None,
    ) -> None:
        super().__init__(*exceptions, match=match)
        self._max_attempts = max_attempts
        self._backoff = backoff

    def to_json(self) -> dict[str, Any]:
        """As a request spells it."""
        retries = {"max_attempts": self._max_attempts, "backoff": str(self._backoff)}
        return super().to_json() | retries


class Skip(Matcher):
    """Leave the partition out of the view, and list it among the job's errors."""

    action = ErrorAction.SKIP


class Fail(Matcher):
    """End the refresh; the view keeps the rows it had."""

    action = ErrorAction.FAIL


@dataclass(frozen=True, slots=True)
class ErrorPolicy:
    """Matchers in their order, and what becomes of the rest."""

    matchers: tuple[Matcher, ...] = ()
    default: ErrorAction = ErrorAction.FAIL

    def to_json(self) -> dict[str, Any]:
        """As a request spells it.

        Raises:
            InvalidInput: a server would refuse it.
        """
        matchers = [matcher.to_json() for matcher in self.matchers]
        policy = {"default": self.default.value, "matchers": matchers}
        check_error_policy(policy, _FIELD)
        return policy


OnError: TypeAlias = ErrorPolicy | Sequence[Matcher]


def fail_fast() -> ErrorPolicy:
    """Any exception ends the refresh; what happens without on_error too."""
    return ErrorPolicy()


def skip_on_error() -> ErrorPolicy:
    """Partitions whose code raises are left out and listed among the job's errors."""
    return ErrorPolicy(default=ErrorAction.SKIP)


def retry_transient(
    max_attempts: int = ATTEMPTS_DEFAULT, backoff: str = Backoff.EXPONENTIAL
) -> ErrorPolicy:
    """Errors of networks and of the operating system are retried; others end the refresh."""
    return ErrorPolicy((Retry(*_TRANSIENT, max_attempts=max_attempts, backoff=backoff),))


def retry_all(
    max_attempts: int = ATTEMPTS_DEFAULT, backoff: str = Backoff.EXPONENTIAL
) -> ErrorPolicy:
    """Every exception is retried."""
    return ErrorPolicy((Retry(Exception, max_attempts=max_attempts, backoff=backoff),))


def policy_json(on_error: OnError) -> dict[str, Any]:
    """What an author gave as a request spells it.

    Raises:
        InvalidInput: it is no policy, or one that a server would refuse.
    """
    if isinstance(on_error, ErrorPolicy):
        return on_error.to_json()
    if not isinstance(on_error, Sequence) or isinstance(on_error, str):
        raise InvalidInput(f"{_FIELD} must be a policy or a list of Retry, Skip and Fail")
    for matcher in on_error:
        if not isinstance(matcher, Matcher):
            raise InvalidInput(f"{_FIELD} holds {matcher!r}; use Retry, Skip and Fail")
    return ErrorPolicy(tuple(on_error)).to_json()


def _name(exception: ExceptionName) -> str:
    if isinstance(exception, str):
        return exception
    if isinstance(exception, type) and issubclass(exception, BaseException):
        return exception.__name__
    raise InvalidInput(f"{_FIELD}: {exception!r} is no exception class and no name of one")
