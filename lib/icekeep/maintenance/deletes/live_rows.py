"""The position deletes of a branch as they are: which are dangling, and which live data files the others may be for.

Entries of delete files and of data files in; the delete files that are to be looked at out, as values that the driver holds.
Few data files are looked at here, many in Spark tasks: of these the driver gets answers to what it asks about delete files.

The live data files of a partition are packed for the tasks that rewrite its deletes: 25 bytes a file, in parts of neighbours by
path. A task loads the parts that its range of paths meets. Few lie in the plan, many where planning has put them: the driver
holds the sums of each part, and some paths by which a group is divided.
"""

import struct
from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import groupby, pairwise
from operator import attrgetter
from typing import TYPE_CHECKING, BinaryIO, NamedTuple, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from icekeep.commit.file_sets import ReadFile
from icekeep.errors import IcekeepBug, InvalidTableError
from icekeep.formats.deletes.rewrite import LiveFile
from icekeep.planning.deletes import bounds_of_paths, in_order
from icekeep.planning.entries import EntryFilter, ReadBy, chosen_reading, delete_file_from_row, entries, few_entries
from icekeep.planning.scan.plan import Scan, delete_manifests, select_manifests
from icekeep.planning.spark.rows import arrow_dataframe, arrow_table
from icekeep.planning.spark.session import F, SparkSource, limits_of, task_context
from icekeep.planning.spark.tasks import all_results, run_over_partitions
from icekeep.spec.manifests.structs import DataFile, FileContent, ManifestEntry, Status
from icekeep.spec.manifests.write import PartitionCodecs
from icekeep.spec.reach import (
    PathDigest,
    in_another_partition,
    is_deletion_vector,
    is_newer,
    max_reached,
    only_data_file,
    path_digest,
)
from icekeep.spec.schema import DELETE_FILE_PATH, DELETE_FILE_POS
from icekeep.spec.types import MAX_LONG
from icekeep.storage.base import Storage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

PART_FILES = 20_000
_SAMPLES_COUNT = 32
_ROWS_AT_ONCE = 100_000
_NAME = struct.Struct(">QQ")
_FILE = np.dtype([("high", ">u8"), ("low", ">u8"), ("number", ">i8"), ("has_vector", "?")])


class LivePart(msgspec.Struct, frozen=True, kw_only=True):
    """Some live data files of a partition, neighbours by path.

    Attributes:
        samples: paths of some of them, evenly spread and in order, the first one among them.
        packed: all of them, or `None` where they lie in storage, from an `offset` of a file on; or, in a preview, nowhere.
    """

    files_count: int
    samples: tuple[str, ...]
    last_path: str
    packed: bytes | None = None
    location: str | None = None
    offset: int = 0

    def meets(self, first: str | None, end: str | None) -> bool:
        """Whether a file of it may lie in a range of paths; `None`: no bound. The end is not in the range."""
        return (first is None or first <= self.last_path) and (end is None or self.samples[0] < end)


def packed_parts(files: Mapping[str, LiveFile]) -> Iterator[LivePart]:
    """Data files by path, in parts."""
    paths = sorted(files)
    numbers = np.array([files[path].sequence_number for path in paths], np.int64)
    packed = _packed(paths, numbers, np.array([files[path].has_vector for path in paths], np.bool_))
    for start in range(0, len(paths), PART_FILES):
        some = slice(start * _FILE.itemsize, (start + PART_FILES) * _FILE.itemsize)
        yield _part(paths[start : start + PART_FILES], packed[some])


def _packed(paths: Sequence[str], numbers: np.ndarray, have_vectors: np.ndarray) -> bytes:
    rows = np.empty(len(paths), _FILE)
    names = np.frombuffer(b"".join(map(path_digest, paths)), ">u8").reshape(-1, 2)
    rows["high"], rows["low"], rows["number"], rows["has_vector"] = *names.T, numbers, have_vectors
    return rows.tobytes()


