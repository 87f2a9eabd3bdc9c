"""How a command that cannot do its work says so."""

import sys

from cluster.errors import DestrierError, InvalidInput

REFUSED = 1
WRONG_USE = 2


def report(error: DestrierError) -> int:
    """Print the sentence on the standard error; returns the exit code."""
    print(f"destrier: {error.message}", file=sys.stderr)
    return WRONG_USE if isinstance(error, InvalidInput) else REFUSED
