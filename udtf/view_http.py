"""How a client of views talks to a server: calls repeated safely, refusals as exceptions."""

import json
import time
import uuid
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import httpx

from cluster.errors import (
    DestrierError,
    ErrorCode,
    OutcomeUnknown,
    ServiceUnavailable,
    error_classes,
)

NAME_DELIMITER = "$"

# Waits before the second, third and fourth try, in seconds.
_RETRY_WAITS_S = (0.2, 0.8, 2.0)
_BUSY = frozenset({429, 503})
_DETAIL_CHARACTERS_MAX = 300


class ViewHttp:
    """Calls of one server as one caller, about one database."""

    def __init__(
        self,
        url: str,
        api_key: str | None,
        token: str | None,
        database: str | None,
        timeout_s: float,
        transport: httpx.BaseTransport | None,
    ) -> None:
        headers = {"x-api-key": api_key, "x-lancedb-database": database}
        if token is not None:
            headers["authorization"] = f"Bearer {token}"
        self._url = url.rstrip("/")
        self._http = httpx.Client(
            headers={name: value for name, value in headers.items() if value is not None},
            timeout=timeout_s,
            transport=transport,
        )

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The JSON object that the server answers; see `send`."""
        answer = self.send(method, path, body)
        try:
            value = answer.json() if answer.content else {}
        except ValueError:
            value = None
        if not isinstance(value, dict):
            raise ServiceUnavailable(f"{self._url} answered no JSON; is it a Destrier server?")
        return value

    def send(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> httpx.Response:
        """Send a request, again if the server is busy or the answer was lost.

        Every try carries the same request id, so that a change is made once.

        Raises:
            DestrierError: the server's refusal, as the class that its code stands for.
        """
        headers = {"x-request-id": str(uuid.uuid4()), "content-type": "application/json"}
        content = None if body is None else json.dumps(body).encode()
        for wait_s in (*_RETRY_WAITS_S, None):
            try:
                answer = self._http.request(
                    method, f"{self._url}/v1/{path}", content=content, headers=headers
                )
            except httpx.TransportError as error:
                if wait_s is None:
                    raise _unreached(self._url, error) from None
            else:
                if answer.is_success:
                    return answer
                if answer.status_code not in _BUSY or wait_s is None:
                    raise refusal(answer)
            time.sleep(wait_s)
        raise AssertionError("the last try returns or raises")


def refusal(answer: httpx.Response) -> DestrierError:
    """What an answer that is no success says."""
    try:
        body = answer.json()
        code, message = ErrorCode(body["code"]), str(body["error"])
    except (KeyError, TypeError, ValueError):
        text = answer.text[:_DETAIL_CHARACTERS_MAX]
        return ServiceUnavailable(f"{answer.url} answered {answer.status_code}: {text}")
    return error_classes().get(code, DestrierError)(message)


def path_of(*names: str) -> str:
    """An object's names as one segment of a path; without names the root."""
    return quote(NAME_DELIMITER.join(names) or NAME_DELIMITER, safe="")


def _unreached(url: str, error: httpx.TransportError) -> ServiceUnavailable:
    reason = str(error) or type(error).__name__
    if isinstance(error, (httpx.ConnectError, httpx.ConnectTimeout)):
        return ServiceUnavailable(f"cannot reach {url}: {reason}")
    return OutcomeUnknown(f"the answer of {url} was lost: {reason}; the request may have been done")
