"""Drivers as child processes: `python -m actors.view_driver`, one per attempt of a job.

The task goes in as a line of standard input; messages come out, one JSON object a line, on a pipe
of their own. Standard output and error of the driver end in the log. What is started is the
driver's guard (process_guard.py), which ends with everything below it when it is told to, and when
this process dies.
"""

import asyncio
import json
import logging
import os
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from actors.process_guard import end_guarded
from actors.stored_json import to_json
from actors.view_driver import PREPARED, WAITS_FOR_MORE, manifest_of
from cluster.settings import Settings

logger = logging.getLogger(__name__)

MODULE = "actors.view_driver"
_FOLDER = str(Path(__file__).resolve().parent.parent)
# Items of a million rows' ids, and fragments of many files, are lines of megabytes.
_LINE_BYTES_MAX = 256 << 20
# Lines of its log that say how a driver ended.
_LAST_LINES = 5
_LAST_CHARACTERS = 500
_LAST_WORDS_S = 1.0
_LOG_LINE_BYTES_MAX = 64 << 10
_NO_JOB = "no job"
_OF_ACTORS = frozenset({"RAY_JOB_ID", "RAY_RAYLET_PID"})
# A driver that was killed is gone at once, unless the machine hangs.
_GONE_TIMEOUT_S = 30.0


class DriverProcess:
    """One driver (job_ports.Driver)."""

    def __init__(self, process: "subprocess.Popen[bytes]", messages: "_Pipe", log: "_Pipe") -> None:
        self._name = _NO_JOB
        self.when_gone: Callable[[], None] = lambda: None
        # Asked to keep this driver for the next job; says whether it does.
        self.keep: Callable[[], bool] = lambda: False
        self._waits_for_more = False
        self._process = process
        self._messages = messages
        self._log = log
        self._last: deque[str] = deque(maxlen=_LAST_LINES)
        self._logging = asyncio.ensure_future(self._read_log())

    def begin(self, name: str) -> None:
        """What it does from now on is for `name`."""
        self._name = name
        self._last.clear()
        self._waits_for_more = False

    async def send(self, message: Mapping[str, Any]) -> None:
        """Send one line; one that has ended gets none."""
        line = json.dumps(message).encode() + b"\n"
        with suppress(OSError):
            # Blocks while the pipe is full, until it is read or the driver has ended.
            await asyncio.to_thread(self._write, line)

    def _write(self, line: bytes) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line)
        self._process.stdin.flush()

    async def next(self) -> Mapping[str, Any] | None:
        """The next message; see job_ports.Driver."""
        line = await self._messages.reader.readline()
        if line.endswith(b"\n"):
            message: Mapping[str, Any] = json.loads(line)
            self._waits_for_more = bool(message.get(WAITS_FOR_MORE))
            return message
        # Cut short or empty: the driver has ended.
        await self._gone()
        with suppress(TimeoutError):
            async with asyncio.timeout(_LAST_WORDS_S):
                await asyncio.shield(self._logging)
        return None

    async def cancel(self) -> None:
        """Ask it to end by itself."""
        await self.send({"type": "cancel"})

    async def release(self) -> None:
        """Keep it for the next job if it waits for one, else end it."""
        if not (self._waits_for_more and self.is_alive() and self.keep()):
            await self.kill()

    async def kill(self) -> None:
        """End it and everything it started; returns when it is gone."""
        if self._process.poll() is None:
            end_guarded(self._process.pid)
        await self._gone()
        self._logging.cancel()
        self._messages.transport.close()
        self._log.transport.close()
        with suppress(OSError):
            assert self._process.stdin is not None
            self._process.stdin.close()
        self.when_gone()

    def is_alive(self) -> bool:
        """Whether the process is there."""
        return self._process.poll() is None

    async def _gone(self) -> None:
        with suppress(subprocess.TimeoutExpired):
            await asyncio.to_thread(self._process.wait, _GONE_TIMEOUT_S)

    def ending(self) -> str:
        """How it ended, in words."""
        code = self._process.poll()
        how = "it is still there" if code is None else f"exit code {code}"
        if code is not None and code < 0:
            how = f"killed by signal {-code}"
        said = " | ".join(self._last)
        return f"{how}; its last words: {said}" if said else how

    async def _read_log(self) -> None:
        while True:
            try:
                line = await self._log.reader.readline()
            except ValueError:
                # A line that is too long was dropped.
                continue
            if not line:
                return
            text = line.decode(errors="replace").rstrip()
            self._last.append(text[:_LAST_CHARACTERS])
            logger.info("driver of %s: %s", self._name, text)


