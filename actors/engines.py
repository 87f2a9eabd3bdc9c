"""Which engine does the work, and the interface of the one that spreads it over the cluster."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from cluster.settings import Engine, EngineSettings

if TYPE_CHECKING:
    from actors.row_changes import RowWork
    from actors.staging import StagedRewrite


class DistributedStaging(Protocol):
    """Staging of updates and deletes by workers of the cluster; the caller commits."""

    async def takes(self, engine: Engine | None, rows: int) -> bool:
        """Whether a change of a table of `rows` rows is to be staged here."""
        ...

    async def stage(
        self,
        uri: str,
        branch: str | None,
        version: int,
        work: "RowWork",
        fragments: Sequence[int],
    ) -> "StagedRewrite":
        """Stage `work` on the fragments of a version.

        Raises:
            ServiceUnavailable: a worker died or the plan's deadline passed; nothing has changed.
        """
        ...


def is_distributed(
    engine: Engine | None, settings: EngineSettings, rows: int, rows_min: int, nodes: int
) -> bool:
    """Whether Daft does it: when asked to, or when the table is large and other nodes can help."""
    chosen = engine or settings.engine
    if chosen == "auto":
        return rows >= rows_min and nodes >= settings.distributed_nodes_min
    return chosen == "daft"
