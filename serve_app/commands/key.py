"""`destrier key`: make, list and revoke API keys.

It works on the storage itself, so it needs no running server and asks for no credential: whoever
may write to the root may make keys.
"""

import argparse
import re
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cluster.errors import DestrierError, InvalidInput
from cluster.settings import load_settings
from serve_app.commands import failure
from serve_app.keys import KEY_PREFIX, KeyStore, StoredKey, key_store
from serve_app.rights import ADMINISTRATOR_GRANTS, Grant

_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_DURATION = re.compile(r"([0-9]{1,9})([smhdw])")


def add_parser(subparsers: Any) -> None:
    """Add `key` and its actions."""
    parser = subparsers.add_parser("key", help="make, list and revoke API keys")
    parser.set_defaults(run=run)
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")

    create = actions.add_parser("create", help="make a key and print it, once")
    create.add_argument("--name", required=True, help="who the key is for; shown in logs and lists")
    rights = create.add_mutually_exclusive_group(required=True)
    rights.add_argument(
        "--grant",
        action="append",
        metavar="RIGHTS:PATTERN",
        help="for example 'read+list:sales/*'; may be repeated",
    )
    rights.add_argument("--admin", action="store_true", help="every right on everything")
    create.add_argument("--expires-in", metavar="TIME", help="for example 12h, 30d or 52w")

    show = actions.add_parser("list", help="show keys, without their secrets")
    revoke = actions.add_parser("revoke", help="delete a key; servers refuse it seconds later")
    revoke.add_argument("id", metavar="ID", help="the id that `destrier key list` shows")
    for action in (create, show, revoke):
        action.add_argument("--root", help="folder or URI of the tables (storage.root)")
        action.add_argument("--config", type=Path, help="settings file (TOML)")


def run(args: argparse.Namespace) -> int:
    """Do the action; see the package for exit codes."""
    try:
        overrides = {("storage", "root"): args.root} if args.root else {}
        store = key_store(load_settings(args.config, overrides=overrides).settings)
        if args.action == "create":
            return _create(store, args)
        if args.action == "revoke":
            return _revoke(store, args.id)
        return _list(store)
    except DestrierError as error:
        return failure.report(error)


def _create(store: KeyStore, args: argparse.Namespace) -> int:
    grants = ADMINISTRATOR_GRANTS if args.admin else [Grant.parse(text) for text in args.grant]
    expires_in = parse_duration(args.expires_in) if args.expires_in else None
    stored, key = store.create(args.name, grants, expires_in)
    print(key)
    # Beside the key, not with it: the standard output can be piped into a secret store as it is.
    print(
        f"Key {stored.id} for {stored.name!r}, expires {_expiry(stored)}."
        " Keep it now: it is stored as a hash and cannot be shown again.",
        file=sys.stderr,
    )
    return 0


def _revoke(store: KeyStore, given: str) -> int:
    key_id = given.removeprefix(KEY_PREFIX)
    if not store.revoke(key_id):
        # The argument is not repeated: it may be a whole key, given by mistake.
        print("destrier: no key has this id; see `destrier key list`", file=sys.stderr)
        return failure.REFUSED
    print(f"Key {key_id} is revoked.")
    return 0


def _list(store: KeyStore) -> int:
    rows = [("ID", "NAME", "CREATED", "EXPIRES", "GRANTS")]
    rows += [
        (
            key.id,
            key.name,
            _time(key.created_at),
            _expiry(key),
            "administrator"
            if key.caller().is_administrator
            else " ".join(str(grant) for grant in key.grants),
        )
        for key in store.list_keys()
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        line = "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True))
        print(line.rstrip())
    return 0


def parse_duration(text: str) -> timedelta:
    """Read `<number><s|m|h|d|w>`.

    Raises:
        InvalidInput: it is not that, or longer than a calendar.
    """
    parts = _DURATION.fullmatch(text)
    if parts is None:
        raise InvalidInput(f"time {text!r}: write a number and s, m, h, d or w, for example 30d")
    try:
        return timedelta(**{_UNITS[parts[2]]: int(parts[1])})
    except OverflowError:
        raise InvalidInput(f"time {text!r} is longer than a calendar") from None


def _expiry(key: StoredKey) -> str:
    if key.expires_at is None:
        return "never"
    ended = " (over)" if key.has_expired(datetime.now(UTC).timestamp()) else ""
    return _time(key.expires_at) + ended


def _time(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%MZ")
