"""The functions `maintain` and `plan_maintain`: the command `maintain`, in the process and the session of a caller in Python."""

from collections.abc import Sequence
from functools import partial

from icekeep.errors import UsageError, argument
from icekeep.events import SILENT, Listener, unfailing
from icekeep.fleet.job import DEFAULT_WORKERS
from icekeep.fleet.values import MaintainResult
from icekeep.operations.arguments import Command
from icekeep.operations.commands.maintain import Wishes
from icekeep.operations.interrupts import passing_on
from icekeep.operations.jobs import SEAMS
from icekeep.operations.running_verbs import run_verb
from icekeep.operations.surroundings import Surroundings
from icekeep.operations.verbs import VERBS
from icekeep.planning.spark.session import SparkSource, check_source, started
from icekeep.runtime import SYSTEM

__all__ = ["maintain", "plan_maintain"]

_VERB = "maintain"


def maintain(  # noqa: PLR0913 - the settings of the command
    catalog: str | None = None,
    spark: SparkSource = None,
    *,
    conf: str | None = None,
    policy: str | None = None,
    match: str | None = None,
    tables: Sequence[str] = (),
    workers: int = DEFAULT_WORKERS,
    max_minutes: int | None = None,
    max_bytes: int | None = None,
    listener: Listener = SILENT,
) -> MaintainResult:
    """Run the jobs that the policies of the configuration want on all their tables, the most beneficial for their cost first.

    It is the command `icekeep maintain` in this process: jobs run in threads, and each is written down as a run of its own
    (`list_runs`). What goes wrong on a table is in the result, and ends nothing else.

    Ctrl-C and SIGTERM, where this is called in the main thread, wait until the jobs under way have cleaned up, and are then
    passed on to the program. What was done until then is in the record of runs.

    Args:
        catalog: only tables of this catalog, as the configuration calls it; by default of each that a policy may reach.
        spark: a session, or a function that starts one; by default the session that runs, or a new one, where a job needs it.
        conf: the YAML file with catalogs and policies, as `load_catalog` takes it. What it says of logs and metrics is for
            commands alone.
        policy: only jobs of which this policy decides; by default those of all that have a schedule.
        match: only tables of a pattern: `*` within a part of the name, `**` over parts, as `"db.*"` or `"CATALOG.db.*"`.
        tables: only these, each `NS.NAME` or `CATALOG.NS.NAME`.
        workers: how many tables are worked on at a time.
        max_minutes: no job is begun that this time would not hold; what runs goes on to its end.
        max_bytes: no job is begun that would read and write more, all together.
        listener: hears what happens, in `InRun` of the job's run, from several threads.

    Raises:
        NotFoundError: there is no configuration, or no such policy, catalog or file.
        UsageError: there are no policies, a policy has an option that its job does not have, a pattern or a name cannot
            be a table's, or a number is less than 1.
        ConfigError: the configuration is wrong.
        UnavailableError: the only catalog is out of reach.
    """
    wishes = Wishes(policy, match, tables, workers, max_minutes, max_bytes)
    return _called(catalog, spark, conf, wishes, listener, is_dry_run=False)


def plan_maintain(  # noqa: PLR0913 - the settings of the command
    catalog: str | None = None,
    spark: SparkSource = None,
    *,
    conf: str | None = None,
    policy: str | None = None,
    match: str | None = None,
    tables: Sequence[str] = (),
    workers: int = DEFAULT_WORKERS,
    max_minutes: int | None = None,
    max_bytes: int | None = None,
    listener: Listener = SILENT,
) -> MaintainResult:
    """Show what `maintain` would do, in its order, and what it would skip and why; nothing is changed or written down.

    A job that is due has the status `due`. Arguments and errors are those of `maintain`; the plan does not go by the budget.
    """
    wishes = Wishes(policy, match, tables, workers, max_minutes, max_bytes)
    return _called(catalog, spark, conf, wishes, listener, is_dry_run=True)


def _called(
    catalog: str | None,
    spark: SparkSource,
    conf: str | None,
    wishes: Wishes,
    listener: Listener,
    *,
    is_dry_run: bool,
) -> MaintainResult:
    check_source(spark)
    given = {name: one for name, one in wishes._asdict().items() if one != Wishes._field_defaults[name]}
    if isinstance(wishes.tables, str):
        raise UsageError(f"{argument('tables')} is the text {wishes.tables!r}; give a list of names")
    low = next((name for name, one in given.items() if isinstance(one, int) and one < 1), None)
    if low is not None:
        raise UsageError(f"{argument(low)} is {given[low]}; give 1 or more")
    command = Command(
        name=_VERB,
        conf=conf,
        output="json",
        result_file=None,
        verbose=False,
        catalog=catalog,
        dry_run=is_dry_run,
        arguments=given,
    )
    with passing_on() as taken:
        surroundings = Surroundings(
            seams=SEAMS,
            listener=unfailing(listener),
            interrupts=taken,
            runtime=SYSTEM,
            spark=partial(started, spark),
        )
        result: MaintainResult = run_verb(command, VERBS[_VERB], surroundings).result
    return result
