"""Create, move and drop branches and tags, for users who have no other engine.

Each function decides by the table that it is given, and returns the table after its commit. Where others have moved the reference
since, it is a conflict: load the table again and look.
"""

from fnmatch import fnmatchcase
from typing import Any

from icekeep.catalog.base import Table
from icekeep.commit.attempt import Change
from icekeep.commit.changes.snapshots import (
    CreateBranchOfEmptyTable,
    CreateOrReplaceRef,
    CreateRef,
    DropRef,
    DropRefs,
    FastForwardBranch,
    RefType,
    RenameBranch,
    ReplaceRef,
    SetRefRetention,
    existing_ref,
    no_such_ref,
    ref_exists,
)
from icekeep.commit.retry import commit
from icekeep.errors import NotFoundError, OptionError, UsageError, argument
from icekeep.spec.metadata import TableMetadata, is_ancestor
from icekeep.spec.snapshots import MAIN, Snapshot, SnapshotRef
from icekeep.spec.times import Span, span_ms
from icekeep.spelling import counted


def create_branch(  # noqa: PLR0913 - the words of the statement in SQL
    table: Table,
    name: str,
    snapshot_id: int | None = None,
    *,
    min_snapshots_to_keep: int | None = None,
    max_snapshot_age: Span | None = None,
    max_ref_age: Span | None = None,
    if_not_exists: bool = False,
    or_replace: bool = False,
) -> Table:
    """Create a branch and commit; returns the table after it.

    Args:
        name: no branch or tag may have it yet, except a branch with `if_not_exists` or `or_replace`.
        snapshot_id: where the branch starts; by default the current snapshot of `table`. A branch of a table without data
            starts at a new snapshot without files.
        min_snapshots_to_keep: snapshots that expiration leaves on the branch; the table's default if `None`, as for the ages.
        max_snapshot_age: the age from which on expiration takes snapshots of the branch.
        max_ref_age: the age of its head from which on expiration takes the branch itself.
        if_not_exists: a branch of this name stays as it is, and nothing is committed.
        or_replace: a branch of this name is moved to the snapshot and gets the limits that are given; its other limits stay.

    Raises:
        UsageError: the name is taken, a limit is not a positive number, or both `if_not_exists` and `or_replace` are given.
        NotFoundError: the table has no such snapshot, or none to which the branch could be moved.
        ConflictError: others have moved or made the branch that was to be replaced since `table` was loaded; further as
            `commit` raises it.
        OutcomeUnknownError: as `commit` raises it.
    """
    existing = _existing(table, name, "branch", if_not_exists=if_not_exists, or_replace=or_replace)
    if existing is not None and if_not_exists:
        return table
    limits: dict[str, Any] = {
        "min_snapshots_to_keep": min_snapshots_to_keep,
        "max_snapshot_age_ms": _age_ms("max_snapshot_age", max_snapshot_age),
        "max_ref_age_ms": _age_ms("max_ref_age", max_ref_age),
    }
    start_id = table.metadata.current_snapshot_id if snapshot_id is None else snapshot_id
    if start_id is not None:
        ref = SnapshotRef(snapshot_id=start_id, type="branch", **limits)
        return _create(table, name, ref, existing, if_not_exists=if_not_exists, or_replace=or_replace)
    if existing is not None:
        raise NotFoundError(
            f"table {table.name!r} has no snapshot on 'main' to which {name!r} could be moved", ref=name
        )
    return commit(table, CreateBranchOfEmptyTable(name=name, exists_ok=if_not_exists, **limits)).table


def create_tag(
    table: Table,
    name: str,
    snapshot_id: int | None = None,
    *,
    max_ref_age: Span | None = None,
    if_not_exists: bool = False,
    or_replace: bool = False,
) -> Table:
    """Create a tag and commit; returns the table after it. Expiration keeps the snapshot of a tag, not its ancestors.

    Args:
        name: no branch or tag may have it yet, except a tag with `if_not_exists` or `or_replace`.
        snapshot_id: what the tag names; by default the current snapshot of `table`.
        max_ref_age: the age of the snapshot from which on expiration takes the tag; the table's default if `None`.
        if_not_exists: a tag of this name stays as it is, and nothing is committed.
        or_replace: a tag of this name is moved to the snapshot; its age stays where none is given.

    Raises:
        UsageError: the name is taken or `main`, the age is not a positive number, or both `if_not_exists` and `or_replace` are
            given.
        NotFoundError: the table has no such snapshot, or none at all.
        ConflictError: others have moved or made the tag that was to be replaced since `table` was loaded; further as `commit`
            raises it.
        OutcomeUnknownError: as `commit` raises it.
    """
    existing = _existing(table, name, "tag", if_not_exists=if_not_exists, or_replace=or_replace)
    if existing is not None and if_not_exists:
        return table
    tagged_id = table.metadata.current_snapshot_id if snapshot_id is None else snapshot_id
    if tagged_id is None:
        raise NotFoundError(f"table {table.name!r} has no snapshot that {name!r} could name")
    ref = SnapshotRef(snapshot_id=tagged_id, type="tag", max_ref_age_ms=_age_ms("max_ref_age", max_ref_age))
    return _create(table, name, ref, existing, if_not_exists=if_not_exists, or_replace=or_replace)


