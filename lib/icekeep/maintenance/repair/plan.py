"""What a repair is going to do, and what it leaves as it is, as values.

What is lost where a table begins again from earlier metadata: commits, as far as the spoilt file still tells of them.

A table whose metadata file is spoilt begins again from its last sound one, which is written anew as the next version.

pointer -> the spoilt file -> an earlier sound one -> what is lost by it -> a new file, while the pointer is where it was

What comes after takes sequence numbers again, and in version 3 row ids, that lost commits had taken. That does no harm: the files
of lost commits are in no snapshot any more, so none of them meets a file of a later commit, and nobody can commit them on the
new metadata, as what they would be based on is not there.

Mends for which new files are written: who makes them, and the change that has them.

Vectors of one data file that become one, in a new Puffin file that the commit writes.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import msgspec
from msgspec.structs import replace
from pyroaring import BitMap64

from icekeep.catalog.base import Catalog, Identifier, Pointer, Table, format_identifier
from icekeep.commit.attempt import Attempt
from icekeep.commit.changes.deletes import AddedDeletes
from icekeep.commit.changes.repair_entries import AddedCopy, RepairedEntry, RepairEntries
from icekeep.commit.retry import attach
from icekeep.errors import ConflictError, MissingFileError, SafetyError, UsageError, and_more
from icekeep.events import Listener
from icekeep.formats.puffin import VectorTarget, read_deletion_vector, write_deletion_vectors
from icekeep.maintenance.check.entries import check_files
from icekeep.maintenance.check.faults import CLASSES, Fault, FaultId, Tally
from icekeep.maintenance.check.lists import CheckedTable, read_lists
from icekeep.maintenance.check.manifests import check_manifests
from icekeep.maintenance.repair import JOB
from icekeep.maintenance.repair.metadata import (
    NEEDS_EARLIER,
    CannotMendError,
    Chosen,
    SpoiltMetadata,
    choose,
    digest_of,
    not_accepted,
    read_spoilt,
)
from icekeep.planning.spark.session import SparkSource, refuse_encrypted
from icekeep.rendered import Rendered
from icekeep.spec.manifests.structs import DataFile, ManifestEntry
from icekeep.spec.metadata import TableMetadata, parse_metadata
from icekeep.spec.properties import data_layout, metadata_directory
from icekeep.spec.reach import sequence_number
from icekeep.spec.times import format_time
from icekeep.spec.updates import Update, log_previous
from icekeep.spelling import counted
from icekeep.storage.base import FileInfo
from icekeep.storage.locations import canonical, is_location

MAX_MENDS = 10_000
"""So many faults are mended at a time."""

_DIGEST_BYTES = 16


class RepairScope(msgspec.Struct, frozen=True, kw_only=True):
    """What a repair is asked for: kinds of faults, and the locations that may be lost."""

    numbers: frozenset[int]
    accepted: frozenset[str] = frozenset()


class Mend(msgspec.Struct, frozen=True, kw_only=True):
    """One fix.

    Attributes:
        fault_id, name: the kind of the fault.
        branch: on which; empty where it is of the whole table.
        where: the file, or the part of the metadata.
        action: what is written, in a sentence.
        is_put_back: whether the file is put back where it was, with no commit.
        lost_files: what readers lose by it: files that are gone from the branch.
        lost_records_count: the records of these, deleted ones among them; or rows that readers saw twice, or saw by one of two
            vectors; or what lost commits added. `None` where that is not known.
    """

    fault_id: int
    name: str
    branch: str
    where: str
    action: str
    is_put_back: bool = False
    lost_files: tuple[str, ...] = ()
    lost_records_count: int | None = 0


class NotMended(msgspec.Struct, frozen=True, kw_only=True):
    """A fault that stays, and why.

    Attributes:
        is_only_older: no branch has it at its head, and it goes as its snapshots expire.
    """

    fault_id: int
    name: str
    where: str
    reason: str
    snapshot_id: int | None = None
    is_only_older: bool = False


def staying(fault: Fault, reason: str, *, is_only_older: bool = False) -> NotMended:
    """A fault that stays."""
    return NotMended(
        fault_id=fault.number,
        name=CLASSES[fault.number].name,
        where=fault.where,
        reason=reason,
        snapshot_id=fault.snapshot_id,
        is_only_older=is_only_older,
    )


class RepairPlan(Rendered, frozen=True, kw_only=True):
    """What would be done.

    Attributes:
        not_mended: faults that stay.
        lost_records_count: of all fixes together, as `Mend` has it.
        hash: what `approve` takes for exactly this.
    """

    mends: tuple[Mend, ...] = ()
    not_mended: tuple[NotMended, ...] = ()
    lost_records_count: int | None = 0
    hash: str = ""


class VectorMerge(msgspec.Struct, frozen=True, kw_only=True):
    """Vectors of one data file that are to become one: what each is, and how many positions they have together."""

    data_file: str
    entries: tuple[RepairedEntry, ...]
    cardinality: int


class OldFile(msgspec.Struct, frozen=True, kw_only=True):
    """A data file of an older snapshot, of which a copy is to be made.

    Attributes:
        entry: as that snapshot has it.
        deletes: the delete files and the vector that delete positions of it there, perhaps of other files as well.
        deleted_count: how many of its rows they delete.
    """

    entry: ManifestEntry
    deletes: tuple[ManifestEntry, ...] = ()
    deleted_count: int = 0


class Replacement(msgspec.Struct, frozen=True, kw_only=True):
    """Lost files, all that one rewrite made in a partition, and the files that it made them of.

    Attributes:
        schema_id: of the columns in which these were compared.
    """

    schema_id: int
    lost: tuple[ManifestEntry, ...]
    old: tuple[OldFile, ...]


class TrashedFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file that comes back from the trash of a run."""

    location: str
    trash: str
    run: str
    size_bytes: int


