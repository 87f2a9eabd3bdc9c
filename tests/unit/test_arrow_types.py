"""What is said of Arrow types, whatever they are inside of."""

from collections.abc import Callable

import pyarrow as pa
import pytest

from actors.arrow_types import has_dictionary

WORD = pa.dictionary(pa.int32(), pa.string())


class Wrapped(pa.ExtensionType):  # type: ignore[misc]  # pyarrow is untyped
    """Any type under another name."""

    def __init__(self, storage: pa.DataType) -> None:
        super().__init__(storage, "tests.wrapped")

    def __arrow_ext_serialize__(self) -> bytes:
        return b""


@pytest.mark.parametrize(
    "wrap",
    [
        lambda inner: inner,
        lambda inner: pa.struct([("id", pa.int64()), ("x", inner)]),
        lambda inner: pa.list_(pa.large_list(inner)),
        lambda inner: pa.map_(pa.string(), inner),
        lambda inner: Wrapped(pa.list_(inner, 2)),
    ],
)
def test_dictionaries_are_found_inside_other_types(
    wrap: Callable[[pa.DataType], pa.DataType],
) -> None:
    assert has_dictionary(wrap(WORD))
    assert not has_dictionary(wrap(pa.string()))
