"""Binds a source query to its source: which columns of what types it gives, and what it reads.

Nothing is computed: Lance plans the query on the schema and says what it makes of it. Expressions
become safe and unambiguous first, by a checker that the caller passes, because the one that the
server has belongs to a layer above this one.
"""

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import lance
import pyarrow as pa

from cluster.errors import (
    InvalidInput,
    TableBranchNotFound,
    TableColumnNotFound,
    TableTagNotFound,
    TableVersionNotFound,
)
from cluster.settings import LimitSettings
from udtf.checked import canonical_json
from udtf.refresh_model import SourceLocation
from udtf.source_query import RecognisedQuery
from udtf.source_query_sql import NotOfTheForm, is_balanced, quoted, volatile_call, words
from udtf.spec import LINEAGE_COLUMNS, ViewDefinition, ViewKind

_FILTER = "filter"
# Where in Lance's source an error arose; Lance appends it to every text.
_PLACE = re.compile(r",? ?/\S+\.rs:\d+:\d+.*", re.DOTALL)
_REASON_CHARACTERS_MAX = 500
# A source may have thousands of columns; a message that names them all is not read.
_NAMES_SHOWN_MAX = 32


class SafeSql(Protocol):
    """An expression as Lance is to read it, and the top-level columns that it reads."""

    @property
    def sql(self) -> str: ...

    @property
    def columns(self) -> frozenset[str]: ...


class SqlChecker(Protocol):
    """Makes an expression on a table of this schema safe (actors.sql.prepare_expression)."""

    def __call__(self, text: str, schema: pa.Schema, limits: LimitSettings, /) -> SafeSql:
        """The safe form; raises InvalidInput that says what to change."""
        ...


@dataclass(frozen=True, slots=True)
class PlainSql:
    """What `plain_sql` makes of an expression."""

    sql: str
    columns: frozenset[str]


@dataclass(frozen=True, slots=True)
class BoundSource:
    """A source query bound to its source.

    `columns` are output names with SQL that Lance reads, `input_schema` their names and types.
    `inputs` are the source's top-level columns that the view's rows depend on.
    """

    columns: tuple[tuple[str, str], ...]
    filter: str | None
    limit: int | None
    input_schema: pa.Schema
    stable_row_ids: bool
    inputs: frozenset[str] = frozenset()


def plain_sql(text: str, schema: pa.Schema, limits: LimitSettings) -> PlainSql:
    """An expression in parentheses, so that nothing after it can be left over (a SqlChecker).

    Whatever is called like a column counts as one.
    """
    if len(text) > limits.sql_characters_max:
        raise InvalidInput(f"it is longer than {limits.sql_characters_max} characters")
    try:
        if not is_balanced(text):
            raise InvalidInput("it is not one expression; pair its brackets, leave comments out")
        named = words(text)
    except NotOfTheForm as error:
        raise InvalidInput(str(error)) from None
    return PlainSql(f"({text})", frozenset(n for n in schema.names if n.lower() in named))


def bind(
    query: RecognisedQuery,
    dataset: Any,
    definition: ViewDefinition | None,
    limits: LimitSettings,
    check: SqlChecker = plain_sql,
) -> BoundSource:
    """Bind the query to the source, which is open at a version; reads no rows.

    Without a definition (LanceDB's clients send none) `*` is every column, and `output_schema_of`
    says what the view holds.

    Raises:
        InvalidInput: an expression, the filter or the definition does not fit; the message names
            the column, what is wanted and what there is.
        TableColumnNotFound: a column of the definition is not in the source.
    """
    named = _columns(query, dataset.schema, definition)
    _check_names(named)
    safe = {name: _safe(f"column {name!r}", sql, dataset, limits, check) for name, sql in named}
    schema = _projected(dataset, {name: item.sql for name, item in safe.items()})
    if not any(item.columns for item in safe.values()):
        raise InvalidInput("the source query reads no column; name one of the source's")
    condition = None
    if query.filter is not None:
        condition = _safe(_FILTER, query.filter, dataset, limits, check)
        _check_filter(dataset, condition)
    used = set(schema.names)
    if definition is not None:
        used = _check_definition(definition, schema)
    read = [safe[name].columns for name in used]
    if condition is not None:
        read.append(condition.columns)
    return BoundSource(
        columns=tuple((name, item.sql) for name, item in safe.items()),
        filter=None if condition is None else condition.sql,
        limit=query.limit,
        input_schema=schema,
        stable_row_ids=bool(dataset.has_stable_row_ids),
        inputs=frozenset().union(*read),
    )


