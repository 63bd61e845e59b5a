"""Add, replace and convert delete files.

`RowDelta` is committed by UPDATE, DELETE and MERGE that rewrite no data file, and where rows expire. `RewriteDeletes` replaces
position delete files by fewer, or by vectors, that delete the same rows, and drops those that delete nothing. `ConvertDeletes`
replaces equality deletes by deletes of the same rows by position.

An equality delete file is removed only if each live data file that it reaches was searched for its rows. Each attempt asks its
base which files these are: one may have come since, as old as the others, from a compaction that kept its starting sequence
number or by a rollback. The operation is a delete, never `replace`: other engines look for new deletes of positions in no
`replace`, so a compaction of theirs that began before would lose them (apache/iceberg #10312).
"""

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import msgspec

from icekeep.commit.attempt import Attempt
from icekeep.commit.changes.files import WhollyMatchingFiles
from icekeep.commit.conflicts import ADDED_DATA, ADDED_DELETES, Isolation, Since, live_at, position_deletes_of
from icekeep.commit.dangling import DeleteScopes, MinNumbers, dangling, is_dangling, min_numbers_in
from icekeep.commit.file_sets import Digest, digest_of_all, entry_digest
from icekeep.commit.live_files import (
    HeadManifests,
    KeptManifests,
    PathProof,
    add,
    add_numbered,
    file_key,
    live_manifests,
    remove,
    remove_deletes,
    require_format_version,
    require_spec,
)
from icekeep.commit.manifests import Selection
from icekeep.commit.summary import SummaryBuilder
from icekeep.errors import ConflictError, IcekeepBug, InvalidTableError, UnsupportedError
from icekeep.spec.filters.binding import bind
from icekeep.spec.filters.expressions import ALWAYS_FALSE, ALWAYS_TRUE, Expression
from icekeep.spec.manifests.structs import DataFile, FileContent, ManifestContent, ManifestEntry, ManifestFile
from icekeep.spec.matched_deletes import reaching_deletes
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.reach import (
    DIGEST_BYTES,
    PartitionKey,
    PathDigest,
    Specs,
    applied_delete,
    is_deletion_vector,
    is_global,
    is_newer,
    max_reached,
    may_name,
    named_range,
    own_path,
    partition_key,
    path_digest,
    sequence_number,
)
from icekeep.spec.snapshots import MAIN
from icekeep.spec.updates import Update