class DriverProcesses:
    """Starts drivers on this machine (job_ports.Drivers).

    While jobs come, one driver is ready for the next, the last one if that can go on: loading what
    a refresh needs and joining Ray takes seconds, which a job would wait for.
    """

    def __init__(self, settings: Settings, module: str = MODULE) -> None:
        self._settings = settings
        self._module = module
        self._spare: DriverProcess | None = None
        # What a spare that was kept is to get ready for.
        self._unready: dict[str, Any] | None = None
        self._expiry: asyncio.TimerHandle | None = None
        # Never cut short: a process that is half started would be nobody's to end.
        self._changing: asyncio.Task[None] | None = None
        self._is_closed = False

    async def start(self, task: Mapping[str, Any]) -> DriverProcess:
        """Start a driver on a task; the settings go with it, secrets in clear."""
        plain: Mapping[str, Any] = to_json(task)
        driver = await self._take_spare(plain) or await self._spawn()
        driver.begin(f"job {task['job_id']}")
        driver.when_gone = lambda: self._prepare(plain)
        driver.keep = lambda: self._keep(driver, plain)
        await driver.send({**plain, "settings": settings_json(self._settings)})
        return driver

    async def get_ready(self) -> None:
        """Tell a driver that was kept to get ready; earlier it would have slowed the commit."""
        like, self._unready = self._unready, None
        if like is not None and self._spare is not None:
            await self._spare.send({"type": "prepare", **like})

    async def close(self) -> None:
        """End the driver that waits for a job."""
        self._is_closed = True
        if self._expiry is not None:
            self._expiry.cancel()
        if self._changing is not None:
            await self._changing
        await self._end_spare()

    async def _take_spare(self, task: Mapping[str, Any]) -> DriverProcess | None:
        # It has joined Ray without an environment of its own.
        if self._spare is None or manifest_of(task) is not None:
            return None
        spare, self._spare = self._spare, None
        if spare.is_alive():
            return spare
        await spare.kill()
        return None

    def _prepare(self, task: Mapping[str, Any]) -> None:
        """Have a driver ready for a job like the last one, for a while."""
        if self._wants_spare() and self._spare is None:
            self._change(_like(task))

    def _keep(self, driver: DriverProcess, task: Mapping[str, Any]) -> bool:
        """Keep a driver that has done a job for another one like it."""
        if not self._wants_spare() or self._spare is not None or self._is_changing():
            return False
        driver.begin(_NO_JOB)
        driver.when_gone = lambda: None
        self._spare, self._unready = driver, _like(task)
        return True

    def _wants_spare(self) -> bool:
        """Whether one is to be ready; if so, for how long is counted from now."""
        kept_s = self._settings.jobs.spare_driver_s
        if self._is_closed or not kept_s:
            return False
        if self._expiry is not None:
            self._expiry.cancel()
        self._expiry = asyncio.get_running_loop().call_later(kept_s, self._change, None)
        return True

    def _change(self, like: Mapping[str, Any] | None) -> None:
        """Start a spare driver, or end the one there is, unless that goes on already."""
        if not self._is_changing():
            work = self._end_spare() if like is None else self._make_spare(like)
            self._changing = asyncio.ensure_future(work)

    def _is_changing(self) -> bool:
        return self._changing is not None and not self._changing.done()

    async def _make_spare(self, like: Mapping[str, Any]) -> None:
        try:
            self._spare = await self._spawn()
        except OSError as error:
            logger.warning("no driver could be made ready for the next job: %s", error)
            return
        await self._spare.send({"type": "prepare", **like})

    async def _end_spare(self) -> None:
        spare, self._spare = self._spare, None
        if spare is not None:
            await spare.kill()

    async def _spawn(self) -> DriverProcess:
        reading, writing = os.pipe()
        try:
            process = subprocess.Popen(  # noqa: ASYNC220, S603 - a millisecond; our own
                [sys.executable, "-m", self._module, str(writing)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                pass_fds=(writing,),
                start_new_session=True,
                env=_environment(),
            )
        except BaseException:
            os.close(reading)
            raise
        finally:
            os.close(writing)
        assert process.stderr is not None
        messages = await _open(os.fdopen(reading, "rb"), _LINE_BYTES_MAX)
        log = await _open(process.stderr, _LOG_LINE_BYTES_MAX)
        return DriverProcess(process, messages, log)


@dataclass(frozen=True, slots=True)
class _Pipe:
    reader: asyncio.StreamReader
    transport: asyncio.BaseTransport


async def _open(pipe: IO[bytes], line_bytes_max: int) -> _Pipe:
    reader = asyncio.StreamReader(limit=line_bytes_max)
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), pipe
    )
    return _Pipe(reader, transport)


def _like(task: Mapping[str, Any]) -> dict[str, Any]:
    """What a driver gets ready with for a task like this one."""
    return {name: task[name] for name in PREPARED}


def settings_json(settings: Settings) -> dict[str, Any]:
    """The settings as JSON, the storage's secrets in clear and nobody else's."""
    value: dict[str, Any] = settings.model_dump(mode="json", exclude={"auth"})
    value["storage"]["options"] = {
        name: secret.get_secret_value() for name, secret in settings.storage.options.items()
    }
    return value


def _environment() -> dict[str, str]:
    """This process's, without the deployment's settings, whose keys are none of a driver's, and
    without what Ray tells an actor's process of itself: a driver is none."""
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("DESTRIER_") and name not in _OF_ACTORS
    }
    path = environment.get("PYTHONPATH")
    environment["PYTHONPATH"] = _FOLDER if not path else f"{_FOLDER}{os.pathsep}{path}"
    return environment
