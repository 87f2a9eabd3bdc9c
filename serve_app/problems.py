"""Errors as answers: the only place that decides an HTTP status and writes an error body.

Every answer that is not a success has the same body: the problem fields `type`, `title`, `status`,
`detail` and `instance`, and `code` and `error`, which the generated clients need.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Scope

from cluster.errors import DestrierError, ErrorCode, InternalError, TableAlreadyExists
from serve_app.wire.base import ErrorResponse

logger = logging.getLogger(__name__)

STATUSES: Mapping[ErrorCode, int] = {
    ErrorCode.UNSUPPORTED: 406,
    ErrorCode.NAMESPACE_NOT_FOUND: 404,
    ErrorCode.NAMESPACE_ALREADY_EXISTS: 409,
    ErrorCode.NAMESPACE_NOT_EMPTY: 409,
    ErrorCode.TABLE_NOT_FOUND: 404,
    ErrorCode.TABLE_ALREADY_EXISTS: 409,
    ErrorCode.TABLE_INDEX_NOT_FOUND: 404,
    ErrorCode.TABLE_INDEX_ALREADY_EXISTS: 409,
    ErrorCode.TABLE_TAG_NOT_FOUND: 404,
    ErrorCode.TABLE_TAG_ALREADY_EXISTS: 409,
    ErrorCode.TRANSACTION_NOT_FOUND: 404,
    ErrorCode.TABLE_VERSION_NOT_FOUND: 404,
    ErrorCode.TABLE_COLUMN_NOT_FOUND: 400,
    ErrorCode.INVALID_INPUT: 400,
    ErrorCode.CONCURRENT_MODIFICATION: 409,
    ErrorCode.PERMISSION_DENIED: 403,
    ErrorCode.UNAUTHENTICATED: 401,
    ErrorCode.SERVICE_UNAVAILABLE: 503,
    ErrorCode.INTERNAL: 500,
    ErrorCode.INVALID_TABLE_STATE: 400,
    ErrorCode.TABLE_SCHEMA_VALIDATION_ERROR: 400,
    ErrorCode.THROTTLING: 503,
    ErrorCode.TABLE_BRANCH_NOT_FOUND: 404,
    ErrorCode.TABLE_BRANCH_ALREADY_EXISTS: 409,
}

KINDS: Mapping[int, tuple[str, str]] = {
    400: ("/errors/bad-request", "Malformed request"),
    401: (
        "/errors/unauthorized-request",
        "No valid authentication credentials for the operation",
    ),
    403: ("/errors/forbidden-request", "Not authorized to make this request"),
    404: ("/errors/not-found-error", "Not found Error"),
    405: ("/errors/method-not-allowed", "Method not allowed"),
    406: ("/errors/unsupported", "Unsupported operation"),
    409: ("/errors/conflict", "The namespace has been concurrently modified"),
    413: ("/errors/content-too-large", "Request body too large"),
    500: ("/errors/server-error", "Internal Server Error"),
    503: ("/errors/service-unavailable", "Slow down"),
}

HEADERS: Mapping[int, Mapping[str, str]] = {
    401: {"www-authenticate": "Bearer"},
    503: {"retry-after": "1"},
}

_VALIDATION_ERRORS_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Problem:
    """An error on its way to a client."""

    status: int
    code: ErrorCode
    message: str
    headers: Mapping[str, str]

    def response(self, instance: str) -> Response:
        """The answer; `instance` is the path of the request as it was sent."""
        kind, title = KINDS.get(self.status, KINDS[400 if self.status < 500 else 500])
        body = ErrorResponse(
            type=kind,
            title=title,
            status=self.status,
            detail=self.message,
            instance=instance,
            code=self.code,
            error=self.message,
        )
        return Response(
            body.model_dump_json(exclude_none=True),
            self.status,
            dict(self.headers),
            "application/json",
        )


def problem(code: ErrorCode, message: str, status: int | None = None) -> Problem:
    """The problem for a code; `status` overrides what the code alone would give."""
    decided = STATUSES[code] if status is None else status
    return Problem(decided, code, message, HEADERS.get(decided, {}))


def problem_of(error: Exception, *, for_lancedb: bool) -> Problem:
    """What to tell the client of `error`; a fault of ours is logged under the id that it gets."""
    match error:
        case TableAlreadyExists() if for_lancedb:
            # LanceDB's client recognises a taken name by this status and these words alone.
            return problem(error.code, f"Table already exists: {error.message}", 400)
        case InternalError():
            return _fault(error)
        case DestrierError():
            return problem(error.code, error.message)
        case RequestValidationError():
            return problem(ErrorCode.INVALID_INPUT, validation_sentence(error.errors()))
        case HTTPException():
            return _framework_problem(error)
        case ClientDisconnect():
            return problem(ErrorCode.INVALID_INPUT, "the client left before its request was whole")
        case _:
            return _fault(error)


def answer_error(request: Request, error: Exception) -> Response:
    """The answer to `request` when handling it raised `error`."""
    for_lancedb = bool(request.scope.get("state", {}).get("trailing_slash"))
    return problem_of(error, for_lancedb=for_lancedb).response(sent_path(request.scope))


def sent_path(scope: Scope) -> str:
    """The path as the client wrote it, percent escapes kept."""
    raw: bytes | None = scope.get("raw_path")
    return str(scope["path"]) if raw is None else raw.partition(b"?")[0].decode("latin-1")


def validation_sentence(errors: Sequence[Any]) -> str:
    """The first few errors of a validation, each naming its field."""
    told = [_tell(error["loc"], error["msg"]) for error in errors[:_VALIDATION_ERRORS_SHOWN]]
    more = len(errors) - len(told)
    return "; ".join(told) + (f"; and {more} more" if more > 0 else "")


def _tell(location: Sequence[str | int], message: str) -> str:
    where, *path = location
    field = ".".join(str(part) for part in path)
    said = message[:1].lower() + message[1:]
    return f"{where} field '{field}': {said}" if field else f"{where}: {said}"


def _framework_problem(error: HTTPException) -> Problem:
    """A refusal by the framework itself: an unknown route, a wrong method."""
    messages = {
        404: "no operation has this path; /docs lists all of them",
        405: "the operation at this path wants another method; see the allow header",
    }
    message = messages.get(error.status_code, error.detail)
    code = ErrorCode.UNSUPPORTED if error.status_code in messages else ErrorCode.INVALID_INPUT
    return Problem(error.status_code, code, message, dict(error.headers or {}))


def _fault(error: Exception) -> Problem:
    error_id = uuid4().hex[:16]
    logger.error("error id %s", error_id, exc_info=error)
    return problem(ErrorCode.INTERNAL, f"internal error; the server's log has it as {error_id}")
