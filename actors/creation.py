"""The first version of a table: made, and found again by the request that made it.

The version names the request, so whoever sends that again gets its answer. A try that ended between
this version and the table's name is gone on with.
"""

from dataclasses import dataclass
from typing import Any

import lance
import pyarrow as pa

from actors.catalog_view import STABLE_ROW_IDS_PROPERTY, CatalogSnapshot
from actors.freshness import find_manifest
from actors.incarnation import is_dropped, read_incarnation
from actors.lance_store import (
    commit_first,
    fragments_from_json,
    missing_files,
    transactions,
)
from actors.locations import was_location
from actors.model import Commit, NewTable, RequestKey, StagedFragments
from actors.request_log import DoneRequest, check_same_body, from_properties, to_properties
from actors.storage import Storage
from cluster.errors import OutcomeUnknown, ServiceUnavailable
from cluster.identifiers import ObjectId


@dataclass(frozen=True, slots=True)
class Creation:
    """A table's first version and the request that made it."""

    dataset: Any
    commit: Commit
    key: RequestKey


def create(
    uri: str, table: NewTable, staged: StagedFragments, key: RequestKey, storage: Storage
) -> Creation:
    """Make the first version from staged fragments. Blocks.

    Raises:
        ServiceUnavailable: files of the fragments are gone.
        CommitConflict: another writer made the table first.
        OutcomeUnknown: the table may have been made.
    """
    fragments = fragments_from_json(staged.fragments)
    if missing_files(uri, fragments, storage):
        raise ServiceUnavailable("the uploaded files are gone; send the data again")
    stable = table.properties.get(STABLE_ROW_IDS_PROPERTY, "true").lower() != "false"
    dataset, commit = commit_first(
        uri,
        pa.ipc.read_schema(pa.py_buffer(staged.schema_ipc)),
        fragments,
        to_properties([DoneRequest(key, staged.rows)]),
        storage,
        stable_row_ids=stable if table.stable_row_ids is None else table.stable_row_ids,
    )
    return Creation(dataset, commit, key)


def find_creation(uri: str, key_id: str, storage: Storage) -> Creation | None:
    """The creation of the table in a folder, if the request of this id made it. Blocks.

    None also if that is not known any more.

    Raises:
        OutcomeUnknown: it cannot be read.
    """
    try:
        if find_manifest(uri, None, 1, storage) is None:
            return None
        first = lance.dataset(uri, version=1, storage_options=storage.lance_options)
    except Exception as error:
        raise OutcomeUnknown(
            "storage failed while it was looked up who made the table; send the same request again"
            " with the same x-request-id"
        ) from error
    for version, transaction in transactions(first, uri, None, storage, 1):
        for done in from_properties(transaction.transaction_properties):
            if done.key.id == key_id:
                commit = Commit(version, transaction.uuid, done.rows, repeated=True)
                return Creation(first, commit, done.key)
    return None


def find_same_creation(uri: str, key: RequestKey, storage: Storage) -> Creation | None:
    """The same for a request whose body is known. Blocks.

    Raises:
        InvalidInput: the request had another body.
        OutcomeUnknown: it cannot be read.
    """
    found = find_creation(uri, key.id, storage)
    if found is not None:
        check_same_body(found.key.digest, key)
    return found


def find_nameless(
    database_uri: str,
    table: ObjectId,
    key: RequestKey,
    snapshot: CatalogSnapshot,
    storage: Storage,
) -> tuple[str, Creation] | None:
    """What a request has made for a table that did not get its name, and its folder. Blocks.

    A root table has its name with its folder. Of others, what has an identity had a name once, and
    was deregistered since.

    Raises:
        InvalidInput: the request had another body.
        OutcomeUnknown: it cannot be read.
    """
    if len(table.parts) == 1:
        return None
    named = {row.location for row in snapshot.tables.values()}
    for location in storage.folders(database_uri):
        uri = f"{database_uri}/{location}"
        if (
            was_location(table, location)
            and location not in named
            and not is_dropped(uri, storage)
            and read_incarnation(uri, storage) is None
        ):
            found = find_same_creation(uri, key, storage)
            if found is not None:
                return location, found
    return None
