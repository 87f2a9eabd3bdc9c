"""The main of a driver: refreshes one view, once, and tells its owner how it gets on.

    python -m actors.view_driver <descriptor>

A line of standard input is the task, a later one may say `{"type": "cancel"}`. One before it may
say `{"type": "prepare"}` with what is known of the task: get ready for it. Messages go to the
descriptor, one JSON object a line. When standard input closes, the owner is gone: this process ends
at once, and its guard ends everything it started. It never loads the code of a view.
"""

import contextlib
import json
import logging
import os
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any, BinaryIO

from actors.process_guard import stand_guard
from actors.stored_json import from_json, to_json
from cluster.errors import (
    DestrierError,
    InternalError,
    OutcomeUnknown,
    ServiceUnavailable,
    Throttling,
    Unsupported,
)
from cluster.settings import Settings
from udtf.refresh_model import (
    ItemStatus,
    RefreshMode,
    RefreshOptions,
    RefreshSummary,
    Runner,
    SourceLocation,
)

HEARTBEAT_S = 2.0
# What a driver gets ready with, before there is a task.
PREPARED = ("runner", "ray_address", "ray_namespace")
_PASSING = (ServiceUnavailable, OutcomeUnknown, Throttling, InternalError)

logger = logging.getLogger(__name__)


class Lines:
    """Messages to the owner, from any thread."""

    def __init__(self, descriptor: int) -> None:
        self._stream: BinaryIO = os.fdopen(descriptor, "wb", buffering=0)
        self._lock = threading.Lock()

    def send(self, kind: str, **content: Any) -> None:
        """Write one message; without an owner this process has no purpose."""
        line = json.dumps({"type": kind, **to_json(content)}).encode() + b"\n"
        with self._lock:
            try:
                while line:
                    line = line[self._stream.write(line) or 0 :]
            except OSError:
                end_now()


class Report:
    """Tells the owner (refresh.Reporter)."""

    def __init__(self, lines: Lines, cancelled: threading.Event) -> None:
        self._lines = lines
        self._cancelled = cancelled
        self.phase_now = "environment"
        self.summary: RefreshSummary | None = None

    def phase(self, phase: str) -> None:
        """A phase has begun."""
        self.phase_now = phase
        self._lines.send("phase", phase=phase)

    def planned(self, summary: RefreshSummary) -> None:
        """What will be done."""
        self.summary = summary
        if summary.mode is not RefreshMode.NO_OP:
            self._lines.send("planned", **to_json(summary))

    def item(self, status: ItemStatus) -> None:
        """An item has ended."""
        self._lines.send("item", **status.to_json())

    def workers(self, active: int, pending: int, waiting_for: str | None) -> None:
        """Who works."""
        self._lines.send("workers", active=active, pending=pending, waiting_for=waiting_for)

    def is_cancelled(self) -> bool:
        """Whether the owner said so."""
        return self._cancelled.is_set()


def end_now() -> None:
    """End this process without ado; its guard ends everything it started."""
    os._exit(1)


def main(arguments: list[str]) -> int:
    """Run a driver; returns its exit code."""
    lines = Lines(int(arguments[0]))
    # What libraries print must not meet the messages, nor a closed pipe.
    os.dup2(2, 1)
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(name)s: %(message)s")
    owner = os.fdopen(os.dup(0), "rb")
    # Nothing that is started here may wait for what the owner says.
    with open(os.devnull) as nothing:  # noqa: PTH123 - a descriptor is wanted, not a path
        os.dup2(nothing.fileno(), 0)
    task = json.loads(owner.readline() or b"null")
    prepared = None
    if task is not None and task.get("type") == "prepare":
        prepared = Prepared(task)
        task = json.loads(owner.readline() or b"null")
    if task is None:
        return 1
    cancelled = threading.Event()
    threading.Thread(target=_listen, args=(owner, cancelled), daemon=True).start()
    threading.Thread(target=_beat, args=(lines,), daemon=True).start()
    report = Report(lines, cancelled)
    _refresh(task, prepared, report, lines)
    return 0


def _refresh(
    task: Mapping[str, Any], prepared: "Prepared | None", report: Report, lines: Lines
) -> None:
    """Do it, and say how it ended in one last message."""
    # Reading a view's record, Daft and Lance take a second to import: heartbeats begin before.
    from actors.sql import prepare_expression
    from udtf.refresh import RefreshCancelled, RefreshFailed, run_refresh

    try:
        if prepared is None:
            _set_up_runner(task)
        else:
            prepared.wait()
        request = run_refresh(_refresh_task(task), report, prepare_expression)
    except RefreshFailed as failed:
        _fail(lines, failed.phase, failed.message, failed.error_type, failed.retryable, failed.item)
    except RefreshCancelled:
        _fail(lines, report.phase_now, "the refresh was cancelled", "Cancelled", False)
    except DestrierError as error:
        passing = isinstance(error, _PASSING)
        _fail(lines, report.phase_now, error.message, type(error).__name__, passing)
    except EnvironmentNotMade as error:
        _fail(lines, "environment", str(error), "RuntimeEnvSetupError", False)
    except Exception as error:
        # Anything may come out of Daft, Ray and Lance; the next attempt may do better.
        logger.exception("the refresh failed")
        message = f"the driver failed: {type(error).__name__}: {error}"
        _fail(lines, report.phase_now, message[:2_000], type(error).__name__, True)
    else:
        if request is None:
            lines.send("no_op", **to_json(report.summary))
        else:
            lines.send("publish", request=request, summary=report.summary)


