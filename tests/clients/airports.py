"""Real rows for tests of clients, and what becomes of them, worked out with pandas alone."""

import pandas as pd
import pyarrow as pa

from tests.clients import nyc

ROWS = 1_458
HONOLULU = -10  # the time zone of 18 airports
# What every client does to the table, in SQL; `changed` does the same in pandas.
IN_HONOLULU = f"tz = {HONOLULU}"
RAISED = [["alt", "alt + 1000"], ["name", "concat(name, ' (Hawaii)')"]]
UNKNOWN_DST = "dst = 'U'"


def airports() -> pd.DataFrame:
    """faa, name, lat, lon, alt, tz, dst, tzone (three of them null)."""
    frame = nyc.read("airports.csv")
    assert len(frame) == ROWS
    return frame


def first_and_rest() -> tuple[pa.Table, pa.Table]:
    """The rows that a table is created from, and those that are inserted."""
    frame = airports()
    return arrow(frame[:1_400]), arrow(frame[1_400:])


def changed() -> pd.DataFrame:
    """The airports after the update of IN_HONOLULU and the delete of UNKNOWN_DST."""
    frame = airports().copy()
    here = frame.tz == HONOLULU
    frame.loc[here, "alt"] += 1_000
    frame.loc[here, "name"] += " (Hawaii)"
    return frame[frame.dst != "U"]


def arrow(frame: pd.DataFrame) -> pa.Table:
    """The frame as an Arrow table, without pandas' own metadata."""
    return pa.Table.from_pandas(frame, preserve_index=False).replace_schema_metadata(None)


def same_rows(found: pa.Table, expected: pd.DataFrame) -> bool:
    """Whether both hold the same rows, whatever their order."""
    wanted = arrow(expected)
    assert found.schema.names == wanted.schema.names
    order = [("faa", "ascending")]
    return bool(found.sort_by(order).cast(wanted.schema).equals(wanted.sort_by(order)))
