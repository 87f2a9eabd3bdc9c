"""Plans that turn arrays of one Arrow type into another type of the same logical values.

A plan is made once per schema and applied to every batch. It never changes a value: what differs
between two types that it accepts is how the same values are laid out (offset width, views,
dictionaries), how children are named or ordered, and what may be null.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NoReturn

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from actors.arrow_types import has_offsets, is_bytes, is_list, is_list_view, is_text
from actors.column_text import TYPE_CHARACTERS_MAX, child_path, list_columns, shorten
from actors.extension_values import BLOB_EXTENSION, JSON_EXTENSION, check_blobs, check_json
from cluster.errors import InvalidInput, TableSchemaValidationError

OFFSET_MAX = (1 << 31) - 1
"""Bytes or values that one array with 32-bit offsets can hold."""
NULLS_BYTES_MAX = 64 << 20
"""Bytes of nulls that are made at a time for a column that the input lacks."""

_VIEW_BYTES = 16

Convert = Callable[[pa.Array], pa.Array]


class TooLarge(Exception):
    """The converted rows do not fit into one array; half of them may."""


class Growth:
    """How far values that the input holds once and refers to often may grow when written out.

    Dictionaries and views let a few kilobytes stand for terabytes, so what their expansion takes
    is added up before memory is.
    """

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.spent = 0

    def claim(self, size: int, path: str) -> None:
        """Take `size` bytes for one array; TooLarge if one array cannot hold them."""
        if self.spent + size > self.bytes_max:
            raise InvalidInput(
                f"Column {path} repeats values by reference and would take more than"
                f" {self.bytes_max} bytes when they are written out; send fewer rows at a time."
            )
        if size > OFFSET_MAX:
            raise TooLarge(path)
        self.spent += size


@dataclass(frozen=True, slots=True)
class FieldPlan:
    """How one field of the target comes from the input's fields.

    `index` is the place of its source, None if the input lacks it and it becomes null.
    """

    field: pa.Field
    path: str
    index: int | None
    convert: Convert

    def make(self, sources: Sequence[pa.Array], length: int, parent_nulls: int = 0) -> pa.Array:
        """The field's array of `length` values.

        Children of a struct are null where it is: `parent_nulls` such nulls are no fault.
        """
        # Offsets of an array without values may be absent or anything, and Lance follows them.
        if self.index is None or length == 0:
            return make_nulls(self.field.type, length, self.path)
        array = self.convert(sources[self.index])
        if not self.field.nullable:
            refuse_nulls(array.null_count - parent_nulls, self.path)
        return array


def plan_fields(
    sources: Sequence[pa.Field], targets: Sequence[pa.Field], parent: str | None, growth: Growth
) -> list[FieldPlan]:
    """A plan for each target, matched by name; `parent` is the shown path of the struct, if any.

    TableSchemaValidationError for a name that the input repeats or the target lacks, for a field
    that the input lacks and that cannot be null, and for types that differ in more than layout.
    """
    names = [field.name for field in sources]
    places = {name: place for place, name in enumerate(names)}
    wanted = {field.name: None for field in targets}
    place = "the table" if parent is None else f"the table's column {parent}"
    for name, count in Counter(names).items():
        if count > 1:
            raise TableSchemaValidationError(
                f"Column {child_path(parent, name)} occurs {count} times; send it once."
            )
        if name not in wanted:
            raise TableSchemaValidationError(
                f"Column {child_path(parent, name)} is not in {place}, which has"
                f" {list_columns(wanted)}."
            )
    plans = []
    for target in targets:
        path = child_path(parent, target.name)
        index = places.get(target.name)
        if index is None and not target.nullable:
            raise TableSchemaValidationError(
                f"Column {path} is missing; the table's column is not nullable."
            )
        convert = (
            _unchanged
            if index is None
            else plan_type(sources[index].type, target.type, path, growth)
        )
        plans.append(FieldPlan(target, path, index, convert))
    return plans


def plan_type(source: pa.DataType, target: pa.DataType, path: str, growth: Growth) -> Convert:
    """A function from arrays of `source` to equal arrays of `target`.

    TableSchemaValidationError if the types differ in more than layout. The function raises it for
    a null where a child of `target` allows none; it also raises TooLarge and what `growth` does.
    """
    if _is_settled(source, target):
        return _unchanged
    if isinstance(target, pa.BaseExtensionType):
        return _plan_extension(source, target, path, growth)
    if types.is_null(source):
        return lambda array: make_nulls(target, len(array), path)
    if types.is_dictionary(target):
        return _plan_to_dictionary(source, target, path, growth)
    if types.is_dictionary(source):
        return _plan_from_dictionary(source, target, path, growth)
    if types.is_struct(source) and types.is_struct(target):
        return _plan_struct(source, target, path, growth)
    if is_list(source) and is_list(target):
        return _plan_list(source, target, path, growth)
    if types.is_fixed_size_list(source) and types.is_fixed_size_list(target):
        return _plan_fixed_size_list(source, target, path, growth)
    if types.is_map(source) and types.is_map(target):
        return _plan_map(source, target, path, growth)
    if source == target:
        return _unchanged
    if (is_text(source) and is_text(target)) or (is_bytes(source) and is_bytes(target)):
        return lambda array: _cast_bytes(array, target, path, growth)
    refuse_type(source, target, path)


def _unchanged(array: pa.Array) -> pa.Array:
    return array


def _is_settled(source: pa.DataType, target: pa.DataType) -> bool:
    """Whether arrays of `source` can be taken as they are, with nothing to check.

    Lists whose items have offsets are not, since there may be no items: see FieldPlan.make().
    """
    if source != target or isinstance(target, pa.BaseExtensionType) or types.is_dictionary(target):
        return False
    # Equality of types ignores the names of lists' items.
    return all(
        target.field(i).nullable
        and source.field(i).name == target.field(i).name
        and not (is_list(target) and has_offsets(target.value_type))
        and _is_settled(source.field(i).type, target.field(i).type)
        for i in range(target.num_fields)
    )


def refuse_type(source: pa.DataType, target: pa.DataType, path: str) -> NoReturn:
    """Raise for a type that the column cannot take."""
    raise TableSchemaValidationError(
        f"Column {path} has type {shorten(str(source), TYPE_CHARACTERS_MAX)} but the table's"
        f" column has type {shorten(str(target), TYPE_CHARACTERS_MAX)}."
    )


def refuse_nulls(count: int, path: str) -> None:
    """Raise if there are nulls in a field that allows none."""
    if count > 0:
        raise TableSchemaValidationError(
            f"Column {path} contains {count} nulls but the table's column is not nullable."
        )


def make_nulls(type_: pa.DataType, length: int, path: str) -> pa.Array:
    """`length` nulls; TooLarge if they would take more than is made at a time."""
    if length > 1 and length * value_bytes(type_) > NULLS_BYTES_MAX:
        raise TooLarge(path)
    return pa.nulls(length, type_)


def value_bytes(type_: pa.DataType) -> int:
    """About how many bytes a value takes; of one that varies in length, an empty one."""
    if isinstance(type_, pa.BaseExtensionType):
        return value_bytes(type_.storage_type)
    if types.is_struct(type_):
        return 1 + sum(value_bytes(field.type) for field in type_)
    if types.is_fixed_size_list(type_):
        return 1 + int(type_.list_size) * value_bytes(type_.value_type)
    if types.is_fixed_size_binary(type_) or types.is_decimal(type_):
        return 1 + int(type_.byte_width)
    return 8


def _cast_bytes(array: pa.Array, target: pa.DataType, path: str, growth: Growth) -> pa.Array:
    """Strings or bytes in another layout."""
    if types.is_string_view(array.type) or types.is_binary_view(array.type):
        growth.claim(_view_bytes(array), path)
        array = _without_null_views(array)
    elif types.is_string(target) or types.is_binary(target):
        if _sum(pc.binary_length(array)) > OFFSET_MAX:
            raise TooLarge(path)
        # A slice far into a large array keeps large offsets; joined to nothing they start at 0.
        array = pa.concat_arrays([array, array[:0]])
    return array.cast(target)


def _view_bytes(array: pa.Array) -> int:
    """Bytes of a view array's values: a view is 16 bytes, the first four are the value's length."""
    views = pa.Array.from_buffers(
        pa.list_(pa.int32(), 4),
        len(array),
        [None],
        offset=array.offset,
        children=[
            pa.Array.from_buffers(
                pa.int32(), 4 * (array.offset + len(array)), [None, array.buffers()[1]]
            )
        ],
    )
    return _sum(pc.if_else(array.is_valid(), pc.list_element(views, 0), 0))


def _without_null_views(array: pa.Array) -> pa.Array:
    """The same values with empty views for nulls: a cast follows those, and nothing checks them."""
    if array.null_count == 0:
        return array
    validity, views, *data = array.buffers()
    slots = pa.Array.from_buffers(
        pa.binary(_VIEW_BYTES), len(array), [validity, views], offset=array.offset
    )
    clean = pc.fill_null(slots, bytes(_VIEW_BYTES))
    return pa.Array.from_buffers(
        array.type, len(array), [array.is_valid().buffers()[1], clean.buffers()[1], *data]
    )


def _sum(numbers: pa.Array) -> int:
    return int(pc.sum(pc.cast(numbers, pa.int64())).as_py() or 0)


def _plan_extension(
    source: pa.DataType, target: pa.BaseExtensionType, path: str, growth: Growth
) -> Convert:
    stored = source
    if isinstance(source, pa.BaseExtensionType):
        # JSON texts of any layout are the same type; other extensions carry parameters.
        both_json = source.extension_name == target.extension_name == JSON_EXTENSION
        if source != target and not both_json:
            refuse_type(source, target, path)
        stored = source.storage_type
    elif stored != target.storage_type and not types.is_null(stored):
        same_layout = is_text(stored) and is_text(target.storage_type)
        if not same_layout:
            refuse_type(source, target, path)
    convert_storage = plan_type(stored, target.storage_type, path, growth)
    check = {JSON_EXTENSION: check_json, BLOB_EXTENSION: check_blobs}.get(target.extension_name)

    def convert(array: pa.Array) -> pa.Array:
        storage = array.storage if isinstance(array, pa.ExtensionArray) else array
        storage = convert_storage(storage)
        if check is not None:
            check(storage, path)
        return pa.ExtensionArray.from_storage(target, storage)

    return convert


def _plan_to_dictionary(
    source: pa.DataType, target: pa.DictionaryType, path: str, growth: Growth
) -> Convert:
    values_type = source.value_type if types.is_dictionary(source) else source
    try:
        convert_values = plan_type(values_type, target.value_type, path, growth)
    except TableSchemaValidationError:
        refuse_type(source, target, path)

    def convert(array: pa.Array) -> pa.Array:
        if types.is_dictionary(array.type):
            indices, values = _without_null_values(array), convert_values(array.dictionary)
        else:
            encoded = convert_values(array).dictionary_encode()
            indices, values = encoded.indices, encoded.dictionary
        if len(values) == 0:
            values = make_nulls(target.value_type, 0, path)
        try:
            indices = indices.cast(target.index_type)
        except pa.ArrowInvalid:
            raise TableSchemaValidationError(
                f"Column {path} has more distinct values than the {target.index_type} indices of"
                " the table's column can name."
            ) from None
        return pa.DictionaryArray.from_arrays(indices, values, ordered=target.ordered, safe=False)

    return convert


def _without_null_values(array: pa.DictionaryArray) -> pa.Array:
    """Indices that are null wherever they name a null."""
    if array.dictionary.null_count == 0:
        return array.indices
    valid = pc.fill_null(pc.take(array.dictionary.is_valid(), array.indices), False)
    return pc.if_else(valid, array.indices, pa.scalar(None, array.indices.type))


def _plan_from_dictionary(
    source: pa.DictionaryType, target: pa.DataType, path: str, growth: Growth
) -> Convert:
    values = source.value_type
    if types.is_nested(values) or types.is_dictionary(values):
        refuse_type(source, target, path)
    try:
        convert_values = plan_type(values, target, path, growth)
    except TableSchemaValidationError:
        refuse_type(source, target, path)

    def convert(array: pa.Array) -> pa.Array:
        dictionary = convert_values(array.dictionary)
        if is_text(dictionary.type) or is_bytes(dictionary.type):
            growth.claim(_sum(pc.take(pc.binary_length(dictionary), array.indices)), path)
        else:
            growth.claim(len(array) * value_bytes(dictionary.type), path)
        return pc.take(dictionary, array.indices)

    return convert


def _plan_struct(
    source: pa.StructType, target: pa.StructType, path: str, growth: Growth
) -> Convert:
    plans = plan_fields(list(source), list(target), path, growth)

    def convert(array: pa.Array) -> pa.Array:
        # flatten() makes a child null wherever its parent is, so nulls can be counted.
        sources = array.flatten()
        children = [plan.make(sources, len(array), array.null_count) for plan in plans]
        return pa.StructArray.from_arrays(children, fields=list(target), mask=_null_mask(array))

    return convert


def _null_mask(array: pa.Array) -> pa.Array | None:
    return array.is_null() if array.null_count else None


def _plan_items(source: pa.DataType, target: pa.DataType, path: str, growth: Growth) -> FieldPlan:
    item_path = child_path(path, target.value_field.name)
    convert = plan_type(source.value_type, target.value_type, item_path, growth)
    return FieldPlan(target.value_field, item_path, 0, convert)


def _items(array: pa.Array) -> pa.Array:
    """The items of an array's lists, in order; null lists have none."""
    # flatten() of no items fails if an extension type is inside.
    return array.flatten() if _sum(pc.list_value_length(array)) else array.values[:0]


