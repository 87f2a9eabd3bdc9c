"""Drivers as child processes: `python -m actors.view_driver`, one per attempt of a job.

The task goes in as the first line of standard input; messages come out, one JSON object a line, on
a pipe of their own. Standard output and error of the driver end in the log. It leads a session of
its own, and is killed with everything it started. When this process dies, its pipes close, and the
driver ends.
"""

import asyncio
import json
import logging
import os
import sys
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from actors.process_tree import kill_tree
from actors.stored_json import to_json
from cluster.settings import Settings

logger = logging.getLogger(__name__)

MODULE = "actors.view_driver"
# The only argument: the descriptor that messages are written to.
_FOLDER = str(Path(__file__).resolve().parent.parent)
# Items of a million rows' ids, and fragments of many files, are lines of megabytes.
_LINE_BYTES_MAX = 256 << 20
# Lines of its log that say how a driver ended.
_LAST_LINES = 5
_LOG_LINE_BYTES_MAX = 64 << 10
# A driver that was killed is gone at once, unless the machine hangs.
_GONE_TIMEOUT_S = 30.0


class DriverProcess:
    """One driver (job_ports.Driver)."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        messages: asyncio.StreamReader,
        transport: asyncio.BaseTransport,
        name: str,
    ) -> None:
        self._process = process
        self._messages = messages
        self._transport = transport
        self._name = name
        self._last: deque[str] = deque(maxlen=_LAST_LINES)
        self._log = asyncio.ensure_future(self._read_log())

    @property
    def pid(self) -> int:
        """Its process id, which is also its group's."""
        return self._process.pid

    async def send(self, message: Mapping[str, Any]) -> None:
        """Send one line; one that has ended gets none."""
        assert self._process.stdin is not None
        with suppress(ConnectionError):
            self._process.stdin.write(json.dumps(to_json(message)).encode() + b"\n")
            await self._process.stdin.drain()

    async def next(self) -> Mapping[str, Any] | None:
        """The next message; see job_ports.Driver."""
        try:
            line = await self._messages.readline()
        except ValueError:
            raise ValueError(f"a driver's message is over {_LINE_BYTES_MAX} bytes") from None
        if line.endswith(b"\n"):
            message: Mapping[str, Any] = json.loads(line)
            return message
        # Cut short or empty: the driver has ended.
        with suppress(TimeoutError):
            await asyncio.wait_for(self._process.wait(), _GONE_TIMEOUT_S)
            await asyncio.wait_for(asyncio.shield(self._log), 1)
        return None

    async def cancel(self) -> None:
        """Ask it to end by itself."""
        await self.send({"type": "cancel"})

    async def kill(self) -> None:
        """End it and everything it started; returns when it is gone."""
        if self._process.returncode is None:
            # Listing processes reads some hundreds of small files.
            await asyncio.to_thread(kill_tree, self._process.pid)
        with suppress(TimeoutError):
            await asyncio.wait_for(self._process.wait(), _GONE_TIMEOUT_S)
        self._transport.close()
        self._log.cancel()

    def ending(self) -> str:
        """How it ended, in words."""
        code = self._process.returncode
        how = "it is still there" if code is None else f"exit code {code}"
        if code is not None and code < 0:
            how = f"killed by signal {-code}"
        said = " | ".join(self._last)
        return f"{how}; its last words: {said}" if said else how

    async def _read_log(self) -> None:
        assert self._process.stderr is not None
        while True:
            try:
                line = await self._process.stderr.readline()
            except ValueError:
                # A line that is too long was dropped.
                continue
            if not line:
                return
            text = line.decode(errors="replace").rstrip()
            self._last.append(text[:500])
            logger.info("driver of %s: %s", self._name, text)


class DriverProcesses:
    """Starts drivers on this machine (job_ports.Drivers)."""

    def __init__(self, settings: Settings, module: str = MODULE) -> None:
        self._settings = settings
        self._module = module

    async def start(self, task: Mapping[str, Any]) -> DriverProcess:
        """Start a driver on a task; the settings go with it, secrets in clear."""
        reading, writing = os.pipe()
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                self._module,
                str(writing),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.PIPE,
                limit=_LOG_LINE_BYTES_MAX,
                pass_fds=(writing,),
                start_new_session=True,
                env=_environment(),
            )
        except BaseException:
            os.close(reading)
            raise
        finally:
            os.close(writing)
        messages = asyncio.StreamReader(limit=_LINE_BYTES_MAX)
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(messages), os.fdopen(reading, "rb")
        )
        driver = DriverProcess(process, messages, transport, f"job {task['job_id']}")
        await driver.send({**task, "settings": settings_json(self._settings)})
        return driver


def settings_json(settings: Settings) -> dict[str, Any]:
    """The settings as JSON, the storage's secrets in clear and nobody else's."""
    value: dict[str, Any] = settings.model_dump(mode="json", exclude={"auth"})
    value["storage"]["options"] = {
        name: secret.get_secret_value() for name, secret in settings.storage.options.items()
    }
    return value


def _environment() -> dict[str, str]:
    """This process's, without the deployment's settings: its keys are none of a driver's."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("DESTRIER_")}
    path = environment.get("PYTHONPATH")
    environment["PYTHONPATH"] = _FOLDER if not path else f"{_FOLDER}{os.pathsep}{path}"
    return environment
