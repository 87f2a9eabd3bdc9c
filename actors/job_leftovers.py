"""Files that a job wrote into its view's folder and that no version of the view will ever name.

The owner of the view's table deletes them, which knows what is committed. Who may still need them
is known here: a job that runs the failed items of another goes on from its finished ones.
"""

import logging

from actors.job_book import JobBook
from actors.job_journal import JobEntry, Journal
from actors.job_ports import JobViews
from actors.job_store import JobStore
from actors.jobs_model import Job, JobState
from cluster.errors import PASSING, DestrierError
from udtf.refresh_model import RefreshMode
from udtf.view_files import data_files

logger = logging.getLogger(__name__)


class Leftovers:
    """Has the files of jobs deleted that are over."""

    def __init__(self, journal: Journal, store: JobStore, views: JobViews) -> None:
        self._journal = journal
        self._store = store
        self._views = views

    async def discard(self, entry: JobEntry, book: JobBook, *, again: bool = False) -> bool:
        """Delete what a job that is over left behind; False if that is to be tried again later.

        `book` has the other jobs. Once it is done it is not done again, unless `again`: a worker on
        another machine may have outlived its driver a little.
        """
        if not _may_have_left(entry.job) or (entry.stored.is_cleared and not again):
            return True
        job = entry.job
        try:
            kept = await self._needed_by_others(entry, book)
            count = await self._views.discard(job.submission, job.job_id, kept)
        except PASSING as error:
            logger.info("files of job %s are deleted later: %s", job.job_id, error)
            return False
        except DestrierError as error:
            # The view is gone, or damaged: nobody will find them there again.
            logger.info("files of job %s cannot be deleted: %s", job.job_id, error)
        else:
            if count:
                logger.info("%d files that job %s left behind are deleted", count, job.job_id)
        entry.clear()
        return True

    async def _needed_by_others(self, entry: JobEntry, book: JobBook) -> list[str]:
        """Data files that other jobs of the view may go on from, or have committed."""
        spent = set(book.spent())
        names: set[str] = set()
        for other in book.of_view(entry.job.database, entry.job.view_id):
            if other is entry or other.job.job_id in spent:
                continue
            items = await self._journal.ask(self._store.items, other.job.job_id)
            fragments = [text for item in items for text in item.fragments]
            if other.stored.publish is not None:
                fragments += other.stored.publish.fragments
            names |= {path.removeprefix("data/") for path in data_files(fragments)}
        return sorted(names)


def _may_have_left(job: Job) -> bool:
    """Whether a job may have written what it did not commit; its commit deletes the rest."""
    if job.state is not JobState.DONE:
        return job.state.is_over
    did_commit = job.result is not None and job.result.mode is not RefreshMode.NO_OP
    return not did_commit and (job.attempt > 1 or job.metric("items") > 0)
