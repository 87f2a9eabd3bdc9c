"""Bearer tokens, against a real issuer that publishes and rotates its keys over HTTP."""

import asyncio
import hashlib
import hmac
import json
import logging
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jwt
import pytest

from cluster.errors import PermissionDenied, ServiceUnavailable, Unauthenticated
from cluster.identifiers import ObjectId
from cluster.settings import AuthSettings, Settings, StorageSettings
from serve_app.auth import Grant, Right, build_authenticator
from serve_app.jwt_tokens import TokenCheck
from serve_app.keys import key_store
from tests.clients.issuer import (
    AUDIENCE,
    GRANTS_CLAIM,
    Issuer,
    SigningKey,
    running_issuer,
    unsigned_token,
)
from tests.clients.manual_clock import ManualClock

Run = Callable[[Coroutine[Any, Any, Any]], Any]
Build = Callable[..., TokenCheck]


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    with running_issuer() as issuer:
        yield issuer


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def run() -> Iterator[Run]:
    with asyncio.Runner() as runner:
        yield runner.run


def auth_settings(issuer: Issuer, **changes: Any) -> AuthSettings:
    return AuthSettings.model_validate(
        {
            "jwt_issuer": issuer.url,
            "jwt_audience": AUDIENCE,
            "jwt_jwks_url": issuer.jwks_url,
        }
        | changes
    )


@pytest.fixture
def build(issuer: Issuer, clock: ManualClock) -> Iterator[Build]:
    with ThreadPoolExecutor(2) as executor:
        yield lambda **changes: TokenCheck(auth_settings(issuer, **changes), clock, executor)


@pytest.fixture
def check(build: Build) -> TokenCheck:
    return build()


def refusal_of(run: Run, check: TokenCheck, token: str) -> str:
    with pytest.raises(Unauthenticated) as refusal:
        run(check.authenticate(token))
    assert token not in refusal.value.message
    return refusal.value.message


@pytest.mark.parametrize("algorithm", ["RS256", "ES256", "EdDSA"])
def test_a_valid_token_gives_its_subject_and_grants(
    issuer: Issuer, check: TokenCheck, run: Run, algorithm: str
) -> None:
    issuer.rotate("k", algorithm)
    caller = run(check.authenticate(issuer.token()))
    assert caller.name == "ann"
    assert caller.grants == (Grant.parse("read+list:sales/*"),)


def test_a_key_published_without_its_algorithm_verifies_those_of_its_type(
    issuer: Issuer, build: Build, run: Run
) -> None:
    issuer.rotate("k", "RS256")
    issuer.published[-1].pop("alg")
    assert run(build().authenticate(issuer.token())).name == "ann"
    key = issuer.current
    token = jwt.encode(issuer.claims(), key.private, "PS512", {"kid": "k"})
    assert run(build(jwt_algorithms=["PS512", "ES384"]).authenticate(token)).name == "ann"
    assert "not accepted" in refusal_of(run, build(), token)


def test_a_key_published_for_one_algorithm_verifies_no_other(
    issuer: Issuer, build: Build, run: Run
) -> None:
    issuer.rotate("k", "RS256")
    token = jwt.encode(issuer.claims(), issuer.current.private, "PS256", {"kid": "k"})
    refusal_of(run, build(jwt_algorithms=["RS256", "PS256"]), token)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"aud": "another"}, "audience"),
        ({"aud": None}, "'aud'"),
        ({"aud": []}, "'aud'"),
        ({"iss": "http://another"}, "issuer"),
        ({"iss": None}, "'iss'"),
        ({"sub": None}, "'sub'"),
        ({"sub": ""}, "'sub'"),
        ({"sub": " "}, "'sub'"),
        ({"sub": "a\nb"}, "'sub'"),
        ({"sub": "x" * 257}, "'sub'"),
        ({"sub": 7}, "not valid"),
        ({"exp": None}, "'exp'"),
        ({"exp": time.time() - 31}, "expired"),
        ({"exp": "soon"}, "not valid"),
        ({"exp": 1e400}, "not valid"),
        ({"nbf": time.time() + 86_400}, "not valid yet"),
        ({"iat": time.time() + 86_400}, "not valid yet"),
        ({GRANTS_CLAIM: "read:sales/*"}, GRANTS_CLAIM),
        ({GRANTS_CLAIM: ["reed:sales/*"]}, GRANTS_CLAIM),
        ({GRANTS_CLAIM: [7]}, GRANTS_CLAIM),
        ({GRANTS_CLAIM: {"read": "sales/*"}}, GRANTS_CLAIM),
        ({GRANTS_CLAIM: ["read:*"] * 257}, GRANTS_CLAIM),
    ],
)
def test_a_token_whose_claims_are_wrong_is_refused_with_the_reason(
    issuer: Issuer, check: TokenCheck, run: Run, changes: dict[str, Any], says: str
) -> None:
    assert says in refusal_of(run, check, issuer.token(**changes))


