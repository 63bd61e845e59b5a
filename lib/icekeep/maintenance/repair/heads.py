"""The head of a branch as a repair reads it: its manifests, the live entries of files in them, and what must not be rewritten."""

from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence

import msgspec

from icekeep.catalog.base import Table
from icekeep.commit.changes.repair_entries import RepairedEntry, read_by_wrong_row
from icekeep.commit.manifests import ManifestReader, without_history
from icekeep.commit.summary import FILE_TOTALS, TOTALS, live_counts
from icekeep.errors import IcekeepBug, InvalidTableError, UnsupportedError, first_line
from icekeep.maintenance.check.faults import Fault
from icekeep.maintenance.repair.plan import BranchWork, CannotRepairError, RepairScope, Replacement, TrashedFile
from icekeep.maintenance.repair.trash import Trash
from icekeep.spec.manifests.structs import DataFile, ManifestEntry, ManifestFile
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.reach import only_data_file
from icekeep.spec.schema import Schema
from icekeep.spec.snapshots import MAIN, Snapshot
from icekeep.spelling import counted
from icekeep.storage.locations import canonical_or_text

Indexed = tuple[int, ManifestEntry]


class EntryPosition(msgspec.Struct, frozen=True):
    """A live entry: the row of its manifest, and its index there."""

    row: ManifestFile
    index: int
    entry: ManifestEntry

    @property
    def key(self) -> tuple[str, int]:
        """Which entry it is."""
        return self.row.manifest_path, self.index

    def repaired(self, file: DataFile | None, *, is_deleted: bool = True, is_replaced: bool = False) -> RepairedEntry:
        """The entry once it describes `file`, or is removed."""
        return RepairedEntry(
            manifest=self.row.manifest_path,
            index=self.index,
            planned=self.entry,
            file=file,
            is_deleted=is_deleted,
            is_replaced=is_replaced,
        )


class _NamedEntries(msgspec.Struct, frozen=True):
    """Asks one manifest for the live entries of some files, and of delete files that are for one of these alone."""

    base: TableMetadata
    paths: Collection[str]

    @property
    def key(self) -> Hashable:
        return "named entries", self.paths

    def run(self, manifest: ManifestFile, reader: ManifestReader) -> tuple[Indexed, ...]:
        return self.among(reader.entries(manifest, self.base))

    def among(self, entries: Iterable[ManifestEntry]) -> tuple[Indexed, ...]:
        return tuple((index, entry) for index, entry in enumerate(entries) if entry.is_live and self._is_named(entry))

    def _is_named(self, entry: ManifestEntry) -> bool:
        file = entry.data_file
        return canonical_or_text(file.file_path) in self.paths or is_for(file, self.paths)


def is_for(file: DataFile, paths: Collection[str]) -> bool:
    """Whether a delete file is for one data file alone, and that is one of these; `paths` as `canonical_or_text` has them."""
    try:
        only = only_data_file(file)
    except InvalidTableError:
        return False
    return only is not None and canonical_or_text(only) in paths


def manifests_of(fault: Fault) -> frozenset[str]:
    """The manifests that a fault names; nothing is written that goes by it alone."""
    facts = fault.facts
    names: set[str] = {*facts.get("manifests", ())}
    names.update(one["manifest"] for one in facts.get("entries", ()))
    if "manifest" in facts:
        names.add(facts["manifest"])
    return frozenset(names)


def paths_of(fault: Fault) -> frozenset[str]:
    """The locations of the files that a fault names."""
    named = [fault.facts, *fault.facts.get("entries", ())]
    return frozenset(str(one[key]) for one in named for key in ("file_path", "referenced_data_file") if one.get(key))


