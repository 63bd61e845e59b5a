"""Which snapshots and references a retention policy expires (spec, "Snapshot Retention Policy").

Pure: metadata, a policy and a moment in, ids out. Nothing is changed here and no file is looked at.
"""

from collections.abc import Iterable, Mapping

import msgspec

from icekeep.errors import OptionError, UsageError
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.snapshots import MAIN, SnapshotRef

MAX_SNAPSHOT_AGE_MS = "history.expire.max-snapshot-age-ms"
MIN_SNAPSHOTS_TO_KEEP = "history.expire.min-snapshots-to-keep"
MAX_REF_AGE_MS = "history.expire.max-ref-age-ms"
_DEFAULTS = {MAX_SNAPSHOT_AGE_MS: 432_000_000, MIN_SNAPSHOTS_TO_KEEP: 1, MAX_REF_AGE_MS: 2**63 - 1}


class RetentionPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """What an operator asks for beyond the table's own properties.

    `older_than_ms` is a moment (epoch ms), `retain_last` a number of snapshots a branch; null takes the table's
    properties `history.expire.*`. `snapshot_ids` go even where they would be retained.
    """

    older_than_ms: int | None = None
    retain_last: int | None = None
    snapshot_ids: tuple[int, ...] = ()


class Expired(msgspec.Struct, frozen=True):
    """What leaves the metadata: ids of snapshots, never the head of a retained ref, and names of refs."""

    snapshot_ids: frozenset[int]
    ref_names: frozenset[str]

    @property
    def is_empty(self) -> bool:
        return not self.snapshot_ids and not self.ref_names


def select_expired(metadata: TableMetadata, policy: RetentionPolicy, now_ms: int) -> Expired:
    """Choose the snapshots and references that no policy keeps.

    `main` stays. Another reference stays while its snapshot is not older than its `max-ref-age-ms`. A branch keeps its
    head and, from there back, ancestors that are among its newest `min-snapshots-to-keep` or not older than its
    `max-snapshot-age-ms`, up to the first that is neither. A tag keeps its snapshot, not the ancestors. A snapshot that
    is on no branch and under no tag stays while it is younger than the default age.

    Args:
        now_ms: the moment that ages are measured against, epoch milliseconds.

    Raises:
        OptionError: `retain_last` is less than 1.
        NotFoundError: the policy names a snapshot that the table does not have.
        UsageError: the policy names the head of a retained reference.
    """
    if policy.retain_last is not None and policy.retain_last < 1:
        raise OptionError("retain_last", given=policy.retain_last, expected="a whole number, 1 or more")
    cutoff_ms = _default_cutoff_ms(metadata, policy, now_ms)
    minimum = policy.retain_last or _property(metadata, MIN_SNAPSHOTS_TO_KEEP)
    refs = _retained_refs(metadata, now_ms)
    _check_explicit(metadata, policy, refs)
    retained = {ref.snapshot_id for ref in refs.values()}
    on_branches: set[int] = set()
    for ref in refs.values():
        if ref.is_branch:
            retained |= _kept_ancestors(metadata, ref, cutoff_ms, minimum, now_ms)
            on_branches.update(s.snapshot_id for s in metadata.ancestors(ref.snapshot_id))
    retained.update(
        s.snapshot_id for s in metadata.snapshots if s.snapshot_id not in on_branches and s.timestamp_ms >= cutoff_ms
    )
    retained -= set(policy.snapshot_ids)
    return Expired(
        frozenset(s.snapshot_id for s in metadata.snapshots if s.snapshot_id not in retained),
        frozenset(metadata.refs.keys() - refs.keys()),
    )


def unused_schema_ids(metadata: TableMetadata, removed_snapshot_ids: frozenset[int]) -> tuple[int, ...]:
    """Schemas that are neither current nor named by a snapshot that stays.

    Those that alone know the type of a partition spec's source column stay too: without it its manifests cannot be read.
    """
    used = {s.schema_id for s in metadata.snapshots if s.snapshot_id not in removed_snapshot_ids}
    used.add(metadata.current_schema_id)
    used.update(metadata.schema_of(f.source_id).schema_id for spec in metadata.partition_specs for f in spec.fields)
    return tuple(s.schema_id for s in metadata.schemas if s.schema_id not in used)


def unused_spec_ids(metadata: TableMetadata, spec_ids_of_retained_manifests: Iterable[int]) -> tuple[int, ...]:
    """Partition specs that are neither the default nor used by a manifest of a snapshot that stays."""
    used = {metadata.default_spec_id, *spec_ids_of_retained_manifests}
    return tuple(s.spec_id for s in metadata.partition_specs if s.spec_id not in used)


def _retained_refs(metadata: TableMetadata, now_ms: int) -> Mapping[str, SnapshotRef]:
    default_age_ms = _property(metadata, MAX_REF_AGE_MS)

    def stays(name: str, ref: SnapshotRef) -> bool:
        if name == MAIN:
            return True
        snapshot = metadata.snapshots_by_id.get(ref.snapshot_id)
        max_age_ms = default_age_ms if ref.max_ref_age_ms is None else ref.max_ref_age_ms
        return snapshot is not None and now_ms - snapshot.timestamp_ms <= max_age_ms

    return {name: ref for name, ref in metadata.refs.items() if stays(name, ref)}


def _kept_ancestors(
    metadata: TableMetadata, branch: SnapshotRef, cutoff_ms: int, minimum: int, now_ms: int
) -> set[int]:
    if branch.max_snapshot_age_ms is not None:
        cutoff_ms = now_ms - branch.max_snapshot_age_ms
    if branch.min_snapshots_to_keep is not None:
        minimum = branch.min_snapshots_to_keep
    kept: set[int] = set()
    for snapshot in metadata.ancestors(branch.snapshot_id):
        if len(kept) >= minimum and snapshot.timestamp_ms < cutoff_ms:
            break
        kept.add(snapshot.snapshot_id)
    return kept


def _check_explicit(metadata: TableMetadata, policy: RetentionPolicy, refs: Mapping[str, SnapshotRef]) -> None:
    for snapshot_id in policy.snapshot_ids:
        metadata.snapshot(snapshot_id)
        names = sorted(name for name, ref in refs.items() if ref.snapshot_id == snapshot_id)
        if names:
            raise UsageError(
                f"cannot expire snapshot {snapshot_id}: it is the head of {', '.join(map(repr, names))}; "
                "remove the reference first"
            )


def _default_cutoff_ms(metadata: TableMetadata, policy: RetentionPolicy, now_ms: int) -> int:
    if policy.older_than_ms is not None:
        return policy.older_than_ms
    return now_ms - _property(metadata, MAX_SNAPSHOT_AGE_MS)


def _property(metadata: TableMetadata, name: str) -> int:
    text = metadata.properties.get(name)
    if text is None:
        return _DEFAULTS[name]
    try:
        return int(text)
    except ValueError:
        raise OptionError(f"table property {name}", given=text, expected="a whole number") from None
