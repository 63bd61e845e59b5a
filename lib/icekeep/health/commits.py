"""What the summaries of snapshots tell: which maintenance was done last and by whom, who streams into the table, its growth."""

from collections.abc import Iterable, Mapping, Sequence

from icekeep.commit.summary import JOB_KEY, made_by
from icekeep.health.values import Growth, MaintenanceSeen, StreamSeen
from icekeep.maintenance import compact as compaction
from icekeep.maintenance import deletes as position_deletes
from icekeep.maintenance import manifests
from icekeep.maintenance import repair as repairing
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.retention import Writer, made, writers_of
from icekeep.spec.snapshots import Snapshot
from icekeep.spec.types import DAY_MS, HOUR_MS

_JOBS = frozenset(
    {compaction.JOB.name, position_deletes.JOB.name, manifests.JOB.name, repairing.JOB.name, "convert_equality_deletes"}
)
"""Those that make snapshots."""

_MAX_DIGITS = 19

GROWTH_DAYS = 7
"""Growth is told over so many days, or over all that there is where that is less."""

_MIN_SPAN_MS = HOUR_MS


def last_maintenance(snapshots: Iterable[Snapshot]) -> tuple[MaintenanceSeen, ...]:
    """The newest snapshot of each kind of maintenance, the newest first."""
    newest: dict[str, Snapshot] = {}
    for snapshot in snapshots:
        job = job_of(snapshot)
        if job is not None and (job not in newest or made(newest[job]) < made(snapshot)):
            newest[job] = snapshot
    seen = [
        MaintenanceSeen(job=job, timestamp_ms=s.timestamp_ms, snapshot_id=s.snapshot_id, made_by=made_by(s.summary))
        for job, s in newest.items()
    ]
    return tuple(sorted(seen, key=lambda one: (-one.timestamp_ms, one.job)))


def streams(snapshots: Iterable[Snapshot], keys: Sequence[str] = ()) -> tuple[StreamSeen, ...]:
    """Each streaming writer whose progress some snapshot has, the one that wrote last first; `keys` as for `writers_of`."""
    counts: dict[Writer, int] = {}
    newest: dict[Writer, int] = {}
    for snapshot in snapshots:
        for writer in writers_of(snapshot, keys):
            counts[writer] = counts.get(writer, 0) + 1
            newest[writer] = max(newest.get(writer, 0), snapshot.timestamp_ms)
    found = [StreamSeen(writer=w.name, key=w.key, snapshots_count=counts[w], timestamp_ms=newest[w]) for w in counts]
    return tuple(sorted(found, key=lambda one: (-one.timestamp_ms, one.writer, one.key)))


def growth(metadata: TableMetadata) -> Growth | None:
    """Between the head and its oldest ancestor of the last days; `None` where there is no hour between two snapshots."""
    line = [*metadata.ancestors(metadata.current_snapshot_id)]
    if len(line) < 2:
        return None
    head = line[0]
    recent = [s for s in line if s.timestamp_ms >= head.timestamp_ms - GROWTH_DAYS * DAY_MS]
    first = min(recent, key=lambda s: s.timestamp_ms)
    span_ms = head.timestamp_ms - first.timestamp_ms
    if span_ms < _MIN_SPAN_MS:
        return None

    def daily(key: str) -> int | None:
        before, after = (number_of(s.summary, key) for s in (first, head))
        return None if before is None or after is None else round((after - before) * DAY_MS / span_ms)

    return Growth(
        since_timestamp_ms=first.timestamp_ms,
        daily_bytes=daily("total-files-size"),
        daily_data_files_count=daily("total-data-files"),
        daily_record_count=daily("total-records"),
        daily_snapshots_count=round((len(recent) - 1) * DAY_MS / span_ms),
    )


def number_of(summary: Mapping[str, str] | None, key: str) -> int | None:
    """A counter of a summary; `None` where it is not there or no number."""
    text = (summary or {}).get(key, "")
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= _MAX_DIGITS else None


def job_of(snapshot: Snapshot) -> str | None:
    """The kind of maintenance that made a snapshot: as it says itself, else by what a `replace` changed.

    Commands that publish or restore a snapshot leave their names too, and are no maintenance.
    """
    summary = snapshot.summary or {}
    if summary.get(JOB_KEY) in _JOBS:
        return summary[JOB_KEY]
    if snapshot.operation != "replace":
        return None
    if number_of(summary, "deleted-data-files") or number_of(summary, "added-data-files"):
        return "compact"
    if number_of(summary, "removed-delete-files") or number_of(summary, "added-delete-files"):
        return "rewrite_position_deletes"
    return "rewrite_manifests"
