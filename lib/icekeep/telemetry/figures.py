"""What a run comes to in figures: its events and its result as values of metrics. Pure."""

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
from icekeep.telemetry import metrics
from icekeep.telemetry.metrics import Metric

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