def _existing(table: Table, name: str, kind: RefType, *, if_not_exists: bool, or_replace: bool) -> SnapshotRef | None:
    """The reference with the name, where one of the arguments allows for it; `None` where the name is free."""
    if if_not_exists and or_replace:
        raise UsageError(
            f"{argument('if_not_exists')} keeps a {kind} that is there, and {argument('or_replace')} moves it: give one of them"
        )
    existing = table.metadata.refs.get(name)
    # Even one with the same snapshot and limits: the caller asked for a new one.
    if existing is not None and not (if_not_exists or or_replace):
        raise ref_exists(name, existing)
    return None if existing is None else existing_ref(table.metadata, name, kind)


def _create(
    table: Table, name: str, ref: SnapshotRef, existing: SnapshotRef | None, *, if_not_exists: bool, or_replace: bool
) -> Table:
    change: Change = CreateRef(name, ref, exists_ok=if_not_exists)
    if or_replace:
        expected_id = None if existing is None else existing.snapshot_id
        change = CreateOrReplaceRef(name=name, ref=ref, expected_id=expected_id)
    return commit(table, change).table


def replace_branch(table: Table, name: str, snapshot_id: int | None = None, *, to: str | None = None) -> Table:
    """Move a branch to any snapshot of the table and commit; returns the table after it. Its limits stay.

    Args:
        name: a branch that is not there is made where `to` is given.
        snapshot_id: where it goes; this or `to`.
        to: the branch or tag whose snapshot in `table` it goes to.

    Raises:
        UsageError: it is a tag, or not exactly one of the two is given.
        NotFoundError: there is no such branch or snapshot.
        ConflictError: others have moved the branch since `table` was loaded; further as `commit` raises it.
        OutcomeUnknownError: as `commit` raises it.
    """
    if (snapshot_id is None) is (to is None):
        raise UsageError("replace_branch takes a snapshot's id, or the branch or tag to go to, and not both")
    if to is not None:
        target_id = head_of(table, to)
        if (new := _new_branch(table, name, target_id)) is not None:
            return commit(table, new).table
        snapshot_id = target_id
    assert snapshot_id is not None
    return _replace(table, name, "branch", snapshot_id)


def replace_tag(table: Table, name: str, snapshot_id: int) -> Table:
    """Let a tag name another snapshot and commit; returns the table after it. Raises what `replace_branch` raises."""
    return _replace(table, name, "tag", snapshot_id)


def _replace(table: Table, name: str, kind: RefType, snapshot_id: int) -> Table:
    seen_id = existing_ref(table.metadata, name, kind).snapshot_id
    return commit(table, ReplaceRef(name=name, type=kind, snapshot_id=snapshot_id, expected_id=seen_id)).table


def fast_forward(table: Table, branch: str, to: str) -> Table:
    """Move a branch on to where another branch or tag is in `table`, and commit; returns the table after it.

    Nothing leaves the branch. One that is not there is created, one that is there already stays where it is.

    Raises:
        UsageError: `branch` is a tag, or its head is not an ancestor of the head of `to`, such as where `to` is behind.
        NotFoundError: there is no `to`.
        ConflictError, OutcomeUnknownError: as `commit` raises them.
    """
    target_id = head_of(table, to)
    if (new := _new_branch(table, branch, target_id)) is not None:
        return commit(table, new).table
    seen_id = existing_ref(table.metadata, branch, "branch").snapshot_id
    # What others bring to the branch meanwhile, this snapshot among it, is no reason to refuse.
    if seen_id != target_id and is_ancestor(table.metadata, target_id, of=seen_id):
        raise UsageError(
            f"cannot fast-forward {branch!r} to {to!r}, which is behind it: {branch!r} is at snapshot {seen_id}, and {to!r} at "
            f"{target_id}, one of its ancestors; `ref replace-branch` moves a branch back"
        )
    return commit(table, FastForwardBranch(branch, target_id)).table


def rename_branch(table: Table, name: str, new_name: str) -> Table:
    """Give a branch another name and commit; returns the table after it. Its limits move with it.

    Raises:
        UsageError: it is `main` or a tag, or the new name is taken.
        NotFoundError: there is no such branch.
        ConflictError, OutcomeUnknownError: as `commit` raises them.
    """
    seen_id = existing_ref(table.metadata, name, "branch").snapshot_id
    return commit(table, RenameBranch(name=name, new_name=new_name, snapshot_id=seen_id)).table


