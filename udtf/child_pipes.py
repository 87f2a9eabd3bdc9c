"""A child process as its worker has it: frames go in and out, prints are kept, it can be ended.

One thread serves every pipe, so a child that neither reads nor writes cannot block it past its
deadline, and neither can one that prints without end. Only `kill` may be called from others.
"""

import contextlib
import os
import select
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from fcntl import F_SETPIPE_SZ, fcntl
from pathlib import Path
from typing import Any

import pyarrow as pa

from udtf.frames import HEADER, Frame
from udtf.guard import NUMBER

PROGRAM = Path(__file__).with_name("child.py")

# The kernel's default for who is not root; one batch takes fewer turns than with 64 KB.
_PIPE_BYTES = 1 << 20
_READ_BYTES = 1 << 16
# A frame is about 64 MB, or one row; what says that it is more than this is no frame.
_FRAME_BYTES_MAX = 8 << 30
# A process that has closed its pipe has ended, or is about to.
_ENDING_S = 1.0
# The guard kills within 10 s; past this the kernel has the process, or the guard is gone.
_KILLED_S = 15.0

Parts = Sequence[Any]


class ChildGone(Exception):
    """The process has ended, or has closed its pipes."""


class ChildLate(Exception):
    """The deadline has passed."""


class ChildGarbled(Exception):
    """What came from the process is no frame."""


