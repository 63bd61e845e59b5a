"""Write manifests anew whose entries, or whose rows of the manifest list, say what is not so."""

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence

import msgspec

from icekeep.commit.attempt import Attempt
from icekeep.commit.changes.deletes import AddedDeletes
from icekeep.commit.filtering import EntryReader, identity, without_history
from icekeep.commit.live_files import FileKey, add, file_key, require_format_version
from icekeep.commit.manifests import refuse_encrypted_manifest
from icekeep.commit.summary import SummaryBuilder, totals_of
from icekeep.errors import ConflictError, IcekeepBug, InvalidTableError, UnsupportedError
from icekeep.spec.manifests.read import lacks_counts, read_manifest
from icekeep.spec.manifests.structs import (
    COUNTS,
    DataFile,
    FileContent,
    ManifestContent,
    ManifestEntry,
    ManifestFile,
    Status,
)
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.reach import is_deletion_vector, partition_key
from icekeep.spec.snapshots import MAIN
from icekeep.spec.types import StructType
from icekeep.spec.updates import Update
from icekeep.storage.base import Storage


class MendedEntry(msgspec.Struct, frozen=True, kw_only=True):
    """What becomes of one entry.

    Attributes:
        manifest, index: which it is: the location of its manifest, and its place among all entries there, from 0.
        planned: as it was read.
        file: as its file is to be described; `None` where the entry goes.
        is_replaced: of one that goes, whether its rows are in files that the same change adds.
        is_deleted: of one that goes, whether it is marked as deleted. Not where the same file is live by another entry:
            engines delete the files of such marks when snapshots expire. So a vector is not marked either while its Puffin
            file has others that are live.
    """

    manifest: str
    index: int
    planned: ManifestEntry
    file: DataFile | None
    is_deleted: bool = True
    is_replaced: bool = False


class AddedCopy(msgspec.Struct, frozen=True):
    """A data file that holds what one of an older snapshot holds, whose data sequence number and first row id it takes."""

    file: DataFile
    sequence_number: int


