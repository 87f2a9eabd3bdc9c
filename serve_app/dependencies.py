"""What a handler gets: one request, its authenticated caller and the object that it is about.

The same functions serve the routes of FastAPI and the fast path, so that each rule is in one place.
"""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any
from urllib.parse import unquote_to_bytes

from fastapi import Depends, Path, Query
from pydantic_core import from_json
from starlette.requests import Request
from starlette.types import Receive

from actors.model import Pin, RequestKey
from actors.ports import CatalogOperations, ServerOperations
from cluster.errors import InvalidInput
from cluster.identifiers import (
    DEFAULT_DELIMITER,
    ObjectId,
    TableRef,
    check_database,
    parse_branch,
)
from cluster.settings import Engine, LimitSettings, Settings
from serve_app.arrow_body import StreamingBody, open_arrow_body
from serve_app.auth import Authenticator, Caller, Right

DATABASE_HEADERS = ("x-service-database", "x-lancedb-database")
VERSION_MIN_HEADERS = ("x-lancedb-min-version", "x-lancedb-min-read-version")
REQUEST_ID_HEADERS = ("idempotency-key", "x-request-id")
_ENGINES: Mapping[str, Engine] = {"auto": "auto", "lance": "lance", "daft": "daft"}
ROOT = ObjectId(())
_HASH_CHARACTERS = 32
_BAD_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")


@dataclass(frozen=True, slots=True)
class Service:
    """What one app serves with."""

    settings: Settings
    server: ServerOperations
    authenticator: Authenticator


@dataclass(slots=True)
class Call:
    """One authenticated request; `object_id` is the root where the path names nothing.

    `body` and `json` are empty for operations that take an Arrow stream or nothing.
    """

    service: Service
    request: Request
    caller: Caller
    database: str
    body: bytes
    json: Any
    object_id: ObjectId = ROOT
    index_name: str = ""

    @property
    def server(self) -> ServerOperations:
        """The domain."""
        return self.service.server

    @property
    def catalog(self) -> CatalogOperations:
        """The names of the request's database."""
        return self.service.server.catalog(self.database)

    @property
    def limits(self) -> LimitSettings:
        """What a request may ask for."""
        return self.service.settings.limits

    @property
    def receive(self) -> Receive:
        """Where the body comes from, for operations that take an Arrow stream."""
        return self.request.receive

    @property
    def is_lancedb(self) -> bool:
        """Whether LanceDB's client asks: it alone ends the path of a table route with a slash."""
        if self.request.scope["state"].get("trailing_slash"):
            return True
        return self.request.headers.get("user-agent", "").startswith("LanceDB-")

    @property
    def is_generated_client(self) -> bool:
        """Whether a client that OpenAPI Generator made asks."""
        return self.request.headers.get("user-agent", "").startswith("OpenAPI-Generator/")

    def namespace(self, right: Right) -> ObjectId:
        """The namespace of the path, if the caller has `right` on it."""
        self.caller.require(right, self.database, self.object_id)
        return self.object_id

    def table(self, *rights: Right) -> TableRef:
        """The table or view of the path, if the caller has `rights` on it.

        Raises:
            InvalidInput: the path names the root namespace.
        """
        if self.object_id.is_root:
            raise InvalidInput("the path names the root namespace; name a table")
        for right in rights:
            self.caller.require(right, self.database, self.object_id)
        return TableRef(self.database, self.object_id)

    def require_on_root(self, right: Right) -> None:
        """Refuse unless the caller has `right` on the database's root namespace."""
        self.caller.require(right, self.database, ROOT)

    def pin(self, branch: str | None, version: int | None, tag: str | None = None) -> Pin:
        """The state to read: the one asked for, or one at least as new as the client has seen.

        Raises:
            InvalidInput: a tag beside a version or a branch, or a malformed freshness header.
        """
        if tag is not None and not (version is None and branch is None):
            raise InvalidInput("tag names a version and its branch; leave version and branch out")
        if version is not None or tag is not None:
            return Pin(parse_branch(branch), version, tag)
        return Pin(parse_branch(branch), version_min=self._version_min())

    def engine(self) -> Engine | None:
        """The engine that the body's context asks for, which takes the right to manage."""
        asked = _string_map(self.json, "context").get("engine")
        if asked is None:
            return None
        self.caller.require(Right.MANAGE, self.database, self.object_id)
        engine = _ENGINES.get(asked)
        if engine is None:
            raise InvalidInput(f"context engine {asked!r} is not one of {', '.join(_ENGINES)}")
        return engine

    def key(self, body: bytes) -> RequestKey:
        """What makes a repetition of this write the same write."""
        return RequestKey(self._key_id(), _hash(body))

    def key_of_stream(self) -> RequestKey:
        """The same for a body that is not here yet; whoever reads it makes the digest."""
        return RequestKey(self._key_id(), "")

    def _key_id(self) -> str:
        """A hash of caller, route, database and the client's request id."""
        scope = self.request.scope
        asked = [self.header(name) for name in REQUEST_ID_HEADERS]
        request_id = next((name for name in asked if name), scope["state"].get("request_id", ""))
        # The query holds branch and mode: another branch is another request.
        route = f"{scope['method']} {scope['path']}?{scope['query_string'].decode('latin-1')}"
        return _hash("\n".join((self.caller.name, route, self.database, request_id)).encode())

    def header(self, name: str) -> str | None:
        """A header; one that the body's context carries counts when the real one is absent."""
        return _header(self.request, self.json, name)

    def _version_min(self) -> int | None:
        found = [_whole_number(self.header(name), name) for name in VERSION_MIN_HEADERS]
        return max((version for version in found if version is not None), default=None)


