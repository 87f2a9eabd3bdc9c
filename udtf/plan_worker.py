"""A worker of a refresh, as Daft and tasks of Ray make it.

Processes of Daft's that only pass plans on load this module too, so it is light: what a plan holds
is pickled here once more, and Lance and the rest are imported where items are done.
"""

import contextlib
import json
import os
import pickle
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from udtf.host import ItemHost

STATUS = "status"
WORKER = "worker"
# No other item of a call is begun after so long: until it is over nobody hears of its items, and a
# worker that dies loses them all.
CALL_S = 10.0
_WATCH_S = 1.0


class PlanWorker:
    """Hosts for as many items at a time as the worker has child processes.

    Daft wants a default for every argument, and the first one to be called `self`.
    """

    def __init__(self, spec: bytes = b"", children: int = 1) -> None:
        from udtf.host import HostSpec, ItemHost

        # Made by the driver of this refresh, as everything is that a worker is sent.
        loaded: HostSpec = pickle.loads(spec)  # noqa: S301
        self._spec = loaded
        self._hosts = [ItemHost(loaded) for _ in range(children)]
        self._threads = ThreadPoolExecutor(children)
        self._name = f"{socket.gethostname()} {os.getpid()}"
        self._busy = threading.Event()
        self._parent = os.getppid()
        self._is_closed = False
        threading.Thread(target=self._watch, name="watch", daemon=True).start()

    def __call__(self, items: Any) -> list[str]:
        """Do the items of a column of Daft's."""
        return self.do(items.to_pylist())

    def do(self, todo: Sequence[bytes]) -> list[str]:
        """Do some items; a status for each, null if it was not begun: because the refresh was
        stopped, or because the others took so long that they are to be heard of first."""
        # Items that lie together are for one host, which reads them together.
        share = -(-len(todo) // len(self._hosts))
        shares = [todo[number * share :][:share] for number in range(len(self._hosts))]
        with self._working():
            return [
                answer
                for answers in self._threads.map(self._do, self._hosts, shares)
                for answer in answers
            ]

    def close(self) -> None:
        """End the processes of the code; nothing is done afterwards."""
        self._is_closed = True
        self._threads.shutdown()
        for host in self._hosts:
            host.close()

    def _do(self, host: "ItemHost", items: Sequence[bytes]) -> list[str]:
        answers = []
        statuses = host.run_each([pickle.loads(item) for item in items])  # noqa: S301
        begun_s = time.monotonic()
        for number in range(len(items)):
            status = None
            is_late = number > 0 and time.monotonic() - begun_s >= CALL_S
            if not is_late and not self._spec.folder.is_stopped():
                status = next(statuses).to_json()
            answers.append(json.dumps({WORKER: self._name, STATUS: status}))
        return answers

    @contextlib.contextmanager
    def _working(self) -> Iterator[None]:
        self._busy.set()
        try:
            yield
        finally:
            self._busy.clear()

    def _watch(self) -> None:
        """End this process with the one that started it, and items when the refresh is stopped."""
        while not self._is_closed:
            self._busy.wait(_WATCH_S)
            if os.getppid() != self._parent:
                os._exit(1)
            if self._busy.is_set() and self._spec.folder.is_stopped():
                for host in self._hosts:
                    host.stop()
                return
            threading.Event().wait(_WATCH_S)
