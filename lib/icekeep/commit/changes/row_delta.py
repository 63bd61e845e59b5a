"""Add rows and deletes of rows in one snapshot: what UPDATE, DELETE and MERGE commit where they rewrite no data file."""

from collections import defaultdict
from collections.abc import Iterable, Mapping

import msgspec

from icekeep.commit.attempt import Attempt
from icekeep.commit.conflicts import (
    Isolation,
    Since,
    check_no_new_data,
    check_no_new_deletes,
    check_no_new_deletes_for,
)
from icekeep.commit.file_questions import deletes_newer_than, live_at, position_deletes_of
from icekeep.commit.live_files import (
    KeptManifests,
    Manifests,
    add,
    file_key,
    live_manifests,
    remove,
    remove_deletes,
)
from icekeep.commit.summary import SummaryBuilder
from icekeep.errors import ConflictError, IcekeepBug, UnsupportedError
from icekeep.spec.applicability import is_deletion_vector, may_name, partition_key, reaching_deletes, sequence_number
from icekeep.spec.filters.binding import bind
from icekeep.spec.filters.expressions import ALWAYS_TRUE, Expression
from icekeep.spec.manifests.structs import DataFile, FileContent, ManifestContent, ManifestEntry
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.snapshots import MAIN
from icekeep.spec.updates import Update


