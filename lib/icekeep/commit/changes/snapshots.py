"""Changes of snapshots and references: expire and restore snapshots, branches and tags, rollback. No file is deleted here.

Names are resolved before: a change holds the snapshot at which a reference was read. So it recognises what others did
meanwhile, and a change that is applied again after it landed has nothing left to do. A change that takes snapshots out of the
history of `main` conflicts as soon as `main` has moved: commits of other writers are never undone unseen.
"""

from collections.abc import Hashable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import Literal

import msgspec

from icekeep.commit.attempt import Attempt, Gatherer
from icekeep.commit.manifests import LastingKey, LiveFilesQuestion, ManifestReader, manifest_key
from icekeep.commit.summary import SummaryBuilder
from icekeep.errors import ConflictError, InvalidTableError, NotFoundError, UsageError, table_at
from icekeep.spec.collections import growing
from icekeep.spec.manifests.structs import ManifestContent, ManifestEntry, ManifestFile
from icekeep.spec.metadata import TableMetadata, has_been_current_since, is_ancestor
from icekeep.spec.retention import (
    Expired,
    RetentionPolicy,
    columns_of_schemas,
    select_expired,
    unused_schema_ids,
    unused_spec_ids,
)
from icekeep.spec.snapshots import MAIN, Snapshot, SnapshotRef, moved, validated_ref
from icekeep.spec.types import MAX_LONG
from icekeep.spec.updates import (
    RemovePartitionSpecs,
    RemoveSchemas,
    RemoveSnapshotRef,
    RemoveSnapshots,
    RestoreSnapshots,
    SetSnapshotRef,
    Update,
    missing,
)


class ExpireSnapshots(msgspec.Struct, frozen=True, kw_only=True):
    """A policy, and the time that ages are measured against (epoch ms), the same for every attempt.

    Attributes:
        clean_expired_metadata: also remove schemas and partition specs that neither snapshots nor their files use.
        expected: the plan: that and no more is removed, as far as it still exists; it is a conflict where the policy now keeps
            any of it. `None`: whatever the policy expires.
    """

    policy: RetentionPolicy
    now_ms: int
    clean_expired_metadata: bool = False
    expected: Expired | None = None

    def apply(self, base: TableMetadata, attempt: Attempt) -> tuple[Update, ...]:
        """The policy is evaluated on this base alone, so that a reference created meanwhile keeps its snapshots."""
        expired = select_expired(base, self.policy, self.now_ms)
        if self.expected is not None:
            expired = _as_planned(base, expired, self.expected)
        if self.clean_expired_metadata:
            expired = _with_unused(base, expired, attempt.reader, attempt)
            if self.expected is not None:
                expired = _unused_as_planned(base, expired, self.expected)
        return removals(expired)

    def expired(self, base: TableMetadata, reader: ManifestReader) -> Expired:
        """What the change would remove from a base, whatever is `expected`."""
        expired = select_expired(base, self.policy, self.now_ms)
        return _with_unused(base, expired, reader, reader) if self.clean_expired_metadata else expired


def removals(expired: Expired) -> tuple[Update, ...]:
    updates: list[Update] = [RemoveSnapshotRef(name) for name in sorted(expired.ref_names)]
    if expired.snapshot_ids:
        updates.append(RemoveSnapshots(tuple(sorted(expired.snapshot_ids))))
    if expired.spec_ids:
        updates.append(RemovePartitionSpecs(tuple(sorted(expired.spec_ids))))
    if expired.schema_ids:
        updates.append(RemoveSchemas(tuple(sorted(expired.schema_ids))))
    return tuple(updates)


def _with_unused(base: TableMetadata, expired: Expired, reader: ManifestReader, asks: Gatherer) -> Expired:
    """`expired` with the schemas and partition specs that retained snapshots do not use."""
    # Heads first: their manifests mostly have every spec that is in use.
    heads = {ref.snapshot_id for ref in base.refs.values()}
    retained = [s for s in reversed(base.snapshots) if s.snapshot_id not in expired.snapshot_ids]
    retained.sort(key=lambda s: s.snapshot_id not in heads)
    used = _used_spec_ids(
        (s.spec_id for s in base.partition_specs if s.spec_id != base.default_spec_id), retained, reader
    )
    spec_ids = unused_spec_ids(base, used)
    if spec_ids:
        # A manifest list may have wrong spec ids, and without its spec the partitions of a manifest are unreadable.
        written = asks.gathered(_manifests_of(retained, reader), _WrittenSpec())
        spec_ids = unused_spec_ids(base, used | {spec_id for spec_id in written if spec_id is not None})
    schema_ids = unused_schema_ids(base, expired.snapshot_ids, spec_ids)
    if columns := columns_of_schemas(base, schema_ids):
        # All delete manifests are read, whatever the counts in their lists.
        question = LiveFilesQuestion.of(base, ("compared", columns), partial(_compared, columns))
        deletes = [m for m in _manifests_of(retained, reader) if m.content is ManifestContent.DELETES]
        compared = frozenset[int]().union(*asks.gathered(deletes, question))
        schema_ids = unused_schema_ids(base, expired.snapshot_ids, spec_ids, compared)
    return msgspec.structs.replace(expired, schema_ids=frozenset(schema_ids), spec_ids=frozenset(spec_ids))


