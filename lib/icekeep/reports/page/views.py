"""What the page shows of a report, beside what the report says itself: sums, bands of scores, charts."""

from collections.abc import Iterable, Sequence

import msgspec

from icekeep.health.values import JobAdvice, RefHealth, TableHealth
from icekeep.reports.histories import GROWING_TABLES
from icekeep.reports.page.charts import Chart, growth_charts, runs_chart, sizes_chart
from icekeep.reports.values import MaintenanceRun, ReportResult, TableHistory

ROWS_SHOWN, FEW_ROWS_SHOWN = 20, 5
"""So many references, and so many runs, are shown of a table with plots, and of one without."""


class TableView(msgspec.Struct, frozen=True, kw_only=True):
    """A table on the page.

    Attributes:
        number: where its part is linked to.
        band: `sick`, `fair` or `healthy`.
        share: its bytes, of those of the largest table, 0 to 100.
        freed_bytes, replaced_bytes, cpu_ms, cost: of all jobs that have something to do; a job that cannot tell what it frees
            counts as none.
        refs: the references that alone keep the most.
        shown_runs: the newest.
    """

    number: int
    health: TableHealth
    history: TableHistory
    band: str
    share: float
    freed_bytes: int
    replaced_bytes: int
    cpu_ms: int
    cost: float | None
    is_detailed: bool
    refs: tuple[RefHealth, ...] = ()
    shown_runs: tuple[MaintenanceRun, ...] = ()
    sizes: Chart | None = None
    growth: tuple[Chart, ...] = ()
    runs: Chart | None = None


class JobTotal(msgspec.Struct, frozen=True, kw_only=True):
    """One job over all tables on which it has something to do.

    Attributes:
        share: how many these are, of those of the job with the most, 0 to 100.
    """

    job: str
    tables_count: int
    share: float
    files_count: int
    freed_bytes: int
    replaced_bytes: int
    read_bytes: int
    written_bytes: int
    requests_count: int
    cpu_ms: int
    cost: float | None


class CatalogTotals(msgspec.Struct, frozen=True, kw_only=True):
    """Sums over all tables that were read."""

    bytes: int
    data_files_count: int
    small_files_count: int
    record_count: int
    delete_files_count: int
    snapshots_count: int
    faults_count: int
    daily_bytes: int
    jobs_count: int
    to_do_tables_count: int
    cpu_ms: int
    freed_bytes: int
    replaced_bytes: int
    cost: float | None


def table_views(report: ReportResult, detailed_count: int) -> list[TableView]:
    """The tables in the report's order, of which the first have details."""
    histories = {one.table: one for one in report.histories}
    by_size = sorted(report.tables, key=lambda one: -one.data.data_files_bytes)
    growing = {one.table for one in by_size[:GROWING_TABLES]}
    most = by_size[0].data.data_files_bytes if by_size else 0
    views = []
    for number, health in enumerate(report.tables, 1):
        history = histories.get(health.table, TableHistory(table=health.table))
        to_do = health.to_do
        view = TableView(
            number=number,
            health=health,
            history=history,
            band=health.band,
            share=round(100 * health.data.data_files_bytes / most, 1) if most else 0.0,
            freed_bytes=sum(job.freed_bytes or 0 for job in to_do),
            replaced_bytes=sum(job.replaced_bytes for job in to_do),
            cpu_ms=sum(job.cpu_ms for job in to_do),
            cost=_cost(to_do, report.currency),
            is_detailed=number <= detailed_count,
        )
        views.append(_with_details(view, is_growing=health.table in growing) if view.is_detailed else view)
    return views


def job_totals(tables: Iterable[TableHealth], currency: str | None) -> list[JobTotal]:
    """What each job that has something to do somewhere would do in all, in the order in which jobs run."""
    to_do: dict[str, list[JobAdvice]] = {}
    for table in tables:
        for job in table.jobs:
            to_do.setdefault(job.job, []).extend([job] if job.has_work else [])
    most = max(map(len, to_do.values()), default=0)
    return [
        JobTotal(
            job=name,
            tables_count=len(jobs),
            share=round(100 * len(jobs) / most, 1),
            files_count=sum(job.files_count for job in jobs),
            freed_bytes=sum(job.freed_bytes or 0 for job in jobs),
            replaced_bytes=sum(job.replaced_bytes for job in jobs),
            read_bytes=sum(job.read_bytes for job in jobs),
            written_bytes=sum(job.written_bytes for job in jobs),
            requests_count=sum(job.requests_count for job in jobs),
            cpu_ms=sum(job.cpu_ms for job in jobs),
            cost=_cost(jobs, currency),
        )
        for name, jobs in to_do.items()
        if jobs
    ]


def catalog_totals(report: ReportResult) -> CatalogTotals:
    """Sums over all that was read."""
    tables = report.tables
    to_do = [job for table in tables for job in table.to_do]
    return CatalogTotals(
        bytes=sum(one.data.data_files_bytes for one in tables),
        data_files_count=sum(one.data.data_files_count for one in tables),
        small_files_count=sum(one.data.small_files_together_count for one in tables),
        record_count=sum(one.data.record_count for one in tables),
        delete_files_count=sum(one.deletes.files_count for one in tables),
        snapshots_count=sum(one.snapshots.snapshots_count for one in tables),
        faults_count=sum(one.faults_count for one in tables),
        daily_bytes=sum(one.growth.daily_bytes or 0 for one in tables if one.growth is not None),
        jobs_count=len(to_do),
        to_do_tables_count=sum(bool(table.to_do) for table in tables),
        cpu_ms=sum(job.cpu_ms for job in to_do),
        freed_bytes=sum(job.freed_bytes or 0 for job in to_do),
        replaced_bytes=sum(job.replaced_bytes for job in to_do),
        cost=_cost(to_do, report.currency),
    )


def _with_details(view: TableView, *, is_growing: bool) -> TableView:
    health, history = view.health, view.history
    rows = ROWS_SHOWN if is_growing else FEW_ROWS_SHOWN
    alone = sorted(health.refs, key=lambda ref: (-(ref.only_bytes or 0), ref.ref))
    return msgspec.structs.replace(
        view,
        refs=tuple(alone[:rows]),
        shown_runs=history.runs[:rows],
        sizes=sizes_chart([health.data]),
        growth=growth_charts(history.growth, history.runs) if is_growing else (),
        runs=runs_chart(history.runs[:rows]),
    )


def _cost(jobs: Sequence[JobAdvice], currency: str | None) -> float | None:
    """`None` without prices."""
    return None if currency is None else sum(job.cost or 0.0 for job in jobs)
