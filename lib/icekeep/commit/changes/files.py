"""Add and remove whole data files: append, overwrite, delete and cherry-pick.

`CherryPick` publishes a snapshot that is not in the history of `main`: one that was staged (write, audit, publish), or of a
branch. Where `main` is still at its parent, the snapshot itself becomes current. Where `main` has moved on, an append or a
dynamic overwrite is replayed as a new snapshot, whose summary names the original.
"""

from collections.abc import Hashable, Mapping, Sequence

import msgspec

from icekeep.commit.attempt import Attempt
from icekeep.commit.conflicts import ADDED_DATA, ADDED_DELETES, REMOVED_DATA, Isolation, Matching, Since, live_at
from icekeep.commit.file_sets import Digest, digest_of_all, entry_digest
from icekeep.commit.live_files import KeptManifests, add, live_manifests, merged, remove, remove_deletes, require_spec
from icekeep.commit.manifests import Selection
from icekeep.commit.summary import PUBLISHED_WAP_ID, SOURCE_SNAPSHOT_ID, STAGED_WAP_ID, SummaryBuilder
from icekeep.errors import ConflictError, SafetyError, UnsupportedError, UsageError
from icekeep.spec.filters.binding import bind
from icekeep.spec.filters.expressions import ALWAYS_FALSE, ALWAYS_TRUE, Expression
from icekeep.spec.manifests.structs import DataFile, FileContent, ManifestContent, ManifestEntry, ManifestFile, Status
from icekeep.spec.metadata import TableMetadata, is_ancestor
from icekeep.spec.reach import partition_key, path_digest
from icekeep.spec.snapshots import MAIN, Snapshot, SnapshotRef, moved
from icekeep.spec.updates import RemoveSnapshotRef, SetSnapshotRef, Update


class AppendFiles(msgspec.Struct, frozen=True, kw_only=True):
    """Files to add; the only conflict is a partition spec of theirs that no longer exists.

    Without `merges_manifests` the table's manifests stay as they are, however many there are (a fast append).
    """

    files: tuple[DataFile, ...]
    branch: str = MAIN
    merges_manifests: bool = True
    summary: Mapping[str, str] = {}

    def apply(self, base: TableMetadata, attempt: Attempt) -> tuple[Update, ...]:
        if not self.files:
            return ()
        summary = SummaryBuilder(self.summary)
        added = add(self.files, attempt, summary)
        kept = live_manifests(attempt, self.branch)
        data = [*added, *kept.data]
        data = merged(data, attempt) if self.merges_manifests else data
        return attempt.snapshot_updates("append", [*data, *kept.deletes], summary, branch=self.branch)


class MatchingFiles(Selection):
    """Data files at these paths, and files of either content all of whose rows match a filter, bound to the current schema.

    Delete files match by partition alone: the bounds of an equality delete file are of the rows that its writer deleted, not
    of all that it applies to.
    """

    def __init__(self, rows: Expression, base: TableMetadata, paths: frozenset[str] = frozenset()) -> None:
        self._matching, self._schema_id, self._paths = Matching(base, rows), base.current_schema_id, paths

    def key(self, manifest: ManifestFile) -> Hashable:
        if self._paths and manifest.content is ManifestContent.DATA:
            return "rows and paths", self._schema_id
        return ("rows", self._schema_id) if self._matching.manifest(manifest) else None

    def entry(self, entry: ManifestEntry) -> bool:
        """Raises `UnsupportedError` for a data file of which some rows, but perhaps not all, match."""
        file = entry.data_file
        if file.content is not FileContent.DATA:
            return self._matching.residual(file) is ALWAYS_TRUE
        if file.file_path in self._paths:
            return True
        if not self._matching.entry(entry):
            return False
        if self._matching.holds_only(file):
            return True
        raise UnsupportedError(
            f"data file {file.file_path!r} may hold rows that match the filter and rows that do not; it cannot be "
            "removed as a whole, so nothing was changed: rewrite the file, or filter by partition"
        )