def _manifests_of(snapshots: Sequence[Snapshot], reader: ManifestReader) -> list[ManifestFile]:
    return [*{manifest_key(manifest): manifest for one in snapshots for manifest in reader.manifests(one)}.values()]


def _used_spec_ids(spec_ids: Iterable[int], snapshots: Sequence[Snapshot], reader: ManifestReader) -> frozenset[int]:
    """The partition specs, of those given, that a manifest of any of the snapshots has.

    Growing batches of manifest lists are read until all are found, so likely snapshots should come first.
    """
    asked = frozenset(spec_ids)
    unseen = set(asked)
    for some in growing(snapshots):
        if not unseen:
            break
        unseen -= reader.spec_ids(some)
    return asked - unseen


class _WrittenSpec(msgspec.Struct, frozen=True):
    """A `Gathering`: the partition spec in the header of a manifest; `None` where it has none."""

    key: Hashable = LastingKey("written spec")

    def run(self, manifest: ManifestFile, reader: ManifestReader) -> int | None:
        return reader.header(manifest).partition_spec_id


def _compared(columns: frozenset[int], live: Iterator[ManifestEntry]) -> frozenset[int]:
    """The columns, of those given, that equality deletes of a manifest compare."""
    return columns.intersection(chain.from_iterable(entry.data_file.equality_ids or () for entry in live))


def _as_planned(base: TableMetadata, expired: Expired, expected: Expired) -> Expired:
    """The planned snapshots and references that still exist; raises where any of them must stay."""
    planned = msgspec.structs.replace(
        expired,
        snapshot_ids=expected.snapshot_ids & base.snapshots_by_id.keys(),
        ref_names=expected.ref_names & base.refs.keys(),
    )
    kept_count = len(planned.snapshot_ids - expired.snapshot_ids) + len(planned.ref_names - expired.ref_names)
    if kept_count:
        raise ConflictError(
            f"{table_at(base.location)} has changed: {kept_count} of the snapshots and references that were to expire must "
            "stay",
            kept_count=kept_count,
        )
    return planned


def _unused_as_planned(base: TableMetadata, expired: Expired, expected: Expired) -> Expired:
    """The planned schemas and specs that still exist; raises where any of them is in use."""
    schema_ids = expected.schema_ids & base.schemas_by_id.keys()
    spec_ids = expected.spec_ids & base.specs_by_id.keys()
    used_count = len(schema_ids - expired.schema_ids) + len(spec_ids - expired.spec_ids)
    if used_count:
        raise ConflictError(
            f"{table_at(base.location)} has changed: {used_count} of the schemas and partition specs that were to go "
            f"{'is' if used_count == 1 else 'are'} in use",
            used_count=used_count,
        )
    return msgspec.structs.replace(expired, schema_ids=schema_ids, spec_ids=spec_ids)


RefType = Literal["branch", "tag"]


class CreateRef(msgspec.Struct, frozen=True):
    """A branch or tag to create; no error where it exists with the same snapshot and limits.

    With `exists_ok` any existing one of its type is left as it is.
    """

    name: str
    ref: SnapshotRef
    exists_ok: bool = False

    def apply(self, base: TableMetadata, attempt: Attempt) -> tuple[Update, ...]:
        current = base.refs.get(self.name)
        if current is not None and self.exists_ok:
            existing_ref(base, self.name, self.ref.type)
            return ()
        if current == self.ref:
            return ()
        if current is not None:
            raise ref_exists(self.name, current)
        validated_ref(self.name, self.ref)
        base.snapshot(self.ref.snapshot_id)
        return (SetSnapshotRef(self.name, self.ref),)


