"""The one error tree.

    DestrierError                     code
      Unsupported                     0
      NamespaceNotFound               1
      NamespaceAlreadyExists          2
      NamespaceNotEmpty               3
      TableNotFound                   4
      TableAlreadyExists              5
      TableIndexNotFound              6
      TableIndexAlreadyExists         7
      TableTagNotFound                8
      TableTagAlreadyExists           9
      TransactionNotFound             10
      TableVersionNotFound            11
      TableColumnNotFound             12
      InvalidInput                    13
      ConcurrentModification          14
      PermissionDenied                15
      Unauthenticated                 16
      ServiceUnavailable              17
        OutcomeUnknown                17   the change may have happened; the same request id tells
      InternalError                   18
      InvalidTableState               19
      TableSchemaValidationError      20
      Throttling                      21
      TableBranchNotFound             22
      TableBranchAlreadyExists        23

The codes are those of the Lance namespace specification. HTTP statuses are decided once, in
serve_app/problems.py. Every class takes exactly one positional argument, a sentence for the caller:
an exception with other arguments does not survive the trip out of a Ray actor (it arrives as
UnserializableException and loses its type).
"""

from enum import IntEnum
from typing import ClassVar


class ErrorCode(IntEnum):
    """Domain error codes of the Lance namespace specification."""

    UNSUPPORTED = 0
    NAMESPACE_NOT_FOUND = 1
    NAMESPACE_ALREADY_EXISTS = 2
    NAMESPACE_NOT_EMPTY = 3
    TABLE_NOT_FOUND = 4
    TABLE_ALREADY_EXISTS = 5
    TABLE_INDEX_NOT_FOUND = 6
    TABLE_INDEX_ALREADY_EXISTS = 7
    TABLE_TAG_NOT_FOUND = 8
    TABLE_TAG_ALREADY_EXISTS = 9
    TRANSACTION_NOT_FOUND = 10
    TABLE_VERSION_NOT_FOUND = 11
    TABLE_COLUMN_NOT_FOUND = 12
    INVALID_INPUT = 13
    CONCURRENT_MODIFICATION = 14
    PERMISSION_DENIED = 15
    UNAUTHENTICATED = 16
    SERVICE_UNAVAILABLE = 17
    INTERNAL = 18
    INVALID_TABLE_STATE = 19
    TABLE_SCHEMA_VALIDATION_ERROR = 20
    THROTTLING = 21
    TABLE_BRANCH_NOT_FOUND = 22
    TABLE_BRANCH_ALREADY_EXISTS = 23


class DestrierError(Exception):
    """Root of every error that a caller may see; `message` says what to change."""

    code: ClassVar[ErrorCode] = ErrorCode.INTERNAL

    def __init__(self, message: str) -> None:
        super().__init__(message)

    @property
    def message(self) -> str:
        """The sentence for the caller."""
        return str(self.args[0])


class Unsupported(DestrierError):
    """The operation, or this use of it, is not built."""

    code = ErrorCode.UNSUPPORTED


class NamespaceNotFound(DestrierError):
    """No such namespace."""

    code = ErrorCode.NAMESPACE_NOT_FOUND


class NamespaceAlreadyExists(DestrierError):
    """The name is a namespace already."""

    code = ErrorCode.NAMESPACE_ALREADY_EXISTS


class NamespaceNotEmpty(DestrierError):
    """The namespace holds tables or namespaces."""

    code = ErrorCode.NAMESPACE_NOT_EMPTY


class TableNotFound(DestrierError):
    """No such table, or it is declared and has no data yet."""

    code = ErrorCode.TABLE_NOT_FOUND


class TableAlreadyExists(DestrierError):
    """The name is a table or view already."""

    code = ErrorCode.TABLE_ALREADY_EXISTS


class TableIndexNotFound(DestrierError):
    """No such index at this version."""

    code = ErrorCode.TABLE_INDEX_NOT_FOUND


class TableIndexAlreadyExists(DestrierError):
    """The table has an index of this name."""

    code = ErrorCode.TABLE_INDEX_ALREADY_EXISTS


class TableTagNotFound(DestrierError):
    """No such tag."""

    code = ErrorCode.TABLE_TAG_NOT_FOUND


class TableTagAlreadyExists(DestrierError):
    """The table has a tag of this name."""

    code = ErrorCode.TABLE_TAG_ALREADY_EXISTS


class TransactionNotFound(DestrierError):
    """No such transaction."""

    code = ErrorCode.TRANSACTION_NOT_FOUND


class TableVersionNotFound(DestrierError):
    """No record of this version."""

    code = ErrorCode.TABLE_VERSION_NOT_FOUND


class TableColumnNotFound(DestrierError):
    """An assignment names a column that the table lacks."""

    code = ErrorCode.TABLE_COLUMN_NOT_FOUND


class InvalidInput(DestrierError):
    """The request is malformed; the message says what to change."""

    code = ErrorCode.INVALID_INPUT


class ConcurrentModification(DestrierError):
    """A precondition of the caller's no longer holds; sending the same again will not help."""

    code = ErrorCode.CONCURRENT_MODIFICATION


class PermissionDenied(DestrierError):
    """The caller is known and lacks the right."""

    code = ErrorCode.PERMISSION_DENIED


class Unauthenticated(DestrierError):
    """No valid credentials."""

    code = ErrorCode.UNAUTHENTICATED


class ServiceUnavailable(DestrierError):
    """A part of the service is down or over its deadline; nothing was changed. Try again."""

    code = ErrorCode.SERVICE_UNAVAILABLE


class OutcomeUnknown(ServiceUnavailable):
    """The change may have happened. The same request id gives the answer."""


class InternalError(DestrierError):
    """A fault of ours; details are in the log under the error id."""

    code = ErrorCode.INTERNAL


class InvalidTableState(DestrierError):
    """The table is of a kind, or in a state, that forbids the operation."""

    code = ErrorCode.INVALID_TABLE_STATE


class TableSchemaValidationError(DestrierError):
    """The data do not fit the table's schema; the message names the column."""

    code = ErrorCode.TABLE_SCHEMA_VALIDATION_ERROR


class Throttling(DestrierError):
    """A queue is full or contention too high; nothing was changed. Slow down."""

    code = ErrorCode.THROTTLING


class TableBranchNotFound(DestrierError):
    """No such branch."""

    code = ErrorCode.TABLE_BRANCH_NOT_FOUND


class TableBranchAlreadyExists(DestrierError):
    """The table has a branch of this name."""

    code = ErrorCode.TABLE_BRANCH_ALREADY_EXISTS


# What may pass: the same request may succeed later. OutcomeUnknown is a ServiceUnavailable.
PASSING = (ServiceUnavailable, Throttling)


def error_classes() -> dict[ErrorCode, type[DestrierError]]:
    """The class that stands for each code (OutcomeUnknown shares its parent's)."""
    return {cls.code: cls for cls in DestrierError.__subclasses__()}