def output_schema_of(bound: BoundSource) -> pa.Schema:
    """The schema of a query view that is defined by its query alone: all columns nullable."""
    return pa.schema([field.with_nullable(True) for field in bound.input_schema])


def definition_sha(definition: ViewDefinition) -> str:
    """SHA-256 of all in a definition that its rows depend on, but the code and its environment."""
    record: dict[str, Any] = {
        "kind": definition.kind.value,
        "source_query": definition.source_query,
        "output_schema": hashlib.sha256(definition.output_schema).hexdigest(),
    }
    udtf = definition.udtf
    if udtf is not None:
        record["udtf"] = {
            "version": udtf.version,
            "input_columns": udtf.input_columns,
            "partition_by": udtf.partition_by,
            "partition_by_indexed_column": udtf.partition_by_indexed_column,
            "error_handling": udtf.error_handling,
            "batch": udtf.batch,
        }
    return hashlib.sha256(canonical_json(record).encode()).hexdigest()


def open_source(location: SourceLocation, storage_options: Mapping[str, str] | None) -> Any:
    """The source's dataset, at the version that is pinned or at the latest. Blocks.

    Raises:
        TableBranchNotFound, TableTagNotFound, TableVersionNotFound: what is pinned is not there.
        Lance's own errors, if there is no table.
    """
    options = None if storage_options is None else dict(storage_options)
    dataset = lance.dataset(location.uri, storage_options=options)
    if location.tag is not None:
        if location.tag not in dataset.tags.list():
            raise TableTagNotFound(f"the source has no tag {location.tag!r}; name one that it has")
        return dataset.checkout_version(location.tag)
    if location.branch is not None:
        if location.branch not in dataset.branches.list():
            raise TableBranchNotFound(
                f"the source has no branch {location.branch!r}; name one that it has"
            )
        dataset = dataset.checkout_version((location.branch, None))
    if location.version is None or location.version == dataset.version:
        return dataset
    if location.version not in {int(item["version"]) for item in dataset.versions()}:
        raise TableVersionNotFound(
            f"the source has no version {location.version}; its latest is {dataset.version}"
        )
    if location.branch is None:
        return dataset.checkout_version(location.version)
    return dataset.checkout_version((location.branch, location.version))


def version_timestamp(dataset: Any) -> int:
    """When the version that is open was committed, in nanoseconds: no two tables have the same.

    The public call rounds to microseconds, and LanceDB compares nanoseconds.
    """
    return int(dataset._ds.current_version()["timestamp"])


def _columns(
    query: RecognisedQuery, schema: pa.Schema, definition: ViewDefinition | None
) -> tuple[tuple[str, str], ...]:
    if query.columns is not None:
        return query.columns
    names: Iterable[str] = [name for name in schema.names if name not in LINEAGE_COLUMNS]
    if definition is not None and definition.kind is ViewKind.QUERY:
        # Columns that were added to the source since are not in the view.
        names = _output_schema(definition).names
        for name in names:
            if name not in schema.names:
                raise TableColumnNotFound(
                    f"the source has no column {name!r}, which output_schema has; it has"
                    f" {_listed(schema.names)}"
                )
    return tuple((name, quoted(name)) for name in names)


def _check_names(columns: tuple[tuple[str, str], ...]) -> None:
    seen = set()
    for name, _ in columns:
        if name in LINEAGE_COLUMNS:
            raise InvalidInput(
                f"the source query calls a column {name!r}, a name that views need; rename it"
            )
        if "." in name:
            raise InvalidInput(f"the column name {name!r} holds a dot; give it another one")
        if name in seen:
            raise InvalidInput(f"the source query has two columns {name!r}; rename one")
        seen.add(name)


