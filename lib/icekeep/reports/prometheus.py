"""A report as metrics in Prometheus' text format, for node_exporter's textfile collector or a scrape."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from icekeep.errors import UsageError
from icekeep.health.values import TableHealth
from icekeep.reports.values import ReportResult

_OF_TABLES: dict[str, tuple[str, Callable[[TableHealth], float | None]]] = {
    "score": ("Health of the table, 0 to 100 (healthy)", lambda one: one.score),
    "snapshots": ("Snapshots", lambda one: one.snapshots.snapshots_count),
    "expirable_snapshots": ("Snapshots that expiration would let go", lambda one: one.snapshots.expirable_count),
    "metadata_bytes": ("Bytes of the metadata file", lambda one: one.metadata.metadata_bytes),
    "manifests": ("Manifests of the current snapshot", lambda one: one.metadata.manifests_count),
    "manifests_bytes": ("Their bytes", lambda one: one.metadata.manifests_bytes),
    "manifests_overlap": ("Manifests that a filter on one partition opens", lambda one: one.metadata.mean_overlap),
    "data_files": ("Live data files", lambda one: one.data.data_files_count),
    "data_bytes": ("Bytes of live data files", lambda one: one.data.data_files_bytes),
    "records": ("Rows of live data files", lambda one: one.data.record_count),
    "small_files": ("Data files that are too small", lambda one: one.data.small_files_count),
    "delete_files": ("Live delete files and vectors", lambda one: one.deletes.files_count),
    "deleted_ratio": ("Deleted positions of all rows", lambda one: one.deletes.deleted_ratio),
    "delete_scan_bytes": ("Bytes of deletes that a full scan reads", lambda one: one.deletes.scan_read_bytes),
    "dangling_delete_files": ("Delete files that reach nothing", lambda one: one.deletes.dangling_count),
    "partitions": ("Partitions", lambda one: one.partitions.partitions_count),
    "partition_skew": ("The largest partition divided by the median", lambda one: one.partitions.skew),
    "faults": ("Faults in metadata and manifest lists", lambda one: one.faults_count),
}
_OF_JOBS: dict[str, str] = {
    "is_due": "Whether the job has something to do",
    "files_count": "Files that it would rewrite or delete",
    "freed_bytes": "Bytes that it would free",
    "read_bytes": "Bytes that it would read",
    "written_bytes": "Bytes that it would write",
    "cpu_ms": "Milliseconds of a core that it would take",
    "cost": "What it would cost",
}

_OF_JOB = ("table", "job")


def prometheus_text(report: ReportResult) -> str:
    """The metrics, each with the label `table`, those of jobs with `job` too; what was not measured is left out.

    Raises:
        UsageError: the package `prometheus-client` is not installed.
    """
    try:
        from prometheus_client import CollectorRegistry, generate_latest
    except ModuleNotFoundError as error:
        raise UsageError(
            "package 'prometheus_client' is not installed; install icekeep[telemetry]", module="prometheus_client"
        ) from error
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(report))
    return str(generate_latest(registry).decode())


class _Collector:
    """What a registry asks for the metrics of one report."""

    def __init__(self, report: ReportResult) -> None:
        self._report = report

    def collect(self) -> Iterator[Any]:
        """All metrics, each with all its values."""
        report, tables = self._report, self._report.tables
        yield _family("icekeep_tables", "Tables of the report", (), [((), report.tables_count)])
        unread = [((one.name, one.kind), 1) for one in report.not_read]
        yield _family("icekeep_table_not_read", "1 where it could not be read", ("table", "kind"), unread)
        for name, (told, value_of) in _OF_TABLES.items():
            values = [((table.table,), value_of(table)) for table in tables]
            yield _family(f"icekeep_table_{name}", told, ("table",), values)
        yield _family(
            "icekeep_table_last_maintenance_timestamp_seconds",
            "When it was last done",
            _OF_JOB,
            [((t.table, seen.job), seen.timestamp_ms / 1000) for t in tables for seen in t.last_maintenance],
        )
        for field, told in _OF_JOBS.items():
            of_jobs = [((table.table, job.job), getattr(job, field)) for table in tables for job in table.jobs]
            yield _family(f"icekeep_job_{field.removesuffix('_count')}", told, _OF_JOB, of_jobs)


def _family(name: str, told: str, labels: Sequence[str], values: Iterable[tuple[Sequence[str], float | None]]) -> Any:
    from prometheus_client.core import GaugeMetricFamily

    family = GaugeMetricFamily(name, told, labels=labels)
    for of, value in values:
        if value is not None:
            family.add_metric(of, float(value))
    return family