def _plan_list(source: pa.DataType, target: pa.DataType, path: str, growth: Growth) -> Convert:
    items = _plan_items(source, target, path, growth)
    array_class = pa.LargeListArray if types.is_large_list(target) else pa.ListArray

    def convert(array: pa.Array) -> pa.Array:
        if is_list_view(array.type):
            _refuse_shared_items(array, path)
        flat = _items(array)
        return array_class.from_arrays(
            _offsets(array, types.is_large_list(target), path),
            items.make([flat], len(flat)),
            type=target,
            mask=_null_mask(array),
        )

    return convert


def _refuse_shared_items(array: pa.Array, path: str) -> None:
    """Refuse list views that overlap: written out they may take any number of bytes."""
    present = array.filter(pc.greater(pc.fill_null(pc.list_value_length(array), 0), 0))
    order = pc.sort_indices(present.offsets)
    starts = pc.take(present.offsets, order).cast(pa.int64())
    ends = pc.add(starts, pc.take(present.sizes, order).cast(pa.int64()))
    if not pc.all(pc.less_equal(ends[:-1], starts[1:]), min_count=0).as_py():
        raise TableSchemaValidationError(
            f"Column {path} has list views that share items; send it as plain lists."
        )


def _offsets(array: pa.Array, large: bool, path: str) -> pa.Array:
    """Offsets of the array's lists in what its flatten() returns."""
    ends = pc.cumulative_sum(pc.fill_null(pc.list_value_length(array), 0).cast(pa.int64()))
    offsets = pa.concat_arrays([pa.array([0], pa.int64()), ends])
    if large:
        return offsets
    if offsets[-1].as_py() > OFFSET_MAX:
        raise TooLarge(path)
    return offsets.cast(pa.int32())


