"""A driver whose refresh does what the view's metadata say: the process is real, the work is not.

`script` is JSON: `items` to do, `item_s` seconds each, and in `faults` what happens at a phase of
an attempt, as {"1:compute": "die"}. Faults are `die`, `hang`, `stop`, `exit` and `babble`. Every
attempt leaves the ids of its processes in `folder`, and a line in `computed` for each item it did.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from udtf.refresh_model import (
    ItemState,
    ItemStatus,
    PublishRequest,
    RefreshMode,
    RefreshOptions,
    RefreshSummary,
    Runner,
    SourceLocation,
    Watermark,
)


@dataclass(frozen=True)
class RefreshTask:
    """As the real one."""

    job_id: str
    attempt: int
    database: str
    view_id: tuple[str, ...]
    view_uri: str
    view_metadata: Mapping[str, str]
    source: SourceLocation
    options: RefreshOptions
    runner: Runner
    settings: Any
    checkpoint_key: str | None
    done_items: tuple[ItemStatus, ...]


class RefreshFailed(Exception):
    """Never."""


class RefreshCancelled(Exception):
    """The owner said so."""


def run_refresh(task: RefreshTask, report: Any, _check: object = None) -> PublishRequest | None:
    """Play the script."""
    script = json.loads(task.view_metadata["script"])
    folder = Path(script["folder"])
    # In a session of its own, as the processes of a view's code are.
    child = subprocess.Popen(["sleep", "600"], start_new_session=True)
    with (folder / "pids").open("a") as pids:
        pids.write(f"{os.getpid()}\n{child.pid}\n")
    fault(task, script, "environment")
    report.phase("plan")
    fault(task, script, "plan")
    count = script["items"]
    report.planned(RefreshSummary(RefreshMode.REBUILD, "scripted", 7, count, None, "key"))
    report.phase("compute")
    done = {status.id: status for status in task.done_items}
    for number in range(count):
        status = done.get(f"i{number}") or compute(task, script, folder, number)
        if report.is_cancelled() and not script.get("deaf"):
            raise RefreshCancelled("cancelled")
        report.item(status)
    fault(task, script, "end")
    mark = Watermark(("s",), "/s", None, 7, 1, "d", None, None, None, task.job_id, 1)
    return PublishRequest(task.job_id, 1, RefreshMode.REBUILD, True, None, ("f",), count, mark)


def compute(task: RefreshTask, script: Any, folder: Path, number: int) -> ItemStatus:
    """Do an item, and say so in a file."""
    if number == script["items"] // 2:
        fault(task, script, "compute")
    time.sleep(script.get("item_s", 0))
    with (folder / "computed").open("a") as computed:
        computed.write(f"{task.attempt}:{number}\n")
    return ItemStatus(f"i{number}", ItemState.DONE, rows_in=1, rows_out=1, fragments=("f",))


def fault(task: RefreshTask, script: Any, moment: str) -> None:
    """What is to go wrong here, if anything."""
    kind = script.get("faults", {}).get(f"{task.attempt}:{moment}")
    if kind == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    elif kind == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif kind == "exit":
        os._exit(3)
    elif kind == "hang":
        time.sleep(600)
    elif kind == "babble":
        for _ in range(200):
            print("x" * 100_000)
        os.write(1, b'{"type": "failed"}\n' * 1_000)


def main() -> None:
    """A driver with this module in the place of the refresh."""
    engine = ModuleType("udtf.refresh")
    for name in ("RefreshTask", "RefreshFailed", "RefreshCancelled", "run_refresh"):
        setattr(engine, name, globals()[name])
    sys.modules["udtf.refresh"] = engine
    from actors import view_driver

    view_driver.run(sys.argv[1:])


if __name__ == "__main__":
    main()
