"""The decorators with which people write the code of views.

    @udtf(output_schema={"kind": str, "rows": int}, partition_by="kind")
    def counted(source):
        table = source.to_arrow()
        yield pa.RecordBatch.from_pydict({"kind": table["kind"][:1], "rows": [table.num_rows]})

    class Passage(NamedTuple):
        number: int
        text: str

    @chunker
    def passages(body: str) -> Iterator[Passage]:
        for number, text in enumerate(body.split("\\n\\n")):
            yield Passage(number, text)

What is decorated can be called as before. `.test(table)` runs it in a process of its own, as a
worker would; ViewClient makes a view of it.
"""

import base64
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, ParamSpec, Protocol, Self, TypeVar, cast, overload

import pyarrow as pa

from cluster.errors import InvalidInput
from udtf.on_error import OnError, policy_json
from udtf.output_columns import SchemaLike, read_schema, returned_record
from udtf.packing import PackedCode, pack_code
from udtf.spec import LINEAGE_COLUMNS, ViewKind

P = ParamSpec("P")
R = TypeVar("R")
Decorator = Callable[[Callable[P, R]], "ViewCode[P, R]"]


class Source(Protocol):
    """What the code of a `udtf` view is given: the rows of one partition."""

    def to_arrow(self) -> pa.Table:
        """All rows at once."""
        ...

    def to_pandas(self) -> Any:
        """All rows as a data frame; pandas must be installed on the workers."""
        ...

    def to_batches(self, batch_size: int | None = None) -> Iterator[pa.RecordBatch]:
        """The rows piece by piece, for partitions that do not fit into memory."""
        ...


@dataclass(frozen=True, slots=True)
class CodeOptions:
    """What the author said about the code; None takes the deployment's default."""

    kind: ViewKind
    output_schema: pa.Schema
    input_columns: tuple[str, ...] | None = None
    partition_by: str | None = None
    partition_by_indexed_column: str | None = None
    num_cpus: float | None = None
    num_gpus: float | None = None
    memory: int | None = None
    version: str = ""
    on_error: OnError | None = None
    manifest: str | None = None
    batch: bool = False


