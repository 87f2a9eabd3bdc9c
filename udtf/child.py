"""The program of a process that runs user code: `python -I child.py <descriptors> <folder>`.

It imports the standard library, pyarrow and files of these packages that need no more; the code and
everything that it is about come over a pipe. The code's prints go to another pipe, whose reader
keeps the last of them.
"""

import sys
from pathlib import Path


def main() -> None:
    """Load the code, then do items until the worker closes the pipe."""
    lifeline, reading, writing = map(int, sys.argv[1:4])
    # Isolated mode leaves out the folder of the program; installed, it is there already.
    root = str(Path(__file__).resolve().parents[1])
    if root not in sys.path:
        sys.path.append(root)
    from udtf.guard import fork_guarded

    fork_guarded(lifeline, (reading, writing), sys.argv[4])
    # Imported in this half only: the guard stays small.
    from udtf.child_loop import serve

    sys.argv[1:] = []
    serve(reading, writing)


if __name__ == "__main__":
    main()