class MendEntries(msgspec.Struct, frozen=True, kw_only=True):
    """Entries to be described anew or to go, on one branch; what else their manifests list is carried, as it was read.

    An entry that stays keeps its snapshot, both sequence numbers, first row id, spec and partition, and is an existing one.

    Attributes:
        rows: locations of manifests that are written anew since their rows are wrong.
        once: locations of manifests that the list is to name once.
        added: delete files in the place of those that go.
        copies: data files in the place of those that go.
        counts_anew: whether the totals are counted from all live entries, in place of being carried on.
        format_version: of the table that was read.
    """

    entries: tuple[MendedEntry, ...] = ()
    rows: frozenset[str] = frozenset()
    once: frozenset[str] = frozenset()
    added: tuple[AddedDeletes, ...] = ()
    copies: tuple[AddedCopy, ...] = ()
    counts_anew: bool = False
    format_version: int
    branch: str = MAIN
    summary: Mapping[str, str] = {}

    def apply(self, base: TableMetadata, attempt: Attempt) -> tuple[Update, ...]:
        """Nothing is trusted that a plan said of a manifest: each is read again.

        Raises:
            ConflictError: an entry is not live any more in its manifest, or another one than was planned.
            InvalidTableError: nothing proves that a manifest whose row is wrong is whole.
            UnsupportedError: a manifest holds what is not known here, and would lose it.
        """
        if not (self.entries or self.rows or self.once or self.counts_anew):
            return ()
        require_format_version(base, self.format_version)
        self._check()
        head = base.head(self.branch)
        rows = self._listed_once([] if head is None else attempt.reader.manifests(head))
        self._check_listed(rows)
        summary, totals = SummaryBuilder(self.summary), Counter[str]()
        mends, used = self._by_manifest(), self._used_puffins(rows, base, attempt)
        manifests: list[ManifestFile] = []
        for row in rows:
            if row.manifest_path in mends:
                manifests += self._mended(row, mends[row.manifest_path], used, base, attempt, summary, totals)
            else:
                manifests.append(row)
        added = self._added(base, attempt, summary)
        if self.counts_anew:
            stays = [row for row in rows if row.manifest_path not in mends]
            totals.update(totals_of(one.file for one in self._new))
            for found in attempt.gathered(stays, LiveTotals(without_history(base))):
                totals.update(found)
            summary.count_anew(totals)
        return attempt.snapshot_updates(self._operation, [*added, *manifests], summary, branch=self.branch)

    @property
    def _new(self) -> "list[AddedDeletes | AddedCopy]":
        return [*self.added, *self.copies]

    @property
    def _operation(self) -> str:
        """`delete` and `overwrite` where rows that somebody has read are gone, or come back."""
        gone = [one for one in self.entries if one.file is None and not one.is_replaced]
        if not gone and not self.once:
            return "replace"
        only_data = (
            all(one.is_deleted and one.planned.data_file.content is FileContent.DATA for one in gone)
            and not self.once
            and not self.copies
        )
        return "delete" if only_data else "overwrite"

    def _check(self) -> None:
        if len({(one.manifest, one.index) for one in self.entries}) < len(self.entries):
            raise IcekeepBug("an entry is to be mended in two ways")
        for one in self.entries:
            old, new = one.planned.data_file, one.file
            if new is None:
                continue
            kept = ("file_path", "content_offset", "content", "first_row_id")
            is_same = partition_key(old) == partition_key(new)
            if not is_same or any(getattr(old, name) != getattr(new, name) for name in kept):
                raise IcekeepBug(f"the entry of {old.file_path!r} would be one of another file")

    def _by_manifest(self) -> Mapping[str, Mapping[int, MendedEntry]]:
        found: defaultdict[str, dict[int, MendedEntry]] = defaultdict(dict)
        for path in self.rows:
            found[path] = {}
        for one in self.entries:
            found[one.manifest][one.index] = one
        return found

    def _listed_once(self, rows: Sequence[ManifestFile]) -> list[ManifestFile]:
        first: dict[str, ManifestFile] = {}
        kept = []
        for row in rows:
            if row.manifest_path in self.once and row.manifest_path in first:
                if row != first[row.manifest_path]:
                    raise InvalidTableError(
                        f"manifest {row.manifest_path!r} is listed twice, and not in the same way; it is not known which row is "
                        "right",
                        location=row.manifest_path,
                    )
                continue
            first[row.manifest_path] = row
            kept.append(row)
        return kept

    def _check_listed(self, rows: Sequence[ManifestFile]) -> None:
        wanted = {*self.rows, *self.once, *(one.manifest for one in self.entries)}
        times = Counter(row.manifest_path for row in rows)
        if missing := wanted - times.keys():
            raise ConflictError(
                f"manifest {min(missing)!r} ({len(missing)} in all) is no longer in the table as it was read"
            )
        if doubled := [path for path in wanted if times[path] > 1]:
            raise InvalidTableError(f"manifest {min(doubled)!r} is listed twice; fix that first", location=min(doubled))

    def _mended(
        self,
        row: ManifestFile,
        mends: Mapping[int, MendedEntry],
        used: frozenset[str],
        base: TableMetadata,
        attempt: Attempt,
        summary: SummaryBuilder,
        totals: Counter[str],
    ) -> tuple[ManifestFile, ...]:
        """What comes in the place of a manifest; counted in the summary, and with its live files in the totals."""
        read, is_odd = self._read(row, base, attempt)
        if is_odd or base.specs_by_id[row.partition_spec_id].has_unknown_transform:
            raise UnsupportedError(
                f"manifest {row.manifest_path!r} holds what icekeep does not know, a transform or fields, and would lose it",
                location=row.manifest_path,
            )
        for index, mend in mends.items():
            if index >= len(read) or not _is_same(read[index], mend.planned) or not read[index].is_live:
                raise ConflictError(
                    f"file {mend.planned.data_file.file_path!r} is not live any more as it was read",
                    manifest=row.manifest_path,
                )
        entries = [*_entries(read, mends, used, attempt.snapshot_id)]
        for mend in mends.values():
            _count(mend, summary)
        totals.update(totals_of(entry.data_file for entry in entries if entry.is_live))
        key = ("mended", identity(row), row.sequence_number, used)
        return attempt.write_manifests(key, entries, row.partition_spec_id, row.content)

    def _used_puffins(self, rows: Sequence[ManifestFile], base: TableMetadata, attempt: Attempt) -> frozenset[str]:
        """The Puffin files of vectors that go, in which other vectors stay; all, where not every manifest can be read."""
        files = [one.planned.data_file for one in self.entries if one.file is None]
        going = {file_key(file) for file in files if is_deletion_vector(file)}
        if not going:
            return frozenset()
        paths = frozenset(path for path, _ in going)
        asked = VectorsIn(without_history(base), paths)
        deletes = [row for row in rows if row.content is ManifestContent.DELETES]
        try:
            found = attempt.gathered([row for row in deletes if row.manifest_path not in self.rows], asked)
            found += [
                asked.among(self._read(row, base, attempt)[0]) for row in deletes if row.manifest_path in self.rows
            ]
        except (InvalidTableError, UnsupportedError):
            return paths
        return frozenset(path for some in found for path, offset in some if (path, offset) not in going)

    def _read(self, row: ManifestFile, base: TableMetadata, attempt: Attempt) -> tuple[list[ManifestEntry], bool]:
        """The entries of a manifest, and whether it has fields that are not known."""
        if row.manifest_path not in self.rows:
            return [*attempt.reader.entries(row, base)], attempt.reader.has_unknown_fields(row)
        return read_by_wrong_row(row, base.partition_type(row.partition_spec_id), attempt.reader.storage)

    def _added(self, base: TableMetadata, attempt: Attempt, summary: SummaryBuilder) -> list[ManifestFile]:
        manifests: list[ManifestFile] = []
        for one in self._new:
            is_data = one.file.content is FileContent.DATA
            manifests += add(
                [one.file],
                base,
                attempt,
                summary,
                content=ManifestContent.DATA if is_data else ManifestContent.DELETES,
                sequence_number=one.sequence_number,
                key=("added", one.file.file_path, one.file.content_offset),
            )
        return manifests


