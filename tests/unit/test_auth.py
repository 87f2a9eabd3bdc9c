"""Rights, grants, callers, and the choice between credentials."""

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from cluster.errors import InvalidInput, PermissionDenied, Unauthenticated
from cluster.identifiers import ObjectId
from cluster.settings import AuthSettings, Settings, StorageSettings
from serve_app.auth import Authenticator, Caller, Grant, Right, build_authenticator
from serve_app.keys import key_store
from serve_app.rights import ADMINISTRATOR_GRANTS, PATTERN_CHARACTERS_MAX

Run = Callable[[Coroutine[Any, Any, Any]], Any]
ADMIN_KEY = "the key of the administrator"


@pytest.fixture
def run() -> Iterator[Run]:
    with asyncio.Runner() as runner:
        yield runner.run


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(
        storage=StorageSettings(root=str(tmp_path)),
        auth=AuthSettings.model_validate({"admin_key": ADMIN_KEY}),
    )


@pytest.fixture
def authenticator(settings: Settings) -> Authenticator:
    return build_authenticator(settings)


def object_id(text: str) -> ObjectId:
    return ObjectId.parse(text)


@pytest.mark.parametrize(
    ("pattern", "database", "identifier", "covered"),
    [
        ("*", "sales", "", True),
        ("*", "sales", "raw$orders", True),
        ("sales/*", "sales", "", True),
        ("sales/*", "sales", "raw$orders", True),
        ("sales/*", "sales2", "orders", False),
        ("sales/*", "Sales", "orders", False),
        ("sales/", "sales", "", True),
        ("sales/", "sales", "orders", False),
        ("sales/orders", "sales", "orders", True),
        ("sales/orders", "sales", "", False),
        ("sales/orders", "sales", "orders2", False),
        ("sales/orders", "sales", "orders$inner", False),
        ("sales/Orders", "sales", "orders", False),
        ("sales/raw$*", "sales", "raw$orders", True),
        ("sales/raw$*", "sales", "raw$deep$orders", True),
        ("sales/raw$*", "sales", "raw", False),
        ("sales/raw$*", "sales", "rawer$orders", False),
        ("sales/*$orders", "sales", "raw$orders", True),
        ("sales/*$orders", "sales", "orders", False),
        ("sales/a*b*c", "sales", "a1b2c", True),
        ("sales/a*b*c", "sales", "a1c2b", False),
        ("*/orders", "sales", "orders", True),
        ("*/orders", "hr", "orders", True),
        ("s*s/*", "sales", "x", True),
        ("s*s/*", "sale", "x", False),
        ("sales/o?ders", "sales", "orders", False),
        ("sales/o?ders", "sales", "o?ders", True),
        ("sales/o[r]ders", "sales", "orders", False),
        ("sales/o[r]ders", "sales", "o[r]ders", True),
        ("sales/o[!x]ders", "sales", "orders", False),
        ("sales/.*", "sales", "orders", False),
        ("sales/t.1", "sales", "tx1", False),
    ],
)
def test_a_pattern_covers_exactly_what_it_says(
    pattern: str, database: str, identifier: str, covered: bool
) -> None:
    grant = Grant.of([Right.READ], pattern)
    assert grant.matches(database, object_id(identifier)) is covered


def test_a_wildcard_does_not_reach_from_the_database_into_the_identifier() -> None:
    grant = Grant.of([Right.READ], "a*/b")
    assert grant.matches("a1", object_id("b"))
    assert not grant.matches("a", object_id("x$b"))
    assert not Grant.of([Right.READ], "a*z/b").matches("a", object_id("z$b"))


@pytest.mark.parametrize(
    "pattern",
    [
        "",
        "sales",
        "/orders",
        "sales/raw/orders",
        "sales/a\nb",
        "**",
        "sales/" + "x" * PATTERN_CHARACTERS_MAX,
    ],
)
def test_a_pattern_that_could_match_nothing_is_refused(pattern: str) -> None:
    with pytest.raises(InvalidInput, match="pattern"):
        Grant.of([Right.READ], pattern)


def test_a_pattern_of_many_wildcards_is_matched_in_no_time() -> None:
    grant = Grant.of([Right.READ], "d/" + "a*" * 110 + "b")
    start = time.perf_counter()
    assert not grant.matches("d", object_id("a" * 220))
    assert time.perf_counter() - start < 1


