"""A local token issuer: signs JSON Web Tokens and publishes its keys over real HTTP."""

import base64
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import jwt
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

AUDIENCE = "destrier-tests"
GRANTS_CLAIM = "destrier_grants"

PrivateKey = ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey | rsa.RSAPrivateKey


@dataclass
class SigningKey:
    """A private key, and the entry of the key set that publishes its public half."""

    key_id: str
    algorithm: str
    private: PrivateKey
    entry: dict[str, Any]

    @staticmethod
    def make(key_id: str, algorithm: str) -> "SigningKey":
        """A new key for RS256, ES256 or EdDSA."""
        private: PrivateKey
        if algorithm == "RS256":
            private = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        elif algorithm == "ES256":
            private = ec.generate_private_key(ec.SECP256R1())
        else:
            private = ed25519.Ed25519PrivateKey.generate()
        signer = jwt.get_algorithm_by_name(algorithm)
        entry = json.loads(signer.to_jwk(private.public_key()))
        entry |= {"kid": key_id, "alg": algorithm, "use": "sig"}
        # A private key's operations must not be published, and are wrong for the public half.
        entry.pop("key_ops", None)
        return SigningKey(key_id, algorithm, private, entry)

    def public_pem(self) -> bytes:
        """The public half as text, as an attacker would download it."""
        return self.private.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )


@dataclass
class Issuer:
    """What the issuer signs with and publishes; tests change it while it runs."""

    url: str
    current: SigningKey
    published: list[dict[str, Any]] = field(default_factory=list)
    status: int = 200
    body: bytes | None = None
    delay_s: float = 0
    fetches: int = 0

    @property
    def jwks_url(self) -> str:
        """Where the keys are."""
        return f"{self.url}/keys"

    def rotate(self, key_id: str, algorithm: str = "EdDSA", *, keep_old: bool = True) -> None:
        """Sign with a new key from now on, and publish it (beside the old ones)."""
        self.current = SigningKey.make(key_id, algorithm)
        self.published = [*(self.published if keep_old else []), self.current.entry]

    def claims(self, **changes: Any) -> dict[str, Any]:
        """Claims of a valid token; a change to None leaves the claim out."""
        now = time.time()
        claims = {
            "iss": self.url,
            "aud": AUDIENCE,
            "sub": "ann",
            "iat": now,
            "exp": now + 600,
            GRANTS_CLAIM: ["read+list:sales/*"],
        } | changes
        return {name: value for name, value in claims.items() if value is not None}

    def token(self, *, headers: dict[str, Any] | None = None, **changes: Any) -> str:
        """A token signed with the current key."""
        key = self.current
        headers = {"kid": key.key_id} | (headers or {})
        return jwt.encode(self.claims(**changes), key.private, key.algorithm, headers)


def unsigned_token(header: dict[str, Any], claims: dict[str, Any], signature: bytes = b"") -> str:
    """A token that no library would make."""
    parts = [json.dumps(header).encode(), json.dumps(claims).encode(), signature]
    return ".".join(base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in parts)


@contextmanager
def running_issuer(algorithm: str = "EdDSA") -> Iterator[Issuer]:
    """An issuer that listens on a free port of loopback."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            issuer.fetches += 1
            time.sleep(issuer.delay_s)
            body = issuer.body
            if body is None:
                body = json.dumps({"keys": issuer.published}).encode()
            self.send_response(issuer.status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            # A client that has given up waiting is part of some tests.
            with suppress(ConnectionError):
                self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    key = SigningKey.make("first", algorithm)
    issuer = Issuer(f"http://127.0.0.1:{server.server_port}", key, [key.entry])
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield issuer
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
