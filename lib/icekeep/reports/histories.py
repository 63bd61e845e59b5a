"""How tables came to be what they are: the growth of the largest, and the runs of maintenance of each, with before and after.

Snapshots show runs that committed, whoever made them; the record of runs also those that committed nothing, that
failed, and those whose snapshots have expired. A run that both show is one. Several tables are looked at at a time.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from msgspec.structs import replace

from icekeep.catalog.base import Catalog, Table, parse_identifier
from icekeep.commit.summary import POLICY_KEY, made_by, run_of
from icekeep.errors import IcekeepError, first_line, one_line
from icekeep.events import SILENT, Listener, StepAdvanced, StepFinished, StepStarted
from icekeep.health.values import TableHealth, job_of, number_of
from icekeep.maintenance.history import TableTotals, growth_points
from icekeep.names import without_catalog
from icekeep.reports.values import MaintenanceRun, ReportResult, TableHistory
from icekeep.run_records.values import RunRecord
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.snapshots import Snapshot
from icekeep.spelling import counted

T = TypeVar("T")
R = TypeVar("R")


def in_threads(look: Callable[[T], R], chosen: Iterable[T], at_once: int) -> list[R]:
    """What `look` says of each, in their order; after an error or an interrupt no more of them is begun."""
    pool = ThreadPoolExecutor(at_once)
    try:
        return [*pool.map(look, chosen)]
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


GROWING_TABLES = 50
"""Of so many tables, the largest, manifest lists are read for their growth."""

GROWTH_POINTS, LEAST_GROWTH_POINTS = 200, 8
LISTED_MANIFESTS = 200_000
"""A plot has fewer points where the lists of so many would name more manifests than these in all: each takes time to decode."""

RUNS_A_TABLE = 20
TABLES_AT_ONCE = 4

_STEP = "reading histories"


def with_histories(
    catalog: Catalog,
    report: ReportResult,
    records: Iterable[RunRecord] = (),
    listener: Listener = SILENT,
    *,
    among: Sequence[TableHealth] | None = None,
) -> ReportResult:
    """A report on tables of a catalog with the history of each.

    Args:
        records: of runs, on whatever tables.
        among: of these tables the largest have their growth read; by default those of the report.
    """
    began_ms = catalog.runtime.monotonic_ms()
    histories = histories_of(catalog, report.tables, records, listener, among=among)
    elapsed_ms = report.elapsed_ms + catalog.runtime.monotonic_ms() - began_ms
    return replace(report, histories=histories, elapsed_ms=elapsed_ms)


def histories_of(
    catalog: Catalog,
    tables: Sequence[TableHealth],
    records: Iterable[RunRecord] = (),
    listener: Listener = SILENT,
    *,
    among: Sequence[TableHealth] | None = None,
) -> tuple[TableHistory, ...]:
    """The history of each table of a catalog, in their order; one that cannot be read is told with the reason.

    Args:
        tables: as a report has them.
        records: of runs, on whatever tables.
        among: of these tables the largest have their growth read; by default `tables`.
    """
    by_table: dict[str, list[RunRecord]] = {}
    now_ms = catalog.runtime.now_ms()
    for record in records:
        by_table.setdefault(record.table, []).append(replace(record, status=record.status_at(now_ms)))
    largest = sorted(tables if among is None else among, key=lambda one: -one.data.data_files_bytes)[:GROWING_TABLES]
    growing = {one.table: _points(one) for one in largest}
    listener.on(StepStarted(_STEP, len(tables), "tables"))
    read = partial(_read, catalog, growing, by_table, listener)
    found = in_threads(read, (one.table for one in tables), TABLES_AT_ONCE)
    listener.on(StepFinished(_STEP, counted(len(tables), "tables")))
    return tuple(found)


def _read(
    catalog: Catalog,
    growing: Mapping[str, int],
    by_table: Mapping[str, Sequence[RunRecord]],
    listener: Listener,
    name: str,
) -> TableHistory:
    records = by_table.get(name, ())
    try:
        table = catalog.load(parse_identifier(without_catalog(name)))
        return table_history(table, records, points=growing.get(name, 0))
    except IcekeepError as error:
        return TableHistory(table=name, runs=tuple(map(_recorded, records)), not_read=first_line(error))
    except Exception as error:  # noqa: BLE001 - a report is worth having without the history of one table
        return TableHistory(table=name, not_read=f"unexpected error: {one_line(error)}")
    finally:
        listener.on(StepAdvanced(_STEP))


def _points(table: TableHealth) -> int:
    return max(LEAST_GROWTH_POINTS, min(GROWTH_POINTS, LISTED_MANIFESTS // max(1, table.metadata.manifests_count)))


def table_history(table: Table, records: Sequence[RunRecord] = (), *, points: int = GROWTH_POINTS) -> TableHistory:
    """The history of one table.

    Args:
        records: of its runs.
        points: of how many commits manifest lists are read for its growth; 0 for none.
    """
    metadata = table.metadata
    runs = maintenance_runs(metadata, records)
    shown = runs[:RUNS_A_TABLE]
    marked = {run.snapshot_id for run in shown if run.snapshot_id is not None}
    growth = growth_points(table, most=points, also=marked) if points else ()
    return TableHistory(
        table=table.full_name,
        growth=growth,
        commits_count=sum(1 for _ in metadata.ancestors(metadata.current_snapshot_id)) if growth else 0,
        runs=shown,
        left_out_runs_count=max(0, len(runs) - RUNS_A_TABLE),
    )


def maintenance_runs(metadata: TableMetadata, records: Sequence[RunRecord] = ()) -> tuple[MaintenanceRun, ...]:
    """The runs that left snapshots, or a record, the newest first."""
    commits: dict[str, list[Snapshot]] = {}
    for snapshot in sorted(metadata.snapshots, key=lambda s: (s.sequence_number, s.timestamp_ms)):
        if job_of(snapshot) is not None:
            run_id = run_of(snapshot.summary) or f"snapshot {snapshot.snapshot_id}"
            commits.setdefault(run_id, []).append(snapshot)
    told = [_merged(record, commits.pop(record.run_id, []), metadata) for record in records]
    told += [_committed(made, metadata) for made in commits.values()]
    return tuple(sorted(told, key=lambda run: (-run.timestamp_ms, run.job, run.run_id or "")))


def _committed(made: Sequence[Snapshot], metadata: TableMetadata) -> MaintenanceRun:
    """A run as its snapshots tell it, the oldest first."""
    first, last = made[0], made[-1]
    before = None if first.parent_snapshot_id is None else metadata.snapshots_by_id.get(first.parent_snapshot_id)
    return MaintenanceRun(
        job=job_of(last) or "",
        run_id=run_of(last.summary) or None,
        made_by=made_by(last.summary),
        policy=(last.summary or {}).get(POLICY_KEY),
        timestamp_ms=last.timestamp_ms,
        snapshots_count=len(made),
        snapshot_id=last.snapshot_id,
        before=_totals(before),
        after=_totals(last),
    )


def _merged(record: RunRecord, made: Sequence[Snapshot], metadata: TableMetadata) -> MaintenanceRun:
    run = _recorded(record)
    known = metadata.snapshots_by_id
    before, after = (known.get(-1 if i is None else i) for i in (record.snapshot_id_before, record.snapshot_id_after))
    if not made:
        return replace(run, before=_totals(before), after=_totals(after))
    # What others committed while it ran is none of its doing.
    of_commits = _committed(made, metadata)
    return replace(
        run,
        made_by=of_commits.made_by,
        snapshots_count=of_commits.snapshots_count,
        snapshot_id=of_commits.snapshot_id,
        before=of_commits.before or _totals(before),
        after=of_commits.after,
    )


def _recorded(record: RunRecord) -> MaintenanceRun:
    """A run as its record tells it."""
    result = record.result if isinstance(record.result, Mapping) else {}
    figures = {
        str(name): value
        for name, value in result.items()
        if isinstance(value, int) and not isinstance(value, bool) and value and str(name).endswith(("_count", "_bytes"))
    }
    ended_ms = record.seen_ms if record.ended_ms is None else record.ended_ms
    return MaintenanceRun(
        job=record.job,
        run_id=record.run_id,
        policy=record.policy,
        status=record.status,
        timestamp_ms=ended_ms,
        elapsed_ms=max(0, ended_ms - record.started_ms),
        error=record.error_message,
        figures=figures,
    )


def _totals(snapshot: Snapshot | None) -> TableTotals | None:
    if snapshot is None:
        return None
    summary = snapshot.summary
    return TableTotals(
        data_files_count=number_of(summary, "total-data-files"),
        record_count=number_of(summary, "total-records"),
        delete_files_count=number_of(summary, "total-delete-files"),
        position_deletes_count=number_of(summary, "total-position-deletes"),
        equality_deletes_count=number_of(summary, "total-equality-deletes"),
        bytes=number_of(summary, "total-files-size"),
    )
