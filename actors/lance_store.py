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
from actors.freshness import find_manifest, manifest_version, versions_folder
from actors.model import Commit
from actors.storage import Storage
from cluster.errors import DestrierError, OutcomeUnknown, TableAlreadyExists
from udtf.history import read_transaction
from udtf.lance_errors import is_missing_transaction, translate

# Newest versions searched for a commit whose outcome is in doubt.
_DOUBT_VERSIONS = 64
# pylance 14 writes larger transactions, of some 20 MiB, to a file of their own only.
_INLINE_BYTES_MAX = 16 << 20
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
    """Make version 1 of a table; storage refuses if there is one. Outcomes are those of `commit`.

    Raises:
        CommitConflict: another writer made the table first.
        OutcomeUnknown: the table may have been made.
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
        translated = translate(error, context="commit")
        dataset = _find_first(uri, transaction.uuid, storage)
        if dataset is None:
            raise translated from error
    make_durable(uri, None, dataset, storage, transaction)
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
    make_durable(uri, branch, committed, storage, transaction)
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
        raise _unknown("the change was committed") from error
    return None


def _find_first(uri: str, transaction_id: str, storage: Storage) -> Any | None:
    """The dataset at version 1 if the transaction made it, else None."""
    try:
        names = storage.listing(versions_folder(uri, None)).names
        if all(manifest_version(name) is None for name in names):
            return None
        first = lance.dataset(uri, version=1, storage_options=storage.lance_options)
        found = _transaction(first, 1)
    except BaseException as error:
        raise _unknown("the table was made") from error
    return first if found is not None and found.uuid == transaction_id else None


def _unknown(doing: str) -> OutcomeUnknown:
    return OutcomeUnknown(
        f"storage failed while {doing}; send the same request again with the same x-request-id to"
        " learn whether it happened"
    )


def field_ids(dataset: Any) -> list[int]:
    """Lance's ids of every field in the schema's order, nested ones after their parent."""
    found: list[int] = []
    waiting = dataset.lance_schema.fields()[::-1]
    while waiting:
        item = waiting.pop()
        found.append(item.id())
        waiting.extend(item.children()[::-1])
    return found


def transactions(
    dataset: Any, uri: str, branch: str | None, storage: Storage, count_max: int
) -> Iterator[tuple[int, Any]]:
    """The newest transactions with their versions, newest first; stops at cleaned-up versions.

    Raises:
        OutcomeUnknown: a version that is there cannot be read. A request that asks for what it
            holds may have been carried out.
    """
    lowest = max(0, int(dataset.version) - count_max)
    for version in range(int(dataset.version), lowest, -1):
        try:
            found = _transaction(dataset, version)
        except Exception as error:  # untyped: of storage, or of a version that is gone
            if _is_cleaned_up(uri, branch, version, storage):
                return
            raise _unknown("the requests that are done were looked up") from error
        if found is not None:
            yield version, found


def _is_cleaned_up(uri: str, branch: str | None, version: int, storage: Storage) -> bool:
    try:
        return find_manifest(uri, branch, version, storage) is None
    except OSError:
        return False


def _transaction(dataset: Any, version: int) -> Any | None:
    """The transaction that made a version; None where there is none that pylance can decode.

    Of a compaction that moved an index pylance 14 raises TypeError; it carries no request.
    """
    try:
        return read_transaction(dataset, version)
    except TypeError:
        return None
    except Exception as error:
        if is_missing_transaction(error):
            return None
        raise


def sync_data_files(uri: str, fragments: Sequence[Any], storage: Storage) -> None:
    """Flush the data files that `fragments` name, and the blobs beside them.

    Files that a branch has from the version that it began at are durable since then.
    """
    if not storage.is_local or not storage.fsync:
        return
    paths: list[str] = []
    for path in _own_files(uri, fragments):
        paths.append(path)
        folder = _blob_folder(path)
        blobs = storage.listing(folder).names
        paths.extend(f"{folder}/{name}" for name in blobs)
        paths.extend([folder] if blobs else [])
    storage.sync([*paths, f"{uri}/data"] if paths else [])


def _own_files(uri: str, fragments: Sequence[Any]) -> list[str]:
    """The data files of `fragments` that lie in the folder `uri`: those of a table or branch that
    this one began as lie in that one's."""
    return [
        f"{uri}/data/{file_name(file)}"
        for item in fragments
        for file in item.files
        if file.base_id is None
    ]


