"""From credentials to a caller."""

from typing import Protocol

from serve_app.rights import Caller, Grant, Right

__all__ = ["Authenticator", "Caller", "Grant", "Right"]


class Authenticator(Protocol):
    """Decides who a request comes from."""

    async def authenticate(self, authorization: str | None, api_key: str | None) -> Caller:
        """The caller behind an `Authorization` header and an `x-api-key` header.

        Raises:
            Unauthenticated: no credential, or one that is not valid (never echoed).
            ServiceUnavailable: it cannot be checked now; try again.
        """
        ...
