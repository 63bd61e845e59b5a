"""The entries of all manifests of a table, held against each other and against the store.

First by keys alone, 20 bytes a file: which files are live twice, missing, of another size, or data and deletes at once. On the
driver for few files, where a listing of the store leaves behind only what entries name; in Spark tasks for many, where entries
and listed files are sent to parts by their keys, and vectors to those of their data files too. Then the entries of what looks
wrong are read again, with all that is reported of them.

Beside these, delete files that reach nothing at the heads of branches, and the statistics files that metadata names.
"""

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import islice
from typing import Any, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import replace
from numpy.typing import NDArray
from pyroaring import BitMap

from icekeep.catalog.base import Table
from icekeep.commit.dangling import Dangling, dangling
from icekeep.commit.live_files import live_among
from icekeep.commit.manifests import ManifestReader, without_history
from icekeep.errors import InvalidTableError, NotFoundError, UnsupportedError, UsageError, and_more, first_line
from icekeep.formats.deletes.read import hold_own_path
from icekeep.maintenance.check.by_file import (
    FileJoin,
    Membership,
    Numbered,
    Row,
    batches,
    bins_of,
    chunks,
    count_of,
    decode_task,
    is_vector,
    keys_of,
    part_of,
    threads_of,
    vector_offset,
)
from icekeep.maintenance.check.faults import Fault, FaultId, Tally
from icekeep.maintenance.check.lists import MOVED_ON, CheckedTable, Listed, branch_heads, look_up
from icekeep.maintenance.delete.locations import compared, table_locations
from icekeep.maintenance.delete.reachable import among
from icekeep.planning.commit_readers import SparkManifestReader
from icekeep.planning.entries import DecodeTask
from icekeep.planning.spark.session import SparkSource, limits_of, started
from icekeep.planning.spark.tasks import all_results, run_exchange, run_tasks
from icekeep.planning.spark.workers import LISTED_FILES, SHUFFLED_KEYS, tasks_count
from icekeep.spec.collections import balanced, each_once, packed
from icekeep.spec.manifests.structs import FileContent, ManifestContent, ManifestEntry, ManifestFile
from icekeep.spec.manifests.write import PartitionCodecs
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.properties import metadata_directory
from icekeep.spec.reach import is_deletion_vector, path_digest
from icekeep.spec.snapshots import PartitionStatisticsFile, StatisticsFile
from icekeep.spec.types import StructType
from icekeep.storage.base import FileInfo, ListingShare, Storage
from icekeep.storage.location_keys import Keys
from icekeep.storage.locations import requests_at_once

Rows: TypeAlias = NDArray[Any]

FILE = np.dtype([("key", np.int64), ("size", np.int64), ("manifest", np.int32)])
"""A data file, or a delete file that is no vector: the key of its location, its bytes, and the number of its manifest."""

VECTOR = np.dtype([*FILE.descr, ("id", np.int64), ("ref", np.int64)])
"""A deletion vector: as `FILE` has it of its Puffin file, a key of that and its offset, and the key of its data file or 0."""

_DATA_COLUMNS = ("file_path", "file_size_in_bytes")
_DELETE_COLUMNS = (*_DATA_COLUMNS, "content", "file_format", "content_offset", "referenced_data_file")
_REPORTED_COLUMNS = (
    "spec_id", "partition", "snapshot_id", "sequence_number", "content", "file_path", "file_format", "record_count",
    "file_size_in_bytes", "key_metadata", "referenced_data_file", "content_offset", "content_size_in_bytes",
)  # fmt: skip
"""Columns of entries that faults report, or are found by."""

_FACTOR = np.uint64(0xD6E8FEB86659FD93)
_NONE: Keys = np.empty(0, np.int64)
_LISTED_AT_ONCE = 10_000
_SHARES_A_SLOT = 8
_PART_ROWS = 1_000_000
_SENT_ROWS = 200_000
"""Files of a listing that a task divides among parts at a time."""

_MAX_ENTRIES = 1_000
"""How many entries of one file are reported, at most."""

_OF_STORAGE = (FaultId.DATA_FILE_MISSING, FaultId.FILE_SIZE_WRONG, FaultId.DELETE_FILE_MISSING)


