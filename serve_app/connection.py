"""One client's connection: uvicorn's parser and writer of HTTP/1.1, with what a server on an open
network adds.

Heads, trailers and silences are bounded before any credential is looked at, an offer to upgrade is
declined, what is not HTTP is answered like every other error, and a client that takes nothing of
its answer is let go.
"""

import asyncio
from itertools import chain
from typing import Any, cast

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from cluster.errors import ErrorCode, InvalidInput
from serve_app.exchange import RequestHead, chosen_request_id
from serve_app.joined_writes import JoinedWrites
from serve_app.problems import problem

_INVALID = "this is no HTTP/1.1 request; check its request line, its headers and its chunks"
_INVALID_METHOD = "this is no HTTP/1.1 request; speak plain HTTP/1.1 here, neither TLS nor HTTP/2"
_INVALID_URL = (
    "the path does not begin with / or holds bytes that are not ASCII; percent-encode those"
)


class Connection(HttpToolsProtocol):
    """uvicorn's connection, with bounds on what a client sends and on how long it is silent."""

    def __init__(
        self, *args: Any, head_bytes_max: int, stalled_timeout_s: float, **options: Any
    ) -> None:
        super().__init__(*args, **options)
        self._head_bytes_max = head_bytes_max
        self._stalled_timeout_s = stalled_timeout_s
        self._is_in_head = False
        self._is_refused = False
        # Of reads since the last that completed a head or brought some of a body.
        self._fruitless_bytes = 0
        # Of the reads that hold the head, with what else was in them.
        self._head_bytes_at_most = 0
        self.url = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Close a connection that never sends anything."""
        below = cast(asyncio.Transport, transport)
        self._writes = JoinedWrites(below, self.loop, self._stalled_timeout_s)
        super().connection_made(self._writes)
        self._close_if_silent()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone."""
        super().connection_lost(exc)
        self._writes.go_on()

    def data_received(self, data: bytes) -> None:
        """Parse, and refuse what goes on for too long without being a request."""
        if self._is_refused:
            return
        self._unset_keepalive_if_required()
        self._fruitless_bytes += len(data)
        self._head_bytes_at_most = len(data) + (self._head_bytes_at_most if self._is_in_head else 0)
        try:
            try:
                self.parser.feed_data(data)
            except httptools.HttpParserUpgrade as offer:
                self._decline_upgrade(memoryview(data)[offer.args[0] :])
        except httptools.HttpParserError as error:
            self.send_400_response(_sentence(error))
            return
        cycle = self.cycle
        is_idle = self._is_in_head or cycle is None or cycle.response_complete
        if not is_idle and not cycle.more_body:
            return
        if self._fruitless_bytes > self._head_bytes_max:
            self.send_400_response(self._too_long())
        elif is_idle and not self.transport.is_closing():
            self._close_if_silent()

    def pause_writing(self) -> None:
        """The client takes its answer more slowly than it is made."""
        super().pause_writing()
        self._writes.abort_if_stalled()

    def resume_writing(self) -> None:
        """The client has taken most of what there was."""
        self._writes.go_on()
        super().resume_writing()

    def on_message_begin(self) -> None:
        """A head begins."""
        super().on_message_begin()
        self._is_in_head = True

    def on_headers_complete(self) -> None:
        """The head is complete.

        Raises:
            InvalidInput: it is too long, or asks for a tunnel.
        """
        if self._head_bytes_at_most > self._head_bytes_max < self._head_bytes():
            raise InvalidInput(self._too_long())
        self._is_in_head = False
        self._fruitless_bytes = 0
        if self.parser.should_upgrade():
            if self.parser.get_method() == b"CONNECT":
                raise InvalidInput("this server is no proxy; send the request without CONNECT")
            # Read again without the offer by `_decline_upgrade`.
            return
        super().on_headers_complete()
        # What still comes are trailers, which are not to count as headers.
        self.headers = []

    def on_body(self, body: bytes) -> None:
        """Some of the body has come."""
        self._fruitless_bytes = 0
        super().on_body(body)

    def send_400_response(self, msg: str) -> None:
        """Answer what cannot be read, after what came before it, and read no more."""
        self._is_refused = True
        self.logger.warning("a request was refused: %s", msg)
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete:
            if not cycle.more_body:
                # An earlier request is still to be answered, and this must not look like that.
                cycle.keep_alive = False
                return
            if cycle.response_started:
                self.transport.close()
                return
        self.transport.write(self._refusal(msg))
        self.transport.close()

    def _should_upgrade(self) -> bool:
        # Makes uvicorn leave the end of such a message alone.
        return True

    def _decline_upgrade(self, left: memoryview) -> None:
        """Read a head again without its offer to upgrade, and then what is `left` after it.

        The parser ends a message that offers one at its head. Clients that offer HTTP/2 this way
        (curl, Java) send a body all the same, and a server may decline.
        """
        while True:
            head = self._head_without_upgrade()
            # The old one may take nothing more after `connection: close`.
            self.parser = httptools.HttpRequestParser(self)
            self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
            self.parser.feed_data(head)
            try:
                self.parser.feed_data(left)
                return
            except httptools.HttpParserUpgrade as offer:
                left = left[offer.args[0] :]

    def _head_without_upgrade(self) -> bytes:
        lines = [
            b"%b %b HTTP/%b"
            % (self.parser.get_method(), self.url, self.parser.get_http_version().encode())
        ]
        lines += [b"%b: %b" % field for field in self.headers if field[0] != b"upgrade"]
        return b"\r\n".join([*lines, b"", b""])

    def _head_bytes(self) -> int:
        return len(self.url) + sum(map(len, chain.from_iterable(self.headers)))

    def _too_long(self) -> str:
        if self._is_in_head:
            return (
                f"the request line and the headers are over {self._head_bytes_max} bytes; "
                "send fewer or shorter ones"
            )
        return (
            f"over {self._head_bytes_max} bytes came that belong to no body; "
            "send no trailers and no chunk extensions"
        )

    def _refusal(self, message: str) -> bytes:
        headers = self.scope["headers"] if self.scope else ()
        path = self.url.partition(b"?")[0].decode("latin-1")
        answer = problem(ErrorCode.INVALID_INPUT, message).response(path)
        request_id = chosen_request_id(RequestHead.of(list(headers)).request_id)
        fields = [
            *self.server_state.default_headers,
            *answer.raw_headers,
            (b"x-request-id", request_id),
            (b"connection", b"close"),
        ]
        head = b"".join(b"%b: %b\r\n" % field for field in fields)
        return STATUS_LINE[answer.status_code] + head + b"\r\n" + bytes(answer.body)

    def _close_if_silent(self) -> None:
        self._unset_keepalive_if_required()
        self.timeout_keep_alive_task = self.loop.call_later(
            self.timeout_keep_alive, self.timeout_keep_alive_handler
        )


def _sentence(error: httptools.HttpParserError) -> str:
    """What the client is to change."""
    cause = error.__context__ or error
    if isinstance(cause, InvalidInput):
        return str(cause)
    if isinstance(cause, httptools.HttpParserInvalidURLError):
        return _INVALID_URL
    if isinstance(cause, httptools.HttpParserInvalidMethodError):
        return _INVALID_METHOD
    return _INVALID
