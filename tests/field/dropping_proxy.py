"""A TCP proxy that can lose answers: the server has done its work, and the client never hears."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

_PIECE = 1 << 16
# What a gateway tells its client when it has lost the server.
BAD_GATEWAY = b"HTTP/1.1 502 Bad Gateway\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


class DroppingProxy:
    """Listens on a free port of loopback and passes everything on to `port`.

    After `lose(n)` the next n answers are read as far as it takes to know that the server has
    answered; the client gets `told` in their place, and its connection is closed.
    """

    def __init__(self, port: int) -> None:
        self._upstream = port
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._lock = threading.Lock()
        self._to_lose = 0
        self._told = b""
        self.lost = 0
        self._threads: list[threading.Thread] = []

    @property
    def url(self) -> str:
        """Where clients connect to."""
        return f"http://127.0.0.1:{self._listening.getsockname()[1]}"

    def lose(self, answers: int, told: bytes = b"") -> None:
        """Lose that many of the next answers."""
        with self._lock:
            self._to_lose, self._told = answers, told

    def accept(self) -> None:
        """Serve connections until the listening socket is shut."""
        with suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                self._start(self._serve, client)

    def close(self) -> None:
        """Stop listening, and wait for what is under way."""
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        for thread in self._threads:
            thread.join(10)

    def _start(self, run: Callable[..., None], *args: socket.socket) -> None:
        thread = threading.Thread(target=run, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _serve(self, client: socket.socket) -> None:
        server = socket.create_connection(("127.0.0.1", self._upstream))
        self._start(self._pass_requests, client, server)
        with client, server, suppress(OSError):
            while piece := server.recv(_PIECE):
                if self._is_lost():
                    client.sendall(self._told)
                    client.shutdown(socket.SHUT_RDWR)
                    return
                client.sendall(piece)
            client.shutdown(socket.SHUT_RDWR)

    def _pass_requests(self, client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError):
            while piece := client.recv(_PIECE):
                server.sendall(piece)
            server.shutdown(socket.SHUT_WR)

    def _is_lost(self) -> bool:
        with self._lock:
            if self._to_lose == 0:
                return False
            self._to_lose -= 1
            self.lost += 1
            return True


@contextmanager
def dropping_proxy(port: int) -> Iterator[DroppingProxy]:
    """A proxy in front of `port`."""
    proxy = DroppingProxy(port)
    accepting = threading.Thread(target=proxy.accept, daemon=True)
    accepting.start()
    try:
        yield proxy
    finally:
        proxy.close()
        accepting.join(10)