def test_a_grant_reads_and_writes_as_text() -> None:
    grant = Grant.parse("write+list:sales/raw$*")
    assert grant.rights == {Right.LIST, Right.WRITE}
    assert grant.pattern == "sales/raw$*"
    assert str(grant) == "list+write:sales/raw$*"
    assert Grant.parse(str(grant)) == grant


@pytest.mark.parametrize(
    "text",
    ["", "read", "sales/*", ":sales/*", "reed:sales/*", "READ:*", "read,list:*", "read+:*", "*:*"],
)
def test_a_grant_that_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="grant"):
        Grant.parse(text)


@pytest.mark.parametrize("right", list(Right))
def test_no_right_implies_another(right: Right) -> None:
    caller = Caller("ann", (Grant.of([right], "*"),))
    held = [other for other in Right if caller.may(other, "sales", object_id("orders"))]
    assert held == [right]


def test_rights_of_several_grants_add_up_only_where_both_match() -> None:
    caller = Caller("ann", (Grant.parse("read:sales/*"), Grant.parse("write:sales/raw$*")))
    assert caller.may(Right.READ, "sales", object_id("raw$orders"))
    assert caller.may(Right.WRITE, "sales", object_id("raw$orders"))
    assert not caller.may(Right.WRITE, "sales", object_id("orders"))
    assert not caller.may(Right.READ, "hr", object_id("orders"))


def test_a_caller_without_grants_may_do_nothing() -> None:
    caller = Caller("ann", ())
    assert not any(caller.may(right, "sales", object_id("orders")) for right in Right)
    with pytest.raises(PermissionDenied):
        caller.require(Right.LIST, "sales", object_id(""))


def test_a_refusal_names_the_right_and_the_object_and_no_grant() -> None:
    caller = Caller("ann", (Grant.parse("read:sales/secret"),))
    with pytest.raises(PermissionDenied) as refusal:
        caller.require(Right.DROP, "sales", object_id("raw$orders"))
    assert "'drop'" in refusal.value.message
    assert "'sales/raw$orders'" in refusal.value.message
    assert "secret" not in refusal.value.message
    caller.require(Right.READ, "sales", object_id("secret"))


@pytest.mark.parametrize(
    ("grants", "database"),
    [
        ([], None),
        (["read:*"], None),
        (["read:s*/x"], None),
        (["read:sales/x"], "sales"),
        (["read:sales/x", "write:sales/y"], "sales"),
        (["read:sales/x", "read:hr/x"], None),
        (["read:sales/x", "read:*"], None),
    ],
)
def test_the_only_database_is_the_one_that_every_grant_names(
    grants: list[str], database: str | None
) -> None:
    caller = Caller("ann", tuple(Grant.parse(text) for text in grants))
    assert caller.only_database == database


@pytest.mark.parametrize("missing", list(Right))
def test_an_administrator_lacks_no_right(missing: Right) -> None:
    others = [right for right in Right if right != missing]
    most = Grant.of(others, "*")
    assert not Caller("x", (most,)).is_administrator
    assert not Caller("x", (most, Grant.of([missing], "sales/*"))).is_administrator
    assert Caller("x", (most, Grant.of([missing], "*"))).is_administrator


def test_a_rights_check_takes_microseconds() -> None:
    caller = Caller("ann", tuple(Grant.parse(f"read:db{n}/raw$*") for n in range(20)))
    table = object_id("raw$orders")
    start = time.perf_counter()
    for _ in range(1_000):
        assert caller.may(Right.READ, "db19", table)
    assert (time.perf_counter() - start) / 1_000 < 100e-6


def test_without_authentication_everyone_is_the_administrator(run: Run, tmp_path: Path) -> None:
    door = build_authenticator(
        Settings(storage=StorageSettings(root=str(tmp_path)), auth=AuthSettings(mode="off"))
    )
    assert run(door.authenticate(None, None)).is_administrator
    assert run(door.authenticate("nonsense", "nonsense")).is_administrator


@pytest.mark.parametrize(
    ("authorization", "api_key"),
    [
        (None, ADMIN_KEY),
        ("", ADMIN_KEY),
        (f"Bearer {ADMIN_KEY}", None),
        (f"bearer  {ADMIN_KEY} ", None),
        (f"Bearer {ADMIN_KEY}", ""),
        (f"Bearer {ADMIN_KEY}", ADMIN_KEY),
    ],
)
def test_the_configured_key_is_an_administrator_in_either_header(
    authenticator: Authenticator, run: Run, authorization: str | None, api_key: str | None
) -> None:
    caller = run(authenticator.authenticate(authorization, api_key))
    assert caller == Caller("administrator", ADMINISTRATOR_GRANTS)


