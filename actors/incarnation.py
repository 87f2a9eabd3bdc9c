"""Which life of a name a folder is, and whether that life is over.

A table that is dropped and made anew may come to lie in the same folder. So that a write meant for
the first can never reach the second, every life has an identity of its own, kept beside the table;
a drop first leaves a mark there, from which moment on the table is gone, whatever of its files is
still there.
"""

import uuid

from actors.freshness import versions_folder
from actors.storage import SIDECAR, Storage


def sidecar_uri(uri: str) -> str:
    """The folder that holds both files below."""
    return f"{uri}/{SIDECAR}"


def identity_uri(uri: str) -> str:
    """The file that holds the identity."""
    return f"{uri}/{SIDECAR}/incarnation"


def dropped_uri(uri: str) -> str:
    """The file that marks a dropped table."""
    return f"{uri}/{SIDECAR}/dropped"


def read_incarnation(uri: str, storage: Storage) -> str | None:
    """The identity; None for a table that another program made and no actor has opened."""
    data = storage.read(identity_uri(uri))
    return None if data is None else data.decode()


def ensure_incarnation(uri: str, storage: Storage) -> str:
    """The identity, made if there is none."""
    storage.create(identity_uri(uri), uuid.uuid4().hex.encode())
    found = read_incarnation(uri, storage)
    assert found is not None
    return found


def mark_dropped(uri: str, storage: Storage) -> None:
    """End this life of the table; from here on the drop can only be finished."""
    storage.write(dropped_uri(uri), b"")


def is_dropped(uri: str, storage: Storage) -> bool:
    """Whether this life is over."""
    return storage.exists(dropped_uri(uri))


def is_over(uri: str, incarnation: str | None, storage: Storage) -> bool:
    """Whether a life of the folder was dropped, whatever is there now."""
    return is_dropped(uri, storage) or read_incarnation(uri, storage) != incarnation


def delete_dropped(uri: str, storage: Storage) -> None:
    """Delete the folder of a table that has the mark.

    The manifests go first, so that nobody opens a table whose files are going; the mark goes last,
    so that what a cut-short drop leaves is a dropped table still.
    """
    storage.delete_folder(versions_folder(uri, None))
    for name in storage.folders(uri):
        if name != SIDECAR:
            storage.delete_folder(f"{uri}/{name}")
    for name, *_ in storage.files(uri):
        storage.delete_file(f"{uri}/{name}")
    storage.delete_folder(sidecar_uri(uri))
    storage.delete_folder(uri)
