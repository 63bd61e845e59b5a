"""One job of a process that runs jobs on many tables: each is a run of its own, whatever became of the others."""

from collections.abc import Callable
from typing import NamedTuple, NoReturn

import msgspec

from icekeep.catalog.base import Table
from icekeep.errors import IcekeepError
from icekeep.fleet.values import JobOutcome
from icekeep.maintenance.delete.neighbours import SharedLooks, sharing
from icekeep.operations.arguments import Command, flags_by_argument
from icekeep.operations.configuration.catalogs import Catalogs, TableReference
from icekeep.operations.failures import our_error
from icekeep.operations.interrupts import Interrupted
from icekeep.operations.job_run import JobRun
from icekeep.operations.outcomes import Begun, how_it_ended
from icekeep.operations.shown.commands import completed
from icekeep.operations.surroundings import JobSurroundings, StartsSpark, Surroundings
from icekeep.runs import INTERRUPTED, Run
from icekeep.settings import Job


class TableJob(NamedTuple):
    """A job on a table, by its full name.

    Attributes:
        conf: the configuration as it was given.
        load: gives the table, or raises why it cannot be loaded.
        run: which run it is; `None`: one that begins with the job.
    """

    job: Job
    table: str
    conf: str | None
    load: Callable[[TableReference], Table]
    run: Run | None = None


class OneOfMany:
    """Runs jobs that share catalogs, a session and looks at their neighbours; several threads may call it."""

    def __init__(self, catalogs: Catalogs, session: StartsSpark) -> None:
        self._catalogs, self._session, self._looks = catalogs, session, SharedLooks()

    def __call__(self, call: TableJob, command: Callable[[], Command], surroundings: Surroundings) -> JobOutcome:
        """Run a job to its end, and return how it ended: an error and an interrupt too are no errors here.

        Args:
            command: makes the job's command; its errors are the job's.
            surroundings: of the process.
        """
        begun = Begun()
        shared = JobSurroundings(catalogs=self._catalogs, load=call.load, session=self._session)
        try:
            told = msgspec.structs.replace(command(), conf=call.conf)
            with sharing(self._looks):
                within = msgspec.structs.replace(surroundings, begun=begun, shared=shared)
                outcome = JobRun(told, call.job, within, call.run).outcome()
        except (Exception, Interrupted, KeyboardInterrupt) as error:  # noqa: BLE001 - each end of a job has its status
            ended = how_it_ended(error, surroundings.interrupts.signal, begun, is_part=True)
            message, ours = ended.error.message, our_error(error)
            if ours is not None and ended.status != INTERRUPTED:
                message = begun.named(ours.worded(flags_by_argument(call.job.name)))
            return JobOutcome(
                status=ended.status,
                exit_status=ended.exit_status,
                # A run that failed before it began is written down nowhere.
                run_id=begun.run.run_id if begun.run is not None and begun.told else None,
                error_kind=ended.error.kind,
                error_message=completed(message, call.table, call.conf),
            )
        return JobOutcome(
            status=outcome.status, exit_status=outcome.exit_status, run_id=outcome.run_id, result=outcome.result
        )


def failing_with(error: IcekeepError) -> Callable[[TableReference], Table]:
    """What loads a table that cannot be loaded."""

    def load(reference: TableReference) -> NoReturn:
        raise error

    return load
