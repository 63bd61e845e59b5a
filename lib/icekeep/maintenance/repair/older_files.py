"""What is asked of manifests to put files of an older snapshot in the place of a lost one; each can be asked in tasks.

Copies of files of an older snapshot, written by the commit that has them in the place of lost files.

The old files themselves are not put back: the snapshot that took them out says so in its manifests, and engines that clean
up by such marks delete the files once it expires, wherever else they are live.

Lost files of which an older snapshot has the rows: those that a rewrite wrote, where the files that it read are still there.

A snapshot of operation `replace` changes no row (spec, "Snapshots"). So what it took out of a partition, as its parent had it,
holds the rows of what it put there. Copies of these files take the place of the lost ones, and nobody loses a row.
"""

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence

import msgspec
from msgspec.structs import replace
from pyroaring import BitMap64

from icekeep.catalog.base import Table
from icekeep.commit.attempt import Attempt
from icekeep.commit.changes.deletes import AddedDeletes
from icekeep.commit.changes.repair_entries import AddedCopy
from icekeep.commit.manifests import ManifestReader, without_history
from icekeep.errors import ConflictError, InvalidTableError, MissingFileError, UnsupportedError, first_line
from icekeep.formats.deletes.apply import deleted_positions
from icekeep.formats.deletes.read import DeleteCache, read_position_deletes, write_position_deletes
from icekeep.formats.deletes.rewrite import delete_format
from icekeep.formats.puffin import VectorTarget, write_deletion_vectors
from icekeep.maintenance.check.faults import Fault
from icekeep.maintenance.repair.heads import EntryPosition, Head, refuse_doubled, same_file
from icekeep.maintenance.repair.losses import named
from icekeep.maintenance.repair.metadata import NOT_FOUND, CannotMendError, refuse_other_columns
from icekeep.maintenance.repair.plan import NewFiles, OldFile, Replacement
from icekeep.spec.manifests.structs import DataFile, FileContent, ManifestContent, ManifestEntry, ManifestFile
from icekeep.spec.matched_deletes import DataFileIndex, reaches, reaching_deletes
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.properties import data_layout
from icekeep.spec.reach import PartitionKey, is_deletion_vector, only_data_file, partition_key, sequence_number
from icekeep.spec.snapshots import Snapshot
from icekeep.spec.types import MIB
from icekeep.spelling import counted
from icekeep.storage.base import Storage


class LiveIn(msgspec.Struct, frozen=True):
    """The live entries of a manifest in some partitions."""

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


class ManifestDeletes(msgspec.Struct, frozen=True):
    """The live delete files of a manifest that may reach some data files."""

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

    def run(self, manifest: ManifestFile, reader: ManifestReader) -> list[Hindrance]:
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
                candidates = [*index.candidates(delete, self.base.specs_by_id)]
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


_PIECE_BYTES = 8 * MIB


class Copying:
    """Makes the copies of one branch, with the deletes of their rows."""

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
        answers = attempt.gathered(rows, InTheWay(without_history(base), self._replacements))
        found = problems(answers, self._replacements, attempt.reader.storage)
        for number, problem in found.items():
            raise ConflictError(f"file {self._replacements[number].lost[0].data_file.file_path!r}: {problem}")
        if self._made is None:
            self._made = self._written(attempt)
        return self._made

    def _written(self, attempt: Attempt) -> NewFiles:
        copies: list[AddedCopy] = []
        deleted: list[tuple[DataFile, BitMap64, int]] = []
        cache = DeleteCache()
        try:
            for old in (old for one in self._replacements for old in one.old):
                positions = positions_of(old, attempt.reader.storage, cache)
                copy = self._copy(old.entry.data_file, attempt)
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

    def _copy(self, file: DataFile, attempt: Attempt) -> DataFile:
        location = self._location(f".{file.file_format.lower()}")
        copy_file(attempt.reader.storage, file, location)
        attempt.delete_file_written(location)
        return replace(file, file_path=location)

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


def positions_of(old: OldFile, storage: Storage, cache: DeleteCache) -> BitMap64:
    """The rows of an old file that its deletes delete.

    Raises:
        ConflictError: there are not as many as were planned.
        InvalidTableError, UnsupportedError: a delete file cannot be read.
    """
    found = read_positions(old, storage, cache)
    if len(found) != old.deleted_count:
        raise ConflictError(
            f"{counted(len(found), 'rows')} of {old.entry.data_file.file_path!r} {'is' if len(found) == 1 else 'are'} deleted now"
        )
    return found


