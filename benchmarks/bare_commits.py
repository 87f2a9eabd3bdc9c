"""One-row inserts by pylance alone, in processes of their own: what they cost without a server.

Each insert is a fragment and a commit, as an owner makes them, and is flushed to the disk before it
counts: the fragment before the commit, the version after it.
"""

import multiprocessing
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from time import perf_counter
from typing import Any

from actors.freshness import manifest_path, versions_folder
from benchmarks.tables import rows
from cluster import disk

WARM_UP_S = 0.5


class Writers:
    """Processes that each insert into tables of their own."""

    def __init__(self, doors: Sequence[Connection]) -> None:
        self._doors = doors

    @property
    def processes(self) -> int:
        """How many they are."""
        return len(self._doors)

    def rate(self, seconds: float) -> float:
        """Inserts per second of all together, while each is at work for so long."""
        for door in self._doors:
            door.send(seconds)
        return sum(door.recv() for door in self._doors) / seconds


@contextmanager
def writers(folder: Path, processes: int, tables: int) -> Iterator[Writers]:
    """So many processes; the tables, new ones in an empty folder, are shared out among them."""
    context = multiprocessing.get_context("spawn")
    pipes = [context.Pipe() for _ in range(processes)]
    paths = [str(folder / f"bare_{number}.lance") for number in range(tables)]
    started = [
        context.Process(target=_write, args=(there, paths[place::processes]), daemon=True)
        for place, (_, there) in enumerate(pipes)
    ]
    for process in started:
        process.start()
    for _, there in pipes:
        # So that the end of a process is seen.
        there.close()
    doors = [here for here, _ in pipes]
    for door in doors:
        assert door.recv() == "ready"
    try:
        yield Writers(doors)
    finally:
        for process in started:
            process.kill()
            process.join()


def _write(parent: Connection, paths: Sequence[str]) -> None:
    """Insert for as many seconds as the parent says, again and again; tell it how many."""
    import lance

    datasets = [lance.write_dataset(rows([0]), path, enable_stable_row_ids=True) for path in paths]
    parent.send("ready")
    while True:
        seconds = parent.recv()
        opens_s = perf_counter() + WARM_UP_S
        closes_s = opens_s + seconds
        made = 0
        number = 0
        while (now_s := perf_counter()) < closes_s:
            place = number % len(datasets)
            datasets[place] = _insert(datasets[place], number)
            number += 1
            made += now_s >= opens_s
        parent.send(made)


def _insert(dataset: Any, number: int) -> Any:
    """Commit one row; the dataset at the version that has it, which is on the disk."""
    from lance import LanceDataset, LanceOperation
    from lance.fragment import write_fragments

    data = Path(dataset.uri, "data")
    fragments = write_fragments(rows([number]), dataset, mode="append")
    files = [data / file.path for item in fragments for file in item.data_files()]
    disk.sync([*files, data])
    append = LanceOperation.Append(fragments)
    after = LanceDataset.commit(dataset, append, read_version=dataset.version)
    disk.sync([manifest_path(after.uri, None, after.version), versions_folder(after.uri, None)])
    return after
