"""Lost files of which an older snapshot has the rows: those that a rewrite wrote, where the files that it read are still there.

A snapshot of operation `replace` changes no row (spec, "Snapshots"). So what it took out of a partition, as its parent had it,
holds the rows of what it put there. Copies of these files take the place of the lost ones, and nobody loses a row. The old files
themselves are not put back: the snapshot that took them out says so in its manifests, and engines that clean up by such marks
delete the files once it expires, wherever else they are live.
"""

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence

import msgspec
from msgspec.structs import replace
from pyroaring import BitMap64

from icekeep.catalog.base import Table
from icekeep.commit.attempt import Attempt
from icekeep.commit.changes.deletes import AddedDeletes
from icekeep.commit.changes.repair_entries import AddedCopy
from icekeep.commit.manifests import ManifestReader, without_history
from icekeep.errors import ConflictError, InvalidTableError, MissingFileError, UnsupportedError, first_line
from icekeep.formats.arrow.schema import all_have_ids, field_ids
from icekeep.formats.deletes.apply import deleted_positions
from icekeep.formats.deletes.read import DeleteCache, read_position_deletes, write_position_deletes
from icekeep.formats.deletes.rewrite import delete_format
from icekeep.formats.puffin import VectorTarget, write_deletion_vectors
from icekeep.formats.reader import open_reader
from icekeep.maintenance.check.faults import Fault
from icekeep.maintenance.repair.heads import EntryPosition, Head, manifests_of
from icekeep.maintenance.repair.plan import NOT_FOUND, CannotRepairError, Fix, NewFiles, OldFile, Replacement
from icekeep.spec.manifests.structs import DataFile, FileContent, ManifestContent, ManifestEntry, ManifestFile
from icekeep.spec.matched_deletes import DataFileIndex, reaches, reaching_deletes
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.properties import data_layout
from icekeep.spec.reach import PartitionKey, is_deletion_vector, only_data_file, partition_key, sequence_number
from icekeep.spec.snapshots import Snapshot
from icekeep.spec.types import MIB
from icekeep.spelling import counted
from icekeep.storage.base import Storage, head_many
from icekeep.storage.locations import canonical_or_text

Answer = tuple[Replacement, tuple[EntryPosition, ...]] | CannotRepairError

_PIECE_BYTES = 8 * MIB

_SAME = ("content", "record_count", "file_size_in_bytes")
"""What the entry of a lost file must say as it did when it was written."""


def fix_from_older_files(head: Head, fault: Fault) -> list[Fix]:
    """Plan that copies of older files take the place of a missing file.

    Raises:
        CannotRepairError: that would change a row, or it is not sure that it would not; or the file is not missing.
    """
    if head.replacements is None:
        head.replacements = _replacements(head)
    answer = head.replacements[str(fault.facts["file_path"])]
    if isinstance(answer, CannotRepairError):
        raise answer
    found, places = answer
    for place in places:
        head.work.entries[place.key] = place.repaired(None, is_replaced=True)
        head.work.gone.add(place.entry.data_file.file_path)
    head.work.replacements[places[0].entry.data_file.file_path] = found
    files = [old.entry.data_file for old in found.old]
    size_bytes = sum(file.file_size_in_bytes for file in files)
    beside = f", and of {len(found.lost) - 1} more lost with it" if len(found.lost) > 1 else ""
    ids = ", with the row ids that they have there" if any(file.first_row_id is not None for file in files) else ""
    action = (
        f"its rows{beside} come back{ids}: copies are made of {counted(len(files), 'files')} ({size_bytes:,} bytes) that "
        f"snapshot {found.lost[0].snapshot_id} rewrote into it; no row is lost"
    )
    return [Fix(action=action)]


def _replacements(head: Head) -> dict[str, Answer]:
    """Of all missing data files of a head, since only together they may be all that a rewrite wrote."""
    answers: dict[str, Answer] = {}
    lost: defaultdict[int | None, list[EntryPosition]] = defaultdict(list)
    for fault in head.missing_data_files:
        try:
            place = _lost(head, fault)
            lost[place.entry.snapshot_id].append(place)
        except CannotRepairError as error:
            answers[str(fault.facts["file_path"])] = error
    found: list[tuple[Replacement, tuple[EntryPosition, ...]]] = []
    for snapshot_id, of_snapshot in lost.items():
        try:
            by_partition = [*_Rewrite(head, snapshot_id).answers(of_snapshot)]
        except CannotRepairError as error:
            by_partition = [(tuple(of_snapshot), error)]
        except (InvalidTableError, UnsupportedError) as error:
            why_not = f"what snapshot {snapshot_id} has rewritten cannot be read: {first_line(error)}"
            by_partition = [(tuple(of_snapshot), CannotRepairError(why_not))]
        for places, answer in by_partition:
            if isinstance(answer, Replacement):
                found.append((answer, places))
            else:
                answers |= dict.fromkeys((place.entry.data_file.file_path for place in places), answer)
    return answers | _without_obstacles(head, found)