def _blob_folder(path: str) -> str:
    """Where Lance puts the large blobs of a data file; small ones are in the file itself."""
    return path.removesuffix(".lance")


def file_name(file: Any) -> str:
    """The path of a data file in its table's folder `data`.

    Lance's own property makes a class each time: half of what looking at many fragments costs.
    """
    name: str = file._path
    return name


def missing_files(uri: str, fragments: Sequence[Any], storage: Storage) -> list[str]:
    """Data files of staged fragments that are gone: Lance would commit them and lose the table.

    Blobs beside a data file are not looked for, since only its rows tell which there are; they are
    deleted after it.
    """
    return [path for path in _own_files(uri, fragments) if not storage.exists(path)]


def delete_staged(uri: str, fragments: Sequence[Any], storage: Storage) -> None:
    """Delete the files of fragments that were surely not committed, and the blobs beside them.

    Folders that this leaves empty go too: Lance's own catalog takes any `<name>.lance` for a table.
    Without fragments, which a write that fails does not give, blobs that it has written stay.
    """
    for path in _own_files(uri, fragments):
        storage.delete_file(path)
        folder = _blob_folder(path)
        if storage.exists(folder):
            storage.delete_folder(folder)
    for name in [] if fragments else storage.folders(f"{uri}/data"):
        storage.delete_empty_folder(f"{uri}/data/{name}")
    storage.delete_empty_folder(f"{uri}/data")
    storage.delete_empty_folder(uri)


def make_durable(
    uri: str, branch: str | None, dataset: Any, storage: Storage, transaction: Any = None
) -> None:
    """Flush a version that may not be flushed yet, made by `transaction` if that is known.

    Raises:
        OutcomeUnknown: the version is there, but a power cut may take it.
    """
    try:
        if transaction is not None:
            storage.sync(_large_transaction(branch_uri(uri, branch), transaction, storage))
        sync_commit(uri, branch, dataset, storage)
    except Exception as error:
        raise _unknown("the change was flushed to the disk") from error


def sync_commit(uri: str, branch: str | None, dataset: Any, storage: Storage) -> None:
    """Flush a version's manifest, which also holds its transaction if that is not large, and the
    folder."""
    if not storage.is_local or not storage.fsync:
        return
    version = int(dataset.version)
    manifest = find_manifest(uri, branch, version, storage)
    if manifest is None:
        raise FileNotFoundError(f"version {version} has no manifest")
    storage.sync([manifest, versions_folder(uri, branch)])


def _large_transaction(base: str, transaction: Any, storage: Storage) -> list[str]:
    """The file of a transaction that its manifest may not hold, and its folder.

    Of others it is for whoever commits at the same time, and may be lost.
    """
    folder = f"{base}/_transactions"
    path = f"{folder}/{transaction.read_version}-{transaction.uuid}.txn"
    status = storage.file_status(path) if storage.is_local and storage.fsync else None
    return [path, folder] if status is not None and status[0] > _INLINE_BYTES_MAX else []


def commit_compaction(
    dataset: Any, uri: str, branch: str | None, rewrites: Sequence[Any], storage: Storage
) -> Any:
    """Replace fragments by others that hold the same rows; the dataset at the version that this
    makes. Lance moves indexes along.

    Raises:
        CommitConflict: the rows of one of the fragments have changed.
        OutcomeUnknown: the version may be lost in a power cut.
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
    make_durable(uri, branch, committed, storage)
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