class CreateBranchOfEmptyTable(msgspec.Struct, frozen=True, kw_only=True):
    """A branch of a table without data, at a new snapshot without files; the limits are those of `SnapshotRef`.

    With `exists_ok` an existing branch is left as it is.
    """

    name: str
    exists_ok: bool = False
    min_snapshots_to_keep: int | None = None
    max_snapshot_age_ms: int | None = None
    max_ref_age_ms: int | None = None

    def apply(self, base: TableMetadata, attempt: Attempt) -> tuple[Update, ...]:
        if (current := base.refs.get(self.name)) is not None:
            if self.exists_ok and current.is_branch:
                return ()
            raise ref_exists(self.name, current)
        if base.current_snapshot_id is not None:
            # The caller saw no snapshot on main, and must choose where the branch starts.
            raise ConflictError(f"{table_at(base.location)} is no longer empty; create the branch again")
        ref = SnapshotRef(
            snapshot_id=attempt.snapshot_id,
            type="branch",
            min_snapshots_to_keep=self.min_snapshots_to_keep,
            max_snapshot_age_ms=self.max_snapshot_age_ms,
            max_ref_age_ms=self.max_ref_age_ms,
        )
        validated_ref(self.name, ref)
        # Built on main, which has no snapshot either; only the reference differs.
        added, _ = attempt.snapshot_updates("append", [], SummaryBuilder())
        return added, SetSnapshotRef(self.name, ref)


class ReplaceRef(msgspec.Struct, frozen=True, kw_only=True):
    """A branch or tag to move from `expected_id` to any other snapshot, its limits unchanged."""

    name: str
    type: RefType
    snapshot_id: int
    expected_id: int

    def apply(self, base: TableMetadata, attempt: Attempt) -> tuple[Update, ...]:
        ref = existing_ref(base, self.name, self.type)
        if ref.snapshot_id == self.snapshot_id:
            return ()
        check_unmoved(self.name, ref, self.expected_id)
        base.snapshot(self.snapshot_id)
        return (SetSnapshotRef(self.name, moved(ref, self.snapshot_id)),)


class CreateOrReplaceRef(msgspec.Struct, frozen=True, kw_only=True):
    """A branch or tag to create, or to move from `expected_id`; limits that are null in `ref` stay.

    `expected_id` is null where there was none: one that others have created since is not moved.
    """

    name: str
    ref: SnapshotRef
    expected_id: int | None

    def apply(self, base: TableMetadata, attempt: Attempt) -> tuple[Update, ...]:
        new, current = self.ref, base.refs.get(self.name)
        if current is not None:
            current = existing_ref(base, self.name, self.ref.type)
            limits = {k: v for k, v in msgspec.structs.asdict(self.ref).items() if v is not None}
            new = msgspec.structs.replace(current, **limits)
            if new == current:
                return ()
            if self.expected_id is None:
                raise ConflictError(
                    f"{current.type} {self.name!r} was made meanwhile, at snapshot {current.snapshot_id}; look at what is "
                    "there now and run it again",
                    ref=self.name,
                )
            check_unmoved(self.name, current, self.expected_id)
        validated_ref(self.name, new)
        base.snapshot(new.snapshot_id)
        return (SetSnapshotRef(self.name, new),)


class FastForwardBranch(msgspec.Struct, frozen=True):
    """A branch to move forward to a descendant of its head; nothing is done where the branch already contains the snapshot.

    Nothing leaves the branch, so it does not matter which snapshot it was at.
    """

    branch: str
    snapshot_id: int

    def apply(self, base: TableMetadata, attempt: Attempt) -> tuple[Update, ...]:
        base.snapshot(self.snapshot_id)
        ref = None
        if self.branch != MAIN or base.head() is not None:
            ref = existing_ref(base, self.branch, "branch")
            if is_ancestor(base, self.snapshot_id, of=ref.snapshot_id):
                return ()
            if not is_ancestor(base, ref.snapshot_id, of=self.snapshot_id):
                raise UsageError(
                    f"cannot fast-forward {self.branch!r} to snapshot {self.snapshot_id}: the branch is at snapshot "
                    f"{ref.snapshot_id}, which is not an ancestor of it"
                )
        return (SetSnapshotRef(self.branch, moved(ref, self.snapshot_id)),)