def _without_obstacles(head: Head, found: Sequence[tuple[Replacement, tuple[EntryPosition, ...]]]) -> dict[str, Answer]:
    replacements = tuple(one for one, _ in found)
    search = ObstacleSearch(without_history(head.table.metadata), replacements)
    try:
        gathered = head.reader.gathered(head.rows, search) if found else []
        why = obstacles(gathered, replacements, head.table.storage)
    except (InvalidTableError, UnsupportedError) as error:
        why = dict.fromkeys(range(len(found)), f"not every manifest can be read: {first_line(error)}")
    answers: dict[str, Answer] = {}
    for number, answer in enumerate(found):
        paths = [place.entry.data_file.file_path for place in answer[1]]
        answers |= dict.fromkeys(paths, CannotRepairError(why[number]) if number in why else answer)
    return answers


def _lost(head: Head, fault: Fault) -> EntryPosition:
    """The only live entry of a file that is neither there nor in the trash."""
    path = str(fault.facts["file_path"])
    found = head.places(path, manifests_of(fault))
    places = [p for p in found if p.entry.data_file.content is FileContent.DATA]
    if not places:
        raise CannotRepairError("")
    if head.table.storage.head(path) is not None:
        raise CannotRepairError(NOT_FOUND)
    if head.trashed(fault) is not None:
        raise CannotRepairError("the file is in the trash")
    for place in places:
        head.refuse_doubled(place.row)
    if len(places) > 1:
        raise CannotRepairError("the file is live more than once")
    return places[0]


