"""Rewrite manifests with wrong entries, or with wrong rows in the manifest list."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial

import msgspec

from icekeep.commit.attempt import Attempt
from icekeep.commit.changes.deletes import AddedDeletes
from icekeep.commit.live_files import FileKey, add, file_key, require_format_version
from icekeep.commit.manifests import LiveFilesQuestion, manifest_key, refuse_encrypted_manifest
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


class RepairedEntry(msgspec.Struct, frozen=True, kw_only=True):
    """The repair of one entry.

    Attributes:
        manifest, index: the location of its manifest, and its position among all entries there, from 0.
        planned: as it was read.
        file: the corrected data file; `None` removes the entry.
        is_replaced: of a removed one, whether its rows are in files that the same change adds.
        is_deleted: of a removed one, whether it is marked as deleted. Not where the same file is live by another entry, since
            engines delete the files of such entries when snapshots expire; nor a vector whose Puffin file has other live ones.
    """

    manifest: str
    index: int
    planned: ManifestEntry
    file: DataFile | None
    is_deleted: bool = True
    is_replaced: bool = False


class AddedCopy(msgspec.Struct, frozen=True):
    """A copy of a data file of an older snapshot, with its data sequence number and first row id."""

    file: DataFile
    sequence_number: int


class RepairEntries(msgspec.Struct, frozen=True, kw_only=True):
    """Entries to correct or remove, on one branch; all other entries of their manifests stay as they were read.

    An entry that stays keeps its snapshot, both sequence numbers, first row id, spec and partition, and becomes an existing one.

    Attributes:
        rows: locations of manifests to rewrite since their rows in the list are wrong.
        once: locations of manifests that the list is to name only once.
        added: delete files in the place of removed ones.
        copies: data files in the place of removed ones.
        recounts_totals: whether the totals of the summary are counted from all live entries.
        format_version: of the table that was read.
    """

    entries: tuple[RepairedEntry, ...] = ()
    rows: frozenset[str] = frozenset()
    once: frozenset[str] = frozenset()
    added: tuple[AddedDeletes, ...] = ()
    copies: tuple[AddedCopy, ...] = ()
    recounts_totals: bool = False
    format_version: int
    branch: str = MAIN
    summary: Mapping[str, str] = {}

    def apply(self, base: TableMetadata, attempt: Attempt) -> tuple[Update, ...]:
        """Each manifest is read again, and its entries must be as they were planned."""
        if not (self.entries or self.rows or self.once or self.recounts_totals):
            return ()
        require_format_version(base, self.format_version)
        self._check_entries()
        head = base.head(self.branch)
        rows = self._listed_once([] if head is None else attempt.reader.manifests(head))
        summary, totals = SummaryBuilder(self.summary), Counter[str]()
        repairs: defaultdict[str, dict[int, RepairedEntry]] = defaultdict(dict, {path: {} for path in self.rows})
        for one in self.entries:
            repairs[one.manifest][one.index] = one
        used = self._used_puffins(rows, base, attempt)
        manifests: list[ManifestFile] = []
        for row in rows:
            if row.manifest_path not in repairs:
                manifests.append(row)
                continue
            entries = self._repaired(row, repairs[row.manifest_path], used, base, attempt)
            totals.update(totals_of(entry.data_file for entry in entries if entry.is_live))
            of_row = ("repaired", manifest_key(row), row.sequence_number, used)
            manifests += attempt.write_manifests(of_row, entries, row.partition_spec_id, row.content)
        for one in self.entries:
            if one.file is None and one.is_deleted:
                summary.remove(one.planned.data_file)
            else:
                summary.correct(one.planned.data_file, one.file)
        both: tuple[AddedDeletes | AddedCopy, ...] = (*self.added, *self.copies)
        new = [(one.file, one.sequence_number) for one in both]
        added: list[ManifestFile] = []
        for file, number in new:
            content = ManifestContent.DATA if file.content is FileContent.DATA else ManifestContent.DELETES
            key = ("added", file.file_path, file.content_offset)
            added += add([file], attempt, summary, content=content, sequence_number=number, key=key)
        if self.recounts_totals:
            totals.update(totals_of(file for file, _ in new))
            unchanged = [row for row in rows if row.manifest_path not in repairs]
            for of_manifest in attempt.gathered(unchanged, live_totals(base)):
                totals.update(of_manifest)
            summary.totals = totals
        return attempt.snapshot_updates(self._operation, [*added, *manifests], summary, branch=self.branch)

    @property
    def _operation(self) -> str:
        """`delete` or `overwrite` where readers lose rows, or get rows back."""
        gone = [one for one in self.entries if one.file is None and not one.is_replaced]
        if not gone and not self.once:
            return "replace"
        only_data = (
            all(one.is_deleted and one.planned.data_file.content is FileContent.DATA for one in gone)
            and not self.once
            and not self.copies
        )
        return "delete" if only_data else "overwrite"

    def _check_entries(self) -> None:
        if len({(one.manifest, one.index) for one in self.entries}) < len(self.entries):
            raise IcekeepBug("an entry is to be repaired in two ways")
        for one in self.entries:
            old, new = one.planned.data_file, one.file
            if new is None:
                continue
            kept = ("file_path", "content_offset", "content", "first_row_id")
            is_same = partition_key(old) == partition_key(new)
            if not is_same or any(getattr(old, name) != getattr(new, name) for name in kept):
                raise IcekeepBug(f"the entry of {old.file_path!r} would be one of another file")

    def _listed_once(self, rows: Sequence[ManifestFile]) -> list[ManifestFile]:
        """The rows of a list, with a single row for each manifest that is to be rewritten or named once."""
        first: dict[str, ManifestFile] = {}
        kept = []
        for row in rows:
            path = row.manifest_path
            if path in self.once and path in first:
                if row != first[path]:
                    raise InvalidTableError(
                        f"manifest {path!r} is listed twice, and not in the same way; it is not known which row is right",
                        location=path,
                    )
                continue
            first[path] = row
            kept.append(row)
        expected = {*self.rows, *self.once, *(one.manifest for one in self.entries)}
        times = Counter(row.manifest_path for row in kept)
        if missing := expected - times.keys():
            raise ConflictError(
                f"manifest {min(missing)!r} ({len(missing)} in all) is no longer in the table as it was read"
            )
        if doubled := [path for path in expected if times[path] > 1]:
            raise InvalidTableError(f"manifest {min(doubled)!r} is listed twice; fix that first", location=min(doubled))
        return kept

    def _repaired(
        self,
        row: ManifestFile,
        repairs: Mapping[int, RepairedEntry],
        used: frozenset[str],
        base: TableMetadata,
        attempt: Attempt,
    ) -> list[ManifestEntry]:
        """The entries of the rewritten manifest; `used`: Puffin files in which live vectors stay."""
        read, has_unknown_fields = self._read(row, base, attempt)
        if has_unknown_fields or base.specs_by_id[row.partition_spec_id].has_unknown_transform:
            raise UnsupportedError(
                f"manifest {row.manifest_path!r} holds what icekeep does not know, a transform or fields, and would lose it",
                location=row.manifest_path,
            )
        for index, repair in repairs.items():
            if index >= len(read) or not _is_same(read[index], repair.planned) or not read[index].is_live:
                raise ConflictError(
                    f"file {repair.planned.data_file.file_path!r} is not live any more as it was read",
                    manifest=row.manifest_path,
                )
        entries = []
        for index, entry in enumerate(read):
            if not entry.is_live:
                continue
            planned = repairs.get(index)
            file = entry.data_file if planned is None else planned.file
            if file is not None:
                entries.append(msgspec.structs.replace(entry, status=Status.EXISTING, data_file=file))
            elif planned is not None and planned.is_deleted and entry.data_file.file_path not in used:
                deleted = msgspec.structs.replace(entry, status=Status.DELETED, snapshot_id=attempt.snapshot_id)
                entries.append(deleted)
        return entries

    def _used_puffins(self, rows: Sequence[ManifestFile], base: TableMetadata, attempt: Attempt) -> frozenset[str]:
        """The Puffin files of removed vectors in which other vectors stay; all, where not every manifest can be read."""
        files = [one.planned.data_file for one in self.entries if one.file is None]
        removed = {file_key(file) for file in files if is_deletion_vector(file)}
        if not removed:
            return frozenset()
        paths = frozenset(path for path, _ in removed)
        deletes = [row for row in rows if row.content is ManifestContent.DELETES]
        sound = [row for row in deletes if row.manifest_path not in self.rows]
        try:
            vectors = attempt.ask_live_files(sound, ("vectors in", paths), partial(_vectors_in, paths))
            for row in deletes:
                if row.manifest_path in self.rows:
                    vectors.append(_vectors_in(paths, (e for e in self._read(row, base, attempt)[0] if e.is_live)))
        except (InvalidTableError, UnsupportedError):
            return paths
        return frozenset(path for some in vectors for path, offset in some if (path, offset) not in removed)

    def _read(self, row: ManifestFile, base: TableMetadata, attempt: Attempt) -> tuple[list[ManifestEntry], bool]:
        """The entries of a manifest, and whether it has unknown fields."""
        if row.manifest_path not in self.rows:
            return [*attempt.reader.entries(row, base)], attempt.reader.has_unknown_fields(row)
        return read_by_wrong_row(row, base.partition_type(row.partition_spec_id), attempt.reader.storage)


def _vectors_in(paths: frozenset[str], live: Iterable[ManifestEntry]) -> list[FileKey]:
    return [file_key(entry.data_file) for entry in live if entry.data_file.file_path in paths]


def live_totals(base: TableMetadata) -> LiveFilesQuestion[Counter[str]]:
    return LiveFilesQuestion.of(base, "totals", _totals)


def _totals(live: Iterator[ManifestEntry]) -> Counter[str]:
    return totals_of(entry.data_file for entry in live)


def read_by_wrong_row(row: ManifestFile, partition: StructType, storage: Storage) -> tuple[list[ManifestEntry], bool]:
    """All entries of a manifest whose row in the list is wrong, and whether it has unknown fields.

    The length or the counts in the row must be right, since a file that is cut off between two blocks reads without an error,
    and lacks entries; raises `InvalidTableError` where neither is, or the file is damaged.
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
    """Whether two entries are equal; a NaN in their partitions equals every NaN."""
    one, two = (
        msgspec.structs.replace(e, data_file=msgspec.structs.replace(e.data_file, partition=())) for e in (entry, other)
    )
    return one == two and partition_key(entry.data_file) == partition_key(other.data_file)
