"""Names of actors: pure functions, so that every process finds the same ones."""

TABLE_PREFIX = "table:"
CATALOG_PREFIX = "catalog:"
# The one actor of a deployment that runs distributed plans.
PLAN_ACTOR = "plans"
# The one actor of a deployment that keeps its jobs and runs their drivers.
JOB_ACTOR = "jobs"


def catalog_actor_name(database: str) -> str:
    """The name of the owner of a database's catalog."""
    return f"{CATALOG_PREFIX}{database}"


def table_actor_name(database: str, unique: str) -> str:
    """The name of an actor that owns a table of the database, or waits for one."""
    return f"{TABLE_PREFIX}{database}/{unique}"