class _Rewrite:
    """One snapshot that wrote files which are lost: what it took out of their partitions, and what it put there."""

    def __init__(self, head: Head, snapshot_id: int | None) -> None:
        self._table, self._reader, self._metadata = head.table, head.reader, head.table.metadata
        self._cache = DeleteCache()
        by_id = self._metadata.snapshots_by_id
        snapshot = by_id.get(snapshot_id) if snapshot_id is not None else None
        if snapshot is None:
            raise CannotRepairError(
                f"snapshot {snapshot_id}, which added it, is expired: what it was made of is not known"
            )
        if (operation := (snapshot.summary or {}).get("operation")) != "replace":
            raise CannotRepairError(
                f"snapshot {snapshot_id}, which added it, has operation {operation!r}: no older snapshot has its rows"
            )
        parent = by_id.get(snapshot.parent_snapshot_id) if snapshot.parent_snapshot_id is not None else None
        if parent is None:
            raise CannotRepairError(f"the snapshot before {snapshot_id}, which added it, is expired")
        self._snapshot, self._parent = snapshot, parent

    def answers(
        self, lost: Sequence[EntryPosition]
    ) -> Iterator[tuple[tuple[EntryPosition, ...], Replacement | CannotRepairError]]:
        """The lost files of each partition, with what can take their place, or why nothing can.

        Raises:
            InvalidTableError, UnsupportedError: a manifest cannot be read.
            CannotRepairError: a reason that holds for all.
        """
        before, after = (self._reader.manifests(one) for one in (self._parent, self._snapshot))
        by_partition: defaultdict[PartitionKey, list[EntryPosition]] = defaultdict(list)
        for place in lost:
            by_partition[partition_key(place.entry.data_file)].append(place)
        olds, news = self._changed(before, after, frozenset(by_partition))
        deletes = self._deletes(before, tuple(entry for some in olds.values() for entry in some.values()))
        for partition, places in by_partition.items():
            try:
                entries = [place.entry for place in places]
                yield tuple(places), self._replacement(entries, olds[partition], news[partition], deletes)
            except CannotRepairError as error:
                yield tuple(places), error

    def _changed(
        self, before: Sequence[ManifestFile], after: Sequence[ManifestFile], partitions: frozenset[PartitionKey]
    ) -> tuple[dict[PartitionKey, dict[str, ManifestEntry]], dict[PartitionKey, dict[str, ManifestEntry]]]:
        """The files of some partitions that the snapshot took out, and those that it put there, by path."""
        both = {row.manifest_path for row in before} & {row.manifest_path for row in after}
        some, others = (
            [row for row in rows if row.content is ManifestContent.DATA and row.manifest_path not in both]
            for rows in (before, after)
        )
        spec_ids = {row.partition_spec_id for row in (*some, *others) if row.may_have_live_files}
        if len(spec_ids) > 1:
            raise CannotRepairError(
                f"snapshot {self._snapshot.snapshot_id} has written files of several partition specs, and may have moved rows"
            )
        search = _LiveIn(without_history(self._metadata), partitions)
        was, is_ = (_by_path(self._reader.gathered(rows, search)) for rows in (some, others))
        return _by_partition(was, is_, partitions), _by_partition(is_, was, partitions)

    def _deletes(
        self, before: Sequence[ManifestFile], data: tuple[ManifestEntry, ...]
    ) -> Mapping[str, tuple[ManifestEntry, ...]]:
        """By path of an old file the delete files that the parent's readers apply to it."""
        rows = [row for row in before if row.content is ManifestContent.DELETES]
        found = self._reader.gathered(rows, _ReachingDeletes(without_history(self._metadata), data))
        return reaching_deletes(data, (delete for some in found for delete in some), self._metadata.specs_by_id)

    def _replacement(
        self,
        lost: Sequence[ManifestEntry],
        olds: Mapping[str, ManifestEntry],
        news: Mapping[str, ManifestEntry],
        deletes: Mapping[str, tuple[ManifestEntry, ...]],
    ) -> Replacement:
        self._check_lost(lost, news)
        self._check_olds(lost, [*olds.values()])
        some = tuple(self._old(entry, deletes[path]) for path, entry in sorted(olds.items()))
        there = sum(old.entry.data_file.record_count - old.deleted_count for old in some)
        written = sum(entry.data_file.record_count for entry in news.values())
        if there != written:
            raise CannotRepairError(
                f"the {len(some)} older files have {there} rows, and the rewrite of snapshot {self._snapshot.snapshot_id} "
                f"wrote {written}"
            )
        _refuse_other_columns(self._table, self._snapshot, [old.entry.data_file for old in some])
        return Replacement(schema_id=self._metadata.current_schema_id, lost=tuple(lost), old=some)

    def _check_lost(self, lost: Sequence[ManifestEntry], news: Mapping[str, ManifestEntry]) -> None:
        """All that was written in the partition is lost, and as it was written."""
        paths = {entry.data_file.file_path for entry in lost}
        number = self._snapshot.snapshot_id
        if more := news.keys() - paths:
            raise CannotRepairError(
                f"snapshot {number} wrote {len(news)} files in its partition, and {min(more)!r} is not lost with it: nobody "
                "knows which of the rows were in it"
            )
        if paths - news.keys():
            raise CannotRepairError(f"it is not among the files that snapshot {number} wrote")
        for entry in lost:
            file, written = entry.data_file, news[entry.data_file.file_path]
            if file.key_metadata is not None:
                raise CannotRepairError("the file is encrypted")
            is_other = any(getattr(file, name) != getattr(written.data_file, name) for name in _SAME)
            if is_other or sequence_number(entry) != sequence_number(written):
                raise CannotRepairError(f"its entry is another one than snapshot {number} wrote")

    def _check_olds(self, lost: Sequence[ManifestEntry], olds: Sequence[ManifestEntry]) -> None:
        if not olds:
            raise CannotRepairError(f"snapshot {self._snapshot.snapshot_id} took no file out of its partition")
        files = [entry.data_file for entry in olds]
        for file, info in zip(files, head_many([one.file_path for one in files], self._table.storage), strict=True):
            name = f"file {file.file_path!r}, which the rewrite has read,"
            if file.key_metadata is not None:
                raise CannotRepairError(f"{name} is encrypted")
            if info is None:
                raise CannotRepairError(f"{name} is not there any more")
            if info.size_bytes != file.file_size_in_bytes:
                raise CannotRepairError(
                    f"{name} has {info.size_bytes} bytes where its entry says {file.file_size_in_bytes}"
                )
        if max(map(sequence_number, olds)) > min(map(sequence_number, lost)):
            raise CannotRepairError("it is older than one of the files that it was made of")
        # Without a first row id rows have none, and would be given new ones (spec, "Row Lineage for Upgraded Tables").
        were, are = ({entry.data_file.first_row_id is not None for entry in some} for some in (olds, lost))
        if were != are or len(were) > 1:
            raise CannotRepairError(
                "files that it was made of have no row ids, and their rows would be given other ones"
            )

    def _old(self, entry: ManifestEntry, deletes: tuple[ManifestEntry, ...]) -> OldFile:
        path = entry.data_file.file_path
        for delete in deletes:
            file = delete.data_file
            if file.content is FileContent.EQUALITY_DELETES:
                raise CannotRepairError(
                    f"equality delete file {file.file_path!r} reached {path!r} when it was rewritten"
                )
        old = OldFile(entry=entry, deletes=deletes)
        try:
            return replace(old, deleted_count=len(_deleted_positions(old, self._table.storage, self._cache)))
        except (InvalidTableError, UnsupportedError) as error:
            raise CannotRepairError(f"deletes of {path!r} cannot be read: {first_line(error)}") from error


