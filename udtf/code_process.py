"""Runs user code in a process of its own, which is given rows and gives rows back.

    with CodeProcess(spec) as process:
        for batch in process.run(batches): ...

The process has an environment of a few harmless variables, no descriptor but its two pipes, a new
folder to work in, and limits of memory and time. It holds no credentials and no address of storage
or of Ray. That keeps faults of the code from everything else; it is no wall against an attacker,
who has the same user of the operating system, its files and its network.
"""

import json
import os
import signal
import sys
import time
from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import pyarrow as pa

from cluster.settings import ViewSettings
from udtf.abi import PARENT
from udtf.child_pipes import ChildGarbled, ChildGone, ChildLate, ChildPipes, Parts
from udtf.code_errors import TRACEBACK_CHARACTERS_MAX, class_names
from udtf.frames import Frame, decode_batch, encode_batch, header
from udtf.refresh_model import ItemError
from udtf.spec import ViewKind

# What programs need to be found, to speak and to tell the time, and what a worker was given of the
# machine: its GPUs, where their drivers are, and how many threads to start.
_PASSED_ON = (
    "PATH",
    "LANG",
    "LC_ALL",
    "TZ",
    "CUDA_VISIBLE_DEVICES",
    "LD_LIBRARY_PATH",
    "OMP_NUM_THREADS",
)
# Arenas of allocators reserve address space, which is what the limit of memory is on.
_FRUGAL = {"ARROW_DEFAULT_MEMORY_POOL": "system", "MALLOC_ARENA_MAX": "2"}


@dataclass(frozen=True, slots=True)
class CodeSpec:
    """The code, its rows, and the limits of a process that runs it; picklable.

    Schemas are Arrow IPC messages. `memory_bytes` bounds the address space. `python` None is the
    worker's interpreter. `variables` are names of the worker's environment that are passed on.
    """

    envelope: bytes
    kind: ViewKind
    batch: bool
    input_schema_ipc: bytes
    output_schema_ipc: bytes
    memory_bytes: int | None
    start_timeout_s: float
    item_timeout_s: float
    output_bytes_max: int
    python: str | None = None
    variables: tuple[str, ...] = ()


class CodeFailed(Exception):
    """The code, or the process that ran it, failed; `bases` are names to match its class by."""

    def __init__(self, error: ItemError, bases: tuple[str, ...] = ()) -> None:
        super().__init__(error, bases)
        self.error = error
        self.bases = bases

    def __str__(self) -> str:
        error = self.error
        text = f"{error.type}: {error.message}"
        return f"{text}\n{error.traceback}" if error.traceback else text


