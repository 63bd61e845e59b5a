"""What looks wrong by keys alone, to be read again: files that are live twice, missing, of another size or of two kinds.

All entries against each other and against a listing, by keys: on the driver for few files, in Spark tasks for many.

On the driver a listing leaves behind only what entries name, so that it may be of any length. In tasks entries and listed files
are sent to parts by their keys, and vectors to those of their data files too.

Delete files that reach no live data file (214, 235), at the heads of branches, by the rule that commits go by.

The entries of what looks wrong, read again with all that is to be told of them, and judged: here, or in Spark tasks.

Statistics files that metadata names (304): whether they are there, with the size that it says.

The entries of all manifests of a table, and the files that they name.
"""

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence

import msgspec
import numpy as np
import pyarrow as pa
from msgspec.structs import replace
from numpy.typing import NDArray
from pyroaring import BitMap

from icekeep.catalog.base import Table
from icekeep.commit.dangling import Dangling, dangling
from icekeep.commit.filtering import EntryReader, without_history
from icekeep.commit.live_files import live_among
from icekeep.commit.manifests import ManifestReader
from icekeep.errors import InvalidTableError, NotFoundError, UnsupportedError, UsageError, first_line
from icekeep.formats.deletes.read import hold_own_path
from icekeep.maintenance.check.faults import Fault, FaultId, Tally
from icekeep.maintenance.check.lists import CheckedTable, Listed
from icekeep.maintenance.check.reading import (
    DELETE_COLUMNS,
    MOVED_ON,
    VECTOR,
    EntryChecks,
    Meeting,
    Numbered,
    Rows,
    Sketch,
    batches,
    chunks,
    decode_task,
    keys_of,
    listed_batches,
    listing_shares,
    look_up,
    sketch_of,
)
from icekeep.maintenance.delete.reachable import among
from icekeep.planning.commit_readers import SparkManifestReader
from icekeep.planning.entries import DecodeTask, entries_count, threads_count
from icekeep.planning.spark.session import SparkSource, limits_of, started
from icekeep.planning.spark.tasks import all_results, run_exchange, run_tasks
from icekeep.planning.spark.workers import LISTED_FILES, MANIFEST_BYTES, SHUFFLED_KEYS, tasks_count
from icekeep.spec.collections import balanced, each_once, packed
from icekeep.spec.manifests.structs import DataFile, ManifestContent, ManifestEntry, ManifestFile
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.reach import is_deletion_vector, path_digest
from icekeep.spec.snapshots import MAIN, PartitionStatisticsFile, Snapshot, StatisticsFile
from icekeep.storage.base import LOCAL_REQUESTS_AT_ONCE, REQUESTS_AT_ONCE, ListingShare, Storage
from icekeep.storage.location_keys import Keys
from icekeep.storage.locations import parse_location

_NONE: Keys = np.empty(0, np.int64)


class Suspects(msgspec.Struct, frozen=True, kw_only=True):
    """Keys, ascending and each once; eight bytes a file that looks wrong.

    Attributes:
        files: of files whose entries are looked at.
        unseen: those of them that a listing does not have, or has with another size.
        targets: of data files whose vectors are looked at.
        manifests: the numbers of the manifests that have any of these.
        rows_count: how many entries that are.
    """

    files: Keys = msgspec.field(default_factory=lambda: _NONE)
    unseen: Keys = msgspec.field(default_factory=lambda: _NONE)
    targets: Keys = msgspec.field(default_factory=lambda: _NONE)
    manifests: BitMap = msgspec.field(default_factory=BitMap)
    rows_count: int = 0

    @classmethod
    def joined(cls, several: Iterable["Suspects"]) -> "Suspects":
        """What was found in parts."""
        held = [*several]
        return cls(
            files=_united(*(one.files for one in held)),
            unseen=_united(*(one.unseen for one in held)),
            targets=_united(*(one.targets for one in held)),
            manifests=BitMap.union(BitMap(), *(one.manifests for one in held)),
            rows_count=sum(one.rows_count for one in held),
        )


