"""The owner of jobs put together: its tables, its views, its drivers."""

from actors.driver_process import DriverProcesses
from actors.job_journal import Journal
from actors.job_ports import Capacity
from actors.job_run import RunnerAddress, Surroundings
from actors.job_store import JobStore, jobs_storage
from actors.job_views import OwnedViews
from actors.jobs import Jobs
from actors.owners import Owners
from actors.reads import Reads
from cluster.clock import Clock
from cluster.settings import Settings
from udtf.refresh_model import Runner


def local_jobs(settings: Settings, owners: Owners, clock: Clock) -> Jobs:
    """Jobs whose drivers use this machine alone, without Ray."""
    return make_jobs(settings, owners, clock, RunnerAddress(Runner.NATIVE), None)


def make_jobs(
    settings: Settings,
    owners: Owners,
    clock: Clock,
    address: RunnerAddress,
    capacity: Capacity | None,
) -> Jobs:
    """Jobs of a deployment; made on the event loop that they run on."""
    store = JobStore(jobs_storage(settings))
    journal = Journal(store, clock, settings.jobs)
    views = OwnedViews(settings, owners, Reads(settings, clock))
    drivers = DriverProcesses(settings)
    around = Surroundings(settings, journal, views, drivers, capacity, address)
    return Jobs(store, journal, around, views)
