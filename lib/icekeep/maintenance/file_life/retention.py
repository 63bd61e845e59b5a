"""Until when expiration, by a table's own limits, keeps a snapshot that reads a file."""

from collections.abc import Iterable
from itertools import islice

import msgspec

from icekeep.catalog.base import OperatorRules
from icekeep.maintenance.deletion.options import ExpirationOptions
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.retention import (
    MAX_REF_AGE_MS,
    MAX_SNAPSHOT_AGE_MS,
    MIN_SNAPSHOTS_TO_KEEP,
    RetentionPolicy,
    default_limit,
    select_expired,
    writers_of,
)
from icekeep.spec.snapshots import MAIN, SnapshotRef
from icekeep.spec.types import DAY_MS

_FAR_MS = 36_500 * DAY_MS
"""What is kept for a hundred years is kept for good."""


class Kept(msgspec.Struct, frozen=True):
    """How long a file is kept by the snapshots that read it, if nothing else is committed.

    Attributes:
        until_ms: the first moment at which a run of `expire_snapshots` drops the last of them, epoch milliseconds; a moment that
            is not in the future: the next run does. `None`: none ever does.
        by: the references that keep one for good.
    """

    until_ms: int | None
    by: tuple[str, ...] = ()


def kept_until(metadata: TableMetadata, rules: OperatorRules, readers: frozenset[int], now_ms: int) -> Kept:
    """Ask `select_expired`, as `expire_snapshots` without arguments does, at the moments at which its answer may change.

    Raises as that does.

    A snapshot that a branch has dropped and that comes to be on none, since the branch has expired before its snapshots would
    have, counts as kept.
    """
    policy = ExpirationOptions().policy(rules)

    def left(at_ms: int) -> frozenset[int]:
        return readers - select_expired(metadata, policy, at_ms).snapshot_ids

    if not left(now_ms):
        return Kept(now_ms)
    moments = sorted({at for at in _moments(metadata, policy) if now_ms < at < now_ms + _FAR_MS})
    last_ms = moments[-1] if moments else now_ms
    if for_good := left(last_ms):
        expired = select_expired(metadata, policy, last_ms).ref_names
        refs = {name: ref for name, ref in metadata.refs.items() if name not in expired}
        return Kept(None, tuple(_keepers(metadata, refs.items(), for_good)))
    low, high = 0, len(moments) - 1
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if left(moments[middle]) else (low, middle)
    return Kept(moments[low])


def _moments(metadata: TableMetadata, policy: RetentionPolicy) -> Iterable[int]:
    """When a snapshot or a reference may become too old, and a writer's progress too: right after it has the age."""
    ages = {ref.max_snapshot_age_ms for ref in metadata.refs.values()} - {None}
    ages |= {default_limit(metadata, MAX_SNAPSHOT_AGE_MS)}
    for snapshot in metadata.snapshots:
        yield from (snapshot.timestamp_ms + age + 1 for age in ages if age is not None)
        yield snapshot.timestamp_ms + policy.least_age_ms + 1
        if writers_of(snapshot, policy.progress_keys):
            yield snapshot.timestamp_ms + policy.keep_writer_progress_ms
    for ref in metadata.refs.values():
        head = metadata.snapshots_by_id.get(ref.snapshot_id)
        age = default_limit(metadata, MAX_REF_AGE_MS) if ref.max_ref_age_ms is None else ref.max_ref_age_ms
        if head is not None:
            yield head.timestamp_ms + age + 1


def _keepers(
    metadata: TableMetadata, refs: Iterable[tuple[str, SnapshotRef]], readers: frozenset[int]
) -> Iterable[str]:
    """How each reference that keeps a snapshot for good is called."""
    for name, ref in sorted(refs, key=lambda item: (item[0] != MAIN, item[0])):
        if ref.snapshot_id in readers:
            yield f"{ref.type} {name}"
        elif ref.is_branch:
            count = ref.min_snapshots_to_keep
            count = default_limit(metadata, MIN_SNAPSHOTS_TO_KEEP) if count is None else count
            behind = islice(metadata.ancestors(ref.snapshot_id), 1, max(1, count))
            if any(snapshot.snapshot_id in readers for snapshot in behind):
                yield f"branch {name}, which keeps its newest snapshots whatever their age"