def read_positions(old: OldFile, storage: Storage, cache: DeleteCache) -> BitMap64:
    """The same, however many there are; positions behind the end of the file are none."""
    file = old.entry.data_file
    if not old.deletes:
        return BitMap64()
    deletes = [one.data_file for one in old.deletes]
    cache.begin_file()
    found = deleted_positions(storage, deletes, file.file_path, cache)
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


Answer = Replacement | CannotMendError

_SAME = ("content", "record_count", "file_size_in_bytes")
"""What the entry of a lost file says as it did when it was written."""


class Sources:
    """What can be put back of the lost files of each head; found out for all of a head once it is asked for one."""

    def __init__(
        self, table: Table, reader: ManifestReader, faults: Sequence[Fault], is_in_trash: Callable[[Head, Fault], bool]
    ) -> None:
        """Args:
        faults: of data files that are missing.
        is_in_trash: whether a file comes back by itself.
        """
        self._table, self._reader, self._faults, self._is_in_trash = table, reader, faults, is_in_trash
        self._answers: dict[str, dict[str, Answer]] = {}
        self._places: dict[tuple[str, str], EntryPosition] = {}

    def mend(self, head: Head, fault: Fault) -> str:
        """Plan that copies of older files take the place of a missing file; returns what is done.

        Raises:
            CannotMendError: that would change a row, or it is not sure that it would not; or the file is not missing.
        """
        if head.branch not in self._answers:
            self._answers[head.branch] = self._answered(head)
        answer = self._answers[head.branch][str(fault.facts["file_path"])]
        if isinstance(answer, CannotMendError):
            raise answer
        places = [self._places[head.branch, lost.data_file.file_path] for lost in answer.lost]
        for place in places:
            head.work.entries[place.key] = place.mended(None, is_replaced=True)
            head.work.gone.add(place.entry.data_file.file_path)
        head.work.replacements[places[0].entry.data_file.file_path] = answer
        return self._action(answer)

    def _action(self, answer: Replacement) -> str:
        files = [old.entry.data_file for old in answer.old]
        size_bytes = sum(file.file_size_in_bytes for file in files)
        beside = f", and of {len(answer.lost) - 1} more lost with it" if len(answer.lost) > 1 else ""
        ids = ", with the row ids that they have there" if any(file.first_row_id is not None for file in files) else ""
        return (
            f"its rows{beside} come back{ids}: copies are made of {counted(len(files), 'files')} ({size_bytes:,} bytes) that "
            f"snapshot {answer.lost[0].snapshot_id} rewrote into it; no row is lost"
        )

    def _answered(self, head: Head) -> dict[str, Answer]:
        answers: dict[str, Answer] = {}
        lost: defaultdict[int | None, list[EntryPosition]] = defaultdict(list)
        for fault in self._faults:
            try:
                place = self._lost(head, fault)
            except CannotMendError as error:
                answers[str(fault.facts["file_path"])] = error
                continue
            lost[place.entry.snapshot_id].append(place)
            self._places[head.branch, place.entry.data_file.file_path] = place
        found: dict[str, Replacement] = {}
        for snapshot_id, places in lost.items():
            for path, answer in self._of_snapshot(head, snapshot_id, places).items():
                if isinstance(answer, Replacement):
                    found[path] = answer
                else:
                    answers[path] = answer
        return {**answers, **self._without_what_is_in_the_way(head, found)}

    def _lost(self, head: Head, fault: Fault) -> EntryPosition:
        path = str(fault.facts["file_path"])
        places = [p for p in named(head, fault, path) if p.entry.data_file.content is FileContent.DATA]
        if not places:
            raise CannotMendError("")
        if self._table.storage.head(path) is not None:
            raise CannotMendError(NOT_FOUND)
        if self._is_in_trash(head, fault):
            raise CannotMendError("the file is in the trash")
        for place in places:
            refuse_doubled(head, place.row)
        if len(places) > 1:
            raise CannotMendError("the file is live more than once")
        return places[0]

    def _of_snapshot(
        self, head: Head, snapshot_id: int | None, places: Sequence[EntryPosition]
    ) -> Mapping[str, Answer]:
        try:
            return Rewrite(self._table, self._reader, snapshot_id, places).answers()
        except CannotMendError as error:
            return dict.fromkeys((place.entry.data_file.file_path for place in places), error)
        except (InvalidTableError, UnsupportedError) as error:
            refusal = CannotMendError(f"what snapshot {snapshot_id} has rewritten cannot be read: {first_line(error)}")
            return dict.fromkeys((place.entry.data_file.file_path for place in places), refusal)

    def _without_what_is_in_the_way(self, head: Head, found: Mapping[str, Replacement]) -> dict[str, Answer]:
        replacements = tuple({id(one): one for one in found.values()}.values())
        if not replacements:
            return {}
        work = InTheWay(without_history(self._table.metadata), replacements)
        try:
            why = problems(self._reader.gathered(head.rows, work), replacements, self._table.storage)
        except (InvalidTableError, UnsupportedError) as error:
            why = dict.fromkeys(range(len(replacements)), f"not every manifest can be read: {first_line(error)}")
        refused = {id(replacements[number]): CannotMendError(problem) for number, problem in why.items()}
        return {path: refused.get(id(one), one) for path, one in found.items()}