async def open_call(request: Request, body: bytes) -> Call:
    """Authenticate a request and say what it is about.

    Raises:
        Unauthenticated: before anything else is looked at.
        InvalidInput: the body is not JSON, or the database headers are wrong.
    """
    service: Service = request.scope["state"]["service"]
    try:
        json = from_json(body, allow_inf_nan=False) if body else {}
        problem = None
    except ValueError as error:
        json, problem = {}, f"the body is not JSON: {error}"
    caller = await _authenticate(service.authenticator, request, json)
    if problem is not None:
        raise InvalidInput(problem)
    return Call(service, request, caller, _database(service, caller, request, json), body, json)


async def _authenticate(authenticator: Authenticator, request: Request, json: Any) -> Caller:
    authorization = request.headers.get("authorization") or None
    api_key = request.headers.get("x-api-key") or None
    if authorization is None and api_key is None:
        identity = _string_map(json, "identity")
        token = identity.get("auth_token")
        authorization = None if token is None else f"Bearer {token}"
        api_key = identity.get("api_key")
    return await authenticator.authenticate(authorization, api_key)


def _database(service: Service, caller: Caller, request: Request, json: Any) -> str:
    named = {name for header in DATABASE_HEADERS if (name := _header(request, json, header))}
    if len(named) > 1:
        raise InvalidInput(f"the headers {' and '.join(DATABASE_HEADERS)} differ; send one")
    if named:
        return check_database(named.pop())
    return caller.only_database or service.settings.storage.database


def _header(request: Request, json: Any, name: str) -> str | None:
    value = request.headers.get(name)
    if value is None and name.startswith("x-"):
        for key, text in _string_map(json, "context").items():
            if key.lower() == f"header.{name}":
                return text
    return value


def _string_map(json: Any, field: str) -> Mapping[str, str]:
    """A map of a body before the body is validated: what is not text is not there."""
    found = json.get(field) if isinstance(json, dict) else None
    if not isinstance(found, dict):
        return {}
    return {key: value for key, value in found.items() if isinstance(value, str)}


def _whole_number(text: str | None, name: str) -> int | None:
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise InvalidInput(f"header {name} {text!r} is not a version number")
    return int(text)


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:_HASH_CHARACTERS]


async def read_arrow(call: Call, *, may_be_empty: bool = False) -> bytes | StreamingBody:
    """The Arrow IPC stream of a request: whole if it is small, else to be read as it comes.

    Raises:
        InvalidInput: there is none, and `may_be_empty` does not allow that.
    """
    settings = call.service.settings
    body = await open_arrow_body(call.receive, settings.limits, settings.http)
    if body == b"" and not may_be_empty:
        raise InvalidInput("the body is empty; an Arrow IPC stream is required")
    return body


