"""Metrics about runs: their list, and the values that a run's events and result give them. Pure.

`reports/prometheus.py` has the metrics about tables. Names carry the unit (bytes, seconds, files ...), as users of
Prometheus expect. All are gauges: a run that ends is a fact of its own, and nothing adds up in a process that lives for
one run. No label is without bound: neither a run's id nor a path is one.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from icekeep.events import (
    CommitRetried,
    Event,
    InRun,
    RunEnded,
    RunStarted,
    SnapshotCommitted,
    StepFinished,
    StepStarted,
    Warned,
)
from icekeep.names import join_parts, split_name
from icekeep.runs import GOOD_EXIT_STATUSES
from icekeep.telemetry import figures as metrics

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


_OF_RESULTS: Mapping[Metric, tuple[str, ...]] = {
    metrics.REWRITTEN_FILES: (
        "rewritten_data_files_count",
        "rewritten_delete_files_count",
        "rewritten_manifests_count",
        "converted_equality_delete_files_count",
    ),
    metrics.REWRITTEN_BYTES: ("rewritten_bytes_count", "converted_bytes_count"),
    metrics.ADDED_FILES: ("added_data_files_count", "added_delete_files_count", "added_manifests_count"),
    metrics.ADDED_BYTES: ("added_bytes_count",),
    metrics.FAILED_FILES: ("failed_data_files_count", "failed_delete_files_count", "failed_files_count"),
    metrics.DELETED_ROWS: ("deleted_records_count",),
    metrics.REMOVED_DELETES: (
        "removed_delete_files_count",
        "removed_dangling_delete_files_count",
        "removed_dangling_equality_delete_files_count",
    ),
    metrics.DELETED_FILES: ("deleted_files_count",),
    metrics.DELETED_BYTES: ("deleted_bytes_count",),
    metrics.EMPTIED_FILES: ("emptied_trash_files_count",),
    metrics.EXPIRED: ("expired_snapshots_count",),
    metrics.ORPHANS: ("orphan_files_count",),
    metrics.FAULTS: ("faults_count",),
    metrics.TABLES: ("tables_count",),
}
"""The fields of results that sum up to a metric; where a result has none of them, it is not known."""

_LENGTHS: Mapping[Metric, str] = {metrics.NOT_READ_TABLES: "not_read", metrics.FAILING_JOBS: "failing"}
"""Lists of results that are counted."""

_JOBS = "_jobs_count"
"""How the names of counts of jobs end, after what became of these."""

_STEP = re.compile(r"[A-Za-z][A-Za-z -]{0,59}")
"""Steps that are timed. Those of Spark's jobs say how many files of which partition they are about, which is no label."""


class Figure(msgspec.Struct, frozen=True):
    """A value of a metric, with the values of its labels in their order."""

    metric: Metric
    labels: tuple[str, ...]
    value: float


class RunTally:
    """Counts what happens in one run, until it ends."""

    def __init__(self, started: RunStarted) -> None:
        self.started = started
        self._counts = dict.fromkeys((metrics.COMMITS, metrics.CONFLICTS, metrics.RETRIES, metrics.WARNINGS), 0)
        self._began_ms: dict[str, int] = {}
        self._steps_ms: dict[str, int] = {}

    def add(self, event: Event, now_ms: int) -> None:
        """Take note of an event of the run, at a time by a clock that does not go back."""
        match event:
            case InRun(event=inner):
                self.add(inner, now_ms)
            case StepStarted(step=step) if _STEP.fullmatch(step):
                self._began_ms[step] = now_ms
            case StepFinished(step=step) if step in self._began_ms:
                # A step may come twice in a run, such as deleting files.
                self._steps_ms[step] = self._steps_ms.get(step, 0) + now_ms - self._began_ms.pop(step)
            case SnapshotCommitted():
                self._counts[metrics.COMMITS] += 1
            case CommitRetried(is_conflict=is_conflict):
                self._counts[metrics.RETRIES] += 1
                self._counts[metrics.CONFLICTS] += is_conflict
            case Warned():
                self._counts[metrics.WARNINGS] += 1
            case _:
                pass

    def figures(self, ended: RunEnded) -> list[Figure]:
        """What the run comes to."""
        labels = run_labels(self.started)
        values = {
            metrics.LAST_START: self.started.started_ms / 1000,
            metrics.LAST_END: ended.ended_ms / 1000,
            metrics.DURATION: max(0, ended.ended_ms - self.started.started_ms) / 1000,
            metrics.EXIT_STATUS: ended.exit_status,
            **self._counts,
            **dict(_of_result(ended.result)),
        }
        if is_done_well(ended.exit_status):
            values[metrics.LAST_SUCCESS] = ended.ended_ms / 1000
        return [
            *(Figure(metric, labels, value) for metric, value in values.items()),
            Figure(metrics.STATUS, (*labels, ended.status), 1),
            *(Figure(metrics.JOBS, (*labels, status), count) for status, count in _jobs(ended.result)),
            *(Figure(metrics.STEP, (*labels, step), ms / 1000) for step, ms in self._steps_ms.items()),
        ]


