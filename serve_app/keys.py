"""API keys: made, stored as hashes, checked and revoked.

A key reads `dk_<id>_<secret>`. The root holds one file per key, `.destrier/keys/<id>.json`, with
the secret's SHA-256. Creating a key writes one file and revoking deletes it: neither needs a lock.
"""

import asyncio
import hashlib
import hmac
import json
import logging
import re
import secrets
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from actors.storage import ROOT_SIDECAR, Storage
from cluster.clock import Clock, SystemClock
from cluster.errors import DestrierError, InvalidInput, ServiceUnavailable, Unauthenticated
from cluster.settings import AuthSettings, Settings
from serve_app.credential_cache import CredentialCache
from serve_app.rights import ADMINISTRATOR_GRANTS, Caller, Grant

KEY_PREFIX = "dk_"
SECRET_BYTES = 32
ADMIN_KEY_CHARACTERS_MIN = 16
NAME_CHARACTERS_MAX = 128
FORMAT = 1

# The identifier becomes a file's name: nothing but these twelve characters ever reaches a path.
_ID = re.compile(r"[0-9a-f]{12}")
_KEY = re.compile(r"dk_([0-9a-f]{12})_([A-Za-z0-9_-]{32,128})")
_UNKNOWN_KEY = "the API key is not valid; check that it is whole and has not been revoked"

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StoredKey:
    """What is kept of a key; its secret is not."""

    id: str
    name: str
    # Secrets are 256 random bits, so guessing one from its hash is hopeless at any speed: a slow
    # password hash would protect nothing here and cost every request tens of milliseconds.
    secret_sha256: str = field(repr=False)
    grants: tuple[Grant, ...]
    created_at: datetime
    expires_at: datetime | None

    def has_expired(self, now_s: float) -> bool:
        """Whether the key's time is over at `now_s` seconds since 1970."""
        return self.expires_at is not None and now_s >= self.expires_at.timestamp()

    def caller(self) -> Caller:
        """Who a request with this key comes from."""
        return Caller(f"{self.name} ({KEY_PREFIX}{self.id})", self.grants)

    def to_json(self) -> bytes:
        """The content of the key's file."""
        record = {
            "format": FORMAT,
            "id": self.id,
            "name": self.name,
            "secret_sha256": self.secret_sha256,
            "grants": [str(grant) for grant in self.grants],
            "created_at": self.created_at.isoformat(),
            "expires_at": self.expires_at.isoformat() if self.expires_at else None,
        }
        return json.dumps(record, indent=1).encode()

    @staticmethod
    def from_json(data: bytes) -> "StoredKey":
        """Read a key's file.

        Raises:
            ValueError: it is not one that `to_json` wrote.
        """
        try:
            record: dict[str, Any] = json.loads(data)
            if record["format"] != FORMAT:
                raise ValueError("unknown format")
            if len(bytes.fromhex(record["secret_sha256"])) != hashlib.sha256().digest_size:
                raise ValueError("the hash is not a SHA-256")
            expires_at = record["expires_at"]
            return StoredKey(
                id=record["id"],
                name=record["name"],
                secret_sha256=record["secret_sha256"],
                grants=tuple(Grant.parse(text) for text in record["grants"]),
                created_at=datetime.fromisoformat(record["created_at"]),
                expires_at=datetime.fromisoformat(expires_at) if expires_at else None,
            )
        except (KeyError, TypeError, AttributeError, DestrierError) as error:
            raise ValueError(str(error)) from None


class KeyStore:
    """The keys of one deployment. Methods block on storage; safe from any thread or process."""

    def __init__(self, storage: Storage, clock: Clock) -> None:
        self._storage = storage
        self._clock = clock
        self._folder = f"{storage.root}/{ROOT_SIDECAR}/keys"

    def create(
        self, name: str, grants: Sequence[Grant], expires_in: timedelta | None
    ) -> tuple[StoredKey, str]:
        """Make a key; returns what is stored and the key itself, which nothing can show again.

        Raises:
            InvalidInput: a name that cannot be shown on one line, no grants, or an expiry that is
                past or beyond the calendar.
        """
        if not name.isprintable() or not 0 < len(name.strip()) <= NAME_CHARACTERS_MAX:
            raise InvalidInput(f"a key's name has 1 to {NAME_CHARACTERS_MAX} printable characters")
        if not grants:
            raise InvalidInput("a key without grants can do nothing; give at least one grant")
        now = datetime.fromtimestamp(self._clock.time(), UTC)
        if expires_in is not None and expires_in <= timedelta(0):
            raise InvalidInput("a key must expire in the future")
        try:
            expires_at = now + expires_in if expires_in else None
        except OverflowError:
            raise InvalidInput("the expiry is beyond the year 9999; leave it out") from None
        secret = secrets.token_urlsafe(SECRET_BYTES)
        key = StoredKey(
            id=secrets.token_hex(6),
            name=name.strip(),
            secret_sha256=hashlib.sha256(secret.encode()).hexdigest(),
            grants=tuple(grants),
            created_at=now,
            expires_at=expires_at,
        )
        with _storage_errors():
            self._write(key)
        return key, f"{KEY_PREFIX}{key.id}_{secret}"

    def _write(self, key: StoredKey) -> None:
        path = self._path(key.id)
        if self._storage.is_local:
            # The folder is closed to others before the file is in it.
            folder = Path(self._folder)
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            folder.chmod(0o700)
        self._storage.write(path, key.to_json())
        if self._storage.is_local:
            Path(path).chmod(0o600)

    def find(self, key_id: str) -> StoredKey | None:
        """The key, or None if there is none; one whose file cannot be read counts as none."""
        if not _ID.fullmatch(key_id):
            return None
        with _storage_errors():
            data = self._storage.read(self._path(key_id))
        if data is None:
            return None
        try:
            key = StoredKey.from_json(data)
        except ValueError:
            key = None
        if key is None or key.id != key_id:
            _log.error("the file of API key %s cannot be read; the key is refused", key_id)
            return None
        return key

    def list_keys(self) -> list[StoredKey]:
        """Every readable key, oldest first."""
        with _storage_errors():
            names = [name for name, _, _ in self._storage.files(self._folder)]
        # A name that is not a key's is a write in progress, or not ours.
        ids = [name.removesuffix(".json") for name in names if name.endswith(".json")]
        found = [self.find(key_id) for key_id in ids]
        keys = [key for key in found if key is not None]
        return sorted(keys, key=lambda key: (key.created_at, key.id))

    def revoke(self, key_id: str) -> bool:
        """Delete a key; says whether it was there. Replicas refuse it after auth.key_cache_s."""
        if not _ID.fullmatch(key_id):
            return False
        with _storage_errors():
            if not self._storage.exists(self._path(key_id)):
                return False
            self._storage.delete_file(self._path(key_id))
            if self._storage.is_local:
                self._storage.sync([self._folder])
        return True

    def _path(self, key_id: str) -> str:
        return f"{self._folder}/{key_id}.json"