def head_of(table: Table, name: str) -> int:
    """The snapshot id of a branch or tag; raises `NotFoundError` where it does not exist, or has no snapshot."""
    target = table.metadata.head(name)
    if target is None:
        raise NotFoundError(f"table {table.name!r} has no snapshot on {name!r} yet", ref=name)
    return target.snapshot_id


def _new_branch(table: Table, branch: str, snapshot_id: int) -> Change | None:
    """The change that creates a branch, `None` where it exists; `main` of a table without data has no snapshot yet."""
    if branch in table.metadata.refs or (branch == MAIN and table.metadata.head() is not None):
        return None
    if branch == MAIN:
        return FastForwardBranch(branch, snapshot_id)
    return CreateRef(branch, SnapshotRef(snapshot_id=snapshot_id, type="branch"))


def drop_branch(table: Table, name: str, *, if_exists: bool = False) -> Table:
    """Drop a branch and commit; returns the table after it. What only it names stays until it expires.

    With `if_exists` nothing is done where no branch or tag has this name.

    Raises:
        UsageError: it is `main` or a tag.
        NotFoundError: there is no such branch.
        ConflictError: others have committed to the branch since `table` was loaded; further as `commit` raises it.
        OutcomeUnknownError: as `commit` raises it.
    """
    return _drop(table, name, "branch", if_exists=if_exists)


def drop_tag(table: Table, name: str, *, if_exists: bool = False) -> Table:
    """Drop a tag and commit; returns the table after it. Takes and raises what `drop_branch` does."""
    return _drop(table, name, "tag", if_exists=if_exists)


def _drop(table: Table, name: str, kind: RefType, *, if_exists: bool) -> Table:
    if if_exists and name != MAIN and name not in table.metadata.refs:
        return table
    seen_id = existing_ref(table.metadata, name, kind).snapshot_id
    return commit(table, DropRef(name=name, type=kind, expected_id=seen_id)).table


def drop_matching_tags(table: Table, pattern: str, *, if_exists: bool = False) -> Table:
    """Drop all tags whose names match a pattern, in one commit; returns the table after it.

    Args:
        pattern: a name in which `*` is any text, `?` any character and `[...]` one of those in it, such as `restored-*`.
        if_exists: do nothing where no tag matches.

    Raises:
        NotFoundError: no tag matches.
        ConflictError: others have moved one of them since `table` was loaded; further as `commit` raises it.
        OutcomeUnknownError: as `commit` raises it.
    """
    tags = {name: ref for name, ref in table.metadata.refs.items() if not ref.is_branch}
    chosen = sorted(name for name in tags if fnmatchcase(name, pattern))
    if not chosen:
        if if_exists:
            return table
        raise NotFoundError(f"no tag matches {pattern!r}; the table has {counted(len(tags), 'tags')}", ref=pattern)
    drops = tuple(DropRef(name=name, type="tag", expected_id=tags[name].snapshot_id) for name in chosen)
    return commit(table, DropRefs(drops)).table


def set_ref_retention(
    table: Table,
    name: str,
    *,
    min_snapshots_to_keep: int | None = None,
    max_snapshot_age: Span | None = None,
    max_ref_age: Span | None = None,
) -> Table:
    """Set limits of a branch or tag, as `create_branch` takes them, and commit; `None` ones stay. Returns the table after it.

    Raises:
        UsageError: no limit is given, one is not a positive number, or a tag is given one that only branches have.
        NotFoundError: there is no such branch or tag.
        ConflictError, OutcomeUnknownError: as `commit` raises them.
    """
    if min_snapshots_to_keep is None and max_snapshot_age is None and max_ref_age is None:
        raise UsageError(f"there is no limit to set on {name!r}; give at least one")
    change = SetRefRetention(
        name=name,
        min_snapshots_to_keep=min_snapshots_to_keep,
        max_snapshot_age_ms=_age_ms("max_snapshot_age", max_snapshot_age),
        max_ref_age_ms=_age_ms("max_ref_age", max_ref_age),
    )
    return commit(table, change).table


def head_to_commit_to(metadata: TableMetadata, branch: str) -> Snapshot | None:
    """The head of a branch that is to be written; `None` only for `main` of a table without data.

    A branch must exist before a commit: a mistyped name would otherwise become a branch with no data but what is committed.

    Raises:
        NotFoundError: there is no such branch.
        UsageError: it is a tag.
    """
    ref = metadata.refs.get(branch)
    if ref is None and branch != MAIN:
        raise no_such_ref(metadata, branch, "branch")
    if ref is not None and not ref.is_branch:
        raise UsageError(f"{branch!r} is a tag; only a branch can be committed to", ref=branch)
    return metadata.head(branch)


def _age_ms(argument: str, span: Span | None) -> int | None:
    """An argument's age in ms, at least 1, since the format has no smaller limit."""
    if span is None:
        return None
    age_ms = span_ms(span)
    if age_ms < 1:
        raise OptionError(argument, given=str(span), expected="an age of 1 ms or more, as in 7d")
    return age_ms