class CodeProcess:
    """Does an item at a time; its process starts with the first one, and again after it died."""

    def __init__(self, spec: CodeSpec) -> None:
        self._spec = spec
        self._output_schema = pa.ipc.read_schema(pa.py_buffer(spec.output_schema_ipc))
        self._child: ChildPipes | None = None
        self._is_killed = False
        self.printed = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """What the code makes of one item's rows, as it comes; reads `batches` as it goes. Blocks.

        The item's time runs from the first row that is asked for. Whoever stops early ends the
        process.

        Raises:
            CodeFailed: the code or its process failed. What `batches` raises is raised as it is.
        """
        child = self._ready()
        is_usable = False
        try:
            deadline_s = time.monotonic() + self._spec.item_timeout_s
            sending = _Sending(batches)
            child.send([header(Frame.ITEM)])
            while True:
                kind, payload = self._receive(child, deadline_s, sending)
                if kind is not Frame.ROWS:
                    break
                yield self._batch(payload)
            failed = _told(payload) if kind is Frame.FAILED else None
            # With memory out, nothing in the process can be relied on.
            if failed is None or failed.error.kind != "memory":
                self._finish(child, deadline_s, sending)
                is_usable = True
            if failed is not None:
                raise failed
        finally:
            if not is_usable:
                self._end()

    def kill(self) -> None:
        """End what is running and run nothing more; returns at once. Any thread may."""
        self._is_killed = True
        child = self._child
        if child is not None:
            child.kill()

    def close(self) -> None:
        """End the process and everything that it has started."""
        self._end()

    def _ready(self) -> ChildPipes:
        if self._child is not None and not self._child.is_alive():
            # It died after its last item was done, which is not the next one's fault.
            self._end()
        if self._child is not None:
            return self._child
        spec = self._spec
        child = _started(
            spec.python or sys.executable,
            _environment(spec.variables, is_frugal=spec.memory_bytes is not None),
            spec.output_bytes_max,
        )
        self._child = child
        is_ready = False
        try:
            if self._is_killed:
                raise _stopped()
            child.send(_frame(Frame.SPEC, self._start()))
            deadline_s = time.monotonic() + spec.start_timeout_s
            kind, payload = self._receive(child, deadline_s)
            if kind is Frame.FAILED:
                raise _told(payload)
            is_ready = True
        finally:
            if not is_ready:
                self._end()
        return child

    def _start(self) -> bytes:
        """Everything that a process has to know before its first item."""
        spec = self._spec
        value = {
            "envelope": spec.envelope.decode(),
            "input_schema": b64encode(spec.input_schema_ipc).decode(),
            "output_schema": b64encode(spec.output_schema_ipc).decode(),
            "memory_bytes": spec.memory_bytes,
            # What a manifest has brought is where the worker finds it.
            "path": [path for path in sys.path if path.startswith(os.sep)],
        }
        return json.dumps(value).encode()

    def _receive(
        self, child: ChildPipes, deadline_s: float, sending: "_Sending | None" = None
    ) -> tuple[Frame, Any]:
        try:
            kind, payload = child.receive(deadline_s, sending)
        except ChildLate:
            raise self._late(sending is not None) from None
        except ChildGone:
            raise self._gone() from None
        except ChildGarbled:
            raise self._garbled() from None
        expected = (Frame.ROWS, Frame.DONE) if sending is not None else (Frame.READY,)
        if kind is not Frame.FAILED and kind not in expected:
            raise self._garbled()
        return kind, payload

    def _finish(self, child: ChildPipes, deadline_s: float, sending: "_Sending") -> None:
        """Send the end of an item's rows to code that has not asked for all of them."""
        child.send(sending.end())
        try:
            child.flush(deadline_s)
        except ChildLate:
            raise self._late(is_item=True) from None
        except ChildGone:
            raise self._gone() from None
        except ChildGarbled:
            raise self._garbled() from None

    def _batch(self, payload: Any) -> pa.RecordBatch:
        try:
            batch = decode_batch(payload)
            # What is untrue of itself ends whoever reads it, and this process writes it.
            batch.validate(full=True)
        except (pa.ArrowException, OSError, ValueError) as error:
            lines = str(error).splitlines()
            raise _failed(
                "schema", "SchemaError", f"the rows are no valid Arrow: {lines[0]}"
            ) from (None)
        for field in batch.schema:
            wanted = self._output_schema.get_field_index(field.name)
            if wanted < 0 and field.name != PARENT:
                raise self._garbled()
        return batch

    def _late(self, is_item: bool) -> CodeFailed:
        spec = self._spec
        what = f"the item took longer than {spec.item_timeout_s:g} s (views.item_timeout_s)"
        if not is_item:
            what = (
                f"the code was not loaded within {spec.start_timeout_s:g} s"
                " (views.code_start_timeout_s)"
            )
        self._end()
        error = ItemError(
            "timeout", "TimeoutError", f"{what}; its process was killed", self._tail()
        )
        return CodeFailed(error, tuple(class_names(TimeoutError)))

    def _gone(self) -> CodeFailed:
        child, self._child = self._child, None
        assert child is not None
        status = child.end(is_gone=True)
        self.printed = child.printed
        if self._is_killed:
            return _stopped()
        message = f"the process that ran the code {_in_words(status)}"
        return _failed("crash", "ProcessCrashed", message, self._tail())

    def _garbled(self) -> CodeFailed:
        self._end()
        message = "the process that ran the code wrote something else than rows into its pipe"
        return _failed("crash", "ProcessCrashed", message, self._tail())

    def _end(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            child.end()
            self.printed = child.printed

    def _tail(self) -> str:
        """What was printed last, for where a traceback would be."""
        text = self.printed.strip()[-TRACEBACK_CHARACTERS_MAX:]
        return f"It printed last:\n{text}" if text else ""


def _environment(variables: tuple[str, ...], *, is_frugal: bool) -> dict[str, str]:
    passed = (*_PASSED_ON, *variables)
    environment = {name: os.environ[name] for name in passed if name in os.environ}
    return environment | _FRUGAL if is_frugal else environment


def have_spare() -> None:
    """Have a process started that the next code may get, if it is to have the usual environment.

    It knows nothing of any code yet; starting takes half a second, which an item would wait for.
    """
    python, environment = sys.executable, _environment((), is_frugal=True)
    if _living_spare() is None:
        _spare.append(_Spare(python, environment, ChildPipes(python, environment)))


@dataclass(frozen=True, slots=True)
class _Spare:
    """A process that waits for its code, and what it was started with."""

    python: str
    environment: Mapping[str, str]
    child: ChildPipes


# At most one.
_spare: list[_Spare] = []


def _living_spare() -> _Spare | None:
    if _spare and not _spare[0].child.is_alive():
        _spare.pop().child.end(is_gone=True)
    return _spare[0] if _spare else None


def _started(python: str, environment: Mapping[str, str], output_bytes_max: int) -> ChildPipes:
    """A process for some code: the spare one if it fits, else a new one."""
    spare = _living_spare()
    if spare is None or (spare.python, spare.environment) != (python, environment):
        return ChildPipes(python, environment, output_bytes_max)
    _spare.remove(spare)
    spare.child.output_bytes_max = output_bytes_max
    return spare.child


class _Sending:
    """The frames of one item's rows, made as they are sent."""

    def __init__(self, batches: Iterable[pa.RecordBatch]) -> None:
        self._batches = iter(batches)
        self._is_over = False

    def __call__(self) -> Parts | None:
        if self._is_over:
            return None
        batch = next(self._batches, None)
        return self.end() if batch is None else _frame(Frame.ROWS, encode_batch(batch))

    def end(self) -> Parts:
        """The end of the rows, once."""
        if self._is_over:
            return []
        self._is_over = True
        return [header(Frame.END)]


def test_code(
    envelope: bytes,
    kind: ViewKind,
    table: pa.Table,
    output_schema: pa.Schema,
    *,
    batch: bool = False,
    memory_bytes: int | None = None,
) -> pa.Table:
    """Run the code of an envelope on a table as a worker would, as one item.

    Rows of a chunker have a last column `__parent`, the number of the row that they come from.

    Raises:
        CodeFailed: it raised, died, or gave rows that do not fit.
    """
    views = ViewSettings()
    spec = CodeSpec(
        envelope=envelope,
        kind=kind,
        batch=batch,
        input_schema_ipc=bytes(table.schema.serialize()),
        output_schema_ipc=bytes(output_schema.serialize()),
        memory_bytes=memory_bytes,
        start_timeout_s=views.code_start_timeout_s,
        item_timeout_s=views.item_timeout_s,
        output_bytes_max=views.code_output_bytes_max,
    )
    schema = output_schema
    if kind is ViewKind.CHUNKER:
        schema = schema.append(pa.field(PARENT, pa.int32(), nullable=False))
    with CodeProcess(spec) as process:
        rows = list(process.run(table.to_batches(max_chunksize=views.batch_rows)))
    missing = [name for name in schema.names if rows and name not in rows[0].schema.names]
    if missing:
        raise _failed("schema", "SchemaError", f"the column {missing[0]!r} is missing")
    return pa.Table.from_batches([row.select(schema.names) for row in rows], schema=schema)


# Test runners would take it for one of their own.
test_code.__test__ = False  # type: ignore[attr-defined]


def _frame(kind: Frame, payload: Any) -> Parts:
    return [header(kind, memoryview(payload).nbytes), payload]


def _told(payload: Any) -> CodeFailed:
    """The error that a process has told of."""
    try:
        told = json.loads(bytes(payload))
        texts = [str(told[name]) for name in ("kind", "type", "message", "traceback")]
        return CodeFailed(ItemError(*texts), tuple(map(str, told["bases"])))
    except (ValueError, KeyError, TypeError):
        return _failed("crash", "ProcessCrashed", "the process that ran the code told of no error")


def _failed(kind: str, name: str, message: str, traceback: str = "") -> CodeFailed:
    bases = (name, "Exception", "BaseException")
    return CodeFailed(ItemError(kind, name, message, traceback), bases)


def _stopped() -> CodeFailed:
    return CodeFailed(ItemError("system", "Stopped", "the item was stopped"), ("Stopped",))


def _in_words(status: int | None) -> str:
    """How a process ended."""
    if status is None:
        return "closed its pipes and was killed"
    if status >= 0:
        return f"ended with exit code {status}"
    name = signal.Signals(-status).name if -status in list(signal.Signals) else f"signal {-status}"
    words = f"was killed by {name} ({signal.strsignal(-status)})"
    if -status == signal.SIGKILL:
        return f"{words}, as the kernel does when memory runs out"
    return words
