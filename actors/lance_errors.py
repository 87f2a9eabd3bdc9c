"""The one place that turns pylance's untyped errors into ours, by the prefixes of their texts."""

import re

from cluster.errors import (
    DestrierError,
    InternalError,
    InvalidInput,
    ServiceUnavailable,
    TableBranchNotFound,
    TableIndexNotFound,
    TableNotFound,
    TableVersionNotFound,
)


class CommitConflict(ServiceUnavailable):
    """Another writer changed the same rows first; the table's owner stages the change anew."""


_SOURCE = re.compile(r",? /(home/runner|root/\.cargo|rustc)/\S+")


def translate(error: BaseException, *, context: str) -> DestrierError:
    """The error that a caller may see; `context` is what was being done."""
    if isinstance(error, DestrierError):
        return error
    text = _SOURCE.sub("", str(error))
    if "ommit conflict" in text or "Incompatible transaction" in text:
        return CommitConflict("another writer changed the same rows")
    if context in ("predicate", "expression") and not isinstance(error, OSError):
        return InvalidInput(text)
    if context == "index":
        return TableIndexNotFound("the table has no such index")
    if "was not found" in text and context == "open":
        return TableNotFound("the table is not there")
    if "/tree/" in text:
        return TableBranchNotFound("the branch is not there")
    if context == "version":
        return TableVersionNotFound("the version is not there")
    return InternalError(f"storage failed: {context}")
