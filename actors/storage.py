"""The storage under the root: small files beside Lance's own, listings, and durability.

Lance reads and writes its tables itself; this module is for what Lance does not do: a table's
sidecar files, the marks of dropped tables, and fsync. Paths go through pyarrow's file systems, so
that a folder and an object store are one code path; only what needs system calls asks `is_local`.
"""

import contextlib
import os
import stat
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

from pyarrow import fs

from cluster import disk
from cluster.errors import InvalidInput
from cluster.settings import StorageSettings

# Destrier's own files live in this folder: of a table (dropped with it) and of the root.
SIDECAR = "_destrier"
ROOT_SIDECAR = ".destrier"
# Times that the deletion of a folder is begun again because a file in it went meanwhile.
_DELETIONS_MAX = 100
# Lance's storage options by every name that it knows them under (the crate object_store), for what
# pyarrow has a parameter for. The first that is given counts.
_S3_PARAMETERS = {
    "access_key": ("aws_access_key_id", "access_key_id"),
    "secret_key": ("aws_secret_access_key", "secret_access_key"),
    "session_token": ("aws_session_token", "aws_token", "session_token", "token"),
    "region": ("aws_region", "region", "aws_default_region", "default_region"),
}
_ENDPOINT = (
    "aws_endpoint_url_s3",
    "aws_endpoint_url",
    "aws_endpoint",
    "endpoint_url",
    "endpoint",
)
_TRUE = ("true", "1", "yes", "on", "y")
_VIRTUAL_HOSTED = ("aws_virtual_hosted_style_request", "virtual_hosted_style_request")


@dataclass(frozen=True, slots=True)
class Listing:
    """Names directly inside a folder, and what `Storage.file_status` says of each."""

    names: Sequence[str]
    status: Callable[[str], tuple[int, int] | None]


