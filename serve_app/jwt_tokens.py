"""Bearer tokens: JSON Web Tokens checked against the keys that their issuer publishes (JWKS)."""

import asyncio
import hashlib
import json
import logging
import time
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import httpx
import jwt

from cluster.clock import Clock
from cluster.errors import InvalidInput, ServiceUnavailable, Unauthenticated
from cluster.settings import AuthSettings
from serve_app.credential_cache import CredentialCache
from serve_app.rights import Caller, Grant

# Signatures that a public key verifies. `none` is no signature, and with HS* whoever knows the key
# that verifies can also sign.
ASYMMETRIC_ALGORITHMS = frozenset(
    f"{family}{bits}" for family in ("RS", "PS", "ES") for bits in (256, 384, 512)
) | {"ES256K", "EdDSA"}
SUBJECT_CHARACTERS_MAX = 256
GRANTS_MAX = 256

_log = logging.getLogger(__name__)


class _BadKeyDocument(Exception):
    """The issuer's answer is not a JSON Web Key Set with a key that we can use."""


@dataclass(frozen=True, slots=True)
class _KeySet:
    """Verification keys by (key id, algorithm)."""

    digest: bytes
    keys: dict[tuple[str, str], jwt.PyJWK]

    @staticmethod
    def parse(document: bytes, algorithms: tuple[str, ...]) -> "_KeySet":
        """Take the keys usable with `algorithms`; others are left out, as RFC 7517 asks."""
        try:
            listed = json.loads(document)["keys"]
            entries = [entry for entry in listed if isinstance(entry, dict)]
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise _BadKeyDocument("not a JSON object with a list of keys") from error
        keys: dict[tuple[str, str], jwt.PyJWK] = {}
        for entry in entries:
            key_id = entry.get("kid")
            if not isinstance(key_id, str) or entry.get("use", "sig") != "sig":
                continue
            for algorithm in algorithms:
                if entry.get("alg", algorithm) != algorithm:
                    continue
                try:
                    keys[key_id, algorithm] = jwt.PyJWK(entry, algorithm)
                except jwt.PyJWTError:
                    continue
        if not keys:
            raise _BadKeyDocument("no key has an id and fits an accepted algorithm")
        return _KeySet(hashlib.sha256(document).digest(), keys)


