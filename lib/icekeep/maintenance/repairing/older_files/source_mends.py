"""Lost files of which an older snapshot has the rows: those that a rewrite wrote, where the files that it read are still there.

A snapshot of operation `replace` changes no row (spec, "Snapshots"). So what it took out of a partition, as its parent had it,
holds the rows of what it put there. Copies of these files take the place of the lost ones, and nobody loses a row.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

from icekeep.catalog.base import Table
from icekeep.commit.filtering import without_history
from icekeep.commit.manifests import ManifestReader
from icekeep.errors import InvalidTableError, UnsupportedError, first_line
from icekeep.formats.deletes.read import DeleteCache
from icekeep.maintenance.checking.faults import Fault
from icekeep.maintenance.repairing.heads import Head
from icekeep.maintenance.repairing.losses.loss_mends import named
from icekeep.maintenance.repairing.named_entries import Place
from icekeep.maintenance.repairing.older_files.copying import read_positions
from icekeep.maintenance.repairing.older_files.old_columns import refuse_other_columns
from icekeep.maintenance.repairing.older_files.source_questions import InTheWay, LiveIn, Reaching, problems
from icekeep.maintenance.repairing.plan import OldFile, Replacement
from icekeep.maintenance.repairing.reasons import NOT_FOUND, CannotMendError
from icekeep.maintenance.repairing.refusals import refuse_doubled
from icekeep.spec.manifests.structs import FileContent, ManifestContent, ManifestEntry, ManifestFile
from icekeep.spec.reach import PartitionKey, partition_key, sequence_number
from icekeep.spec.reached_files import reaching_deletes
from icekeep.spec.snapshots import Snapshot
from icekeep.spelling import counted

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
        self._places: dict[tuple[str, str], Place] = {}

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
        lost: defaultdict[int | None, list[Place]] = defaultdict(list)
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

    def _lost(self, head: Head, fault: Fault) -> Place:
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

    def _of_snapshot(self, head: Head, snapshot_id: int | None, places: Sequence[Place]) -> Mapping[str, Answer]:
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

    def __init__(self, table: Table, reader: ManifestReader, snapshot_id: int | None, lost: Sequence[Place]) -> None:
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
        by_partition: defaultdict[PartitionKey, list[Place]] = defaultdict(list)
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
        found = self._reader.gathered(rows, Reaching(without_history(self._metadata), data))
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
