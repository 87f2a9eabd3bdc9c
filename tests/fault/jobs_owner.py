"""An owner of jobs in a process of its own, which a test kills.

python -m tests.fault.jobs_owner <root> <script>
"""

import asyncio
import sys
from pathlib import Path

from actors.driver_process import DriverProcesses
from tests.unit.job_fakes import FakeViews, Owned, quick_settings, submission

DRIVER = "tests.fault.scripted_driver"
# Drivers start beside other work on the same cores.
TIMES = {"jobs": {"stall_timeout_s": 20}, "views": {"item_timeout_s": 20}}


def scripted(root: Path, script: str, **changes: object) -> Owned:
    """An owner with real drivers that play a script."""
    sections = {**TIMES, **changes}
    drivers = DriverProcesses(quick_settings(root, **sections), DRIVER)  # type: ignore[arg-type]
    return Owned(root, drivers, FakeViews({"script": script}), **sections)


async def main(root: str, script: str) -> None:
    """Submit one job and run until killed."""
    owner = scripted(Path(root), script)
    sys.stdout.write(await owner.jobs.submit(submission()) + "\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2]))
