"""Version records: Lance's versions less those whose record was deleted.

Deleting a record never touches a manifest or data. What is kept is a small file of deleted ranges
beside the table, so that writing a version costs nothing; ranges are joined, so the file stays
short.
"""

import json
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence

from actors.freshness import manifest_files, manifest_names, versions_folder
from actors.model import Page, VersionRange, VersionRecord
from actors.storage import SIDECAR, Storage
from cluster.errors import InvalidInput

# Of the largest version; Python refuses to parse numbers of some thousands of digits.
_TOKEN_DIGITS_MAX = 20


def tombstones_uri(uri: str, branch: str | None) -> str:
    """The file of a branch's deleted ranges."""
    return f"{uri}/{SIDECAR}/deleted_versions/{branch or 'main'}.json"


class VersionRecords:
    """The records of one branch; every call reads storage, so any process may ask."""

    def __init__(self, uri: str, branch: str | None, storage: Storage) -> None:
        self._uri = uri
        self._branch = branch
        self._storage = storage
        self._folder = versions_folder(uri, branch)

    def is_deleted(self, version: int) -> bool:
        """Whether the record of `version` was deleted."""
        return any(start <= version < end for start, end in self._deleted())

    def page(
        self, page_token: str | None, limit: int | None, *, descending: bool
    ) -> Page[VersionRecord]:
        """The records after `page_token`; looks at the manifests of no others.

        Raises:
            InvalidInput: a token that no page of a version listing has.
        """
        listing = self._storage.listing(self._folder)
        names = manifest_files(listing)

        def find(version: int) -> VersionRecord | None:
            return self._record(version, names[version], listing.status(names[version]))

        return page_of_records(
            self._existing(names), find, page_token, limit, descending=descending
        )

    def find(self, version: int) -> VersionRecord | None:
        """The record of `version`, if there is one; lists nothing."""
        if self.is_deleted(version):
            return None
        for name in manifest_names(version):
            status = self._storage.file_status(f"{self._folder}/{name}")
            if status is not None:
                return self._record(version, name, status)
        return None

    def newest(self, latest: int) -> VersionRecord | None:
        """The newest record of a branch at version `latest`; None if every record was deleted."""
        found = self.find(latest)
        if found is not None:
            return found
        return next(iter(self.page(None, 1, descending=True).items), None)

    def delete(self, ranges: Sequence[VersionRange]) -> int:
        """Delete the records in `ranges` (overlaps count once); returns how many there were.

        Only the table's actor calls this: it is a read followed by a write.

        Raises:
            InvalidInput: a negative bound other than an end of -1.
        """
        existing = self._existing(manifest_files(self._storage.listing(self._folder)))
        latest = existing[-1] if existing else 0
        gone = inside(existing, merge_ranges(resolve_range(item, latest) for item in ranges))
        if gone:
            merged = merge_ranges([*self._deleted(), *((v, v + 1) for v in gone)])
            self._storage.write(
                tombstones_uri(self._uri, self._branch), json.dumps({"deleted": merged}).encode()
            )
        return len(gone)

    def _existing(self, versions: Iterable[int]) -> list[int]:
        """Those whose records were not deleted, sorted."""
        in_order = sorted(versions)
        deleted = set(inside(in_order, self._deleted()))
        return [version for version in in_order if version not in deleted]

    def _record(
        self, version: int, name: str, status: tuple[int, int] | None
    ) -> VersionRecord | None:
        if status is None:
            return None
        size, millis = status
        relative = f"{self._folder}/{name}".removeprefix(self._uri + "/")
        return VersionRecord(version, relative, size, millis)

    def _deleted(self) -> list[tuple[int, int]]:
        data = self._storage.read(tombstones_uri(self._uri, self._branch))
        return [] if data is None else [(start, end) for start, end in json.loads(data)["deleted"]]


def page_of_records(
    versions: Sequence[int],
    find: Callable[[int], VersionRecord | None],
    page_token: str | None,
    limit: int | None,
    *,
    descending: bool,
) -> Page[VersionRecord]:
    """The records after `page_token` of the sorted `versions`; the token is the last version.

    There are `limit` of them, at least 1, as long as `find` has as many: a version whose manifest
    has gone has no record.

    Raises:
        InvalidInput: a token that no page has.
    """
    shown: list[VersionRecord] = []
    for version in _after(versions, page_token, descending):
        if len(shown) == limit:
            return Page(tuple(shown), str(shown[-1].version))
        record = find(version)
        if record is not None:
            shown.append(record)
    return Page(tuple(shown))


def _after(versions: Sequence[int], page_token: str | None, descending: bool) -> Sequence[int]:
    if page_token is None:
        return versions[::-1] if descending else versions
    is_number = page_token.isascii() and page_token.isdigit()
    if not is_number or len(page_token) > _TOKEN_DIGITS_MAX:
        raise InvalidInput(f"page_token {page_token!r} is not one that a version listing gave")
    # A record may have been deleted since the last page, so positions are found by comparison.
    if descending:
        return versions[: bisect_left(versions, int(page_token))][::-1]
    return versions[bisect_right(versions, int(page_token)) :]


def inside(versions: Sequence[int], ranges: Iterable[tuple[int, int]]) -> list[int]:
    """Those of the sorted `versions` that are in `ranges`, which do not overlap."""
    return [
        version
        for start, end in ranges
        for version in versions[bisect_left(versions, start) : bisect_left(versions, end)]
    ]


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