class RowDelta(msgspec.Struct, frozen=True, kw_only=True):
    """Data files and delete files to add, and live entries of both to remove, as they were read.

    `named` holds the paths of the data files in the rows of position delete files without `referenced_data_file`. A vector
    that replaces another must remove it. `isolation` is checked for `conflict_rows`, an unbound filter.
    `starting_snapshot_id` is the snapshot that was read; `None`: the table was empty, or no row was read.

    `rows` is an unbound filter: data files all of whose rows match it by partition and metrics are removed, as the base has
    them, and with any of them the delete files that reach no data file afterwards; `proof` is that of `dangling`. Fewer than
    `least_count` are a conflict: others replaced some. Where `only` is given, exactly the data files with these digests
    (`entry_digest`) are removed, or it is a conflict.
    """

    added: tuple[DataFile, ...] = ()
    added_deletes: tuple[DataFile, ...] = ()
    rows: Expression = ALWAYS_FALSE
    least_count: int = 0
    only: frozenset[Digest] | None = None
    proof: PathProof | None = None
    removed: tuple[ManifestEntry, ...] = ()
    removed_deletes: tuple[ManifestEntry, ...] = ()
    named: frozenset[str] = frozenset()
    isolation: Isolation | None = None
    conflict_rows: Expression = ALWAYS_TRUE
    starting_snapshot_id: int | None = None
    branch: str = MAIN
    summary: Mapping[str, str] = {}

    def apply(self, base: TableMetadata, attempt: Attempt) -> tuple[Update, ...]:
        """Apply it to a base.

        Raises:
            ConflictError: a data file with deleted positions is no longer live, or others gave it a vector; a removed file is
                not live as it was read, or has new deletes; the isolation is violated.
            UnsupportedError: the format version lacks a kind of delete file.
        """
        whole = bind(self.rows, base.schema, base.partition_specs)
        if whole is ALWAYS_FALSE and not (self.added or self.added_deletes or self.removed or self.removed_deletes):
            return ()
        check_kinds(self.added_deletes, base.format_version)
        self._check_equality_ids(base)
        since = Since(base, base.head(self.branch), self.starting_snapshot_id, attempt.reader)
        if self.starting_snapshot_id is not None:
            since.check_start()
        if self.isolation is not None:
            rows = bind(self.conflict_rows, base.schema, base.partition_specs)
            since.check_none(ADDED_DELETES, rows)
            if self.isolation is Isolation.SERIALIZABLE:
                since.check_none(ADDED_DATA, rows)
        manifests = live_manifests(attempt, self.branch)
        self._check_named(manifests, base, attempt, since)
        if self.removed and (self.added or self.isolation is not None):
            since.check_not_reached(self.removed, manifests.deletes, attempt)
        selected = None if whole is ALWAYS_FALSE else WhollyMatchingFiles(whole, base, self.only)
        kept = remove(manifests.data, attempt, as_read=self.removed, selected=selected)
        unreached = None if selected is None else self._check_removed(manifests, kept, base, attempt)
        deletes = remove_deletes(manifests, kept, attempt, as_read=self.removed_deletes, selected=unreached)
        if not (self.added or self.added_deletes or kept.removed_count or deletes.removed_count):
            return ()
        summary = SummaryBuilder(self.summary, kept.summary, deletes.summary)
        added = add(self.added, attempt, summary)
        added_deletes = add(self.added_deletes, attempt, summary, content=ManifestContent.DELETES)
        new = [*added, *kept.manifests, *added_deletes, *deletes.manifests]
        deletes_rows = bool(self.added_deletes or kept.removed_count)
        operation = "delete" if deletes_rows and not self.added else "overwrite"
        if self.added and not deletes_rows and not self.removed_deletes:
            operation = "append"
        return attempt.snapshot_updates(operation, new, summary, branch=self.branch)

    def _check_removed(
        self, manifests: HeadManifests, kept: KeptManifests, base: TableMetadata, attempt: Attempt
    ) -> Selection | None:
        """The delete files that reach nothing without the removed data files, which are those that were meant."""
        count = kept.removed_count - len(self.removed)
        least = self.least_count if self.only is None else len(self.only)
        if count < least or (self.only is not None and count > least):
            raise ConflictError(
                f"of {least} data files that are to be removed, since all their rows match, {count} are live as they were read"
            )
        for path in self._named_files():
            if path_digest(path) in kept.paths:
                raise ConflictError(f"all rows of data file {path!r} match now, and only some did when it was read")
        if not kept.removed_count and not self.added_deletes:
            return None
        left = [manifest for manifest in kept.manifests if manifest.may_have_live_files]
        return dangling(manifests.deletes, left, self.added, base, attempt, proof=self.proof)

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

    def _check_named(self, manifests: HeadManifests, base: TableMetadata, attempt: Attempt, since: Since) -> None:
        """Each data file with deleted positions is live or added, and no vector drops a position."""
        named = self._named_files()
        added = {file.file_path: file for file in self.added}
        for entry in self.removed:
            if entry.data_file.file_path in named:
                raise IcekeepBug(f"data file {entry.data_file.file_path!r} is removed, and positions of it are deleted")
        live = live_at(named.keys() - added.keys(), manifests.data, attempt)
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
            self._check_vectors(replaced, manifests, base, attempt, since)

    def _check_vectors(
        self,
        data: list[ManifestEntry],
        manifests: HeadManifests,
        base: TableMetadata,
        attempt: Attempt,
        since: Since,
    ) -> None:
        """A vector holds all deleted positions of its data file, so no others may be live that its writer did not see."""
        positions = position_deletes_of([entry.data_file for entry in data], manifests.deletes, attempt)
        replaced = {file_key(entry.data_file) for entry in self.removed_deletes}
        for path, reaching in reaching_deletes(data, positions, base.specs_by_id).items():
            for delete in reaching:
                file = delete.data_file
                if file.content is FileContent.EQUALITY_DELETES or file_key(file) in replaced:
                    continue
                if is_deletion_vector(file) or sequence_number(delete) > since.sequence_number:
                    raise ConflictError(
                        f"data file {path!r} has positions deleted by {file.file_path!r}, which the new deletion vector was "
                        "made without"
                    )

    def _named_files(self) -> dict[str, list[DataFile]]:
        """By the path of each data file with deleted positions, the delete files that may hold them."""
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


