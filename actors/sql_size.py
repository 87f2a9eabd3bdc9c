"""How large a predicate or expression is, in the measures that make Lance slow or overflow."""

from dataclasses import dataclass

from cluster.errors import InvalidInput
from cluster.settings import LimitSettings

# An operator or call costs Lance about as much as this many literals of an IN list: 2 us for each
# literal to plan, and 0.2 to 0.6 ms for each condition to look up in an index.
_OPERATOR_SIZE = 100
# By how much planning and looking up multiply with each level of nesting, measured: coalesce(a, b)
# ends as an AND and OR with `a` in it three times, `a BETWEEN b AND c` repeats `a` twice, and so do
# nvl2(a, b, c) and CASE WHEN a.
REPEATED_BY_COALESCE = 3
REPEATED_BY_CASE = 2
_REPEATED_BY_BETWEEN = 3


@dataclass(slots=True)
class _Level:
    """What one pair of brackets, one call or one CASE holds; the outermost holds the whole text."""

    depth: int
    calls: int
    is_call: bool
    repeated: int
    # Unary operators before the operand to come.
    unary: int = 0
    # Of the operands and operators since the last comma, AND or OR: operators, height of the
    # highest operand, planned size, and calls inside the last operand.
    chain: int = 0
    highest: int = 0
    size: int = 0
    operand_calls: int = 0
    # Of everything before that.
    done_height: int = 0
    done_size: int = 0
    done_calls: int = 0


class SqlSize:
    """Measures a text while it is read from left to right; refuses it beyond a limit."""

    def __init__(self, limits: LimitSettings) -> None:
        self._limits = limits
        self._operators = 0
        self._arithmetic = 0
        self._levels = [_Level(depth=0, calls=0, is_call=False, repeated=1)]

    def operand(self) -> None:
        """A column or a literal was read."""
        level = self._levels[-1]
        level.size += 1
        level.unary = 0
        level.operand_calls = 0

    def operator(self, *, arithmetic: bool = False) -> None:
        """An operator between operands was read."""
        level = self._levels[-1]
        level.done_calls = max(level.done_calls, level.operand_calls)
        level.operand_calls = 0
        self.suffix(arithmetic=arithmetic)

    def suffix(self, *, arithmetic: bool = False) -> None:
        """An operator that ends with the operand before it was read."""
        self._levels[-1].chain += 1
        self._count_operator(arithmetic)

    def unary(self, *, arithmetic: bool = False) -> None:
        """An operator before an operand was read."""
        level = self._levels[-1]
        level.unary += 1
        level.chain += 1
        self._count_operator(arithmetic)
        self._check_depth(level.depth + level.unary)

    def between(self) -> None:
        """BETWEEN was read, which repeats the operand before it."""
        self._levels[-1].size *= _REPEATED_BY_BETWEEN
        self.operator()

    def cast(self) -> None:
        """`::` was read; it is a call around the operand before it."""
        level = self._levels[-1]
        self.suffix()
        level.operand_calls += 1
        self._check_calls(level.calls + level.operand_calls)

    def separate(self, *, repeated: int = 1) -> None:
        """A comma, AND, OR, or a word of CASE was read; what is before it is planned so often."""
        level = self._levels[-1]
        height = level.chain + level.highest
        if height > self._limits.sql_chain_max:
            raise InvalidInput(
                f"more than {self._limits.sql_chain_max} operators apply to one another's results;"
                " simplify the text or do it in several steps"
            )
        level.done_height = max(level.done_height, height)
        level.done_size += level.size * repeated
        level.done_calls = max(level.done_calls, level.operand_calls)
        level.chain = level.highest = level.size = level.unary = level.operand_calls = 0

    def open(self, *, is_call: bool = False, repeated: int = 1) -> None:
        """A bracket, a call or a CASE begins; it is an operand of what is around it."""
        outer = self._levels[-1]
        depth = outer.depth + outer.unary + 1
        calls = outer.calls + is_call
        self._levels.append(_Level(depth, calls, is_call, repeated))
        self._check_depth(depth)
        if is_call:
            self._count_operator(arithmetic=False)
            self._check_calls(calls)

    def close(self) -> None:
        """It ends."""
        self.separate()
        inner = self._levels.pop()
        outer = self._levels[-1]
        outer.size += inner.done_size * inner.repeated + 1
        outer.highest = max(outer.highest, inner.done_height + 1)
        outer.operand_calls = max(outer.operand_calls, inner.done_calls + inner.is_call)
        outer.unary = 0
        self._check_calls(outer.calls + outer.operand_calls)

    def finish(self) -> None:
        """The text ends."""
        self.separate()
        if self._levels[-1].done_size > self._limits.sql_planned_size_max:
            raise InvalidInput(
                "the text is too large to plan (coalesce, nvl, CASE conditions and BETWEEN repeat"
                " what they hold); nest less or do it in several steps"
            )

    @property
    def calls(self) -> int:
        """Calls around the place that is being read."""
        return self._levels[-1].calls

    def _count_operator(self, arithmetic: bool) -> None:
        self._levels[-1].size += _OPERATOR_SIZE
        self._operators += 1
        if self._operators > self._limits.sql_operators_max:
            raise InvalidInput(
                f"more than {self._limits.sql_operators_max} operators and calls; use IN lists, or"
                " send several requests"
            )
        self._arithmetic += arithmetic
        if self._arithmetic > self._limits.sql_arithmetic_max:
            raise InvalidInput(
                f"more than {self._limits.sql_arithmetic_max} arithmetic operators; do it in"
                " several steps"
            )

    def _check_depth(self, depth: int) -> None:
        if depth > self._limits.sql_depth_max:
            raise InvalidInput(
                f"brackets, NOT or minus signs nest more than {self._limits.sql_depth_max} deep;"
                " nest less"
            )

    def _check_calls(self, calls: int) -> None:
        if calls > self._limits.sql_call_depth_max:
            raise InvalidInput(
                f"calls, casts or CASE nest more than {self._limits.sql_call_depth_max} deep;"
                " nest less or do it in several steps"
            )