def _safe(what: str, text: str, dataset: Any, limits: LimitSettings, check: SqlChecker) -> SafeSql:
    schema = dataset.schema
    exact = text[1:-1].replace("``", "`") if text.startswith("`") and text.endswith("`") else text
    if exact in schema.names and text in (exact, quoted(exact)):
        return PlainSql(quoted(exact), frozenset({exact}))
    try:
        volatile = volatile_call(text, schema.names)
        if volatile is not None:
            raise InvalidInput(
                f"{volatile}() gives another answer at every refresh; leave it out of the source"
                " query"
            )
        return check(text, schema, limits)
    except InvalidInput as error:
        raise InvalidInput(f"{what} of the source query: {error.message}") from None
    except NotOfTheForm as error:
        raise InvalidInput(f"{what} of the source query: {error}") from None


def _projected(dataset: Any, columns: Mapping[str, str]) -> pa.Schema:
    """The types that Lance gives to the expressions."""
    try:
        return dataset.scanner(columns=dict(columns)).projected_schema
    except (ValueError, OSError, pa.ArrowException):
        # Which of them it was is asked one by one.
        fields = [_field(dataset, f"column {name!r}", name, sql) for name, sql in columns.items()]
    return pa.schema(fields)


def _field(dataset: Any, what: str, name: str, sql: str) -> pa.Field:
    try:
        # With the row id, because Lance refuses to compute a constant alone.
        scanner = dataset.scanner(columns={name: sql}, with_row_id=True)
        return scanner.projected_schema.field(name)
    except (ValueError, OSError, pa.ArrowException) as error:
        raise InvalidInput(f"{what} of the source query: {reason_of(error)}") from None


def _check_filter(dataset: Any, condition: SafeSql) -> None:
    found = _field(dataset, _FILTER, "keep", condition.sql).type
    if found != pa.bool_():
        raise InvalidInput(
            f"the filter of the source query is {found}, not boolean; compare with something"
        )
    if not condition.columns:
        raise InvalidInput("the filter of the source query reads no column; leave it out")
    try:
        # A scan reads it by rules of its own.
        dataset.scanner(columns=[], with_row_id=True, filter=condition.sql).explain_plan()
    except (ValueError, OSError, pa.ArrowException) as error:
        raise InvalidInput(f"{_FILTER} of the source query: {reason_of(error)}") from None


def _check_definition(definition: ViewDefinition, found: pa.Schema) -> set[str]:
    """Check the outputs of the query against the view's; those that the view uses."""
    wanted = _output_schema(definition)
    if definition.kind is ViewKind.QUERY:
        for name in wanted.names:
            if name not in found.names:
                raise InvalidInput(
                    f"output_schema has a column {name!r} that the source query does not give; it"
                    f" gives {_listed(found.names)}"
                )
        for name in found.names:
            if name not in wanted.names:
                raise InvalidInput(
                    f"the source query gives a column {name!r} that output_schema has not; add it"
                    " there or leave it out here"
                )
        _check_types(wanted, found)
        return set(found.names)
    udtf = definition.udtf
    assert udtf is not None
    used = set(found.names if udtf.input_columns is None else udtf.input_columns)
    used |= {name for name in (udtf.partition_by, udtf.partition_by_indexed_column) if name}
    for name in sorted(used):
        if name not in found.names:
            raise InvalidInput(
                f"udtf_spec names the column {name!r}, which the source query does not give; it"
                f" gives {_listed(found.names)}"
            )
    if definition.kind is ViewKind.CHUNKER:
        # What a chunk inherits from its row.
        _check_types(wanted, found)
        used |= set(wanted.names) & set(found.names)
    return used


def _check_types(wanted: pa.Schema, found: pa.Schema) -> None:
    for field in wanted:
        if field.name not in found.names:
            continue
        given = found.field(field.name).type
        try:
            pa.nulls(0, given).cast(field.type)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            raise InvalidInput(
                f"column {field.name!r} is {field.type} in output_schema, but {given} in the source"
                " query, which cannot be converted; change one of them"
            ) from None


def _output_schema(definition: ViewDefinition) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(definition.output_schema))


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(map(repr, names[:_NAMES_SHOWN_MAX]))
    more = len(names) - _NAMES_SHOWN_MAX
    return f"{shown} and {more} more" if more > 0 else shown


def reason_of(error: BaseException) -> str:
    """What an error of Lance's says, without the place in Lance's source where it arose."""
    return _PLACE.sub("", str(error))[:_REASON_CHARACTERS_MAX]
