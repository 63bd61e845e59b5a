"""The entries of a few files, found among all entries of many manifests: in Spark's tasks where these are many."""

from collections.abc import Collection, Hashable, Iterable, Sequence

import msgspec

from icekeep.commit.changes.repair_entries import RepairedEntry
from icekeep.commit.filtering import EntryReader, without_history
from icekeep.commit.manifests import ManifestReader
from icekeep.errors import InvalidTableError, UnsupportedError, first_line
from icekeep.maintenance.repairing.reasons import CannotMendError
from icekeep.spec.manifests.structs import DataFile, ManifestEntry, ManifestFile
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.reach import only_data_file
from icekeep.storage.locations import canonical

Indexed = tuple[int, ManifestEntry]


class Place(msgspec.Struct, frozen=True):
    """A live entry: the row of its manifest, and where it is there."""

    row: ManifestFile
    index: int
    entry: ManifestEntry

    @property
    def key(self) -> tuple[str, int]:
        """Which entry it is."""
        return self.row.manifest_path, self.index

    def mended(self, file: DataFile | None, *, is_deleted: bool = True, is_replaced: bool = False) -> RepairedEntry:
        """What is to become of it."""
        return RepairedEntry(
            manifest=self.row.manifest_path,
            index=self.index,
            planned=self.entry,
            file=file,
            is_deleted=is_deleted,
            is_replaced=is_replaced,
        )


class NamedEntries:
    """Looks for the live entries of some files, and of delete files that are for one of these alone.

    Args:
        paths: of the files, however they are spelled.
        manifests: locations of those that are likely to have them; they are read first, and together.
    """

    def __init__(
        self, reader: ManifestReader, metadata: TableMetadata, paths: Iterable[str], manifests: Iterable[str]
    ) -> None:
        self._reader, self._first = reader, frozenset(manifests)
        self._work = _Wanted(without_history(metadata), frozenset(map(same_file, paths)))
        self._found: dict[str, list[Place]] = {}

    def within(self, rows: Sequence[ManifestFile], others: Sequence[ManifestFile]) -> list[Place]:
        """Those that are in some manifests; `others` are read in one go with them where they are likely to be asked for.

        Raises:
            CannotMendError: a manifest cannot be read.
        """
        missing = [row for row in rows if row.manifest_path not in self._found]
        likely = [row for row in others if row.manifest_path in self._first - self._found.keys()]
        if missing and len(likely) > 1:
            # Where one of them cannot be read the others can be, one after the other.
            try:
                self._read(likely)
            except CannotMendError:
                self._first = frozenset()
            missing = [row for row in rows if row.manifest_path not in self._found]
        if missing:
            self._read(missing)
        return [place for row in rows for place in self._found[row.manifest_path]]

    def put(self, row: ManifestFile, entries: Iterable[Indexed]) -> None:
        """Note the live entries of a manifest that was read otherwise."""
        wanted = [(index, entry) for index, entry in entries if entry.is_live and self._work.is_wanted(entry)]
        self._found[row.manifest_path] = [Place(row, index, entry) for index, entry in wanted]

    def _read(self, rows: Sequence[ManifestFile]) -> None:
        try:
            found = self._reader.gathered(rows, self._work)
        except (InvalidTableError, UnsupportedError) as error:
            raise CannotMendError(f"not every manifest can be read: {first_line(error)}") from error
        for row, entries in zip(rows, found, strict=True):
            self._found[row.manifest_path] = [Place(row, index, entry) for index, entry in entries]


class _Wanted(msgspec.Struct, frozen=True):
    """The question to one manifest: which of the files does it name?"""

    base: TableMetadata
    paths: Collection[str]

    @property
    def key(self) -> Hashable:
        return "named entries", self.paths

    def run(self, manifest: ManifestFile, reader: EntryReader) -> tuple[Indexed, ...]:
        entries = enumerate(reader.entries(manifest, self.base))
        return tuple((index, entry) for index, entry in entries if entry.is_live and self.is_wanted(entry))

    def is_wanted(self, entry: ManifestEntry) -> bool:
        """Whether it is one of the files, or is for one of them alone."""
        file = entry.data_file
        return same_file(file.file_path) in self.paths or is_for(file, self.paths)


def same_file(path: str) -> str:
    """Equal for all spellings of a location."""
    try:
        return canonical(path)
    except InvalidTableError:
        return path


def is_for(file: DataFile, paths: Collection[str]) -> bool:
    """Whether a delete file is for one data file alone, and that is one of these; `paths` as `same_file` has them."""
    try:
        only = only_data_file(file)
    except InvalidTableError:
        return False
    return only is not None and same_file(only) in paths