@pytest.mark.parametrize(
    ("authorization", "api_key"),
    [
        (None, None),
        ("", ""),
        (None, "wrong"),
        (None, ADMIN_KEY[:-1]),
        (None, ADMIN_KEY + " "),
        (None, f"Bearer {ADMIN_KEY}"),
        (ADMIN_KEY, None),
        (f"Basic {ADMIN_KEY}", None),
        ("Bearer", None),
        ("Bearer ", None),
        ("Bearer wrong", None),
        ("Bearer eyJhbGciOiJub25lIn0.e30.", None),
        ("Bearer wrong", ADMIN_KEY),
        (f"Basic {ADMIN_KEY}", ADMIN_KEY),
        (f"Bearer {ADMIN_KEY}", "wrong"),
        (None, "x" * 16_385),
        (f"Bearer {'x' * 20_000}", None),
        (None, "ключ администратора"),
        ("Bearer \ud800", None),
    ],
)
def test_no_credential_or_any_invalid_one_is_unauthenticated(
    authenticator: Authenticator, run: Run, authorization: str | None, api_key: str | None
) -> None:
    with pytest.raises(Unauthenticated) as refusal:
        run(authenticator.authenticate(authorization, api_key))
    for credential in (authorization, api_key):
        words = (credential or "").removeprefix("Bearer").removeprefix("Basic").strip()
        assert not words or words not in refusal.value.message.split()
        assert ADMIN_KEY not in refusal.value.message


def test_a_stored_key_is_taken_in_either_header(
    settings: Settings, authenticator: Authenticator, run: Run
) -> None:
    _, key = key_store(settings).create("bob", [Grant.parse("read:sales/*")], timedelta(days=1))
    by_key = run(authenticator.authenticate(None, key))
    by_bearer = run(authenticator.authenticate(f"Bearer {key}", None))
    assert by_key == by_bearer
    assert by_key.name.startswith("bob ")


def test_the_bearer_decides_who_calls_when_both_are_valid(
    settings: Settings, authenticator: Authenticator, run: Run
) -> None:
    _, key = key_store(settings).create("bob", [Grant.parse("read:sales/*")], None)
    assert run(authenticator.authenticate(f"Bearer {key}", ADMIN_KEY)).name.startswith("bob ")
    assert run(authenticator.authenticate(f"Bearer {ADMIN_KEY}", key)).is_administrator


def test_a_configured_key_that_looks_like_a_stored_one_still_works(
    tmp_path: Path, run: Run
) -> None:
    key = "dk_0123456789ab_" + "a" * 43
    authenticator = build_authenticator(
        Settings(
            storage=StorageSettings(root=str(tmp_path)),
            auth=AuthSettings.model_validate({"admin_key": key}),
        )
    )
    assert run(authenticator.authenticate(None, key)).is_administrator
    assert run(authenticator.authenticate(f"Bearer {key}", None)).is_administrator


@pytest.mark.parametrize(
    "auth",
    [
        {"admin_key": "short"},
        {"jwt_issuer": "https://issuer"},
        {"jwt_issuer": "https://issuer", "jwt_audience": "destrier"},
        {"jwt_jwks_url": "https://issuer/keys"},
    ],
)
def test_settings_that_do_not_fit_together_stop_the_start(
    tmp_path: Path, auth: dict[str, Any]
) -> None:
    with pytest.raises(InvalidInput):
        build_authenticator(
            Settings(
                storage=StorageSettings(root=str(tmp_path)),
                auth=AuthSettings.model_validate(auth),
            )
        )


@pytest.mark.parametrize("algorithms", [["none"], ["HS256"], ["RS256", "HS512"], [], ["rs256"]])
def test_algorithms_that_prove_nothing_cannot_be_configured(
    tmp_path: Path, algorithms: list[str]
) -> None:
    auth = {
        "jwt_issuer": "https://issuer",
        "jwt_audience": "destrier",
        "jwt_jwks_url": "https://issuer/keys",
        "jwt_algorithms": algorithms,
    }
    with pytest.raises(InvalidInput, match="jwt_algorithms"):
        build_authenticator(
            Settings(
                storage=StorageSettings(root=str(tmp_path)),
                auth=AuthSettings.model_validate(auth),
            )
        )
