"""Replace data files by others with the same rows (compaction), and manifests by others with the same live files."""

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence, Set
from typing import Protocol

import msgspec

from icekeep.commit.attempt import Attempt
from icekeep.commit.dangling import dangling
from icekeep.commit.file_sets import Digest, FileSet, FilesToFind, StoredFileSet, digest_of_all, live_twice
from icekeep.commit.live_files import (
    HeadManifests,
    KeptManifests,
    PathProof,
    add,
    head_manifests,
    live_among,
    live_manifests,
    raise_refusals,
    remove,
    remove_deletes,
    require_format_version,
    require_spec,
)
from icekeep.commit.manifests import (
    ChangedDeletes,
    ManifestKey,
    ManifestReader,
    RemovalChecks,
    Selection,
    manifest_key,
    without_history,
)
from icekeep.commit.summary import SummaryBuilder
from icekeep.errors import ConflictError, IcekeepBug, InvalidTableError
from icekeep.spec.manifests.structs import DataFile, FileContent, ManifestContent, ManifestEntry, ManifestFile
from icekeep.spec.matched_deletes import Comparison, Difference, MatchedDeletes, match_deletes
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.reach import AppliedDelete, is_newer, sequence_number
from icekeep.spec.snapshots import MAIN
from icekeep.spec.updates import Update


class Carried(msgspec.Struct, frozen=True):
    """Deletes of rows of the new files, and the reasons for data files whose deletes cannot be carried, by path."""

    deletes: tuple[DataFile, ...] = ()
    refusals: Mapping[str, str] = {}


class DeleteCarrier(Protocol):
    """Knows where each row of the replaced files went; each attempt of a commit asks with its own base."""

    def carried(
        self, changed: Mapping[str, ChangedDeletes], base: TableMetadata, noted: Callable[[str], None]
    ) -> Carried:
        """Write deletes that others committed since the rewrite read, as deletes of the same rows in the new files.

        Args:
            changed: by the path of a replaced data file.
            base: its format version decides the kind of delete files.
            noted: called with each location once it is written, so that files which no snapshot names are removed.
        """