class WhollyMatchingFiles(Selection):
    """Data files all of whose rows match a filter, bound to the current schema, by partition and metrics alone.

    Args:
        only: no file without one of these digests (`entry_digest`) is selected; `None`: any.
    """

    def __init__(self, rows: Expression, base: TableMetadata, only: frozenset[Digest] | None = None) -> None:
        self._matching, self._only = Matching(base, rows), only
        self._key = "all rows match", base.current_schema_id, None if only is None else digest_of_all(only)

    def key(self, manifest: ManifestFile) -> Hashable:
        return self._key if self._matching.manifest(manifest) else None

    def entry(self, entry: ManifestEntry) -> bool:
        if entry.data_file.content is not FileContent.DATA or not self._matching.entry(entry):
            return False
        return self._matching.holds_only(entry.data_file) and (self._only is None or entry_digest(entry) in self._only)


class OverwriteFiles(msgspec.Struct, frozen=True, kw_only=True):
    """Live entries to remove, as they were read, a filter whose rows are removed, and data files to add.

    Filters are not bound. `starting_snapshot_id` is the snapshot that was read; `None`: the table was empty. `isolation` is
    checked for `conflict_rows`; `None`: for `rows`, and for all new data where entries are named. Whatever the isolation, rows
    of a named file that were deleted since it was read do not come back in the files that replace it.
    """

    removed: tuple[ManifestEntry, ...] = ()
    rows: Expression = ALWAYS_FALSE
    added: tuple[DataFile, ...] = ()
    added_match_rows: bool = False
    isolation: Isolation | None = None
    conflict_rows: Expression | None = None
    starting_snapshot_id: int | None = None
    branch: str = MAIN
    summary: Mapping[str, str] = {}

    def apply(self, base: TableMetadata, attempt: Attempt) -> tuple[Update, ...]:
        """Apply it to a base.

        Raises:
            ConflictError: a removed file is not live as it was read, new deletes reach it, or the isolation is violated.
            UnsupportedError: the filter matches some rows of a file, but perhaps not all.
            UsageError: with `added_match_rows`, an added file may hold rows that do not match the filter.
        """
        rows = bind(self.rows, base.schema, base.partition_specs)
        if not self.removed and not self.added and rows is ALWAYS_FALSE:
            return ()
        self._check_added(base, rows)
        since = Since(base, base.head(self.branch), self.starting_snapshot_id, attempt.reader)
        self._check_isolation(base, since, rows)
        manifests = live_manifests(attempt, self.branch)
        if self.removed and (self.added or self.isolation is not None):
            since.check_not_reached(self.removed, manifests.deletes, attempt)
        selected = MatchingFiles(rows, base)
        kept = remove(manifests.data, attempt, as_read=self.removed, selected=selected)
        deletes = remove_deletes(manifests, kept, attempt, selected=selected)
        removes = kept.removed_count or deletes.removed_count
        if not self.added and not removes:
            return ()
        summary = SummaryBuilder(self.summary, kept.summary, deletes.summary)
        new = [*add(self.added, attempt, summary), *kept.manifests, *deletes.manifests]
        operation = ("overwrite" if removes else "append") if self.added else "delete"
        return attempt.snapshot_updates(operation, new, summary, branch=self.branch)

    def _check_added(self, base: TableMetadata, rows: Expression) -> None:
        for spec_id in sorted({file.spec_id for file in self.added}):
            require_spec(base, spec_id)
        matching = Matching(base, rows)
        outside = next((f for f in self.added if self.added_match_rows and not matching.holds_only(f)), None)
        if outside is not None:
            raise UsageError(
                f"data file {outside.file_path!r} may hold rows that do not match the filter it is added for"
            )

    def _check_isolation(self, base: TableMetadata, since: Since, rows: Expression) -> None:
        if self.isolation is None:
            return
        asked = None if self.conflict_rows is None else bind(self.conflict_rows, base.schema, base.partition_specs)
        if rows is not ALWAYS_FALSE:
            since.check_none(ADDED_DELETES, asked or rows)
            since.check_none(REMOVED_DATA, asked or rows)
        if self.isolation is Isolation.SERIALIZABLE:
            # Named files may have been chosen by any row of the table.
            read = ALWAYS_TRUE if self.removed or rows is ALWAYS_FALSE else rows
            since.check_none(ADDED_DATA, asked or read)


