"""What the versions of a table say about how one came from the one before.

pylance 14 cannot decode every transaction: of a compaction that moved an index it raises TypeError,
and operations that it has no class for look all alike. What a version changed is then told from
its data files.
"""

import copy
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

# Changes of rows, which the rows' own version numbers tell of.
ROW_CHANGES = frozenset({"Append", "Update", "Delete"})
# These leave rows and columns as they are.
NEUTRAL = frozenset({"Rewrite", "CreateIndex", "UpdateConfig"})

_IdTree = tuple[int, tuple["_IdTree", ...]]


@dataclass(frozen=True, slots=True)
class Step:
    """The transaction that made a version; `operation` is None of a kind that cannot be decoded.

    `name` is the operation's kind.
    """

    name: str
    operation: Any
    properties: dict[str, str]


def read_transaction(dataset: Any, version: int) -> Any | None:
    """The transaction that made a version, if it is stored; errors are pylance's, untyped.

    pylance lets no other thread use the very object meanwhile, and many share one; a copy costs a
    microsecond.
    """
    return copy.copy(dataset).read_transaction(version)


class Unreadable(Exception):
    """The transaction of a version is gone, or cannot be read."""


def read_step(dataset: Any, version: int) -> Step:
    """How `version` of the dataset was made.

    Raises:
        Unreadable: nothing tells, usually because the version was cleaned up.
    """
    try:
        transaction = read_transaction(dataset, version)
    except TypeError:
        # Only what a compaction says of an index has a class that pylance cannot fill.
        return Step("Rewrite", None, {})
    except Exception as error:  # untyped, of storage or of a version that is gone
        raise Unreadable(f"version {version} cannot be read") from error
    if transaction is None:
        raise Unreadable(f"version {version} does not say how it was made")
    operation = transaction.operation
    name = type(operation).__name__
    return Step(name, operation, dict(transaction.transaction_properties or {}))


def around(dataset: Any, version: int) -> tuple[Any, Any]:
    """The dataset before a version and at it.

    Raises:
        Unreadable: one of them is not there any more.
    """
    try:
        return dataset.checkout_version(version - 1), dataset.checkout_version(version)
    except Exception as error:  # untyped, as above
        raise Unreadable(f"version {version} or the one before it cannot be opened") from error


def column_ids(dataset: Any, names: Collection[str]) -> dict[str, _IdTree]:
    """The ids of the top-level columns `names`, with those of the fields inside them.

    A column that is dropped and added again has another id, or, after a compaction, the same: only
    an unbroken row of versions that have it shows that it is the same column.
    """
    return {
        field.name(): _tree(field)
        for field in dataset.lance_schema.fields()
        if field.name() in names
    }


def _tree(field: Any) -> _IdTree:
    return field.id(), tuple(_tree(child) for child in field.children())


def column_files(dataset: Any, names: Collection[str]) -> dict[int, frozenset[str]]:
    """By fragment, the data files that hold the columns `names`."""
    ids: set[int] = set()
    waiting = list(column_ids(dataset, names).values())
    while waiting:
        number, children = waiting.pop()
        ids.add(number)
        waiting.extend(children)
    return {
        fragment.fragment_id: frozenset(
            file.path for file in fragment.data_files() if ids.intersection(file.fields)
        )
        for fragment in dataset.get_fragments()
    }


def same_columns(before: Any, after: Any, names: Collection[str]) -> bool:
    """Whether both versions have the columns, in the same files."""
    return column_ids(before, names) == column_ids(after, names) and column_files(
        before, names
    ) == column_files(after, names)


def same_rows(before: Any, after: Any) -> bool:
    """Whether the same rows of the same fragments are there."""
    counts = [
        {fragment.fragment_id: fragment.count_rows() for fragment in dataset.get_fragments()}
        for dataset in (before, after)
    ]
    return counts[0] == counts[1]