def suspects_of(
    sketch: Sketch, by_target: Rows, listed: Keys | None, meeting: Meeting, is_delete: NDArray[np.bool_]
) -> Suspects:
    """Hold entries against each other and against a listing.

    Args:
        sketch: all entries of some files.
        by_target: all vectors of some data files, rows of `VECTOR`.
        listed: `Sketch.marks` of what storage has, ascending; `None` where nobody has looked.
        is_delete: by number of a manifest whether it tracks delete files.
    """
    keys, numbers, vectors = sketch.keys, sketch.manifests, sketch.vectors
    unseen = np.unique(keys if listed is None else keys[~among(sketch.marks, listed)])
    of_deletes = is_delete[numbers]
    both = np.unique(keys[among(keys, np.unique(keys[of_deletes])) & ~of_deletes])
    doubled = doubled_keys(sketch.files["key"], sketch.files["manifest"], meeting)
    doubled_vectors = among(vectors["id"], doubled_keys(vectors["id"], vectors["manifest"], meeting))
    files = _united(unseen, doubled, vectors["key"][doubled_vectors], both)
    by_target = by_target[by_target["ref"] != 0]
    targets = doubled_keys(by_target["ref"], by_target["manifest"], meeting)
    is_file, is_target = among(keys, files), among(by_target["ref"], targets)
    return Suspects(
        files=files,
        unseen=unseen,
        targets=targets,
        manifests=BitMap(np.unique(numbers[is_file]).tolist())
        | BitMap(np.unique(by_target["manifest"][is_target]).tolist()),
        rows_count=int(np.count_nonzero(is_file)) + int(np.count_nonzero(is_target)),
    )


def doubled_keys(keys: Keys, manifests: NDArray[np.int32], meeting: Meeting) -> Keys:
    """Keys that one snapshot has twice: in one manifest, or in two that meet."""
    order = np.lexsort((manifests, keys))
    keys, manifests = keys[order], manifests[order]
    alike = keys[1:] == keys[:-1]
    in_one = alike & (manifests[1:] == manifests[:-1])
    # Only what has a neighbour; after a rewrite of manifests that is each file of the table.
    several = np.zeros(len(keys), np.bool_)
    several[1:] |= alike
    several[:-1] |= alike
    return _united(np.unique(keys[1:][in_one]), _that_meet(keys[several], manifests[several], meeting))


def _that_meet(keys: Keys, manifests: NDArray[np.int32], meeting: Meeting) -> Keys:
    """Of keys in order, each several times, those with manifests that meet. Files mostly move from manifest to manifest together,
    so each set of manifests is asked once: it is told by a sum of random numbers, one for each manifest.
    """
    if not len(keys):
        return _NONE
    starts = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]]))
    ends = np.append(starts[1:], len(keys))
    lots = np.random.default_rng(0).integers(0, 1 << 63, len(meeting.snapshots_of), np.int64).view(np.uint64)
    sums = np.add.reduceat(lots[manifests], starts)
    _, first, places = np.unique(sums, return_index=True, return_inverse=True)
    meets = [not meeting.are_apart(manifests[starts[one] : ends[one]].tolist()) for one in first.tolist()]
    return keys[starts[np.array(meets, np.bool_)[places]]]


def _united(*several: Keys) -> Keys:
    return np.unique(np.concatenate([_NONE, *several]))


_SHARES_A_SLOT = 8
_PART_ROWS = 1_000_000
_SENT_ROWS = 200_000
"""Files of a listing that a task divides among parts at a time."""


class Comparing(msgspec.Struct, frozen=True):
    """What all tasks share."""

    decode: DecodeTask
    storage: Storage
    meeting: Meeting
    is_delete: NDArray[np.bool_]
    parts: int = 1


class _Sending(msgspec.Struct, frozen=True):
    """What one task sends: entries of manifests, or files of a listing."""

    manifests: tuple[Numbered, ...] = ()
    shares: tuple[ListingShare, ...] = ()


class _Sent(msgspec.Struct, frozen=True):
    """What a part is sent: entries whose files are its own, vectors whose data files are, marks of a listing, and gaps."""

    entries: Sketch | None = None
    targets: Rows | None = None
    listed: Keys | None = None
    tally: Tally | None = None