class Head:
    """The head of one branch.

    Attributes:
        scope: what the repair is asked for.
        rows: of its manifest list; none where that cannot be read.
        work: what is going to be written there.
        untouchable: manifests that no other fix may rewrite, since files are doubled in them.
        standing: number and place of the faults that double rows, of those that are not fixed.
        problem: why its manifest list cannot be read.
        barred: why no snapshot may be added to it.
        misnumbered: manifests of which the list says wrongly what sequence number their entries inherit.
        misleading: numbers of the faults by which it is not known what deletes reach.
        missing_data_files: all of the table.
        replacements: by path of a lost file what can take its place, with the entries that go, or why nothing can; `None`
            until one is asked for.
    """

    def __init__(
        self, table: Table, branch: str, snapshot: Snapshot, reader: ManifestReader, scope: RepairScope, trash: Trash
    ) -> None:
        self.table, self.branch, self.snapshot, self.reader = table, branch, snapshot, reader
        self.scope, self.trash = scope, trash
        self.work = BranchWork(
            branch=branch, snapshot_id=snapshot.snapshot_id, format_version=table.metadata.format_version
        )
        self.untouchable: set[str] = set()
        self.standing: set[tuple[int, str]] = set()
        self.misnumbered: set[str] = set()
        self.misleading: set[int] = set()
        self.problem: str | None = None
        self.barred: str | None = None
        self.missing_data_files: Sequence[Fault] = ()
        self.replacements: dict[str, tuple[Replacement, tuple[EntryPosition, ...]] | CannotRepairError] | None = None
        self.rows: list[ManifestFile] = []
        self._named: _NamedEntries | None = None
        self._likely: frozenset[str] = frozenset()
        self._found: dict[str, list[EntryPosition]] = {}
        try:
            self.rows = reader.manifests(snapshot)
        except (InvalidTableError, UnsupportedError) as error:
            self.problem = first_line(error)
        self.paths = frozenset(row.manifest_path for row in self.rows)
        times = Counter(row.manifest_path for row in self.rows)
        self.doubled_manifests = frozenset(path for path, count in times.items() if count > 1)
        # One for each manifest, the first where there are several.
        self._once = [*{row.manifest_path: row for row in reversed(self.rows)}.values()][::-1]

    def schema_of(self, fault: Fault) -> Schema:
        """The schema in which the check read the files: that of the snapshot in which it saw the fault."""
        metadata = self.table.metadata
        snapshot = metadata.snapshots_by_id.get(fault.snapshot_id or 0)
        schema_id = metadata.current_schema_id if snapshot is None else snapshot.schema_id
        return metadata.schemas_by_id.get(
            metadata.current_schema_id if schema_id is None else schema_id, metadata.schema
        )

    def entries(self, row: ManifestFile) -> list[ManifestEntry]:
        """All entries of a manifest, deleted ones among them.

        Raises:
            InvalidTableError, UnsupportedError: it cannot be read.
        """
        metadata = self.table.metadata
        if row.manifest_path not in self.work.rows:
            return [*self.reader.entries(row, metadata)]
        entries, _ = read_by_wrong_row(row, metadata.partition_type(row.partition_spec_id), self.table.storage)
        return entries

    def why_cut_short(self, listed: Mapping[str, int | None]) -> str | None:
        """Why its list probably lacks manifests: its totals, and not the list, agree with its parent's list.

        A commit on it, or totals that are recounted, would hide that, and what the list lacks would be taken for garbage.

        Args:
            listed: how many data files and delete files its list leads to, by the names of these totals; `None`
                where that is not known.
        """
        summary = self.snapshot.summary or {}
        parent = self.table.metadata.snapshots_by_id.get(self.snapshot.parent_snapshot_id or -1)
        try:
            before = [] if parent is None else self.reader.manifests(parent)
        except (InvalidTableError, UnsupportedError):
            return None
        for content, count_before in live_counts(before).items():
            name = FILE_TOTALS[content]
            count = listed[name]
            numbers = [summary.get(name, ""), *(summary.get(key, "0") for key in TOTALS[name])]
            if parent is None or count is None or count_before is None:
                continue
            if not all(number.isdecimal() for number in numbers):
                continue
            total, added, removed = map(int, numbers)
            if count < total == count_before + added - removed:
                return (
                    f"the list of branch {self.branch!r} leads to {counted(count, 'files')}, but the snapshot before it and "
                    f"its own changes add up to {name} {total}: the list was probably cut short; go back to an earlier "
                    "snapshot with `icekeep rollback`"
                )
        return None

    def look_for(self, paths: Iterable[str], manifests: Iterable[str]) -> None:
        """Say which files `places` and `about` are going to be asked for, and which manifests are likely to name them."""
        self._named = _NamedEntries(without_history(self.table.metadata), frozenset(map(canonical_or_text, paths)))
        self._likely = frozenset(manifests)
        for row in self._once:
            # The row of such a manifest is wrong, so that readers in tasks cannot go by it.
            if row.manifest_path in self.work.rows:
                self._found[row.manifest_path] = [
                    EntryPosition(row, *one) for one in self._named.among(self.entries(row))
                ]

    def places(self, file_path: str, manifests: Collection[str]) -> list[EntryPosition]:
        """The live entries of a file that is looked for: of those manifests if the head has any of them, else of all.

        Raises:
            CannotRepairError: a manifest cannot be read.
        """
        named = [row for row in self._once if row.manifest_path in manifests]
        found = [p for p in self._within(named, self._once) if p.entry.data_file.file_path == file_path]
        return found or [p for p in self._within(self._once) if p.entry.data_file.file_path == file_path]

    def about(self, file_path: str) -> list[EntryPosition]:
        """All live entries of a file that is looked for, however its location is spelled, and of deletes for it alone.

        Raises:
            CannotRepairError: a manifest cannot be read.
        """
        path = {canonical_or_text(file_path)}
        return [
            place
            for place in self._within(self._once)
            if canonical_or_text(place.entry.data_file.file_path) in path or is_for(place.entry.data_file, path)
        ]

    def _within(self, rows: Sequence[ManifestFile], others: Sequence[ManifestFile] = ()) -> list[EntryPosition]:
        """Those in some manifests; `others` are read in one go with them where they are likely to be asked for."""
        likely = [row for row in others if row.manifest_path in self._likely - self._found.keys()]
        if len(likely) > 1 and any(row.manifest_path not in self._found for row in rows):
            # Where one of them cannot be read the others can be, one after the other.
            try:
                self._read(likely)
            except CannotRepairError:
                self._likely = frozenset()
        if missing := [row for row in rows if row.manifest_path not in self._found]:
            self._read(missing)
        return [place for row in rows for place in self._found[row.manifest_path]]

    def _read(self, rows: Sequence[ManifestFile]) -> None:
        if self._named is None:
            raise IcekeepBug("nothing is looked for")
        try:
            found = self.reader.gathered(rows, self._named)
        except (InvalidTableError, UnsupportedError) as error:
            raise CannotRepairError(f"not every manifest can be read: {first_line(error)}") from error
        for row, entries in zip(rows, found, strict=True):
            self._found[row.manifest_path] = [EntryPosition(row, *one) for one in entries]

    def trashed(self, fault: Fault) -> TrashedFile | None:
        """A missing file of the branch, where it is in the trash with the size that all its entries say."""
        path = str(fault.facts["file_path"])
        sizes = {place.entry.data_file.file_size_in_bytes for place in self.places(path, manifests_of(fault))}
        if len(sizes) != 1 or self.table.storage.head(path) is not None:
            return None
        return self.trash.find(path, sizes.pop())

    def refuse_doubled(self, row: ManifestFile) -> None:
        """Raise `CannotRepairError` for a manifest in which files are doubled, that is listed twice, or is misnumbered."""
        if row.manifest_path in self.untouchable:
            raise CannotRepairError(
                f"files are doubled in manifest {row.manifest_path!r}: repair faults 212 and 220 first"
            )
        self.refuse_misnumbered(row)

    def refuse_misnumbered(self, row: ManifestFile) -> None:
        """Raise `CannotRepairError` for a manifest whose entries would be written with a sequence number that is not theirs."""
        if row.manifest_path in self.misnumbered:
            raise CannotRepairError(
                f"the list says wrongly what sequence number the entries of manifest {row.manifest_path!r} inherit, and once "
                "rewritten they would have it for good: see fault 208"
            )

    def refuse_merged(self, place: EntryPosition) -> None:
        """Raise `CannotRepairError` for the entry of a vector that is merged into another one."""
        if place.key in self.work.merged:
            raise CannotRepairError(
                "a new delete file takes its place in the same run; run the repair again afterwards"
            )


def heads_of(table: Table, reader: ManifestReader, scope: RepairScope) -> Iterator[Head]:
    """The heads of all branches, `main` first."""
    metadata, trash = table.metadata, Trash(table)
    names = sorted(
        {MAIN, *(name for name, ref in metadata.refs.items() if ref.is_branch)}, key=lambda n: (n != MAIN, n)
    )
    for name in names:
        if (head := metadata.head(name)) is not None:
            yield Head(table, name, head, reader, scope, trash)