def check_entries(subject: CheckedTable, listed: Listed) -> None:
    """Report files that are live twice, missing, of another size or of two kinds, and delete files that reach nothing.

    Raises:
        TryAgainError: the store, the catalog or Spark is out of reach.
    """
    check_files(subject, listed)
    check_dangling(subject, listed)
    check_statistics(subject)


def check_files(subject: CheckedTable, listed: Listed) -> None:
    """Report files that are live twice, missing, of another size or of two kinds; raises as `check_entries`."""
    table, spark, tally = subject.table, subject.spark, subject.tally
    membership = Membership.of(subject.snapshots, listed)
    manifests = membership.live(listed)
    if not manifests:
        return
    limits, count = limits_of(spark), count_of(manifests)
    in_tasks = count > min(limits.reachable_entries_count, limits.listed_files_count)
    candidates = compare(table, manifests, membership, spark, tally, in_tasks=in_tasks)
    if not candidates.rows_count:
        return
    in_tasks = in_tasks or candidates.rows_count > limits.entries_count
    specs = {manifest.partition_spec_id for _, manifest in manifests}
    checker = EntryChecker(
        membership=membership,
        partitions={number: table.metadata.partition_type(number) for number in specs},
        storage=table.storage,
        unseen=candidates.unseen,
        gone=BitMap(),
        whole=tally.whole,
    )
    chosen = [one for one in manifests if one[0] in candidates.manifests]
    while True:
        found = _checked_again(table, chosen, candidates, checker, spark, in_tasks=in_tasks)
        # A file goes after the commit that expired its snapshots: missing files are compared with the table as it is now.
        gone = checker.gone
        if any(number in found.counts for number in _OF_STORAGE):
            gone = gone | _expired(subject, membership)
        if gone == checker.gone:
            break
        checker = replace(checker, gone=gone)
    tally.merge(found)


def _expired(subject: CheckedTable, membership: Membership) -> BitMap:
    """The positions of snapshots that were expired since the table was loaded."""
    if not subject.is_current:
        return BitMap()
    try:
        now = {snapshot.snapshot_id for snapshot in subject.table.refresh().metadata.snapshots}
    except NotFoundError:
        now = set()
    return BitMap(position for position, one in enumerate(membership.snapshot_ids) if one not in now)


class EntryKeys(msgspec.Struct, frozen=True):
    """Live entries; rows of `FILE`, and of `VECTOR`."""

    files: Rows
    vectors: Rows

    @classmethod
    def joined(cls, several: Iterable["EntryKeys"]) -> "EntryKeys":
        """The entries of all."""
        held = [*several]
        files = [np.empty(0, FILE), *(one.files for one in held)]
        return cls(np.concatenate(files), np.concatenate([np.empty(0, VECTOR), *(one.vectors for one in held)]))

    def column(self, name: str) -> NDArray[Any]:
        """A column of all files, those of vectors last."""
        return np.concatenate([self.files[name], self.vectors[name]])

    @property
    def marks(self) -> Keys:
        """Keys of files with their sizes, in the same order: what a listing of the store must have."""
        return paired(self.column("key"), self.column("size"))


def paired(keys: Keys, numbers: Keys) -> Keys:
    """A key of each pair of a key and a number; of one key with different numbers they always differ."""
    mixed: Keys = (keys.astype(np.uint64) * _FACTOR + numbers.astype(np.uint64)).view(np.int64)
    return mixed


