"""A folder that is used as an object store is: by pyarrow's file systems alone, without system
calls."""

from pathlib import Path
from typing import Any

import pytest
from pyarrow import fs

from actors.storage import Storage
from cluster.settings import StorageSettings


class _Objects:
    """A folder whose folders need not be made."""

    def __init__(self) -> None:
        self._store = fs.LocalFileSystem()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def open_output_stream(self, path: str) -> Any:
        """Write a file, wherever it is."""
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        return self._store.open_output_stream(path)


def use_object_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every storage from here on be one that is not local."""

    def of(settings: StorageSettings) -> Storage:
        return Storage(settings.root, (), fsync=False, is_local=False)

    def open_store(storage: Storage, uri: str) -> tuple[_Objects, str]:
        assert not storage.is_local
        return _Objects(), uri

    monkeypatch.setattr(Storage, "of", staticmethod(of))
    monkeypatch.setattr(Storage, "_open", open_store)
