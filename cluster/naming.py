"""Names of actors: pure functions of what they own, so that every process finds the same one."""

import hashlib

from cluster.identifiers import TableRef

TABLE_PREFIX = "table:"
CATALOG_PREFIX = "catalog:"
# The one actor of a deployment that runs distributed plans.
PLAN_ACTOR = "plans"
# The one actor of a deployment that keeps its jobs and runs their drivers.
JOB_ACTOR = "jobs"


def catalog_actor_name(database: str) -> str:
    """The name of the owner of a database's catalog."""
    return f"{CATALOG_PREFIX}{database}"


def table_actor_name(table: TableRef, uri: str) -> str:
    """The name of a table's owner; the folder is part of it, so a new life has a new name."""
    folder = hashlib.sha256(uri.encode()).hexdigest()[:12]
    return f"{TABLE_PREFIX}{table.database}/{table.id.stored}@{folder}"
