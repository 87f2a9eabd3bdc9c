"""The words and signs of Lance's SQL that mean something else than a column."""

import re

from actors.sql_size import REPEATED_BY_CASE, REPEATED_BY_COALESCE

# What Lance knows of every row besides the table's columns; a predicate may use them.
SYSTEM_COLUMNS = frozenset(
    {
        "_rowid",
        "_rowaddr",
        "_rowoffset",
        "_row_created_at_version",
        "_row_last_updated_at_version",
    }
)

FUNCTION_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
HEX = re.compile(r"([0-9A-Fa-f]{2})*")
ARITHMETIC = frozenset({"+", "-", "*", "/", "%", "||", "&", "|", "^", "<<", ">>"})
BINARY = ARITHMETIC | {"=", "==", "!=", "<>", "<", "<=", ">", ">="}
LITERALS = frozenset({"NULL", "TRUE", "FALSE"})
NOW = frozenset({"CURRENT_DATE", "CURRENT_TIME", "CURRENT_TIMESTAMP"})
TYPED_LITERALS = frozenset({"DATE", "TIME", "TIMESTAMP", "DATETIME", "JSONB"})
INTERVAL_UNITS = frozenset(
    name + plural
    for name in ("YEAR", "MONTH", "WEEK", "DAY", "HOUR", "MINUTE", "SECOND", "MILLISECOND")
    for plural in ("", "S")
)
CASTS = frozenset({"cast", "try_cast", "safe_cast"})
# Calls whose arguments the planner repeats, and how often.
REPEATING_CALLS = {
    "coalesce": REPEATED_BY_COALESCE,
    "nvl": REPEATED_BY_COALESCE,
    "ifnull": REPEATED_BY_COALESCE,
    "nvl2": REPEATED_BY_CASE,
}
# Calls whose arguments Lance's own planner reads, as it does the text outside calls.
TRANSPARENT_CALLS = CASTS | {"is_valid"}
TRIM_SIDES = frozenset({"BOTH", "LEADING", "TRAILING"})
# Calls with a syntax of their own, which Lance's planner leaves to DataFusion's, and words in them.
SPECIAL_CALLS: dict[str, frozenset[str]] = {
    "ceil": frozenset(),
    "floor": frozenset(),
    "extract": frozenset({"FROM"}),
    "overlay": frozenset({"PLACING", "FROM", "FOR"}),
    "position": frozenset({"IN"}),
    "substr": frozenset({"FROM", "FOR"}),
    "substring": frozenset({"FROM", "FOR"}),
    "trim": frozenset({"FROM"}),
}
QUERY_WORDS = frozenset({"SELECT", "WITH", "VALUES", "EXISTS"})
