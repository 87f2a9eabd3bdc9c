"""Commits with pylance: one place that knows how a change reaches storage and when it is safe
there."""

import copy
import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import lance
import pyarrow as pa
from lance.fragment import FragmentMetadata, write_fragments
from lance.optimize import Compaction

from actors.early_sync import EarlySync
from actors.freshness import manifest_path, versions_folder
from actors.model import Commit
from actors.storage import Storage
from cluster.errors import DestrierError, OutcomeUnknown, TableAlreadyExists
from udtf.history import read_transaction
from udtf.lance_errors import translate

# Newest versions searched for a commit whose outcome is in doubt.
_DOUBT_VERSIONS = 64
# 2.2 is the first file format with nullable structs, JSON and blobs v2 without surprises.
DATA_STORAGE_VERSION = "2.2"


def branch_uri(uri: str, branch: str | None) -> str:
    """The folder that holds a branch's manifests and data."""
    return uri if branch is None else f"{uri}/tree/{branch}"


def fragments_to_json(fragments: Sequence[Any]) -> tuple[str, ...]:
    """Fragment metadata as text that crosses processes."""
    return tuple(json.dumps(fragment.to_json()) for fragment in fragments)


def fragments_from_json(fragments: Sequence[str]) -> list[Any]:
    """The reverse of fragments_to_json."""
    return [FragmentMetadata.from_json(text) for text in fragments]


def write_new_fragments(
    data: pa.Table | pa.RecordBatchReader,
    dataset: Any,
    uri: str,
    branch: str | None,
    storage: Storage,
    *,
    overwrite: bool = False,
) -> list[Any]:
    """Write rows for an existing table (open as `dataset`), uncommitted and synced.

    To append, the data's schema is the table's; `overwrite` brings a new one.

    Raises:
        DestrierError: translated; nothing has changed but orphan files may be left.
    """
    base = branch_uri(uri, branch)
    with _early_sync(data, base, storage) as progress:
        try:
            fragments = write_fragments(
                data,
                dataset,
                schema=data.schema,
                mode="overwrite" if overwrite else "append",
                progress=progress,
            )
        except DestrierError:
            raise
        except BaseException as error:
            raise translate(error, context="write") from error
    sync_data_files(base, fragments, storage)
    return list(fragments)


def _early_sync(
    data: pa.Table | pa.RecordBatchReader, base: str, storage: Storage
) -> AbstractContextManager[EarlySync | None]:
    """Flush what a stream becomes while it is written; what is whole already is written at once."""
    if isinstance(data, pa.Table) or not storage.is_local or not storage.fsync:
        return nullcontext()
    return EarlySync(f"{base}/data")


def write_first_fragments(
    data: pa.Table | pa.RecordBatchReader,
    uri: str,
    schema: pa.Schema,
    storage: Storage,
) -> list[Any]:
    """Write the rows of a table that is to be created, uncommitted and synced.

    Raises:
        TableAlreadyExists: the folder holds a table by now.
    """
    with _early_sync(data, uri, storage) as progress:
        try:
            fragments = write_fragments(
                data,
                uri,
                schema=schema,
                mode="create",
                data_storage_version=DATA_STORAGE_VERSION,
                storage_options=storage.lance_options,
                progress=progress,
            )
        except DestrierError:
            raise
        except BaseException as error:
            if storage.exists(versions_folder(uri, None)):
                raise TableAlreadyExists("the table already exists") from error
            raise translate(error, context="write") from error
    sync_data_files(uri, fragments, storage)
    return list(fragments)


def commit_first(
    uri: str,
    schema: pa.Schema,
    fragments: Sequence[Any],
    properties: Mapping[str, str],
    storage: Storage,
    *,
    stable_row_ids: bool,
) -> tuple[Any, Commit]:
    """Make version 1 of a table; storage refuses if there is one.

    Raises:
        CommitConflict: another writer made the table first.
    """
    transaction = lance.Transaction(
        0,
        lance.LanceOperation.Overwrite(schema, fragments),
        transaction_properties=dict(properties),
    )
    try:
        dataset = lance.LanceDataset.commit(
            uri,
            transaction,
            storage_options=storage.lance_options,
            enable_stable_row_ids=stable_row_ids,
            enable_v2_manifest_paths=True,
            max_retries=0,
        )
    except BaseException as error:
        raise translate(error, context="commit") from error
    sync_commit(uri, None, dataset, storage)
    return dataset, Commit(int(dataset.version), transaction.uuid)


def commit(
    dataset: Any,
    uri: str,
    branch: str | None,
    operation: Any,
    properties: Mapping[str, str],
    storage: Storage,
) -> tuple[Any, Commit]:
    """Commit `operation`, which was staged on `dataset`, as the next version of its branch.

    Success means durable. A failure whose outcome storage cannot tell is OutcomeUnknown; any other
    error means that nothing changed.

    Raises:
        CommitConflict: another writer changed the same rows; stage again.
        OutcomeUnknown: the change may have happened.
    """
    transaction = lance.Transaction(
        dataset.version,
        operation,
        uuid=str(uuid.uuid4()),
        transaction_properties=dict(properties),
    )
    try:
        committed = lance.LanceDataset.commit(
            dataset, transaction, storage_options=storage.lance_options
        )
    except BaseException as error:
        translated = translate(error, context="commit")
        landed = _find_landed(dataset, branch, transaction.uuid)
        if landed is None:
            raise translated from error
        committed = landed
    sync_commit(uri, branch, committed, storage)
    return committed, Commit(int(committed.version), transaction.uuid)


