"""A report as metrics in Prometheus' text format, for node_exporter's textfile collector or a scrape."""

from collections.abc import Callable, Iterator, Mapping

from icekeep.health.values import JobAdvice, OwnFiles, TableHealth
from icekeep.reports.values import ReportResult
from icekeep.telemetry.figures import OF_TABLE, Figure, Metric, table_labels
from icekeep.telemetry.prometheus import exposition

_OF_JOB = (*OF_TABLE, "job")

TABLES = Metric("icekeep_tables", "Tables of the report", ())
MADE = Metric("icekeep_report_timestamp_seconds", "When the report was made", ())
NOT_READ = Metric("icekeep_table_not_read", "1 where it could not be read", (*OF_TABLE, "kind"))
LAST_MAINTENANCE = Metric(
    "icekeep_table_last_maintenance_timestamp_seconds",
    "When a snapshot of the job was last made, by any engine",
    _OF_JOB,
)


def _of_table(name: str, text: str) -> Metric:
    return Metric(f"icekeep_table_{name}", text, OF_TABLE)


def _of_job(name: str, text: str) -> Metric:
    return Metric(f"icekeep_job_{name}", text, _OF_JOB)


_OF_TABLES: Mapping[Metric, Callable[[TableHealth], float | None]] = {
    _of_table("score", "Health of the table, 0 to 100 (healthy)"): lambda one: one.score,
    _of_table("snapshots", "Snapshots"): lambda one: one.snapshots.snapshots_count,
    _of_table("expirable_snapshots", "Snapshots that expiration would let go"): lambda one: (
        one.snapshots.expirable_count
    ),
    _of_table("metadata_bytes", "Bytes of the metadata file"): lambda one: one.metadata.metadata_bytes,
    _of_table("manifests", "Manifests of the current snapshot"): lambda one: one.metadata.manifests_count,
    _of_table("manifests_bytes", "Their bytes"): lambda one: one.metadata.manifests_bytes,
    _of_table("manifests_overlap", "Manifests that a filter on one partition opens"): lambda one: (
        one.metadata.mean_overlap
    ),
    _of_table("data_files", "Live data files"): lambda one: one.data.data_files_count,
    _of_table("data_bytes", "Bytes of live data files"): lambda one: one.data.data_files_bytes,
    _of_table("records", "Rows of live data files"): lambda one: one.data.record_count,
    _of_table("small_files", "Data files that are too small"): lambda one: one.data.small_files_count,
    _of_table("delete_files", "Live delete files and vectors"): lambda one: one.deletes.files_count,
    _of_table("deleted_ratio", "Deleted rows of all rows"): lambda one: one.deletes.deleted_ratio,
    _of_table("delete_scan_bytes", "Bytes of deletes that a full scan reads"): lambda one: one.deletes.scan_read_bytes,
    _of_table("dangling_delete_files", "Delete files that reach nothing"): lambda one: one.deletes.dangling_count,
    _of_table("partitions", "Partitions"): lambda one: one.partitions.partitions_count,
    _of_table("partition_skew", "The largest partition divided by the median"): lambda one: one.partitions.skew,
    _of_table("faults", "Faults in metadata and manifest lists"): lambda one: one.faults_count,
}
_OF_OWN_FILES: Mapping[Metric, Callable[[OwnFiles], float | None]] = {
    _of_table("waiting_deletion_plans", "Plans of deletion that are not carried out yet"): lambda own: (
        own.waiting_plans_count
    ),
    _of_table("waiting_bytes", "Bytes that they are to delete"): lambda own: own.waiting_bytes,
    _of_table("waiting_since_timestamp_seconds", "When the oldest of them was made"): lambda own: _seconds(
        own.waiting_created_ms
    ),
    _of_table("trash_files", "Files in the trash"): lambda own: own.trash_files_count,
    _of_table("trash_bytes", "Bytes in the trash"): lambda own: own.trash_bytes,
    _of_table("trash_until_timestamp_seconds", "When the first of them may be deleted for good"): lambda own: _seconds(
        own.trash_until_ms
    ),
}
_OF_JOBS: Mapping[Metric, Callable[[JobAdvice], float | None]] = {
    _of_job("has_work", "Whether the job has something to do"): lambda job: job.has_work,
    _of_job("files", "Files that it would rewrite or delete"): lambda job: job.files_count,
    _of_job("freed_bytes", "Bytes of files that it would delete"): lambda job: job.freed_bytes,
    _of_job("replaced_bytes", "Bytes of files that it would replace; expiration frees them"): lambda job: (
        job.replaced_bytes
    ),
    _of_job("read_bytes", "Bytes that it would read"): lambda job: job.read_bytes,
    _of_job("written_bytes", "Bytes that it would write"): lambda job: job.written_bytes,
    _of_job("cpu_seconds", "Seconds of a core that it would take"): lambda job: job.cpu_ms / 1000,
    _of_job("cost", "What it would cost, in the currency of the prices"): lambda job: job.cost,
}

REPORT_METRICS: tuple[Metric, ...] = (MADE, TABLES, NOT_READ, *_OF_TABLES, *_OF_OWN_FILES, LAST_MAINTENANCE, *_OF_JOBS)
"""In the order in which documents list them."""


def prometheus_text(report: ReportResult) -> str:
    """The metrics; what was not measured is left out.

    Raises:
        UsageError: the package `prometheus-client` is not installed.
    """
    return exposition(report_figures(report))


def report_figures(report: ReportResult) -> Iterator[Figure]:
    """The values of all metrics, those of one metric after another."""
    tables = [(table_labels(table.table), table) for table in report.tables]
    if report.timestamp_ms:
        yield Figure(MADE, (), report.timestamp_ms / 1000)
    yield Figure(TABLES, (), report.tables_count)
    for one in report.not_read:
        yield Figure(NOT_READ, (*table_labels(one.name), one.kind), 1)
    for metric, value_of in _OF_TABLES.items():
        for labels, table in tables:
            yield from _known(metric, labels, value_of(table))
    yield from _own_files(report)
    for labels, table in tables:
        for seen in table.last_maintenance:
            yield Figure(LAST_MAINTENANCE, (*labels, seen.job), seen.timestamp_ms / 1000)
    for metric, of_job in _OF_JOBS.items():
        for labels, table in tables:
            for job in table.jobs:
                yield from _known(metric, (*labels, job.job), of_job(job))


def _own_files(report: ReportResult) -> Iterator[Figure]:
    for metric, value_of in _OF_OWN_FILES.items():
        for table in report.tables:
            if table.own_files is not None:
                yield from _known(metric, table_labels(table.table), value_of(table.own_files))


def _known(metric: Metric, labels: tuple[str, ...], value: float | None) -> Iterator[Figure]:
    if value is not None:
        yield Figure(metric, labels, value)


def _seconds(time_ms: int | None) -> float | None:
    return None if time_ms is None else time_ms / 1000