class ViewCode(Generic[P, R]):
    """A function or class that computes the rows of a view; calling it calls the function."""

    def __init__(
        self,
        target: Callable[P, R],
        options: CodeOptions,
        init: Mapping[str, Any] | None = None,
    ) -> None:
        self.target = target
        self.options = options
        self.init: Mapping[str, Any] = dict(init or {})
        functools.update_wrapper(cast(Any, self), target)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.target(*args, **kwargs)

    @property
    def name(self) -> str:
        """What the function or class is called."""
        return str(cast(Any, self.target).__name__)

    def with_init(self, **arguments: Any) -> Self:
        """The same code, its class built with these keyword arguments on every worker."""
        return type(self)(self.target, self.options, {**self.init, **arguments})

    def with_options(self, **changes: Any) -> Self:
        """The same code with other resources, partitions or error handling."""
        return type(self)(self.target, _checked(replace(self.options, **changes)), self.init)

    def pack(self) -> PackedCode:
        """The envelope that a server stores.

        Raises:
            InvalidInput: the code cannot travel; the message says what to change.
        """
        return pack_code(
            self.target, self.options.kind, self.abi, self.options.version, self.init, _DECORATORS
        )

    @property
    def abi(self) -> str:
        """How a worker calls the code."""
        if self.options.kind is ViewKind.UDTF:
            return "arrow-partition"
        return "arrow-batch-chunker" if self.options.batch else "row-chunker"

    def input_columns(self, columns: Sequence[str]) -> tuple[str, ...] | None:
        """Those of `columns` that the code is given; None is all of them.

        Raises:
            InvalidInput: the code asks for others; the message names them.
        """
        if self.options.input_columns is not None:
            self._check_columns(self.options.input_columns, columns, "input_columns names")
        if self.options.kind is ViewKind.UDTF or self.options.batch:
            return self.options.input_columns
        parameters = _parameters(self.target)
        visible = self.options.input_columns or tuple(columns)
        needed = [p.name for p in parameters if p.default is inspect.Parameter.empty]
        self._check_columns(needed, visible, "has the parameters")
        return tuple(p.name for p in parameters if p.name in visible) or None

    def udtf_spec(self, columns: Sequence[str]) -> dict[str, Any]:
        """The `udtf_spec` of a request that makes a view over a source with these columns."""
        packed, options = self.pack(), self.options
        wanted = self.input_columns(columns)
        spec = {
            "kind": options.kind.value,
            "udtf": base64.b64encode(packed.envelope).decode(),
            "udtf_sha": packed.sha256,
            "udtf_name": packed.entrypoint,
            "udtf_version": packed.version,
            "input_columns": None if wanted is None else list(wanted),
            "partition_by": options.partition_by,
            "partition_by_indexed_column": options.partition_by_indexed_column,
            "num_cpus": options.num_cpus,
            "num_gpus": options.num_gpus,
            "memory": options.memory,
            "error_handling": None if options.on_error is None else policy_json(options.on_error),
            "batch": options.batch or None,
            "manifest": options.manifest,
        }
        return {key: value for key, value in spec.items() if value is not None}

    def test(self, table: pa.Table) -> pa.Table:
        """Run the code on `table` in a process of its own, as a worker would; returns its rows.

        A `udtf` sees the whole table as one partition. Rows of a chunker have a last column
        `__parent`, the number of the row of `table` that they come from.

        Raises:
            InvalidInput: the code cannot be packed, or asks for columns that the table lacks.
            CodeFailed: it raised, died, or returned rows that do not fit its output schema.
        """
        # A worker imports this module too, and needs none of what starts processes.
        from udtf.code_process import test_code

        wanted = self.input_columns(table.column_names)
        return test_code(
            self.pack().envelope,
            self.options.kind,
            table if wanted is None else table.select(wanted),
            self.options.output_schema,
            batch=self.options.batch,
        )

    def _check_columns(self, wanted: Sequence[str], columns: Sequence[str], says: str) -> None:
        missing = [name for name in wanted if name not in columns]
        if missing:
            raise InvalidInput(
                f"{self.name} {says} {', '.join(missing)}, which are no columns of its source;"
                f" the columns are {', '.join(columns)}"
            )


def udtf(
    *,
    output_schema: SchemaLike,
    input_columns: Sequence[str] | None = None,
    partition_by: str | None = None,
    partition_by_indexed_column: str | None = None,
    num_cpus: float | None = None,
    num_gpus: float | None = None,
    memory: int | None = None,
    version: str = "",
    on_error: OnError | None = None,
    manifest: str | Path | None = None,
) -> Callable[[Callable[P, R]], ViewCode[P, R]]:
    """Decorate a function, or a class with `__call__(self, source)`, that computes a whole view.

    It yields (or returns) Arrow record batches or tables of `output_schema`: a pyarrow schema, a
    dict of names and types, or a NamedTuple, dataclass or TypedDict. It runs once for each value
    of `partition_by`, or for each partition of the vector index on `partition_by_indexed_column`,
    or once for everything. `memory` is in bytes. `manifest` is JSON, or the path of a file of it.

    Raises:
        InvalidInput: an argument is wrong.
    """
    options = CodeOptions(
        kind=ViewKind.UDTF,
        output_schema=read_schema(output_schema),
        input_columns=_names(input_columns),
        partition_by=partition_by,
        partition_by_indexed_column=partition_by_indexed_column,
        num_cpus=num_cpus,
        num_gpus=num_gpus,
        memory=memory,
        version=version,
        on_error=on_error,
        manifest=_manifest(manifest),
    )
    return functools.partial(_decorated, _checked(options))


@overload
def chunker(function: Callable[P, R], /) -> ViewCode[P, R]: ...


@overload
def chunker(
    *,
    batch: bool = False,
    output_schema: SchemaLike | None = None,
    input_columns: Sequence[str] | None = None,
    num_cpus: float | None = None,
    num_gpus: float | None = None,
    memory: int | None = None,
    version: str = "",
    manifest: str | Path | None = None,
) -> Callable[[Callable[P, R]], ViewCode[P, R]]: ...


def chunker(
    function: Callable[P, R] | None = None,
    /,
    *,
    batch: bool = False,
    output_schema: SchemaLike | None = None,
    input_columns: Sequence[str] | None = None,
    num_cpus: float | None = None,
    num_gpus: float | None = None,
    memory: int | None = None,
    version: str = "",
    manifest: str | Path | None = None,
) -> ViewCode[P, R] | Callable[[Callable[P, R]], ViewCode[P, R]]:
    """Decorate a function, or a class with `__call__`, that makes rows of each source row.

    Its parameters are columns of the source, by name; it yields rows, or returns a list of them.
    The rows' columns come from its return annotation (`Iterator[Passage]` with a NamedTuple,
    dataclass or TypedDict), or from `output_schema`. With `batch=True` it takes a record batch and
    gives record batches with `output_schema` and a column `parent`: the number of the row in the
    batch that each row comes from. The view also has the columns of the source query.

    Raises:
        InvalidInput: an argument is wrong, or the columns are not known.
    """

    def decorate(target: Callable[P, R]) -> ViewCode[P, R]:
        options = CodeOptions(
            kind=ViewKind.CHUNKER,
            output_schema=_chunk_schema(target, output_schema),
            input_columns=_names(input_columns),
            num_cpus=num_cpus,
            num_gpus=num_gpus,
            memory=memory,
            version=version,
            manifest=_manifest(manifest),
            batch=batch,
        )
        return _decorated(_checked(options), target)

    return decorate if function is None else decorate(function)


# They stay behind when code is packed.
_DECORATORS = (udtf, chunker)


def _decorated(options: CodeOptions, target: Callable[P, R]) -> ViewCode[P, R]:
    code = ViewCode(target, options)
    if options.kind is ViewKind.UDTF or options.batch:
        parameters = _parameters(target)
        needed = [p.name for p in parameters if p.default is inspect.Parameter.empty]
        if not parameters or len(needed) > 1:
            given = "a record batch" if options.batch else "its source"
            raise InvalidInput(f"{code.name} must take one argument, {given}")
    return code


def _checked(options: CodeOptions) -> CodeOptions:
    if options.partition_by and options.partition_by_indexed_column:
        raise InvalidInput("both partition_by and partition_by_indexed_column are given; keep one")
    for name in options.output_schema.names:
        if name in LINEAGE_COLUMNS:
            raise InvalidInput(f"output_schema: the column name {name!r} is reserved")
    if options.on_error is not None:
        policy_json(options.on_error)
    return options


def _chunk_schema(target: Any, given: SchemaLike | None) -> pa.Schema:
    if given is not None:
        return read_schema(given)
    function = target.__call__ if isinstance(target, type) else target
    record = returned_record(function)
    if record is None:
        raise InvalidInput(
            f"the columns that {target.__name__} makes are not known; annotate what it returns"
            " (Iterator[Passage], with a NamedTuple, dataclass or TypedDict), or give output_schema"
        )
    return read_schema(record)


def _parameters(target: Any) -> list[inspect.Parameter]:
    """The parameters of a call, without `self`."""
    is_class = isinstance(target, type)
    # Every class has one, of its metaclass, which builds objects.
    if is_class and not any("__call__" in vars(base) for base in target.__mro__):
        raise InvalidInput(f"{target.__name__} has no __call__, which workers call")
    function = target.__call__ if is_class else target
    parameters = list(inspect.signature(function).parameters.values())
    named = parameters[1:] if is_class else parameters
    for parameter in named:
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise InvalidInput(
                f"{target.__name__} takes {parameter}; name each parameter, which is a column"
            )
    return named


def _names(columns: Sequence[str] | None) -> tuple[str, ...] | None:
    if columns is None:
        return None
    if isinstance(columns, str):
        raise InvalidInput(f"input_columns is the string {columns!r}; give a list of names")
    return tuple(columns)


def _manifest(manifest: str | Path | None) -> str | None:
    if isinstance(manifest, Path):
        return manifest.read_text()
    return manifest
