"""Version records: what is looked at to show them, and what deleting leaves."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from pyarrow import fs

from actors.freshness import manifest_names, versions_folder
from actors.model import VersionRange
from actors.storage import Storage
from actors.version_records import VersionRecords, inside, tombstones_uri
from cluster.errors import InvalidInput
from cluster.settings import StorageSettings

VERSIONS = 40


def write_manifest(uri: str, branch: str | None, name: str) -> None:
    path = Path(versions_folder(uri, branch)) / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * 7)
    os.utime(path, (5, 5))


@pytest.fixture
def uri(tmp_path: Path) -> str:
    """A table of 40 versions, as far as its manifests go."""
    uri = str(tmp_path / "t.lance")
    for version in range(1, VERSIONS + 1):
        write_manifest(uri, None, manifest_names(version)[0])
    return uri


@pytest.fixture
def records(uri: str) -> VersionRecords:
    return VersionRecords(uri, None, Storage.of(StorageSettings(root=str(Path(uri).parent))))


@pytest.fixture
def looked_at(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of files whose size and time were asked for."""
    names: list[str] = []
    ask = Storage.file_status

    def file_status(self: Storage, uri: str) -> tuple[int, int] | None:
        names.append(Path(uri).name)
        return ask(self, uri)

    monkeypatch.setattr(Storage, "file_status", file_status)
    return names


def page(
    records: VersionRecords,
    page_token: str | None = None,
    limit: int | None = None,
    *,
    descending: bool = False,
) -> tuple[list[int], str | None]:
    found = records.page(page_token, limit, descending=descending)
    return [record.version for record in found.items], found.page_token


def names_of(*versions: int) -> list[str]:
    return [manifest_names(version)[0] for version in versions]


def test_only_the_manifests_of_the_page_are_looked_at(
    records: VersionRecords, looked_at: list[str]
) -> None:
    records.delete([VersionRange(3, 5)])
    assert looked_at == []
    assert page(records, "1", 3) == ([2, 5, 6], "6")
    assert looked_at == names_of(2, 5, 6)
    looked_at.clear()
    assert page(records, "6", 3, descending=True) == ([5, 2, 1], None)
    assert looked_at == names_of(5, 2, 1)


def test_one_version_is_found_by_its_manifest_alone(
    records: VersionRecords, looked_at: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(Storage, "listing")
    for found in (records.find(VERSIONS), records.newest(VERSIONS)):
        assert found is not None
        assert (found.version, found.manifest_size, found.timestamp_millis) == (VERSIONS, 7, 5000)
        assert found.manifest_path == f"_versions/{names_of(VERSIONS)[0]}"
    assert looked_at == names_of(VERSIONS, VERSIONS)
    assert records.find(VERSIONS + 1) is None


def test_the_newest_record_is_not_of_the_latest_version_when_that_was_deleted(
    records: VersionRecords,
) -> None:
    records.delete([VersionRange(30, -1)])
    assert records.find(35) is None
    newest = records.newest(VERSIONS)
    assert newest is not None and newest.version == 29
    records.delete([VersionRange(0, -1)])
    assert records.newest(VERSIONS) is None


def test_a_manifest_that_goes_while_it_is_listed_is_left_out(
    records: VersionRecords, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    listing = Storage.listing

    def listing_before_a_cleanup(self: Storage, folder: str) -> Any:
        found = listing(self, folder)
        for name in names_of(1, 2, 3, 5, VERSIONS):
            Path(f"{folder}/{name}").unlink(missing_ok=True)
        return found

    monkeypatch.setattr(Storage, "listing", listing_before_a_cleanup)
    assert page(records, None, 2) == ([4, 6], "6")
    assert page(records, "38", 1) == ([39], None)


@pytest.mark.parametrize("branch", [None, "dev"])
def test_either_naming_of_manifests_is_understood(tmp_path: Path, branch: str | None) -> None:
    uri = str(tmp_path / "t.lance")
    for version in (2, 10, 9):
        write_manifest(uri, branch, manifest_names(version)[version % 2])
    write_manifest(uri, branch, "latest_version_hint.json")
    records = VersionRecords(uri, branch, Storage.of(StorageSettings(root=str(tmp_path))))
    assert page(records) == ([2, 9, 10], None)
    assert page(records, None, 2, descending=True) == ([10, 9], "9")
    found = records.find(9)
    assert found is not None
    assert found.manifest_path == ("" if branch is None else "tree/dev/") + "_versions/9.manifest"
    assert found in records.page(None, None, descending=False).items


@pytest.mark.parametrize("token", ["", "x", "-1", "1.5", "\u00b2", "9" * 5000], ids=ascii)
def test_a_token_that_no_page_has_is_refused(records: VersionRecords, token: str) -> None:
    with pytest.raises(InvalidInput, match=r"page_token .* is not one that a version listing gave"):
        records.page(token, 2, descending=False)


def test_an_object_store_is_asked_once_for_a_page(
    uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []

    class Store:
        def get_file_info(self, what: Any) -> Any:
            asked.append(what)
            return fs.LocalFileSystem().get_file_info(what)

        def open_input_file(self, path: str) -> Any:
            return fs.LocalFileSystem().open_input_file(path)

    monkeypatch.setattr(Storage, "_open", lambda self, uri: (Store(), uri))
    records = VersionRecords(uri, None, Storage(str(Path(uri).parent), (), False, False))
    (Path(uri) / "_versions" / "folder").mkdir()
    assert page(records, None, 10, descending=True) == (list(range(VERSIONS, 30, -1)), "31")
    assert len(asked) == 1
    shown = records.page("31", 1, descending=True).items
    assert [records.find(30)] == list(shown)
    assert asked[2:] == [f"{uri}/_versions/{names_of(30)[0]}"]
    assert records.find(VERSIONS + 1) is None


def test_deleted_ranges_are_joined(records: VersionRecords, uri: str) -> None:
    assert records.delete([VersionRange(5, 8), VersionRange(7, 9), VersionRange(20, 3)]) == 4
    assert records.delete([VersionRange(9, 10), VersionRange(5, 6), VersionRange(39, 99)]) == 3
    assert json.loads(Path(tombstones_uri(uri, None)).read_text()) == {
        "deleted": [[5, 10], [39, 41]]
    }
    assert page(records, None, 5) == ([1, 2, 3, 4, 10], "10")
    assert [v for v in range(1, VERSIONS + 1) if records.is_deleted(v)] == [5, 6, 7, 8, 9, 39, 40]


@pytest.mark.parametrize(
    ("ranges", "versions"),
    [
        ([], []),
        ([(0, 2)], []),
        ([(0, 3)], [2]),
        ([(2, 4), (7, 9)], [2, 3, 8]),
        ([(9, 3)], []),
        ([(0, 99)], [2, 3, 5, 8]),
    ],
)
def test_versions_are_inside_ranges(ranges: list[tuple[int, int]], versions: list[int]) -> None:
    assert inside([2, 3, 5, 8], ranges) == versions
