"""The main of a driver: refreshes a view and tells its owner how it gets on, and maybe another.

    python -m actors.view_driver <descriptor>

A line of standard input is the task, a later one may say `{"type": "cancel"}`. One before it may
say `{"type": "prepare"}` with what is known of the task: get ready for it. Messages go to the
descriptor, one JSON object a line; the last one of a task says if this process waits for another.
When standard input closes, the owner is gone: this process ends at once, and its guard ends
everything it started. It never loads the code of a view.
"""

import contextlib
import json
import logging
import os
import queue
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any, BinaryIO

from actors.process_guard import stand_guard
from actors.stored_json import from_json, to_json
from cluster.errors import PASSING, DestrierError, InternalError, Unsupported
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
# The field of a last message that says whether the driver takes another task.
WAITS_FOR_MORE = "waits_for_more"
_PASSING = (*PASSING, InternalError)

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


class Owner:
    """What the owner says, heard in a thread. When it is gone, this process ends."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._tasks: queue.SimpleQueue[tuple[Mapping[str, Any], threading.Event]] = (
            queue.SimpleQueue()
        )
        threading.Thread(target=self._listen, daemon=True).start()

    def next(self) -> tuple[Mapping[str, Any], threading.Event]:
        """The next task, and what is set when it is cancelled. Blocks."""
        return self._tasks.get()

    def _listen(self) -> None:
        cancelled = threading.Event()
        with contextlib.suppress(OSError, ValueError):
            for line in self._stream:
                message = json.loads(line)
                if message.get("type") == "cancel":
                    cancelled.set()
                else:
                    cancelled = threading.Event()
                    self._tasks.put((message, cancelled))
        end_now()


class Heartbeat:
    """Tells the owner every now and then, while there is a task, that this process lives."""

    def __init__(self, lines: Lines) -> None:
        self._lines = lines
        self._working = threading.Event()
        threading.Thread(target=self._beat, daemon=True).start()

    def __enter__(self) -> None:
        self._working.set()

    def __exit__(self, *_: object) -> None:
        self._working.clear()

    def _beat(self) -> None:
        while self._working.wait():
            self._lines.send("heartbeat", at_ms=int(time.time() * 1000))
            time.sleep(HEARTBEAT_S)


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
    said = Owner(owner)
    beat = Heartbeat(lines)
    prepared = None
    while True:
        task, cancelled = said.next()
        if task.get("type") == "prepare":
            prepared = Prepared(task)
            continue
        with beat:
            waits_for_more = _refresh(task, prepared, Report(lines, cancelled), lines)
        if not waits_for_more:
            return 0


def _refresh(
    task: Mapping[str, Any], prepared: "Prepared | None", report: Report, lines: Lines
) -> bool:
    """Do it, and say how it ended in one last message; whether there may be another."""
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
        more = {WAITS_FOR_MORE: _may_go_on(task)}
        if request is None:
            lines.send("no_op", **to_json(report.summary), **more)
        else:
            lines.send("publish", request=request, summary=report.summary, **more)
        return more[WAITS_FOR_MORE]
    return False


def _may_go_on(task: Mapping[str, Any]) -> bool:
    """Whether this process is as good as a new one for any other task."""
    if task["runner"] != Runner.RAY or manifest_of(task) is not None:
        return False
    from udtf.plan import has_started_daft

    return not has_started_daft()


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
    """Gets a driver ready for the next task: what all refreshes load, and Ray with its workers.

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
                from udtf.ray_tasks import get_ready

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

    if ray.is_initialized():
        return
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
