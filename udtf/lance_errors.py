"""The one place that turns pylance's untyped errors into ours, by the beginnings of their texts.

The same mistake is an OSError, a ValueError, a RuntimeError or an ArrowInvalid, depending on the
call it was found in, so texts are all there is. tests/unit/test_lance_errors.py provokes each of
them and fails when a new pylance words one differently.
"""

import asyncio
import re
from collections.abc import Callable

from cluster.errors import (
    DestrierError,
    InternalError,
    InvalidInput,
    ServiceUnavailable,
    TableAlreadyExists,
    TableBranchAlreadyExists,
    TableBranchNotFound,
    TableIndexNotFound,
    TableNotFound,
    TableSchemaValidationError,
    TableTagAlreadyExists,
    TableTagNotFound,
    TableVersionNotFound,
)

_REASON_CHARACTERS_MAX = 500
# What is read of a text at its beginning and at its end: some repeat a predicate of megabytes.
_END_CHARACTERS_MAX = 2_000

# Contexts in which a complaint about input is about what the caller sent.
_CALLERS_INPUT = ("predicate", "expression", "write")

# Where in Lance's source an error arose; Lance appends it to every text.
_SOURCE = re.compile(r",?( location:)? ?(?:/[^\s/,()]+)+\.rs:\d+:\d+")
# Lance's reader of files calls a damaged file a user's error.
_DAMAGED_FILE = re.compile(r"/lance-file/src/reader|/lance-io/src/|/lance-encoding/src/")
_ABSOLUTE_PATH = re.compile(r"(?<![\w./])/(?:[\w.@+=~-]+/)+[\w.@+=~-]*")
_MISSING_TRANSACTION = re.compile(r"^Not found: .*/_transactions/[^/]+\.txn$")
_WRAPPING = re.compile(
    r"(?:External error|Invalid user input|Not supported|Query Execution error|Execution error"
    r"|Error during planning|Error parsing function|Error applying filter expression to batch"
    r"|Arrow error|Compute error|Invalid argument error|Schema error"
    r"|This feature is not implemented|Internal error|LanceError\(\w+\)): "
)
_CALLERS_FAULT = re.compile(
    r"(?:External error: )?"
    r"(?:Invalid user input: |Not supported: |Query Execution error: |LanceError\(Arrow\): "
    # DataFusion takes a BETWEEN of values that do not compare for a fault of its own.
    r"|LanceError\(IO\): Internal error: Failed to coerce types)"
)


class CommitConflict(ServiceUnavailable):
    """Another writer's commit came first; whoever staged the change stages it anew.

    Internal: the table's owner retries, and turns too many of these into Throttling.
    """


def translate(error: BaseException, *, context: str) -> DestrierError:
    """The error that a caller may see; raise it `from error`, whose text is for the log only.

    `context` says what was being done: `predicate`, `expression` or `write` if Lance was given
    something of the caller's, else `open`, `version`, `index`, `commit`, `catalog` or the like.
    An interrupt, a cancellation or the end of a generator is raised as it is.
    """
    if isinstance(error, DestrierError):
        return error
    if isinstance(error, (KeyboardInterrupt, SystemExit, GeneratorExit, asyncio.CancelledError)):
        raise error
    text = _without_middle(str(error))
    plain = _SOURCE.sub("", text)
    for pattern, make in _RULES:
        match = pattern.search(plain)
        if match is not None:
            return make(match, context)
    callers = context in _CALLERS_INPUT and _DAMAGED_FILE.search(text) is None
    if callers and _CALLERS_FAULT.match(plain):
        return InvalidInput(f"{context}: {_reason(plain)}")
    return InternalError(f"the server failed while it worked on this: {context}")


def is_missing_transaction(error: BaseException) -> bool:
    """Whether a version's transaction was read from a file of its own, and there is none.

    The manifest holds it, but not in versions that an old Lance made, nor if it has over 20 MiB.
    """
    return _MISSING_TRANSACTION.match(_SOURCE.sub("", str(error))) is not None


# --- what the text says exactly -------------------------------------------------------------------


def _conflict(match: re.Match[str], context: str) -> DestrierError:
    return CommitConflict("another writer changed the table at the same time")


def _no_version(match: re.Match[str], context: str) -> DestrierError:
    version = int(match["version"])
    if context == "commit" and version == 0:
        # How Lance words that a table which was to be created is there already.
        return _conflict(match, context)
    branch = match["branch"]
    where = "" if branch in (None, "main") else f"branch {branch!r} of "
    return TableVersionNotFound(f"{where}the table has no version {version}")


def _no_branch(match: re.Match[str], context: str) -> DestrierError:
    return TableBranchNotFound(f"the table has no branch {match['branch']!r}")


def _no_table(match: re.Match[str], context: str) -> DestrierError:
    return TableNotFound("the table has no data or is gone")


def _table_exists(match: re.Match[str], context: str) -> DestrierError:
    if context == "commit":
        return _conflict(match, context)
    return TableAlreadyExists("the table exists already")


def _no_tag(match: re.Match[str], context: str) -> DestrierError:
    return TableTagNotFound(f"the table has no tag {match['tag']!r}")


def _tag_exists(match: re.Match[str], context: str) -> DestrierError:
    return TableTagAlreadyExists(f"the table has a tag {match['tag']!r} already")


