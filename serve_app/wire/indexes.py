"""Indexes on the wire."""

from actors.model import IndexStats
from serve_app.wire.base import (
    AtLeastOne,
    Branch,
    Count,
    FieldPath,
    ObjectRequest,
    OperationResponse,
    PagedResponse,
    SmallCount,
    Version,
    WireModel,
)


class CreateTableIndexRequest(ObjectRequest):
    """The index to build."""

    branch: Branch | None = None
    column: FieldPath
    index_type: str
    name: str | None = None
    distance_type: str | None = None
    num_partitions: AtLeastOne | None = None
    num_sub_vectors: AtLeastOne | None = None
    num_bits: AtLeastOne | None = None
    sample_rate: AtLeastOne | None = None
    max_iterations: AtLeastOne | None = None
    target_partition_size: AtLeastOne | None = None
    m: AtLeastOne | None = None
    ef_construction: AtLeastOne | None = None
    with_position: bool | None = None
    base_tokenizer: str | None = None
    language: str | None = None
    max_token_length: Count | None = None
    lower_case: bool | None = None
    stem: bool | None = None
    remove_stop_words: bool | None = None
    ascii_folding: bool | None = None


class CreateTableIndexResponse(OperationResponse):
    """The transaction that added the index."""

    transaction_id: str | None = None


class CreateTableScalarIndexResponse(OperationResponse):
    """The transaction that added the index."""

    transaction_id: str | None = None


class ListTableIndicesRequest(ObjectRequest):
    """Which version's indexes to list."""

    version: Version | None = None
    branch: Branch | None = None
    page_token: str | None = None
    limit: int | None = None


class IndexContent(WireModel):
    """One index."""

    index_name: str
    index_uuid: str
    columns: list[FieldPath]
    status: str
    index_type: str | None = None
    type_url: str | None = None
    num_indexed_rows: Count | None = None
    num_unindexed_rows: Count | None = None
    size_bytes: Count | None = None
    num_segments: SmallCount | None = None
    created_at: str | None = None
    index_version: SmallCount | None = None
    index_details: str | None = None


class ListTableIndicesResponse(PagedResponse):
    """Indexes of a table."""

    indexes: list[IndexContent]


class DescribeTableIndexStatsRequest(ObjectRequest):
    """Which version of the index to describe."""

    version: Version | None = None
    branch: Branch | None = None
    index_name: str | None = None


class DescribeTableIndexStatsResponse(OperationResponse):
    """What an index covers."""

    distance_type: str | None = None
    index_type: str | None = None
    num_indexed_rows: Count | None = None
    num_unindexed_rows: Count | None = None
    num_indices: SmallCount | None = None

    @classmethod
    def of(cls, stats: IndexStats) -> "DescribeTableIndexStatsResponse":
        """From the domain's answer."""
        return cls(
            distance_type=stats.distance_type,
            index_type=stats.index_type,
            num_indexed_rows=stats.num_indexed_rows,
            num_unindexed_rows=stats.num_unindexed_rows,
            num_indices=stats.num_indices,
        )


class DropTableIndexResponse(OperationResponse):
    """The transaction that removed the index."""

    transaction_id: str | None = None
