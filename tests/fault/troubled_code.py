"""The code of views that go wrong: what it does is in the rows that it is given.

Nothing here runs in the tests' own process: it is packed and sent to a server.
"""

import ctypes
import os
import subprocess
import time
from collections.abc import Iterator
from typing import Any

from udtf import chunker

MEMORY_BYTES = 512 << 20
# An argument by which processes that the code has left behind are known on the whole machine.
LEFT_BEHIND = "86397.25"


def misbehave(trouble: str) -> None:
    """Do what `trouble` says; what returns has done its harm and lets the rows be made."""
    if trouble == "raises":
        raise ValueError("this row is bad")
    if trouble == "raises what no pickle holds":
        odd = type("Odd", (Exception,), {"__reduce__": 5, "lock": lambda: 0})
        raise odd(lambda: 0)
    if trouble == "exits":
        os._exit(3)
    if trouble == "segfaults":
        ctypes.string_at(0)
    if trouble == "hangs":
        time.sleep(3_600)
    if trouble == "allocates without end":
        kept = []
        while True:
            kept.append(bytearray(b"x") * (16 << 20))
    if trouble == "prints a gigabyte":
        for _ in range(1 << 10):
            os.write(1, b"x" * (1 << 20))
    if trouble == "forks":
        for _ in range(3):
            subprocess.Popen(["sleep", LEFT_BEHIND], start_new_session=True)
        if os.fork() == 0:
            os.setsid()
            os.execvp("sleep", ["sleep", LEFT_BEHIND])


@chunker(output_schema={"out": int}, num_cpus=0.5, memory=MEMORY_BYTES)
def troubled(n: int, trouble: str) -> Iterator[Any]:
    """Ten times a number, unless there is trouble."""
    if trouble == "returns nothing":
        return None
    misbehave(trouble)
    return [{"out": "ten"} if trouble == "gives another schema" else {"out": n * 10}]


@chunker(output_schema={"out": int}, num_cpus=0.5, memory=MEMORY_BYTES)
def slow(n: int) -> Iterator[dict[str, int]]:
    """Ten times a number, which takes its time."""
    time.sleep(0.4)
    yield {"out": n * 10}


@chunker(output_schema={"out": int}, num_cpus=0.5, memory=MEMORY_BYTES)
def endless(n: int) -> Iterator[dict[str, int]]:
    """Never anything, and processes in sessions of their own meanwhile."""
    subprocess.Popen(["sleep", LEFT_BEHIND], start_new_session=True)
    time.sleep(3_600)
    yield {"out": n}