class SigningKeys:
    """The issuer's published keys, fetched when due and when a token names an unknown one.

    PyJWT's own PyJWKClient is not used: when a fetch fails it forgets the keys it had, asks again
    for every request, and holds a lock for as long as the issuer keeps it waiting.
    """

    def __init__(self, settings: AuthSettings, clock: Clock, executor: Executor) -> None:
        self._settings = settings
        self._clock = clock
        self._executor = executor
        self._key_set: _KeySet | None = None
        self._fetched_at = float("-inf")
        self._tried_at = float("-inf")
        self._last_fetch_failed = False
        self._fetching: asyncio.Task[None] | None = None

    @property
    def usable(self) -> bool:
        """Whether there are keys, fetched not longer than auth.jwks_stale_s ago."""
        age_s = self._clock.monotonic() - self._fetched_at
        return self._key_set is not None and age_s < self._settings.jwks_stale_s

    @property
    def version(self) -> bytes | None:
        """Changes with the keys: what an older set has verified must be verified again."""
        return self._key_set.digest if self._key_set is not None else None

    def refresh_if_due(self) -> None:
        """Start a fetch in the background when the keys are older than auth.jwks_refresh_s."""
        if self._clock.monotonic() - self._fetched_at >= self._settings.jwks_refresh_s:
            self._start_fetch()

    async def find(self, key_id: str, algorithm: str) -> jwt.PyJWK:
        """The key that a token names; asks the issuer if it is unknown.

        Raises:
            Unauthenticated: the issuer does not publish such a key.
            ServiceUnavailable: the issuer cannot be asked.
        """
        self.refresh_if_due()
        key = self._lookup(key_id, algorithm)
        # A fetch that runs already may have begun before the key was published: ask once more.
        for _ in range(2):
            if key is not None:
                return key
            if not self._start_fetch():
                break
            await self._fetched()
            key = self._lookup(key_id, algorithm)
        if key is not None:
            return key
        if not self.usable or self._last_fetch_failed:
            raise ServiceUnavailable("the token issuer's keys cannot be fetched; try again")
        raise Unauthenticated("the bearer token is signed with a key that its issuer does not list")

    def _lookup(self, key_id: str, algorithm: str) -> jwt.PyJWK | None:
        if self._key_set is None or not self.usable:
            return None
        return self._key_set.keys.get((key_id, algorithm))

    def _start_fetch(self) -> bool:
        """See that a fetch runs; False when the last one is too recent."""
        if self._fetching is not None and not self._fetching.done():
            return True
        now = self._clock.monotonic()
        if now - self._tried_at < self._settings.jwks_fetch_interval_s:
            return False
        self._tried_at = now
        self._fetching = asyncio.get_running_loop().create_task(self._fetch())
        return True

    async def _fetched(self) -> None:
        if self._fetching is not None:
            # Shielded: others may wait for the same fetch when this caller gives up.
            await asyncio.shield(self._fetching)

    async def _fetch(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            key_set = await loop.run_in_executor(self._executor, self._download)
        except (httpx.HTTPError, _BadKeyDocument) as error:
            self._last_fetch_failed = True
            _log.warning("cannot fetch the token issuer's keys: %s", error)
            return
        self._key_set = key_set
        self._fetched_at = self._tried_at
        self._last_fetch_failed = False

    def _download(self) -> _KeySet:
        settings = self._settings
        deadline = time.monotonic() + settings.jwks_timeout_s
        document = bytearray()
        # Redirects are not followed: where the keys come from is the operator's decision.
        with httpx.stream(
            "GET", str(settings.jwt_jwks_url), timeout=settings.jwks_timeout_s
        ) as response:
            if response.status_code != httpx.codes.OK:
                raise _BadKeyDocument(f"the issuer answered {response.status_code}")
            for chunk in response.iter_bytes():
                document += chunk
                if len(document) > settings.jwks_bytes_max:
                    raise _BadKeyDocument(f"more than {settings.jwks_bytes_max} bytes")
                # httpx's timeout is per read; an issuer that drips bytes would never reach it.
                if time.monotonic() > deadline:
                    raise httpx.ReadTimeout("the whole answer took too long")
        return _KeySet.parse(bytes(document), settings.jwt_algorithms)


@dataclass(frozen=True, slots=True)
class _Verified:
    caller: Caller
    keys_version: bytes | None


class TokenCheck:
    """Answers who a bearer token belongs to; a token seen before costs a hash and a look-up."""

    def __init__(self, settings: AuthSettings, clock: Clock, executor: Executor) -> None:
        _check_settings(settings)
        self._settings = settings
        self._clock = clock
        self._keys = SigningKeys(settings, clock, executor)
        self._verified: CredentialCache[bytes, _Verified] = CredentialCache(
            settings.cache_entries_max
        )

    async def authenticate(self, token: str) -> Caller:
        """The caller that the token names.

        Raises:
            Unauthenticated: malformed, not signed by the issuer, expired, or for someone else.
            ServiceUnavailable: the issuer's keys cannot be had.
        """
        digest = hashlib.sha256(token.encode()).digest()
        self._keys.refresh_if_due()
        verified = self._verified.get(digest, self._clock.time())
        if (
            verified is not None
            and verified.keys_version == self._keys.version
            and self._keys.usable
        ):
            return verified.caller
        key_id, algorithm = self._read_header(token)
        key = await self._keys.find(key_id, algorithm)
        version = self._keys.version
        claims = self._verify(token, key)
        caller = Caller(_subject(claims), self._grants(claims))
        until = int(claims["exp"]) + self._settings.jwt_leeway_s
        self._verified.put(digest, _Verified(caller, version), until)
        return caller

    def _read_header(self, token: str) -> tuple[str, str]:
        """The key id and algorithm that the token claims; nothing here is verified yet."""
        try:
            header = jwt.get_unverified_header(token)
        except jwt.PyJWTError:
            raise Unauthenticated("the bearer token is neither an API key nor a JWT") from None
        algorithm, key_id = header.get("alg"), header.get("kid")
        if algorithm not in self._settings.jwt_algorithms:
            raise Unauthenticated(
                "the bearer token's algorithm is not accepted; use one of "
                + ", ".join(self._settings.jwt_algorithms)
            )
        if not isinstance(key_id, str):
            raise Unauthenticated("the bearer token's header has no 'kid' that names its key")
        return key_id, str(algorithm)

    def _verify(self, token: str, key: jwt.PyJWK) -> dict[str, Any]:
        settings = self._settings
        try:
            return jwt.decode(
                token,
                key,
                algorithms=list(settings.jwt_algorithms),
                issuer=settings.jwt_issuer,
                audience=settings.jwt_audience,
                leeway=settings.jwt_leeway_s,
                options={
                    "require": ["exp", "iss", "aud", "sub"],
                    "enforce_minimum_key_length": True,
                },
            )
        except jwt.ExpiredSignatureError:
            raise Unauthenticated("the bearer token has expired; get a new one") from None
        except jwt.ImmatureSignatureError:
            raise Unauthenticated("the bearer token is not valid yet") from None
        except jwt.InvalidAudienceError:
            raise Unauthenticated("the bearer token is for another audience") from None
        except jwt.InvalidIssuerError:
            raise Unauthenticated("the bearer token comes from another issuer") from None
        except jwt.MissingRequiredClaimError as error:
            raise Unauthenticated(f"the bearer token lacks the claim '{error.claim}'") from None
        except jwt.PyJWTError:
            raise Unauthenticated("the bearer token's signature or content is not valid") from None

    def _grants(self, claims: dict[str, Any]) -> tuple[Grant, ...]:
        """The grants that the token lists; one that cannot be read refuses the token, loudly."""
        name = self._settings.jwt_grants_claim
        listed = claims.get(name, [])
        try:
            if not isinstance(listed, list) or len(listed) > GRANTS_MAX:
                raise InvalidInput("not a short list")
            return tuple(Grant.parse(text) for text in listed)
        except (InvalidInput, AttributeError):
            raise Unauthenticated(
                f"the bearer token's claim '{name}' is not a list of at most {GRANTS_MAX}"
                " strings like 'read+list:sales/*'"
            ) from None


def _subject(claims: dict[str, Any]) -> str:
    subject = str(claims["sub"])
    if not subject.isprintable() or not 0 < len(subject.strip()) <= SUBJECT_CHARACTERS_MAX:
        raise Unauthenticated(
            f"the bearer token's 'sub' is not 1 to {SUBJECT_CHARACTERS_MAX} printable characters"
        )
    return subject


def _check_settings(settings: AuthSettings) -> None:
    if None in (settings.jwt_issuer, settings.jwt_audience, settings.jwt_jwks_url):
        raise InvalidInput(
            "bearer tokens need auth.jwt_issuer, auth.jwt_audience and auth.jwt_jwks_url together"
        )
    unsafe = sorted(set(settings.jwt_algorithms) - ASYMMETRIC_ALGORITHMS)
    if unsafe or not settings.jwt_algorithms:
        raise InvalidInput(
            f"auth.jwt_algorithms: {', '.join(unsafe) or 'empty'};"
            f" only {', '.join(sorted(ASYMMETRIC_ALGORITHMS))} are accepted"
        )
    url = urlsplit(str(settings.jwt_jwks_url))
    if url.scheme != "https" and url.hostname not in ("127.0.0.1", "localhost", "::1"):
        _log.warning("auth.jwt_jwks_url is not https: who can alter its answers can forge tokens")