def _fail(
    lines: Lines,
    phase: str,
    message: str,
    error_type: str,
    retryable: bool,
    item: str | None = None,
) -> None:
    lines.send(
        "failed",
        phase=phase,
        message=message,
        error_type=error_type,
        retryable=retryable,
        item=item,
    )


class Prepared:
    """Gets a driver ready while no job has asked for it yet: what all refreshes load, and Ray.

    In a thread, because the owner may go, or send a task, meanwhile.
    """

    def __init__(self, like: Mapping[str, Any]) -> None:
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._prepare, args=(like,), daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Return when it is ready.

        Raises:
            Exception: what made it fail.
        """
        self._thread.join()
        if self._error is not None:
            raise self._error

    def _prepare(self, like: Mapping[str, Any]) -> None:
        try:
            import udtf.refresh  # noqa: F401 - it is loaded, and Daft and Lance with it

            if like["runner"] == Runner.RAY:
                from udtf.plan import get_ready

                _join_ray(like, {})
                get_ready()
        except Exception as error:  # noqa: BLE001 - raised again where the driver waits for it
            self._error = error


class EnvironmentNotMade(Exception):
    """Ray could not make the environment that a manifest describes."""


def _set_up_runner(task: Mapping[str, Any]) -> None:
    """Join the cluster, with the environment of the view's manifest."""
    from udtf.manifest import parse_manifest, runtime_env

    manifest = manifest_of(task)
    environment = {}
    if manifest is not None:
        environment = runtime_env(parse_manifest(manifest, _settings(task).views))
    if task["runner"] != Runner.RAY:
        if environment.keys() - {"env_vars"}:
            raise Unsupported("the manifest brings software, which takes a Ray cluster to run in")
        return
    _join_ray(task, environment)


def _join_ray(like: Mapping[str, Any], environment: Mapping[str, Any]) -> None:
    import ray

    try:
        ray.init(
            address=like["ray_address"],
            namespace=like["ray_namespace"],
            runtime_env=dict(environment) or None,
            logging_level=logging.WARNING,
            log_to_driver=False,
        )
        if environment:
            # It is made when the first worker starts; a plan would wait for it without a word.
            ray.get(ray.remote(num_cpus=0)(_nothing).remote())
    except ray.exceptions.RuntimeEnvSetupError as error:
        raise EnvironmentNotMade(f"the manifest's environment cannot be made: {error}") from None


def _nothing() -> None:
    """What a worker does to show that it is there."""


def manifest_of(task: Mapping[str, Any]) -> str | None:
    """The environment that the code of a task's view runs in, if it says which."""
    from udtf.view_record import read_view

    chosen: str | None = task["options"].get("manifest")
    definition = None if chosen else read_view(task["view_metadata"])
    udtf = None if definition is None else definition.udtf
    return chosen or (None if udtf is None else udtf.manifest)


def _settings(task: Mapping[str, Any]) -> Settings:
    return Settings.model_validate(task["settings"])


def _refresh_task(task: Mapping[str, Any]) -> Any:
    from udtf.refresh import RefreshTask

    return RefreshTask(
        job_id=task["job_id"],
        attempt=task["attempt"],
        database=task["database"],
        view_id=tuple(task["view_id"]),
        view_uri=task["view_uri"],
        view_metadata=task["view_metadata"],
        source=from_json(SourceLocation, task["source"]),
        options=from_json(RefreshOptions, task["options"]),
        runner=Runner(task["runner"]),
        settings=_settings(task),
        checkpoint_key=task["checkpoint_key"],
        done_items=tuple(ItemStatus.from_json(item) for item in task["done_items"]),
    )


def _listen(owner: BinaryIO, cancelled: threading.Event) -> None:
    """Hear the owner out, until it is gone."""
    with contextlib.suppress(OSError, ValueError):
        for line in owner:
            if json.loads(line).get("type") == "cancel":
                cancelled.set()
    end_now()


def _beat(lines: Lines) -> None:
    while True:
        lines.send("heartbeat", at_ms=int(time.time() * 1000))
        time.sleep(HEARTBEAT_S)


def run(arguments: list[str]) -> None:
    """Be a driver, guarded, and end without Python's own farewell.

    Threads of Daft and Ray may hang or abort when Python ends; all that counts is said.
    """
    stand_guard((0, int(arguments[0])))
    code = main(arguments)
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    run(sys.argv[1:])
