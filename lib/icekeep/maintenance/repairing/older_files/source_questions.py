"""What is asked of manifests to put files of an older snapshot in the place of a lost one; each can be asked in tasks."""

from collections.abc import Hashable, Iterator, Sequence

import msgspec

from icekeep.commit.filtering import EntryReader
from icekeep.errors import InvalidTableError, UnsupportedError, first_line
from icekeep.formats.deletes.read import read_position_deletes
from icekeep.maintenance.repairing.named_entries import same_file
from icekeep.maintenance.repairing.plan import Replacement
from icekeep.spec.manifests.structs import DataFile, FileContent, ManifestContent, ManifestEntry, ManifestFile
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.reach import PartitionKey, is_deletion_vector, only_data_file, partition_key
from icekeep.spec.reached_files import DataFileIndex, reaches
from icekeep.storage.base import Storage


class LiveIn(msgspec.Struct, frozen=True):
    """The live entries of a manifest in some partitions."""

    base: TableMetadata
    partitions: frozenset[PartitionKey]

    @property
    def key(self) -> Hashable:
        return "live in", self.partitions

    def run(self, manifest: ManifestFile, reader: EntryReader) -> list[ManifestEntry]:
        if manifest.partition_spec_id not in {spec_id for spec_id, _ in self.partitions}:
            return []
        entries = reader.entries(manifest, self.base)
        return [one for one in entries if one.is_live and partition_key(one.data_file) in self.partitions]


class Reaching(msgspec.Struct, frozen=True):
    """The live delete files of a manifest that may reach some data files."""

    base: TableMetadata
    data: tuple[ManifestEntry, ...]

    @property
    def key(self) -> Hashable:
        return "reaching", tuple(one.data_file.file_path for one in self.data)

    def run(self, manifest: ManifestFile, reader: EntryReader) -> list[ManifestEntry]:
        index, specs = DataFileIndex(self.data), self.base.specs_by_id
        return [
            delete
            for delete in reader.entries(manifest, self.base)
            if delete.is_live and any(index.that_may_be_reached(delete, specs))
        ]


class Hindrance(msgspec.Struct, frozen=True):
    """What would change rows.

    Attributes:
        number: of what cannot be put back.
        delete: a position delete file of which only its rows tell whether that is so.
    """

    number: int
    problem: str
    delete: DataFile | None = None


class InTheWay(msgspec.Struct, frozen=True):
    """What a manifest of the head has that would change rows, if files were put back."""

    base: TableMetadata
    replacements: tuple[Replacement, ...]

    @property
    def key(self) -> Hashable:
        return "in the way", tuple(lost.data_file.file_path for one in self.replacements for lost in one.lost)

    def run(self, manifest: ManifestFile, reader: EntryReader) -> list[Hindrance]:
        live = (entry for entry in reader.entries(manifest, self.base) if entry.is_live)
        if manifest.content is ManifestContent.DATA:
            return self._of_data(live)
        return self._of_deletes(live)

    def _of_data(self, live: Iterator[ManifestEntry]) -> list[Hindrance]:
        """Rows must not be there twice."""
        numbers = {
            same_file(old.entry.data_file.file_path): number
            for number, one in enumerate(self.replacements)
            for old in one.old
        }
        return [
            Hindrance(
                numbers[place], f"file {entry.data_file.file_path!r}, which the rewrite has read, is in the table again"
            )
            for entry in live
            if (place := same_file(entry.data_file.file_path)) in numbers
        ]

    def _of_deletes(self, live: Iterator[ManifestEntry]) -> list[Hindrance]:
        """Each delete must reach the same rows before and after."""
        entries = {
            entry.data_file.file_path: (number, entry)
            for number, one in enumerate(self.replacements)
            for entry in (*one.lost, *(old.entry for old in one.old))
        }
        index, found = DataFileIndex(entry for _, entry in entries.values()), list[Hindrance]()
        for delete in live:
            try:
                candidates = [*index.that_may_be_reached(delete, self.base.specs_by_id)]
            except InvalidTableError as error:
                return [Hindrance(number, first_line(error)) for number in range(len(self.replacements))]
            for number in {entries[one.data_file.file_path][0] for one in candidates}:
                if hindrance := self._hindrance(delete, number):
                    found.append(hindrance)
        return found

    def _hindrance(self, delete: ManifestEntry, number: int) -> Hindrance | None:
        specs, file, one = self.base.specs_by_id, delete.data_file, self.replacements[number]
        try:
            of_lost = [reaches(delete, entry, specs) for entry in one.lost]
            of_old = [reaches(delete, old.entry, specs) for old in one.old]
        except InvalidTableError as error:
            return Hindrance(number, first_line(error))
        if file.content is FileContent.POSITION_DELETES:
            # The copies have names that no delete file has.
            if not any(of_lost):
                return None
            what = "the vector in" if is_deletion_vector(file) else "position delete file"
            problem = f"{what} {file.file_path!r} deletes rows of it, and would not in older files"
            return Hindrance(number, problem, None if only_data_file(file) is not None else file)
        if {*of_lost, *of_old} == {True, False}:
            return Hindrance(
                number, f"equality delete file {file.file_path!r} reaches only some of it and the older files"
            )
        return None


def problems(
    answers: Sequence[Sequence[Hindrance]], replacements: Sequence[Replacement], storage: Storage
) -> dict[int, str]:
    """Why files cannot be put back, by their place in `replacements`; delete files are read where only that tells."""
    found: dict[int, str] = {}
    for one in (one for answer in answers for one in answer):
        if one.number in found:
            continue
        if one.delete is None:
            found[one.number] = one.problem
            continue
        paths = [lost.data_file.file_path for lost in replacements[one.number].lost]
        try:
            if any(len(read_position_deletes(storage, one.delete, path)) for path in paths):
                found[one.number] = one.problem
        except (InvalidTableError, UnsupportedError) as error:
            found[one.number] = f"a delete file of its partition cannot be read: {first_line(error)}"
    return found
