"""Create, rename and drop branches and tags, and set their retention.

Names are resolved by whoever decides: a change holds the snapshot that a reference was seen at. So it can tell what it
wants from what others made of it meanwhile, and one that is applied again after it landed finds nothing left to do.
"""

from typing import Literal

import msgspec

from icekeep.commit.attempt import Attempt
from icekeep.commit.summary import SummaryBuilder
from icekeep.errors import ConflictError, NotFoundError, UsageError
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.refs import is_ancestor, moved, validated_ref
from icekeep.spec.snapshots import MAIN, SnapshotRef
from icekeep.spec.updates import RemoveSnapshotRef, SetSnapshotRef, Update

RefType = Literal["branch", "tag"]


class CreateRef(msgspec.Struct, frozen=True):
    """A branch or tag to make; one that is there already, with the same snapshot and limits, is fine.

    With `exists_ok` any other of its type is fine as well, and stays as it is.
    """

    name: str
    ref: SnapshotRef
    exists_ok: bool = False

    def apply(self, base: TableMetadata, attempt: Attempt) -> tuple[Update, ...]:
        known = base.refs.get(self.name)
        if known is not None and self.exists_ok:
            named(base, self.name, _kind(self.ref))
            return ()
        if known == self.ref:
            return ()
        if known is not None:
            raise ref_exists(self.name, known)
        validated_ref(self.name, self.ref)
        base.snapshot(self.ref.snapshot_id)
        return (SetSnapshotRef(self.name, self.ref),)


class CreateBranchOfEmptyTable(msgspec.Struct, frozen=True, kw_only=True):
    """A branch of a table without data, at a new snapshot without files; the limits are those of `SnapshotRef`.

    With `exists_ok` a branch that is there already is fine, and stays as it is.
    """

    name: str
    exists_ok: bool = False
    min_snapshots_to_keep: int | None = None
    max_snapshot_age_ms: int | None = None
    max_ref_age_ms: int | None = None

    def apply(self, base: TableMetadata, attempt: Attempt) -> tuple[Update, ...]:
        if (known := base.refs.get(self.name)) is not None:
            if self.exists_ok and known.is_branch:
                return ()
            raise ref_exists(self.name, known)
        if base.current_snapshot_id is not None:
            # From which of main's snapshots the branch is to start is for the one to say who knows that there are any.
            raise ConflictError(f"the table at {base.location!r} is no longer empty; create the branch again")
        ref = SnapshotRef(
            snapshot_id=attempt.snapshot_id,
            type="branch",
            min_snapshots_to_keep=self.min_snapshots_to_keep,
            max_snapshot_age_ms=self.max_snapshot_age_ms,
            max_ref_age_ms=self.max_ref_age_ms,
        )
        validated_ref(self.name, ref)
        # On top of main, which has no snapshot either; only where the new one is published differs.
        added, _ = attempt.snapshot_updates("append", [], SummaryBuilder())
        return added, SetSnapshotRef(self.name, ref)


class ReplaceRef(msgspec.Struct, frozen=True, kw_only=True):
    """A branch or tag to be moved from the snapshot that it was seen at to any other, its limits unchanged."""

    name: str
    type: RefType
    snapshot_id: int
    expected_id: int

    def apply(self, base: TableMetadata, attempt: Attempt) -> tuple[Update, ...]:
        ref = named(base, self.name, self.type)
        if ref.snapshot_id == self.snapshot_id:
            return ()
        check_unmoved(self.name, ref, self.expected_id)
        base.snapshot(self.snapshot_id)
        return (SetSnapshotRef(self.name, moved(ref, self.snapshot_id)),)


class CreateOrReplaceRef(msgspec.Struct, frozen=True, kw_only=True):
    """A branch or tag to make, or to move while it is at the snapshot that it was seen at; limits of `ref` that are null stay.

    `expected_id` is null where there was none: one that others have made since is not moved.
    """

    name: str
    ref: SnapshotRef
    expected_id: int | None

    def apply(self, base: TableMetadata, attempt: Attempt) -> tuple[Update, ...]:
        new, known = self.ref, base.refs.get(self.name)
        if known is not None:
            known = named(base, self.name, _kind(self.ref))
            given = {name: getattr(self.ref, name) for name in self.ref.__struct_fields__}
            new = msgspec.structs.replace(known, **{name: value for name, value in given.items() if value is not None})
            if new == known:
                return ()
            if self.expected_id is None:
                raise ConflictError(
                    f"{known.type} {self.name!r} was made meanwhile, at snapshot {known.snapshot_id}; look at what is there now "
                    "and run it again",
                    ref=self.name,
                )
            check_unmoved(self.name, known, self.expected_id)
        validated_ref(self.name, new)
        base.snapshot(new.snapshot_id)
        return (SetSnapshotRef(self.name, new),)


