"""Version records: Lance's versions less those whose record was deleted.

Deleting a record never touches a manifest or data. What is kept is a small file of deleted ranges
beside the table, so that writing a version costs nothing; ranges are joined, so the file stays
short.
"""

import json
from collections.abc import Iterable, Sequence

from actors.freshness import manifest_version, versions_folder
from actors.model import VersionRange, VersionRecord
from actors.storage import SIDECAR, Storage
from cluster.errors import InvalidInput

ALL = VersionRange(0, -1)


def tombstones_uri(uri: str, branch: str | None) -> str:
    """The file of a branch's deleted ranges."""
    return f"{uri}/{SIDECAR}/deleted_versions/{branch or 'main'}.json"


class VersionRecords:
    """The records of one branch; every call reads storage, so any process may ask."""

    def __init__(self, uri: str, branch: str | None, storage: Storage) -> None:
        self._uri = uri
        self._branch = branch
        self._storage = storage

    def is_deleted(self, version: int) -> bool:
        """Whether the record of `version` was deleted."""
        return any(start <= version < end for start, end in self._deleted())

    def records(self) -> list[VersionRecord]:
        """The records, oldest first."""
        deleted = self._deleted()
        records = []
        folder = versions_folder(self._uri, self._branch)
        for name, size, millis in self._storage.files(folder):
            version = manifest_version(name)
            if version is None or any(start <= version < end for start, end in deleted):
                continue
            relative = f"{folder}/{name}".removeprefix(self._uri + "/")
            records.append(VersionRecord(version, relative, size, millis))
        return sorted(records, key=lambda record: record.version)

    def delete(self, ranges: Sequence[VersionRange]) -> int:
        """Delete the records in `ranges` (overlaps count once); returns how many there were.

        Only the table's actor calls this: it is a read followed by a write.

        Raises:
            InvalidInput: a negative bound other than an end of -1.
        """
        existing = [record.version for record in self.records()]
        latest = existing[-1] if existing else 0
        wanted = [resolve_range(item, latest) for item in ranges]
        gone = [v for v in existing if any(start <= v < end for start, end in wanted)]
        if gone:
            merged = merge_ranges([*self._deleted(), *((v, v + 1) for v in gone)])
            self._storage.write(
                tombstones_uri(self._uri, self._branch), json.dumps({"deleted": merged}).encode()
            )
        return len(gone)

    def _deleted(self) -> list[tuple[int, int]]:
        data = self._storage.read(tombstones_uri(self._uri, self._branch))
        return [] if data is None else [(start, end) for start, end in json.loads(data)["deleted"]]


def resolve_range(wanted: VersionRange, latest: int) -> tuple[int, int]:
    """The versions that a range means: `end` -1 is through the latest.

    Raises:
        InvalidInput: another negative bound.
    """
    if wanted.start < 0 or wanted.end < -1:
        raise InvalidInput(
            f"range [{wanted.start}, {wanted.end}): versions are not negative; an end of -1 means"
            " all"
        )
    return wanted.start, latest + 1 if wanted.end == -1 else wanted.end


def merge_ranges(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """The same versions in the fewest ranges, sorted."""
    merged: list[tuple[int, int]] = []
    for start, end in sorted(ranges):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged
