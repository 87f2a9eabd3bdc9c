"""What a definition uses of its module, as text that stands alone.

Names are found with Python's own symbol tables. Annotations do not count: under
`from __future__ import annotations`, which every packed module begins with, they are not evaluated;
what they name is packed where that is easy.
"""

import ast
import builtins
import copy
import symtable
import sys
import types
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, TypeAlias

from cluster.errors import InvalidInput

Definition: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef

_FUTURE = "from __future__ import annotations"
_SYMBOLS_OF_MODULES = frozenset({"__name__", "__doc__"})
# Calls of these say the same on every machine; anything else may depend on where it is made.
_CONSTANT_MAKERS = {
    "builtins",
    "collections",
    "datetime",
    "decimal",
    "enum",
    "fractions",
    "logging",
    "math",
    "pyarrow",
    "re",
    "typing",
}
_MAKES_NO_CONSTANT = {"__import__", "eval", "globals", "input", "locals", "open", "vars"}
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_SITE_FOLDERS = ("site-packages", "dist-packages")
# Where authors import from; code that runs has no use for it.
_AUTHORING = "udtf"
_INSTALLED = sys.stdlib_module_names | {_AUTHORING}


@dataclass(slots=True)
class _Binding:
    """A name at the top level of a module; `alias` is set of imports.

    `also` are earlier imports that add to the same name, as `import xml.dom` does to `xml`.
    """

    statement: ast.stmt
    alias: ast.alias | None = None
    why_not: str | None = None
    also: tuple["_Binding", ...] = ()