def _branch_exists(match: re.Match[str], context: str) -> DestrierError:
    return TableBranchAlreadyExists(f"the table has a branch {match['branch']!r} already")


def _bad_reference(match: re.Match[str], context: str) -> DestrierError:
    return InvalidInput(f"name of a branch or tag: {match['reason']}")


def _no_index(match: re.Match[str], context: str) -> DestrierError:
    return TableIndexNotFound(f"the table has no index {match['index']!r}")


def _null(match: re.Match[str], context: str) -> DestrierError:
    return TableSchemaValidationError(
        f"column {match['column']!r} takes no nulls, and there is one; give it a value in every row"
    )


def _other_schema(match: re.Match[str], context: str) -> DestrierError:
    if context == "commit":
        # The rows fitted when they were staged; another writer has replaced the columns since.
        return _conflict(match, context)
    return TableSchemaValidationError(
        f"the data do not fit the table's columns: {_shortened(match['reason'])}"
    )


def _bad_schema(match: re.Match[str], context: str) -> DestrierError:
    return TableSchemaValidationError(
        f"the table cannot have these columns: {match['reason'].rstrip(':')}"
    )


def _rule(
    pattern: str, make: Callable[[re.Match[str], str], DestrierError]
) -> tuple[re.Pattern[str], Callable[[re.Match[str], str], DestrierError]]:
    return re.compile(pattern), make


# Read from the top; the first that fits decides.
_RULES = (
    _rule(
        r"^(?:Incompatible transaction|Retryable commit conflict|Commit conflict)\b",
        _conflict,
    ),
    _rule(
        r"^Dataset at path (?:\S*/tree/(?P<branch>.+)|.*)/_versions/(?P<version>\d+)\.manifest"
        r" was not found",
        _no_version,
    ),
    _rule(
        r"^Version not found error: version (?P<branch>\S+):(?P<version>\d+) does not exist",
        _no_version,
    ),
    _rule(r"^(?:Dataset at path .* )?Not found: .*/tree/(?P<branch>.+)/_versions$", _no_branch),
    _rule(r"^Dataset at path .* was not found", _no_table),
    _rule(r"^Not found: .*/_versions$", _no_table),
    _rule(r"^Dataset already exists: ", _table_exists),
    _rule(r"^Ref not found error: tag (?P<tag>.+) does not exist", _no_tag),
    _rule(r"^Ref not found error: branch (?P<branch>.+) does not exist", _no_branch),
    _rule(r"^Ref conflict error: tag (?P<tag>.+) already exists", _tag_exists),
    _rule(r"^Ref conflict error: branch (?P<branch>.+) already exists", _branch_exists),
    _rule(r"^Ref is invalid: (?P<reason>.+)", _bad_reference),
    _rule(r"^'Index \"(?P<index>.+)\" not found'$", _no_index),
    _rule(r"^Lance index not found: name=(?P<index>.+)", _no_index),
    _rule(r"Column '(?P<column>.+)' is declared as non-nullable but contains null values", _null),
    _rule(r"The field `(?P<column>.+)` contained null values even though", _null),
    _rule(r"^Append with different schema: (?P<reason>.+)", _other_schema),
    _rule(r"^LanceError\(Schema\): (?P<reason>.+)", _bad_schema),
)


# --- what to tell of a mistake in SQL -------------------------------------------------------------

# Replaced in this order: what Lance says, and what the caller can do about it.
_ADVICE = (
    (re.compile(r".*\(sql parser error: recursion limit exceeded\)$"), "it is nested too deeply"),
    (re.compile(r".*\(sql parser error: (.*)\)$"), r"syntax error: \1"),
    (re.compile(r".*?\bError optimizing sql filter: .*?\) \((.*)\)$"), r"\1"),
    (
        re.compile(r".*?Received literal (.*) and could not convert to literal of type '(.*)'.*"),
        r"literal \1 does not fit type \2; write a literal of that type, as in date '2024-01-31',"
        " or cast it",
    ),
    (
        re.compile(r".*does not support logical expression (\w+).*"),
        r"\1 is not supported; only what can be computed from one row is",
    ),
    (
        re.compile(r".*Scans must request at least one column.*"),
        "it reads no column; use at least one",
    ),
    (
        re.compile(
            r"(?: Did you mean| Valid fields are| Column names are case sensitive"
            r"| in dataset schema: Schema| This issue was likely caused by).*"
        ),
        "",
    ),
    (re.compile(r"(.*Divide by zero) error"), r"\1; exclude zeros, as in x / nullif(y, 0)"),
    (re.compile(r"Cast error: (.*)"), r"\1; try_cast gives null instead"),
    (re.compile(r"(The filter .* does not return a boolean)"), r"\1; compare it with something"),
)


def _reason(text: str) -> str:
    reason = " ".join(text.split())
    for pattern, advice in _ADVICE:
        reason = pattern.sub(advice, _WRAPPING.sub("", reason), count=1)
    return _shortened(_ABSOLUTE_PATH.sub("(a path)", reason))


def _without_middle(text: str) -> str:
    if len(text) <= 2 * _END_CHARACTERS_MAX:
        return text
    return f"{text[:_END_CHARACTERS_MAX]} ... {text[-_END_CHARACTERS_MAX:]}"


def _shortened(text: str) -> str:
    if len(text) <= _REASON_CHARACTERS_MAX:
        return text
    return text[:_REASON_CHARACTERS_MAX] + "..."