def _by_path(found: Iterable[Iterable[ManifestEntry]]) -> dict[str, ManifestEntry]:
    by_path: dict[str, ManifestEntry] = {}
    for entry in (entry for some in found for entry in some):
        if entry.data_file.file_path in by_path:
            raise CannotRepairError(f"data file {entry.data_file.file_path!r} was live twice when the file was written")
        by_path[entry.data_file.file_path] = entry
    return by_path


def _by_partition(
    some: Mapping[str, ManifestEntry], without: Mapping[str, ManifestEntry], partitions: Iterable[PartitionKey]
) -> dict[PartitionKey, dict[str, ManifestEntry]]:
    found: dict[PartitionKey, dict[str, ManifestEntry]] = {partition: {} for partition in partitions}
    for path, entry in some.items():
        if path not in without:
            found[partition_key(entry.data_file)][path] = entry
    return found


def _refuse_other_columns(table: Table, rewrite: Snapshot, files: Iterable[DataFile]) -> None:
    """Raise `CannotRepairError` where a column of the table may have other values in files than the rewrite found there.

    What the rewrite wrote has the columns of its own schema. A column that it did not know is null there, or its default, and
    is so in the files, too, unless these have it: it was dropped before, and came back with the same id. A column that it knew
    reads the same, since readers promote types alike, and an initial default never changes (spec, "Schema Evolution").
    """
    schema = None if rewrite.schema_id is None else table.metadata.schemas_by_id.get(rewrite.schema_id)
    if schema is None:
        raise CannotRepairError(f"snapshot {rewrite.snapshot_id}, which added it, does not say in which columns")
    now = table.metadata.schema.fields_by_id
    unknown = now.keys() - schema.fields_by_id.keys()
    for field_id in now.keys() & schema.fields_by_id.keys():
        if now[field_id].initial_default != schema.fields_by_id[field_id].initial_default:
            raise CannotRepairError(f"the default of column {field_id} is another one than when the file was written")
    for file in files:
        try:
            with open_reader(table.storage, file.file_path, file.file_format) as reader:
                # Without ids columns are found by names, and no metadata says which these were then.
                if not all_have_ids(reader.schema):
                    raise CannotRepairError(
                        f"file {file.file_path!r}, which the rewrite has read, has columns without field ids"
                    )
                came_back = unknown & field_ids(reader.schema)
        except (InvalidTableError, UnsupportedError) as error:
            raise CannotRepairError(f"file {file.file_path!r} cannot be read: {first_line(error)}") from error
        if came_back:
            name = table.metadata.schema.names_by_id[min(came_back)]
            raise CannotRepairError(
                f"column {name!r} was not there when the file was written, and {file.file_path!r} has values of it"
            )


class _LiveIn(msgspec.Struct, frozen=True):
    """Asks a manifest for its live entries in some partitions."""

    base: TableMetadata
    partitions: frozenset[PartitionKey]

    @property
    def key(self) -> Hashable:
        return "live in", self.partitions

    def run(self, manifest: ManifestFile, reader: ManifestReader) -> list[ManifestEntry]:
        if manifest.partition_spec_id not in {spec_id for spec_id, _ in self.partitions}:
            return []
        entries = reader.entries(manifest, self.base)
        return [one for one in entries if one.is_live and partition_key(one.data_file) in self.partitions]