class VectorsIn(msgspec.Struct, frozen=True):
    """The live vectors of a manifest that are in some Puffin files: location and offset of each."""

    base: TableMetadata
    paths: frozenset[str]

    @property
    def key(self) -> Hashable:
        return "vectors in", self.paths

    def run(self, manifest: ManifestFile, reader: EntryReader) -> list[FileKey]:
        return self.among(reader.entries(manifest, self.base))

    def among(self, entries: Iterable[ManifestEntry]) -> list[FileKey]:
        """Those of some entries."""
        return [file_key(e.data_file) for e in entries if e.is_live and e.data_file.file_path in self.paths]


class LiveTotals(msgspec.Struct, frozen=True):
    """The totals of the live files of a manifest."""

    base: TableMetadata

    @property
    def key(self) -> Hashable:
        return "totals"

    def run(self, manifest: ManifestFile, reader: EntryReader) -> Mapping[str, int]:
        return totals_of(entry.data_file for entry in reader.entries(manifest, self.base) if entry.is_live)


def read_by_wrong_row(row: ManifestFile, partition: StructType, storage: Storage) -> tuple[list[ManifestEntry], bool]:
    """All entries of a manifest of which the list says a wrong length, or wrong counts, summaries or numbers.

    With them whether it has fields that are not known.

    One of length and counts must be right, since a file that is cut off between two blocks reads well, and lacks entries.

    Raises:
        InvalidTableError: neither is, or the file is damaged.
    """
    refuse_encrypted_manifest(row)
    data = storage.read(row.manifest_path)
    if len(data) == row.manifest_length:
        row = msgspec.structs.replace(row, **{name: None for names in COUNTS.values() for name in names})
    elif lacks_counts(row):
        raise InvalidTableError(
            f"manifest {row.manifest_path!r} has {len(data)} bytes, not {row.manifest_length}, and the list has no counts that "
            "show whether it is whole",
            location=row.manifest_path,
        )
    else:
        row = msgspec.structs.replace(row, manifest_length=len(data))
    header, entries = read_manifest(data, row, partition)
    return [*entries], bool(header.unknown_field_ids)


def _is_same(entry: ManifestEntry, other: ManifestEntry) -> bool:
    """Whether two entries say the same; a NaN in their partitions equals every NaN."""
    one, two = (
        msgspec.structs.replace(e, data_file=msgspec.structs.replace(e.data_file, partition=())) for e in (entry, other)
    )
    return one == two and partition_key(entry.data_file) == partition_key(other.data_file)


def _entries(
    read: Sequence[ManifestEntry], mends: Mapping[int, MendedEntry], used: frozenset[str], snapshot_id: int
) -> Iterator[ManifestEntry]:
    for index, entry in enumerate(read):
        if not entry.is_live:
            continue
        mend = mends.get(index)
        if mend is None:
            yield msgspec.structs.replace(entry, status=Status.EXISTING)
        elif mend.file is not None:
            yield msgspec.structs.replace(entry, status=Status.EXISTING, data_file=mend.file)
        elif mend.is_deleted and entry.data_file.file_path not in used:
            yield msgspec.structs.replace(entry, status=Status.DELETED, snapshot_id=snapshot_id)


def _count(mend: MendedEntry, summary: SummaryBuilder) -> None:
    file = mend.planned.data_file
    if mend.file is None and mend.is_deleted:
        summary.remove(file)
    else:
        summary.correct(file, mend.file)