def _entry_keys(some: Sequence[Numbered], task: DecodeTask, gaps: Tally) -> EntryKeys:
    """The live entries of a chunk of manifests of one content; a path that is no location is a gap."""
    if some[0][1].content is ManifestContent.DATA:
        task = replace(task, columns=frozenset({"manifest_path", *_DATA_COLUMNS}))
    found = []
    for batch, numbers in batches(some, task, gaps):
        keys, there = keys_of(batch["file_path"])
        if not there.all():
            for path in batch["file_path"].filter(pa.array(~there)).to_pylist():
                gaps.gap(f"file {path!r}", "its path is no location")
            batch, keys, numbers = batch.filter(pa.array(there)), keys[there], numbers[there]
        rows = np.empty(len(keys), FILE)
        rows["key"], rows["size"], rows["manifest"] = keys, batch["file_size_in_bytes"].to_numpy(), numbers
        if "content" not in batch.schema.names:
            found.append(EntryKeys(rows, np.empty(0, VECTOR)))
            continue
        is_puffin = pc.equal(pc.utf8_lower(batch["file_format"]), "puffin")
        is_position = pc.equal(batch["content"], int(FileContent.POSITION_DELETES))
        of_vectors = pc.and_(is_puffin, is_position).to_numpy(zero_copy_only=False)
        chosen = batch.filter(pa.array(of_vectors))
        vectors = np.empty(chosen.num_rows, VECTOR)
        for name in FILE.names or ():
            vectors[name] = rows[name][of_vectors]
        vectors["id"] = paired(vectors["key"], pc.fill_null(chosen["content_offset"], -1).to_numpy())
        vectors["ref"] = keys_of(chosen["referenced_data_file"])[0]
        found.append(EntryKeys(rows[~of_vectors], vectors))
    return EntryKeys.joined(found)


class Candidates(msgspec.Struct, frozen=True, kw_only=True):
    """What looks wrong: keys, ascending and each once, eight bytes a file.

    Attributes:
        files: of files whose entries are looked at.
        unseen: those of them that a listing does not have, or has with another size.
        targets: of data files whose vectors are looked at.
        manifests: the numbers of the manifests that have any of these.
        rows_count: how many entries that are.
    """

    files: Keys
    unseen: Keys
    targets: Keys
    manifests: BitMap
    rows_count: int


def _joined_candidates(held: Sequence[Candidates]) -> Candidates:
    return Candidates(
        files=_united(*(one.files for one in held)),
        unseen=_united(*(one.unseen for one in held)),
        targets=_united(*(one.targets for one in held)),
        manifests=BitMap.union(BitMap(), *(one.manifests for one in held)),
        rows_count=sum(one.rows_count for one in held),
    )


def candidates_among(
    entries: EntryKeys, by_target: Rows, listed: Keys | None, membership: Membership, is_delete: NDArray[np.bool_]
) -> Candidates:
    """Hold entries against each other and against a listing.

    Args:
        entries: all of some files.
        by_target: all vectors of some data files, rows of `VECTOR`.
        listed: `EntryKeys.marks` of what storage has, ascending; `None` where storage was not listed.
        is_delete: by number of a manifest whether it tracks delete files.
    """
    keys, numbers, vectors = entries.column("key"), entries.column("manifest"), entries.vectors
    unseen = np.unique(keys if listed is None else keys[~among(entries.marks, listed)])
    of_deletes = is_delete[numbers]
    both = np.unique(keys[among(keys, np.unique(keys[of_deletes])) & ~of_deletes])
    doubled = doubled_keys(entries.files["key"], entries.files["manifest"], membership)
    doubled_vectors = among(vectors["id"], doubled_keys(vectors["id"], vectors["manifest"], membership))
    files = _united(unseen, doubled, vectors["key"][doubled_vectors], both)
    by_target = by_target[by_target["ref"] != 0]
    targets = doubled_keys(by_target["ref"], by_target["manifest"], membership)
    is_file, is_target = among(keys, files), among(by_target["ref"], targets)
    some = np.union1d(numbers[is_file], by_target["manifest"][is_target])
    return Candidates(
        files=files,
        unseen=unseen,
        targets=targets,
        manifests=BitMap(some.tolist()),
        rows_count=int(np.count_nonzero(is_file)) + int(np.count_nonzero(is_target)),
    )


def doubled_keys(keys: Keys, manifests: NDArray[np.int32], membership: Membership) -> Keys:
    """Keys that one snapshot has twice: in one manifest, or in two of its manifests.

    Files mostly move from manifest to manifest together, so each set of manifests is asked once: its key is a sum of random
    numbers, one for each manifest.
    """
    order = np.lexsort((manifests, keys))
    keys, manifests = keys[order], manifests[order]
    alike = keys[1:] == keys[:-1]
    in_one = keys[1:][alike & (manifests[1:] == manifests[:-1])]
    # Only what has a neighbour; after a rewrite of manifests that is each file of the table.
    several = np.zeros(len(keys), np.bool_)
    several[1:] |= alike
    several[:-1] |= alike
    keys, manifests = keys[several], manifests[several]
    if not len(keys):
        return _NONE
    starts = np.flatnonzero(np.append(True, keys[1:] != keys[:-1]))
    ends = np.append(starts[1:], len(keys))
    lots = np.random.default_rng(0).integers(0, 1 << 63, len(membership.snapshots_of), np.int64).view(np.uint64)
    sums = np.add.reduceat(lots[manifests], starts)
    _, first, places = np.unique(sums, return_index=True, return_inverse=True)
    together = [not membership.are_apart(manifests[starts[one] : ends[one]].tolist()) for one in first.tolist()]
    return _united(in_one, keys[starts[np.array(together, np.bool_)[places]]])


