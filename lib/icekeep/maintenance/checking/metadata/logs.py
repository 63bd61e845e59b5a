"""The logs of snapshots and metadata files, and the entries of statistics files."""

from collections import Counter
from collections.abc import Iterator, Sequence

from icekeep.maintenance.checking.metadata.findings import Findings
from icekeep.maintenance.checking.metadata.reading import Document
from icekeep.maintenance.checking.metadata.snapshots import SKEW_MS
from icekeep.spec.snapshots import PartitionStatisticsFile, StatisticsFile
from icekeep.storage.locations import canonical_or_text

_SNAPSHOT_LOG_WRONG = 121
_METADATA_LOG_WRONG = 122
_STATISTICS_WRONG = 124
_METADATA_LOG_UNSORTED = 125


def check_logs_of(document: Document, findings: Findings) -> None:
    """Faults of the two logs, as far as they are seen without looking for a file."""
    for where, problem in _times(
        "snapshot-log", [e.timestamp_ms for e in document.snapshot_log], document.last_updated_ms
    ):
        findings.add(_SNAPSHOT_LOG_WRONG, problem, where=where)
    for where, problem in _times(
        "metadata-log", [e.timestamp_ms for e in document.metadata_log], document.last_updated_ms
    ):
        findings.add(_METADATA_LOG_UNSORTED, problem, where=where)
    _check_last_snapshot(document, findings)
    current = canonical_or_text(findings.location)
    times = Counter(canonical_or_text(entry.metadata_file) for entry in document.metadata_log)
    for key, count in times.items():
        if key == current:
            findings.add(_METADATA_LOG_WRONG, "the current metadata file is in the metadata log")
        elif count > 1:
            findings.add(_METADATA_LOG_WRONG, f"it is {count} times in the metadata log", where=key)


def check_statistics(document: Document, findings: Findings) -> None:
    """Faults of the entries of statistics files: whose they are, and that there is one of each kind for a snapshot."""
    kinds: dict[str, Sequence[StatisticsFile | PartitionStatisticsFile]] = {
        "statistics": document.statistics,
        "partition-statistics": document.partition_statistics,
    }
    for kind, files in kinds.items():
        seen: dict[int, str] = {}
        for file in files:
            snapshot_id, path = file.snapshot_id, file.statistics_path
            problem = None
            if snapshot_id in seen:
                problem = f"snapshot {snapshot_id} has {seen[snapshot_id]!r} as {kind} too"
            elif snapshot_id not in document.snapshots_by_id and "snapshots" not in document.broken:
                problem = f"it is {kind} of snapshot {snapshot_id}, which is not there"
            seen.setdefault(snapshot_id, path)
            if problem is not None:
                facts = {"snapshot_id": snapshot_id, "statistics_path": path, "kind": kind}
                findings.add(_STATISTICS_WRONG, problem, where=path, facts=facts)


def _check_last_snapshot(document: Document, findings: Findings) -> None:
    """Without a current snapshot, as after a table was replaced, the log says what was; and it may have been left empty."""
    current = document.current_snapshot_id
    if current is None or not document.snapshot_log or "snapshot-log" in document.broken:
        return
    last = document.snapshot_log[-1].snapshot_id
    if last != current:
        findings.add(
            _SNAPSHOT_LOG_WRONG,
            f"its last entry is snapshot {last}, and current-snapshot-id is {current}",
            where="snapshot-log",
            facts={"recorded": last, "found": current},
        )


def _times(key: str, times_ms: Sequence[int], last_ms: int | None) -> Iterator[tuple[str, str]]:
    """Where a log does not go forward in time, and why; a minute is allowed for clocks that differ."""
    before_ms: int | None = None
    for position, time_ms in enumerate(times_ms):
        if before_ms is not None and time_ms < before_ms - SKEW_MS:
            yield f"{key}[{position}]", f"it is {before_ms - time_ms} ms before the entry that it follows"
        before_ms = time_ms
    if before_ms is not None and last_ms is not None and before_ms > last_ms + SKEW_MS:
        yield key, f"its last entry is {before_ms - last_ms} ms after last-updated-ms"