def _plan_fixed_size_list(
    source: pa.FixedSizeListType, target: pa.FixedSizeListType, path: str, growth: Growth
) -> Convert:
    if source.list_size != target.list_size:
        refuse_type(source, target, path)
    items = _plan_items(source, target, path, growth)

    def convert(array: pa.Array) -> pa.Array:
        flat = _items(array)
        dense = pa.FixedSizeListArray.from_arrays(items.make([flat], len(flat)), type=target)
        if array.null_count == 0:
            return dense
        # flatten() leaves null lists out; their rows are put back between the others.
        row = pc.subtract(pc.cumulative_sum(array.is_valid().cast(pa.int64())), 1)
        return pc.take(dense, pc.if_else(array.is_valid(), row, pa.scalar(None, pa.int64())))

    return convert


def _plan_map(source: pa.MapType, target: pa.MapType, path: str, growth: Growth) -> Convert:
    key_path, item_path = child_path(path, "key"), child_path(path, "value")
    convert_key = plan_type(source.key_type, target.key_type, key_path, growth)
    convert_item = plan_type(source.item_type, target.item_type, item_path, growth)
    plans = [
        FieldPlan(target.key_field, key_path, 0, convert_key),
        FieldPlan(target.item_field, item_path, 1, convert_item),
    ]

    def convert(array: pa.Array) -> pa.Array:
        lists = _entry_lists(array)
        entries = _items(lists).flatten()
        keys, items = (plan.make(entries, len(entries[0])) for plan in plans)
        return pa.MapArray.from_arrays(
            _offsets(lists, False, path), keys, items, type=target, mask=_null_mask(array)
        )

    return convert


def _entry_lists(array: pa.MapArray) -> pa.Array:
    """The same memory as lists of key and value, which more functions take than maps."""
    # Children may be longer than what holds them.
    length = min(len(array.keys), len(array.items))
    entries = pa.StructArray.from_arrays(
        [array.keys[:length], array.items[:length]], names=["key", "value"]
    )
    return pa.Array.from_buffers(
        pa.list_(entries.type),
        len(array),
        array.buffers()[:2],
        offset=array.offset,
        children=[entries],
    )