def test_one_audience_of_several_is_enough(issuer: Issuer, check: TokenCheck, run: Run) -> None:
    assert run(check.authenticate(issuer.token(aud=["another", AUDIENCE]))).name == "ann"


def test_clocks_may_differ_by_the_leeway(issuer: Issuer, check: TokenCheck, run: Run) -> None:
    now = time.time()
    assert run(check.authenticate(issuer.token(exp=now - 20, nbf=now - 60))).name == "ann"
    assert run(check.authenticate(issuer.token(nbf=now + 20))).name == "ann"


def test_a_token_without_grants_may_do_nothing(issuer: Issuer, check: TokenCheck, run: Run) -> None:
    caller = run(check.authenticate(issuer.token(**{GRANTS_CLAIM: None})))
    assert caller.grants == ()
    with pytest.raises(PermissionDenied):
        caller.require(Right.LIST, "sales", ObjectId(()))


@pytest.mark.parametrize(
    "algorithm", ["none", "None", "NONE", "", "HS256", "RS512", None, ["RS256"]]
)
def test_a_token_of_an_unaccepted_algorithm_is_refused(
    issuer: Issuer, check: TokenCheck, run: Run, algorithm: Any
) -> None:
    token = unsigned_token({"alg": algorithm, "kid": "first"}, issuer.claims())
    assert "not accepted" in refusal_of(run, check, token)
    assert issuer.fetches <= 1


@pytest.mark.parametrize("encoding", ["pem", "jwk"])
def test_a_token_signed_with_the_public_key_as_a_secret_is_refused(
    issuer: Issuer, check: TokenCheck, run: Run, encoding: str
) -> None:
    issuer.rotate("k", "RS256")
    key = issuer.current
    secret = key.public_pem() if encoding == "pem" else json.dumps(key.entry).encode()
    for algorithm in ("HS256", "RS256"):
        unsigned = unsigned_token({"alg": algorithm, "kid": "k"}, issuer.claims())
        signed_part = unsigned.rpartition(".")[0]
        signature = hmac.new(secret, signed_part.encode(), hashlib.sha256).digest()
        token = unsigned_token({"alg": algorithm, "kid": "k"}, issuer.claims(), signature)
        refusal_of(run, check, token)


def test_a_symmetric_key_in_the_key_set_is_never_used(
    issuer: Issuer, build: Build, run: Run
) -> None:
    secret = "c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0"
    issuer.published.append({"kty": "oct", "kid": "shared", "k": secret})
    token = jwt.encode(issuer.claims(), "secret" * 6, "HS256", {"kid": "shared", "alg": "HS256"})
    refusal_of(run, build(), token)
    forged = unsigned_token({"alg": "EdDSA", "kid": "shared"}, issuer.claims(), b"x" * 64)
    refusal_of(run, build(), forged)


def test_a_token_signed_by_someone_else_under_a_known_key_id_is_refused(
    issuer: Issuer, check: TokenCheck, run: Run
) -> None:
    assert run(check.authenticate(issuer.token())).name == "ann"
    stranger = SigningKey.make("first", "EdDSA")
    token = jwt.encode(issuer.claims(), stranger.private, "EdDSA", {"kid": "first"})
    assert "signature" in refusal_of(run, check, token)


def test_a_token_that_brings_its_own_key_is_refused(
    issuer: Issuer, check: TokenCheck, run: Run
) -> None:
    stranger = SigningKey.make("first", "EdDSA")
    headers = {"kid": "first", "jwk": stranger.entry, "jku": issuer.url + "/attacker"}
    token = jwt.encode(issuer.claims(), stranger.private, "EdDSA", headers)
    refusal_of(run, check, token)
    assert issuer.fetches == 1


@pytest.mark.parametrize("part", [0, 1, 2])
def test_a_token_changed_anywhere_is_refused(
    issuer: Issuer, check: TokenCheck, run: Run, part: int
) -> None:
    parts = issuer.token().split(".")
    middle = len(parts[part]) // 2
    letter = "A" if parts[part][middle] != "A" else "B"
    parts[part] = parts[part][:middle] + letter + parts[part][middle + 1 :]
    refusal_of(run, check, ".".join(parts))