def check_kinds(deletes: Iterable[DataFile], format_version: int) -> None:
    """Raises `UnsupportedError` for a delete file of a kind that must not be added in a format version."""
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


class AddedDeletes(msgspec.Struct, frozen=True):
    """A new delete file and its data sequence number: the greatest of the delete files whose rows it holds."""

    file: DataFile
    sequence_number: int


class NamedFile(msgspec.Struct, frozen=True):
    """How the rows that rewritten delete files hold for one data file were treated.

    Attributes:
        kept_from: the least data sequence number of a delete file whose rows were kept; `None`: no rows.
        dropped_up_to: the greatest of one whose rows were dropped since it does not reach the data file; `None`: no rows.
        has_vector: rows were dropped since a deletion vector of the data file holds them.
    """

    kept_from: int | None = None
    dropped_up_to: int | None = None
    has_vector: bool = False

    def and_also(self, other: "NamedFile") -> "NamedFile":
        kept = [n for n in (self.kept_from, other.kept_from) if n is not None]
        dropped = [n for n in (self.dropped_up_to, other.dropped_up_to) if n is not None]
        return NamedFile(
            min(kept, default=None), max(dropped, default=None), has_vector=self.has_vector or other.has_vector
        )

    def problem(self, number: int | None, *, has_vector: bool, makes_vectors: bool) -> str | None:
        """Why that is wrong in a base, as a predicate of the data file; `None` if it is right.

        Args:
            number: the data sequence number of the data file, `None` where it is not live.
            has_vector: whether the data file has a deletion vector.
            makes_vectors: whether kept rows are in a new vector.
        """
        if number is None:
            return "is not live any more" if makes_vectors and self.kept_from is not None else None
        if self.dropped_up_to is not None and number <= self.dropped_up_to:
            return "is live, and deletes of its rows were dropped"
        if self.kept_from is not None and number > self.kept_from:
            return "was added again, and older deletes would come into force"
        if self.has_vector and not has_vector:
            return "has lost the deletion vector that stood for older deletes of its rows"
        if makes_vectors and self.kept_from is not None and has_vector:
            return "was given a deletion vector by others"
        return None


