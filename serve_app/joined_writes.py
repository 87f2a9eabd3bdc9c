"""A connection that sends what is written to it in one turn of the event loop as one piece, and
ends when nobody takes it.

uvicorn writes the head and the body of an answer one after the other, and uvloop sends each at
once. Joined they cost one system call, one packet and one wake-up of the client: a quarter more
requests per second for small answers.

A transport waits for ever for a client that reads nothing, also when it is closed.
"""

import asyncio
from typing import Any

# More than the answers that this is for; what is longer is not copied together.
_JOINED_BYTES_MAX = 16 << 10


class JoinedWrites(asyncio.Transport):
    """The methods that uvicorn calls, of `transport`; `stalled_timeout_s` is how long a client may
    take nothing while something waits for it."""

    def __init__(
        self,
        transport: asyncio.Transport,
        loop: asyncio.AbstractEventLoop,
        stalled_timeout_s: float,
    ) -> None:
        super().__init__()
        self._transport = transport
        self._loop = loop
        self._stalled_timeout_s = stalled_timeout_s
        self._stalled: asyncio.TimerHandle | None = None
        self._waiting: list[bytes | bytearray | memoryview] = []
        self._waiting_bytes = 0

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send `data` when this turn of the loop is over, or at once with what waits if it is
        much."""
        if self._waiting_bytes + len(data) > _JOINED_BYTES_MAX:
            self._send()
            self._transport.write(data)
            return
        if not self._waiting:
            self._loop.call_soon(self._send)
        self._waiting.append(data)
        self._waiting_bytes += len(data)

    def close(self) -> None:
        """Close when everything written is sent, or when the client takes no more of it."""
        self._send()
        self._transport.close()
        if self._transport.get_write_buffer_size():
            self.abort_if_stalled()

    def abort_if_stalled(self) -> None:
        """Give the client up once it has taken nothing for the time, however slow it was before."""
        self.go_on()
        self._stalled = self._loop.call_later(
            self._stalled_timeout_s, self._look, self._transport.get_write_buffer_size()
        )

    def go_on(self) -> None:
        """The client has taken what it was to take."""
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None

    def is_closing(self) -> bool:
        """Whether the connection is closed, or will be when everything is sent."""
        return self._transport.is_closing()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Facts about the connection."""
        return self._transport.get_extra_info(name, default)

    def pause_reading(self) -> None:
        """Take no more from the client for now."""
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Go on taking."""
        self._transport.resume_reading()

    def _look(self, left_before: int) -> None:
        left = self._transport.get_write_buffer_size()
        if left >= left_before:
            self._transport.abort()
        elif left:
            self.abort_if_stalled()

    def _send(self) -> None:
        if not self._waiting:
            return
        joined = b"".join(self._waiting)
        self._waiting.clear()
        self._waiting_bytes = 0
        # The client may have gone away since.
        if not self._transport.is_closing():
            self._transport.write(joined)
