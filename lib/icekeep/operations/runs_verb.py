"""The command `runs`: what became of runs, the newest first."""

import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from icekeep.errors import NotFoundError
from icekeep.operations.catalogs import Catalogs, find_table
from icekeep.operations.config import CatalogSettings, Config
from icekeep.operations.recording import records_of
from icekeep.operations.runs_settings import RUNS
from icekeep.run_records.store import RunRecords
from icekeep.run_records.values import RunFilter, RunRecord
from icekeep.runtime import SYSTEM
from icekeep.spec.times import format_time

_LAST = 20
_SECONDS = len("2026-01-31T12:00:00")


class RunsFound(msgspec.Struct, frozen=True, kw_only=True):
    """Runs, the newest first.

    Attributes:
        records: where it was looked.
        runs: with the `result` only where one run was asked for. The status of a run that has died is `unfinished`.
    """

    status: str = "done"
    records: tuple[str, ...]
    runs: tuple[RunRecord, ...]


def runs(  # noqa: PLR0913 - the settings of the command
    config: Config,
    catalogs: Catalogs,
    opens: Callable[[CatalogSettings], Any],
    catalog: str | None,
    *,
    table: str | None = None,
    job: str | None = None,
    status: str | None = None,
    last: int = _LAST,
    run: str | None = None,
) -> RunsFound:
    """Look runs up where they are written down.

    Args:
        catalog: the one whose runs are looked up; `None` for all that are configured.
        last: at most so many.
        run: the id of one run, or its beginning.

    Raises:
        NotFoundError: no record of runs is kept, or there is no such run or catalog.
        UsageError, UnavailableError: the database refuses, or is out of reach.
    """
    reference = None if table is None else find_table(catalogs, table, catalog)
    if reference is not None:
        chosen = [reference.catalog]
    else:
        chosen = [*catalogs.all().values()] if catalog is None else [catalogs.get(catalog)]
    places = {records.address: records for records in _places(config, chosen)}
    if not places:
        raise NotFoundError(
            f"no record of runs is kept: {_why(config)}; give `{RUNS}: {{uri: sqlite:///PATH}}` or one of PostgreSQL in the "
            "configuration"
        )
    wanted = RunFilter(
        tables=None if reference is None else [reference.full_name], job=job, status=status, run_id=run, limit=last
    )
    now_ms = SYSTEM.now_ms()
    found = [one for records in places.values() for one in records.select(wanted, now_ms)]
    if run is not None and not found:
        raise NotFoundError(f"there is no run {run!r} in {', '.join(places)}", run=run)
    found.sort(key=lambda one: -one.started_ms)
    return RunsFound(
        records=tuple(places), runs=tuple(_shown(one, now_ms, is_whole=run is not None) for one in found[:last])
    )


def runs_shown(result: RunsFound) -> Mapping[str, Any]:
    """What is printed for people: a line a run, or all of one."""
    if len(result.runs) == 1 and result.runs[0].result is not None:
        return {name: value for name, value in msgspec.structs.asdict(result.runs[0]).items() if value is not None}
    return {"records": ", ".join(result.records), "runs": [_line(one) for one in result.runs]}


def _places(config: Config, catalogs: list[CatalogSettings]) -> Iterator[RunRecords]:
    for catalog in catalogs:
        records = records_of(config.runs, catalog, os.environ, is_read=True)
        if records is not None:
            yield records


def _why(config: Config) -> str:
    if not config.runs.is_enabled:
        return f"the configuration has `{RUNS}.enabled: false`"
    return "no catalog has its warehouse in a directory of this machine that can be written to"


def _shown(record: RunRecord, now_ms: int, *, is_whole: bool) -> RunRecord:
    shown = msgspec.structs.replace(record, status=record.status_at(now_ms))
    return shown if is_whole else msgspec.structs.replace(shown, result=None)


def _line(record: RunRecord) -> dict[str, Any]:
    took = None if record.ended_ms is None else f"{(record.ended_ms - record.started_ms) / 1000:,.1f} s"
    return {
        "started_at": format_time(record.started_ms)[:_SECONDS].replace("T", " "),
        "took": took,
        "job": record.job,
        "table": record.table,
        "status": record.status,
        "exit_status": record.exit_status,
        "policy": record.policy,
        "run_id": record.run_id,
        "error": record.error_message,
    }
