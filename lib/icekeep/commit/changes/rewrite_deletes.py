"""Replace position delete files by fewer that delete the same rows, or by vectors, and drop those that delete nothing."""

from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping
from typing import NamedTuple

import msgspec

from icekeep.commit.attempt import Attempt
from icekeep.commit.dangling import MinNumbersAt
from icekeep.commit.file_sets import Digest, digest_of_all, entry_digest
from icekeep.commit.filtering import EntryReader, without_history
from icekeep.commit.live_files import (
    Manifests,
    live_manifests,
    remove,
    require_format_version,
    require_spec,
)
from icekeep.commit.summary import SummaryBuilder
from icekeep.errors import ConflictError, IcekeepBug, InvalidTableError
from icekeep.spec.applicability import (
    DeleteScopes,
    MinNumbers,
    PartitionKey,
    PathDigest,
    is_dangling,
    is_deletion_vector,
    is_newer,
    named_range,
    own_path,
    partition_key,
    path_digest,
    sequence_number,
)
from icekeep.spec.manifests.structs import (
    DataFile,
    FileContent,
    ManifestContent,
    ManifestEntry,
    ManifestFile,
    Status,
)
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.snapshots import MAIN
from icekeep.spec.updates import Update


class AddedDeletes(msgspec.Struct, frozen=True):
    """A new delete file and the greatest data sequence number of those whose rows it holds, which it is given."""

    file: DataFile
    sequence_number: int