def _part(paths: Sequence[str], packed: bytes | None) -> LivePart:
    return LivePart(
        files_count=len(paths),
        samples=tuple(paths[:: -(-len(paths) // _SAMPLES_COUNT)]),
        last_path=paths[-1],
        packed=packed,
    )


class PackedLiveFiles:
    """Live data files by the digests of their paths."""

    def __init__(self, packed: Iterable[bytes]) -> None:
        rows = np.concatenate([np.empty(0, _FILE), *(np.frombuffer(some, _FILE) for some in packed)])
        rows = rows[np.argsort(rows["high"])]
        # In the machine's byte order, as digests that are looked up are.
        self._high, self._low = rows["high"].astype(np.uint64), rows["low"].astype(np.uint64)
        self._numbers, self._have_vectors = rows["number"].astype(np.int64), rows["has_vector"]

    def __len__(self) -> int:
        return len(self._high)

    def get(self, path: str, /) -> LiveFile | None:
        return self.at(path_digest(path))

    def at(self, digest: PathDigest) -> LiveFile | None:
        """The file at the path of a digest."""
        high, low = _NAME.unpack(digest)
        place = int(np.searchsorted(self._high, np.uint64(high)))
        while place < len(self._high) and int(self._high[place]) == high:
            if int(self._low[place]) == low:
                return LiveFile(int(self._numbers[place]), has_vector=bool(self._have_vectors[place]))
            place += 1
        return None


def load_live_files(parts: Sequence[LivePart], storage: Storage) -> PackedLiveFiles:
    """The files of some parts."""
    packed: list[bytes] = []
    for location, some in groupby(parts, attrgetter("location")):
        if location is None:
            for part in some:
                if part.packed is None:
                    raise IcekeepBug("the data files of a group are not kept; a preview of this many has sums only")
                packed.append(part.packed)
            continue
        with storage.open(location) as stream:
            for part in some:
                stream.seek(part.offset)
                read = stream.read(part.files_count * _FILE.itemsize)
                if len(read) != part.files_count * _FILE.itemsize:
                    raise InvalidTableError(f"cannot read the data files of a group in {location!r}; make a new plan")
                packed.append(read)
    return PackedLiveFiles(packed)


Partition = tuple[int, bytes]
"""A spec and the bytes of a partition, equal where partitions are."""

_Keep: TypeAlias = Callable[[LivePart], LivePart]

_PLACE = ("spec_id", "partition")
_COLUMNS = (*_PLACE, "file_path", "sequence_number")
_ROW = (*_COLUMNS, "is_named", "vector_reach")
_NAMED = pa.schema([("file_path", pa.string()), ("vector_reach", pa.int64())])
_PARTITIONS = pa.schema([("spec_id", pa.int32()), ("partition", pa.binary())])


class PathRange(msgspec.Struct, frozen=True):
    """Between which paths, as UTF-8, a delete file of a number names data files; `None` where it does not say."""

    number: int
    lower: bytes | None
    upper: bytes | None

    @property
    def first(self) -> bytes:
        return self.lower or b""


class LiveRowsRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be known for some delete files.

    Attributes:
        named: the data files that one of them is for alone, by path, each with the greatest data sequence number that a
            vector of it reaches; `None` where it has none.
        ranges: those that may be for several data files of their partition.
    """

    named: Mapping[str, int | None]
    ranges: Mapping[Partition, Sequence[PathRange]]


class PlacedFile(msgspec.Struct, frozen=True):
    """A live data file, and where it is."""

    partition: Partition
    file: LiveFile


class LiveData(msgspec.Struct, frozen=True, kw_only=True):
    """What was found.

    Attributes:
        named: of the data files that were asked for by path, those that are live.
        least: in each partition of ranges that has live data files, the least data sequence number of them.
        parts: the data files of these partitions.
        met: the numbers of the ranges in which a live data file lies.
    """

    named: dict[str, PlacedFile] = msgspec.field(default_factory=dict)
    least: dict[Partition, int] = msgspec.field(default_factory=dict)
    parts: dict[Partition, tuple[LivePart, ...]] = msgspec.field(default_factory=dict)
    met: set[int] = msgspec.field(default_factory=set)

    def add(self, other: "LiveData") -> None:
        """Take in what was found in other partitions."""
        self.named.update(other.named)
        self.least.update(other.least)
        self.parts.update(other.parts)
        self.met.update(other.met)


def live_data(scan: Scan, spark: SparkSource, asked: LiveRowsRequest, directory: str | None) -> LiveData:
    """Look at the live data files of a scan.

    Args:
        directory: where tasks put the parts if the files are many; with `None`, for a preview, they are kept nowhere.
    """
    storage, opened = scan.table.storage, scan.data.opened
    wanted, columns = EntryFilter(specs=scan.data.specs), frozenset(_COLUMNS)
    limits = limits_of(spark)
    reading = chosen_reading(opened, limits.matched_entries_count)
    if reading.by is ReadBy.DRIVER:
        files = _few_rows(few_entries(storage, opened, wanted, columns, reading.decoder), asked)
        batches = files.to_batches(max_chunksize=_ROWS_AT_ONCE)
        if directory is None or len(files) <= limits.entries_count:
            return _looked_at(batches, asked.ranges, packs=directory is not None)
        # Each task of a group is sent its parts.
        with ExitStack() as stack:
            parts_file = _PartsFile(f"{directory}/live-driver.bin", storage, stack)
            return _looked_at(batches, asked.ranges, parts_file.keep, packs=True)
    rows = _many_rows(entries(storage, spark, opened, wanted, columns, reading), asked)
    shared = (asked.ranges, directory, storage)
    step = "looking at the data files that position deletes are for"
    found = LiveData()
    for one in all_results(run_over_partitions(rows, _looked_at_in_task, shared, step=step)):
        found.add(one)
    return found


def _few_rows(files: pa.Table, asked: LiveRowsRequest) -> pa.Table:
    named = _named(asked)
    places = pc.index_in(files["file_path"], value_set=named["file_path"].combine_chunks())
    files = files.select([*_COLUMNS]).append_column("is_named", pc.is_valid(places))
    files = files.append_column("vector_reach", named["vector_reach"].take(places))
    partitions = files["partition"].unique()
    numbers = pc.index_in(files["partition"], value_set=partitions).to_numpy().astype(np.int64)
    keys = numbers << 32 | files["spec_id"].to_numpy()
    numbers_of_ranges = pc.index_in(pa.array([key for _, key in asked.ranges], pa.binary()), value_set=partitions)
    spec_ids = np.array([spec_id for spec_id, _ in asked.ranges], np.int64)
    wanted = pc.fill_null(numbers_of_ranges, -1).to_numpy().astype(np.int64) << 32 | spec_ids
    are_asked_for = np.isin(keys, wanted) | files["is_named"].to_numpy()
    files = files.append_column("key", pa.array(keys)).filter(pa.array(are_asked_for))
    # One copy at a time is beside the one that it is made of: the paths are most of the memory.
    files = files.combine_chunks()
    order = pc.sort_indices(files, sort_keys=[("key", "ascending"), ("file_path", "ascending")])
    return files.drop_columns(["key"]).take(order)


def _many_rows(files: "DataFrame", asked: LiveRowsRequest) -> "DataFrame":
    """The same, those of a partition in one of Spark's partitions; what nothing asks for is not shuffled."""
    session = files.sparkSession
    named = arrow_dataframe(session, _named(asked)).withColumn("is_named", F.lit(True))
    keys = [{"spec_id": spec_id, "partition": partition} for spec_id, partition in asked.ranges]
    wanted = arrow_dataframe(session, pa.Table.from_pylist(keys, _PARTITIONS)).withColumn("is_wanted", F.lit(True))
    known = files.join(named, "file_path", "left").join(F.broadcast(wanted), [*_PLACE], "left")
    is_named = F.coalesce("is_named", F.lit(False)).alias("is_named")
    some = known.where("is_named OR is_wanted").select(*_COLUMNS, is_named, "vector_reach")
    return some.repartition(*_PLACE).sortWithinPartitions(*_PLACE, "file_path").select(*_ROW)


def _named(asked: LiveRowsRequest) -> pa.Table:
    return pa.table([pa.array(asked.named.keys(), pa.string()), pa.array(asked.named.values(), pa.int64())], _NAMED)


def _looked_at_in_task(
    batches: Iterable[pa.RecordBatch], shared: tuple[Mapping[Partition, Sequence[PathRange]], str | None, Storage]
) -> LiveData:
    ranges, directory, storage = shared
    context = task_context()
    assert context is not None
    # Attempts that failed may have left a file of their name.
    name = f"live-{context.partitionId():05d}-{context.taskAttemptId()}.bin"
    with ExitStack() as stack:
        parts_file = _PartsFile(directory and f"{directory}/{name}", storage, stack)
        return _looked_at(batches, ranges, parts_file.keep, packs=directory is not None)


class _PartsFile:
    """Puts the parts of a task into one file, which is begun with the first of them; without a location nowhere."""

    def __init__(self, location: str | None, storage: Storage, stack: ExitStack) -> None:
        self._location, self._storage, self._stack = location, storage, stack
        self._stream: BinaryIO | None = None
        self._offset = 0

    def keep(self, part: LivePart) -> LivePart:
        kept = msgspec.structs.replace(part, packed=None, location=self._location, offset=self._offset)
        if self._location is not None:
            assert part.packed is not None
            if self._stream is None:
                self._stream = self._stack.enter_context(self._storage.write(self._location))
            self._stream.write(part.packed)
            self._offset += len(part.packed)
        return kept


def _looked_at(
    batches: Iterable[pa.RecordBatch],
    ranges: Mapping[Partition, Sequence[PathRange]],
    keep: _Keep | None = None,
    *,
    packs: bool,
) -> LiveData:
    """Look at data files that come by partition and path; with `keep`, only one part is held at a time."""
    found = LiveData()
    for partition, slices in groupby(_in_ranges(batches, ranges, found, packs=packs), attrgetter("partition")):
        parts = _parts(partition, slices, ranges[partition], found)
        found.parts[partition] = tuple(parts if keep is None else map(keep, parts))
    return found


class _Slice(NamedTuple):
    """Neighbours of one partition."""

    partition: Partition
    paths: list[str]
    least: int
    packed: bytes | None


def _in_ranges(
    batches: Iterable[pa.RecordBatch],
    ranges: Mapping[Partition, Sequence[PathRange]],
    found: LiveData,
    *,
    packs: bool,
) -> Iterator[_Slice]:
    """The files of partitions that ranges are in; those that are asked for by path are noted.

    There may be as many partitions as files, so that all which Arrow and NumPy do is done for a batch as a whole.
    """
    for batch in batches:
        if not batch.num_rows:
            continue
        numbers = batch["sequence_number"].to_numpy()
        have_vectors = numbers <= pc.fill_null(batch["vector_reach"], -1).to_numpy()
        named = np.flatnonzero(batch["is_named"].to_numpy(False))
        columns = (*(batch[name].take(pa.array(named)).to_pylist() for name in (*_PLACE, "file_path")),)
        for spec_id, key, path, number, has_vector in zip(
            *columns, numbers[named].tolist(), have_vectors[named].tolist(), strict=True
        ):
            found.named[path] = PlacedFile((spec_id, key), LiveFile(number, has_vector=has_vector))
        if not ranges:
            continue
        changes = [pc.not_equal(c[1:], c[:-1]).to_numpy(False) for c in (batch[name] for name in _PLACE)]
        starts = np.concatenate([[0], np.flatnonzero(np.logical_or.reduce(changes)) + 1])
        places = zip(*(batch[name].take(pa.array(starts)).to_pylist() for name in _PLACE), strict=True)
        least = np.minimum.reduceat(numbers, starts).tolist()
        paths = batch["file_path"].to_pylist()
        packed = _packed(paths, numbers, have_vectors) if packs else None
        for partition, lowest, (start, stop) in zip(
            places, least, pairwise([*starts.tolist(), batch.num_rows]), strict=True
        ):
            if partition in ranges:
                some = slice(start * _FILE.itemsize, stop * _FILE.itemsize)
                yield _Slice(partition, paths[start:stop], lowest, None if packed is None else packed[some])


def _parts(
    partition: Partition, slices: Iterable[_Slice], ranges: Iterable[PathRange], found: LiveData
) -> Iterator[LivePart]:
    """The files of a partition in parts; their least number and the ranges that they lie in are noted."""
    waiting = deque(sorted(ranges, key=attrgetter("first")))
    least, last = MAX_LONG, None
    paths: list[str] = []
    packed: bytes | None = None
    for one in slices:
        least = min(least, one.least)
        for before, path in pairwise((last, *one.paths)):
            if path == before:
                raise InvalidTableError(f"data file {path!r} is live more than once in the table")
        last, place = one.paths[-1], 0
        # A range is met by the first file at or behind its begin, if by any.
        while waiting and waiting[0].first <= last.encode():
            met = waiting.popleft()
            place = bisect_left(one.paths, met.first, place, key=str.encode)
            # Some writers cut an upper bound and forget to increment it.
            if met.upper is None or one.paths[place].encode()[: len(met.upper)] <= met.upper:
                found.met.add(met.number)
        paths += one.paths
        packed = one.packed if packed is None or one.packed is None else packed + one.packed
        size = PART_FILES * _FILE.itemsize
        while len(paths) >= PART_FILES:
            yield _part(paths[:PART_FILES], None if packed is None else packed[:size])
            paths, packed = paths[PART_FILES:], None if packed is None else packed[size:]
    found.least[partition] = least
    if paths:
        yield _part(paths, packed)


_OF_DELETES = frozenset(
    {
        "manifest_path",
        "spec_id",
        "partition",
        "sequence_number",
        "content",
        "file_path",
        "file_format",
        "record_count",
        "file_size_in_bytes",
        "lower_bounds",
        "upper_bounds",
        "key_metadata",
        "referenced_data_file",
        "content_offset",
        "content_size_in_bytes",
    }
)

_OWN_COLUMNS = (DELETE_FILE_PATH, DELETE_FILE_POS)


class Candidate(msgspec.Struct, frozen=True):
    """A live position delete file.

    Attributes:
        lower, upper: the least and the greatest path that it says it names; `None` where it does not say.
        has_values: whether bounds say that it holds values of the deleted rows, too.
        has_sole_path: whether its bounds are equal, and are the path of a live data file: it is of that one alone, unless they
            are wrong.
        is_idle: no live data file that it reaches lies between the bounds of its paths: it is dangling, though only its rows can
            prove it.
    """

    read: ReadFile
    lower: str | None
    upper: str | None
    has_values: bool = False
    has_sole_path: bool = False
    is_idle: bool = False

    @property
    def file(self) -> DataFile:
        return self.read.entry.data_file

    @property
    def seems_dangling(self) -> bool:
        """Whether it is dangling if what equal bounds say is so, as `commit.dangling.seems_dangling` has it."""
        return self.is_idle and self.lower is not None and self.lower == self.upper

    @property
    def is_of_one_file(self) -> bool:
        """Whether it is of one data file, as `reach.own_path` says, which counts and chooses."""
        return self.file.referenced_data_file is not None or self.has_sole_path


class PositionDeletes(msgspec.Struct, frozen=True, kw_only=True):
    """The live position deletes of a scan.

    Attributes:
        by_partition: position delete files that may reach a data file.
        named: by path, at least the data files that one of them is for alone.
        live: of each partition in which one may be for several data files, all of these.
        dangling: delete files and vectors that reach none.
    """

    by_partition: Mapping[Partition, tuple[Candidate, ...]] = {}
    named: Mapping[str, LiveFile] = {}
    live: Mapping[Partition, tuple[LivePart, ...]] = {}
    dangling: tuple[ReadFile, ...] = ()


def position_deletes(scan: Scan, spark: SparkSource, directory: str | None = None) -> PositionDeletes:
    """Look at the delete files whose partition the filter of a scan leaves possible.

    The driver holds them; of the data files in their partitions it holds only sums where they are many.

    Args:
        directory: as for `live_data`.
    """
    deletes = _live_deletes(scan, spark)
    if not deletes.num_rows:
        return PositionDeletes()
    found = [*_candidates(deletes, PartitionCodecs(scan.table.metadata.partition_types))]
    return _matched(found, live_data(scan, spark, _asked(found), directory))


def _live_deletes(scan: Scan, spark: SparkSource) -> pa.Table:
    storage = scan.table.storage
    manifests = delete_manifests(scan.listed)
    selection = select_manifests(scan.table.metadata, scan.version.schema, manifests, scan.where)
    # A vector stands for all deletes of its data file, so no manifest stays closed because of what the list says of it.
    wanted = EntryFilter(specs=selection.specs)
    reading = chosen_reading(manifests, limits_of(spark).matched_entries_count)
    if reading.by is ReadBy.DRIVER:
        found = few_entries(storage, manifests, wanted, _OF_DELETES, reading.decoder)
    else:
        rows = entries(storage, spark, manifests, wanted, _OF_DELETES, reading)
        is_of_positions = F.col("content") == int(FileContent.POSITION_DELETES)
        found = arrow_table(rows.where(is_of_positions), "reading manifests")
    deletes = found.filter(pc.equal(found["content"], int(FileContent.POSITION_DELETES)))
    # So that plans do not depend on how manifests list files.
    return in_order(deletes, ("spec_id", "partition", "file_path"))


def _candidates(deletes: pa.Table, codecs: PartitionCodecs) -> Iterator[tuple[Partition, Candidate]]:
    plain = deletes.drop_columns(["lower_bounds", "upper_bounds"])
    rows = (row for batch in plain.to_batches(max_chunksize=10_000) for row in batch.to_pylist())
    # Whether bounds are of more columns than paths and positions.
    counts = (np.diff(chunk.offsets.to_numpy()).tolist() for chunk in deletes["lower_bounds"].chunks)
    have_values = (count > len(_OWN_COLUMNS) for some in counts for count in some)
    for row, (low, high), has_values in zip(rows, bounds_of_paths(deletes), have_values, strict=True):
        only = row["referenced_data_file"]
        lower, upper = (only, only) if only is not None else (_text(low), _text(high))
        file = delete_file_from_row(row, codecs.decode(row["spec_id"], row["partition"]))
        # Only whether the bounds are one path is kept of them, see `own_path`.
        if only is None and lower is not None and lower == upper:
            sole = {DELETE_FILE_PATH.field_id: lower.encode()}
            file = msgspec.structs.replace(file, lower_bounds=sole, upper_bounds=sole)
        entry = ManifestEntry(status=Status.EXISTING, sequence_number=row["sequence_number"], data_file=file)
        read = ReadFile(entry, row["manifest_path"])
        yield (row["spec_id"], row["partition"]), Candidate(read, lower, upper, has_values)


def _text(bound: bytes | None) -> str | None:
    """A bound as text; one that was cut within a character says nothing that is relied on here."""
    return None if bound is None else bound.decode("utf-8", "replace")


def _asked(deletes: Sequence[tuple[Partition, Candidate]]) -> LiveRowsRequest:
    named: dict[str, int | None] = {}
    ranges: dict[Partition, list[PathRange]] = defaultdict(list)
    for number, (partition, one) in enumerate(deletes):
        only = only_data_file(one.file)
        if only is None:
            lower, upper = (None if bound is None else bound.encode() for bound in (one.lower, one.upper))
            ranges[partition].append(PathRange(number, lower, upper))
            if one.lower is not None and one.lower == one.upper:
                named.setdefault(one.lower, None)
        elif is_deletion_vector(one.file):
            named[only] = max(max_reached(one.read.entry), named.get(only) or 0)
        else:
            named.setdefault(only, None)
    return LiveRowsRequest(named=named, ranges=ranges)


def _matched(deletes: Sequence[tuple[Partition, Candidate]], data: LiveData) -> PositionDeletes:
    dangling: list[ReadFile] = []
    candidates: dict[Partition, list[Candidate]] = defaultdict(list)
    for number, (partition, one) in enumerate(deletes):
        only = only_data_file(one.file)
        # One that is for a single data file has a place where that is live.
        place = None if only is None else data.named.get(only)
        least = data.least.get(partition) if only is None else None
        if place is not None:
            least = place.file.sequence_number
        if least is None or not is_newer(one.read.entry, least):
            dangling.append(one.read)
            continue
        if only is not None and place is not None and place.partition != partition:
            raise in_another_partition(one.file.file_path, only)
        if not is_deletion_vector(one.file):
            named = None if one.lower is None or one.lower != one.upper else data.named.get(one.lower)
            has_sole_path = only is None and named is not None and named.partition == partition
            is_newer_there = named is not None and not is_newer(one.read.entry, named.file.sequence_number)
            known = msgspec.structs.replace(
                one,
                has_sole_path=has_sole_path,
                is_idle=only is None and (number not in data.met or (has_sole_path and is_newer_there)),
            )
            candidates[partition].append(known)
    return PositionDeletes(
        by_partition={partition: tuple(some) for partition, some in candidates.items()},
        named={path: place.file for path, place in data.named.items()},
        live=data.parts,
        dangling=tuple(dangling),
    )