class RewriteDeletes(msgspec.Struct, frozen=True, kw_only=True):
    """Live position delete files to remove, as they were read, and the files to add in their place; no row changes.

    The snapshot is a `replace`. A compaction of another engine that started before it does not look for new deletes there, and
    need not: each position that is added here was deleted before, by a snapshot that it does look at (or that has expired,
    and then it refuses to commit). Our own compaction compares the deleted rows, whichever files hold them.

    Attributes:
        rewritten: their rows are in `added`, except those that were dropped.
        named: by path digest, the treatment of the rows of each data file that `rewritten` have rows of.
        dangling: delete files and vectors to remove since they reach no data file.
        format_version: of the table that was read.
        manifest_paths: the manifests of the removed entries; only saves work.
    """

    rewritten: tuple[ManifestEntry, ...] = ()
    added: tuple[AddedDeletes, ...] = ()
    named: Mapping[PathDigest, NamedFile] = {}
    dangling: tuple[ManifestEntry, ...] = ()
    format_version: int
    manifest_paths: frozenset[str] = frozenset()
    branch: str = MAIN
    summary: Mapping[str, str] = {}

    def apply(self, base: TableMetadata, attempt: Attempt) -> tuple[Update, ...]:
        """Checks the base alone, not its history: the removed files are live in it, and delete what the added ones do.

        Rows of a data file were dropped where it was not live or too new: a rollback may have revived it. A merged file has
        a greater sequence number than some of its rows had: a data file that was added again may have become reachable. A
        new vector holds all deleted positions of its data file, so no other may have been added. All these are conflicts, as
        are another format version and lost specs.
        """
        if not self.rewritten and not self.dangling:
            return ()
        self._check_base(base)
        manifests = live_manifests(attempt, self.branch)
        removed = (*self.rewritten, *self.dangling)
        kept = remove(manifests.deletes, attempt, as_read=removed, first=self.manifest_paths)
        self._check_data_files(manifests, base, attempt)
        summary = SummaryBuilder(self.summary, kept.summary)
        files = ((one.file, one.sequence_number) for one in self.added)
        added = add_numbered(files, attempt, summary, content=ManifestContent.DELETES)
        new = [*manifests.data, *added, *kept.manifests]
        return attempt.snapshot_updates("replace", new, summary, branch=self.branch)

    def _check_base(self, base: TableMetadata) -> None:
        require_format_version(base, self.format_version)
        makes_vectors = self.format_version > 2
        if self.added and not self.rewritten:
            raise IcekeepBug("delete files are added, and none is rewritten")
        for entry in self.rewritten:
            if entry.data_file.content is not FileContent.POSITION_DELETES or is_deletion_vector(entry.data_file):
                raise IcekeepBug(f"{entry.data_file.file_path!r} is rewritten, and is no position delete file")
        greatest = max(map(sequence_number, self.rewritten), default=0)
        for added in self.added:
            if is_deletion_vector(added.file) is not makes_vectors:
                raise IcekeepBug(
                    f"{added.file.file_path!r} is not of the kind that format version {self.format_version} has"
                )
            if added.sequence_number > greatest:
                raise IcekeepBug(f"{added.file.file_path!r} is newer than all that it was made of")
            require_spec(base, added.file.spec_id)
        vectors = Counter(one.file.referenced_data_file for one in self.added if is_deletion_vector(one.file))
        if twice := [path for path, count in vectors.items() if count > 1]:
            raise InvalidTableError(
                f"data file {twice[0]!r} would be given {vectors[twice[0]]} deletion vectors: bounds of file_path say wrongly "
                "which data files position delete files are of; `icekeep check --deep` names them"
            )

    def _check_data_files(self, manifests: HeadManifests, base: TableMetadata, attempt: Attempt) -> None:
        specs, makes_vectors = base.specs_by_id, self.format_version > 2
        asked = DeleteScopes.union([DeleteScopes({}, frozenset(self.named)), DeleteScopes.of(self.dangling, specs)])
        least = MinNumbers.union(attempt.gathered(manifests.data, min_numbers_in(asked, base)))
        for entry in self.dangling:
            # Global equality deletes, of which there are none here, would not be dangling with 0.
            if not is_dangling(entry, least, 0, specs):
                raise ConflictError(
                    f"delete file {entry.data_file.file_path!r}, which reached no data file, reaches one again"
                )
        with_vectors: frozenset[PathDigest] = frozenset()
        if makes_vectors and self.named:
            paths, removed = frozenset(self.named), frozenset(map(entry_digest, self.dangling))
            key = "vectors", digest_of_all(paths), digest_of_all(removed)
            answer = partial(_files_with_vectors, paths, removed)
            with_vectors = with_vectors.union(*attempt.ask_live_files(manifests.deletes, key, answer))
        for digest, named in self.named.items():
            problem = named.problem(
                least.paths.get(digest), has_vector=digest in with_vectors, makes_vectors=makes_vectors
            )
            if problem is not None:
                # Of the data files only digests are known, so the error names the delete files.
                first, count = self.rewritten[0].data_file.file_path, len(self.rewritten)
                names = (
                    f"delete file {first!r}" if count == 1 else f"one of {count} delete files, {first!r} among them,"
                )
                raise ConflictError(f"a data file, of which {names} deletes rows, {problem}")
        if makes_vectors and self.added:
            self._check_left_out(manifests, least, attempt)

    def _check_left_out(self, manifests: HeadManifests, least: MinNumbers, attempt: Attempt) -> None:
        """No other delete file reaches a data file that gets a vector, which would supersede it."""
        targets: dict[PartitionKey, list[tuple[bytes, int]]] = defaultdict(list)
        for file in (added.file for added in self.added):
            path = str(file.referenced_data_file)
            targets[partition_key(file)].append((path.encode(), least.paths.get(path_digest(path), 0)))
        rewritten = frozenset(map(entry_digest, self.rewritten))
        files = (file for some in targets.values() for file in some)
        key = "left out", digest_of_all(files), digest_of_all(rewritten)
        by_path = {partition: _Targets(*zip(*sorted(some), strict=True)) for partition, some in targets.items()}
        for left_out in attempt.ask_live_files(manifests.deletes, key, partial(_left_out, by_path, rewritten)):
            if left_out is not None:
                raise ConflictError(
                    f"position delete file {left_out!r} may be of a data file that is given a deletion vector without its rows"
                )