class NewList(msgspec.Struct, frozen=True, kw_only=True):
    """A manifest list that is gone, and is written again where it was."""

    location: str
    data: bytes


class BranchWork(msgspec.Struct, kw_only=True):
    """What is to be written on one branch; filled class by class.

    Attributes:
        entries: by location of the manifest and place in it.
        rows, once, recounts_totals: as for `RepairEntries`.
        sorts: position delete files that are written in order.
        replacements: by the first of the lost files, where copies of older files come in their place.
        gone: locations of files that must be missing still when their entries go.
        broken: those that cannot be read, and must be as they were.
        drops_dangling: whether delete files that reach nothing are taken out.
    """

    branch: str
    snapshot_id: int
    format_version: int
    entries: dict[tuple[str, int], RepairedEntry] = {}
    rows: set[str] = set()
    once: set[str] = set()
    merges: list[VectorMerge] = []
    sorts: list[RepairedEntry] = []
    replacements: dict[str, Replacement] = {}
    gone: set[str] = set()
    broken: dict[str, FileInfo] = {}
    recounts_totals: bool = False
    drops_dangling: bool = False
    faults: set[int] = set()

    @property
    def writes_entries(self) -> bool:
        """Whether there is a commit that writes manifests, or totals, anew."""
        return bool(self.entries or self.rows or self.once or self.merges or self.sorts or self.recounts_totals)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to commit."""
        return not self.writes_entries and not self.drops_dangling

    @property
    def copied(self) -> list[DataFile]:
        """The files of which copies are made."""
        return [old.entry.data_file for one in self.replacements.values() for old in one.old]

    @property
    def merged(self) -> set[tuple[str, int]]:
        """The entries in whose place new delete files come, as `entries` has them."""
        anew = [*self.sorts, *(one for merge in self.merges for one in merge.entries)]
        return {(one.manifest, one.index) for one in anew}

    def manifests(self) -> set[str]:
        """The locations of the manifests that are written anew."""
        return {path for path, _ in (*self.entries, *self.merged)} | self.rows | self.once


class Planned(msgspec.Struct, frozen=True, kw_only=True):
    """A plan, and how it is carried out.

    Attributes:
        parts: hashes of all that is done, one by one.
        counters: of the metadata, to be raised.
        statistics, partition_statistics: snapshots that are to have none.
        returns: files that come back from the trash before anything is committed.
        lists: manifest lists that are written before anything is committed.
    """

    plan: RepairPlan
    parts: frozenset[str] = frozenset()
    works: tuple[BranchWork, ...] = ()
    counters: frozenset[str] = frozenset()
    statistics: frozenset[int] = frozenset()
    partition_statistics: frozenset[int] = frozenset()
    returns: tuple[TrashedFile, ...] = ()
    lists: tuple[NewList, ...] = ()


def parts_of(mends: Iterable[Mend], works: Iterable[BranchWork], lists: Iterable[NewList] = ()) -> frozenset[str]:
    """The hashes of all that is done: the same for the same mends of the same entries, whatever else others commit."""
    parts: list[Any] = [*mends, *lists]
    for work in works:
        parts += [[work.branch, path, index, one.file, one.is_deleted] for (path, index), one in work.entries.items()]
        parts += [
            [work.branch, *named]
            for named in (sorted(work.rows), sorted(work.once), sorted({*work.gone, *work.broken}))
        ]
        parts += [[work.branch, merge.data_file, merge.cardinality] for merge in work.merges]
        parts += [[work.branch, one] for one in work.replacements.values()]
        parts += [[work.branch, one.manifest, one.index] for one in work.sorts]
    return frozenset(_hashed(part) for part in parts)


def lost_records(mends: Iterable[Mend]) -> int | None:
    """The records that are lost by all of them; `None` where that is not known of one."""
    counts = [one.lost_records_count for one in mends]
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None


def hash_of(table_uuid: str | None, parts: Iterable[str], snapshot_properties: Sequence[tuple[str, str]] = ()) -> str:
    """The hash of a whole plan, and of what the user writes into the summaries of its snapshots."""
    return _hashed([table_uuid, *sorted(parts), *sorted(snapshot_properties)])


def _hashed(value: Any) -> str:
    return hashlib.blake2b(msgspec.json.encode(value), digest_size=_DIGEST_BYTES).hexdigest()


_GONE = (
    FaultId.MANIFEST_LIST_UNREADABLE,
    FaultId.MANIFEST_UNREADABLE,
    FaultId.DATA_FILE_MISSING,
    FaultId.DELETE_FILE_MISSING,
)
_SHOWN = 20
_REWRITES = "replace"


class LostCommits(msgspec.Struct, frozen=True, kw_only=True):
    """What is lost, in a sentence, and the records that lost snapshots say they added, those of rewrites left out.

    Attributes:
        records_count: `None` where the spoilt file does not tell it.
    """

    text: str
    records_count: int | None


def lost_commits(spoilt: SpoiltMetadata, sound: TableMetadata) -> LostCommits:
    """Compare a spoilt metadata file with the earlier one that the table is to begin again from."""
    since = f"all commits since {format_time(sound.last_updated_ms)} are lost, those to schemas, properties and branches too"
    kept = sound.snapshots_by_id
    if spoilt.raw is None:
        ids = [one for one in spoilt.named_snapshot_ids() if one not in kept]
        known = (
            f"among them snapshots {_some(map(str, ids))}, which the file still names"
            if ids
            else "what they were the file does not tell"
        )
        return LostCommits(text=f"{since}: {known}", records_count=None)
    lost = [one for one in spoilt.snapshots if one["snapshot-id"] not in kept]
    text = f"{since}: snapshots {_some(map(_told, lost))}" if lost else f"{since}; no snapshot is"
    found = {one["snapshot-id"] for one in spoilt.snapshots}
    # A list with faults may lack snapshots that the table has.
    back = [str(one.snapshot_id) for one in sound.snapshots if one.snapshot_id not in found]
    if back:
        text += f"; snapshots that it does not have come back: {_some(iter(back))}"
    counts = [_added_records(one) for one in lost]
    told = [count for count in counts if count is not None]
    are_told = spoilt.has_all_snapshots and len(told) == len(counts)
    return LostCommits(text=text, records_count=sum(told) if are_told else None)


def _told(snapshot: Mapping[str, Any]) -> str:
    summary = _summary(snapshot)
    said = [str(summary["operation"])] if "operation" in summary else []
    said += [
        f"{summary[name]} {name.replace('-', ' ')}" for name in ("added-records", "deleted-records") if name in summary
    ]
    return f"{snapshot['snapshot-id']}" + (f" ({', '.join(said)})" if said else "")


def _added_records(snapshot: Mapping[str, Any]) -> int | None:
    """What is not in a summary is nought; `None` where there is no summary, or no number."""
    summary = _summary(snapshot)
    if summary.get("operation") == _REWRITES:
        return 0
    said = str(summary.get("added-records", 0))
    return int(said) if summary and said.isascii() and said.isdigit() else None


def _summary(snapshot: Mapping[str, Any]) -> Mapping[str, Any]:
    found = snapshot.get("summary")
    return found if isinstance(found, Mapping) else {}


def _some(texts: Iterator[str]) -> str:
    """Some of many, and how many more there are."""
    found = [*texts]
    return ", ".join(found[:_SHOWN]) + and_more(found, _SHOWN)


def gone_below(table: Table, spark: SparkSource, listener: Listener) -> list[Fault]:
    """The files that branches and tags of earlier metadata need and that cannot be read: others may have cleaned up since.

    Raises:
        SafetyError: not all of it could be looked at.
    """
    tally = Tally(_GONE)
    metadata = table.metadata
    ids = {ref.snapshot_id for ref in metadata.refs.values()} | {metadata.current_snapshot_id}
    subject = CheckedTable(
        table=table,
        raw={},
        snapshots=tuple(one for one in metadata.snapshots if one.snapshot_id in ids),
        spark=spark,
        listener=listener,
        tally=tally,
        is_current=False,
    )
    check_files(subject, check_manifests(subject, read_lists(subject)).listed)
    found = [fault for number in _GONE for fault in tally.faults(number)]
    # Where a list or a manifest is gone, that is why the rest of its snapshot was not looked at.
    is_told = any(fault.number in (FaultId.MANIFEST_LIST_UNREADABLE, FaultId.MANIFEST_UNREADABLE) for fault in found)
    gaps = [gap for gap in tally.gaps() if not (is_told and gap.what.startswith("snapshot "))]
    if gaps:
        why = ", ".join(gap.why for gap in gaps if gap.what == gaps[0].what)
        raise SafetyError(
            f"{gaps[0].what} of {table.metadata_location!r} could not be looked at: {why}; nothing was changed"
        )
    return found


_reattaching_SHOWN = 10


class Reattachment(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be done with a spoilt metadata file.

    Attributes:
        table: the metadata that is written, and where the spoilt file is; `None` where nothing can be done.
        spoilt_location: of the spoilt file.
        sound_location: of the file whose metadata is written.
        spoilt_digest, sound_digest: of the two files when the plan was made.
    """

    plan: RepairPlan
    spoilt_location: str
    table: Table | None = None
    sound_location: str = ""
    spoilt_digest: str = ""
    sound_digest: str = ""