class RewriteFiles(msgspec.Struct, frozen=True, kw_only=True):
    """Live files to remove, as they were read, and the files to add in their place.

    Attributes:
        added: with fewer rows than the removed files where deletes were applied; empty where no row is left.
        schema_id: of the added files.
        applied_deletes: by the path of a removed file, the delete files that its rewrite applied; a stored set has them itself.
        moved_spec_ids: the partition specs of removed files whose rows may now be in files of another spec; `None`: those that
            any added file differs from.
        format_version: of the table that was read, `None` where it does not matter.
        starting_sequence_number: of the snapshot that was read; `None`: `data_sequence_number`.
        data_sequence_number: of the added files, so that newer deletes still reach their rows; `None`: the commit's own.
        remove_dangling: also remove the delete files that reach no data file of the branch afterwards.
        only_dangling: which of these may be removed; `None` for all.
        manifest_paths: the manifests of the removed entries; only saves work.
        proof: as for `remove_deletes` and `dangling`.
        carrier: carries deletes of positions that others commit meanwhile over to the added files; without one, they are a
            conflict.
    """

    removed: FileSet
    added: tuple[DataFile, ...]
    schema_id: int
    applied_deletes: Mapping[str, Set[AppliedDelete]] = {}
    moved_spec_ids: frozenset[int] | None = None
    format_version: int | None = None
    starting_sequence_number: int | None = None
    data_sequence_number: int | None = None
    remove_dangling: bool = False
    only_dangling: frozenset[Digest] | None = None
    manifest_paths: frozenset[str] = frozenset()
    proof: PathProof | None = None
    carrier: DeleteCarrier | None = None
    branch: str = MAIN
    summary: Mapping[str, str] = {}

    def apply(self, base: TableMetadata, attempt: Attempt) -> tuple[Update, ...]:
        """Checks the base alone, not its history: each removed file is live as it was read, with the deletes that were applied.

        More positions may be deleted in it than when it was read: this snapshot then has deletes of the same rows in the new
        files. They inherit its sequence number and name no older file, so a rewrite by another engine that began before need
        not look at them.

        A newer equality delete is no conflict where it also reaches the rows in the new files: these keep the starting
        sequence number and the spec, and their schema has the columns that it compares. Where rows move to another spec, any
        equality delete that is newer than the start is a conflict.
        """
        replaces = bool(self.removed or self.added)
        if not replaces and not self.remove_dangling:
            return ()
        self._check_base(base)
        manifests = live_manifests(attempt, self.branch)
        moved, added_spec_ids = self.moved_spec_ids, {file.spec_id for file in self.added}
        if moved is None:
            moved = frozenset(spec_id for spec_id in base.specs_by_id if added_spec_ids - {spec_id})
        check = AppliedDeletes(
            base=without_history(base),
            deletes=manifests.deletes,
            applied=self.applied_deletes,
            start=self.data_sequence_number if self.starting_sequence_number is None else self.starting_sequence_number,
            number=self.data_sequence_number,
            moved_spec_ids=moved,
            field_ids=frozenset(base.schemas_by_id[self.schema_id].fields_by_id),
            carries=self.carrier is not None,
        )
        kept = remove(manifests.data, attempt, as_read=self.removed, first=self.manifest_paths, check=check)
        if len(kept.paths) != kept.removed_count:
            raise InvalidTableError("a data file that is to be rewritten is live more than once in the table")
        carried = self._carried(kept.changed, base, attempt)
        selected = self._dangling(manifests, kept, base, attempt) if self.remove_dangling else None
        # The delete files of replaced data files are among the dangling ones, and their rows were read there.
        proof = None if self.remove_dangling else self.proof
        # Without added files no live file has this number.
        number = self.data_sequence_number if self.added else None
        deletes = remove_deletes(manifests, kept, attempt, selected=selected, added_number=number, proof=proof)
        if not replaces and not deletes.removed_count:
            return ()
        summary = SummaryBuilder(self.summary, kept.summary, deletes.summary)
        added = add(self.added, attempt, summary, sequence_number=self.data_sequence_number)
        paths = frozenset((file.file_path, file.content_offset) for file in carried)
        added += add(carried, attempt, summary, content=ManifestContent.DELETES, key=paths)
        new = [*added, *kept.manifests, *deletes.manifests]
        return attempt.snapshot_updates("replace", new, summary, branch=self.branch)

    def _check_base(self, base: TableMetadata) -> None:
        if isinstance(self.removed, StoredFileSet):
            removed_count = self.removed.records_count
        else:
            paths = Counter(entry.data_file.file_path for entry in self.removed)
            if twice := [path for path, count in paths.items() if count > 1]:
                raise live_twice(twice[0])
            removed_count = sum(entry.data_file.record_count for entry in self.removed)
        if sum(f.record_count for f in self.added) > removed_count:
            raise IcekeepBug("a rewrite would add more rows than it removes")
        if self.format_version is not None:
            require_format_version(base, self.format_version)
        if self.schema_id not in base.schemas_by_id:
            raise ConflictError(f"schema {self.schema_id}, which the new files were written with, is no longer there")
        for file in self.added:
            require_spec(base, file.spec_id)

    def _carried(
        self, changed: Mapping[str, ChangedDeletes], base: TableMetadata, attempt: Attempt
    ) -> tuple[DataFile, ...]:
        """Deletes in the new files of rows that have been deleted in the removed ones since these were read."""
        if not changed:
            return ()
        assert self.carrier is not None
        carried = self.carrier.carried(changed, base, attempt.delete_file_written)
        raise_refusals(carried.refusals)
        added = {file.file_path for file in self.added}
        if any(file.referenced_data_file not in added for file in carried.deletes):
            raise IcekeepBug("deletes that a rewrite carries over are for another file than one that it adds")
        attempt.name_delete_files(file.file_path for file in carried.deletes)
        return carried.deletes

    def _dangling(
        self, manifests: HeadManifests, kept: KeptManifests, base: TableMetadata, attempt: Attempt
    ) -> Selection | None:
        data = [manifest for manifest in kept.manifests if manifest.may_have_live_files]
        number = self.data_sequence_number if self.added else None
        selected = dangling(manifests.deletes, data, self.added, base, attempt, added_number=number, proof=self.proof)
        return selected and selected.limited_to(self.only_dangling)