class _Targets(NamedTuple):
    """Data files of one partition in the order of their paths, and their data sequence numbers."""

    paths: tuple[bytes, ...]
    numbers: tuple[int, ...]


def _left_out(
    targets: Mapping[PartitionKey, _Targets], rewritten: frozenset[Digest], live: Iterator[ManifestEntry]
) -> str | None:
    """The path of a position delete file that is not rewritten and reaches one of the data files, if there is one."""
    for entry in live:
        file = entry.data_file
        if file.content is not FileContent.POSITION_DELETES or is_deletion_vector(file):
            continue
        some = targets.get(partition_key(file))
        if some is None or entry_digest(entry) in rewritten:
            continue
        own = own_path(file)
        if any(is_newer(entry, number) for number in some.numbers[named_range(some.paths, (own, own))]):
            return file.file_path
    return None


def _files_with_vectors(
    paths: frozenset[PathDigest], removed: frozenset[Digest], live: Iterator[ManifestEntry]
) -> frozenset[PathDigest]:
    """The data files with a deletion vector that is not to be removed, of those at `paths`."""
    vectors = (
        entry.data_file.referenced_data_file
        for entry in live
        if is_deletion_vector(entry.data_file) and entry_digest(entry) not in removed
    )
    return frozenset(digest for path in vectors if path is not None and (digest := path_digest(path)) in paths)


class EntryDigests(msgspec.Struct, frozen=True):
    """A set of `entry_digest`, packed and sorted: 16 bytes for each file."""

    packed: bytes = b""

    @classmethod
    def of(cls, digests: Iterable[Digest]) -> "EntryDigests":
        return cls(b"".join(sorted(set(digests))))

    @classmethod
    def union(cls, some: Iterable["EntryDigests"]) -> "EntryDigests":
        return cls.of(digest for one in some for digest in one)

    def __iter__(self) -> Iterator[Digest]:
        return map(self.__getitem__, range(len(self)))

    def __len__(self) -> int:
        return len(self.packed) // DIGEST_BYTES

    def __getitem__(self, number: int) -> Digest:
        return self.packed[number * DIGEST_BYTES : (number + 1) * DIGEST_BYTES]

    def __contains__(self, digest: Digest) -> bool:
        place = bisect_left(self, digest)
        return place < len(self) and self[place] == digest


class ConvertedFile(msgspec.Struct, frozen=True):
    """A data file as it was read, with rows that equality deletes delete, and the deletes of positions that reach it.

    In format version 2, where these do not matter, there are none.
    """

    entry: ManifestEntry
    position_deletes: tuple[ManifestEntry, ...] = ()