@pytest.mark.parametrize(
    "token",
    [
        "x",
        "..",
        "a.b.c",
        "a.b",
        "a.b.c.d",
        "!.!.!",
        "e30.e30.e30",
        "bnVsbA.e30.",
        "W10.e30.",
        "[" * 1_000,
        unsigned_token({"alg": "EdDSA"}, {}),
        unsigned_token({"alg": "EdDSA", "kid": 7}, {}),
        unsigned_token({"alg": "EdDSA", "kid": None}, {}),
        unsigned_token({"alg": "EdDSA", "kid": ["first"]}, {}),
        unsigned_token({"alg": "EdDSA", "kid": "first", "crit": ["exp"]}, {}, b"x" * 64),
        unsigned_token({"alg": "EdDSA", "kid": "first", "b64": False}, {}, b"x" * 64),
    ],
)
def test_a_malformed_token_is_refused(check: TokenCheck, run: Run, token: str) -> None:
    with pytest.raises(Unauthenticated):
        run(check.authenticate(token))


def test_a_rotated_key_is_accepted_at_its_first_use(
    issuer: Issuer, check: TokenCheck, clock: ManualClock, run: Run
) -> None:
    run(check.authenticate(issuer.token()))
    issuer.rotate("second")
    clock.advance(5)
    assert run(check.authenticate(issuer.token())).name == "ann"
    assert issuer.fetches == 2


def test_a_withdrawn_key_is_refused_after_the_refresh_even_for_remembered_tokens(
    issuer: Issuer, check: TokenCheck, clock: ManualClock, run: Run
) -> None:
    token = issuer.token(exp=clock.time() + 3_600)
    run(check.authenticate(token))
    issuer.rotate("second", keep_old=False)
    clock.advance(299)
    assert run(check.authenticate(token)).name == "ann"
    clock.advance(1)

    async def until_refused() -> str:
        for _ in range(500):
            try:
                await check.authenticate(token)
            except Unauthenticated as error:
                return error.message
            await asyncio.sleep(0.01)
        return "never"

    assert "does not list" in run(until_refused())
    assert issuer.fetches == 2


def test_unknown_key_ids_cause_one_fetch_per_interval(
    issuer: Issuer, check: TokenCheck, clock: ManualClock, run: Run
) -> None:
    run(check.authenticate(issuer.token()))
    for number in range(20):
        refusal_of(run, check, issuer.token(headers={"kid": f"invented{number}"}))
    assert issuer.fetches == 1
    clock.advance(5)
    for number in range(20):
        refusal_of(run, check, issuer.token(headers={"kid": f"invented{number}"}))
    assert issuer.fetches == 2


def test_simultaneous_first_requests_share_one_fetch_and_survive_a_cancelled_one(
    issuer: Issuer, check: TokenCheck, run: Run
) -> None:
    issuer.delay_s = 0.1

    async def scenario() -> list[Any]:
        tasks = [asyncio.create_task(check.authenticate(issuer.token())) for _ in range(20)]
        await asyncio.sleep(0.01)
        tasks[0].cancel()
        return await asyncio.gather(*tasks, return_exceptions=True)

    outcomes = run(scenario())
    assert isinstance(outcomes[0], asyncio.CancelledError)
    assert {outcome.name for outcome in outcomes[1:]} == {"ann"}
    assert issuer.fetches == 1


def test_a_refresh_that_is_due_holds_nobody_up(
    issuer: Issuer, check: TokenCheck, clock: ManualClock, run: Run
) -> None:
    run(check.authenticate(issuer.token()))
    clock.advance(300)
    issuer.delay_s = 0.6

    async def timed() -> float:
        start = time.perf_counter()
        await check.authenticate(issuer.token(jti="new"))
        return time.perf_counter() - start

    assert run(timed()) < 0.3


def test_known_keys_outlive_an_unreachable_issuer_until_they_are_stale(
    issuer: Issuer, check: TokenCheck, clock: ManualClock, run: Run
) -> None:
    token = issuer.token(exp=clock.time() + 10_000)
    run(check.authenticate(token))
    issuer.status = 500
    clock.advance(2_999)
    assert run(check.authenticate(token)).name == "ann"
    fresh = issuer.token(exp=clock.time() + 10_000, jti="new")
    assert run(check.authenticate(fresh)).name == "ann"
    clock.advance(1)
    with pytest.raises(ServiceUnavailable):
        run(check.authenticate(token))
    issuer.status = 200
    clock.advance(5)
    assert run(check.authenticate(token)).name == "ann"


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (500, None),
        (404, None),
        (302, None),
        (200, b""),
        (200, b"not json"),
        (200, b"[]"),
        (200, b"7"),
        (200, b'{"keys": []}'),
        (200, b'{"keys": 7}'),
        (200, b'{"keys": [{"kty": "oct", "kid": "first", "k": "c2VjcmV0"}]}'),
        (200, b'{"keys": [7, {"kid": "first"}, {"kty": "RSA", "kid": "first", "n": "!"}]}'),
        (200, b"[" * 100_000),
    ],
)
def test_without_any_keys_a_token_cannot_be_judged(
    issuer: Issuer, check: TokenCheck, run: Run, status: int, body: bytes | None
) -> None:
    issuer.status, issuer.body = status, body
    for _ in range(3):
        with pytest.raises(ServiceUnavailable):
            run(check.authenticate(issuer.token()))
    assert issuer.fetches == 1