@dataclass(slots=True)
class ModuleSource:
    """One module: its text, its tree and its live names."""

    text: str
    module: types.ModuleType
    bindings: dict[str, _Binding] = field(default_factory=dict)

    @classmethod
    def read(cls, text: str, module: types.ModuleType) -> Self:
        """Parse a module's text.

        Raises:
            InvalidInput: it does not parse, which means that it was changed since it was imported.
        """
        try:
            tree = ast.parse(text)
        except SyntaxError as error:
            raise InvalidInput(
                f"the source of {module.__name__} does not parse (line {error.lineno}:"
                f" {error.msg}); it was changed since it was imported"
            ) from None
        found = cls(text, module)
        for statement in tree.body:
            found._bind(statement)
        return found

    def begins_at(self, name: str) -> int | None:
        """The line at which a function or class begins, decorators included."""
        binding = self.bindings.get(name)
        if binding is None or not isinstance(binding.statement, _DEFINITIONS):
            return None
        first = [decorator.lineno for decorator in binding.statement.decorator_list]
        return min([binding.statement.lineno, *first])

    def text_with(self, name: str, left_out: Collection[Any]) -> str:
        """The text of a module that defines `name` and everything that it uses of this module.

        Decorators in `left_out` are dropped, wherever they stand.

        Raises:
            InvalidInput: a name that is used cannot be packed.
        """
        if not isinstance(self._binding(name, name).statement, _DEFINITIONS):
            raise InvalidInput(f"{self.module.__name__} defines no function or class {name!r}")
        packed: dict[str, _Binding] = {}
        waiting = [(name, name, True)]
        while waiting:
            wanted, user, is_needed = waiting.pop()
            if wanted in packed:
                continue
            if not is_needed and not self._is_easy(wanted):
                continue
            binding = self._binding(wanted, user)
            packed[wanted] = binding
            if binding.alias is None:
                statement = self._trimmed(binding.statement, left_out)
                self._check_constant(statement, wanted, user)
                needed = {n for n in _globals_of(statement) if self._is_of_module(n)}
                waiting += [(used, wanted, True) for used in sorted(needed)]
                named = {n for n in _annotation_names(statement) if n in self.bindings}
                # Later ones are taken first: what is needed goes before what is merely named.
                waiting[:0] = [(used, wanted, False) for used in sorted(named)]
        return self._compose(packed, left_out)

    def _bind(self, statement: ast.stmt) -> None:
        if isinstance(statement, _DEFINITIONS):
            self._add(statement.name, _Binding(statement))
        elif isinstance(statement, (ast.Import, ast.ImportFrom)):
            for alias in statement.names:
                bound = alias.asname or alias.name.partition(".")[0]
                self._add(bound, _Binding(statement, alias, _why_no_import(statement, alias)))
        elif isinstance(statement, (ast.Assign, ast.AnnAssign)):
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            plain = len(targets) == 1 and isinstance(targets[0], ast.Name)
            why = None if plain else "it is assigned together with other names"
            for bound in _assigned(statement):
                self._add(bound, _Binding(statement, why_not=why))
        else:
            where = type(statement).__name__.lower()
            for bound in sorted(set(_assigned(statement))):
                self._add(bound, _Binding(statement, why_not=f"it is bound inside `{where}`"))

    def _add(self, name: str, binding: _Binding) -> None:
        earlier = self.bindings.get(name)
        if earlier is not None and _is_same_import(earlier, binding):
            binding.also = (*earlier.also, earlier)
        elif earlier is not None:
            binding.why_not = "it is bound more than once"
        self.bindings[name] = binding

    def _is_of_module(self, name: str) -> bool:
        is_builtin = hasattr(builtins, name) or name in _SYMBOLS_OF_MODULES
        return name in self.bindings or not is_builtin

    def _is_easy(self, name: str) -> bool:
        """Whether a name that only annotations use can go along without a question."""
        binding = self.bindings[name]
        if binding.why_not is not None:
            return False
        if binding.alias is None:
            return isinstance(binding.statement, ast.ClassDef)
        return _imported(binding) != _AUTHORING and not self._is_own_module(binding)

    def _binding(self, name: str, user: str) -> _Binding:
        """How the module binds a name, which must be a way that can be packed."""
        uses = "" if name == user else f"{user} uses {name}, but "
        binding = self.bindings.get(name)
        if binding is None:
            if not hasattr(self.module, name):
                raise InvalidInput(
                    f"{uses}{self.module.__name__} defines no {name}; define it at the top level"
                )
            raise InvalidInput(
                f"{uses}{self.module.__name__} does not say where {name} comes from; import or"
                " define it by its name (not with `import *`)"
            )
        if binding.why_not is not None:
            raise InvalidInput(
                f"{uses or f'{name} cannot be packed: '}{binding.why_not}; bind it once, with a"
                " plain statement at the top level"
            )
        if binding.alias is not None and self._is_own_module(binding):
            raise InvalidInput(
                f"{uses}{name} is imported from a module of your own project, which workers do not"
                " have; put what the code needs into its own module, or install the project on the"
                " workers and import it inside the function"
            )
        return binding

    def _is_own_module(self, binding: _Binding) -> bool:
        """Whether an import takes from files beside the module, which are not installed."""
        top = _imported(binding)
        file, folder = getattr(self.module, "__file__", None), _folder(sys.modules.get(top))
        if file is None or folder is None or top in _INSTALLED:
            return False
        if any(part in _SITE_FOLDERS for part in folder.parts):
            return False
        return Path(file).resolve().is_relative_to(folder)

    def _check_constant(self, statement: ast.stmt, name: str, user: str) -> None:
        """Refuse values that may be others on a worker than here."""
        if not isinstance(statement, (ast.Assign, ast.AnnAssign)):
            return
        if statement.value is None:
            raise InvalidInput(f"{user} uses {name}, which has no value at the top level")
        for node in ast.walk(statement.value):
            if isinstance(node, ast.Call) and not self._makes_constant(node.func):
                raise InvalidInput(
                    f"{user} uses {name}, whose value is the result of"
                    f" `{ast.unparse(node.func)}(...)` on this machine; make it inside the"
                    " function, or in the __init__ of a class, which is built once per worker"
                )
            if isinstance(node, (ast.Await, ast.Yield, ast.YieldFrom, ast.NamedExpr)):
                raise InvalidInput(f"{user} uses {name}, whose value is no constant")
            if isinstance(node, ast.Attribute) and _root(node) in {"os", "sys"}:
                raise InvalidInput(
                    f"{user} uses {name}, whose value `{ast.unparse(node)}` is this machine's;"
                    " read it inside the function"
                )

    def _makes_constant(self, function: ast.expr) -> bool:
        root = _root(function)
        if root is None:
            # A method of a literal, such as "a b".split().
            return not any(isinstance(node, ast.Name) for node in ast.walk(function))
        binding = self.bindings.get(root)
        if binding is None:
            return hasattr(builtins, root) and root not in _MAKES_NO_CONSTANT
        if binding.alias is None:
            return not isinstance(binding.statement, (ast.FunctionDef, ast.AsyncFunctionDef))
        return _imported(binding) in _CONSTANT_MAKERS

    def _trimmed(self, statement: ast.stmt, left_out: Collection[Any]) -> ast.stmt:
        """The statement without the decorators that do not travel."""
        if not isinstance(statement, _DEFINITIONS):
            return statement
        trimmed = copy.copy(statement)
        trimmed.decorator_list = self._kept_decorators(statement, left_out)
        return trimmed

    def _kept_decorators(self, statement: Definition, left_out: Collection[Any]) -> list[ast.expr]:
        return [
            decorator
            for decorator in statement.decorator_list
            if not any(self._value(decorator) is dropped for dropped in left_out)
        ]

    def _value(self, expression: ast.expr) -> Any:
        """What a decorator's name stands for here; None if it is no plain name."""
        if isinstance(expression, ast.Call):
            return self._value(expression.func)
        if isinstance(expression, ast.Attribute):
            return getattr(self._value(expression.value), expression.attr, None)
        if isinstance(expression, ast.Name):
            return getattr(self.module, expression.id, None)
        return None

    def _compose(self, packed: dict[str, _Binding], left_out: Collection[Any]) -> str:
        """The packed statements as the author wrote them, in their order."""
        bindings = [one for binding in packed.values() for one in (binding, *binding.also)]
        chosen = {id(binding.statement): binding.statement for binding in bindings}
        parts = [_FUTURE]
        previous_is_import = True
        for statement in sorted(chosen.values(), key=lambda found: found.lineno):
            is_import = isinstance(statement, (ast.Import, ast.ImportFrom))
            text = self._text(statement, bindings, left_out)
            if text == _FUTURE:
                continue
            is_definition = isinstance(statement, _DEFINITIONS)
            gap = "\n\n"
            if is_definition:
                gap = "\n\n\n"
            elif previous_is_import and is_import:
                gap = "\n"
            parts += [gap, text]
            previous_is_import = is_import
        return "".join(parts) + "\n"

    def _text(
        self, statement: ast.stmt, bindings: list[_Binding], left_out: Collection[Any]
    ) -> str:
        if isinstance(statement, (ast.Import, ast.ImportFrom)):
            aliases = [
                binding.alias
                for binding in bindings
                if binding.statement is statement and binding.alias is not None
            ]
            trimmed = copy.copy(statement)
            trimmed.names = sorted(aliases, key=lambda alias: alias.name)
            return ast.unparse(trimmed)
        if isinstance(statement, _DEFINITIONS):
            kept = [f"@{ast.unparse(d)}" for d in self._kept_decorators(statement, left_out)]
            # Not splitlines(): Python ends lines at fewer characters.
            lines = self.text.split("\n")[statement.lineno - 1 : statement.end_lineno]
            return "\n".join([*kept, *lines])
        return ast.get_source_segment(self.text, statement) or ast.unparse(statement)


def _globals_of(statement: ast.stmt) -> set[str]:
    """Names that the statement takes from its module or from the builtins, annotations apart."""
    bare = _WithoutAnnotations().visit(copy.deepcopy(statement))
    text = ast.unparse(ast.fix_missing_locations(bare))
    table = symtable.symtable(text, "<packed>", "exec")
    own = {symbol.get_name() for symbol in table.get_symbols() if symbol.is_assigned()}
    return set(_free_names(table)) - own


def _free_names(table: symtable.SymbolTable) -> Iterator[str]:
    at_top = table.get_type() == "module"
    for symbol in table.get_symbols():
        if symbol.is_referenced() and (at_top or symbol.is_global()):
            yield symbol.get_name()
    for child in table.get_children():
        yield from _free_names(child)


class _WithoutAnnotations(ast.NodeTransformer):
    def visit_arg(self, node: ast.arg) -> ast.arg:
        node.annotation = None
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.returns = None
        return self.generic_visit(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        node.returns = None
        return self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        if node.value is None:
            return ast.copy_location(ast.Pass(), node)
        return self.generic_visit(
            ast.copy_location(ast.Assign(targets=[node.target], value=node.value), node)
        )


def _annotation_names(statement: ast.stmt) -> set[str]:
    annotations: list[ast.expr | None] = []
    for node in ast.walk(statement):
        if isinstance(node, (ast.arg, ast.AnnAssign)):
            annotations.append(node.annotation)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            annotations.append(node.returns)
    return {
        node.id
        for annotation in annotations
        if annotation is not None
        for node in ast.walk(annotation)
        if isinstance(node, ast.Name)
    }


def _assigned(statement: ast.stmt) -> Iterator[str]:
    """The names that a statement at the top level binds, those of inner scopes apart."""
    if isinstance(statement, _DEFINITIONS):
        yield statement.name
        return
    for node in ast.iter_child_nodes(statement):
        if isinstance(node, ast.stmt):
            yield from _assigned(node)
        elif isinstance(node, ast.ExceptHandler):
            for inner in node.body:
                yield from _assigned(inner)
        elif isinstance(node, ast.alias):
            yield node.asname or node.name.partition(".")[0]
        else:
            yield from (
                name.id
                for name in ast.walk(node)
                if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store)
            )


def _why_no_import(statement: ast.Import | ast.ImportFrom, alias: ast.alias) -> str | None:
    if isinstance(statement, ast.ImportFrom) and statement.level:
        return "it is imported from a module of its own package, which workers do not have"
    return "it is imported with `*`" if alias.name == "*" else None


def _is_same_import(one: _Binding, other: _Binding) -> bool:
    """Whether both are `import a.b` of one package: each adds to it."""
    return all(
        isinstance(binding.statement, ast.Import)
        and binding.alias is not None
        and binding.alias.asname is None
        for binding in (one, other)
    )


def _imported(binding: _Binding) -> str:
    """The top-level module that an import takes from; empty of a relative import."""
    assert binding.alias is not None
    statement = binding.statement
    name = statement.module if isinstance(statement, ast.ImportFrom) else binding.alias.name
    return (name or "").partition(".")[0]


def _root(expression: ast.expr) -> str | None:
    while isinstance(expression, ast.Attribute):
        expression = expression.value
    return expression.id if isinstance(expression, ast.Name) else None


def _folder(module: types.ModuleType | None) -> Path | None:
    """Where the module was found: the folder that is on Python's path."""
    paths = list(getattr(module, "__path__", []))
    if paths:
        return Path(paths[0]).resolve().parent
    file = getattr(module, "__file__", None)
    return None if file is None else Path(file).resolve().parent