def plan_reattachment(
    catalog: Catalog, identifier: Identifier, asked: RepairScope, spark: SparkSource, listener: Listener
) -> Reattachment | None:
    """Look at a table's metadata file, and plan what can be done where it has faults that were asked for.

    Returns:
        `None` where it has none of these.

    Raises:
        NotFoundError: the catalog has no such table.
        UsageError: other faults were asked for too; or storage denies access.
        UnsupportedError: the table is encrypted, or its metadata file is packed in a way that we do not read.
        SafetyError: what the earlier metadata leads to could not be looked at.
    """
    pointer = catalog.find(identifier)
    spoilt = read_spoilt(pointer)
    found = sorted(asked.numbers & NEEDS_EARLIER & spoilt.tally.counts.keys())
    if not found:
        return None
    if others := sorted(asked.numbers - NEEDS_EARLIER):
        raise UsageError(
            f"the metadata file of table {format_identifier(identifier)!r} has faults {', '.join(map(str, found))}: mend these "
            f"first and alone, and {', '.join(map(str, others))} by another run"
        )
    try:
        return _planned(catalog, identifier, spoilt, found, asked, spark, listener)
    except CannotMendError as error:
        return Reattachment(plan=_stays(spoilt.tally.faults(found[0])[0], str(error)), spoilt_location=spoilt.location)