class Tallies:
    """Counts what happens in each run, and hands over the figures of those that end; those that only tell have none.

    Args:
        deliver: is given the beginning of a run and its figures.
    """

    def __init__(self, deliver: Callable[[RunStarted, Sequence[Figure], int], None]) -> None:
        self._deliver = deliver
        self._open: dict[str, RunTally] = {}

    def on(self, event: Event, at_ms: int) -> None:
        match event:
            case RunStarted(run_id=run_id, only_tells=False):
                self._open[run_id] = RunTally(event)
            case InRun(run_id=run_id) if run_id in self._open:
                self._open[run_id].add(event, at_ms)
            case RunEnded(run_id=run_id) if run_id in self._open:
                tally = self._open.pop(run_id)
                self._deliver(tally.started, tally.figures(event), at_ms)
            case _:
                pass


def table_labels(name: str) -> tuple[str, str, str]:
    """The values of `OF_TABLE` for `CATALOG.NS.NAME`; all are empty for no table.

    >>> table_labels("lake.raw.web.clicks")
    ('lake', 'raw.web', 'lake.raw.web.clicks')
    """
    catalog, *below = split_name(name)
    return catalog, join_parts(below[:-1]), name


def is_done_well(exit_status: int) -> bool:
    """Whether a run with this exit status did its work, be it in part or with faults found."""
    return exit_status in GOOD_EXIT_STATUSES


def run_labels(started: RunStarted) -> tuple[str, ...]:
    """The values of `OF_RUN`."""
    return (*table_labels(started.table), started.job, started.policy or "")


def _of_result(result: Any) -> Iterator[tuple[Metric, float]]:
    known = _fields(result)
    # What became of equality deletes stands in a result of its own.
    parts = [known, _fields(known.get("conversion"))]
    for metric, names in _OF_RESULTS.items():
        values = [part[name] for part in parts for name in names if name in part]
        if values:
            yield metric, sum(values)
    yield from _measured(known)


def _jobs(result: Any) -> Iterator[tuple[str, int]]:
    for name, value in _fields(result).items():
        if name.endswith(_JOBS):
            yield name.removesuffix(_JOBS), value


def _measured(known: Mapping[str, Any]) -> Iterator[tuple[Metric, float]]:
    deleted_bytes = known.get("deleted_bytes_count")
    if isinstance(deleted_bytes, int):
        yield metrics.FREED_BYTES, 0 if known.get("is_in_trash") else deleted_bytes
    if "cpu_ms" in known:
        yield metrics.CPU, known["cpu_ms"] / 1000
    if "peak_task_bytes" in known:
        yield metrics.TASK_MEMORY, known["peak_task_bytes"]
    for metric, name in _LENGTHS.items():
        if name in known:
            yield metric, len(known[name])
    estimated = _fields(known.get("estimated"))
    if "requests_count" in estimated:
        yield metrics.ESTIMATED_REQUESTS, estimated["requests_count"]


def _fields(value: Any) -> dict[str, Any]:
    return msgspec.structs.asdict(value) if isinstance(value, msgspec.Struct) else {}