class ConvertDeletes(msgspec.Struct, frozen=True, kw_only=True):
    """Equality delete files to remove, and the deletes of positions in their place.

    Attributes:
        converted: live entries of equality delete files as they were read, also of those that reach nothing.
        data_files: every data file that one of them reaches, as it was read; each was searched for rows of all of them.
        added: delete files or vectors of the positions of the deleted rows.
        named: the data files with such rows.
        replaced: live entries of vectors and position delete files to remove, whose positions `added` hold as well.
        format_version, starting_sequence_number: of the table and snapshot that were read.
    """

    converted: tuple[ManifestEntry, ...]
    data_files: EntryDigests = EntryDigests()
    added: tuple[DataFile, ...] = ()
    named: tuple[ConvertedFile, ...] = ()
    replaced: tuple[ManifestEntry, ...] = ()
    format_version: int
    starting_sequence_number: int
    branch: str = MAIN
    summary: Mapping[str, str] = {}

    def apply(self, base: TableMetadata, attempt: Attempt) -> tuple[Update, ...]:
        """Apply it to a base.

        Raises:
            ConflictError: a live data file that a converted delete file reaches was not searched; a data file with deleted
                positions is not live as it was read, or, in format version 3, has other vectors or position deletes; a file
                to remove is gone; the table was upgraded.
            UnsupportedError: the format version lacks a kind of delete file.
        """
        if not self.converted:
            return ()
        require_format_version(base, self.format_version)
        check_kinds(self.added, base.format_version)
        self._check_added()
        manifests = live_manifests(attempt, self.branch)
        self._check_reached(manifests, base, attempt)
        if base.format_version > 2:
            self._check_position_deletes(manifests, base, attempt)
        with_vectors = {file.referenced_data_file for file in self.added if is_deletion_vector(file)}
        entries = {one.entry.data_file.file_path: one.entry for one in self.named}
        numbers = {path: sequence_number(entry) for path, entry in entries.items() if path in with_vectors}
        old = _OldVectors(numbers, digest_of_all(numbers.items()))
        kept = remove(manifests.deletes, attempt, as_read=(*self.converted, *self.replaced), selected=old)
        summary = SummaryBuilder(self.summary, kept.summary)
        added = add(self.added, attempt, summary, content=ManifestContent.DELETES)
        new = [*manifests.data, *added, *kept.manifests]
        operation = "delete" if self.added else "overwrite"
        return attempt.snapshot_updates(operation, new, summary, branch=self.branch)

    def _check_added(self) -> None:
        """All files are of the right kind, and each new delete file is in the partition of its data file."""
        kinds = (self.converted, FileContent.EQUALITY_DELETES), (self.replaced, FileContent.POSITION_DELETES)
        for entries, content in kinds:
            for entry in entries:
                if entry.data_file.content is not content:
                    raise IcekeepBug(
                        f"{entry.data_file.file_path!r} is not one of the {content.name.lower()} that it is to go as"
                    )
        by_path = {one.entry.data_file.file_path: one.entry.data_file for one in self.named}
        places = {partition_key(file) for file in by_path.values()}
        for file in self.added:
            if file.content is not FileContent.POSITION_DELETES:
                raise IcekeepBug(f"{file.file_path!r} holds no deletes of positions")
            only = file.referenced_data_file
            if only is None:
                is_right = partition_key(file) in places
            else:
                is_right = only in by_path and partition_key(by_path[only]) == partition_key(file)
            if not is_right:
                raise IcekeepBug(f"{file.file_path!r} deletes positions of no data file that is named in its partition")

    def _check_reached(self, manifests: HeadManifests, base: TableMetadata, attempt: Attempt) -> None:
        """Each live data file that is reached was searched, and each that is named is live."""
        named = {entry_digest(one.entry): one.entry.data_file.file_path for one in self.named}
        start = self.starting_sequence_number
        files = SearchedFiles.of(self.converted, base.specs_by_id, self.data_files, named, start)
        # Chosen by spec alone: sequence numbers may be wrong in the list.
        spec_ids = {spec_id for spec_id, _ in files.partitions}
        matter = [m for m in manifests.data if files.anywhere >= 0 or m.partition_spec_id in spec_ids]
        answers = attempt.ask_live_files(matter, "converted", files.unsearched_and_named)
        for unsearched, _ in answers:
            if unsearched is not None:
                raise ConflictError(
                    f"data file {unsearched!r}, which equality deletes reach that are to go, came after it was planned "
                    "which of its rows they delete"
                )
        live = {digest for _, some in answers for digest in some}
        missing = sorted(path for digest, path in named.items() if digest not in live)
        if missing:
            raise ConflictError(
                f"data file {missing[0]!r} ({len(missing)} in all), which rows are deleted of, is not live any more as it was "
                "read"
            )

    def _check_position_deletes(self, manifests: HeadManifests, base: TableMetadata, attempt: Attempt) -> None:
        """The deletes of positions of each named file are those that its new vector includes."""
        if not self.named:
            return
        files = [one.entry.data_file for one in self.named]
        positions = position_deletes_of(files, manifests.deletes, attempt)
        live = reaching_deletes([one.entry for one in self.named], positions, base.specs_by_id)
        for one in self.named:
            path = one.entry.data_file.file_path
            if {*map(applied_delete, live[path])} != {*map(applied_delete, one.position_deletes)}:
                raise ConflictError(f"other positions of data file {path!r} are deleted than when it was read")