def _planned(
    catalog: Catalog,
    identifier: Identifier,
    spoilt: SpoiltMetadata,
    numbers: Sequence[int],
    asked: RepairScope,
    spark: SparkSource,
    listener: Listener,
) -> Reattachment:
    if not catalog.compares_metadata:
        raise CannotMendError(
            f"catalog {catalog.name!r} writes metadata itself: fix it at the server, or drop the table there, without its "
            "files, and register an earlier metadata file"
        )
    chosen = choose(spoilt, asked.accepted)
    location = chosen.sound.location
    data = spoilt.storage.read(location)
    metadata = parse_metadata(data, location)
    refuse_encrypted(metadata, JOB.name)
    _refuse_elsewhere(spoilt, location, metadata)
    sound = Table(identifier, metadata, location, spoilt.storage, catalog)
    gone = gone_below(sound, spark, listener)
    lost = lost_commits(spoilt, metadata)
    action = _action(sound, chosen, lost.text, gone)
    _need_accepted(spoilt, gone, asked, action)
    mend = Mend(
        fault_id=numbers[0],
        name=CLASSES[numbers[0]].name,
        branch="",
        where=spoilt.location,
        action=action,
        lost_files=(spoilt.location, *(fault.where for fault in gone)),
        lost_records_count=lost.records_count,
    )
    logged = log_previous(metadata, location, metadata.last_updated_ms)
    spoilt_digest, sound_digest = spoilt.digest, digest_of(data)
    parts = [*parts_of([mend], ()), spoilt_digest, sound_digest]
    return Reattachment(
        plan=RepairPlan(mends=(mend,), lost_records_count=lost.records_count, hash=hash_of(metadata.table_uuid, parts)),
        spoilt_location=spoilt.location,
        table=Table(identifier, logged, spoilt.location, spoilt.storage, catalog),
        sound_location=location,
        spoilt_digest=spoilt_digest,
        sound_digest=sound_digest,
    )


