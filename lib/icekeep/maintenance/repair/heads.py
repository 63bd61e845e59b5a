"""The entries of a few files, found among all entries of many manifests: in Spark's tasks where these are many.

The head of a branch as a repair reads it: its manifests and their live entries, each with its place.

Why one mend is not planned beside another on the same branch.
"""

from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence

import msgspec

from icekeep.catalog.base import Table
from icekeep.commit.changes.repair_entries import RepairedEntry, read_by_wrong_row
from icekeep.commit.manifests import ManifestReader, without_history
from icekeep.commit.summary import FILE_TOTALS, TOTALS, live_counts
from icekeep.errors import IcekeepBug, InvalidTableError, UnsupportedError, first_line
from icekeep.maintenance.repair.metadata import CannotMendError
from icekeep.maintenance.repair.plan import BranchWork
from icekeep.spec.manifests.structs import DataFile, ManifestContent, ManifestEntry, ManifestFile
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.reach import only_data_file
from icekeep.spec.snapshots import MAIN, Snapshot
from icekeep.spelling import counted
from icekeep.storage.locations import canonical

Indexed = tuple[int, ManifestEntry]


class EntryPosition(msgspec.Struct, frozen=True):
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
        self._found: dict[str, list[EntryPosition]] = {}

    def within(self, rows: Sequence[ManifestFile], others: Sequence[ManifestFile]) -> list[EntryPosition]:
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
        self._found[row.manifest_path] = [EntryPosition(row, index, entry) for index, entry in wanted]

    def _read(self, rows: Sequence[ManifestFile]) -> None:
        try:
            found = self._reader.gathered(rows, self._work)
        except (InvalidTableError, UnsupportedError) as error:
            raise CannotMendError(f"not every manifest can be read: {first_line(error)}") from error
        for row, entries in zip(rows, found, strict=True):
            self._found[row.manifest_path] = [EntryPosition(row, index, entry) for index, entry in entries]


class _Wanted(msgspec.Struct, frozen=True):
    """The question to one manifest: which of the files does it name?"""

    base: TableMetadata
    paths: Collection[str]

    @property
    def key(self) -> Hashable:
        return "named entries", self.paths

    def run(self, manifest: ManifestFile, reader: ManifestReader) -> tuple[Indexed, ...]:
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


_SEARCHED_ENTRIES = 200_000
"""So many entries of a branch are looked through for a file whose manifest is not known."""


