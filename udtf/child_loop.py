"""What the process of user code does: loads the code, then gives it the rows of item after item.

Whatever the code raises becomes a frame that says so; the process goes on with the next item.
"""

import contextlib
import faulthandler
import gc
import io
import json
import mmap
import os
import resource
import signal
import sys
import traceback
from base64 import b64decode
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import pyarrow as pa

from udtf.abi import Caller, caller
from udtf.code_errors import describe
from udtf.code_loading import NotLoadable, load_code
from udtf.frames import HEADER, Frame, decode_batch, encode_batch, header
from udtf.output_fit import SchemaError, pieces

# What a process that has user code calls itself, for `ps` and `top`.
PROCESS_NAME = "destrier-code"
# Freed when memory is out, so that there is some to say so. Only address space, which is what is
# limited: nothing is written there, so it takes neither memory nor time.
_BALLAST_BYTES = 8 << 20
# What loading code takes at least, on top of Python and pyarrow.
_ROOM_BYTES = 64 << 20


def serve(reading: int, writing: int) -> NoReturn:
    """Run to the end of the process, which is when the worker has closed its end."""
    for descriptor in (reading, writing):
        os.set_inheritable(descriptor, False)
    # What is printed before a crash is to be seen.
    for stream in (sys.stdout, sys.stderr):
        assert isinstance(stream, io.TextIOWrapper)
        stream.reconfigure(line_buffering=True, errors="backslashreplace")
    faulthandler.enable(all_threads=False)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    pipes = _Pipes(reading, writing)
    run = _prepare(pipes)
    while True:
        if run is None or pipes.read()[0] is not Frame.ITEM:
            os._exit(1)
        _do_item(run, pipes)


class _Pipes:
    """Both pipes. A copy of this process that the code has forked ends when it would use them."""

    def __init__(self, reading: int, writing: int) -> None:
        self._source = io.FileIO(reading, "rb")
        self._target = io.FileIO(writing, "wb")
        self._owner = os.getpid()
        self._is_read = True

    def read(self) -> tuple[Frame, Any]:
        """The next frame. The process ends with the pipe: nobody waits for it any more."""
        self._check()
        kind, length = HEADER.unpack(self._fill(bytearray(HEADER.size)))
        payload = self._fill(pa.allocate_buffer(length)) if length else b""
        return Frame(kind), payload

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows of the item that has begun."""
        self._is_read = False
        while True:
            kind, payload = self.read()
            if kind is Frame.END:
                self._is_read = True
                return
            yield decode_batch(payload)

    def skip(self) -> None:
        """Leave out what is left of the item's rows."""
        while not self._is_read:
            self._is_read = self.read()[0] is Frame.END

    def write(self, kind: Frame, payload: Any = b"") -> None:
        """Send a frame; blocks until it is in the pipe."""
        self._check()
        data = memoryview(payload)
        for part in (memoryview(header(kind, data.nbytes)), data.cast("B")):
            while part:
                try:
                    part = part[self._target.write(part) :]
                except BrokenPipeError:
                    os._exit(1)

    def _check(self) -> None:
        if os.getpid() != self._owner:
            os._exit(0)

    def _fill(self, buffer: Any) -> Any:
        part = memoryview(buffer).cast("B")
        while part:
            count = self._source.readinto(part)
            if not count:
                os._exit(0)
            part = part[count:]
        return buffer


def _prepare(pipes: _Pipes) -> Caller | None:
    """Load the code; None if it cannot be, which has been said."""
    # The first array of Python values loads pandas where that is installed: a third of a second,
    # which a process that waits for its code has.
    pa.array([0])
    kind, payload = pipes.read()
    assert kind is Frame.SPEC
    # Until now it was a spare one; lists of processes show the difference.
    Path("/proc/self/comm").write_text(PROCESS_NAME)
    spec = json.loads(bytes(payload))
    sys.path += [path for path in spec["path"] if path not in sys.path]
    input_schema, output_schema = (
        pa.ipc.read_schema(pa.py_buffer(b64decode(spec[name])))
        for name in ("input_schema", "output_schema")
    )
    ballast = mmap.mmap(-1, _BALLAST_BYTES)
    try:
        _set_limits(spec["memory_bytes"])
        abi, code = load_code(spec["envelope"])
        run = caller(abi, code, input_schema, output_schema)
    except BaseException as error:  # noqa: BLE001 - user code may raise anything
        ballast.close()
        _tell(pipes, error)
        return None
    pipes.write(Frame.READY)
    return run


def _do_item(run: Caller, pipes: _Pipes) -> None:
    ballast = mmap.mmap(-1, _BALLAST_BYTES)
    # Before the code runs: a generator of ours that never began would not know that rows wait.
    pipes._is_read = False
    given = run(pipes.batches())
    try:
        for batch in given:
            for piece in pieces(batch):
                if piece.num_rows:
                    pipes.write(Frame.ROWS, encode_batch(piece))
    except BaseException as error:  # noqa: BLE001 - user code may raise anything
        ballast.close()
        _tell(pipes, error)
    else:
        _flush_prints()
        pipes.write(Frame.DONE)
    # The code's own clean-up is its own affair.
    with contextlib.suppress(BaseException):
        given.close()  # type: ignore[attr-defined]
    pipes.skip()


def _tell(pipes: _Pipes, error: BaseException) -> None:
    """Send what is to be known of an exception."""
    kind = "user"
    if isinstance(error, MemoryError):
        kind = "memory"
        # The frames hold what has filled the memory.
        with contextlib.suppress(BaseException):
            traceback.clear_frames(error.__traceback__)
        gc.collect()
    elif isinstance(error, SchemaError):
        kind = "schema"
    elif isinstance(error, NotLoadable):
        kind = "system"
    try:
        told = describe(error, kind)
    except BaseException:  # noqa: BLE001 - classes of exceptions can be anything
        told = {"kind": kind, "type": "Exception", "message": "", "traceback": "", "bases": []}
    _flush_prints()
    pipes.write(Frame.FAILED, json.dumps(told).encode())


def _flush_prints() -> None:
    for stream in (sys.stdout, sys.stderr):
        # The code may have closed or replaced it.
        with contextlib.suppress(Exception):
            stream.flush()


def _set_limits(memory_bytes: int | None) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if memory_bytes is None:
        return
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    used = pages * resource.getpagesize()
    if memory_bytes < used + _ROOM_BYTES:
        raise MemoryError(
            f"memory is {memory_bytes} bytes for each process, and Python with pyarrow takes {used}"
            " of address space before any code is loaded; give more"
        )
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
