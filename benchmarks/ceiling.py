"""What the load generator itself can do: its rate against a server that does nothing."""

import multiprocessing
import select
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection

from benchmarks.load import Address

_BACKLOG = 128
# What it answers, as if it had counted.
COUNT = 1_000_000
_ANSWER = (
    b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 7\r\n"
    b"x-request-id: 0000000000000000\r\n\r\n%d" % COUNT
)


@contextmanager
def trivial_server() -> Iterator[Address]:
    """A process that answers whatever arrives with the same bytes."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_serve, args=(there,), daemon=True)
    process.start()
    try:
        yield "127.0.0.1", here.recv()
    finally:
        process.terminate()
        process.join()


def _serve(parent: Connection) -> None:
    listening = socket.create_server(("127.0.0.1", 0), backlog=_BACKLOG)
    poll = select.epoll()
    poll.register(listening.fileno(), select.EPOLLIN)
    connections: dict[int, socket.socket] = {}
    parent.send(listening.getsockname()[1])
    while True:
        for descriptor, _ in poll.poll():
            if descriptor == listening.fileno():
                accepted, _ = listening.accept()
                accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                connections[accepted.fileno()] = accepted
                poll.register(accepted.fileno(), select.EPOLLIN)
                continue
            # A request is small enough to arrive in one piece.
            if connections[descriptor].recv(1 << 16):
                connections[descriptor].sendall(_ANSWER)
            else:
                connections.pop(descriptor).close()
