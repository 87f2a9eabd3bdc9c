"""Data files flushed to the disk while they are still being written.

A large insert is flushed before it is committed. When that begins only at the end, the disk has had
nothing to do until then, and the flush takes a quarter as long as the writing did.
"""

import os
import threading
from pathlib import Path
from typing import Any

from lance.progress import FragmentWriteProgress

# Lance writes a data file under such a name and renames it when it is complete. If a version of
# Lance does otherwise, nothing is found here and everything is flushed at the end.
_UNFINISHED_PREFIX = ".tmp"
_INTERVAL_S = 0.1


class EarlySync(FragmentWriteProgress):  # type: ignore[misc]
    """Flushes the files that Lance begins in `folder` while the block runs.

    It only spares work: files are to be flushed after the block as if it had not been. But the
    system may tell an error of a flush only once, so the block's end raises it.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._unfinished: frozenset[str] = frozenset()
        self._error: OSError | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._flush_repeatedly, name="early-sync")

    def __enter__(self) -> "EarlySync":
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        if kind is None and self._error is not None:
            raise self._error

    def begin(self, fragment: Any, **_: Any) -> None:
        """Lance has begun a file: find it. Files of others in the folder may be found too."""
        try:
            names = [path.name for path in Path(self._folder).iterdir()]
        except FileNotFoundError:
            return
        self._unfinished = frozenset(name for name in names if name.startswith(_UNFINISHED_PREFIX))

    def complete(self, fragment: Any, **_: Any) -> None:
        """A file is complete; what is left of it is flushed with the others after the block."""

    def _flush_repeatedly(self) -> None:
        while not self._ended.wait(_INTERVAL_S) and self._error is None:
            try:
                for name in self._unfinished:
                    _flush(f"{self._folder}/{name}")
            except OSError as error:
                self._error = error


def _flush(path: str) -> None:
    """Flush what the file holds so far; do nothing when it was renamed or removed."""
    try:
        file = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return
    try:
        os.fdatasync(file)
    finally:
        os.close(file)
