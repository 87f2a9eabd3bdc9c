"""An object store is opened once, with what the options say by any of Lance's names; folders are
deleted whole."""

import pickle
from pathlib import Path
from typing import Any

import pytest
from pyarrow import fs

from actors import storage as storage_module
from actors.storage import Storage
from cluster.errors import InvalidInput
from cluster.settings import StorageSettings


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What pyarrow's file systems of S3 were made with; each is an empty store."""
    parameters: list[dict[str, Any]] = []

    def make(**given: Any) -> fs.FileSystem:
        parameters.append({name: value for name, value in given.items() if value is not None})
        return fs._MockFileSystem()

    storage_module._object_store.cache_clear()
    monkeypatch.setattr(fs, "S3FileSystem", make)
    return parameters


def store(**options: str) -> Storage:
    settings = {"root": "s3://bucket/tables", "options": options}
    return Storage.of(StorageSettings.model_validate(settings))


@pytest.mark.parametrize(
    ("options", "parameters"),
    [
        ({}, {}),
        (
            {"aws_access_key_id": "a", "aws_secret_access_key": "b", "aws_session_token": "c"},
            {"access_key": "a", "secret_key": "b", "session_token": "c"},
        ),
        (
            {"access_key_id": "a", "secret_access_key": "b", "session_token": "c"},
            {"access_key": "a", "secret_key": "b", "session_token": "c"},
        ),
        ({"token": "c"}, {"session_token": "c"}),
        ({"aws_token": "c"}, {"session_token": "c"}),
        ({"AWS_Session_Token": "c"}, {"session_token": "c"}),
        ({"aws_region": "r"}, {"region": "r"}),
        ({"aws_default_region": "d", "region": "r"}, {"region": "r"}),
        ({"default_region": "d"}, {"region": "d"}),
        ({"allow_http": "true", "timeout": "9s"}, {}),
    ],
)
def test_credentials_and_region_reach_the_object_store_by_every_name(
    opened: list[dict[str, Any]], options: dict[str, str], parameters: dict[str, str]
) -> None:
    store(**options).exists("s3://bucket/tables/t")
    assert opened == [parameters]


@pytest.mark.parametrize(
    "name",
    ["aws_endpoint", "aws_endpoint_url", "aws_endpoint_url_s3", "endpoint", "endpoint_url"],
)
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_the_endpoint_reaches_the_object_store_by_every_name(
    opened: list[dict[str, Any]], name: str, scheme: str
) -> None:
    store(**{name: f"{scheme}://host:9000"}).exists("s3://bucket/tables/t")
    assert opened == [
        {"endpoint_override": "host:9000", "scheme": scheme, "force_virtual_addressing": False}
    ]


def test_a_bucket_in_the_endpoint_is_named_once(opened: list[dict[str, Any]]) -> None:
    options = {"endpoint": "https://bucket.host", "virtual_hosted_style_request": "true"}
    store(**options).exists("s3://bucket/tables/t")
    assert opened == [
        {"endpoint_override": "host", "scheme": "https", "force_virtual_addressing": True}
    ]


def test_an_endpoint_without_a_scheme_is_refused() -> None:
    with pytest.raises(InvalidInput, match="begin it with https://"):
        store(aws_endpoint="host:9000")


def test_an_object_store_is_opened_once(opened: list[dict[str, Any]]) -> None:
    first = store(region="r")
    for storage in (first, pickle.loads(pickle.dumps(first)), store(region="r")):
        storage.exists("s3://bucket/tables/t")
        storage.read("s3://bucket/tables/t")
    assert len(opened) == 1
    store(region="other").exists("s3://bucket/tables/t")
    assert len(opened) == 2


def test_a_folder_is_deleted_whole_when_one_of_its_files_goes_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "rows").touch()
    local = fs.LocalFileSystem()

    class Raced:
        """Finds once that a file which it listed is gone."""

        is_first = True

        def delete_dir(self, path: str) -> None:
            if self.is_first:
                self.is_first = False
                raise FileNotFoundError(path)
            local.delete_dir(path)

    raced = Raced()
    monkeypatch.setattr(Storage, "_open", lambda _, uri: (raced, uri))
    Storage.of(StorageSettings(root=str(tmp_path))).delete_folder(str(folder))
    assert not folder.exists()