@dataclass(frozen=True, slots=True)
class Storage:
    """Where the tables are; cheap to build, picklable, opens nothing until used."""

    root: str
    options: tuple[tuple[str, str], ...]
    fsync: bool
    is_local: bool
    # Of new tables that do not say it themselves.
    stable_row_ids: bool = True

    @staticmethod
    def of(settings: StorageSettings) -> "Storage":
        """The storage that the settings name; a local root becomes an absolute path.

        Raises:
            InvalidInput: a URI scheme that is not served.
        """
        scheme = urlparse(settings.root).scheme
        options = tuple((k, v.get_secret_value()) for k, v in sorted(settings.options.items()))
        if scheme in ("", "file"):
            path = unquote(urlparse(settings.root).path) if scheme else settings.root
            root = str(Path(path).expanduser().absolute())
            is_flushed = settings.durability == "fsync"
            return Storage(root, options, is_flushed, True, settings.stable_row_ids)
        if scheme != "s3":
            raise InvalidInput(f"storage.root: {scheme}:// is not served; use a folder or s3://")
        endpoint = _option(options, _ENDPOINT)
        if endpoint is not None and not endpoint.startswith(("http://", "https://")):
            raise InvalidInput(
                f"storage.options: the endpoint {endpoint!r} is no URL; begin it with https:// or"
                " http://"
            )
        root = settings.root.rstrip("/")
        return Storage(root, options, False, False, settings.stable_row_ids)

    @property
    def lance_options(self) -> dict[str, str] | None:
        """Storage options as pylance takes them."""
        return dict(self.options) or None

    def database_uri(self, database: str) -> str:
        """The folder of a database."""
        return f"{self.root}/{database}"

    def _open(self, uri: str) -> tuple[fs.FileSystem, str]:
        if self.is_local:
            return fs.LocalFileSystem(), uri
        path = uri.removeprefix("s3://")
        return _object_store(self.options, path.partition("/")[0]), path

    def read(self, uri: str) -> bytes | None:
        """The bytes of a small file; None if it is not there."""
        if self.is_local:
            try:
                return Path(uri).read_bytes()
            except (FileNotFoundError, NotADirectoryError):
                return None
        store, path = self._open(uri)
        try:
            with store.open_input_file(path) as stream:
                return bytes(stream.readall())
        except FileNotFoundError:
            return None

    def exists(self, uri: str) -> bool:
        """Whether a file or folder is there."""
        if self.is_local:
            return os.path.exists(uri)
        store, path = self._open(uri)
        return bool(store.get_file_info(path).type != fs.FileType.NotFound)

    def write(self, uri: str, data: bytes) -> None:
        """Replace a small file atomically and durably."""
        if not self.is_local:
            store, path = self._open(uri)
            with store.open_output_stream(path) as stream:
                stream.write(data)
            return
        target = Path(uri)
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
        with temporary.open("wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(target)
        self.sync([str(target.parent)])

    def create(self, uri: str, data: bytes) -> bool:
        """Write a small file unless it is there; says whether this call wrote it."""
        if not self.is_local:
            if self.exists(uri):
                return False
            self.write(uri, data)
            return True
        target = Path(uri)
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
        temporary.write_bytes(data)
        try:
            os.link(temporary, target)
        except FileExistsError:
            return False
        finally:
            temporary.unlink()
        self.sync([str(target), str(target.parent)])
        return True

    def delete_file(self, uri: str) -> None:
        """Delete a file if it is there."""
        store, path = self._open(uri)
        try:
            store.delete_file(path)
        except FileNotFoundError:
            return

    def delete_folder(self, uri: str) -> None:
        """Delete a folder and everything in it, if it is there."""
        store, path = self._open(uri)
        # A file in it that goes meanwhile ends the deletion: then the rest is still there.
        for _ in range(_DELETIONS_MAX):
            try:
                store.delete_dir(path)
            except FileNotFoundError:
                if not self.exists(uri):
                    return
            else:
                return
        raise OSError(f"the folder {uri} changes while it is deleted")

    def delete_empty_folder(self, uri: str) -> None:
        """Delete a folder if there is nothing in it; object stores have none to delete."""
        if self.is_local:
            # Not there, or not empty.
            with contextlib.suppress(OSError):
                Path(uri).rmdir()

    def folders(self, uri: str) -> list[str]:
        """Names of the folders directly inside `uri`; none if it is not there."""
        if self.is_local:
            try:
                with os.scandir(uri) as entries:
                    return [entry.name for entry in entries if entry.is_dir()]
            except FileNotFoundError:
                return []
        store, path = self._open(uri)
        selector = fs.FileSelector(path, allow_not_found=True)
        return [
            i.base_name for i in store.get_file_info(selector) if i.type == fs.FileType.Directory
        ]

    def files(self, uri: str) -> list[tuple[str, int, int]]:
        """Name, bytes and modification time (ms) of the files directly inside `uri`."""
        listing = self.listing(uri)
        found = ((name, listing.status(name)) for name in listing.names)
        return [(name, *status) for name, status in found if status is not None]

    def listing(self, uri: str) -> Listing:
        """What is directly inside `uri`, cheap for callers who look at few of the files."""
        if self.is_local:
            return Listing(_local_names(uri), lambda name: self.file_status(f"{uri}/{name}"))
        # A listing of an object store tells sizes and times; asking for each would be a request.
        store, path = self._open(uri)
        selector = fs.FileSelector(path, allow_not_found=True)
        infos = store.get_file_info(selector)
        found = {info.base_name: info for info in infos if info.type == fs.FileType.File}
        return Listing(list(found), lambda name: _status(found[name]))

    def file_status(self, uri: str) -> tuple[int, int] | None:
        """Bytes and modification time (ms) of a file; None if there is no file."""
        if not self.is_local:
            store, path = self._open(uri)
            return _status(store.get_file_info(path))
        try:
            found = os.stat(uri)
        except (FileNotFoundError, NotADirectoryError):
            return None
        if not stat.S_ISREG(found.st_mode):
            return None
        return found.st_size, found.st_mtime_ns // 1_000_000

    def sync(self, paths: Iterable[str]) -> None:
        """Flush local files and folders to the disk; object stores are durable when they answer."""
        if not self.fsync:
            return
        disk.sync(paths)


@lru_cache(maxsize=8)
def _object_store(options: tuple[tuple[str, str], ...], bucket: str) -> fs.FileSystem:
    """The bucket's file system, made once: each has connections of its own to open."""
    parameters: dict[str, Any] = {
        name: _option(options, keys) for name, keys in _S3_PARAMETERS.items()
    }
    endpoint = _option(options, _ENDPOINT)
    if endpoint is not None:
        parsed = urlparse(endpoint)
        # Lance has the bucket in the endpoint's name then; pyarrow puts it there.
        virtual_hosted = (_option(options, _VIRTUAL_HOSTED) or "").lower() in _TRUE
        host = parsed.netloc.removeprefix(f"{bucket}.") if virtual_hosted else parsed.netloc
        parameters |= {
            "endpoint_override": host,
            "scheme": parsed.scheme,
            "force_virtual_addressing": virtual_hosted,
        }
    return fs.S3FileSystem(**parameters)


def _option(options: Iterable[tuple[str, str]], keys: Iterable[str]) -> str | None:
    """The value of the first of `keys` that is given; upper and lower case are the same."""
    given = {name.lower(): value for name, value in options}
    return next((given[key] for key in keys if key in given), None)


def _local_names(folder: str) -> list[str]:
    # pyarrow's listing fails when the folder comes or a file goes while it looks.
    try:
        with os.scandir(folder) as entries:
            return [entry.name for entry in entries]
    except FileNotFoundError:
        return []


def _status(info: fs.FileInfo) -> tuple[int, int] | None:
    if info.type != fs.FileType.File:
        return None
    return int(info.size or 0), int((info.mtime_ns or 0) // 1_000_000)
