"""What every wire model shares: how it is read and written, and the types of its fields.

Models are named exactly as the schemas of the Lance namespace specification. They check form only
(types, ranges, what is required); bounds that a deployment sets are checked where a model is turned
into a value of the domain.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from cluster.errors import InvalidInput
from cluster.settings import LimitSettings

INT64_MAX = 2**63 - 1
INT32_MAX = 2**31 - 1

Version = Annotated[int, Field(ge=0, le=INT64_MAX, description="A version number.")]
Count = Annotated[int, Field(ge=0, le=INT64_MAX)]
SmallCount = Annotated[int, Field(ge=0, le=INT32_MAX)]
AtLeastOne = Annotated[int, Field(ge=1, le=INT64_MAX)]
FieldPath = Annotated[
    str,
    Field(min_length=1, description="Dot-separated names; one that holds a dot is in backticks."),
]
Branch = Annotated[str, Field(description="The branch to act on; main when absent.")]
Properties = dict[str, str]

E = TypeVar("E", bound=StrEnum)


class WireModel(BaseModel):
    """Strict about types, silent about unknown fields: clients may be newer than this server."""

    model_config = ConfigDict(
        frozen=True,
        strict=True,
        extra="ignore",
        serialize_by_alias=True,
        protected_namespaces=(),
    )


class Identity(WireModel):
    """Credentials in a body; those of the headers win."""

    api_key: str | None = None
    auth_token: str | None = None


class OperationRequest(WireModel):
    """The fields that every request body may carry."""

    identity: Identity | None = None
    context: dict[str, str] | None = None


class ObjectRequest(OperationRequest):
    """A request body about the object that the path names."""

    id: list[str] | None = Field(None, description="The identifier's names; equal to the path's.")


class OperationResponse(WireModel):
    """The field that every response may carry."""

    context: dict[str, str] | None = None


class PagedResponse(OperationResponse):
    """One page of a listing; without `page_token` it is the last."""

    page_token: str | None = None


class ErrorResponse(OperationResponse):
    """Every answer that is not a success."""

    type: str = Field(examples=["/errors/not-found-error"])
    title: str = Field(examples=["Not found Error"])
    status: int = Field(examples=[404])
    detail: str
    instance: str = Field(description="The path of the request.")
    code: int = Field(ge=0, description="Error code of the Lance namespace specification.")
    error: str


def parse_mode(kind: type[E], text: str | None, default: E, field: str) -> E:
    """A mode in either spelling (`ExistOk`, `exist_ok`) and any case; None is `default`.

    Raises:
        InvalidInput: any other text, the empty one included.
    """
    if text is None:
        return default
    lowered = text.lower()
    for mode in kind:
        if lowered in (mode.value, mode.value.replace("_", "")):
            return mode
    raise InvalidInput(f"{field} {text!r} is not one of {', '.join(kind)}")


def check_sql(text: str | None, field: str, limits: LimitSettings) -> str | None:
    """`text`, if it is not too long.

    Raises:
        InvalidInput: it is.
    """
    if text is not None and len(text) > limits.sql_characters_max:
        raise InvalidInput(f"{field} is longer than {limits.sql_characters_max} characters")
    return text


def check_map(
    entries: Mapping[str, str] | None, field: str, limits: LimitSettings
) -> Mapping[str, str]:
    """`entries` (none when absent), if they are not too many or too large.

    Raises:
        InvalidInput: they are.
    """
    if not entries:
        return {}
    if len(entries) > limits.metadata_entries_max:
        raise InvalidInput(f"{field} has more than {limits.metadata_entries_max} entries")
    if (
        sum(len(k.encode()) + len(v.encode()) for k, v in entries.items())
        > limits.metadata_bytes_max
    ):
        raise InvalidInput(f"{field} holds more than {limits.metadata_bytes_max} bytes")
    return entries


def check_page_limit(limit: int | None, limits: LimitSettings) -> int | None:
    """The page size to use; None lists everything.

    Raises:
        InvalidInput: a page of no entries would never end the listing.
    """
    if limit is None:
        return None
    if limit < 1:
        raise InvalidInput(f"limit {limit} is not a positive number")
    return min(limit, limits.page_size_max)