def _refuse_elsewhere(spoilt: SpoiltMetadata, location: str, metadata: TableMetadata) -> None:
    """Raise `CannotMendError` for metadata that lies beside the spoilt file, and says that its own lies in another directory."""
    directory = canonical(spoilt.location).rpartition("/")[0]
    is_beside = canonical(location).rpartition("/")[0] == directory
    if is_beside and not spoilt.follows(location) and canonical(metadata_directory(metadata)) != directory:
        raise CannotMendError(
            f"{location!r} is of a table at {metadata.location!r}, which keeps its metadata elsewhere, and nothing says that it "
            "was this table; find out, and register it by hand"
        )


def _action(sound: Table, chosen: Chosen, lost: str, gone: Sequence[Fault]) -> str:
    metadata = sound.metadata
    said = [
        f"the table begins again, in a new metadata file, from {sound.metadata_location!r} of "
        f"{format_time(metadata.last_updated_ms)}, with current snapshot {metadata.current_snapshot_id or 'none'} and "
        f"last-sequence-number {metadata.last_sequence_number}",
        lost,
        "the data of lost commits stays where it is until `icekeep remove_orphan_files` deletes what is old enough; move "
        "metadata files that cannot be read to another directory before that, or it refuses",
    ]
    if not chosen.is_logged:
        said.append(
            "no metadata log says that this file was the table: look at it, as it may be of a commit that never landed"
        )
    if chosen.passed_count:
        said.append(f"the files of {counted(chosen.passed_count, 'versions')} between are missing, or have faults")
    if chosen.followers:
        names = ", ".join(map(repr, chosen.followers[:_reattaching_SHOWN]))
        said.append(f"{names} may have more, but nothing says that it ever was the table, and it is not taken")
    if gone:
        names = ", ".join(repr(fault.where) for fault in gone[:_reattaching_SHOWN])
        said.append(
            f"{counted(len(gone), 'files')} that it needs cannot be read any more: {names}{and_more(gone, _reattaching_SHOWN)}"
        )
    return "; ".join(said)


def _need_accepted(spoilt: SpoiltMetadata, gone: Sequence[Fault], asked: RepairScope, action: str) -> None:
    """Raise `CannotMendError` unless each file that is lost was named."""
    accepted = {canonical(one) for one in asked.accepted if is_location(one)}
    needed = [spoilt.location, *(fault.where for fault in gone)]
    missing = [one for one in needed if canonical(one) not in accepted]
    if missing:
        more = f" (and {len(missing) - _reattaching_SHOWN} more)" if len(missing) > _reattaching_SHOWN else ""
        raise not_accepted(action, missing[:_reattaching_SHOWN], more)


def _stays(fault: Fault, reason: str) -> RepairPlan:
    return RepairPlan(not_mended=(staying(fault, reason),), hash=hash_of(None, ()))


