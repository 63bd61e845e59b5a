"""What expiration and orphan removal would do, told without reading old manifests and without a listing: estimates."""

from collections.abc import Mapping

import msgspec

from icekeep.catalog.base import Table
from icekeep.health.commits import number_of
from icekeep.health.metered import MeteredStorage
from icekeep.health.references import ancestors_of
from icekeep.health.values import JobAdvice, MetadataHealth
from icekeep.maintenance.check.lists import Listed
from icekeep.maintenance.delete.execute import refuse_if_gc_is_disabled
from icekeep.maintenance.delete.options import ExpirationOptions
from icekeep.maintenance.jobs import FILE_CPU_MS
from icekeep.maintenance.orphans.options import eligible_before_ms
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.retention import Expired, select_expired
from icekeep.spelling import counted, counted_doing

_NAMES_A_LISTING = 1000
"""How many names an object store lists with one request."""


class Expiring(msgspec.Struct, frozen=True, kw_only=True):
    """What would go; sizes in bytes.

    Attributes:
        error: why it cannot be told; then there is nothing else.
        manifests_count, manifests_bytes: of manifests that only expired snapshots have.
        lists_count, lists_bytes: of their manifest lists.
        files_count, files_bytes: data and delete files that no snapshot has then, by the summaries of commits; at most, as
            another branch or tag may still have them. `None` where a summary does not say.
        read_manifests_count, read_bytes: what is read to prove it.
    """

    expired: Expired = Expired(frozenset(), frozenset())
    error: str = ""
    manifests_count: int = 0
    manifests_bytes: int = 0
    lists_count: int = 0
    lists_bytes: int = 0
    files_count: int | None = 0
    files_bytes: int | None = 0
    read_manifests_count: int = 0
    read_bytes: int = 0


def expiring(table: Table, listed: Listed, storage: MeteredStorage) -> Expiring:
    """What the table's own retention lets go now; raises `IcekeepError` where `expire_snapshots` would refuse."""
    metadata = table.metadata
    refuse_if_gc_is_disabled(table)
    now_ms = table.runtime.now_ms()
    expired = select_expired(metadata, ExpirationOptions().policy(table.catalog.rules), now_ms)
    if expired.is_empty:
        return Expiring()
    kept, gone = set[int](), set[int]()
    for snapshot_id, members in listed.members.items():
        (gone if snapshot_id in expired.snapshot_ids else kept).update(members)
    only = [listed.manifests[number] for number in gone - kept]
    lists = [s.manifest_list for s in metadata.snapshots if s.snapshot_id in expired.snapshot_ids and s.manifest_list]
    counts = _removed(metadata, expired)
    return Expiring(
        expired=expired,
        manifests_count=len(only),
        manifests_bytes=sum(m.manifest_length for m in only),
        lists_count=len(lists),
        lists_bytes=sum(storage.size_of(one) or 0 for one in lists),
        files_count=counts["files"],
        files_bytes=counts["bytes"],
        read_manifests_count=len(gone | kept),
        read_bytes=sum(m.manifest_length for m in listed.manifests) + sum(storage.size_of(one) or 0 for one in lists),
    )


def expire_advice(table: Table, found: Expiring) -> JobAdvice:
    """What expiration would do."""
    job = "expire_snapshots"
    if found.error:
        return JobAdvice(job=job, has_work=False, reason=f"it refuses: {found.error}")
    expired, count = found.expired, len(found.expired.snapshot_ids)
    total = len(table.metadata.snapshots)
    if expired.is_empty:
        kept = "the only snapshot" if total == 1 else f"all {total:,} snapshots"
        return JobAdvice(job=job, has_work=False, is_exact=True, reason=f"retention keeps {kept}")
    refs = f" and {counted(len(expired.ref_names), 'references')}" if expired.ref_names else ""
    are = "is" if count == 1 and not refs else "are"
    freed_count = (found.files_count or 0) + found.manifests_count + found.lists_count
    freed = None if found.files_bytes is None else found.files_bytes + found.manifests_bytes + found.lists_bytes
    return JobAdvice(
        job=job,
        has_work=True,
        reason=f"{count:,} of {counted(total, 'snapshots')}{refs} {are} older than the table keeps them",
        gain=f"about {counted_doing(freed_count, 'files', 'are')} freed"
        if freed is not None
        else "files are freed that summaries do not count",
        files_count=freed_count,
        freed_bytes=freed,
        read_bytes=found.read_bytes,
        requests_count=found.read_manifests_count + total + freed_count,
        cpu_ms=round(freed_count * FILE_CPU_MS),
    )