class _ReachingDeletes(msgspec.Struct, frozen=True):
    """Asks a manifest for its live delete files that may reach some data files."""

    base: TableMetadata
    data: tuple[ManifestEntry, ...]

    @property
    def key(self) -> Hashable:
        return "reaching", tuple(one.data_file.file_path for one in self.data)

    def run(self, manifest: ManifestFile, reader: ManifestReader) -> list[ManifestEntry]:
        index, specs = DataFileIndex(self.data), self.base.specs_by_id
        return [
            delete
            for delete in reader.entries(manifest, self.base)
            if delete.is_live and any(index.candidates(delete, specs))
        ]


class Obstacle(msgspec.Struct, frozen=True):
    """What would change rows if copies took the place of lost files.

    Attributes:
        number: of the replacement that is impossible.
        delete: a position delete file of which only its rows tell whether that is so.
    """

    number: int
    problem: str
    delete: DataFile | None = None


class ObstacleSearch(msgspec.Struct, frozen=True):
    """Asks a manifest of the head what would change rows."""

    base: TableMetadata
    replacements: tuple[Replacement, ...]

    @property
    def key(self) -> Hashable:
        return "in the way", tuple(lost.data_file.file_path for one in self.replacements for lost in one.lost)

    def run(self, manifest: ManifestFile, reader: ManifestReader) -> list[Obstacle]:
        live = (entry for entry in reader.entries(manifest, self.base) if entry.is_live)
        return self._doubled(live) if manifest.content is ManifestContent.DATA else self._deletes(live)

    def _doubled(self, live: Iterator[ManifestEntry]) -> list[Obstacle]:
        """Rows must not be there twice."""
        numbers = {
            canonical_or_text(old.entry.data_file.file_path): number
            for number, one in enumerate(self.replacements)
            for old in one.old
        }
        return [
            Obstacle(
                numbers[path], f"file {entry.data_file.file_path!r}, which the rewrite has read, is in the table again"
            )
            for entry in live
            if (path := canonical_or_text(entry.data_file.file_path)) in numbers
        ]

    def _deletes(self, live: Iterator[ManifestEntry]) -> list[Obstacle]:
        """Each delete must reach the same rows before and after."""
        entries = {
            entry.data_file.file_path: (number, entry)
            for number, one in enumerate(self.replacements)
            for entry in (*one.lost, *(old.entry for old in one.old))
        }
        index, found = DataFileIndex(entry for _, entry in entries.values()), list[Obstacle]()
        for delete in live:
            try:
                candidates = [*index.candidates(delete, self.base.specs_by_id)]
            except InvalidTableError as error:
                return [Obstacle(number, first_line(error)) for number in range(len(self.replacements))]
            for number in {entries[one.data_file.file_path][0] for one in candidates}:
                if obstacle := self._delete_obstacle(delete, number):
                    found.append(obstacle)
        return found

    def _delete_obstacle(self, delete: ManifestEntry, number: int) -> Obstacle | None:
        specs, file, one = self.base.specs_by_id, delete.data_file, self.replacements[number]
        try:
            of_lost = [reaches(delete, entry, specs) for entry in one.lost]
            of_old = [reaches(delete, old.entry, specs) for old in one.old]
        except InvalidTableError as error:
            return Obstacle(number, first_line(error))
        if file.content is FileContent.POSITION_DELETES:
            # The copies have names that no delete file has.
            if not any(of_lost):
                return None
            what = "the vector in" if is_deletion_vector(file) else "position delete file"
            problem = f"{what} {file.file_path!r} deletes rows of it, and would not in older files"
            return Obstacle(number, problem, None if only_data_file(file) is not None else file)
        if {*of_lost, *of_old} == {True, False}:
            return Obstacle(
                number, f"equality delete file {file.file_path!r} reaches only some of it and the older files"
            )
        return None


def obstacles(
    answers: Sequence[Sequence[Obstacle]], replacements: Sequence[Replacement], storage: Storage
) -> dict[int, str]:
    """Why replacements are impossible, by their number; delete files are read where only their rows tell."""
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