def is_for_tasks(table: Table, manifests: Sequence[Numbered], spark: SparkSource) -> bool:
    """Whether there are more entries, or files to be listed, than the driver takes."""
    limits = limits_of(spark)
    count = entries_count(manifest for _, manifest in manifests)
    return count > limits.reachable_entries_count or count > limits.listed_files_count


def compare(
    table: Table, manifests: Sequence[Numbered], meeting: Meeting, spark: SparkSource, tally: Tally, *, in_tasks: bool
) -> Suspects:
    """What looks wrong with the files of some manifests, which are all that may have live ones.

    Args:
        tally: is told of what cannot be read.

    Raises:
        TryAgainError: the store or Spark is out of reach.
    """
    length = 1 + max((number for number, _ in manifests), default=0)
    is_delete = np.zeros(length, np.bool_)
    is_delete[[number for number, manifest in manifests if manifest.content is ManifestContent.DELETES]] = True
    decode = decode_task(table, (manifest for _, manifest in manifests), DELETE_COLUMNS)
    shared = Comparing(decode, table.storage, meeting, is_delete)
    if in_tasks:
        return _in_tasks(table, manifests, shared, spark, tally)
    return _here(table, manifests, shared, limits_of(spark).looked_up_files_count, tally)


def _here(table: Table, manifests: Sequence[Numbered], shared: Comparing, few: int, tally: Tally) -> Suspects:
    sketch = _read_here(manifests, shared.decode, tally)
    marks, listed = np.unique(sketch.marks), None
    if len(marks) > few:
        is_local = parse_location(table.metadata.location).scheme == "file"
        threads = LOCAL_REQUESTS_AT_ONCE if is_local else REQUESTS_AT_ONCE
        shares = listing_shares(table, threads)
        answers = all_results(run_tasks(None, shares, _listed, (table.storage, marks), threads=threads))
        listed = np.unique(np.concatenate([np.empty(0, np.int64), *answers]))
    # A part at a time, as in tasks: what is worked out takes several times as much as what is held.
    parts = 1 + (len(sketch.files) + len(sketch.vectors)) // _PART_ROWS
    return Suspects.joined(_suspects_of_part(part, parts, sketch, listed, shared) for part in range(parts))


def _suspects_of_part(part: int, parts: int, sketch: Sketch, listed: Keys | None, shared: Comparing) -> Suspects:
    of_files, of_vectors, of_targets = (
        part_of(keys, parts) == part for keys in (sketch.files["key"], sketch.vectors["key"], sketch.vectors["ref"])
    )
    some = Sketch(sketch.files[of_files], sketch.vectors[of_vectors])
    return suspects_of(some, sketch.vectors[of_targets], listed, shared.meeting, shared.is_delete)


def _read_here(manifests: Sequence[Numbered], decode: DecodeTask, tally: Tally) -> Sketch:
    threads = threads_count(manifest.manifest_path for _, manifest in manifests)
    read = all_results(run_tasks(None, chunks(manifests), _sketched, decode, threads=threads))
    for _, gaps in read:
        tally.merge(gaps)
    return Sketch.joined(one for one, _ in read)


def _sketched(some: Sequence[Numbered], decode: DecodeTask) -> tuple[Sketch, Tally]:
    tally = Tally()
    return sketch_of(some, decode, tally), tally


def _listed(share: ListingShare, shared: tuple[Storage, Keys]) -> Keys:
    """The marks of a share that entries name, which ascend."""
    storage, marks = shared
    found = [np.empty(0, np.int64)]
    for _, some in listed_batches(share, storage):
        found.append(some[among(some, marks)])
    return np.concatenate(found)