def orphan_advice(table: Table, metadata: MetadataHealth, entries_count: int) -> JobAdvice:
    """What orphan removal would find: only metadata files that left the log are known of without a listing."""
    refuse_if_gc_is_disabled(table)
    lost = _lost_and_old(table, metadata.lost_metadata_files_count)
    known_count = entries_count + metadata.all_manifests_count + metadata.manifest_lists_count
    listed_count = known_count + metadata.metadata_log_files_count + 1 + metadata.lost_metadata_files_count
    reason, gain = "no orphan is known of; only a listing tells of those that failed writes leave", ""
    if lost:
        were = "was" if lost == 1 else "were"
        reason = (
            f"up to {counted(lost, 'metadata files')} left the log and {were} not deleted, unless somebody did so since"
        )
        gain = f"about {lost * (metadata.metadata_bytes or 0):,} bytes of old metadata are freed"
    return JobAdvice(
        job="remove_orphan_files",
        has_work=lost > 0,
        reason=reason,
        gain=gain,
        files_count=lost,
        freed_bytes=lost * metadata.metadata_bytes if metadata.metadata_bytes is not None else None,
        requests_count=-(-listed_count // _NAMES_A_LISTING) + lost,
        cpu_ms=round(listed_count * FILE_CPU_MS),
    )


def _lost_and_old(table: Table, lost_count: int) -> int:
    """How many of the metadata files that left the log can be old enough to go: commits of the last days made others."""
    limit_ms = eligible_before_ms(None, table.runtime.now_ms())
    made_count = sum(snapshot.timestamp_ms >= limit_ms for snapshot in table.metadata.snapshots)
    # One is the current file.
    there_count = 1 + sum(entry.timestamp_ms >= limit_ms for entry in table.metadata.metadata_log)
    return max(0, lost_count - max(0, made_count - there_count))


def _removed(metadata: TableMetadata, expired: Expired) -> Mapping[str, int | None]:
    """What no snapshot has any more: what commits removed whose parents expire, and what those added that led to nothing.

    Of a snapshot that nothing kept comes from, such as one that was rolled back, all that it added goes. What it removed
    does not go by that: where it came from, it may still be live.
    """
    totals: dict[str, int | None] = {"files": 0, "bytes": 0}
    kept = (s.snapshot_id for s in metadata.snapshots if s.snapshot_id not in expired.snapshot_ids)
    led_on = ancestors_of(metadata, kept)
    published = {number_of(snapshot.summary, _SOURCE) for snapshot in metadata.snapshots}
    for snapshot in metadata.snapshots:
        if snapshot.snapshot_id in led_on:
            if snapshot.parent_snapshot_id not in expired.snapshot_ids:
                continue
            counters = _REMOVED
        elif snapshot.snapshot_id in published:
            continue
        else:
            counters = _ADDED
        summary = snapshot.summary
        if summary is None or "operation" not in summary:
            return {"files": None, "bytes": None}
        for name, keys in counters.items():
            totals[name] = (totals[name] or 0) + sum(number_of(summary, key) or 0 for key in keys)
    return totals


_SOURCE = "source-snapshot-id"
"""In the summary of a commit that published a staged snapshot, whose files it has taken over."""

_REMOVED = {"files": ("deleted-data-files", "removed-delete-files"), "bytes": ("removed-files-size",)}
_ADDED = {"files": ("added-data-files", "added-delete-files"), "bytes": ("added-files-size",)}
