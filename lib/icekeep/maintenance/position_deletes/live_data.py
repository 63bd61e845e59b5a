"""What the live data files of a table have to do with its position deletes: few are looked at here, many in Spark tasks.

Of many the driver gets answers to what it asks about delete files, and the sums of parts (`live_files.py`), which tasks write.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any, BinaryIO, TypeAlias

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from icekeep.errors import InvalidTableError
from icekeep.formats.deletes.positions import LiveFile
from icekeep.maintenance.position_deletes.live_files import LivePart, packed_parts
from icekeep.planning.entries import EntryFilter, ReadBy, chosen_reading, entries, few_entries
from icekeep.planning.scan.plan import Scan
from icekeep.planning.spark.rows import arrow_dataframe
from icekeep.planning.spark.session import F, SparkSource, limits_of, task_context
from icekeep.planning.spark.tasks import all_results, run_over_partitions
from icekeep.spec.types import MAX_LONG
from icekeep.storage.base import Storage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

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


class Asked(msgspec.Struct, frozen=True, kw_only=True):
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


def live_data(scan: Scan, spark: SparkSource, asked: Asked, directory: str | None) -> LiveData:
    """Look at the live data files of a scan.

    Args:
        directory: where tasks put the parts if the files are many; with `None`, for a preview, they are kept nowhere.

    Raises:
        InvalidTableError: a data file is live more than once in a partition that delete files name several data files of.
        InvalidTableError, MissingFileError, UnsupportedError: manifests cannot be read whole.
    """
    storage, opened = scan.table.storage, scan.data.opened
    wanted, columns = EntryFilter(specs=scan.data.specs), frozenset(_COLUMNS)
    reading = chosen_reading(opened, limits_of(spark).entries_count)
    if reading.by is ReadBy.DRIVER:
        files = few_entries(storage, opened, wanted, columns, reading.decoder)
        return _looked_at(_few_rows(files, asked).to_batches(), asked.ranges, _held)
    rows = _many_rows(entries(storage, spark, opened, wanted, columns, reading), asked)
    shared = (asked.ranges, directory, storage)
    step = "looking at the data files that position deletes are for"
    found = LiveData()
    for one in all_results(run_over_partitions(rows, _looked_at_in_task, shared, step=step)):
        found.add(one)
    return found


def _few_rows(files: pa.Table, asked: Asked) -> pa.Table:
    named = _named(asked)
    places = pc.index_in(files["file_path"], value_set=named["file_path"].combine_chunks())
    files = files.select([*_COLUMNS]).append_column("is_named", pc.is_valid(places))
    files = files.append_column("vector_reach", named["vector_reach"].take(places))
    if not asked.ranges:
        files = files.filter(files["is_named"])
    return files.sort_by([(name, "ascending") for name in (*_PLACE, "file_path")])


def _many_rows(files: "DataFrame", asked: Asked) -> "DataFrame":
    """The same, those of a partition in one of Spark's partitions, without files that nothing asks for."""
    session = files.sparkSession
    named = arrow_dataframe(session, _named(asked)).withColumn("is_named", F.lit(True))
    keys = [{"spec_id": spec_id, "partition": partition} for spec_id, partition in asked.ranges]
    wanted = arrow_dataframe(session, pa.Table.from_pylist(keys, _PARTITIONS)).withColumn("is_wanted", F.lit(True))
    known = files.join(named, "file_path", "left").join(F.broadcast(wanted), [*_PLACE], "left")
    is_named = F.coalesce("is_named", F.lit(False)).alias("is_named")
    some = known.where("is_named OR is_wanted").select(*_COLUMNS, is_named, "vector_reach")
    return some.repartition(*_PLACE).sortWithinPartitions(*_PLACE, "file_path").select(*_ROW)


def _named(asked: Asked) -> pa.Table:
    return pa.table([pa.array(asked.named.keys(), pa.string()), pa.array(asked.named.values(), pa.int64())], _NAMED)


def _held(part: LivePart) -> LivePart:
    return part


def _looked_at_in_task(
    batches: Iterable[pa.RecordBatch], shared: tuple[Mapping[Partition, Sequence[PathRange]], str | None, Storage]
) -> LiveData:
    ranges, directory, storage = shared
    context = task_context()
    assert context is not None
    # Attempts that failed may have left a file of their name.
    name = f"live-{context.partitionId():05d}-{context.taskAttemptId()}.bin"
    with ExitStack() as stack:
        return _looked_at(batches, ranges, _PartsFile(directory and f"{directory}/{name}", storage, stack).keep)


class _PartsFile:
    """Puts the parts of a task into one file, which is begun with the first of them; without a location nowhere."""

    def __init__(self, location: str | None, storage: Storage, stack: ExitStack) -> None:
        self._location, self._storage, self._stack = location, storage, stack
        self._stream: BinaryIO | None = None
        self._offset = 0

    def keep(self, part: LivePart) -> LivePart:
        assert part.packed is not None
        kept = msgspec.structs.replace(part, packed=None, location=self._location, offset=self._offset)
        if self._location is not None:
            if self._stream is None:
                self._stream = self._stack.enter_context(self._storage.write(self._location))
            self._stream.write(part.packed)
            self._offset += len(part.packed)
        return kept


def _looked_at(
    batches: Iterable[pa.RecordBatch], ranges: Mapping[Partition, Sequence[PathRange]], keep: _Keep
) -> LiveData:
    """Look at data files that come by partition and path; no more than a part of them is held."""
    found = LiveData()
    rows = (row for batch in batches for row in zip(*map(_values, batch.columns), strict=True))
    for (spec_id, partition_bytes), files in groupby(rows, itemgetter(0, 1)):
        partition = spec_id, bytes(partition_bytes)
        live = _noted(files, partition, found)
        if partition not in ranges:
            deque(live, maxlen=0)
            continue
        among = _among_ranges(live, partition, ranges[partition], found)
        found.parts[partition] = tuple(map(keep, packed_parts(among)))
    return found


def _values(column: pa.Array) -> list[Any]:
    return column.to_pylist()


def _noted(files: Iterable[tuple[Any, ...]], partition: Partition, found: LiveData) -> Iterator[tuple[str, LiveFile]]:
    """The files of a partition; those that are asked for by path are noted."""
    for _, _, path, number, is_named, vector_reach in files:
        file = LiveFile(number, has_vector=vector_reach is not None and number <= vector_reach)
        if is_named:
            found.named[path] = PlacedFile(partition, file)
        yield path, file


def _among_ranges(
    files: Iterable[tuple[str, LiveFile]], partition: Partition, ranges: Iterable[PathRange], found: LiveData
) -> Iterator[tuple[str, LiveFile]]:
    """The same files, their least number and the ranges that they lie in being noted."""
    waiting = deque(sorted(ranges, key=_begin))
    last = None
    least = MAX_LONG
    for path, file in files:
        if path == last:
            raise InvalidTableError(f"data file {path!r} is live more than once in the table")
        last, least = path, min(file.sequence_number, least)
        # A range is met by the first file at or behind its begin, if by any.
        while waiting and _begin(waiting[0]) <= (name := path.encode()):
            one = waiting.popleft()
            # Some writers cut an upper bound and forget to increment it.
            if one.upper is None or name[: len(one.upper)] <= one.upper:
                found.met.add(one.number)
        yield path, file
    found.least[partition] = least


def _begin(one: PathRange) -> bytes:
    return one.lower or b""
