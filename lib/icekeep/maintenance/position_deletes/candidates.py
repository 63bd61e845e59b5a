"""The position deletes of a branch as they are: which are dangling, and which data files the others may be for.

Entries of delete files and of data files in; the delete files that are to be looked at out, as values that the driver holds.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from icekeep.commit.file_sets import ReadFile
from icekeep.errors import InvalidTableError
from icekeep.formats.deletes.rewrite_positions import LiveFile
from icekeep.planning.deletes.delete_index import bounds_of_paths, in_order
from icekeep.planning.entries.decode import EntryFilter
from icekeep.planning.entries.delete_files import delete_file
from icekeep.planning.entries.read import ReadBy, chosen_reading, entries, few_entries
from icekeep.planning.entries.select_manifests import ManifestSelection, delete_manifests, select_manifests
from icekeep.planning.scan.plan import Scan
from icekeep.planning.spark.source import SparkSource, limits_of, started
from icekeep.planning.spark.tasks import arrow_dataframe, arrow_table
from icekeep.spec.applicability import in_another_partition, is_deletion_vector, is_newer, named_range, only_data_file
from icekeep.spec.manifests.encode import PartitionCodecs
from icekeep.spec.manifests.structs import DataFile, FileContent, ManifestEntry, Status
from icekeep.spec.metadata_columns import DELETE_FILE_PATH, DELETE_FILE_POS

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
_OF_DATA = frozenset({"file_path", "spec_id", "partition", "sequence_number"})

_OWN_COLUMNS = (DELETE_FILE_PATH, DELETE_FILE_POS)

Partition = tuple[int, bytes]
"""A spec and the bytes of a partition, equal where partitions are."""


class Candidate(msgspec.Struct, frozen=True):
    """A live position delete file.

    Attributes:
        lower, upper: the least and the greatest path that it says it names; `None` where it does not say.
        has_values: whether bounds say that it holds values of the deleted rows, too.
        is_idle: no live data file lies between the bounds of its paths: it is dangling, though only its rows can prove it.
    """

    read: ReadFile
    lower: str | None
    upper: str | None
    has_values: bool = False
    is_idle: bool = False

    @property
    def file(self) -> DataFile:
        return self.read.entry.data_file


class PositionDeletes(msgspec.Struct, frozen=True, kw_only=True):
    """The live position deletes of a scan.

    Attributes:
        by_partition: position delete files that may reach a data file.
        live: by partition, the data files that they may reach, by path.
        dangling: delete files and vectors that reach none.
    """

    by_partition: Mapping[Partition, tuple[Candidate, ...]] = {}
    live: Mapping[Partition, Mapping[str, LiveFile]] = {}
    dangling: tuple[ReadFile, ...] = ()


def position_deletes(scan: Scan, spark: SparkSource) -> PositionDeletes:
    """Look at the delete files whose partition the filter of a scan leaves possible.

    The driver holds them, and the paths and sequence numbers of the data files in their partitions.

    Raises:
        InvalidTableError: a vector names no data file, or a delete file is for a data file of another partition.
        InvalidTableError, MissingFileError, UnsupportedError: manifests cannot be read whole.
    """
    metadata = scan.table.metadata
    manifests = delete_manifests(scan.listed)
    selection = select_manifests(metadata, scan.version.schema, manifests, scan.rows)
    found = _read(scan, spark, selection, _OF_DELETES, _of_positions)
    deletes = found.filter(pc.equal(found["content"], int(FileContent.POSITION_DELETES)))
    # So that plans do not depend on how manifests list files.
    deletes = in_order(deletes, ("spec_id", "partition", "file_path"))
    if not deletes.num_rows:
        return PositionDeletes()
    partitions = deletes.select(["spec_id", "partition"]).group_by(["spec_id", "partition"]).aggregate([])
    data = _read(scan, spark, scan.data, _OF_DATA, lambda files: _lying_in(files, partitions, spark))
    return _matched(deletes, data, PartitionCodecs(metadata.partition_types))


def _of_positions(files: DataFrame) -> DataFrame:
    return files.where(F.col("content") == int(FileContent.POSITION_DELETES))


def _lying_in(files: DataFrame, partitions: pa.Table, spark: SparkSource) -> DataFrame:
    wanted = F.broadcast(arrow_dataframe(started(spark), partitions))
    return files.join(wanted, ["spec_id", "partition"], "left_semi")


def _read(
    scan: Scan, spark: SparkSource, selection: ManifestSelection, columns: frozenset[str], narrowed: Any
) -> pa.Table:
    """The live entries of some manifests; of many, what `narrowed` leaves of them in Spark."""
    storage, opened = scan.table.storage, selection.opened
    wanted = EntryFilter(specs=selection.specs)
    reading = chosen_reading(opened, limits_of(spark).entries_count)
    if reading.by is ReadBy.DRIVER:
        return few_entries(storage, opened, wanted, columns, reading.decoder)
    return arrow_table(narrowed(entries(storage, spark, opened, wanted, columns, reading)), step="reading manifests")


def _matched(deletes: pa.Table, data: pa.Table, codecs: PartitionCodecs) -> PositionDeletes:
    places = pc.index_in(deletes["referenced_data_file"], value_set=data["file_path"].combine_chunks()).to_pylist()
    numbers = data["sequence_number"].to_pylist()
    partitions: list[Partition] = [*zip(data["spec_id"].to_pylist(), data["partition"].to_pylist(), strict=True)]
    least: dict[Partition, int] = {}
    for partition, number in zip(partitions, numbers, strict=True):
        least[partition] = min(number, least.get(partition, number))
    dangling: list[ReadFile] = []
    candidates: dict[Partition, list[Candidate]] = defaultdict(list)
    with_vectors: set[int] = set()
    known = zip(_rows(deletes), places, _path_bounds(deletes), _have_values(deletes), strict=True)
    for row, place, bounds, has_values in known:
        read = _read_file(row, codecs)
        file, partition = read.entry.data_file, (row["spec_id"], row["partition"])
        only = only_data_file(file)
        # One that is for a single data file has a place where that is live.
        number = least.get(partition) if only is None else None
        if place is not None:
            number = numbers[place]
        if number is None or not is_newer(read.entry, number):
            dangling.append(read)
            continue
        if only is not None and partitions[place] != partition:
            raise in_another_partition(file.file_path, only)
        if is_deletion_vector(file):
            with_vectors.add(place)
        else:
            candidates[partition].append(Candidate(read, *bounds, has_values))
    live = _live(candidates, data, partitions, numbers, with_vectors)
    return PositionDeletes(
        by_partition={partition: tuple(_with_idle(some, live[partition])) for partition, some in candidates.items()},
        live=live,
        dangling=tuple(dangling),
    )


def _with_idle(candidates: Iterable[Candidate], live: Mapping[str, LiveFile]) -> Iterable[Candidate]:
    paths = sorted(path.encode() for path in live)
    for one in candidates:
        lower, upper = (None if bound is None else bound.encode() for bound in (one.lower, one.upper))
        between = named_range(paths, lower, upper)
        yield msgspec.structs.replace(one, is_idle=between.start >= between.stop)


def _live(
    wanted: Mapping[Partition, Any],
    data: pa.Table,
    partitions: list[Partition],
    numbers: list[int],
    with_vectors: set[int],
) -> dict[Partition, dict[str, LiveFile]]:
    live: dict[Partition, dict[str, LiveFile]] = {partition: {} for partition in wanted}
    paths = data["file_path"]
    for place, partition in enumerate(partitions):
        if partition in live:
            path = paths[place].as_py()
            if path in live[partition]:
                raise InvalidTableError(f"data file {path!r} is live more than once in the table")
            live[partition][path] = LiveFile(numbers[place], has_vector=place in with_vectors)
    return live


def _rows(deletes: pa.Table) -> Iterable[dict[str, Any]]:
    plain = deletes.drop_columns(["lower_bounds", "upper_bounds"])
    for batch in plain.to_batches(max_chunksize=10_000):
        yield from batch.to_pylist()


def _path_bounds(deletes: pa.Table) -> Iterable[tuple[str | None, str | None]]:
    for only, bounds in zip(deletes["referenced_data_file"].to_pylist(), bounds_of_paths(deletes), strict=True):
        yield (only, only) if only is not None else (_text(bounds[0]), _text(bounds[1]))


def _have_values(deletes: pa.Table) -> Iterable[bool]:
    """Whether bounds are of more columns than paths and positions."""
    for chunk in deletes["lower_bounds"].chunks:
        counts = np.diff(chunk.offsets.to_numpy())
        yield from (counts > len(_OWN_COLUMNS)).tolist()


def _text(bound: bytes | None) -> str | None:
    """A bound as text; one that was cut within a character says nothing that is relied on here."""
    return None if bound is None else bound.decode("utf-8", "replace")


def _read_file(row: Mapping[str, Any], codecs: PartitionCodecs) -> ReadFile:
    file = delete_file(row, codecs.decode(row["spec_id"], row["partition"]))
    entry = ManifestEntry(status=Status.EXISTING, sequence_number=row["sequence_number"], data_file=file)
    return ReadFile(entry, row["manifest_path"])
