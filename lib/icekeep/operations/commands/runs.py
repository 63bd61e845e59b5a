"""The command `runs` and its function `list_runs`: what became of runs, the newest first."""

import os
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from icekeep.errors import NotFoundError, UnavailableError, UsageError, argument, shortened, shown_command
from icekeep.operations.command_specs import COMMANDS, CommandScope
from icekeep.operations.configuration.catalogs import Catalogs, find_table
from icekeep.operations.configuration.file import RUNS, CatalogSettings, Configuration
from icekeep.operations.jobs import JOBS
from icekeep.operations.loading import configured_catalogs, open_settings
from icekeep.operations.misspelt import LISTED, validate_choice
from icekeep.operations.recording import records_of
from icekeep.run_records.values import RunFilter, RunRecord
from icekeep.runs import STATUSES
from icekeep.runtime import SYSTEM
from icekeep.spec.times import Moment, format_moment, moment_ms

__all__ = ["list_runs", "runs", "runs_shown"]

_LAST = 20
_ERROR_LENGTH = 80
_ID_LENGTH = 8
"""Of the UUID in a run's id so much tells it from others, and `--run` takes it."""


class RunsFound(msgspec.Struct, frozen=True, kw_only=True):
    """Runs, the newest first.

    Attributes:
        records: where it was looked.
        asked_run_id: of the one run that was asked for, or its beginning.
        runs: with the `result` only where one run was asked for. The status of a run that has died is `unfinished`.
        notes: what else is to be said, such as that a place has no record yet.
    """

    status: str = "done"
    records: tuple[str, ...]
    asked_run_id: str | None = None
    runs: tuple[RunRecord, ...]
    notes: tuple[str, ...] = ()


def list_runs(  # noqa: PLR0913 - the settings of the command
    catalog: str | None = None,
    *,
    conf: str | None = None,
    table: str | None = None,
    job: str | None = None,
    status: str | None = None,
    since: Moment | None = None,
    last: int | None = _LAST,
    run: str | None = None,
) -> tuple[RunRecord, ...]:
    """What became of runs of jobs, and of commands that change tables, the newest first; what `icekeep runs` shows.

    Runs of the command line, of Airflow and of `maintain` are written down; a job that Python calls by itself is not.

    Args:
        catalog: the catalog whose runs are listed, as the configuration calls it; by default all that are configured.
        conf: the YAML file, as `load_catalog` takes it; it says where runs are written down.
        table: runs on one table, `NS.NAME` or `CATALOG.NS.NAME`.
        job: runs of a job or command, such as `"compact"`.
        status: runs of a status, such as `"failed"`; those that were killed are `"unfinished"`.
        since: runs that began then or later.
        last: at most this many; `None`: all.
        run: the id of one run, or its beginning. Only then do the values have the `result` of the job.

    Raises:
        NotFoundError: no record of runs is kept, or there is no such run, catalog or configuration file.
        UsageError: there is no such job or status, or `last` is less than 1.
        ConfigError: the configuration is wrong.
        UnavailableError: the database of runs is out of reach.
    """
    if last is not None and last < 1:
        raise UsageError(f"{argument('last')} is {last}; give 1 or more, or None for all")
    catalogs = configured_catalogs(conf)
    wanted: dict[str, Any] = {"table": table, "job": job, "status": status, "since": since, "last": last, "run": run}
    return runs(catalogs.config, catalogs, open_settings, catalog, **wanted).runs


def runs(  # noqa: PLR0913 - the settings of the command
    config: Configuration,
    catalogs: Catalogs,
    opens: Callable[[CatalogSettings], Any],
    catalog: str | None,
    *,
    table: str | None = None,
    job: str | None = None,
    status: str | None = None,
    since: Moment | None = None,
    last: int | None = _LAST,
    run: str | None = None,
) -> RunsFound:
    if job is not None:
        # What `apply` does is a run of the job whose plan it is.
        changing = [
            name for name, verb in COMMANDS.items() if verb.changes_tables and verb.scope is not CommandScope.PLAN
        ]
        validate_choice(job, [*JOBS, *changing], "job or command whose runs are written down", LISTED)
    if status is not None:
        validate_choice(status, STATUSES, "status", f"there is {', '.join(STATUSES)}")
    reference = None if table is None else find_table(catalogs, table, catalog)
    chosen = catalogs.chosen(catalog) if reference is None else (reference.catalog,)
    kept = (records_of(config.runs, one, os.environ, is_read=True) for one in chosen)
    places = {records.address: records for records in kept if records is not None}
    if not places:
        why = "no catalog has its warehouse in a directory of this machine that can be written to"
        if not config.runs.is_enabled:
            why = f"the configuration has `{RUNS}.enabled: false`"
        raise NotFoundError(
            f"no record of runs is kept: {why}; give `{RUNS}: {{uri: sqlite:///PATH}}` or one of PostgreSQL in the "
            "configuration"
        )
    now_ms = SYSTEM.now_ms()
    wanted = RunFilter(
        tables=None if reference is None else [reference.full_name],
        job=job,
        status=status,
        run_id=run,
        since_ms=None if since is None else moment_ms(since, now_ms),
        limit=last,
        has_results=run is not None,
    )
    try:
        notes = [f"nothing is written down in {place!r} yet" for place, one in places.items() if not one.is_begun()]
        found = [one for records in places.values() for one in records.select(wanted, now_ms)]
    except UnavailableError as error:
        named = "" if config.runs.uri is None else f"; `{RUNS}.uri` in {config.path} names it"
        raise UnavailableError(f"{error.message}{named}", **error.facts) from error
    if run is not None and not found:
        raise NotFoundError(
            f"there is no run {run!r} in {', '.join(places)}; `{shown_command('runs')}` lists them", run=run
        )
    found.sort(key=lambda one: -one.started_ms)
    return RunsFound(
        records=tuple(places),
        asked_run_id=run,
        runs=tuple(msgspec.structs.replace(one, status=one.status_at(now_ms)) for one in found[:last]),
        notes=tuple(notes),
    )


def runs_shown(result: RunsFound) -> Mapping[str, Any]:
    """What is printed for people: a line a run, or all of one."""
    if len(result.runs) == 1 and result.asked_run_id is not None:
        return {name: value for name, value in msgspec.structs.asdict(result.runs[0]).items() if value is not None}
    shown = {"records": ", ".join(result.records), "runs": [run_row(one) for one in result.runs]}
    return {**shown, "notes": [*result.notes]} if result.notes else shown


def run_row(record: RunRecord) -> dict[str, Any]:
    job, dash, rest = record.run_id.partition("-")
    took = None if record.ended_ms is None else f"{(record.ended_ms - record.started_ms) / 1000:,.1f} s"
    return {
        "started_at": format_moment(record.started_ms),
        "took": took,
        "job": record.job,
        "table": record.table,
        "status": record.status,
        "exit_status": record.exit_status,
        "policy": record.policy,
        "run": f"{job}{dash}{rest[:_ID_LENGTH]}",
        "error": record.error_message and shortened(record.error_message, _ERROR_LENGTH),
    }