class NamedFile(msgspec.Struct, frozen=True):
    """What became of the rows that rewritten delete files hold for one data file.

    Attributes:
        kept_from: the least data sequence number of a delete file whose rows were kept; null: of none.
        dropped_up_to: the greatest of one whose rows were dropped since it does not reach the data file; null: of none.
        has_vector: rows were dropped since a deletion vector of the data file stands for them.
    """

    kept_from: int | None = None
    dropped_up_to: int | None = None
    has_vector: bool = False

    def and_also(self, other: "NamedFile") -> "NamedFile":
        """What became of the rows of both."""
        kept = [n for n in (self.kept_from, other.kept_from) if n is not None]
        dropped = [n for n in (self.dropped_up_to, other.dropped_up_to) if n is not None]
        return NamedFile(
            min(kept, default=None), max(dropped, default=None), has_vector=self.has_vector or other.has_vector
        )

    def problem(self, number: int | None, *, has_vector: bool, makes_vectors: bool) -> str | None:
        """Why that was wrong for the data file as it is, to be read behind its name; `None` if it was right.

        Args:
            number: its data sequence number, `None` where it is not live.
            has_vector: whether it has a deletion vector.
            makes_vectors: whether the rows that were kept are in a new vector.
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

    The snapshot is a `replace`. Compaction of other engines that started before it looks for new deletes in no such
    snapshot, and need not: each position that is added here was deleted before, by a snapshot that such a look does see
    (or, where that one expired, misses, and then refuses to commit). Our own compaction compares what is deleted, whichever
    files say it.

    Attributes:
        rewritten: whose rows are in `added`, but for those that were dropped.
        named: by the digest of its path, what became of the rows of each data file that `rewritten` have rows for.
        dangling: delete files and vectors that go as a whole since they reach no data file.
        format_version: of the table that was read.
        manifest_paths: where the removed entries were read; only saves work.
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
        """Needs no history: in this base, too, the removed files are live, and delete what the added ones do.

        Rows of a data file were dropped where it was not live or too new: a rollback may have revived it. A merged file has
        a greater sequence number than some of its rows had: a data file that was added anew may have become reachable. A
        new vector stands for all positions of its data file, so nobody else may have given it one.

        Raises:
            ConflictError: one of this is not so in the base, or its format version or specs are others.
            InvalidTableError: a data file would be given two vectors, since delete files say wrongly of which they are.
        """
        if not self.rewritten and not self.dangling:
            return ()
        self._check_base(base)
        manifests = live_manifests(base, self.branch, attempt)
        removed = (*self.rewritten, *self.dangling)
        kept = remove(manifests.deletes, base, attempt, as_read=removed, first=self.manifest_paths)
        self._check_data_files(manifests, base, attempt)
        summary = SummaryBuilder(self.summary)
        summary.absorb(kept.summary)
        new = [*manifests.data, *self._added_manifests(attempt, summary), *kept.manifests]
        return attempt.snapshot_updates("replace", new, summary, branch=self.branch)

    @property
    def _makes_vectors(self) -> bool:
        return self.format_version > 2

    def _check_base(self, base: TableMetadata) -> None:
        require_format_version(base, self.format_version)
        if self.added and not self.rewritten:
            raise IcekeepBug("delete files are added, and none is rewritten")
        for entry in self.rewritten:
            if entry.data_file.content is not FileContent.POSITION_DELETES or is_deletion_vector(entry.data_file):
                raise IcekeepBug(f"{entry.data_file.file_path!r} is rewritten, and is no position delete file")
        greatest = max(map(sequence_number, self.rewritten), default=0)
        for added in self.added:
            if is_deletion_vector(added.file) is not self._makes_vectors:
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

    def _check_data_files(self, manifests: Manifests, base: TableMetadata, attempt: Attempt) -> None:
        specs = base.specs_by_id
        asked = DeleteScopes.union([DeleteScopes({}, frozenset(self.named)), DeleteScopes.of(self.dangling, specs)])
        found = attempt.gathered(manifests.data, MinNumbersAt(without_history(base), asked))
        least = MinNumbers.union(found)
        for entry in self.dangling:
            # Deletes for the whole table, of which there are none, would not be dangling.
            if not is_dangling(entry, least, 0, specs):
                raise ConflictError(
                    f"delete file {entry.data_file.file_path!r}, which reached no data file, reaches one again"
                )
        with_vectors = self._files_with_vectors(manifests, base, attempt)
        for digest, named in self.named.items():
            problem = named.problem(
                least.paths.get(digest), has_vector=digest in with_vectors, makes_vectors=self._makes_vectors
            )
            if problem is not None:
                raise ConflictError(f"a data file, of which {self._namer()} deletes rows, {problem}")
        if self._makes_vectors and self.added:
            self._check_left_out(manifests, least, base, attempt)

    def _check_left_out(self, manifests: Manifests, least: MinNumbers, base: TableMetadata, attempt: Attempt) -> None:
        """No delete file beside those that are rewritten reaches a data file that is given a vector, which would stand for it."""
        targets: dict[PartitionKey, list[tuple[bytes, int]]] = defaultdict(list)
        for file in (added.file for added in self.added):
            path = str(file.referenced_data_file)
            targets[partition_key(file)].append((path.encode(), least.paths.get(path_digest(path), 0)))
        work = _LeftOut(
            without_history(base),
            {partition: _Targets(*zip(*sorted(some), strict=True)) for partition, some in targets.items()},
            frozenset(map(entry_digest, self.rewritten)),
        )
        for found in attempt.gathered(manifests.deletes, work):
            if found is not None:
                raise ConflictError(
                    f"position delete file {found!r} may be of a data file that is given a deletion vector without its rows"
                )

    def _namer(self) -> str:
        """Which file to look into; only digests are known of the data files."""
        first, count = self.rewritten[0].data_file.file_path, len(self.rewritten)
        return f"delete file {first!r}" if count == 1 else f"one of {count} delete files, {first!r} among them,"

    def _files_with_vectors(self, manifests: Manifests, base: TableMetadata, attempt: Attempt) -> frozenset[PathDigest]:
        if not self._makes_vectors or not self.named:
            return frozenset()
        work = _VectorsAt(without_history(base), frozenset(self.named), frozenset(map(entry_digest, self.dangling)))
        return frozenset().union(*attempt.gathered(manifests.deletes, work))

    def _added_manifests(self, attempt: Attempt, summary: SummaryBuilder) -> list[ManifestFile]:
        by_spec: dict[int, list[AddedDeletes]] = defaultdict(list)
        for added in self.added:
            summary.add(added.file)
            by_spec[added.file.spec_id].append(added)
        manifests: list[ManifestFile] = []
        for spec_id, of_spec in by_spec.items():
            entries = (
                ManifestEntry(status=Status.ADDED, data_file=one.file, sequence_number=one.sequence_number)
                for one in of_spec
            )
            manifests += attempt.write_manifests("added", entries, spec_id, ManifestContent.DELETES)
        return manifests


class _Targets(NamedTuple):
    """Data files of one partition, in the order of their paths, and their data sequence numbers."""

    paths: tuple[bytes, ...]
    numbers: tuple[int, ...]


class _LeftOut(msgspec.Struct, frozen=True):
    """A position delete file of a manifest, none of some, that reaches one of some data files; `None` where there is none.

    Attributes:
        targets: the data files by their partition.
        rewritten: the delete files that are not looked for.
    """

    base: TableMetadata
    targets: Mapping[PartitionKey, _Targets]
    rewritten: frozenset[Digest]

    @property
    def key(self) -> Hashable:
        files = (file for some in self.targets.values() for file in zip(*some, strict=True))
        return "left out", digest_of_all(files), digest_of_all(self.rewritten)

    def run(self, manifest: ManifestFile, reader: EntryReader) -> str | None:
        live = (entry for entry in reader.entries(manifest, self.base) if entry.is_live)
        return next((entry.data_file.file_path for entry in live if self._is_left_out(entry)), None)

    def _is_left_out(self, entry: ManifestEntry) -> bool:
        file = entry.data_file
        if file.content is not FileContent.POSITION_DELETES or is_deletion_vector(file):
            return False
        some = self.targets.get(partition_key(file))
        if some is None or entry_digest(entry) in self.rewritten:
            return False
        own = own_path(file)
        return any(is_newer(entry, number) for number in some.numbers[named_range(some.paths, (own, own))])


class _VectorsAt(msgspec.Struct, frozen=True):
    """Which of some data files a manifest's deletion vectors are for, but for those that go since they reach nothing."""

    base: TableMetadata
    paths: frozenset[PathDigest]
    going: frozenset[Digest]

    @property
    def key(self) -> Hashable:
        return "vectors", digest_of_all(self.paths), digest_of_all(self.going)

    def run(self, manifest: ManifestFile, reader: EntryReader) -> frozenset[PathDigest]:
        vectors = (
            entry.data_file.referenced_data_file
            for entry in reader.entries(manifest, self.base)
            if entry.is_live and is_deletion_vector(entry.data_file) and entry_digest(entry) not in self.going
        )
        return frozenset(digest for path in vectors if path is not None and (digest := path_digest(path)) in self.paths)