class FastForwardBranch(msgspec.Struct, frozen=True):
    """A branch to be moved on to a snapshot that its head leads to; a branch that holds it already is fine.

    Nothing that is on the branch leaves it, so it does not matter where the branch was seen.
    """

    branch: str
    snapshot_id: int

    def apply(self, base: TableMetadata, attempt: Attempt) -> tuple[Update, ...]:
        base.snapshot(self.snapshot_id)
        ref = None
        if self.branch != MAIN or base.head() is not None:
            ref = named(base, self.branch, "branch")
            if is_ancestor(base, self.snapshot_id, of=ref.snapshot_id):
                return ()
            if not is_ancestor(base, ref.snapshot_id, of=self.snapshot_id):
                raise UsageError(
                    f"cannot fast-forward {self.branch!r} to snapshot {self.snapshot_id}: the branch is at snapshot "
                    f"{ref.snapshot_id}, which is not an ancestor of it"
                )
        return (SetSnapshotRef(self.branch, moved(ref, self.snapshot_id)),)


class RenameBranch(msgspec.Struct, frozen=True, kw_only=True):
    """A branch to have another name; what others commit to it meanwhile moves with it.

    `snapshot_id` is where it was seen, by which a branch that has its new name already is recognised.
    """

    name: str
    new_name: str
    snapshot_id: int

    def apply(self, base: TableMetadata, attempt: Attempt) -> tuple[Update, ...]:
        if self.name == MAIN:
            raise UsageError("main cannot be renamed")
        taken = base.refs.get(self.new_name)
        if self.name not in base.refs and taken is not None and _holds(base, taken, self.snapshot_id):
            # A commit of ours whose answer was lost has renamed it; others may have committed to it since.
            return ()
        ref = named(base, self.name, "branch")
        if taken is not None:
            raise ref_exists(self.new_name, taken)
        return SetSnapshotRef(self.new_name, validated_ref(self.new_name, ref)), RemoveSnapshotRef(self.name)


class DropRef(msgspec.Struct, frozen=True, kw_only=True):
    """A branch or tag to go, while it is at the snapshot that it was seen at; one that is gone already is fine.

    Its snapshots stay until they expire.
    """

    name: str
    type: RefType
    expected_id: int

    def apply(self, base: TableMetadata, attempt: Attempt) -> tuple[Update, ...]:
        if self.name == MAIN:
            raise UsageError("main cannot be dropped")
        if self.name not in base.refs:
            return ()
        check_unmoved(self.name, named(base, self.name, self.type), self.expected_id)
        return (RemoveSnapshotRef(self.name),)


class DropRefs(msgspec.Struct, frozen=True):
    """Branches and tags to go together: where one cannot, none does."""

    drops: tuple[DropRef, ...]

    def apply(self, base: TableMetadata, attempt: Attempt) -> tuple[Update, ...]:
        return tuple(update for drop in self.drops for update in drop.apply(base, attempt))


class SetRefRetention(msgspec.Struct, frozen=True, kw_only=True):
    """Limits to set on a branch or tag, wherever it is; those that are null stay as they are."""

    name: str
    min_snapshots_to_keep: int | None = None
    max_snapshot_age_ms: int | None = None
    max_ref_age_ms: int | None = None

    def apply(self, base: TableMetadata, attempt: Attempt) -> tuple[Update, ...]:
        ref = base.refs.get(self.name)
        if ref is None:
            raise no_such_ref(base, self.name, "branch or tag")
        given = {name: getattr(self, name) for name in self.__struct_fields__ if name != "name"}
        changed = {name: limit for name, limit in given.items() if limit is not None}
        new = validated_ref(self.name, msgspec.structs.replace(ref, **changed))
        return () if new == ref else (SetSnapshotRef(self.name, new),)


def _holds(base: TableMetadata, ref: SnapshotRef, snapshot_id: int) -> bool:
    return ref.is_branch and is_ancestor(base, snapshot_id, of=ref.snapshot_id)


def named(base: TableMetadata, name: str, kind: RefType) -> SnapshotRef:
    """The branch or tag of this name.

    Raises:
        NotFoundError: there is no reference of this name.
        UsageError: it is of the other type.
    """
    ref = base.refs.get(name)
    if ref is None:
        raise no_such_ref(base, name, kind)
    if ref.type != kind:
        raise UsageError(f"{name!r} is a {ref.type}, not a {kind}")
    return ref


def _kind(ref: SnapshotRef) -> RefType:
    return "branch" if ref.is_branch else "tag"


def check_unmoved(name: str, ref: SnapshotRef, expected_id: int) -> None:
    """Raise `ConflictError` where a reference is not where it was seen when the change was decided."""
    if ref.snapshot_id != expected_id:
        raise ConflictError(
            f"{ref.type} {name!r} was moved from snapshot {expected_id} to {ref.snapshot_id} meanwhile; look at what is "
            "there now and run it again",
            ref=name,
        )


def no_such_ref(base: TableMetadata, name: str, kind: str) -> NotFoundError:
    """The error for a reference that is not there, with those that are."""
    known = ", ".join(repr(n) for n, ref in sorted(base.refs.items()) if ref.type in kind)
    return NotFoundError(
        f"the table at {base.location!r} has no {kind} {name!r}{f'; there is {known}' if known else ''}", ref=name
    )


def ref_exists(name: str, ref: SnapshotRef) -> UsageError:
    """The error for a name that is taken."""
    return UsageError(f"{ref.type} {name!r} exists already, at snapshot {ref.snapshot_id}; drop or replace it")