@contextmanager
def _storage_errors() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        _log.error("the storage of API keys failed: %s", error)
        raise ServiceUnavailable("the storage of API keys cannot be reached; try again") from error


@dataclass(frozen=True, slots=True)
class _Known:
    secret_digest: bytes = field(repr=False)
    expires_at_s: float
    caller: Caller


class ApiKeyCheck:
    """Answers who a key belongs to; storage is asked at most once per key and auth.key_cache_s."""

    def __init__(
        self, store: KeyStore, settings: AuthSettings, clock: Clock, executor: Executor
    ) -> None:
        self._store = store
        self._clock = clock
        self._executor = executor
        self._cache_s = settings.key_cache_s
        self._known: CredentialCache[str, _Known] = CredentialCache(settings.cache_entries_max)
        # Apart from the known ones, so that a flood of invented ids cannot push those out.
        self._unknown: CredentialCache[str, bool] = CredentialCache(settings.cache_entries_max)
        self._reading: dict[str, asyncio.Future[StoredKey | None]] = {}

    async def authenticate(self, key: str) -> Caller:
        """The caller whose key this is; a remembered key is answered without waiting.

        Raises:
            Unauthenticated: no such key, or its time is over.
            ServiceUnavailable: the storage cannot be reached.
        """
        parts = _KEY.fullmatch(key)
        if parts is None:
            raise Unauthenticated(_UNKNOWN_KEY)
        key_id, secret = parts.groups()
        known = self._known.get(key_id, self._clock.monotonic())
        if known is None:
            known = await self._read(key_id)
        digest = hashlib.sha256(secret.encode()).digest()
        if known is None or not hmac.compare_digest(digest, known.secret_digest):
            raise Unauthenticated(_UNKNOWN_KEY)
        if self._clock.time() >= known.expires_at_s:
            raise Unauthenticated("the API key has expired; ask an administrator for a new one")
        return known.caller

    async def _read(self, key_id: str) -> _Known | None:
        asked_at = self._clock.monotonic()
        if self._unknown.get(key_id, asked_at):
            return None
        reading = self._reading.get(key_id)
        if reading is None:
            loop = asyncio.get_running_loop()
            reading = loop.run_in_executor(self._executor, self._store.find, key_id)
            self._reading[key_id] = reading
            reading.add_done_callback(lambda _: self._reading.pop(key_id, None))
        # Shielded: others may wait for the same read when this caller gives up.
        stored = await asyncio.shield(reading)
        # Counted from before the read: a key revoked during it is not remembered for longer.
        until = asked_at + self._cache_s
        if stored is None:
            self._unknown.put(key_id, True, until)
            return None
        known = _Known(
            bytes.fromhex(stored.secret_sha256),
            stored.expires_at.timestamp() if stored.expires_at else float("inf"),
            stored.caller(),
        )
        self._known.put(key_id, known, until)
        return known


def key_store(settings: Settings, clock: Clock | None = None) -> KeyStore:
    """The key store of a deployment."""
    return KeyStore(Storage.of(settings.storage), clock or SystemClock())


def admin_key_digest(settings: AuthSettings) -> bytes | None:
    """SHA-256 of auth.admin_key, None when it is unset.

    Raises:
        InvalidInput: it is too short to be a key.
    """
    if settings.admin_key is None:
        return None
    text = settings.admin_key.get_secret_value()
    if len(text) < ADMIN_KEY_CHARACTERS_MIN or not text.isascii() or not text.isprintable():
        raise InvalidInput(
            f"auth.admin_key needs at least {ADMIN_KEY_CHARACTERS_MIN} printable ASCII characters"
        )
    return hashlib.sha256(text.encode()).digest()


def ensure_admin_key(settings: Settings, clock: Clock | None = None) -> str | None:
    """Make the first administrator's key if there is no way in yet; returns it to be printed once.

    None when auth is off, auth.admin_key is set, or an administrator's key that has not expired is
    stored. Two first starts at the same moment may make a key each; both are valid, and
    `destrier key revoke` removes one.
    """
    if settings.auth.mode == "off" or admin_key_digest(settings.auth) is not None:
        return None
    clock = clock or SystemClock()
    store = key_store(settings, clock)
    now_s = clock.time()
    if any(k.caller().is_administrator and not k.has_expired(now_s) for k in store.list_keys()):
        return None
    return store.create("admin", ADMINISTRATOR_GRANTS, None)[1]