class CopiedFiles:
    """Writes the copies of one branch, with the deletes of their rows, once for all attempts."""

    def __init__(self, branch: str, replacements: Sequence[Replacement], run_id: str, table: Table) -> None:
        self._branch, self._replacements, self._table = branch, tuple(replacements), table
        self._layout = data_layout(table.metadata.location, table.metadata.properties)
        self._name = f"{run_id}-{branch}".replace("/", "-")
        self._made: NewFiles | None = None

    def made(self, base: TableMetadata, attempt: Attempt) -> NewFiles:
        """Raises `ConflictError` where the copies would change a row of this base, or an old file is not as it was."""
        if any(one.schema_id != base.current_schema_id for one in self._replacements):
            raise ConflictError("the columns of the table have changed")
        head = base.head(self._branch)
        rows = [] if head is None else attempt.reader.manifests(head)
        answers = attempt.gathered(rows, ObstacleSearch(without_history(base), self._replacements))
        for number, problem in obstacles(answers, self._replacements, attempt.reader.storage).items():
            raise ConflictError(f"file {self._replacements[number].lost[0].data_file.file_path!r}: {problem}")
        if self._made is None:
            self._made = self._written(attempt)
        return self._made

    def _written(self, attempt: Attempt) -> NewFiles:
        storage, cache = attempt.reader.storage, DeleteCache()
        copies: list[AddedCopy] = []
        deleted: list[tuple[DataFile, BitMap64, int]] = []
        try:
            for old in (old for one in self._replacements for old in one.old):
                file, positions = old.entry.data_file, _deleted_positions(old, storage, cache)
                if len(positions) != old.deleted_count:
                    verb = "is" if len(positions) == 1 else "are"
                    raise ConflictError(f"{counted(len(positions), 'rows')} of {file.file_path!r} {verb} deleted now")
                location = self._location(f".{file.file_format.lower()}")
                copy_file(storage, file, location)
                attempt.delete_file_written(location)
                copy = replace(file, file_path=location)
                copies.append(AddedCopy(copy, sequence_number(old.entry)))
                if positions:
                    deleted.append((copy, positions, max(map(sequence_number, old.deletes))))
        except MissingFileError as error:
            raise ConflictError(first_line(error)) from error
        deletes = self._deletes(deleted, attempt) if deleted else ()
        locations = {one.file.file_path for one in copies} | {one.file.file_path for one in deletes}
        return NewFiles(locations=tuple(sorted(locations)), deletes=deletes, copies=tuple(copies))

    def _location(self, suffix: str) -> str:
        return self._layout.location(f"{self._name}-{self._table.runtime.new_uuid()}{suffix}")

    def _deletes(self, deleted: Sequence[tuple[DataFile, BitMap64, int]], attempt: Attempt) -> tuple[AddedDeletes, ...]:
        storage, metadata = attempt.reader.storage, self._table.metadata
        if metadata.format_version > 2:
            targets = [
                (VectorTarget(location=copy.file_path, spec_id=copy.spec_id, partition=copy.partition), positions)
                for copy, positions, _ in deleted
            ]
            location = self._location("-deletes.puffin")
            vectors = write_deletion_vectors(storage, location, targets)
            attempt.delete_file_written(location)
            return tuple(AddedDeletes(file, number) for file, (_, _, number) in zip(vectors, deleted, strict=True))
        file_format = delete_format(metadata.properties)
        added: list[AddedDeletes] = []
        for copy, positions, number in deleted:
            written = write_position_deletes(
                storage,
                self._location(f"-deletes.{file_format.lower()}"),
                file_format,
                [(copy.file_path, position) for position in positions],
                spec_id=copy.spec_id,
                partition=copy.partition,
                properties=metadata.properties,
            )
            attempt.delete_file_written(written.file_path)
            added.append(AddedDeletes(written, number))
        return tuple(added)


def _deleted_positions(old: OldFile, storage: Storage, cache: DeleteCache) -> BitMap64:
    """The rows of an old file that its deletes delete; positions behind the end of the file are none.

    Raises:
        InvalidTableError, UnsupportedError: a delete file cannot be read.
    """
    file = old.entry.data_file
    if not old.deletes:
        return BitMap64()
    cache.begin_file()
    found = deleted_positions(storage, [one.data_file for one in old.deletes], file.file_path, cache)
    return BitMap64(found[found < file.record_count].tolist())


def copy_file(storage: Storage, file: DataFile, location: str) -> None:
    """Write a file's bytes to another place; nothing is there where it fails.

    Raises:
        ConflictError: the file has not the size that its entry says.
        MissingFileError: there is no such file.
    """
    count = 0
    with storage.open(file.file_path) as old, storage.write(location) as new:
        while piece := old.read(_PIECE_BYTES):
            new.write(piece)
            count += len(piece)
        if count != file.file_size_in_bytes:
            raise ConflictError(f"file {file.file_path!r} has {count} bytes now, not {file.file_size_in_bytes}")