def _in_tasks(
    table: Table, manifests: Sequence[Numbered], shared: Comparing, spark: SparkSource, tally: Tally
) -> Suspects:
    session = started(spark)
    files_count = max(entries_count(manifest for _, manifest in manifests), 2 * limits_of(spark).listed_files_count)
    tasks = tasks_count(session, sum(manifest.manifest_length for _, manifest in manifests), MANIFEST_BYTES)
    bins = balanced(manifests, lambda one: one[1].manifest_length, tasks)
    lists = tasks_count(session, files_count, LISTED_FILES, a_slot=_SHARES_A_SLOT)
    sendings = [
        *(_Sending(manifests=tuple(some)) for some in bins),
        *(_Sending(shares=tuple(some)) for some in balanced(listing_shares(table, lists), each_once, lists)),
    ]
    rows_count = entries_count(manifest for _, manifest in manifests) + files_count
    parts = tasks_count(session, rows_count, SHUFFLED_KEYS, a_slot=2)
    shared = msgspec.structs.replace(shared, parts=parts)
    ran = run_exchange(session, sendings, _send, parts, _received, shared, step="holding files against the store")
    found: list[Suspects] = []
    for suspects, gaps in all_results(ran):
        tally.merge(gaps)
        found.append(suspects)
    return Suspects.joined(found)


def part_of(keys: Keys, parts: int) -> NDArray[np.int64]:
    """Which part the files of some keys go to."""
    numbers: NDArray[np.int64] = (keys.view(np.uint64) % np.uint64(parts)).astype(np.int64)
    return numbers


def _send(sending: _Sending, shared: Comparing) -> Iterator[tuple[int, _Sent]]:
    tally = Tally()
    for some in chunks(sending.manifests):
        sketch = sketch_of(some, shared.decode, tally)
        of_files, of_vectors = (part_of(rows["key"], shared.parts) for rows in (sketch.files, sketch.vectors))
        for part in np.union1d(of_files, of_vectors).tolist():
            yield part, _Sent(entries=Sketch(sketch.files[of_files == part], sketch.vectors[of_vectors == part]))
        of_targets = part_of(sketch.vectors["ref"], shared.parts)
        for part in np.unique(of_targets).tolist():
            yield part, _Sent(targets=sketch.vectors[of_targets == part])
    listed = (one for share in sending.shares for one in listed_batches(share, shared.storage))
    for several in packed(listed, (lambda one: len(one[0]), _SENT_ROWS)):
        keys, marks = (np.concatenate(arrays) for arrays in zip(*several, strict=True))
        of_marks = part_of(keys, shared.parts)
        for part in np.unique(of_marks).tolist():
            yield part, _Sent(listed=marks[of_marks == part])
    yield 0, _Sent(tally=tally)


def _received(part: int, sent: Iterable[tuple[int, _Sent]], shared: Comparing) -> tuple[Suspects, Tally]:
    entries: list[Sketch] = []
    listed, targets, tally = [np.empty(0, np.int64)], [np.empty(0, VECTOR)], Tally()
    for _, one in sent:
        if one.entries is not None:
            entries.append(one.entries)
        if one.targets is not None:
            targets.append(one.targets)
        if one.listed is not None:
            listed.append(one.listed)
        if one.tally is not None:
            tally.merge(one.tally)
    found = suspects_of(
        Sketch.joined(entries),
        np.concatenate(targets),
        np.unique(np.concatenate(listed)),
        shared.meeting,
        shared.is_delete,
    )
    return found, tally


def check_dangling(subject: CheckedTable, listed: Listed) -> None:
    """Tell the delete files of the heads that are looked at which reach nothing there.

    Raises:
        TryAgainError: the store or Spark is out of reach.
    """
    metadata = subject.table.metadata
    reader = SparkManifestReader(subject.spark, subject.table.storage)
    looked_at = {snapshot.snapshot_id: snapshot for snapshot in subject.snapshots}
    for snapshot_id, names in _heads(metadata).items():
        if snapshot_id not in looked_at:
            continue
        try:
            subject.tally.merge(_found(subject, listed, looked_at[snapshot_id], names, reader))
        except (InvalidTableError, UnsupportedError, UsageError) as error:
            subject.tally.gap(f"which delete files of {_said(names)} reach nothing", first_line(error))


def _heads(metadata: TableMetadata) -> dict[int, tuple[str, ...]]:
    """The heads of branches, with the names of these."""
    heads = {name: ref.snapshot_id for name, ref in metadata.refs.items() if ref.is_branch}
    if metadata.current_snapshot_id is not None:
        heads.setdefault(MAIN, metadata.current_snapshot_id)
    return {head: tuple(sorted(n for n in heads if heads[n] == head)) for head in dict.fromkeys(heads.values())}