class AppliedDeletes(msgspec.Struct, frozen=True, kw_only=True):
    """Checks that the deletes of a removed file were applied by its rewrite, or reach its rows in the new files as well.

    Args:
        deletes: the live delete manifests of `base`.
        applied: by the path of a removed file, as `RewriteFiles.applied_deletes`.
        start: the sequence number of the snapshot that was read, `None` if unknown.
        number: the data sequence number of the new files, `None` for the commit's own.
        moved_spec_ids: as of `RewriteFiles`.
        field_ids: the columns of the new files.
        carries: whether changed deletes of positions are carried over, and so no conflict.
    """

    base: TableMetadata
    deletes: tuple[ManifestFile, ...]
    applied: Mapping[str, Set[AppliedDelete]]
    start: int | None
    number: int | None
    moved_spec_ids: frozenset[int]
    field_ids: frozenset[int]
    carries: bool = False

    @property
    def key(self) -> Hashable:
        return digest_of_all(map(manifest_key, self.deletes))

    def checked(self, removed: Sequence[ManifestEntry], named: FilesToFind, reader: ManifestReader) -> RemovalChecks:
        for entry in removed:
            self._check_number(entry)
        spec_ids = {entry.data_file.file_path: entry.data_file.spec_id for entry in removed}
        refusals: dict[str, str] = {}
        moved = [path for path, spec_id in spec_ids.items() if spec_id in self.moved_spec_ids]
        if moved and (problem := self._problem_of_moving(reader)):
            refusals.update(dict.fromkeys(moved, problem))
        changed: dict[str, ChangedDeletes] = {}
        reached = match_deletes(removed, self._live_deletes(reader), self.base.specs_by_id)
        comparison = Comparison(reached)
        for path in reached.positions:
            applied = self.applied.get(path) or named.applied.get(path, frozenset())
            difference = comparison.difference(path, applied)
            if difference is None:
                continue
            if problem := self._problem_of(path, spec_ids[path], difference):
                refusals.setdefault(path, problem)
            elif deletes := _changed(reached, path, difference):
                changed[path] = deletes
        return RemovalChecks(refusals, changed)

    def _check_number(self, entry: ManifestEntry) -> None:
        """No file may be newer than the table: a rewrite would make rows older, or drop a column that a delete compares."""
        if sequence_number(entry) > self.base.last_sequence_number:
            raise InvalidTableError(
                f"file {entry.data_file.file_path!r} has sequence number {sequence_number(entry)}, and the table is at "
                f"{self.base.last_sequence_number}: its manifest or the manifest list is wrong",
                file_path=entry.data_file.file_path,
            )

    def _live_deletes(self, reader: ManifestReader) -> Iterator[ManifestEntry]:
        for manifest in self.deletes:
            for entry in reader.entries(manifest, self.base):
                if entry.is_live:
                    self._check_number(entry)
                    yield entry

    def _problem_of_moving(self, reader: ManifestReader) -> str | None:
        """An equality delete that others committed meanwhile may reach the rows in one of the two specs alone.

        Partitions of two specs cannot be compared to decide this, so any is a conflict.
        """
        if self.start is None:
            raise IcekeepBug("a rewrite that moves rows to another partition spec does not say what snapshot it read")
        for delete in self._live_deletes(reader):
            if delete.data_file.content is FileContent.EQUALITY_DELETES and is_newer(delete, self.start):
                return (
                    f"equality delete file {delete.data_file.file_path!r} came while rows were moved to files of another "
                    "partition spec, and may be for them"
                )
        return None

    def _problem_of(self, path: str, spec_id: int, difference: Difference) -> str | None:
        """Why a file may not be replaced, where other deletes reach it than were applied."""
        if difference.gone and not self.carries:
            name = min(delete.file_path for delete in difference.gone)
            return f"delete file {name!r} no longer reaches data file {path!r}, whose rewrite applied it"
        for delete in difference.new:
            if self.carries and _is_of_positions(delete):
                continue
            if not self._still_reaches(delete, spec_id):
                return f"delete file {delete.data_file.file_path!r} reaches data file {path!r}, whose rewrite did not apply it"
        return None

    def _still_reaches(self, delete: ManifestEntry, spec_id: int) -> bool:
        """Whether a new equality delete also deletes the same rows in the new files."""
        file = delete.data_file
        return (
            file.content is FileContent.EQUALITY_DELETES
            and self.number is not None
            and is_newer(delete, self.number)
            and spec_id not in self.moved_spec_ids
            and bool(file.equality_ids)
            and self.field_ids >= set(file.equality_ids or ())
        )


def _is_of_positions(delete: ManifestEntry) -> bool:
    return delete.data_file.content is FileContent.POSITION_DELETES


def _changed(reached: MatchedDeletes, path: str, difference: Difference) -> ChangedDeletes | None:
    """The deletes of positions to compare, where a file's deletes are not those that were applied."""
    if not difference.gone:
        positions = tuple(filter(_is_of_positions, difference.new))
        return ChangedDeletes(deletes=positions) if positions else None
    kinds = {delete.content for delete in difference.gone}
    return ChangedDeletes(
        deletes=tuple(filter(_is_of_positions, reached.of_path(path))),
        lacks_positions=FileContent.POSITION_DELETES in kinds,
        lacks_keys=FileContent.EQUALITY_DELETES in kinds,
    )


