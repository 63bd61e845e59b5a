"""What a metric is, and the list of those about runs. `reports/prometheus.py` has those about tables.

Names carry the unit (bytes, seconds, files ...), as Prometheus' users expect. All are gauges: a run that ends is a fact of its
own, and nobody adds up in a process that lives for one run. No label is without bound: neither a run's id nor a path is one.
"""

import msgspec

OF_TABLE = ("catalog", "namespace", "table")
"""`table` is the full name, `CATALOG.NS.NAME`, so that metrics can be joined by it alone."""

OF_RUN = (*OF_TABLE, "job", "policy")


class Metric(msgspec.Struct, frozen=True):
    """One metric: its name with the unit, what it tells, in one sentence, and its labels."""

    name: str
    told: str
    labels: tuple[str, ...] = OF_RUN

    @property
    def unit(self) -> str:
        """As the end of the name has it; `1` where it has none."""
        last = self.name.rpartition("_")[2]
        return last if last in ("bytes", "seconds", "ratio", "percent") else "1"


LAST_START = Metric("icekeep_run_last_start_timestamp_seconds", "When the last run began")
LAST_END = Metric("icekeep_run_last_end_timestamp_seconds", "When the last run ended")
LAST_SUCCESS = Metric(
    "icekeep_run_last_success_timestamp_seconds", "When the last run ended that did its work, be it in part"
)
DURATION = Metric("icekeep_run_duration_seconds", "How long the last run took")
EXIT_STATUS = Metric(
    "icekeep_run_exit_status", "Its exit status: 0 done, 3 in part, 4 refused, 5 unknown, 75 try again"
)
STATUS = Metric("icekeep_run_status", "1 for the status that the last run ended with", (*OF_RUN, "status"))
STEP = Metric("icekeep_run_step_duration_seconds", "How long a step of the last run took", (*OF_RUN, "step"))
COMMITS = Metric("icekeep_run_commits", "Commits of the last run that landed")
CONFLICTS = Metric("icekeep_run_conflicts", "Attempts to commit that met a commit of another writer")
RETRIES = Metric("icekeep_run_retries", "Attempts to commit that were made again, after conflicts and failures")
WARNINGS = Metric("icekeep_run_warnings", "Warnings of the last run")

REWRITTEN_FILES = Metric("icekeep_run_rewritten_files", "Data files, delete files or manifests that were replaced")
REWRITTEN_BYTES = Metric("icekeep_run_rewritten_bytes", "Their bytes")
ADDED_FILES = Metric("icekeep_run_added_files", "Files or manifests that came in their place")
ADDED_BYTES = Metric("icekeep_run_added_bytes", "Their bytes")
FAILED_FILES = Metric("icekeep_run_failed_files", "Files that it was to rewrite or delete, and could not")
DELETED_ROWS = Metric("icekeep_run_deleted_rows", "Rows that deletes had marked, and that are in no file now")
REMOVED_DELETES = Metric("icekeep_run_removed_delete_files", "Delete files that reached nothing more, and went")
DELETED_FILES = Metric("icekeep_run_deleted_files", "Files that were deleted, or moved to the trash")
DELETED_BYTES = Metric("icekeep_run_deleted_bytes", "Their bytes")
FREED_BYTES = Metric(
    "icekeep_run_freed_bytes",
    "Bytes that were deleted for good; what is in the trash is not, and a bucket with versioning keeps them as older versions",
)
EMPTIED_FILES = Metric("icekeep_run_emptied_trash_files", "Files that left the trash for good")
EXPIRED = Metric("icekeep_run_expired_snapshots", "Snapshots that were expired")
ORPHANS = Metric("icekeep_run_orphan_files", "Files that no metadata leads to")
FAULTS = Metric("icekeep_run_faults", "Faults that were found")
CPU = Metric("icekeep_run_cpu_seconds", "Processor time of all tasks")
TASK_MEMORY = Metric("icekeep_run_peak_task_bytes", "The most memory that the Python process of a task had")
ESTIMATED_REQUESTS = Metric("icekeep_run_estimated_requests", "Requests to storage that its plan had estimated")
TABLES = Metric("icekeep_run_tables", "Tables that a run over many is for")
NOT_READ_TABLES = Metric("icekeep_run_not_read_tables", "Tables, and namespaces and catalogs, that it could not read")
JOBS = Metric("icekeep_run_jobs", "Its jobs by what became of them; due are all", (*OF_RUN, "status"))
FAILING_JOBS = Metric(
    "icekeep_run_failing_jobs", "Jobs on tables that have failed, or were cut off, three times in a row or more"
)

RUN_METRICS: tuple[Metric, ...] = (
    LAST_START,
    LAST_END,
    LAST_SUCCESS,
    DURATION,
    EXIT_STATUS,
    STATUS,
    STEP,
    COMMITS,
    CONFLICTS,
    RETRIES,
    WARNINGS,
    REWRITTEN_FILES,
    REWRITTEN_BYTES,
    ADDED_FILES,
    ADDED_BYTES,
    FAILED_FILES,
    DELETED_ROWS,
    REMOVED_DELETES,
    DELETED_FILES,
    DELETED_BYTES,
    FREED_BYTES,
    EMPTIED_FILES,
    EXPIRED,
    ORPHANS,
    FAULTS,
    CPU,
    TASK_MEMORY,
    ESTIMATED_REQUESTS,
    TABLES,
    NOT_READ_TABLES,
    JOBS,
    FAILING_JOBS,
)
"""In the order in which documents list them."""
