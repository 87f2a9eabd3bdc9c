"""The subcommands of `destrier`, one module each, with `add_parser(subparsers)` and `run(args)`.

`run` returns the exit code: 0 done, 1 refused or failed, 2 wrong arguments or settings.
"""
