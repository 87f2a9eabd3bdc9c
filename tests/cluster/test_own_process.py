"""Tests that choose Daft's runner, which a process does once: each file has its own process."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

FOLDER = Path(__file__).parent


@pytest.mark.parametrize("file", ["test_refresh_on_ray.py"])
def test_file_passes_in_a_process_of_its_own(file: str) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-m", "own_process and not soak"]
    done = subprocess.run(
        [*command, str(FOLDER / file)],
        cwd=FOLDER.parents[1],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    # Nothing selected is no success.
    assert done.returncode == 0, done.stdout
