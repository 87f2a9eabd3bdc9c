"""A load generator: HTTP/1.1 on kept-alive connections, one thread, the same for every server.

Each connection has one request under way and sends the next when the answer is there. The bytes of
a request are prepared; only its number is written into them, as its `x-request-id` and, for an
insert, as the value of its row, so that afterwards each row can be told from every other.
"""

import contextlib
import select
import socket
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from time import perf_counter

Address = tuple[str, int]

# What a server may take to answer the requests that are under way when the time is over.
DRAIN_S = 60.0
_RECEIVE_BYTES = 1 << 16
_END_OF_HEAD = b"\r\n\r\n"
_LENGTH = b"\r\ncontent-length:"


@dataclass(frozen=True, slots=True)
class Request:
    """The bytes of a request around its id (16 hex digits) and its row's value (8 bytes).

    `expected` is the only right body of the answer, where there is one.
    """

    head: bytes
    middle: bytes
    tail: bytes | None = None
    expected: bytes | None = None

    def numbered(self, number: int) -> bytes:
        """The request with this number."""
        start = b"%b%016x%b" % (self.head, number, self.middle)
        if self.tail is None:
            return start
        return start + number.to_bytes(8, "little") + self.tail


@dataclass(frozen=True, slots=True)
class Load:
    """What to send, where, on how many connections and for how long.

    Each connection sends one of the requests again and again; they take turns.
    """

    address: Address
    requests: Sequence[Request]
    connections: int
    seconds: float
    warm_up_s: float = 0.5
    first_number: int = 1


@dataclass(slots=True)
class Measured:
    """What came back; `errors` and the numbers of requests include warm-up and end."""

    rate: float = 0.0
    p50_ms: float = 0.0
    p99_ms: float = 0.0
    acknowledged: list[int] = field(default_factory=list)
    uncertain: list[int] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)

    @property
    def answers(self) -> int:
        """Requests that were answered, rightly or not, or given up."""
        return len(self.acknowledged) + self.errors.total()


class _Connection:
    """One connection and the request under way on it."""

    def __init__(self, address: Address, request: Request) -> None:
        self.request = request
        self.socket = socket.create_connection(address)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.number = 0
        self.sent_s = 0.0
        self.received = b""

    def send(self, number: int) -> None:
        data = self.request.numbered(number)
        self.number = number
        self.received = b""
        self.sent_s = perf_counter()
        self.socket.sendall(data)

    def receive(self) -> tuple[bytes, bytes] | None:
        """Status and body of the answer, None while it is not complete.

        Raises:
            ConnectionError: the server closed the connection.
        """
        data = self.socket.recv(_RECEIVE_BYTES)
        if not data:
            raise ConnectionResetError("closed by the server")
        self.received = received = self.received + data if self.received else data
        return parse_answer(received)


def parse_answer(received: bytes) -> tuple[bytes, bytes] | None:
    """Status and body of an answer that says its length, None while it is not complete."""
    end = received.find(_END_OF_HEAD)
    if end < 0:
        return None
    head = received[: end + 2].lower()
    start = head.find(_LENGTH)
    if start < 0:
        return received[9:12], received[end + 4 :]
    length = int(head[start + len(_LENGTH) : head.index(b"\r\n", start + 2)])
    body = received[end + 4 :]
    return None if len(body) < length else (received[9:12], body[:length])


def run(load: Load) -> Measured:
    """Send until the time is over, then wait for the answers that are still to come."""
    return _Generator(load).run()


class _Generator:
    def __init__(self, load: Load) -> None:
        self._load = load
        self._numbers = count(load.first_number)
        self._poll = select.epoll()
        self._connections: dict[int, _Connection] = {}
        self._latencies: list[float] = []
        self._found = Measured()

    def run(self) -> Measured:
        load = self._load
        for place in range(load.connections):
            self._connect(load.requests[place % len(load.requests)])
        opens_s = perf_counter() + load.warm_up_s
        closes_s = opens_s + load.seconds
        for connection in list(self._connections.values()):
            self._send(connection)
        while (now_s := perf_counter()) < closes_s:
            for descriptor, _ in self._poll.poll(closes_s - now_s):
                self._take(self._connections[descriptor], opens_s, closes_s)
        self._drain(closes_s + DRAIN_S)
        return self._summary()

    def _connect(self, request: Request) -> _Connection:
        connection = _Connection(self._load.address, request)
        self._connections[connection.socket.fileno()] = connection
        self._poll.register(connection.socket.fileno(), select.EPOLLIN)
        return connection

    def _send(self, connection: _Connection) -> None:
        connection.send(next(self._numbers))

    def _take(self, connection: _Connection, opens_s: float, closes_s: float) -> None:
        """Receive; on a complete answer send the next request while there is time."""
        try:
            answer = connection.receive()
        except ConnectionError:
            self._lose(connection, "disconnected")
            if perf_counter() < closes_s:
                self._send(self._connect(connection.request))
            return
        if answer is None:
            return
        now_s = perf_counter()
        if self._is_right(connection, *answer) and opens_s <= now_s < closes_s:
            self._latencies.append(now_s - connection.sent_s)
        if now_s < closes_s:
            self._send(connection)
        else:
            self._close(connection)

    def _is_right(self, connection: _Connection, status: bytes, body: bytes) -> bool:
        number, expected = connection.number, connection.request.expected
        if status == b"200" and expected in (None, body):
            self._found.acknowledged.append(number)
            return True
        if status == b"200":
            self._found.errors["wrong answer"] += 1
        else:
            self._found.errors[f"status {status.decode()}"] += 1
            if status >= b"500":
                self._found.uncertain.append(number)
        return False

    def _drain(self, deadline_s: float) -> None:
        while self._connections and (left_s := deadline_s - perf_counter()) > 0:
            for descriptor, _ in self._poll.poll(left_s):
                self._take(self._connections[descriptor], 0.0, 0.0)
        for connection in list(self._connections.values()):
            self._lose(connection, "unanswered")

    def _lose(self, connection: _Connection, reason: str) -> None:
        self._found.errors[reason] += 1
        self._found.uncertain.append(connection.number)
        self._close(connection)

    def _close(self, connection: _Connection) -> None:
        descriptor = connection.socket.fileno()
        self._poll.unregister(descriptor)
        del self._connections[descriptor]
        connection.socket.close()

    def _summary(self) -> Measured:
        latencies = sorted(self._latencies)
        found = self._found
        found.rate = len(latencies) / self._load.seconds
        if latencies:
            found.p50_ms = 1e3 * latencies[len(latencies) // 2]
            found.p99_ms = 1e3 * latencies[int(len(latencies) * 0.99)]
        return found


@dataclass(frozen=True, slots=True)
class Uploaded:
    """How an upload ended; seconds from the first byte sent to the last one received."""

    status: int
    body: bytes
    seconds: float


def upload(address: Address, head: bytes, source: Path) -> Uploaded:
    """Send `head` and the bytes of a file, as fast as the server takes them."""
    with socket.create_connection(address) as connection, source.open("rb") as file:
        started_s = perf_counter()
        connection.sendall(head)
        # A server that refuses the body may answer and close before it has read everything.
        with contextlib.suppress(ConnectionError):
            connection.sendfile(file)
        received = b""
        while (answer := parse_answer(received)) is None:
            data = connection.recv(_RECEIVE_BYTES)
            if not data:
                raise ConnectionResetError("the server closed the connection without an answer")
            received += data
        return Uploaded(int(answer[0]), answer[1], perf_counter() - started_s)