class _OldVectors(msgspec.Struct, frozen=True):
    """A `Selection` of the deletion vectors that are older than their data files, given by path with data sequence number.

    They delete no row, but a data file may have only one vector (spec, "Delete Formats").
    """

    numbers: Mapping[str, int]
    digest: Digest

    def key(self, manifest: ManifestFile) -> Hashable:
        return ("old vectors", self.digest) if self.numbers else None

    def entry(self, entry: ManifestEntry) -> bool:
        number = self.numbers.get(entry.data_file.referenced_data_file or "")
        return number is not None and is_deletion_vector(entry.data_file) and not is_newer(entry, number)


class SearchedFiles(msgspec.Struct, frozen=True):
    """The data files that were searched for rows of equality deletes, and how far these reach.

    Attributes:
        anywhere: the greatest data sequence number that they reach in the whole table.
        partitions: the greatest that they reach in single partitions.
        searched: every data file that one of them reaches, as it was read.
        named: those with deleted rows.
        starting_sequence_number: of the snapshot that was read.
    """

    anywhere: int
    partitions: Mapping[PartitionKey, int]
    searched: EntryDigests
    named: EntryDigests
    starting_sequence_number: int

    @classmethod
    def of(
        cls, deletes: Sequence[ManifestEntry], specs: Specs, searched: EntryDigests, named: Iterable[Digest], start: int
    ) -> "SearchedFiles":
        """Raises `InvalidTableError` where the partition spec of a delete file is missing."""
        anywhere = max((max_reached(one) for one in deletes if is_global(one.data_file, specs)), default=-1)
        return cls(anywhere, DeleteScopes.of(deletes, specs).partitions, searched, EntryDigests.of(named), start)

    def unsearched_and_named(self, live: Iterator[ManifestEntry]) -> tuple[str | None, tuple[Digest, ...]]:
        """The path of a reached file that was not searched, if there is one; and which of the named files are reached."""
        live_and_named: list[Digest] = []
        for entry in live:
            if sequence_number(entry) > max(self.anywhere, self.partitions.get(partition_key(entry.data_file), -1)):
                continue
            digest = entry_digest(entry)
            # A file that was removed and added again may be another one by the same name.
            is_old = (entry.file_sequence_number or 0) <= self.starting_sequence_number
            if not is_old or digest not in self.searched:
                return entry.data_file.file_path, ()
            if digest in self.named:
                live_and_named.append(digest)
        return None, tuple(live_and_named)