class DeleteFiles(msgspec.Struct, frozen=True, kw_only=True):
    """Data files to remove, by path and by an unbound filter of rows; both are evaluated on the base, so nothing can conflict.

    With `must_exist` a path that is not live is an error.
    """

    paths: frozenset[str] = frozenset()
    rows: Expression = ALWAYS_FALSE
    must_exist: bool = True
    branch: str = MAIN
    summary: Mapping[str, str] = {}

    def apply(self, base: TableMetadata, attempt: Attempt) -> tuple[Update, ...]:
        """Delete files that apply to these data files alone are removed with them."""
        rows = bind(self.rows, base.schema, base.partition_specs)
        if not self.paths and rows is ALWAYS_FALSE:
            return ()
        manifests = live_manifests(attempt, self.branch)
        selected = MatchingFiles(rows, base, self.paths)
        kept = remove(manifests.data, attempt, selected=selected)
        missing = [path for path in self.paths if path_digest(path) not in kept.paths]
        if missing and self.must_exist:
            raise ConflictError(f"data file {min(missing)!r} ({len(missing)} in all) is not live in the table")
        deletes = remove_deletes(manifests, kept, attempt, selected=selected)
        if not kept.removed_count and not deletes.removed_count:
            return ()
        summary = SummaryBuilder(self.summary, kept.summary, deletes.summary)
        return attempt.snapshot_updates("delete", [*kept.manifests, *deletes.manifests], summary, branch=self.branch)


class CherryPick(msgspec.Struct, frozen=True):
    """The snapshot to publish on `main`; nothing is done for one that is in its history."""

    snapshot_id: int

    def apply(self, base: TableMetadata, attempt: Attempt) -> tuple[Update, ...]:
        picked, head_id = base.snapshot(self.snapshot_id), base.current_snapshot_id
        if is_ancestor(base, picked.snapshot_id, of=head_id):
            return ()
        _check_unpublished(base, picked)
        if picked.parent_snapshot_id == head_id:
            return (SetSnapshotRef(MAIN, moved(base.refs.get(MAIN), picked.snapshot_id)),)
        if picked.operation != "append":
            replaces_partitions = (picked.summary or {}).get("replace-partitions", "").lower() == "true"
            parent_id = picked.parent_snapshot_id
            if picked.operation != "overwrite" or not replaces_partitions:
                raise UsageError(
                    f"cannot cherry-pick snapshot {picked.snapshot_id}: it is neither an append nor a dynamic overwrite, and "
                    f"its parent {parent_id} is not the current snapshot"
                )
            if parent_id is not None and not is_ancestor(base, parent_id, of=head_id):
                raise UsageError(
                    f"cannot cherry-pick the overwrite of snapshot {picked.snapshot_id}: its parent {parent_id} is not in the "
                    "history of main"
                )
        return _replayed(base, picked, attempt)


def _check_unpublished(base: TableMetadata, picked: Snapshot) -> None:
    """Raise `UsageError` where a snapshot in the history of main was cherry-picked from this one, or has its `wap.id`."""
    wap_id = (picked.summary or {}).get(STAGED_WAP_ID)
    for ancestor in base.ancestors(base.current_snapshot_id):
        summary = ancestor.summary or {}
        if summary.get(SOURCE_SNAPSHOT_ID) == str(picked.snapshot_id):
            raise UsageError(
                f"snapshot {picked.snapshot_id} was cherry-picked already, as snapshot {ancestor.snapshot_id}"
            )
        if wap_id and wap_id in (summary.get(STAGED_WAP_ID), summary.get(PUBLISHED_WAP_ID)):
            raise UsageError(
                f"cannot cherry-pick snapshot {picked.snapshot_id}: its {STAGED_WAP_ID} {wap_id!r} was published already, "
                f"by snapshot {ancestor.snapshot_id}"
            )


def _replayed(base: TableMetadata, picked: Snapshot, attempt: Attempt) -> tuple[Update, ...]:
    """A new snapshot on main that adds and removes the same files as the picked one."""
    extra = {SOURCE_SNAPSHOT_ID: str(picked.snapshot_id)}
    if wap_id := (picked.summary or {}).get(STAGED_WAP_ID):
        extra[PUBLISHED_WAP_ID] = wap_id
    _check_history(base, picked)
    files, replaced_paths = _differences(base, picked, attempt)
    manifests = live_manifests(attempt, MAIN)
    # Main may have a file already, from expired history, or from another pick of the same files.
    spec_ids = {file.spec_id for file in files}
    likely = [m for m in manifests.data if m.partition_spec_id in spec_ids]
    if live := live_at({file.file_path for file in files}, likely, attempt, at_once=True):
        raise UsageError(
            f"cannot cherry-pick snapshot {picked.snapshot_id}: its data file {next(iter(live))!r} is in the table already"
        )
    kept, summary = [*manifests.data, *manifests.deletes], SummaryBuilder(extra)
    if picked.operation == "overwrite":
        replaced = _Replaced(base, picked, files, replaced_paths)
        data = remove(manifests.data, attempt, selected=replaced)
        replaced.check_removed(data)
        deletes = remove_deletes(manifests, data, attempt)
        kept, summary = [*data.manifests, *deletes.manifests], SummaryBuilder(extra, data.summary, deletes.summary)
    added = add(files, attempt, summary)
    updates = attempt.snapshot_updates(picked.operation or "append", [*added, *kept], summary)
    # A catalog that applies updates to whatever is current refuses a reference to a snapshot that has expired meanwhile,
    # whose files are about to be deleted.
    guard = f"icekeep-pick-{attempt.snapshot_id}"
    return (
        SetSnapshotRef(guard, SnapshotRef(snapshot_id=picked.snapshot_id, type="branch")),
        *updates,
        RemoveSnapshotRef(guard),
    )


