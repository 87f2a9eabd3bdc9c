"""The same rows written by Lance in a process of its own: what an upload is compared with."""

import multiprocessing
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from benchmarks.processes import MemoryWatch


@dataclass(frozen=True, slots=True)
class LocalWrite:
    """Seconds of `lance.write_dataset`, and the peak growth of its process meanwhile."""

    seconds: float
    growth_bytes: int


class LocalWriter:
    """A process that is ready to write an Arrow IPC stream to a new table, once."""

    def __init__(self, source: Path, target: Path) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, there = context.Pipe()
        self._process = context.Process(
            target=_write, args=(there, str(source), str(target)), daemon=True
        )
        self._process.start()
        self._connection.recv()

    def write(self) -> LocalWrite:
        """Write, and end the process."""
        assert self._process.pid is not None
        with MemoryWatch([self._process.pid]) as watch:
            self._connection.send("go")
            seconds: float = self._connection.recv()
        self._connection.send("end")
        self._process.join()
        return LocalWrite(seconds, watch.growth_bytes()[self._process.pid])


def _write(parent: Connection, source: str, target: str) -> None:
    """Import first, then write when told; stay until told, so that the last sample is real."""
    from time import perf_counter

    import lance
    import pyarrow as pa

    parent.send("ready")
    parent.recv()
    started_s = perf_counter()
    with pa.OSFile(source, "rb") as file:
        lance.write_dataset(pa.ipc.open_stream(file), target)
    parent.send(perf_counter() - started_s)
    parent.recv()
