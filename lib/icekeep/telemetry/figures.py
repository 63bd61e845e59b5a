"""Metrics about runs: their list, and the values that a run's events and result give them. Pure.

`reports/prometheus.py` has the metrics about tables. Names carry the unit (bytes, seconds, files ...), as users of
Prometheus expect. All are gauges: a run that ends is a fact of its own, and nothing adds up in a process that lives for
one run. No label is without bound: neither a run's id nor a path is one.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

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

OF_TABLE = ("catalog", "namespace", "table")
"""`table` is the full name, `CATALOG.NS.NAME`, so that metrics can be joined by it alone."""

OF_RUN = (*OF_TABLE, "job", "policy")


class Metric(msgspec.Struct, frozen=True):
    """One metric: its name with the unit, its help in one sentence, and its labels."""

    name: str
    help: str
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
ADDED_FILES = Metric("icekeep_run_added_files", "Files or manifests that came in their place")
ADDED_BYTES = Metric("icekeep_run_added_bytes", "Their bytes")
JOBS = Metric("icekeep_run_jobs", "Its jobs by what became of them; due are all", (*OF_RUN, "status"))

Fields: TypeAlias = Mapping[str, Any]
"""A result by the names of its fields."""


def _fields(value: Any) -> Fields:
    return msgspec.structs.asdict(value) if isinstance(value, msgspec.Struct) else {}


def _sum(*names: str) -> Callable[[Fields], float | None]:
    """Of those fields that a result has; what became of equality deletes stands in a result of its own."""

    def value_of(result: Fields) -> float | None:
        parts = (result, _fields(result.get("conversion")))
        values = [part[name] for part in parts for name in names if name in part]
        return sum(values) if values else None

    return value_of


def _freed_bytes(result: Fields) -> float | None:
    if result.get("deleted_bytes_count") is None:
        return None
    return 0 if result.get("is_in_trash") else result["deleted_bytes_count"]


def _length(name: str) -> Callable[[Fields], float | None]:
    return lambda result: len(result[name]) if name in result else None


_OF_RESULTS: Mapping[Metric, Callable[[Fields], float | None]] = {
    Metric("icekeep_run_rewritten_files", "Data files, delete files or manifests that were replaced"): _sum(
        "rewritten_data_files_count",
        "rewritten_delete_files_count",
        "rewritten_manifests_count",
        "converted_equality_delete_files_count",
    ),
    Metric("icekeep_run_rewritten_bytes", "Their bytes"): _sum("rewritten_bytes_count", "converted_bytes_count"),
    ADDED_FILES: _sum("added_data_files_count", "added_delete_files_count", "added_manifests_count"),
    ADDED_BYTES: _sum("added_bytes_count"),
    Metric("icekeep_run_failed_files", "Files that it was to rewrite or delete, and could not"): _sum(
        "failed_data_files_count", "failed_delete_files_count", "failed_files_count"
    ),
    Metric("icekeep_run_deleted_rows", "Rows that deletes had marked, and that are in no file now"): _sum(
        "deleted_records_count"
    ),
    Metric("icekeep_run_removed_delete_files", "Delete files that reached nothing more, and went"): _sum(
        "removed_delete_files_count",
        "removed_dangling_delete_files_count",
        "removed_dangling_equality_delete_files_count",
    ),
    Metric("icekeep_run_deleted_files", "Files that were deleted, or moved to the trash"): _sum("deleted_files_count"),
    Metric("icekeep_run_deleted_bytes", "Their bytes"): _sum("deleted_bytes_count"),
    Metric(
        "icekeep_run_freed_bytes",
        "Bytes that were deleted for good; what is in the trash is not, and a bucket with versioning keeps them as older "
        "versions",
    ): _freed_bytes,
    Metric("icekeep_run_emptied_trash_files", "Files that left the trash for good"): _sum("emptied_trash_files_count"),
    Metric("icekeep_run_expired_snapshots", "Snapshots that were expired"): _sum("expired_snapshots_count"),
    Metric("icekeep_run_orphan_files", "Files that no metadata leads to"): _sum("orphan_files_count"),
    Metric("icekeep_run_faults", "Faults that were found"): _sum("faults_count"),
    Metric("icekeep_run_cpu_seconds", "Processor time of all tasks"): lambda result: (
        result["cpu_ms"] / 1000 if "cpu_ms" in result else None
    ),
    Metric("icekeep_run_peak_task_bytes", "The most memory that the Python process of a task had"): lambda result: (
        result.get("peak_task_bytes")
    ),
    Metric("icekeep_run_estimated_requests", "Requests to storage that its plan had estimated"): lambda result: _fields(
        result.get("estimated")
    ).get("requests_count"),
    Metric("icekeep_run_tables", "Tables that a run over many is for"): _sum("tables_count"),
    Metric("icekeep_run_not_read_tables", "Tables, and namespaces and catalogs, that it could not read"): _length(
        "not_read"
    ),
    Metric(
        "icekeep_run_failing_jobs", "Jobs on tables that have failed, or were cut off, three times in a row or more"
    ): _length("failing"),
}
"""How a metric follows from the fields of a result; `None` where it is not known."""

RUN_METRICS: tuple[Metric, ...] = (
    *(LAST_START, LAST_END, LAST_SUCCESS, DURATION, EXIT_STATUS, STATUS, STEP, COMMITS, CONFLICTS, RETRIES, WARNINGS),
    *_OF_RESULTS,
    JOBS,
)
"""In the order in which documents list them."""

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
        self._counts = dict.fromkeys((COMMITS, CONFLICTS, RETRIES, WARNINGS), 0)
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
                self._counts[COMMITS] += 1
            case CommitRetried(is_conflict=is_conflict):
                self._counts[RETRIES] += 1
                self._counts[CONFLICTS] += is_conflict
            case Warned():
                self._counts[WARNINGS] += 1
            case _:
                pass

    def figures(self, ended: RunEnded) -> list[Figure]:
        """What the run comes to."""
        labels = (*table_labels(self.started.table), self.started.job, self.started.policy or "")
        result = _fields(ended.result)
        values: dict[Metric, float] = {
            LAST_START: self.started.started_ms / 1000,
            LAST_END: ended.ended_ms / 1000,
            DURATION: max(0, ended.ended_ms - self.started.started_ms) / 1000,
            EXIT_STATUS: ended.exit_status,
            **self._counts,
        }
        of_result = ((metric, value_of(result)) for metric, value_of in _OF_RESULTS.items())
        values |= {metric: value for metric, value in of_result if value is not None}
        if is_done_well(ended.exit_status):
            values[LAST_SUCCESS] = ended.ended_ms / 1000
        return [
            *(Figure(metric, labels, value) for metric, value in values.items()),
            Figure(STATUS, (*labels, ended.status), 1),
            *(
                Figure(JOBS, (*labels, name.removesuffix(_JOBS)), count)
                for name, count in result.items()
                if name.endswith(_JOBS)
            ),
            *(Figure(STEP, (*labels, step), ms / 1000) for step, ms in self._steps_ms.items()),
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
