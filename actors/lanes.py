"""A thread that does one thing at a time, with a deadline.

Lance cannot be interrupted: work past its deadline keeps the thread, so a lane that once hung is of
no more use, and its process must be replaced.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from cluster.errors import DestrierError, InternalError

T = TypeVar("T")


class Lane:
    """One thread; `late` makes the error of work that passes `deadline_s`."""

    def __init__(
        self, name: str, deadline_s: float, late: Callable[[float], DestrierError]
    ) -> None:
        self.hangs = False
        self._deadline_s = deadline_s
        self._late = late
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=name)

    async def run(self, work: Callable[..., T], *arguments: Any) -> T:
        """Do blocking work after what came before it.

        Raises:
            InternalError: the work failed in a way that is none of ours, a panic included.
            DestrierError: the work's own, or `late`'s.
        """
        call = asyncio.get_running_loop().run_in_executor(
            self._thread, partial(_guarded, work, *arguments)
        )
        try:
            # Not wait_for: 3.11 forgets that it was cancelled if the work ends at that moment.
            async with asyncio.timeout(self._deadline_s):
                return await asyncio.shield(call)
        except TimeoutError:
            self.hangs = True
            raise self._late(self._deadline_s) from None


def _guarded(work: Callable[..., T], *arguments: Any) -> T:
    try:
        return work(*arguments)
    except DestrierError:
        raise
    except BaseException as error:
        raise InternalError("the owner's worker failed") from error