class Head:
    """The head of one branch.

    Attributes:
        rows: of its manifest list, `None` where that cannot be read.
        work: what is going to be written there.
        untouchable: manifests that no other mend may rewrite, since files are doubled in them.
        standing: number and place of the faults that double rows, of those that are not mended.
        problem: why its manifest list cannot be read.
        barred: why no snapshot may be added to it.
        misnumbered: manifests of which the list says wrongly what sequence number their entries inherit.
        misleading: numbers of the faults by which it is not known what deletes reach.
    """

    def __init__(self, table: Table, branch: str, snapshot: Snapshot, reader: ManifestReader) -> None:
        self.table, self.branch, self.snapshot, self._reader = table, branch, snapshot, reader
        self.work = BranchWork(
            branch=branch, snapshot_id=snapshot.snapshot_id, format_version=table.metadata.format_version
        )
        self.untouchable: set[str] = set()
        self.standing: set[tuple[int, str]] = set()
        self.misnumbered: set[str] = set()
        self.misleading: set[int] = set()
        self.problem: str | None = None
        self.barred: str | None = None
        self.rows: list[ManifestFile] = []
        self._named: NamedEntries | None = None
        try:
            self.rows = reader.manifests(snapshot)
        except (InvalidTableError, UnsupportedError) as error:
            self.problem = first_line(error)

    @property
    def paths(self) -> frozenset[str]:
        """The locations of its manifests."""
        return frozenset(row.manifest_path for row in self.rows)

    @property
    def doubled_manifests(self) -> frozenset[str]:
        """Those that the list names more than once."""
        times = Counter(row.manifest_path for row in self.rows)
        return frozenset(path for path, count in times.items() if count > 1)

    def row(self, path: str) -> ManifestFile | None:
        """The row of a manifest; the first, if there are several."""
        return next((row for row in self.rows if row.manifest_path == path), None)

    def entries(self, row: ManifestFile) -> list[ManifestEntry]:
        """All entries of a manifest, deleted ones among them.

        Raises:
            InvalidTableError, UnsupportedError: it cannot be read.
        """
        metadata = self.table.metadata
        if row.manifest_path not in self.work.rows:
            return [*self._reader.entries(row, metadata)]
        entries, _ = read_by_wrong_row(row, metadata.partition_type(row.partition_spec_id), self.table.storage)
        return entries

    def why_cut_short(self, listed: Mapping[str, int | None]) -> str | None:
        """Why its list is to be taken for one that lacks manifests: its totals, and not the list, agree with its parent's list.

        A commit on it, or totals that are counted anew, would hide that, and what the list lacks would be taken for garbage.

        Args:
            listed: how many data files and delete files its list leads to, by the names of these totals; `None`
                where that is not known.
        """
        summary = self.snapshot.summary or {}
        parent = self.table.metadata.snapshots_by_id.get(self.snapshot.parent_snapshot_id or -1)
        try:
            before = [] if parent is None else self._reader.manifests(parent)
        except (InvalidTableError, UnsupportedError):
            return None
        for content, count_before in live_counts(before).items():
            name = FILE_TOTALS[content]
            count = listed[name]
            said = [summary.get(name, ""), *(summary.get(key, "0") for key in TOTALS[name])]
            if parent is None or count is None or count_before is None:
                continue
            if not all(number.isdecimal() for number in said):
                continue
            total, added, removed = map(int, said)
            if count < total == count_before + added - removed:
                return (
                    f"the list of branch {self.branch!r} leads to {counted(count, 'files')}, but the snapshot before it and "
                    "its own "
                    f"changes add up to {name} {total}: the list was probably cut short; go back to an earlier snapshot with "
                    "`icekeep rollback`"
                )
        return None

    def live(self, row: ManifestFile) -> Iterator[EntryPosition]:
        """The live entries of a manifest; raises as `entries`."""
        return (EntryPosition(row, index, entry) for index, entry in enumerate(self.entries(row)) if entry.is_live)

    def look_for(self, paths: Iterable[str], manifests: Iterable[str]) -> None:
        """Say which files are going to be asked for by `places` and `about`, and which manifests are likely to name them."""
        self._named = NamedEntries(self._reader, self.table.metadata, paths, manifests)
        for row in self._once():
            # Nothing can be asked of these that goes by their rows.
            if row.manifest_path in self.work.rows:
                self._named.put(row, enumerate(self.entries(row)))

    def places(self, file_path: str, manifests: Collection[str]) -> list[EntryPosition]:
        """The live entries of a file that is looked for: of those manifests if the head has any of them, else of all.

        Raises:
            CannotMendError: a manifest cannot be read.
        """
        rows = self._once()
        known = [row for row in rows if row.manifest_path in manifests]
        found = [p for p in self._within(known, rows) if p.entry.data_file.file_path == file_path]
        return found or [p for p in self._within(rows, ()) if p.entry.data_file.file_path == file_path]

    def about(self, file_path: str) -> list[EntryPosition]:
        """All live entries of a file that is looked for, however its location is spelled, and of deletes for it alone.

        Raises:
            CannotMendError: a manifest cannot be read.
        """
        wanted = {same_file(file_path)}
        return [
            place
            for place in self._within(self._once(), ())
            if same_file(place.entry.data_file.file_path) in wanted or is_for(place.entry.data_file, wanted)
        ]

    def _within(self, rows: Sequence[ManifestFile], others: Sequence[ManifestFile]) -> list[EntryPosition]:
        if self._named is None:
            raise IcekeepBug("nothing is looked for")
        return self._named.within(rows, others)

    def all_live(self, content: ManifestContent | None = None) -> Iterator[EntryPosition]:
        """All live entries of one content.

        Raises:
            CannotMendError: a manifest cannot be read, or there are too many to look through.
        """
        for row in self._searchable():
            if content in (None, row.content):
                yield from self._read(row)

    def _read(self, row: ManifestFile) -> list[EntryPosition]:
        try:
            return [*self.live(row)]
        except (InvalidTableError, UnsupportedError) as error:
            raise CannotMendError(f"manifest {row.manifest_path!r} cannot be read: {first_line(error)}") from error

    def _searchable(self) -> list[ManifestFile]:
        rows = self._once()
        count = sum((row.live_files_count or 0) + (row.deleted_files_count or 0) for row in rows)
        if count > _SEARCHED_ENTRIES:
            raise CannotMendError(
                f"branch {self.branch!r} has {count:,} entries, too many to look through; run `icekeep rewrite_manifests` and "
                "the check again"
            )
        return rows

    def _once(self) -> list[ManifestFile]:
        """The rows, one for each manifest."""
        return [*{row.manifest_path: row for row in reversed(self.rows)}.values()][::-1]


def heads_of(table: Table, reader: ManifestReader) -> list[Head]:
    """The heads of all branches, `main` first."""
    metadata = table.metadata
    names = sorted(
        (name for name, ref in metadata.refs.items() if ref.is_branch), key=lambda name: (name != MAIN, name)
    )
    if MAIN not in names:
        names.insert(0, MAIN)
    found = [(name, metadata.head(name)) for name in names]
    return [Head(table, name, head, reader) for name, head in found if head is not None]


def refuse_doubled(head: Head, row: ManifestFile) -> None:
    """Raise `CannotMendError` for a manifest in which files are doubled, that is listed twice, or is misnumbered."""
    if row.manifest_path in head.untouchable:
        raise CannotMendError(f"files are doubled in manifest {row.manifest_path!r}: mend faults 212 and 220 first")
    refuse_misnumbered(head, row)


def refuse_misnumbered(head: Head, row: ManifestFile) -> None:
    """Raise `CannotMendError` for a manifest whose entries would be written with a sequence number that is not theirs."""
    if row.manifest_path in head.misnumbered:
        raise CannotMendError(
            f"the list says wrongly what sequence number the entries of manifest {row.manifest_path!r} inherit, and written anew "
            "they would have it for good: see fault 208"
        )


def refuse_merged(head: Head, place: EntryPosition) -> None:
    """Raise `CannotMendError` for the entry of a delete file in whose place a new one comes."""
    if place.key in head.work.merged:
        raise CannotMendError("a new delete file takes its place in the same run; run the repair again afterwards")


def refuse_described(head: Head, place: EntryPosition) -> None:
    """Raise `CannotMendError` for an entry that is described anew, or goes."""
    if place.key in head.work.entries:
        raise CannotMendError("its entry is described anew in the same run, or goes; run the repair again afterwards")
