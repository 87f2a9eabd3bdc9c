"""Identifiers of databases, namespaces, tables and views.

An identifier is a tuple of names. On the wire it is one string whose names are joined by a
delimiter (`$` unless the request says otherwise); the delimiter alone is the root namespace.
In storage names are always joined by `$`, which is why a name may not hold one.
"""

import re
from dataclasses import dataclass

from cluster.errors import InvalidInput

DEFAULT_DELIMITER = "$"
STORED_DELIMITER = "$"

# Lance stores a root table in the folder `<name>.lance` and a child in `<8 hex>_<ns$name>`; most
# file systems end a folder's name at 255 bytes.
IDENTIFIER_BYTES_MAX = 230
# Every level is one more part of that name; deep trees are a client's mistake.
IDENTIFIER_DEPTH_MAX = 16
DELIMITER_CHARACTERS_MAX = 8
# Every part of a branch's name between slashes is a folder's, which ends at 255 bytes in most file
# systems; an object store ends a whole key at 1,024.
SEGMENT_BYTES_MAX = 255
BRANCH_BYTES_MAX = 1024

_DATABASE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")
_FORBIDDEN_IN_BRANCH = re.compile(r"[\x00-\x1f\x7f\\]")
_FORBIDDEN = re.compile(r"[\x00-\x1f\x7f/\\$]")


@dataclass(frozen=True, slots=True, order=True)
class ObjectId:
    """A namespace, table or view inside one database; no parts is the root namespace."""

    parts: tuple[str, ...]

    @staticmethod
    def parse(text: str, delimiter: str = DEFAULT_DELIMITER) -> "ObjectId":
        """Split `text`; empty parts are dropped, as Lance's own server does.

        Raises:
            InvalidInput: empty or overlong delimiter, or a name that cannot be stored.
        """
        if not delimiter:
            raise InvalidInput("delimiter is empty; leave the parameter out or give a character")
        if len(delimiter) > DELIMITER_CHARACTERS_MAX:
            raise InvalidInput(f"delimiter is longer than {DELIMITER_CHARACTERS_MAX} characters")
        return ObjectId.of([part for part in text.split(delimiter) if part])

    @staticmethod
    def of(parts: list[str] | tuple[str, ...]) -> "ObjectId":
        """Check `parts` and build the identifier.

        Raises:
            InvalidInput: a name that cannot be stored, or too many or too long names.
        """
        for part in parts:
            check_name(part)
        if len(parts) > IDENTIFIER_DEPTH_MAX:
            raise InvalidInput(f"identifier has more than {IDENTIFIER_DEPTH_MAX} names")
        if len(STORED_DELIMITER.join(parts).encode()) > IDENTIFIER_BYTES_MAX:
            raise InvalidInput(f"identifier is longer than {IDENTIFIER_BYTES_MAX} bytes")
        return ObjectId(tuple(parts))

    @property
    def is_root(self) -> bool:
        """Whether this is the root namespace."""
        return not self.parts

    @property
    def name(self) -> str:
        """The last name; empty for the root."""
        return self.parts[-1] if self.parts else ""

    @property
    def parent(self) -> "ObjectId":
        """The namespace that holds this object."""
        return ObjectId(self.parts[:-1])

    def child(self, name: str) -> "ObjectId":
        """The object `name` inside this namespace."""
        return ObjectId((*self.parts, name))

    @property
    def stored(self) -> str:
        """As the catalog stores it: names joined by `$`."""
        return STORED_DELIMITER.join(self.parts)

    def __str__(self) -> str:
        return self.stored or STORED_DELIMITER


@dataclass(frozen=True, slots=True, order=True)
class TableRef:
    """A table of one database: what an actor is named after and a cache is keyed by."""

    database: str
    id: ObjectId

    def __str__(self) -> str:
        return f"{self.database}/{self.id}"


def check_name(name: str) -> None:
    """Refuse a name that Lance's directory catalog cannot hold or would read as something else.

    Raises:
        InvalidInput: says which rule the name breaks.
    """
    if not name:
        raise InvalidInput("a name is empty")
    if _FORBIDDEN.search(name):
        raise InvalidInput(
            f"name {name!r} holds a control character, '/', '\\' or '$'; use other characters"
        )
    if name.startswith(("_", ".")) and name.strip("._") == "":
        raise InvalidInput(f"name {name!r} holds nothing but dots and underscores")
    if name.startswith(".") or name == "__manifest":
        raise InvalidInput(f"name {name!r} is reserved")


def check_database(name: str) -> str:
    """Return `name` if it can be a database's folder.

    Raises:
        InvalidInput: otherwise.
    """
    if not _DATABASE.fullmatch(name):
        raise InvalidInput(
            f"database {name!r}: use 1 to 128 letters, digits, '_', '.' or '-',"
            " the first a letter or digit"
        )
    return name


def parse_branch(branch: str | None) -> str | None:
    """The branch to act on; None is main, whether left out, empty or spelled `main`.

    A branch is a folder below the table's: no name may lead out of it. Lance checks the rest.

    Raises:
        InvalidInput: a name that no branch has.
    """
    if branch in (None, "", "main"):
        return None
    try:
        size = len(branch.encode())
    except UnicodeEncodeError:
        raise InvalidInput("the branch's name holds half a character; send whole ones") from None
    if size > BRANCH_BYTES_MAX:
        raise InvalidInput(f"the branch's name is longer than {BRANCH_BYTES_MAX} bytes; shorten it")
    for segment in branch.split("/"):
        if segment in ("", ".", "..") or _FORBIDDEN_IN_BRANCH.search(segment):
            raise InvalidInput(
                f"branch {branch!r}: use letters, digits, '.', '-' and '_', in parts joined by"
                " single '/'; no part is '.' or '..'"
            )
        if len(segment.encode()) > SEGMENT_BYTES_MAX:
            raise InvalidInput(
                f"a part of the branch's name is longer than {SEGMENT_BYTES_MAX} bytes; shorten it"
            )
    return branch
