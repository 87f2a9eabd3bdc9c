"""Both servers side by side, in turns, by a process that sends; and the check of inserted rows."""

import multiprocessing
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks import load, servers
from benchmarks.load import Address, Load, Measured, Request
from benchmarks.processes import cpu_seconds
from benchmarks.report import Point, Side
from benchmarks.servers import RunningServer
from benchmarks.tables import ROW_SCHEMA, Tables, rows, stream_of

# Rows that are in a table before its load begins: of its creation and of one insert, which starts
# what the server starts for a table.
FIRST_ROWS = [-2, -1]
# What a server starts for a table, and for the next one, has started by then.
SETTLE_S = 2.0


@dataclass(frozen=True, slots=True)
class Measuring:
    """Both servers and the process that sends; `seconds` for each of so many rounds."""

    rounds: int
    seconds: float
    destrier: RunningServer
    peer: RunningServer
    sender: ProcessPoolExecutor
    folder: Path

    def turns(self) -> Iterator[RunningServer]:
        """Whose turn it is: the peer's before and after each of Destrier's."""
        yield self.peer
        for _ in range(self.rounds):
            yield self.destrier
            yield self.peer

    def send(
        self,
        server: RunningServer,
        requests: Sequence[Request],
        point: Point,
        first_number: int = 1,
    ) -> Measured:
        """Put load on a server and note its figures; requests are numbered from `first_number`."""
        before_s = cpu_seconds(server.pid)
        measured = self.load(server.address, requests, point.connections, first_number)
        self.side(server, point).add(measured, cpu_seconds(server.pid) - before_s)
        return measured

    def side(self, server: RunningServer, point: Point) -> Side:
        """Where the server's figures of a point are noted."""
        return point.destrier if server is self.destrier else point.peer

    def load(
        self,
        address: Address,
        requests: Sequence[Request],
        connections: int,
        first_number: int = 1,
    ) -> Measured:
        """Put load on an address."""
        wanted = Load(address, requests, connections, self.seconds, first_number=first_number)
        return self.sender.submit(load.run, wanted).result()


@contextmanager
def both_servers(rounds: int, seconds: float) -> Iterator[Measuring]:
    """Both servers, on free ports and in empty folders that are removed in the end."""
    context = multiprocessing.get_context("spawn")
    with (
        tempfile.TemporaryDirectory(prefix="destrier-benchmark-") as name,
        ProcessPoolExecutor(1, mp_context=context) as sender,
        servers.destrier(Path(name) / "destrier") as destrier,
        servers.peer(Path(name) / "peer") as peer,
    ):
        yield Measuring(rounds, seconds, destrier, peer, sender, Path(name))


def create_inserted(tables: Tables, names: Sequence[str]) -> None:
    """Tables of FIRST_ROWS."""
    for name in names:
        tables.create(name, stream_of(rows(FIRST_ROWS[:1])))
        tables.insert(name, stream_of(rows(FIRST_ROWS[1:])))


def check_rows(
    tables: Tables,
    names: Sequence[str],
    numbers: Sequence[int],
    uncertain: Sequence[int],
    side: Side,
) -> None:
    """Compare the acknowledged numbers with what the tables' files hold, row by row."""
    acknowledged = Counter([*FIRST_ROWS * len(names), *numbers])
    found: Counter[int] = Counter()
    for name in names:
        dataset = tables.open(name)
        assert dataset.schema.equals(ROW_SCHEMA)
        held = dataset.to_table(columns=["number"]).column(0).to_pylist()
        found.update(held)
        if tables.count_rows(name) != len(held):
            side.errors["wrong count"] += 1
    side.rows_acknowledged += len(numbers)
    side.rows_lost += (acknowledged - found).total()
    side.rows_doubled += sum(
        max(0, count - max(acknowledged[number], 1)) for number, count in found.items()
    )
    if found.keys() - acknowledged.keys() - set(uncertain):
        side.errors["rows of refused requests"] += 1