def identify(call: Call, segment: str, delimiter: str | None) -> Call:
    """`call` about the object that a path segment names; a body's `id` must say the same.

    Raises:
        InvalidInput: a segment that is not percent-encoded UTF-8, a name that cannot be stored, or
            a body that names another object.
    """
    joint = DEFAULT_DELIMITER if delimiter is None else delimiter
    named = _body_id(call.json)
    for reading in _readings(call, segment, certain=named is None):
        object_id = ObjectId.parse(reading, joint)
        if named is None or named == object_id.parts:
            call.object_id = object_id
            return call
    shown = ", ".join(object_id.parts)
    raise InvalidInput(f"request body names [{', '.join(named or ())}], the route names [{shown}]")


def identify_index(call: Call, segment: str) -> Call:
    """`call` about the index that a path segment names; a body's `index_name` must say the same.

    Raises:
        InvalidInput: as `identify`.
    """
    found = call.json.get("index_name") if isinstance(call.json, dict) else None
    named = found if isinstance(found, str) else None
    for reading in _readings(call, segment, certain=named is None):
        if named is None or named == reading:
            call.index_name = reading
            return call
    raise InvalidInput(f"request body names index {named!r}, the route names {reading!r}")


def decode_segment(segment: str, *, plus_is_space: bool = False) -> str:
    """A path segment as text.

    Raises:
        InvalidInput: a broken percent escape, or bytes that are not UTF-8.
    """
    if _BAD_ESCAPE.search(segment):
        raise InvalidInput(f"path segment {segment!r} has a '%' without two hexadecimal digits")
    text = segment.replace("+", " ") if plus_is_space else segment
    try:
        return unquote_to_bytes(text.encode("latin-1")).decode()
    except UnicodeError:
        raise InvalidInput(f"path segment {segment!r} is not UTF-8 in percent-encoding") from None


def _readings(call: Call, segment: str, *, certain: bool) -> list[str]:
    """The texts that a segment may stand for, the likeliest last.

    Lance's Rust client writes a space as `+` (and a plus as `%2B`), others mean the plus itself. A
    name in the body decides; without one, only the Rust client always sends the delimiter.
    """
    if "+" not in segment:
        return [decode_segment(segment)]
    readings = [decode_segment(segment, plus_is_space=space) for space in (True, False)]
    if not certain:
        return readings
    return readings[:1] if "delimiter" in call.request.query_params else readings[1:]


def _body_id(json: Any) -> tuple[str, ...] | None:
    found = json.get("id") if isinstance(json, dict) else None
    return tuple(str(name) for name in found) if isinstance(found, list) else None


Delimiter = Annotated[str | None, Query(description="Joins the names of an identifier; `$`.")]
PathId = Annotated[
    str, Path(description="Names joined by the delimiter; the delimiter alone is the root.")
]
PathIndex = Annotated[str, Path(description="The index's name.")]
BranchQuery = Annotated[str | None, Query(description="The branch to act on; main when absent.")]
ModeQuery = Annotated[str | None, Query(description="In either spelling and any case.")]
PageToken = Annotated[str | None, Query(description="The token of the page before.")]
Limit = Annotated[int | None, Query(description="Entries at most.")]
IncludeDeclared = Annotated[bool, Query(description="Tables that have no data yet, too.")]


async def on_database(request: Request, delimiter: Delimiter = None) -> Call:
    """The call of a route that names no object: it is about the root namespace."""
    call: Call = request.state.call
    call.object_id = ObjectId.parse("", DEFAULT_DELIMITER if delimiter is None else delimiter)
    return call


async def on_object(request: Request, id: PathId, delimiter: Delimiter = None) -> Call:
    """The call of a route that names a namespace, table or view."""
    return identify(request.state.call, id, delimiter)


async def on_index(
    request: Request, id: PathId, index_name: PathIndex, delimiter: Delimiter = None
) -> Call:
    """The call of a route that names an index of a table."""
    return identify_index(identify(request.state.call, id, delimiter), index_name)


OnDatabase = Annotated[Call, Depends(on_database)]
OnObject = Annotated[Call, Depends(on_object)]
OnIndex = Annotated[Call, Depends(on_index)]
