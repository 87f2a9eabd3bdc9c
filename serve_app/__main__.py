"""The command line: `destrier serve`, `view`, `key`, `settings` and `routes`."""

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module

# Each module of a subcommand has `add_parser(subparsers)`, which sets `run`.
_COMMANDS = ("serve", "view", "key", "settings", "routes")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand; returns the exit code (2: wrong arguments or settings)."""
    parser = argparse.ArgumentParser(
        prog="destrier", description="Serves Lance tables over HTTP from a Ray cluster."
    )
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name in _COMMANDS:
        import_module(f"serve_app.commands.{name}").add_parser(subparsers)
    args = parser.parse_args(argv)
    code: int = args.run(args)
    return code


if __name__ == "__main__":
    sys.exit(main())