class Rewrite:
    """One snapshot that wrote files which are lost: what it took out of their partitions, and what it put there."""

    def __init__(
        self, table: Table, reader: ManifestReader, snapshot_id: int | None, lost: Sequence[EntryPosition]
    ) -> None:
        self._table, self._reader, self._lost = table, reader, lost
        self._metadata, self._cache = table.metadata, DeleteCache()
        self._snapshot, self._parent = self._snapshots(snapshot_id)

    def answers(self) -> dict[str, Answer]:
        """By path of a lost file.

        Raises:
            InvalidTableError, UnsupportedError: a manifest cannot be read.
            CannotMendError: a reason that holds for all.
        """
        before, after = (self._reader.manifests(one) for one in (self._parent, self._snapshot))
        by_partition: defaultdict[PartitionKey, list[EntryPosition]] = defaultdict(list)
        for place in self._lost:
            by_partition[partition_key(place.entry.data_file)].append(place)
        olds, news = self._changed(before, after, frozenset(by_partition))
        everything = {entry.data_file.file_path: entry for some in olds.values() for entry in some.values()}
        deletes = self._deletes(before, tuple(everything.values()))
        answers: dict[str, Answer] = {}
        for partition, places in by_partition.items():
            try:
                answer: Answer = self._replacement(
                    [place.entry for place in places], olds[partition], news[partition], deletes
                )
            except CannotMendError as error:
                answer = error
            answers.update(dict.fromkeys((place.entry.data_file.file_path for place in places), answer))
        return answers

    def _snapshots(self, snapshot_id: int | None) -> tuple[Snapshot, Snapshot]:
        """The rewrite and its parent."""
        by_id = self._metadata.snapshots_by_id
        snapshot = by_id.get(snapshot_id) if snapshot_id is not None else None
        if snapshot is None:
            raise CannotMendError(
                f"snapshot {snapshot_id}, which added it, is expired: what it was made of is not known"
            )
        if (operation := (snapshot.summary or {}).get("operation")) != "replace":
            raise CannotMendError(
                f"snapshot {snapshot_id}, which added it, has operation {operation!r}: no older snapshot has its rows"
            )
        parent = by_id.get(snapshot.parent_snapshot_id) if snapshot.parent_snapshot_id is not None else None
        if parent is None:
            raise CannotMendError(f"the snapshot before {snapshot_id}, which added it, is expired")
        return snapshot, parent

    def _changed(
        self, before: Sequence[ManifestFile], after: Sequence[ManifestFile], partitions: frozenset[PartitionKey]
    ) -> tuple[dict[PartitionKey, dict[str, ManifestEntry]], dict[PartitionKey, dict[str, ManifestEntry]]]:
        """The files of some partitions that the snapshot took out, and those that it put there, by path."""
        both = {row.manifest_path for row in before} & {row.manifest_path for row in after}
        some, others = (self._of_data(rows, both) for rows in (before, after))
        spec_ids = {row.partition_spec_id for row in (*some, *others) if row.may_have_live_files}
        if len(spec_ids) > 1:
            raise CannotMendError(
                f"snapshot {self._snapshot.snapshot_id} has written files of several partition specs, and may have moved rows"
            )
        work = LiveIn(without_history(self._metadata), partitions)
        was, is_ = (_by_path(self._reader.gathered(rows, work)) for rows in (some, others))
        return _by_partition(was, is_, partitions), _by_partition(is_, was, partitions)

    def _of_data(self, rows: Iterable[ManifestFile], without: set[str]) -> list[ManifestFile]:
        return [row for row in rows if row.content is ManifestContent.DATA and row.manifest_path not in without]

    def _deletes(
        self, before: Sequence[ManifestFile], data: tuple[ManifestEntry, ...]
    ) -> Mapping[str, tuple[ManifestEntry, ...]]:
        """By path of an old file the delete files that the parent's readers apply to it."""
        rows = [row for row in before if row.content is ManifestContent.DELETES]
        found = self._reader.gathered(rows, ManifestDeletes(without_history(self._metadata), data))
        deletes = (delete for some in found for delete in some)
        return reaching_deletes(data, deletes, self._metadata.specs_by_id)

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
        wanted = sum(entry.data_file.record_count for entry in news.values())
        if there != wanted:
            raise CannotMendError(
                f"the {len(some)} older files have {there} rows, and the rewrite of snapshot {self._snapshot.snapshot_id} "
                f"wrote {wanted}"
            )
        refuse_other_columns(self._table, self._snapshot, [old.entry.data_file for old in some])
        return Replacement(schema_id=self._metadata.current_schema_id, lost=tuple(lost), old=some)

    def _check_lost(self, lost: Sequence[ManifestEntry], news: Mapping[str, ManifestEntry]) -> None:
        """All that was written in the partition is lost, and as it was written."""
        paths = {entry.data_file.file_path for entry in lost}
        number = self._snapshot.snapshot_id
        if more := news.keys() - paths:
            raise CannotMendError(
                f"snapshot {number} wrote {len(news)} files in its partition, and {min(more)!r} is not lost with it: nobody "
                "knows which of the rows were in it"
            )
        if paths - news.keys():
            raise CannotMendError(f"it is not among the files that snapshot {number} wrote")
        for entry in lost:
            file, written = entry.data_file, news[entry.data_file.file_path]
            if file.key_metadata is not None:
                raise CannotMendError("the file is encrypted")
            is_other = any(getattr(file, name) != getattr(written.data_file, name) for name in _SAME)
            if is_other or sequence_number(entry) != sequence_number(written):
                raise CannotMendError(f"its entry is another one than snapshot {number} wrote")

    def _check_olds(self, lost: Sequence[ManifestEntry], olds: Sequence[ManifestEntry]) -> None:
        if not olds:
            raise CannotMendError(f"snapshot {self._snapshot.snapshot_id} took no file out of its partition")
        storage = self._table.storage
        for entry in olds:
            file, name = entry.data_file, repr(entry.data_file.file_path)
            if file.key_metadata is not None:
                raise CannotMendError(f"file {name}, which the rewrite has read, is encrypted")
            info = storage.head(file.file_path)
            if info is None:
                raise CannotMendError(f"file {name}, which the rewrite has read, is not there any more")
            if info.size_bytes != file.file_size_in_bytes:
                raise CannotMendError(
                    f"file {name}, which the rewrite has read, has {info.size_bytes} bytes where its entry says "
                    f"{file.file_size_in_bytes}"
                )
        if max(map(sequence_number, olds)) > min(map(sequence_number, lost)):
            raise CannotMendError("it is older than one of the files that it was made of")
        # Without a first row id rows have none, and would be given new ones (spec, "Row Lineage for Upgraded Tables").
        were, are = ({entry.data_file.first_row_id is not None for entry in some} for some in (olds, lost))
        if were != are or len(were) > 1:
            raise CannotMendError("files that it was made of have no row ids, and their rows would be given other ones")

    def _old(self, entry: ManifestEntry, deletes: tuple[ManifestEntry, ...]) -> OldFile:
        path = entry.data_file.file_path
        for delete in deletes:
            file = delete.data_file
            if file.content is FileContent.EQUALITY_DELETES:
                raise CannotMendError(f"equality delete file {file.file_path!r} reached {path!r} when it was rewritten")
        old = OldFile(entry=entry, deletes=deletes)
        try:
            positions = read_positions(old, self._table.storage, self._cache)
        except (InvalidTableError, UnsupportedError) as error:
            raise CannotMendError(f"deletes of {path!r} cannot be read: {first_line(error)}") from error
        return OldFile(entry=entry, deletes=deletes, deleted_count=len(positions))


def _by_path(found: Iterable[Iterable[ManifestEntry]]) -> dict[str, ManifestEntry]:
    by_path: dict[str, ManifestEntry] = {}
    for entry in (entry for some in found for entry in some):
        if entry.data_file.file_path in by_path:
            raise CannotMendError(f"data file {entry.data_file.file_path!r} was live twice when the file was written")
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