def test_a_key_document_over_the_bound_is_not_taken(issuer: Issuer, build: Build, run: Run) -> None:
    size = len(json.dumps({"keys": issuer.published}))
    assert run(build(jwks_bytes_max=size).authenticate(issuer.token())).name == "ann"
    with pytest.raises(ServiceUnavailable):
        run(build(jwks_bytes_max=size - 1).authenticate(issuer.token()))


def test_a_bad_answer_does_not_replace_good_keys(
    issuer: Issuer, check: TokenCheck, clock: ManualClock, run: Run
) -> None:
    run(check.authenticate(issuer.token()))
    issuer.body = b'{"keys": []}'
    clock.advance(300)

    async def scenario() -> str:
        name = ""
        for number in range(20):
            name = (await check.authenticate(issuer.token(jti=str(number)))).name
            await asyncio.sleep(0.01)
        return name

    assert run(scenario()) == "ann"
    assert issuer.fetches == 2


def test_an_unknown_key_cannot_be_judged_while_the_issuer_is_away(
    issuer: Issuer, check: TokenCheck, clock: ManualClock, run: Run
) -> None:
    run(check.authenticate(issuer.token()))
    issuer.rotate("second")
    issuer.status = 503
    clock.advance(5)
    with pytest.raises(ServiceUnavailable):
        run(check.authenticate(issuer.token()))


def test_a_slow_issuer_is_given_up_on(issuer: Issuer, build: Build, run: Run) -> None:
    issuer.delay_s = 0.8
    check = build(jwks_timeout_s=0.2)
    start = time.perf_counter()
    with pytest.raises(ServiceUnavailable):
        run(check.authenticate(issuer.token()))
    assert time.perf_counter() - start < 0.7


def test_a_remembered_token_ends_when_it_expires(
    issuer: Issuer, check: TokenCheck, clock: ManualClock, run: Run
) -> None:
    # Expired for PyJWT already, within the leeway; the manual clock goes past that.
    token = issuer.token(exp=int(clock.time()))
    run(check.authenticate(token))
    digest = hashlib.sha256(token.encode()).digest()
    assert check._verified.get(digest, clock.time() + 29) is not None
    assert check._verified.get(digest, clock.time() + 30) is None


def test_remembered_tokens_are_bounded(issuer: Issuer, build: Build, run: Run) -> None:
    check = build(cache_entries_max=3)
    for number in range(10):
        run(check.authenticate(issuer.token(jti=str(number))))
    assert len(check._verified) == 3


def test_a_remembered_token_takes_microseconds(issuer: Issuer, check: TokenCheck, run: Run) -> None:
    token = issuer.token()

    async def best_of_five() -> float:
        await check.authenticate(token)
        times = []
        for _ in range(5):
            start = time.perf_counter()
            for _ in range(1_000):
                await check.authenticate(token)
            times.append((time.perf_counter() - start) / 1_000)
        return min(times)

    # Measured 3 µs; verifying a signature would take 60 µs or more.
    assert run(best_of_five()) < 25e-6


def test_nothing_logs_a_token(
    issuer: Issuer, check: TokenCheck, run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    token = issuer.token()
    run(check.authenticate(token))
    refusal_of(run, check, token[:-8] + "AAAAAAAA")
    issuer.status = 500
    refusal_of(run, check, issuer.token(aud="another"))
    for part in token.split("."):
        assert part not in caplog.text


def test_keys_and_tokens_are_told_apart_in_the_authorization_header(
    issuer: Issuer, run: Run, tmp_path: Path
) -> None:
    admin_key = "the key of the administrator"
    settings = Settings(
        storage=StorageSettings(root=str(tmp_path)),
        auth=auth_settings(issuer, admin_key=admin_key),
    )
    authenticator = build_authenticator(settings)
    _, key = key_store(settings).create("bob", [Grant.parse("read:*")], None)
    assert run(authenticator.authenticate(f"Bearer {issuer.token()}", None)).name == "ann"
    assert run(authenticator.authenticate(f"Bearer {key}", None)).name.startswith("bob ")
    assert run(authenticator.authenticate(f"Bearer {admin_key}", None)).is_administrator
    assert run(authenticator.authenticate(f"Bearer {issuer.token()}", key)).name == "ann"
    for authorization, api_key in (
        (f"Bearer {issuer.token()}", key[:-1] + "."),
        (f"Bearer {issuer.token(aud='another')}", key),
        (None, issuer.token()),
        (f"Bearer {issuer.token(padding='x' * 16_384)}", None),
    ):
        with pytest.raises(Unauthenticated):
            run(authenticator.authenticate(authorization, api_key))