def reattached(found: Reattachment, listener: Listener) -> Table:
    """Carry a plan out, and return the table as it is then.

    Raises:
        ConflictError: the pointer moved, or one of the two files is not what it was; nothing was changed.
        OutcomeUnknownError: it may have landed.
    """
    table = found.table
    assert table is not None
    pointer = table.catalog.find(table.identifier)
    name = f"table {table.name!r}"
    if canonical(pointer.metadata_location) != canonical(table.metadata_location):
        raise ConflictError(f"{name} has other metadata by now, {pointer.metadata_location!r}; nothing was changed")
    if read_spoilt(pointer).digest != found.spoilt_digest:
        raise ConflictError(f"metadata {table.metadata_location!r} of {name} was written anew; nothing was changed")
    if _digest(pointer, found.sound_location) != found.sound_digest:
        raise ConflictError(f"metadata {found.sound_location!r} is not what it was any more; nothing was changed")
    return attach(table, listener)


def _digest(pointer: Pointer, location: str) -> str:
    try:
        return digest_of(pointer.storage.read(location))
    except MissingFileError:
        return digest_of(None)


class NewFiles(msgspec.Struct, frozen=True, kw_only=True):
    """Files that were written, and the entries that go for them.

    Attributes:
        locations: of all files; none is removed once the commit has landed.
    """

    locations: tuple[str, ...]
    entries: tuple[RepairedEntry, ...] = ()
    deletes: tuple[AddedDeletes, ...] = ()
    copies: tuple[AddedCopy, ...] = ()


class NewFileWriter(Protocol):
    """Writes new files by the first attempt that gets so far; later ones have the same."""

    def made(self, base: TableMetadata, attempt: Attempt) -> NewFiles:
        """The files, for this base.

        Raises:
            ConflictError: what they were to be made of, or for, is not as it was read.
        """


class WithNewFiles(msgspec.Struct, frozen=True):
    """A change with what makers add to it."""

    change: RepairEntries
    makers: Sequence[NewFileWriter]

    def apply(self, base: TableMetadata, attempt: Attempt) -> tuple[Update, ...]:
        """Raises as `NewFileWriter.made` and `RepairEntries.apply`."""
        change = self.change
        for maker in self.makers:
            new = maker.made(base, attempt)
            attempt.name_delete_files(new.locations)
            change = replace(
                change,
                entries=(*change.entries, *new.entries),
                added=(*change.added, *new.deletes),
                copies=(*change.copies, *new.copies),
            )
        return change.apply(base, attempt)


class Merging:
    """Makes the merged vectors of one branch."""

    def __init__(self, merges: Sequence[VectorMerge], run_id: str, table: Table) -> None:
        self._merges, self._run_id, self._table = merges, run_id, table
        self._added: tuple[AddedDeletes, ...] = ()

    def made(self, _: TableMetadata, attempt: Attempt) -> NewFiles:
        """Raises `ConflictError` where a vector has other positions than were read."""
        if not self._added:
            self._added = self._written(attempt)
        gone = tuple(entry for merge in self._merges for entry in merge.entries)
        locations = tuple(sorted({one.file.file_path for one in self._added}))
        return NewFiles(locations=locations, entries=gone, deletes=self._added)

    def _written(self, attempt: Attempt) -> tuple[AddedDeletes, ...]:
        storage = attempt.reader.storage
        vectors = []
        for merge in self._merges:
            positions = [read_deletion_vector(storage, one.planned.data_file) for one in merge.entries]
            union = BitMap64.union(*positions)
            if len(union) != merge.cardinality:
                raise ConflictError(f"the vectors of {merge.data_file!r} have {counted(len(union), 'positions')} now")
            file = merge.entries[0].planned.data_file
            target = VectorTarget(location=merge.data_file, spec_id=file.spec_id, partition=file.partition)
            vectors.append((target, union))
        metadata = self._table.metadata
        # Another name each time: one that was written may be there although no answer came.
        name = f"{self._run_id}-{self._table.runtime.new_uuid()}-deletes.puffin"
        location = data_layout(metadata.location, metadata.properties).location(name)
        files = write_deletion_vectors(storage, location, vectors)
        attempt.delete_file_written(location)
        numbers = [max(sequence_number(one.planned) for one in merge.entries) for merge in self._merges]
        return tuple(AddedDeletes(file, number) for file, number in zip(files, numbers, strict=True))
