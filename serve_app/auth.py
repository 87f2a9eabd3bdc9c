"""From credentials to a caller."""

import hashlib
import hmac
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from cluster.clock import Clock, SystemClock
from cluster.errors import Unauthenticated
from cluster.settings import AuthSettings, Settings
from serve_app.jwt_tokens import TokenCheck
from serve_app.keys import KEY_PREFIX, ApiKeyCheck, admin_key_digest, key_store
from serve_app.rights import ADMINISTRATOR_GRANTS, Caller, Grant, Right

__all__ = ["Authenticator", "Caller", "Grant", "Right", "build_authenticator"]

# Threads that read key files and fetch signing keys. Their own, so that a flood of invented keys
# waits for itself and not in front of the reads of tables.
_THREADS = 4


class Authenticator(Protocol):
    """Decides who a request comes from."""

    async def authenticate(self, authorization: str | None, api_key: str | None) -> Caller:
        """The caller behind an `Authorization` header and an `x-api-key` header.

        With both, both must be valid, and the caller is the one of `Authorization`.

        Raises:
            Unauthenticated: no credential, or one that is not valid (never echoed).
            ServiceUnavailable: it cannot be checked now; try again.
        """
        ...


class OpenDoor:
    """auth.mode `off`: everyone is the administrator."""

    async def authenticate(self, authorization: str | None, api_key: str | None) -> Caller:
        """The administrator, whatever the headers say."""
        return Caller("anyone", ADMINISTRATOR_GRANTS)


class CredentialCheck:
    """auth.mode `on`: an API key in either header, or a JWT as bearer token."""

    def __init__(
        self,
        settings: AuthSettings,
        admin_digest: bytes | None,
        keys: ApiKeyCheck,
        tokens: TokenCheck | None,
    ) -> None:
        self._bytes_max = settings.credential_bytes_max
        self._admin_digest = admin_digest
        self._administrator = Caller("administrator", ADMINISTRATOR_GRANTS)
        self._keys = keys
        self._tokens = tokens

    async def authenticate(self, authorization: str | None, api_key: str | None) -> Caller:
        """See Authenticator; an empty header counts as absent."""
        key_caller = await self._of_key(self._bounded(api_key)) if api_key else None
        if authorization:
            return await self._of_bearer(self._bounded(authorization))
        if key_caller is None:
            raise Unauthenticated(
                "send an API key as 'x-api-key: <key>' or 'Authorization: Bearer <key or token>'"
            )
        return key_caller

    def _bounded(self, header: str) -> str:
        if len(header) > self._bytes_max or not header.isascii():
            raise Unauthenticated(
                f"a credential has at most {self._bytes_max} characters, all of them ASCII"
            )
        return header

    async def _of_bearer(self, authorization: str) -> Caller:
        scheme, _, credential = authorization.strip().partition(" ")
        credential = credential.strip()
        if scheme.lower() != "bearer" or not credential:
            raise Unauthenticated("the Authorization header must read 'Bearer <key or token>'")
        # Some clients can send nothing but bearer tokens, so API keys are taken here too. No JWT
        # begins like a key: its first letters are the base64 of '{"'.
        if self._tokens is None or credential.startswith(KEY_PREFIX):
            return await self._of_key(credential)
        if self._is_admin_key(credential):
            return self._administrator
        return await self._tokens.authenticate(credential)

    async def _of_key(self, key: str) -> Caller:
        if self._is_admin_key(key):
            return self._administrator
        return await self._keys.authenticate(key)

    def _is_admin_key(self, credential: str) -> bool:
        if self._admin_digest is None:
            return False
        digest = hashlib.sha256(credential.encode()).digest()
        return hmac.compare_digest(digest, self._admin_digest)


def build_authenticator(settings: Settings, clock: Clock | None = None) -> Authenticator:
    """The authenticator that the settings ask for; it belongs to one event loop.

    Raises:
        InvalidInput: settings that do not fit together or would be unsafe.
    """
    auth = settings.auth
    if auth.mode == "off":
        return OpenDoor()
    clock = clock or SystemClock()
    executor = ThreadPoolExecutor(_THREADS, thread_name_prefix="credentials")
    keys = ApiKeyCheck(key_store(settings, clock), auth, clock, executor)
    jwt_settings = (auth.jwt_issuer, auth.jwt_audience, auth.jwt_jwks_url)
    tokens = None if jwt_settings == (None, None, None) else TokenCheck(auth, clock, executor)
    return CredentialCheck(auth, admin_key_digest(auth), keys, tokens)