class RenameBranch(msgspec.Struct, frozen=True, kw_only=True):
    """A branch to rename; commits of others to it meanwhile are kept.

    `snapshot_id` is where it was read, by which a branch that already has the new name is recognised.
    """

    name: str
    new_name: str
    snapshot_id: int

    def apply(self, base: TableMetadata, attempt: Attempt) -> tuple[Update, ...]:
        if self.name == MAIN:
            raise UsageError("main cannot be renamed")
        taken = base.refs.get(self.new_name)
        is_free = self.name not in base.refs
        if is_free and taken and taken.is_branch and is_ancestor(base, self.snapshot_id, of=taken.snapshot_id):
            # An earlier attempt whose answer was lost has renamed it; others may have committed to it since.
            return ()
        ref = existing_ref(base, self.name, "branch")
        if taken is not None:
            raise ref_exists(self.new_name, taken)
        return SetSnapshotRef(self.new_name, validated_ref(self.new_name, ref)), RemoveSnapshotRef(self.name)


class DropRef(msgspec.Struct, frozen=True, kw_only=True):
    """A branch or tag to drop, while it is at `expected_id`; no error where it does not exist."""

    name: str
    type: RefType
    expected_id: int

    def apply(self, base: TableMetadata, attempt: Attempt) -> tuple[Update, ...]:
        if self.name == MAIN:
            raise UsageError("main cannot be dropped")
        if self.name not in base.refs:
            return ()
        check_unmoved(self.name, existing_ref(base, self.name, self.type), self.expected_id)
        return (RemoveSnapshotRef(self.name),)


class DropRefs(msgspec.Struct, frozen=True):
    """Branches and tags to drop together: all or none."""

    drops: tuple[DropRef, ...]

    def apply(self, base: TableMetadata, attempt: Attempt) -> tuple[Update, ...]:
        return tuple(update for drop in self.drops for update in drop.apply(base, attempt))


class SetRefRetention(msgspec.Struct, frozen=True, kw_only=True):
    """Limits to set on a branch or tag, whatever its snapshot; those that are null stay as they are."""

    name: str
    min_snapshots_to_keep: int | None = None
    max_snapshot_age_ms: int | None = None
    max_ref_age_ms: int | None = None

    def apply(self, base: TableMetadata, attempt: Attempt) -> tuple[Update, ...]:
        ref = base.refs.get(self.name)
        if ref is None:
            raise no_such_ref(base, self.name, "branch or tag")
        limits = {k: v for k, v in msgspec.structs.asdict(self).items() if v is not None and k != "name"}
        new = validated_ref(self.name, msgspec.structs.replace(ref, **limits))
        return () if new == ref else (SetSnapshotRef(self.name, new),)


def existing_ref(base: TableMetadata, name: str, kind: RefType) -> SnapshotRef:
    """Raises `NotFoundError` where there is none of this name, `UsageError` where it is of the other type."""
    ref = base.refs.get(name)
    if ref is None:
        raise no_such_ref(base, name, kind)
    if ref.type != kind:
        raise UsageError(f"{name!r} is a {ref.type}, not a {kind}")
    return ref


def check_unmoved(name: str, ref: SnapshotRef, expected_id: int) -> None:
    """Raise `ConflictError` where a reference is not at the snapshot where it was read."""
    if ref.snapshot_id != expected_id:
        raise ConflictError(
            f"{ref.type} {name!r} was moved from snapshot {expected_id} to {ref.snapshot_id} meanwhile; look at what is "
            "there now and run it again",
            ref=name,
        )


def no_such_ref(base: TableMetadata, name: str, kind: str) -> NotFoundError:
    """The error for a missing reference; it lists the existing ones of the kind."""
    others = ", ".join(repr(n) for n, ref in sorted(base.refs.items()) if ref.type in kind)
    return NotFoundError(
        f"{table_at(base.location)} has no {kind} {name!r}{f'; there is {others}' if others else ''}", ref=name
    )


def ref_exists(name: str, ref: SnapshotRef) -> UsageError:
    return UsageError(f"{ref.type} {name!r} exists already, at snapshot {ref.snapshot_id}; drop or replace it")


FOREVER_MS = MAX_LONG
"""An age that no reference reaches: a tag without a maximum age would have the table's default."""


