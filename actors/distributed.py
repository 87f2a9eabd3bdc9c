"""The interface of reads that the cluster does, and what they are told."""

from dataclasses import dataclass
from typing import Protocol

from actors.model import Counted, ScanRequest
from actors.ports import RowStream
from cluster.settings import Engine


@dataclass(frozen=True, slots=True)
class ScanTarget:
    """One version of a branch, for readers elsewhere; `num_rows` decides who reads it."""

    uri: str
    branch: str | None
    version: int
    num_rows: int


class DistributedReads(Protocol):
    """Counts and scans by workers of the cluster."""

    async def takes(self, engine: Engine | None, rows: int) -> bool:
        """Whether a read of a table of `rows` rows is to be done here."""
        ...

    async def count_rows(self, target: ScanTarget, predicate: str) -> Counted:
        """Count the rows that `predicate` selects.

        Raises:
            ServiceUnavailable: a worker died or the plan's deadline passed.
        """
        ...

    async def scan(self, target: ScanTarget, request: ScanRequest) -> RowStream:
        """Start a scan; errors in the request are raised here."""
        ...