def _found(
    subject: CheckedTable, listed: Listed, head: Snapshot, names: tuple[str, ...], reader: ManifestReader
) -> Tally:
    tally = Tally(subject.tally.whole)
    members = {listed.manifests[number].manifest_path for number in listed.members.get(head.snapshot_id, ())}
    live = live_among(listed.manifests[number] for number in listed.members.get(head.snapshot_id, ()))
    if not live.deletes:
        return tally
    if any(manifest.manifest_path not in members for manifest in reader.manifests(head)):
        # The data files that a delete file reaches may be there.
        tally.gap(f"which delete files of {_said(names)} reach nothing", "a manifest of it cannot be read")
        return tally
    base = subject.table.metadata
    found = dangling(live.deletes, live.data, (), base, reader, proof=hold_own_path)
    if found is not None:
        work = _FaultsOf(without_history(base), found, head.snapshot_id, names, tally.whole)
        for some in reader.gathered(live.deletes, work):
            tally.merge(some)
    return tally


class _FaultsOf(msgspec.Struct, frozen=True):
    """The dangling delete files of a manifest."""

    base: TableMetadata
    dangling: Dangling
    snapshot_id: int
    branches: tuple[str, ...]
    whole: frozenset[int]

    @property
    def key(self) -> Hashable:
        return "faults", self.dangling.numbers, self.snapshot_id

    def run(self, manifest: ManifestFile, reader: EntryReader) -> Tally:
        tally = Tally(self.whole)
        for entry in reader.entries(manifest, self.base):
            if entry.is_live and self.dangling.entry(entry):
                tally.add(self._fault(entry, manifest))
        return tally

    def _fault(self, entry: ManifestEntry, manifest: ManifestFile) -> Fault:
        file = entry.data_file
        number, what = FaultId.DANGLING_DELETE, "it"
        if is_deletion_vector(file):
            what = f"its vector at {file.content_offset}"
            number = FaultId.DANGLING_DELETE if self._data_number(file) is None else FaultId.VECTOR_TOO_OLD
        detail = f"{what} reaches no data file that is live in {_said(self.branches)}"
        if number == FaultId.VECTOR_TOO_OLD:
            detail = (
                f"{what} has sequence number {entry.sequence_number}, and its data file {file.referenced_data_file!r}, which is "
                f"live in {_said(self.branches)}, the newer one {self._data_number(file)}"
            )
        return Fault(
            number=number,
            where=file.file_path,
            detail=detail,
            snapshot_id=self.snapshot_id,
            facts={**_told(entry, manifest), "refs": [*self.branches], "snapshots_count": 1},
        )

    def _data_number(self, vector: DataFile) -> int | None:
        """The data sequence number of the data file that a vector is for; `None` where it is not live."""
        return self.dangling.least.paths.get(path_digest(str(vector.referenced_data_file)))


def _told(entry: ManifestEntry, manifest: ManifestFile) -> Mapping[str, object]:
    file = entry.data_file
    return {
        "manifest": manifest.manifest_path,
        "file_path": file.file_path,
        "content": int(file.content),
        "content_offset": file.content_offset if is_deletion_vector(file) else None,
        "referenced_data_file": file.referenced_data_file,
        "spec_id": file.spec_id,
        "partition": [None if value is None else str(value) for value in file.partition],
        "sequence_number": entry.sequence_number,
        "record_count": file.record_count,
    }


def _said(names: tuple[str, ...]) -> str:
    return f"branch {names[0]!r}" if len(names) == 1 else f"branches {', '.join(map(repr, names))}"


TOLD = (
    "spec_id",
    "partition",
    "snapshot_id",
    "sequence_number",
    "content",
    "file_path",
    "file_format",
    "record_count",
    "file_size_in_bytes",
    "key_metadata",
    "referenced_data_file",
    "content_offset",
    "content_size_in_bytes",
)
"""Columns of entries that are told of faults, or say what is one."""


class _Looking(msgspec.Struct, frozen=True):
    """What all tasks share."""

    decode: DecodeTask
    files: Keys
    targets: Keys
    judge: EntryChecks
    parts: int = 1


