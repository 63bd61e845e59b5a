"""Put deletes of positions in the place of equality deletes, in one snapshot: no row comes back, and none goes.

An equality delete file goes only if each live data file that it reaches was looked through for its rows. Which files these
are is asked of every attempt's base: one may have come since, as old as the others, from a compaction that kept its starting
sequence number or by a rollback. The commit says that it deletes, never `replace`: other engines look for new deletes of
positions in no snapshot of that kind, so a compaction of theirs that began before would lose them (apache/iceberg #10312).
"""

from bisect import bisect_left
from collections.abc import Hashable, Iterable, Iterator, Mapping

import msgspec

from icekeep.commit.attempt import Attempt
from icekeep.commit.changes.row_delta import check_kinds
from icekeep.commit.file_questions import position_deletes_of
from icekeep.commit.file_sets import Digest, entry_digest
from icekeep.commit.filtering import EntryReader, without_history
from icekeep.commit.live_files import Manifests, add, live_manifests, remove, require_format_version
from icekeep.commit.selection import OldVectors
from icekeep.commit.summary import SummaryBuilder
from icekeep.errors import ConflictError, IcekeepBug
from icekeep.spec.applicability import (
    PartitionKey,
    Specs,
    applied_delete,
    is_deletion_vector,
    is_global,
    max_reached,
    partition_key,
    reaching_deletes,
    sequence_number,
)
from icekeep.spec.manifests.structs import DataFile, FileContent, ManifestContent, ManifestEntry, ManifestFile
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.snapshots import MAIN
from icekeep.spec.updates import Update

_DIGEST_BYTES = 16


class EntryDigests(msgspec.Struct, frozen=True):
    """Live files as they were read, sixteen bytes each: which of them there are is all that can be asked."""

    packed: bytes = b""

    @classmethod
    def of(cls, digests: Iterable[Digest]) -> "EntryDigests":
        """The set of some digests."""
        return cls(b"".join(sorted(set(digests))))

    @classmethod
    def union(cls, some: Iterable["EntryDigests"]) -> "EntryDigests":
        """All that are in one of some sets."""
        return cls.of(digest for one in some for digest in one)

    def __iter__(self) -> Iterator[Digest]:
        return (self._at(number) for number in range(len(self)))

    def __len__(self) -> int:
        return len(self.packed) // _DIGEST_BYTES

    def __contains__(self, digest: Digest) -> bool:
        place = bisect_left(range(len(self)), digest, key=self._at)
        return place < len(self) and self._at(place) == digest

    def _at(self, number: int) -> Digest:
        return self.packed[number * _DIGEST_BYTES : (number + 1) * _DIGEST_BYTES]


class ConvertedFile(msgspec.Struct, frozen=True):
    """A data file as it was read, of which rows are deleted by their values; and the deletes of its positions that reach it.

    In format version 2, where these do not matter, none are said.
    """

    entry: ManifestEntry
    position_deletes: tuple[ManifestEntry, ...] = ()