class ChildPipes:
    """A process that has been started, in a new folder, with nothing but `environment`.

    The last `output_bytes_max` bytes of what it prints are kept.
    """

    def __init__(
        self, python: str, environment: Mapping[str, str], output_bytes_max: int = 0
    ) -> None:
        self.folder = tempfile.mkdtemp(prefix="destrier-code-")
        self.output_bytes_max = output_bytes_max
        self._printed = bytearray()
        self._is_silent = False
        self._is_deaf = False
        self._guard: int | None = None
        self._is_told = False
        self._outgoing: deque[memoryview] = deque()
        self._head = bytearray()
        self._payload: Any = None
        self._missing = memoryview(b"")
        self._lock = threading.Lock()
        self._start(python, dict(environment) | {"HOME": self.folder, "TMPDIR": self.folder})

    @property
    def printed(self) -> str:
        """The last of what the process has printed."""
        return bytes(self._printed).decode(errors="replace")

    def is_alive(self) -> bool:
        """Whether it has its pipe open, while nothing is awaited of it."""
        waiting = select.poll()
        waiting.register(self._reading, 0)
        return not waiting.poll(0)

    def send(self, parts: Parts) -> None:
        """Queue bytes; they are written while frames are received."""
        self._outgoing += (memoryview(part).cast("B") for part in parts if len(part))

    def receive(
        self, deadline_s: float, more: Callable[[], Parts | None] | None = None
    ) -> tuple[Frame, Any]:
        """The next frame. `more` is asked for what to send when all has gone; None is the end.

        Raises:
            ChildGone, ChildLate, ChildGarbled, and whatever `more` raises.
        """
        while True:
            if not self._outgoing and more is not None and not self._is_deaf:
                parts = more()
                if parts is None:
                    more = None
                else:
                    self.send(parts)
            frame = self._turn(deadline_s)
            if frame is not None:
                return frame

    def flush(self, deadline_s: float) -> None:
        """Write everything that is queued; what comes meanwhile is no frame of this item's."""
        while self._outgoing:
            if self._turn(deadline_s) is not None:
                raise ChildGarbled

    def kill(self) -> None:
        """Have the process and all it has started killed; returns at once. Any thread may."""
        with self._lock, contextlib.suppress(OSError):
            self._lifeline.shutdown(socket.SHUT_WR)

    def end(self, *, is_gone: bool = False) -> int | None:
        """Kill what is left; how the process ended, as `subprocess` says it, None if unknown.

        A process that `is_gone` is given a moment to have ended by itself.
        """
        status = self._ended(_ENDING_S) if is_gone else None
        if status is None:
            self.kill()
            status = self._ended(_KILLED_S)
            status = None if is_gone else status
        if not self._is_told:
            # The guard does not answer; the kernel kills the code's process with it.
            self._process.kill()
        self._process.wait()
        if self._guard is not None:
            self._see_off(self._guard)
        with contextlib.suppress(BlockingIOError):
            while self._keep_prints():
                pass
        with self._lock:
            self._lifeline.close()
        for descriptor in (self._writing, self._reading, self._prints):
            os.close(descriptor)
        shutil.rmtree(self.folder, ignore_errors=True)
        return status

    def _start(self, python: str, environment: dict[str, str]) -> None:
        given, self._writing = os.pipe()
        self._reading, taken = os.pipe()
        self._prints, printing = os.pipe()
        self._lifeline, guards = socket.socketpair()
        command = [python, "-I", str(PROGRAM), str(guards.fileno()), str(given), str(taken)]
        try:
            # What runs is this package's own program; the code comes to it over a pipe.
            self._process = subprocess.Popen(  # noqa: S603
                [*command, self.folder],
                stdin=subprocess.DEVNULL,
                stdout=printing,
                stderr=printing,
                env=environment,
                cwd=self.folder,
                pass_fds=(guards.fileno(), given, taken),
                start_new_session=True,
            )
        except BaseException:
            for descriptor in (self._writing, self._reading, self._prints):
                os.close(descriptor)
            self._lifeline.close()
            shutil.rmtree(self.folder, ignore_errors=True)
            raise
        finally:
            for descriptor in (given, taken, printing):
                os.close(descriptor)
            guards.close()
        for descriptor in (self._writing, self._reading):
            # The sum of a user's pipes has a limit too.
            with contextlib.suppress(OSError):
                fcntl(descriptor, F_SETPIPE_SZ, _PIPE_BYTES)
        for descriptor in (self._writing, self._reading, self._prints):
            os.set_blocking(descriptor, False)

    def _turn(self, deadline_s: float) -> tuple[Frame, Any] | None:
        """Wait until a pipe is ready and serve each that is; a frame if one is complete."""
        waiting = select.poll()
        waiting.register(self._reading, select.POLLIN)
        if not self._is_silent:
            waiting.register(self._prints, select.POLLIN)
        if self._outgoing:
            waiting.register(self._writing, select.POLLOUT)
        left_ms = (deadline_s - time.monotonic()) * 1_000
        ready = waiting.poll(max(0.0, left_ms)) if left_ms > 0 else []
        if not ready:
            raise ChildLate
        frame = None
        for descriptor, _ in ready:
            if descriptor == self._prints:
                self._keep_prints()
            elif descriptor == self._writing:
                self._write()
            else:
                frame = self._read()
        return frame

    def _keep_prints(self) -> bool:
        data = os.read(self._prints, _READ_BYTES)
        self._printed += data
        del self._printed[: -self.output_bytes_max]
        self._is_silent = not data
        return bool(data)

    def _write(self) -> None:
        while self._outgoing:
            part = self._outgoing[0]
            try:
                count = os.write(self._writing, part)
            except BlockingIOError:
                return
            except BrokenPipeError:
                # Its end is seen where frames are read, after those that it sent before.
                self._is_deaf = True
                self._outgoing.clear()
                return
            if count == len(part):
                self._outgoing.popleft()
            else:
                self._outgoing[0] = part[count:]

    def _read(self) -> tuple[Frame, Any] | None:
        if self._payload is None:
            data = self._take(HEADER.size - len(self._head))
            self._head += data
            if len(self._head) < HEADER.size:
                return None
            kind, length = HEADER.unpack(self._head)
            if length > _FRAME_BYTES_MAX or kind not in list(Frame):
                raise ChildGarbled
            self._payload = pa.allocate_buffer(length)
            self._missing = memoryview(self._payload).cast("B")
        while self._missing:
            try:
                count = os.readv(self._reading, [self._missing])
            except BlockingIOError:
                return None
            if not count:
                raise ChildGone
            self._missing = self._missing[count:]
        frame = Frame(self._head[0]), self._payload
        self._head, self._payload = bytearray(), None
        return frame

    def _take(self, count: int) -> bytes:
        data = os.read(self._reading, count)
        if not data:
            raise ChildGone
        return data

    def _ended(self, timeout_s: float) -> int | None:
        """What the guard says of the process's end, within the time."""
        self._lifeline.settimeout(timeout_s)
        if self._guard is None and (guard := self._told()) is not None:
            with contextlib.suppress(ProcessLookupError):
                self._guard = os.pidfd_open(guard)
        status = self._told()
        if status is None:
            return None
        self._is_told = True
        return os.waitstatus_to_exitcode(status)

    def _told(self) -> int | None:
        """The next number that the guard tells: its id, then the status of the process."""
        try:
            data = self._lifeline.recv(NUMBER.size)
        except OSError:
            return None
        return int(NUMBER.unpack(data)[0]) if data else None

    def _see_off(self, guard: int) -> None:
        """Return when the guard is gone; one that has not told of the end is killed."""
        try:
            if not self._is_told:
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(guard, signal.SIGKILL)
            waiting = select.poll()
            waiting.register(guard, select.POLLIN)
            waiting.poll(_ENDING_S * 1_000)
        finally:
            os.close(guard)
