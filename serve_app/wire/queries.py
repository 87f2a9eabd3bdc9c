"""Queries on the wire, in the specification's shape and in that of LanceDB's client."""

from typing import Any

from pydantic import Field, field_validator

from actors.model import ScanRequest
from cluster.errors import InvalidInput, Unsupported
from cluster.settings import LimitSettings
from serve_app.wire.base import (
    INT64_MAX,
    Branch,
    Count,
    FieldPath,
    ObjectRequest,
    SmallCount,
    Version,
    WireModel,
    check_sql,
)

# LanceDB's client asks for every row by asking for this many.
EVERY_ROW = INT64_MAX


class QueryTableRequestVector(WireModel):
    """One query vector or several."""

    single_vector: list[float] | None = None
    multi_vector: list[list[float]] | None = None


class QueryTableRequestColumns(WireModel):
    """Which columns to return: field paths, or output names with field paths or SQL expressions."""

    column_names: list[FieldPath] | None = None
    column_aliases: dict[str, FieldPath] | None = None


class MatchQuery(WireModel):
    """Words to find."""

    boost: float | None = None
    column: FieldPath | None = None
    fuzziness: SmallCount | None = None
    max_expansions: Count | None = None
    operator: str | None = None
    prefix_length: SmallCount | None = None
    terms: str


class PhraseQuery(WireModel):
    """A phrase to find."""

    column: FieldPath | None = None
    slop: SmallCount | None = None
    terms: str


class BoostQuery(WireModel):
    """A query whose score another lowers."""

    positive: "FtsQuery"
    negative: "FtsQuery"
    negative_boost: float | None = None


class MultiMatchQuery(WireModel):
    """Words to find in several columns."""

    match_queries: list[MatchQuery]


class BooleanQuery(WireModel):
    """Queries that must, must not or should match."""

    must: list["FtsQuery"]
    must_not: list["FtsQuery"]
    should: list["FtsQuery"]


class FtsQuery(WireModel):
    """One kind of full-text query."""

    match: MatchQuery | None = None
    phrase: PhraseQuery | None = None
    boost: BoostQuery | None = None
    multi_match: MultiMatchQuery | None = None
    boolean: BooleanQuery | None = None


class StringFtsQuery(WireModel):
    """Full-text search by text."""

    columns: list[FieldPath] | None = None
    query: str


class StructuredFtsQuery(WireModel):
    """Full-text search by structure."""

    query: FtsQuery


class QueryTableRequestFullTextQuery(WireModel):
    """One form of full-text query."""

    string_query: StringFtsQuery | None = None
    structured_query: StructuredFtsQuery | None = None


class _Query(ObjectRequest):
    branch: Branch | None = None
    bypass_vector_index: bool | None = None
    columns: QueryTableRequestColumns | None = None
    distance_type: str | None = None
    ef: Count | None = None
    fast_search: bool | None = None
    filter: str | None = Field(None, description="SQL predicate; every row when absent.")
    full_text_query: QueryTableRequestFullTextQuery | None = None
    k: Count | None = Field(None, description="Rows at most; all when absent.")
    lower_bound: float | None = None
    maximum_nprobes: Count | None = None
    minimum_nprobes: Count | None = None
    nprobes: Count | None = None
    offset: Count | None = None
    order_by: list[Any] | None = Field(None, description="Not of the specification; LanceDB's.")
    prefilter: bool | None = None
    refine_factor: SmallCount | None = None
    upper_bound: float | None = None
    vector: QueryTableRequestVector | None = Field(None, description="Empty for a plain scan.")
    vector_column: FieldPath | None = None
    version: Version | None = None
    with_row_id: bool | None = None

    @field_validator("columns", mode="before")
    @classmethod
    def _read_short_columns(cls, columns: Any) -> Any:
        """LanceDB's client sends a list of names, or a map from output name to expression."""
        if isinstance(columns, list):
            return {"column_names": columns}
        if isinstance(columns, dict) and not (
            isinstance(columns.get("column_names"), list)
            or isinstance(columns.get("column_aliases"), dict)
        ):
            named = {name: value for name, value in columns.items() if value is not None}
            return {"column_aliases": named} if named else None
        return columns

    @field_validator("vector", mode="before")
    @classmethod
    def _read_short_vector(cls, vector: Any) -> Any:
        """LanceDB's client sends a bare list, or a list of lists."""
        if isinstance(vector, list):
            several = bool(vector) and isinstance(vector[0], list)
            return {"multi_vector" if several else "single_vector": vector}
        return vector


class QueryTableRequest(_Query):
    """A scan; searches by vector or text are not built in this release."""

    def scan(self, limits: LimitSettings) -> ScanRequest:
        """The plain scan that this asks for.

        Raises:
            Unsupported: it is a search, or wants an order.
            InvalidInput: both forms of columns, or something is too long.
        """
        if self.vector and (self.vector.single_vector or self.vector.multi_vector):
            raise Unsupported("vector search is not built in this release; leave vector empty")
        if self.full_text_query:
            raise Unsupported("full-text search is not built in this release")
        if self.order_by:
            raise Unsupported("order_by is not built in this release; sort the result")
        columns, names = self._columns(limits)
        return ScanRequest(
            filter=check_sql(self.filter, "filter", limits),
            columns=columns,
            limit=None if self.k == EVERY_ROW else self.k,
            offset=self.offset or None,
            with_row_id=bool(self.with_row_id),
            names=names,
        )

    def _columns(
        self, limits: LimitSettings
    ) -> tuple[tuple[tuple[str, str], ...] | None, tuple[str, ...] | None]:
        """Output names with their SQL, or names, which are no SQL."""
        if self.columns is None:
            return None, None
        names, aliases = self.columns.column_names, self.columns.column_aliases
        if names is not None and aliases is not None:
            raise InvalidInput("columns has both column_names and column_aliases; give one")
        pairs = [(name, name) for name in names or ()] or list((aliases or {}).items())
        if len(pairs) > limits.columns_max:
            raise InvalidInput(f"columns has more than {limits.columns_max} entries")
        for name, expression in pairs:
            check_sql(expression, f"column {name!r}", limits)
        if names is not None:
            return None, tuple(names)
        return (None if aliases is None else tuple(pairs)), None


class ExplainTableQueryPlanRequest(ObjectRequest):
    """A query whose plan to show."""

    branch: Branch | None = None
    query: QueryTableRequest
    verbose: bool | None = None


class AnalyzeTableQueryPlanRequest(_Query):
    """A query to run and measure."""
