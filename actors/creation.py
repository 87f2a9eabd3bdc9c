"""The first version of a table: made, and found again by the request that made it.

The version names the request, so whoever sends that again gets its answer. A try that ended between
this version and the table's name is gone on with.
"""

import logging
from dataclasses import dataclass
from typing import Any

import lance
import pyarrow as pa

from actors.catalog_view import CatalogSnapshot, is_to_have_stable_row_ids
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

logger = logging.getLogger(__name__)


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
    stable = table.stable_row_ids
    if stable is None:
        stable = is_to_have_stable_row_ids(table.properties, storage)
    dataset, commit = commit_first(
        uri,
        pa.ipc.read_schema(pa.py_buffer(staged.schema_ipc)),
        fragments,
        to_properties([DoneRequest(key, staged.rows)]),
        storage,
        stable_row_ids=stable,
    )
    return Creation(dataset, commit, key)


def find_creation(uri: str, key_id: str, storage: Storage) -> Creation | None:
    """The creation of the table in a folder, if the request of this id made it. Blocks.

    None also if that cannot be known any more: the first version was cleaned up or is damaged.

    Raises:
        OutcomeUnknown: it cannot be read now.
    """
    try:
        if find_manifest(uri, None, 1, storage) is None:
            return None
        first = _open(uri, 1, storage)
        found = list(transactions(first, uri, None, storage, 1))
    except Exception as error:
        if _is_first_damaged(uri, storage):
            logger.warning("version 1 of the table in %s cannot be read: %s", uri, error)
            return None
        raise OutcomeUnknown(
            "storage failed while it was looked up who made the table; send the same request again"
            " with the same x-request-id"
        ) from error
    for version, transaction in found:
        for done in from_properties(transaction.transaction_properties):
            if done.key.id == key_id:
                commit = Commit(version, transaction.uuid, done.rows, repeated=True)
                return Creation(first, commit, done.key)
    return None


def _is_first_damaged(uri: str, storage: Storage) -> bool:
    """Whether a first version that could not be read still cannot, while a later one can."""
    try:
        if int(_open(uri, None, storage).version) == 1:
            return False
    except Exception:  # noqa: BLE001 - untyped; storage may have failed as a whole
        return False
    try:
        _open(uri, 1, storage)
    except Exception:  # noqa: BLE001 - untyped; storage answers, but not with this
        return True
    return False


def _open(uri: str, version: int | None, storage: Storage) -> Any:
    return lance.dataset(uri, version=version, storage_options=storage.lance_options)


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
    was deregistered since. A folder that cannot be read is passed over: whoever made it, it has no
    name, and it would keep the name from everybody.

    Raises:
        InvalidInput: the request had another body.
    """
    if len(table.parts) == 1:
        return None
    named = {row.location for row in snapshot.tables.values()}
    for location in snapshot.folders:
        if location in named or not was_location(table, location):
            continue
        uri = f"{database_uri}/{location}"
        try:
            if is_dropped(uri, storage) or read_incarnation(uri, storage) is not None:
                continue
            found = find_same_creation(uri, key, storage)
        except (OutcomeUnknown, OSError) as error:
            logger.warning("a folder without a name, %s, cannot be read: %s", uri, error)
            continue
        if found is not None:
            return location, found
    return None
