"""Who a caller is and what they may do: rights, the grants that give them, and the check.

A grant is written `right[+right…]:pattern`. A pattern is `*` (everything) or
`<database>/<identifier>`, where the identifier is an object's names joined by `$` and the root
namespace is the empty identifier. `*` is the only wildcard: it stands for any text, `$` included,
but never reaches from the database into the identifier.

No right implies another. An administrator is a caller who has every right on `*`.
"""

import fnmatch
import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache

from cluster.errors import InvalidInput, PermissionDenied
from cluster.identifiers import IDENTIFIER_BYTES_MAX, ObjectId

EVERYTHING = "*"
# A database's name has at most 128 characters, an identifier IDENTIFIER_BYTES_MAX.
PATTERN_CHARACTERS_MAX = 128 + 1 + IDENTIFIER_BYTES_MAX


class Right(StrEnum):
    """What a caller may do with an object; docs/security.md lists each operation's right."""

    LIST = "list"
    READ = "read"
    WRITE = "write"
    ALTER = "alter"
    DROP = "drop"
    MANAGE = "manage"
    EXECUTE_CODE = "execute_code"


@dataclass(frozen=True, slots=True)
class Grant:
    """Rights on every object that a pattern matches; `of` and `parse` check them."""

    rights: frozenset[Right]
    pattern: str

    @staticmethod
    def of(rights: Iterable[Right], pattern: str) -> "Grant":
        """Check `pattern` and build the grant.

        Raises:
            InvalidInput: no rights, or a pattern that could match nothing.
        """
        granted = frozenset(rights)
        if not granted:
            raise InvalidInput("a grant names no right; write for example 'read+list:sales/*'")
        if pattern != EVERYTHING:
            database, slash, identifier = pattern.partition("/")
            if not database or not slash or "/" in identifier or not pattern.isprintable():
                raise InvalidInput(
                    f"grant pattern {pattern!r} is neither '*' nor '<database>/<identifier>';"
                    " write 'sales/*' for a whole database"
                )
        if len(pattern) > PATTERN_CHARACTERS_MAX:
            raise InvalidInput(f"a grant pattern has at most {PATTERN_CHARACTERS_MAX} characters")
        return Grant(granted, pattern)

    @staticmethod
    def parse(text: str) -> "Grant":
        """Read `right[+right…]:pattern`.

        Raises:
            InvalidInput: says which part cannot be read.
        """
        names, colon, pattern = text.partition(":")
        if not colon:
            raise InvalidInput(f"grant {text!r} has no ':'; write for example 'read+list:sales/*'")
        rights = []
        for name in names.split("+"):
            try:
                rights.append(Right(name.strip()))
            except ValueError:
                known = ", ".join(Right)
                raise InvalidInput(f"grant {text!r}: {name!r} is not one of {known}") from None
        return Grant.of(rights, pattern)

    def matches(self, database: str, object_id: ObjectId) -> bool:
        """Whether the pattern covers the object."""
        if self.pattern == EVERYTHING:
            return True
        in_database, in_identifier = _expressions(self.pattern)
        return bool(in_database.match(database) and in_identifier.match(object_id.stored))

    def __str__(self) -> str:
        return f"{'+'.join(right for right in Right if right in self.rights)}:{self.pattern}"


@lru_cache(maxsize=4_096)
def _expressions(pattern: str) -> tuple[re.Pattern[str], re.Pattern[str]]:
    database, _, identifier = pattern.partition("/")
    return _expression(database), _expression(identifier)


def _expression(text: str) -> re.Pattern[str]:
    # fnmatch.translate gives a regular expression that never backtracks over a `*`; its other two
    # wildcards, `?` and `[`, are turned off by writing them as sets of one character.
    return re.compile(fnmatch.translate(text.replace("[", "[[]").replace("?", "[?]")))


@dataclass(frozen=True, slots=True)
class Caller:
    """An authenticated caller; `name` is unique per credential and scopes request ids."""

    name: str
    grants: tuple[Grant, ...]

    def may(self, right: Right, database: str, object_id: ObjectId) -> bool:
        """Whether some grant gives `right` on the object."""
        return any(
            right in grant.rights and grant.matches(database, object_id) for grant in self.grants
        )

    def require(self, right: Right, database: str, object_id: ObjectId) -> None:
        """Refuse unless `may`.

        Raises:
            PermissionDenied: the same sentence whether or not the object exists.
        """
        if not self.may(right, database, object_id):
            raise PermissionDenied(
                f"this needs the right '{right}' on '{database}/{object_id}',"
                " which the caller lacks; ask an administrator for a grant"
            )

    @property
    def only_database(self) -> str | None:
        """The one database that all grants name literally, else None."""
        named = {grant.pattern.partition("/")[0] for grant in self.grants}
        database = named.pop() if len(named) == 1 else EVERYTHING
        return None if "*" in database else database

    @property
    def is_administrator(self) -> bool:
        """Whether the caller has every right on everything."""
        everywhere = [grant.rights for grant in self.grants if grant.pattern == EVERYTHING]
        return frozenset[Right]().union(*everywhere) == frozenset(Right)


ADMINISTRATOR_GRANTS = (Grant(frozenset(Right), EVERYTHING),)
