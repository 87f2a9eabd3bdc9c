"""The jobs of views as a client sees them: what a server says of one, and a handle to wait on."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cluster.errors import InternalError, ServiceUnavailable
from udtf.view_http import ViewHttp

_OVER = frozenset({"DONE", "FAILED", "CANCELLED"})
# Refreshes take seconds to hours: short ones are noticed at once, long ones cost few requests.
_POLL_FIRST_S = 0.1
_POLL_MOST_S = 1.0
_POLL_GROWTH = 1.5


@dataclass(frozen=True, slots=True)
class JobStatus:
    """A job at one moment. `metrics` are counts, with a total where it is known.

    `result` says what a finished refresh did (mode, rows_written, source_version, version and
    more), `failure` why one failed (phase, message, retryable, and the item that failed).
    """

    job_id: str
    state: str
    phase: str = ""
    metrics: Mapping[str, tuple[int, int | None]] = field(default_factory=dict)
    waiting_for: str | None = None
    result: Mapping[str, Any] | None = None
    failure: Mapping[str, Any] | None = None
    answer: Mapping[str, Any] = field(default_factory=dict)

    @staticmethod
    def of(answer: Mapping[str, Any]) -> "JobStatus":
        """Read the answer of a server, which may be newer and say more."""
        metrics = {
            str(metric["name"]): (int(metric["count"]), metric.get("total"))
            for metric in answer.get("metrics") or ()
        }
        return JobStatus(
            job_id=str(answer.get("job_id", "")),
            state=str(answer.get("job_state", "")),
            phase=str(answer.get("phase") or ""),
            metrics=metrics,
            waiting_for=answer.get("waiting_for"),
            result=answer.get("result"),
            failure=answer.get("failure"),
            answer=dict(answer),
        )

    @property
    def is_over(self) -> bool:
        """Whether nothing will change any more."""
        return self.state in _OVER

    def count(self, name: str) -> int:
        """A metric; 0 where the server gives none."""
        return self.metrics.get(name, (0, None))[0]

    def total(self, name: str) -> int | None:
        """What a metric will count up to, if that is known."""
        return self.metrics.get(name, (0, None))[1]


class RefreshFailed(InternalError):
    """A refresh failed or was cancelled; the view has the rows that it had before."""

    def __init__(self, message: str, status: JobStatus | None = None) -> None:
        super().__init__(message)
        self.status = status


class RefreshJob:
    """One refresh of a view, running or over."""

    def __init__(self, http: ViewHttp, job_id: str) -> None:
        self._http = http
        self.job_id = job_id

    def __repr__(self) -> str:
        return f"RefreshJob({self.job_id!r})"

    def status(self) -> JobStatus:
        """How far it is."""
        return JobStatus.of(self._ask("describe"))

    def wait(self, progress: bool = False, timeout_s: float | None = None) -> JobStatus:
        """Wait until it is over; `progress` shows a bar on the standard error, or lines where that
        is no terminal.

        Who stops waiting (Ctrl-C, `timeout_s`) does not stop the job; `cancel()` does.

        Raises:
            RefreshFailed: it failed or was cancelled.
            ServiceUnavailable: `timeout_s` passed first.
        """
        from udtf.progress import progress_on

        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        poll_s = _POLL_FIRST_S
        with progress_on(progress) as shown:
            while not (status := self.status()).is_over:
                shown.show(status)
                if deadline is not None and time.monotonic() + poll_s > deadline:
                    raise ServiceUnavailable(
                        f"job {self.job_id} is not over after {timeout_s} s ({status.phase});"
                        " it goes on"
                    )
                time.sleep(poll_s)
                poll_s = min(poll_s * _POLL_GROWTH, _POLL_MOST_S)
            shown.show(status)
        if status.state != "DONE":
            raise RefreshFailed(_ending(status), status)
        return status

    def errors(self) -> list[dict[str, Any]]:
        """The items that failed or were skipped, each with what happened to it."""
        found: list[dict[str, Any]] = []
        token: str | None = None
        while True:
            page = self._ask("errors", **({} if token is None else {"page_token": token}))
            found += page.get("errors") or []
            token = page.get("page_token")
            if not token:
                return found

    def cancel(self) -> None:
        """Ask it to end; the view keeps the rows it has."""
        self._ask("cancel")

    def pause(self) -> None:
        """Stop now; items that are done are kept, those being done are done again."""
        self._ask("pause")

    def resume(self) -> None:
        """Go on after a pause."""
        self._ask("resume")

    def _ask(self, operation: str, **fields: Any) -> dict[str, Any]:
        body = {"job_id": self.job_id, **fields}
        return self._http.ask("POST", f"jobs/{operation}", body)


def _ending(status: JobStatus) -> str:
    if status.state == "CANCELLED":
        return f"job {status.job_id} was cancelled"
    failure = status.failure or {}
    where = f" in phase {failure['phase']}" if failure.get("phase") else ""
    item = f" (item {failure['item']})" if failure.get("item") else ""
    reason = failure.get("message") or "the server gives no reason"
    return f"job {status.job_id} failed{where}{item}: {reason}"