class RestoreExpired(msgspec.Struct, frozen=True, kw_only=True):
    """Snapshots to restore as they were in the metadata `before` they expired, each with a tag.

    Existing ones get no tag: they did not expire, or others have restored them. `keep_for_ms` is how long from now on the tags
    keep them; `None`: until they are dropped.
    """

    before: TableMetadata
    snapshot_ids: tuple[int, ...]
    keep_for_ms: int | None = None

    def apply(self, base: TableMetadata, attempt: Attempt) -> tuple[Update, ...]:
        snapshots = tuple(missing(self._snapshots(), base.snapshots, "snapshot", "snapshot_id"))
        if not snapshots:
            return ()
        tags = tuple(self._tag(snapshot, base, attempt.now_ms) for snapshot in snapshots)
        # Missing in the base, or different there.
        specs = [s for s in self.before.partition_specs if base.specs_by_id.get(s.spec_id) != s]
        used = _used_spec_ids((s.spec_id for s in specs), snapshots, attempt.reader)
        specs = [s for s in specs if s.spec_id in used]
        # Their own schemas, and those with columns that restored partition specs need and the base lacks.
        schema_ids = {s.schema_id for s in snapshots}
        sources = {field.source_id for spec in specs for field in spec.fields}
        columns = {field_id for schema in base.schemas for field_id in schema.fields_by_id}
        schema_ids.update(self.before.schema_of(source).schema_id for source in sources - columns)
        ids = {s.snapshot_id for s in snapshots}
        restored = RestoreSnapshots(
            snapshots=snapshots,
            schemas=tuple(
                s for s in self.before.schemas if s.schema_id in schema_ids and base.schemas_by_id.get(s.schema_id) != s
            ),
            partition_specs=tuple(specs),
            statistics=tuple(file for file in self.before.statistics if file.snapshot_id in ids),
            partition_statistics=tuple(file for file in self.before.partition_statistics if file.snapshot_id in ids),
        )
        return restored, *tags

    def check(self, base: TableMetadata) -> None:
        """Raise what `apply` would raise on this base, as far as that is known before files are back in their places."""
        for snapshot in missing(self._snapshots(), base.snapshots, "snapshot", "snapshot_id"):
            self._tag(snapshot, base, 0)

    def _tag(self, snapshot: Snapshot, base: TableMetadata, now_ms: int) -> SetSnapshotRef:
        name = restored_tag(snapshot.snapshot_id)
        if (taken := base.refs.get(name)) is not None:
            raise ref_exists(name, taken)
        age_ms = FOREVER_MS
        if self.keep_for_ms is not None:
            # The age of a reference is that of its snapshot.
            age_ms = min(FOREVER_MS, max(0, now_ms - snapshot.timestamp_ms) + self.keep_for_ms)
        return SetSnapshotRef(name, SnapshotRef(snapshot_id=snapshot.snapshot_id, type="tag", max_ref_age_ms=age_ms))

    def _snapshots(self) -> list[Snapshot]:
        ids = {*self.snapshot_ids}
        if unknown := ids - self.before.snapshots_by_id.keys():
            raise InvalidTableError(
                f"snapshot {min(unknown)} cannot be restored: the metadata from before it expired does not have it"
            )
        return [s for s in self.before.snapshots if s.snapshot_id in ids]


def restored_tag(snapshot_id: int) -> str:
    """The tag of a restored snapshot."""
    return f"restored-{snapshot_id}"


class SetCurrentSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """Any snapshot of the table, to become current in the place of `expected_id`; `None`: the table was empty."""

    snapshot_id: int
    expected_id: int | None

    def apply(self, base: TableMetadata, attempt: Attempt) -> tuple[Update, ...]:
        # An attempt whose answer was lost may have landed, and others may have committed on top of it.
        if has_been_current_since(base, self.snapshot_id, self.expected_id):
            return ()
        if base.current_snapshot_id != self.expected_id:
            raise ConflictError(
                f"main was moved from snapshot {self.expected_id} to {base.current_snapshot_id} meanwhile; look at what is "
                "there now and run it again",
                ref=MAIN,
            )
        base.snapshot(self.snapshot_id)
        return (SetSnapshotRef(MAIN, moved(base.refs.get(MAIN), self.snapshot_id)),)


class RollbackToSnapshot(SetCurrentSnapshot, frozen=True, kw_only=True):
    """An ancestor of `expected_id`, to become current in its place."""

    def apply(self, base: TableMetadata, attempt: Attempt) -> tuple[Update, ...]:
        updates = SetCurrentSnapshot.apply(self, base, attempt)
        if updates and not is_ancestor(base, self.snapshot_id, of=self.expected_id):
            raise UsageError(
                f"cannot roll back to snapshot {self.snapshot_id}: it is not an ancestor of the current snapshot "
                f"{self.expected_id}; `icekeep rollback --set-current`, in Python set_current_snapshot, takes any snapshot"
            )
        return updates