class RewriteManifests(msgspec.Struct, frozen=True, kw_only=True):
    """Manifests to remove from the list and manifests, written already, to add in their place.

    The added ones hold existing entries only, each with its snapshot id, sequence numbers and first row id, so that they
    belong to no snapshot and serve all attempts. One that was rewritten again without dangling deletes is removed with the
    rest when the commit ends.

    Attributes:
        drop_dangling_deletes: also remove the delete files that reach no live data file of the branch.
        only_dangling: which of these may be removed; `None` for all.
        proof: as for `dangling`.
        format_version: of the table that was read and the added manifests; `None` where it does not matter.
    """

    replaced: tuple[ManifestFile, ...]
    added: tuple[ManifestFile, ...]
    drop_dangling_deletes: bool = False
    only_dangling: frozenset[Digest] | None = None
    proof: PathProof | None = None
    format_version: int | None = None
    branch: str = MAIN
    summary: Mapping[str, str] = {}

    def apply(self, base: TableMetadata, attempt: Attempt) -> tuple[Update, ...]:
        """Manifests that others have added stay; it is a conflict where they have removed one of `replaced`."""
        if not self.replaced and not self.added and not self.drop_dangling_deletes:
            return ()
        if self.format_version is not None:
            require_format_version(base, self.format_version)
        _check_counts(self.replaced, self.added)
        current = head_manifests(attempt, self.branch)
        here = {manifest_key(m) for m in current}
        replaced = self._replaced(here)
        _check_counts(replaced, self.added)
        gone = {manifest_key(m) for m in replaced}
        new = [msgspec.structs.replace(m, added_snapshot_id=attempt.snapshot_id) for m in self.added]
        # Manifests without live files are dropped: in a version 1 snapshot without a list they may lack `added_snapshot_id`.
        kept = (m for m in current if manifest_key(m) not in gone and m.may_have_live_files)
        rows, dropped = [*new, *kept], SummaryBuilder()
        if self.drop_dangling_deletes:
            rows, dropped = self._without_dangling(rows, current, attempt)
        listed = {manifest_key(m) for m in rows}
        attempt.leave_out(m for m in self.added if manifest_key(m) not in listed)
        if listed == here:
            return ()
        created = [m for m in rows if manifest_key(m) not in here]
        unchanged = [m for m in rows if manifest_key(m) in here]
        # Iceberg's keys; `entries-processed` counts written entries, where Iceberg's actions always write zero.
        counts = {
            "manifests-created": str(len(created)),
            "manifests-kept": str(len(unchanged)),
            "manifests-replaced": str(len(here - listed)),
            "entries-processed": str(sum(m.existing_files_count or 0 for m in created)),
        }
        summary = SummaryBuilder({**self.summary, **counts}, dropped)
        return attempt.snapshot_updates("replace", [*created, *unchanged], summary, branch=self.branch)

    def _replaced(self, here: Set[ManifestKey]) -> list[ManifestFile]:
        """The manifests to remove from a base; raises `ConflictError` where it lacks one."""
        # Most commits drop manifests without live files.
        replaced = [m for m in self.replaced if m.may_have_live_files or manifest_key(m) in here]
        if missing := {manifest_key(m) for m in replaced} - here:
            path = min(path for path, _ in missing)
            raise ConflictError(f"manifest {path!r} ({len(missing)} in all) is no longer in the table as it was read")
        return replaced

    def _without_dangling(
        self, rows: Sequence[ManifestFile], current: Sequence[ManifestFile], attempt: Attempt
    ) -> tuple[list[ManifestFile], SummaryBuilder]:
        """Manifests without the delete files that reach nothing, and the summary of these.

        The manifests of the base are asked, which list the same live files and whose answers later attempts reuse.
        """
        live = live_among(current)
        selected = dangling(live.deletes, live.data, (), attempt.base, attempt, proof=self.proof)
        if selected is None:
            return list(rows), SummaryBuilder()
        deletes = live_among(rows).deletes
        kept = remove(deletes, attempt, selected=selected.limited_to(self.only_dangling))
        filtered = {manifest_key(m) for m in deletes}
        return [*(m for m in rows if manifest_key(m) not in filtered), *kept.manifests], kept.summary


def _check_counts(replaced: Sequence[ManifestFile], added: Sequence[ManifestFile]) -> None:
    before = sum(m.live_files_count or 0 for m in replaced)
    after = sum(m.existing_files_count or 0 for m in added)
    if before != after or any(m.added_files_count or m.deleted_files_count for m in added):
        raise IcekeepBug(f"rewritten manifests hold {after} live files, the replaced ones {before}")
