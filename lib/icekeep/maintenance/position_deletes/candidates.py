"""The position deletes of a branch as they are: which are dangling, and which data files the others may be for.

Entries of delete files and of data files in; the delete files that are to be looked at out, as values that the driver holds.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from icekeep.commit.file_sets import ReadFile
from icekeep.formats.deletes.positions import LiveFile
from icekeep.maintenance.position_deletes.live_data import Asked, LiveData, Partition, PathRange, live_data
from icekeep.maintenance.position_deletes.live_files import LivePart
from icekeep.planning.deletes import bounds_of_paths, in_order
from icekeep.planning.entries import (
    EntryFilter,
    ReadBy,
    chosen_reading,
    delete_file,
    delete_manifests,
    entries,
    few_entries,
    select_manifests,
)
from icekeep.planning.scan.plan import Scan
from icekeep.planning.spark.rows import arrow_table
from icekeep.planning.spark.session import F, SparkSource, limits_of
from icekeep.spec.manifests.structs import DataFile, FileContent, ManifestEntry, Status
from icekeep.spec.manifests.write import PartitionCodecs
from icekeep.spec.reach import in_another_partition, is_deletion_vector, is_newer, max_reached, only_data_file
from icekeep.spec.schema import DELETE_FILE_PATH, DELETE_FILE_POS

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

    The driver holds them; of the data files in their partitions it holds no more than sums where they are many.

    Args:
        directory: as for `live_data`.

    Raises:
        InvalidTableError: a vector names no data file, or a delete file is for a data file of another partition.
        InvalidTableError, MissingFileError, UnsupportedError: manifests cannot be read whole.
    """
    deletes = _live_deletes(scan, spark)
    if not deletes.num_rows:
        return PositionDeletes()
    found = [*_candidates(deletes, PartitionCodecs(scan.table.metadata.partition_types))]
    return _matched(found, live_data(scan, spark, _asked(found), directory))


def _live_deletes(scan: Scan, spark: SparkSource) -> pa.Table:
    storage = scan.table.storage
    manifests = delete_manifests(scan.listed)
    selection = select_manifests(scan.table.metadata, scan.version.schema, manifests, scan.rows)
    # A vector stands for all deletes of its data file, so no manifest stays closed because of what the list says of it.
    wanted = EntryFilter(specs=selection.specs)
    reading = chosen_reading(manifests, limits_of(spark).entries_count)
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
    known = zip(_rows(deletes), _path_bounds(deletes), _have_values(deletes), strict=True)
    for row, bounds, has_values in known:
        yield (row["spec_id"], row["partition"]), Candidate(_read_file(row, bounds, codecs), *bounds, has_values)


def _asked(deletes: Sequence[tuple[Partition, Candidate]]) -> Asked:
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
    return Asked(named=named, ranges=ranges)


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


def _read_file(row: Mapping[str, Any], bounds: tuple[str | None, str | None], codecs: PartitionCodecs) -> ReadFile:
    """A delete file as far as is asked of it; of bounds only those that are one path, see `own_path`."""
    file = delete_file(row, codecs.decode(row["spec_id"], row["partition"]))
    lower, upper = bounds
    if file.referenced_data_file is None and lower is not None and lower == upper:
        sole = {DELETE_FILE_PATH.field_id: lower.encode()}
        file = msgspec.structs.replace(file, lower_bounds=sole, upper_bounds=sole)
    entry = ManifestEntry(status=Status.EXISTING, sequence_number=row["sequence_number"], data_file=file)
    return ReadFile(entry, row["manifest_path"])