class RowDelta(msgspec.Struct, frozen=True, kw_only=True):
    """Data files and delete files to add, and live entries of both to remove, as they were read.

    `named` holds the paths of the data files that position delete files without `referenced_data_file` have rows of. A
    vector that takes the place of another removes it. `isolation` is asked over `conflict_rows`, which are not bound.
    `starting_snapshot_id` is the snapshot that was read; `None`: the table was empty.
    """

    added: tuple[DataFile, ...] = ()
    added_deletes: tuple[DataFile, ...] = ()
    removed: tuple[ManifestEntry, ...] = ()
    removed_deletes: tuple[ManifestEntry, ...] = ()
    named: frozenset[str] = frozenset()
    isolation: Isolation | None = None
    conflict_rows: Expression = ALWAYS_TRUE
    starting_snapshot_id: int | None = None
    branch: str = MAIN
    summary: Mapping[str, str] = {}

    def apply(self, base: TableMetadata, attempt: Attempt) -> tuple[Update, ...]:
        """The base with these files; each data file that positions are deleted of must be live in it.

        Raises:
            ConflictError: a data file that positions are deleted of is not live any more, others gave it a vector, what is
                removed is not live as it was read or has new deletes, or the isolation is broken.
            UnsupportedError: the table's format version has no delete files of that kind.
        """
        if not (self.added or self.added_deletes or self.removed or self.removed_deletes):
            return ()
        check_kinds(self.added_deletes, base.format_version)
        self._check_equality_ids(base)
        since = Since(base, base.head(self.branch), self.starting_snapshot_id, attempt.reader)
        if self.starting_snapshot_id is not None:
            since.check_start()
        self._check_isolation(base, since)
        manifests = live_manifests(base, self.branch, attempt)
        self._check_named(manifests, base, attempt, since)
        if self.removed and (self.added or self.isolation is not None):
            newer = deletes_newer_than(since.sequence_number, manifests.deletes, base, attempt)
            check_no_new_deletes_for(since, self.removed, newer, base)
        kept = remove(manifests.data, base, attempt, as_read=self.removed)
        deletes = remove_deletes(manifests, kept, base, attempt, as_read=self.removed_deletes)
        summary = SummaryBuilder(self.summary)
        summary.absorb(kept.summary)
        summary.absorb(deletes.summary)
        added = add(self.added, base, attempt, summary)
        added_deletes = add(self.added_deletes, base, attempt, summary, content=ManifestContent.DELETES)
        new = [*added, *kept.manifests, *added_deletes, *deletes.manifests]
        return attempt.snapshot_updates(self._operation(kept), new, summary, branch=self.branch)

    def _check_equality_ids(self, base: TableMetadata) -> None:
        for file in self.added_deletes:
            if file.content is not FileContent.EQUALITY_DELETES:
                continue
            if not file.equality_ids:
                raise IcekeepBug(f"equality delete file {file.file_path!r} has no equality_ids")
            if lost := set(file.equality_ids) - base.schema.fields_by_id.keys():
                raise ConflictError(
                    f"column {min(lost)}, by which {file.file_path!r} deletes rows, is no longer in the schema"
                )

    def _check_isolation(self, base: TableMetadata, since: Since) -> None:
        if self.isolation is None:
            return
        rows = bind(self.conflict_rows, base.schema, base.partition_specs)
        check_no_new_deletes(since, rows)
        if self.isolation is Isolation.SERIALIZABLE:
            check_no_new_data(since, rows)

    def _check_named(self, manifests: Manifests, base: TableMetadata, attempt: Attempt, since: Since) -> None:
        """Each data file that positions are deleted of is live, or new, and no position of it is forgotten."""
        named = self._named_files()
        added = {file.file_path: file for file in self.added}
        for entry in self.removed:
            if entry.data_file.file_path in named:
                raise IcekeepBug(f"data file {entry.data_file.file_path!r} is removed, and positions of it are deleted")
        wanted = named.keys() - added.keys()
        live = live_at(wanted, manifests.data, base, attempt)
        for path, deletes in named.items():
            if path not in live and path not in added:
                raise ConflictError(
                    f"data file {path!r}, which {deletes[0].file_path!r} deletes rows of, is not live any more"
                )
            if path in live and since.is_newer(live[path]):
                raise ConflictError(f"data file {path!r} was added again since its rows were read")
            file = added[path] if path in added else live[path].data_file
            if partition_key(file) not in map(partition_key, deletes):
                raise IcekeepBug(f"{deletes[0].file_path!r} deletes rows of {path!r}, which is in another partition")
        vectors = [f.referenced_data_file for f in self.added_deletes if is_deletion_vector(f)]
        if vectors:
            replaced = [live[path] for path in vectors if path is not None and path in live]
            files = [entry.data_file for entry in replaced]
            found = position_deletes_of(files, manifests.deletes, base, attempt)
            self._check_vectors(replaced, found, base, since)

    def _named_files(self) -> dict[str, list[DataFile]]:
        """The data files that positions are deleted of, each with the delete files that may hold them."""
        named: dict[str, list[DataFile]] = defaultdict(list)
        for file in self.added_deletes:
            if file.content is not FileContent.POSITION_DELETES:
                continue
            path = file.referenced_data_file
            paths = [path] if path is not None else [p for p in self.named if may_name(file, p)]
            if not paths:
                raise IcekeepBug(f"{file.file_path!r} deletes positions, and nothing says of which data files")
            for one in paths:
                named[one].append(file)
        for path, deletes in named.items():
            if sum(map(is_deletion_vector, deletes)) > 1:
                raise IcekeepBug(f"two deletion vectors for data file {path!r} in one change")
        if unused := self.named - named.keys():
            raise IcekeepBug(f"no delete file of the change may hold positions of {min(unused)!r}, which is named")
        return named

    def _check_vectors(
        self, data: list[ManifestEntry], deletes: Iterable[ManifestEntry], base: TableMetadata, since: Since
    ) -> None:
        """A vector stands for all position deletes of its data file, so none may be live that its writer did not see."""
        replaced = {file_key(entry.data_file) for entry in self.removed_deletes}
        start = since.sequence_number
        for path, reaching in reaching_deletes(data, deletes, base.specs_by_id).items():
            for delete in reaching:
                file = delete.data_file
                if file.content is FileContent.EQUALITY_DELETES or file_key(file) in replaced:
                    continue
                if is_deletion_vector(file) or sequence_number(delete) > start:
                    raise ConflictError(
                        f"data file {path!r} has positions deleted by {file.file_path!r}, which the new deletion vector was "
                        "made without"
                    )

    def _operation(self, kept: KeptManifests) -> str:
        if self.added and not (self.added_deletes or kept.removed_count or self.removed_deletes):
            return "append"
        deletes_rows = bool(self.added_deletes or kept.removed_count)
        return "delete" if deletes_rows and not self.added else "overwrite"


def check_kinds(deletes: Iterable[DataFile], format_version: int) -> None:
    """Raises `UnsupportedError` for a delete file that a table of a format version may not be given."""
    for file in deletes:
        if format_version < 2:
            raise UnsupportedError(f"tables of format version 1 have no delete files; {file.file_path!r} was not added")
        if is_deletion_vector(file):
            if format_version < 3:
                raise UnsupportedError(
                    f"tables of format version {format_version} have no deletion vectors; {file.file_path!r} was not added"
                )
            if None in (file.referenced_data_file, file.content_offset, file.content_size_in_bytes):
                raise IcekeepBug(f"the deletion vector in {file.file_path!r} lacks its data file, offset or size")
        elif file.content is FileContent.POSITION_DELETES and format_version > 2:
            raise UnsupportedError(
                f"tables of format version {format_version} take deletion vectors, not position delete files; "
                f"{file.file_path!r} was not added"
            )