class ConvertDeletes(msgspec.Struct, frozen=True, kw_only=True):
    """Equality delete files to remove, and what takes their place.

    Attributes:
        converted: live entries of equality delete files, as they were read; those that reach nothing among them.
        data_files: every data file that one of them reaches, as it was read; each was looked through for all of them.
        added: delete files or vectors of the positions that were found.
        named: the data files of which positions were found.
        replaced: live entries of vectors and position delete files that `added` hold the positions of, and that go.
        format_version: of the table that was read.
        starting_sequence_number: of the snapshot that was read.
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
        """The base with the new deletes and without the converted ones.

        A vector that is older than its data file deletes nothing, and goes where the file is given one.

        Raises:
            ConflictError: a live data file that a converted delete file reaches was not looked through, one that positions
                are deleted of is not live as it was read, or has other vectors or position deletes in format version 3,
                what is to go is gone, or the table was upgraded.
            UnsupportedError: the table's format version has no delete files of that kind.
        """
        if not self.converted:
            return ()
        require_format_version(base, self.format_version)
        check_kinds(self.added, base.format_version)
        self._check_added()
        manifests = live_manifests(base, self.branch, attempt)
        self._check_reached(manifests, base, attempt)
        if base.format_version > 2:
            self._check_position_deletes(manifests, base, attempt)
        given = {file.referenced_data_file for file in self.added if is_deletion_vector(file)}
        entries = {one.entry.data_file.file_path: one.entry for one in self.named}
        old = OldVectors({path: sequence_number(entry) for path, entry in entries.items() if path in given})
        kept = remove(manifests.deletes, base, attempt, as_read=(*self.converted, *self.replaced), selected=old)
        summary = SummaryBuilder(self.summary)
        summary.absorb(kept.summary)
        added = add(self.added, base, attempt, summary, content=ManifestContent.DELETES)
        new = [*manifests.data, *added, *kept.manifests]
        operation = "delete" if self.added else "overwrite"
        return attempt.snapshot_updates(operation, new, summary, branch=self.branch)

    def _check_added(self) -> None:
        """What goes and what comes is of the right kind, and each new delete file lies where a data file of its own does."""
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

    def _check_reached(self, manifests: Manifests, base: TableMetadata, attempt: Attempt) -> None:
        """Each live data file that is reached was looked through, and each that is named is live."""
        reached = ReachedNumbers.of(self.converted, base.specs_by_id)
        named = {entry_digest(one.entry): one.entry.data_file.file_path for one in self.named}
        question = _Question(
            base=without_history(base),
            reached=reached,
            data_files=self.data_files,
            named=EntryDigests.of(named),
            starting_sequence_number=self.starting_sequence_number,
        )
        matter = [manifest for manifest in manifests.data if reached.may_be_in(manifest)]
        answers = attempt.gathered(matter, question)
        for answer in answers:
            if answer.stranger is not None:
                raise ConflictError(
                    f"data file {answer.stranger!r}, which equality deletes reach that are to go, came after it was planned "
                    "which of its rows they delete"
                )
        live = {digest for answer in answers for digest in answer.named}
        missing = sorted(path for digest, path in named.items() if digest not in live)
        if missing:
            raise ConflictError(
                f"data file {missing[0]!r} ({len(missing)} in all), which rows are deleted of, is not live any more as it was "
                "read"
            )

    def _check_position_deletes(self, manifests: Manifests, base: TableMetadata, attempt: Attempt) -> None:
        """The positions that are deleted already in each named file are those that its new vector was made with."""
        if not self.named:
            return
        files = [one.entry.data_file for one in self.named]
        positions = position_deletes_of(files, manifests.deletes, base, attempt)
        live = reaching_deletes([one.entry for one in self.named], positions, base.specs_by_id)
        for one in self.named:
            path = one.entry.data_file.file_path
            if {*map(applied_delete, live[path])} != {*map(applied_delete, one.position_deletes)}:
                raise ConflictError(f"other positions of data file {path!r} are deleted than when it was read")


class ReachedNumbers(msgspec.Struct, frozen=True):
    """The greatest data sequence numbers that some equality deletes reach: anywhere, and in single partitions of some specs."""

    anywhere: int = -1
    partitions: Mapping[PartitionKey, int] = {}
    spec_ids: frozenset[int] = frozenset()

    @classmethod
    def of(cls, deletes: Iterable[ManifestEntry], specs: Specs) -> "ReachedNumbers":
        """What equality delete files reach.

        Raises:
            InvalidTableError: the partition spec of one of them is missing.
        """
        anywhere = -1
        partitions: dict[PartitionKey, int] = {}
        for delete in deletes:
            number = max_reached(delete)
            if is_global(delete.data_file, specs):
                anywhere = max(anywhere, number)
            else:
                place = partition_key(delete.data_file)
                partitions[place] = max(number, partitions.get(place, -1))
        return cls(anywhere, partitions, frozenset(spec_id for spec_id, _ in partitions))

    def may_be_in(self, manifest: ManifestFile) -> bool:
        """Whether a data manifest may list a file that is reached, by its spec; its numbers may be wrong in the list."""
        return self.anywhere >= 0 or manifest.partition_spec_id in self.spec_ids

    def has(self, data: ManifestEntry) -> bool:
        """Whether a data file is reached."""
        number = sequence_number(data)
        return number <= self.anywhere or number <= self.partitions.get(partition_key(data.data_file), -1)


class _Answer(msgspec.Struct, frozen=True):
    """A reached file that was not looked through, if a manifest has one; and which of the named files it has."""

    stranger: str | None
    named: tuple[Digest, ...]


class _Question(msgspec.Struct, frozen=True, kw_only=True):
    base: TableMetadata
    reached: ReachedNumbers
    data_files: EntryDigests
    named: EntryDigests
    starting_sequence_number: int

    @property
    def key(self) -> Hashable:
        return "converted"

    def run(self, manifest: ManifestFile, reader: EntryReader) -> _Answer:
        named: list[Digest] = []
        for entry in reader.entries(manifest, self.base):
            if not entry.is_live or not self.reached.has(entry):
                continue
            digest = entry_digest(entry)
            # A file that went and came back may be another one by the same name.
            is_old = (entry.file_sequence_number or 0) <= self.starting_sequence_number
            if not is_old or digest not in self.data_files:
                return _Answer(entry.data_file.file_path, ())
            if digest in self.named:
                named.append(digest)
        return _Answer(None, tuple(named))