class _Found(msgspec.Struct, frozen=True):
    """Entries with the numbers of their manifests; `of_targets` are vectors, for their data files."""

    of_files: pa.Table | None = None
    of_targets: pa.Table | None = None
    tally: Tally | None = None


def look_closer(
    table: Table,
    manifests: Sequence[Numbered],
    suspects: Suspects,
    judge: EntryChecks,
    spark: SparkSource,
    *,
    in_tasks: bool,
) -> Tally:
    """The faults among the entries that look wrong, and what cannot be read of them.

    Raises:
        TryAgainError: the store or Spark is out of reach.
    """
    chosen = [one for one in manifests if one[0] in suspects.manifests]
    decode = decode_task(table, (manifest for _, manifest in chosen), TOLD)
    shared = _Looking(decode, suspects.files, suspects.targets, judge)
    if not in_tasks:
        threads = threads_count(manifest.manifest_path for _, manifest in chosen)
        read = all_results(run_tasks(None, chunks(chosen), _look, shared, threads=threads))
        return _judged((one for some in read for one in some), judge)
    session = started(spark)
    tasks = tasks_count(session, sum(manifest.manifest_length for _, manifest in chosen), MANIFEST_BYTES)
    bins = balanced(chosen, lambda one: one[1].manifest_length, tasks)
    parts = tasks_count(session, suspects.rows_count, LISTED_FILES, a_slot=2)
    shared = msgspec.structs.replace(shared, parts=parts)
    total = Tally(judge.whole)
    ran = run_exchange(session, bins, _looking_send, parts, _looking_received, shared, step="looking closer at files")
    for tally in all_results(ran):
        total.merge(tally)
    return total


def _look(some: Sequence[Numbered], shared: _Looking) -> list[_Found]:
    return [one for _, one in _looking_send(some, shared)]


def _looking_send(manifests: Sequence[Numbered], shared: _Looking) -> Iterator[tuple[int, _Found]]:
    tally = Tally()
    for some in chunks(manifests):
        for batch, numbers in batches(some, shared.decode, tally):
            rows = batch.append_column("manifest", pa.array(numbers))
            for part, chosen in _chosen(rows, keys_of(rows["file_path"])[0], shared.files, shared.parts):
                yield part, _Found(of_files=chosen)
            targets = keys_of(rows["referenced_data_file"])[0]
            for part, chosen in _chosen(rows, targets, shared.targets, shared.parts):
                yield part, _Found(of_targets=chosen)
    yield 0, _Found(tally=tally)


def _chosen(rows: pa.RecordBatch, keys: Keys, wanted: Keys, parts: int) -> Iterator[tuple[int, pa.Table]]:
    """The rows whose keys are wanted, for the parts that they go to."""
    indices = np.flatnonzero(among(keys, wanted))
    if not len(indices):
        return
    numbers = part_of(keys[indices], parts)
    # Taken, so that what is sent of a batch is not all of it.
    table = pa.Table.from_batches([rows]).append_column("key", pa.array(keys))
    for part in np.unique(numbers).tolist():
        yield part, table.take(pa.array(indices[numbers == part]))


def _looking_received(part: int, sent: Iterable[tuple[int, _Found]], shared: _Looking) -> Tally:
    return _judged((one for _, one in sent), shared.judge)


def _judged(found: Iterable[_Found], judge: EntryChecks) -> Tally:
    of_files: list[pa.Table] = []
    of_targets: list[pa.Table] = []
    tally = Tally(judge.whole)
    for one in found:
        if one.of_files is not None:
            of_files.append(one.of_files)
        if one.of_targets is not None:
            of_targets.append(one.of_targets)
        if one.tally is not None:
            tally.merge(one.tally)
    judge.files([row for table in of_files for row in table.to_pylist()], tally)
    judge.targets([row for table in of_targets for row in table.to_pylist()], tally)
    return tally


_Named = tuple[str, StatisticsFile | PartitionStatisticsFile]