def _check_history(base: TableMetadata, picked: Snapshot) -> None:
    """Raise `SafetyError` where main may have held the snapshot in history that has expired.

    Its rows may have been moved to other files since, so nothing but the history can show it.
    """
    oldest = [*base.ancestors(base.current_snapshot_id)][-1:]
    for first in oldest:
        is_older = base.format_version == 1 or first.sequence_number > picked.sequence_number
        if first.parent_snapshot_id is not None and is_older:
            raise SafetyError(
                f"cannot cherry-pick snapshot {picked.snapshot_id}: main may have held it before snapshot "
                f"{first.snapshot_id}, whose history has expired, and its rows would be there twice; nothing was changed"
            )


def _differences(base: TableMetadata, picked: Snapshot, attempt: Attempt) -> tuple[list[DataFile], frozenset[str]]:
    """The data files that a snapshot added, without first row ids, and the paths of those that it removed."""
    added: list[DataFile] = []
    removed: set[str] = set()
    for manifest in attempt.reader.manifests(picked):
        if manifest.added_snapshot_id != picked.snapshot_id:
            continue
        if manifest.content is ManifestContent.DELETES:
            # Entries are read even if the list counts no added file, since it may be wrong.
            if manifest.added_files_count != 0 or any(
                entry.status is Status.ADDED for entry in attempt.reader.entries(manifest, base)
            ):
                raise UsageError(
                    f"cannot cherry-pick snapshot {picked.snapshot_id}: it adds delete files, and its parent "
                    f"{picked.parent_snapshot_id} is not the current snapshot"
                )
            continue
        for entry in attempt.reader.entries(manifest, base):
            if entry.snapshot_id != picked.snapshot_id:
                # Of an older snapshot, merged into this manifest; main may have it or not.
                continue
            if entry.status is Status.ADDED:
                # The row ids that the picked snapshot assigned may be those of other rows on main.
                added.append(msgspec.structs.replace(entry.data_file, first_row_id=None))
            elif entry.status is Status.DELETED:
                removed.add(entry.data_file.file_path)
    return added, frozenset(removed)


class _Replaced(Selection):
    """The files that a dynamic overwrite replaced, which must be all files of its partitions in the base."""

    def __init__(self, base: TableMetadata, picked: Snapshot, added: Sequence[DataFile], paths: frozenset[str]) -> None:
        self._paths = paths
        self._partitions = {partition_key(file) for file in added}
        self._problem = f"cannot cherry-pick the overwrite of snapshot {picked.snapshot_id}"
        specs = (base.specs_by_id.get(file.spec_id) for file in added)
        # Without partitions an overwrite replaces the whole table.
        self._is_all = any(spec is not None and spec.is_unpartitioned for spec in specs)

    def key(self, manifest: ManifestFile) -> Hashable:
        return "replaced"

    def entry(self, entry: ManifestEntry) -> bool:
        """Raises `UsageError` for any other file in these partitions."""
        path = entry.data_file.file_path
        if path in self._paths:
            return True
        if self._is_all or partition_key(entry.data_file) in self._partitions:
            raise UsageError(f"{self._problem}: a partition that it replaced now holds data file {path!r}")
        return False

    def check_removed(self, kept: KeptManifests) -> None:
        if missing := [path for path in self._paths if path_digest(path) not in kept.paths]:
            raise UsageError(
                f"{self._problem}: data file {min(missing)!r} ({len(missing)} in all), which it replaced, is gone"
            )
