"""Putting an expression's values into a column, at any depth of it."""

import pyarrow as pa
import pyarrow.compute as pc

from actors.field_paths import format_field_path
from cluster.errors import InvalidInput, TableSchemaValidationError


def assign(
    column: pa.Array, field: pa.Field, target: tuple[str, ...], values: pa.Array
) -> pa.Array:
    """The column with the part that `target` names replaced by `values`.

    `target` starts with the column's own name. Rows whose parent struct is null keep it null.

    Raises:
        InvalidInput: values that cannot become the target's type.
        TableSchemaValidationError: a null where the target takes none.
    """
    return _assign(column, field, target, 1, values)


def _assign(
    column: pa.Array, field: pa.Field, target: tuple[str, ...], depth: int, values: pa.Array
) -> pa.Array:
    if depth == len(target):
        return _cast(values, field, target)
    children = []
    for index, child in enumerate(field.type):
        array = column.field(index)
        if child.name == target[depth]:
            visible = values
            if column.null_count:
                # Under a null parent the new value is not seen; it must not break a child's rule
                # either.
                visible = pc.if_else(column.is_valid(), values, pa.scalar(None, values.type))
                array = _under_nulls(array, column, child, target, depth, visible)
            else:
                array = _assign(array, child, target, depth + 1, visible)
        children.append(array)
    return pa.StructArray.from_arrays(
        children, fields=list(field.type), mask=column.is_null() if column.null_count else None
    )


def _under_nulls(
    array: pa.Array,
    parent: pa.Array,
    child: pa.Field,
    target: tuple[str, ...],
    depth: int,
    values: pa.Array,
) -> pa.Array:
    relaxed = child.with_nullable(True)
    assigned = _assign(array, relaxed, target, depth + 1, values)
    if not child.nullable and pc.any(pc.and_(parent.is_valid(), assigned.is_null())).as_py():
        raise _null_error(target)
    return assigned


def _cast(values: pa.Array, field: pa.Field, target: tuple[str, ...]) -> pa.Array:
    storage = (
        field.type.storage_type if isinstance(field.type, pa.BaseExtensionType) else field.type
    )
    try:
        if isinstance(values.type, pa.BaseExtensionType):
            values = values.storage
        cast = values if values.type == storage else values.cast(storage, safe=True)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise InvalidInput(
            f"column {format_field_path(target)} is {field.type}, and the expression gives"
            f" {values.type} that does not fit: {reason}; cast it in the expression"
        ) from error
    if not field.nullable and cast.null_count:
        raise _null_error(target)
    if isinstance(field.type, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(field.type, cast)
    return cast


def _null_error(target: tuple[str, ...]) -> TableSchemaValidationError:
    return TableSchemaValidationError(
        f"column {format_field_path(target)} takes no nulls, and the expression gives one"
    )