def check_statistics(subject: CheckedTable) -> None:
    """Look up the statistics of the snapshots that are looked at, and those of snapshots that are not there.

    Raises:
        TryAgainError: the store or the catalog is out of reach.
    """
    metadata, tally = subject.table.metadata, subject.tally
    others = {one.snapshot_id for one in metadata.snapshots} - {one.snapshot_id for one in subject.snapshots}
    named = [(kind, file) for kind, file in _named(metadata) if file.snapshot_id not in others]
    infos = look_up([file.statistics_path for _, file in named], subject.table.storage)
    is_missing = any(info is None for info in infos)
    still = {file.statistics_path for _, file in _named_now(subject.table)} if is_missing else set()
    for (kind, file), info in zip(named, infos, strict=True):
        path, recorded = file.statistics_path, file.file_size_in_bytes
        if isinstance(info, str):
            tally.gap(f"statistics file {path!r}", info)
        elif info is None and path not in still:
            tally.gap(f"statistics file {path!r}", MOVED_ON)
        elif info is None or info.size_bytes != recorded:
            found = None if info is None else info.size_bytes
            detail = (
                "there is no such file" if found is None else f"it has {found} bytes where metadata says {recorded}"
            )
            facts = {"kind": kind, "file_path": path, "recorded": recorded, "found": found}
            tally.add(
                Fault(
                    number=FaultId.STATISTICS_FILE_MISSING,
                    where=path,
                    detail=detail,
                    snapshot_id=file.snapshot_id,
                    facts={**facts, "snapshots_count": 1},
                )
            )


def _named(metadata: TableMetadata) -> list[_Named]:
    """All statistics files, each with the name of the list that it is in."""
    statistics: list[_Named] = [("statistics", file) for file in metadata.statistics]
    return [*statistics, *(("partition-statistics", file) for file in metadata.partition_statistics)]


def _named_now(table: Table) -> list[_Named]:
    try:
        return _named(table.refresh().metadata)
    except NotFoundError:
        return []


_OF_STORAGE = (FaultId.DATA_FILE_MISSING, FaultId.FILE_SIZE_WRONG, FaultId.DELETE_FILE_MISSING)


def check_entries(subject: CheckedTable, listed: Listed) -> None:
    """Tell files that are live twice, missing, of another size or of two kinds, and delete files that reach nothing.

    Raises:
        TryAgainError: the store, the catalog or Spark is out of reach.
    """
    check_files(subject, listed)
    check_dangling(subject, listed)
    check_statistics(subject)


def check_files(subject: CheckedTable, listed: Listed) -> None:
    """Tell files that are live twice, missing, of another size or of two kinds; raises as `check_entries`."""
    table, spark, tally = subject.table, subject.spark, subject.tally
    meeting = Meeting.of(subject.snapshots, listed)
    manifests = [
        (number, manifest)
        for number, manifest in enumerate(listed.manifests)
        if manifest.may_have_live_files and meeting.snapshots_of[number]
    ]
    if not manifests:
        return
    in_tasks = is_for_tasks(table, manifests, spark)
    suspects = compare(table, manifests, meeting, spark, tally, in_tasks=in_tasks)
    if not suspects.rows_count:
        return
    judge = EntryChecks(
        meeting=meeting,
        manifest_paths=tuple(manifest.manifest_path for manifest in listed.manifests),
        partitions={
            number: table.metadata.partition_type(number)
            for number in {manifest.partition_spec_id for _, manifest in manifests}
        },
        storage=table.storage,
        unseen=suspects.unseen,
        gone=BitMap(),
        whole=tally.whole,
    )
    in_tasks = in_tasks or suspects.rows_count > limits_of(spark).entries_count
    while True:
        found = look_closer(table, manifests, suspects, judge, spark, in_tasks=in_tasks)
        # A file goes after the commit that expired its snapshots: what was missing is held against the table of now.
        gone = _gone(subject, meeting) if any(number in found.counts for number in _OF_STORAGE) else judge.gone
        if gone <= judge.gone:
            break
        judge = replace(judge, gone=gone | judge.gone)
    tally.merge(found)


def _gone(subject: CheckedTable, meeting: Meeting) -> BitMap:
    """The positions of snapshots that were expired since the table was loaded."""
    if not subject.is_current:
        return BitMap()
    try:
        now = {snapshot.snapshot_id for snapshot in subject.table.refresh().metadata.snapshots}
    except NotFoundError:
        now = set()
    return BitMap(position for position, one in enumerate(meeting.snapshot_ids) if one not in now)