def _find_landed(dataset: Any, branch: str | None, transaction_id: str) -> Any | None:
    """The dataset at the version that holds the transaction, or None if no version does."""
    try:
        latest = dataset.checkout_version((branch, None))
        for version in range(
            latest.version, max(dataset.version, latest.version - _DOUBT_VERSIONS), -1
        ):
            found = _transaction(latest, version)
            if found is not None and found.uuid == transaction_id:
                return latest.checkout_version((branch, version))
    except BaseException as error:
        raise OutcomeUnknown(
            "storage failed while the change was committed; send the same request again with the"
            " same x-request-id to learn whether it happened"
        ) from error
    return None


def field_ids(dataset: Any) -> list[int]:
    """Lance's ids of every field, nested ones included."""
    found: list[int] = []
    waiting = list(dataset.lance_schema.fields())
    while waiting:
        item = waiting.pop()
        found.append(item.id())
        waiting.extend(item.children())
    return sorted(found)


def transactions(dataset: Any, count_max: int) -> Iterator[tuple[int, Any]]:
    """The newest transactions with their versions, newest first; stops at cleaned-up versions."""
    lowest = max(0, int(dataset.version) - count_max)
    for version in range(int(dataset.version), lowest, -1):
        try:
            found = _transaction(dataset, version)
        except Exception:  # noqa: BLE001 - pylance raises untyped errors: the version is cleaned up
            return
        if found is not None:
            yield version, found


def _transaction(dataset: Any, version: int) -> Any | None:
    """The transaction that made a version; None where there is none that pylance can decode.

    Of a compaction that moved an index pylance 14 raises TypeError; it carries no request.
    """
    try:
        return read_transaction(dataset, version)
    except TypeError:
        return None


def sync_data_files(uri: str, fragments: Sequence[Any], storage: Storage) -> None:
    """Flush the data files that `fragments` name."""
    if not storage.is_local or not fragments:
        return
    paths = [f"{uri}/data/{file_name(file)}" for item in fragments for file in item.files]
    storage.sync([*paths, f"{uri}/data"])


def file_name(file: Any) -> str:
    """The path of a data file in its table's folder `data`.

    Lance's own property makes a class each time: half of what looking at many fragments costs.
    """
    name: str = file._path
    return name


def missing_files(uri: str, fragments: Sequence[Any], storage: Storage) -> list[str]:
    """Data files of staged fragments that are gone: Lance would commit them and lose the table."""
    paths = [f"{uri}/data/{file_name(file)}" for item in fragments for file in item.files]
    return [path for path in paths if not storage.exists(path)]


def delete_staged(uri: str, fragments: Sequence[Any], storage: Storage) -> None:
    """Delete the files of fragments that were surely not committed.

    Folders that this leaves empty go too: Lance's own catalog takes any `<name>.lance` for a table.
    """
    for item in fragments:
        for file in item.files:
            storage.delete_file(f"{uri}/data/{file_name(file)}")
    storage.delete_empty_folder(f"{uri}/data")
    storage.delete_empty_folder(uri)


def sync_commit(uri: str, branch: str | None, dataset: Any, storage: Storage) -> None:
    """Flush a version's manifest, which also holds its transaction, and the folder.

    What Lance writes to `_transactions` besides is for whoever commits at the same time.
    """
    if storage.is_local and storage.fsync:
        version = int(dataset.version)
        storage.sync([manifest_path(uri, branch, version), versions_folder(uri, branch)])


def commit_compaction(
    dataset: Any, uri: str, branch: str | None, rewrites: Sequence[Any], storage: Storage
) -> Any:
    """Replace fragments by others that hold the same rows; the dataset at the version that this
    makes. Lance moves indexes along.

    Raises:
        CommitConflict: the rows of one of the fragments have changed.
        DestrierError: translated; nothing has changed.
    """
    # Lance moves the object that it is given to the new version, and others read `dataset`.
    committed = copy.copy(dataset)
    try:
        Compaction.commit(committed, list(rewrites))
    except BaseException as error:
        raise translate(error, context="commit") from error
    if storage.is_local and storage.fsync:
        storage.sync(_index_files(branch_uri(uri, branch), dataset, committed, storage))
    sync_commit(uri, branch, committed, storage)
    return committed


def _index_files(base: str, before: Any, after: Any, storage: Storage) -> list[str]:
    """Files of the indexes that `after` has and `before` has not, and their folders."""
    uuids = {segment.uuid for index in after.describe_indices() for segment in index.segments} - {
        segment.uuid for index in before.describe_indices() for segment in index.segments
    }
    folders = [f"{base}/_indices/{uuid}" for uuid in sorted(uuids)]
    files = [f"{folder}/{name}" for folder in folders for name, _, _ in storage.files(folder)]
    return [*files, *folders, *([f"{base}/_indices"] if folders else [])]


def sync_deletions(uri: str, fragments: Sequence[Any], storage: Storage) -> None:
    """Flush the deletion files of fragments whose rows were deleted."""
    if not storage.is_local or not storage.fsync:
        return
    paths = [
        f"{uri}/{item.deletion_file.path(item.id)}" for item in fragments if item.deletion_file
    ]
    storage.sync([*paths, f"{uri}/_deletions"] if paths else [])