def _united(*several: Keys) -> Keys:
    return np.unique(np.concatenate([_NONE, *several]))


class EntryComparison(msgspec.Struct, frozen=True):
    """What all tasks share."""

    decode: DecodeTask
    storage: Storage
    membership: Membership
    is_delete: NDArray[np.bool_]
    parts: int = 1


_Payload: TypeAlias = tuple[Sequence[Numbered], Sequence[ListingShare]]
_Sent: TypeAlias = tuple[str, Any]
"""What a part is sent: `entries` whose files are its own, vectors whose data files (`targets`) are, marks of a listing
(`listed`), and `gaps`; each with its value."""


def compare(
    table: Table,
    manifests: Sequence[Numbered],
    membership: Membership,
    spark: SparkSource,
    tally: Tally,
    *,
    in_tasks: bool,
) -> Candidates:
    """What looks wrong with the files of some manifests, which are all that may have live ones.

    Args:
        tally: takes what cannot be read.
    """
    is_delete = np.zeros(len(membership.manifest_paths), np.bool_)
    is_delete[[number for number, manifest in manifests if manifest.content is ManifestContent.DELETES]] = True
    decode = decode_task(table, manifests, _DELETE_COLUMNS)
    shared = EntryComparison(decode, table.storage, membership, is_delete)
    if in_tasks:
        return _in_tasks(table, manifests, shared, spark, tally)
    return _here(table, manifests, shared, limits_of(spark).looked_up_files_count, tally)


def _here(table: Table, manifests: Sequence[Numbered], shared: EntryComparison, few: int, tally: Tally) -> Candidates:
    read = all_results(run_tasks(None, chunks(manifests), _read, shared.decode, threads=threads_of(manifests)))
    for _, gaps in read:
        tally.merge(gaps)
    entries = EntryKeys.joined(one for one, _ in read)
    marks, listed = np.unique(entries.marks), None
    if len(marks) > few:
        threads = requests_at_once([table.metadata.location])
        shares = listing_shares(table, threads)
        answers = all_results(run_tasks(None, shares, _marks_of_share, (table.storage, marks), threads=threads))
        listed = _united(*answers)
    # A part at a time, as in tasks: what is worked out takes several times as much as what is held.
    parts = 1 + (len(entries.files) + len(entries.vectors)) // _PART_ROWS
    by_key, by_vector, by_target = (
        part_of(keys, parts) for keys in (entries.files["key"], entries.vectors["key"], entries.vectors["ref"])
    )
    return _joined_candidates(
        [
            candidates_among(
                EntryKeys(entries.files[by_key == part], entries.vectors[by_vector == part]),
                entries.vectors[by_target == part],
                listed,
                shared.membership,
                shared.is_delete,
            )
            for part in range(parts)
        ]
    )


def _read(some: Sequence[Numbered], decode: DecodeTask) -> tuple[EntryKeys, Tally]:
    gaps = Tally()
    return _entry_keys(some, decode, gaps), gaps


def _marks_of_share(share: ListingShare, shared: tuple[Storage, Keys]) -> Keys:
    """The marks of a share that entries name, which ascend."""
    storage, marks = shared
    return _united(*(some[among(some, marks)] for _, some in _listed_batches(share, storage)))


def listing_shares(table: Table, count: int) -> list[ListingShare]:
    """The listing of the directories that a table's files lie in, in about `count` shares; none where it may not be listed."""
    beside = metadata_directory(table.metadata).rstrip("/")
    roots = [root for root in table_locations(table.metadata) if root.rstrip("/") != beside]
    shares: list[ListingShare] = []
    for root in roots:
        try:
            shares += table.storage.shares(root, max(1, count // len(roots)))
        except (InvalidTableError, UnsupportedError, UsageError):
            # Then its files are looked up one by one.
            continue
    return shares


def _listed_batches(share: ListingShare, storage: Storage) -> Iterator[tuple[Keys, Keys]]:
    """Keys of the files of a share, and their marks; as far as the share may be listed."""
    infos = storage.list_share(share)
    while True:
        try:
            some: list[FileInfo] = [*islice(infos, _LISTED_AT_ONCE)]
        except (InvalidTableError, UnsupportedError, UsageError):
            return
        if not some:
            return
        keys, there = keys_of(pa.array([info.location for info in some], pa.string()))
        sizes = np.array([info.size_bytes for info in some], np.int64)
        yield keys[there], paired(keys[there], sizes[there])


def _in_tasks(
    table: Table, manifests: Sequence[Numbered], shared: EntryComparison, spark: SparkSource, tally: Tally
) -> Candidates:
    session, entries_count = started(spark), count_of(manifests)
    files_count = max(entries_count, 2 * limits_of(spark).listed_files_count)
    lists = tasks_count(session, files_count, LISTED_FILES, a_slot=_SHARES_A_SLOT)
    payloads: list[_Payload] = [
        *((some, ()) for some in bins_of(manifests, session)),
        *(((), some) for some in balanced(listing_shares(table, lists), each_once, lists)),
    ]
    parts = tasks_count(session, entries_count + files_count, SHUFFLED_KEYS, a_slot=2)
    shared = replace(shared, parts=parts)
    ran = run_exchange(session, payloads, _send, parts, _receive, shared, step="holding files against the store")
    found: list[Candidates] = []
    for candidates, gaps in all_results(ran):
        tally.merge(gaps)
        found.append(candidates)
    return _joined_candidates(found)


def _send(payload: _Payload, shared: EntryComparison) -> Iterator[tuple[int, _Sent]]:
    manifests, shares = payload
    gaps = Tally()
    for some in chunks(manifests):
        entries = _entry_keys(some, shared.decode, gaps)
        of_files, of_vectors = (part_of(rows["key"], shared.parts) for rows in (entries.files, entries.vectors))
        for part in np.union1d(of_files, of_vectors).tolist():
            yield (
                part,
                ("entries", EntryKeys(entries.files[of_files == part], entries.vectors[of_vectors == part])),
            )
        of_targets = part_of(entries.vectors["ref"], shared.parts)
        for part in np.unique(of_targets).tolist():
            yield part, ("targets", entries.vectors[of_targets == part])
    listed = (one for share in shares for one in _listed_batches(share, shared.storage))
    for several in packed(listed, (lambda one: len(one[0]), _SENT_ROWS)):
        keys, marks = (np.concatenate(arrays) for arrays in zip(*several, strict=True))
        of_marks = part_of(keys, shared.parts)
        for part in np.unique(of_marks).tolist():
            yield part, ("listed", marks[of_marks == part])
    yield 0, ("gaps", gaps)


def _receive(part: int, sent: Iterable[tuple[int, _Sent]], shared: EntryComparison) -> tuple[Candidates, Tally]:
    received: dict[str, list[Any]] = {"entries": [], "targets": [np.empty(0, VECTOR)], "listed": [], "gaps": []}
    for _, (kind, value) in sent:
        received[kind].append(value)
    gaps = Tally()
    for one in received["gaps"]:
        gaps.merge(one)
    found = candidates_among(
        EntryKeys.joined(received["entries"]),
        np.concatenate(received["targets"]),
        _united(*received["listed"]),
        shared.membership,
        shared.is_delete,
    )
    return found, gaps


def _checked_again(
    table: Table,
    manifests: Sequence[Numbered],
    candidates: Candidates,
    checker: "EntryChecker",
    spark: SparkSource,
    *,
    in_tasks: bool,
) -> Tally:
    """The faults among the entries that look wrong, and what cannot be read of them."""
    total = Tally(checker.whole)
    decode = decode_task(table, manifests, _REPORTED_COLUMNS)
    for work, column, wanted in (
        (EntryChecker.files, "file_path", candidates.files),
        (EntryChecker.vectors, "referenced_data_file", candidates.targets),
    ):
        if not len(wanted):
            continue
        join = FileJoin(decode=decode, work=work, shared=checker, column=column, wanted=wanted)
        if in_tasks:
            session = started(spark)
            parts = tasks_count(session, candidates.rows_count, LISTED_FILES, a_slot=2)
            found = join.in_tasks(manifests, session, parts, total, "looking closer at files")
        else:
            found = [work(checker, join.files(spark, manifests, total))]
        for tally in found:
            total.merge(tally)
    return total


class EntryChecker(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """Finds the faults among all entries of one file, or all vectors of one data file; can be pickled.

    Attributes:
        partitions: the partition types of the specs.
        unseen: keys of files that are looked up in the store.
        gone: positions of snapshots that the table no longer has.
        whole: classes of which every fault is kept.
    """

    membership: Membership
    partitions: Mapping[int, StructType]
    storage: Storage
    unseen: Keys
    gone: BitMap
    whole: frozenset[int]

    def files(self, files: Iterable[Sequence[Row]]) -> Tally:
        """The faults of files, of each of which these are all entries (212, 301, 302, 303, 306)."""
        tally = Tally(self.whole)
        in_order = [sorted(rows, key=_place) for rows in files]
        paths = [rows[0]["file_path"] for rows in in_order]
        is_unseen = among(keys_of(pa.array(paths, pa.string()))[0], self.unseen)
        asked = [path for path, ask in zip(paths, is_unseen, strict=True) if ask]
        there = dict(zip(asked, look_up(asked, self.storage), strict=True))
        for rows, path in zip(in_order, paths, strict=True):
            for alike in _grouped(rows, lambda row: (_is_data(row), vector_offset(row))):
                self._doubled(alike, tally)
            self._of_two_kinds(rows, tally)
            if path in there:
                self._stored(rows, there[path], tally)
        return tally

    def vectors(self, files: Iterable[Sequence[Row]]) -> Tally:
        """The data files that have two vectors, of each of which these are all that name it (213)."""
        tally = Tally(self.whole)
        for several in files:
            rows = sorted(filter(is_vector, several), key=_place)
            vectors = _grouped(rows, lambda row: (compared(row["file_path"]), vector_offset(row)))
            positions = twice(map(self.membership.holding, vectors))
            if positions:
                path = rows[0]["referenced_data_file"]
                wrong = [row for row in rows if self.membership.holding([row]) & positions]
                names = _several(f"{row['file_path']!r} at {row['content_offset']}" for row in wrong)
                detail = f"one snapshot has several deletion vectors for it, {names}, where it may have one"
                facts = {"referenced_data_file": path}
                self._report(tally, FaultId.TWO_VECTORS, path, detail, wrong, positions, **facts)
        return tally

    def _doubled(self, rows: Sequence[Row], tally: Tally) -> None:
        positions = twice(self.membership.holding([row]) for row in rows)
        if positions:
            wrong = [row for row in rows if self.membership.holding([row]) & positions]
            names = _several(repr(self.membership.manifest_paths[row["manifest"]]) for row in wrong)
            detail = f"one snapshot has it live several times, by entries of {names}, where a file is live once"
            if len({row["file_path"] for row in wrong}) > 1:
                detail += "; it is spelled in several ways"
            self._report(tally, FaultId.DOUBLED_FILE, wrong[0]["file_path"], detail, wrong, positions)

    def _of_two_kinds(self, rows: Sequence[Row], tally: Tally) -> None:
        data, deletes = ([row for row in rows if _is_data(row) is is_data] for is_data in (True, False))
        if data and deletes:
            first, second = (self.membership.manifest_paths[some[0]["manifest"]] for some in (data, deletes))
            detail = f"it is a data file in manifest {first!r} and a delete file in manifest {second!r}"
            holding = self.membership.holding
            positions = holding(data) & holding(deletes) or holding(rows)
            self._report(tally, FaultId.DATA_AND_DELETE, rows[0]["file_path"], detail, rows, positions)

    def _stored(self, rows: Sequence[Row], info: FileInfo | str | None, tally: Tally) -> None:
        path = rows[0]["file_path"]
        if isinstance(info, str):
            tally.gap(f"file {path!r}", info)
            return
        wrong = [row for row in rows if info is None or row["file_size_in_bytes"] != info.size_bytes]
        positions = self.membership.holding(wrong) - self.gone
        if not positions:
            if wrong:
                tally.gap(f"file {path!r}", MOVED_ON)
        elif info is None:
            for is_data, number in ((True, FaultId.DATA_FILE_MISSING), (False, FaultId.DELETE_FILE_MISSING)):
                missing = [row for row in wrong if _is_data(row) is is_data]
                if positions := self.membership.holding(missing) - self.gone:
                    self._report(tally, number, path, "there is no such file", missing, positions)
        elif any(row["key_metadata"] is not None for row in wrong):
            tally.gap(f"the size of file {path!r}", "it is encrypted")
        else:
            facts = {"recorded": wrong[0]["file_size_in_bytes"], "found": info.size_bytes}
            detail = f"it has {facts['found']} bytes where its entry says {facts['recorded']}"
            self._report(tally, FaultId.FILE_SIZE_WRONG, path, detail, wrong, positions, **facts)

    def _report(
        self,
        tally: Tally,
        number: FaultId,
        where: str,
        detail: str,
        rows: Sequence[Row],
        positions: BitMap,
        **facts: Any,
    ) -> None:
        """A fault of some entries; facts are of the first and of each."""
        entries = [self._facts(row) for row in rows[:_MAX_ENTRIES]]
        counts = {"entries": entries, "entries_count": len(rows), "snapshots_count": len(positions)}
        tally.add(
            Fault(
                number=number,
                where=where,
                detail=detail,
                snapshot_id=self.membership.oldest(positions),
                facts={**entries[0], **counts, **facts},
            )
        )

    @cached_property
    def _codecs(self) -> PartitionCodecs:
        return PartitionCodecs(self.partitions)

    def _facts(self, row: Row) -> dict[str, Any]:
        values = self._codecs.decode(row["spec_id"], row["partition"])
        names = ("file_path", "content", "content_size_in_bytes", "referenced_data_file", "spec_id", "sequence_number")
        return {
            "manifest": self.membership.manifest_paths[row["manifest"]],
            **{name: row[name] for name in names},
            "content_offset": vector_offset(row),
            "partition": [None if value is None else str(value) for value in values],
            "added_snapshot_id": row["snapshot_id"],
            "record_count": row["record_count"],
            "file_size_in_bytes": row["file_size_in_bytes"],
        }


def _place(row: Row) -> tuple[int, str, int]:
    """An order that does not depend on how rows came."""
    return row["manifest"], row["file_path"], vector_offset(row) or 0


def _grouped(rows: Iterable[Row], key: Callable[[Row], Hashable]) -> list[list[Row]]:
    groups: defaultdict[Hashable, list[Row]] = defaultdict(list)
    for row in rows:
        groups[key(row)].append(row)
    return [*groups.values()]


def twice(several: Iterable[BitMap]) -> BitMap:
    """The snapshots that are in two of some sets, or more."""
    seen, again = BitMap(), BitMap()
    for one in several:
        again |= seen & one
        seen |= one
    return again


def _is_data(row: Row) -> bool:
    return bool(row["content"] == FileContent.DATA)


def _several(names: Iterable[str]) -> str:
    """Some names in a sentence."""
    known = [*dict.fromkeys(names)]
    return f"{' and '.join(known[:2])}{and_more(known, 2)}"


def check_dangling(subject: CheckedTable, listed: Listed) -> None:
    """Report the delete files of the heads that are looked at which reach nothing there, by the rule that commits go by."""
    metadata = subject.table.metadata
    reader = SparkManifestReader(subject.spark, subject.table.storage)
    looked_at = {snapshot.snapshot_id: snapshot for snapshot in subject.snapshots}
    for snapshot_id, names in branch_heads(metadata).items():
        if snapshot_id not in looked_at:
            continue
        branches = f"branch {names[0]!r}" if len(names) == 1 else f"branches {', '.join(map(repr, names))}"
        what = f"which delete files of {branches} reach nothing"
        head, members = looked_at[snapshot_id], listed.members.get(snapshot_id, BitMap())
        manifests = [listed.manifests[number] for number in members]
        live = live_among(manifests)
        if not live.deletes:
            continue
        known = {manifest.manifest_path for manifest in manifests}
        try:
            if any(manifest.manifest_path not in known for manifest in reader.manifests(head)):
                # The data files that a delete file reaches may be there.
                subject.tally.gap(what, "a manifest of it cannot be read")
                continue
            found = dangling(live.deletes, live.data, (), metadata, reader, proof=hold_own_path)
            if found is not None:
                work = _DanglingFaults(
                    without_history(metadata), found, snapshot_id, names, branches, subject.tally.whole
                )
                for some in reader.gathered(live.deletes, work):
                    subject.tally.merge(some)
        except (InvalidTableError, UnsupportedError, UsageError) as error:
            subject.tally.gap(what, first_line(error))


class _DanglingFaults(msgspec.Struct, frozen=True):
    """The dangling delete files of a manifest."""

    base: TableMetadata
    dangling: Dangling
    snapshot_id: int
    names: tuple[str, ...]
    branches: str
    whole: frozenset[int]

    @property
    def key(self) -> Hashable:
        return "faults", self.dangling.numbers, self.snapshot_id

    def run(self, manifest: ManifestFile, reader: ManifestReader) -> Tally:
        tally = Tally(self.whole)
        for entry in reader.entries(manifest, self.base):
            if entry.is_live and self.dangling.entry(entry):
                tally.add(self._fault(entry, manifest))
        return tally

    def _fault(self, entry: ManifestEntry, manifest: ManifestFile) -> Fault:
        file = entry.data_file
        number, what, newer = FaultId.DANGLING_DELETE, "it", None
        if is_deletion_vector(file):
            what = f"its vector at {file.content_offset}"
            # The data sequence number of its data file; `None` where that is not live.
            newer = self.dangling.least.paths.get(path_digest(str(file.referenced_data_file)))
        detail = f"{what} reaches no data file that is live in {self.branches}"
        if newer is not None:
            number = FaultId.VECTOR_TOO_OLD
            detail = (
                f"{what} has sequence number {entry.sequence_number}, and its data file {file.referenced_data_file!r}, which is "
                f"live in {self.branches}, the newer one {newer}"
            )
        facts = {
            "manifest": manifest.manifest_path,
            "file_path": file.file_path,
            "content": int(file.content),
            "content_offset": file.content_offset if is_deletion_vector(file) else None,
            "referenced_data_file": file.referenced_data_file,
            "spec_id": file.spec_id,
            "partition": [None if value is None else str(value) for value in file.partition],
            "sequence_number": entry.sequence_number,
            "record_count": file.record_count,
            "refs": [*self.names],
            "snapshots_count": 1,
        }
        return Fault(number=number, where=file.file_path, detail=detail, snapshot_id=self.snapshot_id, facts=facts)


def check_statistics(subject: CheckedTable) -> None:
    """Look up the statistics files (304) of the snapshots that are looked at, and those of snapshots that are not there."""
    metadata, tally = subject.table.metadata, subject.tally
    others = {one.snapshot_id for one in metadata.snapshots} - {one.snapshot_id for one in subject.snapshots}
    files: list[tuple[str, StatisticsFile | PartitionStatisticsFile]] = [("statistics", f) for f in metadata.statistics]
    files += [("partition-statistics", file) for file in metadata.partition_statistics]
    named = [(kind, file) for kind, file in files if file.snapshot_id not in others]
    infos = look_up([file.statistics_path for _, file in named], subject.table.storage)
    still: set[str] = set()
    if any(info is None for info in infos):
        try:
            now = subject.table.refresh().metadata
            still = {one.statistics_path for one in now.statistics}
            still |= {one.statistics_path for one in now.partition_statistics}
        except NotFoundError:
            pass
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
            facts = {"kind": kind, "file_path": path, "recorded": recorded, "found": found, "snapshots_count": 1}
            tally.add(
                Fault(
                    number=FaultId.STATISTICS_FILE_MISSING,
                    where=path,
                    detail=detail,
                    snapshot_id=file.snapshot_id,
                    facts=facts,
                )
            )
