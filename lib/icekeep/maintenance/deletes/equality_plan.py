"""Which equality deletes are converted, and which data files must be looked through for that.

All of a branch, or with a filter those of partitions that it may match; the deletes of all partitions only where everything
that they reach is in such partitions. Few data files are held by the driver, many stay in Spark.

Within a scope, all partitions or a single one, deletes are in the order of what they reach: those that reach a data file are
all from one on (`spec.delete_runs`). So of each data file two numbers are known, however many deletes reach it, and nothing
grows with the pairs of both.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from icekeep.commit.manifest_writer import refuse_unknown_transforms
from icekeep.errors import InvalidTableError
from icekeep.planning.deletes import reaching
from icekeep.planning.entries import (
    EntryFilter,
    ReadBy,
    Reading,
    SpecFilter,
    chosen_reading,
    delete_file_from_row,
    entries,
    entries_count,
    few_entries,
)
from icekeep.planning.manifests import ENTRIES, MATCHED_COLUMNS
from icekeep.planning.scan.plan import (
    Scan,
    data_manifests,
    delete_manifests,
    matched_with_deletes,
    refuse_encrypted_file,
)
from icekeep.planning.spark.rows import collected
from icekeep.planning.spark.session import F, SparkSource, from_arrow_schema, limits_of, on_disk
from icekeep.rendered import Rendered
from icekeep.spec.filters.evaluators import partition_matches, project_inclusive
from icekeep.spec.filters.expressions import ALWAYS_TRUE
from icekeep.spec.manifests.structs import DataFile, FileContent, ManifestEntry, ManifestFile, Status
from icekeep.spec.manifests.write import PartitionCodecs
from icekeep.spec.reach import Specs, is_global, max_reached
from icekeep.spec.snapshots import MAIN

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Scope = tuple[int, bytes]
"""A partition spec and the bytes of a partition (`PartitionCodec`)."""

EVERYWHERE: Scope = (-1, b"")
"""Of deletes that are for all partitions."""


class EqualityDelete(msgspec.Struct, frozen=True):
    """A live equality delete file as it was read, and the bytes of its partition."""

    entry: ManifestEntry
    partition: bytes

    def scope(self, specs: Specs) -> Scope | None:
        """The partition that it is for; `None` for all of the table."""
        file = self.entry.data_file
        return None if is_global(file, specs) else (file.spec_id, self.partition)


class Reach(msgspec.Struct, frozen=True):
    """Equality deletes by scope, in order, and the greatest data sequence number that each reaches."""

    scopes: tuple[tuple[DataFile, ...], ...]
    greatest: tuple[tuple[int, ...], ...]
    numbers: Mapping[Scope, int]

    @classmethod
    def of(cls, deletes: Iterable[EqualityDelete], specs: Specs) -> "Reach":
        """Put deletes in order; raises `InvalidTableError` where a partition spec is missing."""
        by_place: dict[Scope, list[ManifestEntry]] = defaultdict(list)
        for delete in deletes:
            by_place[delete.scope(specs) or EVERYWHERE].append(delete.entry)
        in_order = [
            sorted(some, key=lambda entry: (max_reached(entry), entry.data_file.file_path))
            for some in by_place.values()
        ]
        return cls(
            scopes=tuple(tuple(entry.data_file for entry in some) for some in in_order),
            greatest=tuple(tuple(map(max_reached, some)) for some in in_order),
            numbers={place: number for number, place in enumerate(by_place)},
        )

    def of_file(self, spec_id: int, partition: bytes, sequence_number: int) -> tuple[tuple[int, int], ...]:
        """For each scope that has deletes of a data file: its number, and the place of the first of them."""
        found = []
        for place in (EVERYWHERE, (spec_id, partition)):
            number = self.numbers.get(place)
            if number is None:
                continue
            first = bisect_left(self.greatest[number], sequence_number)
            if first < len(self.greatest[number]):
                found.append((number, first))
        return tuple(found)


DATA_COLUMNS = (
    "file_path",
    "file_format",
    "spec_id",
    "partition",
    "sequence_number",
    "first_row_id",
    "record_count",
    "file_size_in_bytes",
    "key_metadata",
)
_STEP = "planning what is to be looked through"
_DATA = pa.schema([field for field in ENTRIES if field.name in DATA_COLUMNS])


class ConvertEqualityDeletesPlan(Rendered, frozen=True, kw_only=True):
    """What a run with the same arguments would do now; sizes in bytes.

    Attributes:
        snapshot_id: the head of `branch`; `None` for a table without data.
        converted_equality_delete_files_count: that go out of the table and have data files to reach.
        converted_bytes_count: of all that go.
        removed_dangling_equality_delete_files_count: that go and reach none.
        left_equality_delete_files_count: those that stay, since `where` leaves them out, or a data file that they reach.
        read_data_files_count: how many data files are looked through, in the columns that deletes compare.
    """

    branch: str = MAIN
    snapshot_id: int | None = None
    converted_equality_delete_files_count: int = 0
    converted_bytes_count: int = 0
    removed_dangling_equality_delete_files_count: int = 0
    left_equality_delete_files_count: int = 0
    read_data_files_count: int = 0
    read_records_count: int = 0


class DataFiles(msgspec.Struct, frozen=True):
    """The data files that chosen deletes reach, with `DATA_COLUMNS`; in format version 3 also `deletes` of positions.

    One of the two is `None`: `few` are rows, `many` are lazy. Rows of `few` are in the order of partition and age.
    """

    few: list[dict[str, Any]] | None = None
    many: "DataFrame | None" = None

    def forget(self) -> None:
        """Let Spark forget many files: their rows are kept on executors' disks, so that they are planned once."""
        if self.many is not None:
            self.many.unpersist()


class ConversionPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What one round does.

    Attributes:
        deletes: that go.
        reach: which of them reach a data file.
        files: that are looked through; `forget` them in the end.
        read_bytes: of these data files.
    """

    preview: ConvertEqualityDeletesPlan
    sequence_number: int = 0
    deletes: tuple[EqualityDelete, ...] = ()
    reach: Reach = Reach((), (), {})
    files: DataFiles = DataFiles(few=[])
    read_bytes: int = 0

    @property
    def opened(self) -> tuple[float, float]:
        """Bytes and number of files that are looked through and of deletes that are read; infinite where Spark has them."""
        if self.files.few is None:
            return float("inf"), float("inf")
        if not self.files.few:
            # The deletes reach no file, and only go.
            return 0, 0
        deletes_bytes = sum(one.entry.data_file.file_size_in_bytes for one in self.deletes)
        deletes_count = len(self.deletes) - self.preview.removed_dangling_equality_delete_files_count
        return self.read_bytes + deletes_bytes, len(self.files.few) + deletes_count

    @property
    def shared_bytes(self) -> int:
        """Of deletes that are for the whole table, which are read for any of its files."""
        of_table = (self.reach.scopes[number] for scope, number in self.reach.numbers.items() if scope == EVERYWHERE)
        return sum(file.file_size_in_bytes for files in of_table for file in files)


def plan(scan: Scan, spark: SparkSource, branch: str) -> ConversionPlan:
    """Say what a run does with the equality deletes of a scan, whose filter chooses partitions."""
    snapshot = scan.version.snapshot
    preview = ConvertEqualityDeletesPlan(branch=branch, snapshot_id=None if snapshot is None else snapshot.snapshot_id)
    planner = _Planner(scan, spark)
    found = planner.equality_deletes()
    if snapshot is None or not found:
        return ConversionPlan(preview=preview)
    return msgspec.structs.replace(planner.plan(found, preview), sequence_number=snapshot.sequence_number)


class _Planner:
    """Plans one round."""

    def __init__(self, scan: Scan, spark: SparkSource) -> None:
        self._scan, self._spark = scan, spark
        self._metadata, self._storage = scan.table.metadata, scan.table.storage
        self._data, self._deletes = data_manifests(scan.listed), delete_manifests(scan.listed)
        self._codecs = PartitionCodecs(self._metadata.partition_types)
        self._matching: dict[Scope, bool] = {}
        self._reading = chosen_reading(self._data, limits_of(spark).entries_count)

    def plan(self, found: Sequence[EqualityDelete], preview: ConvertEqualityDeletesPlan) -> ConversionPlan:
        """What to do with the equality deletes of the scan."""
        # The live data files, where they are few.
        held = None
        if self._reading.by is ReadBy.DRIVER:
            held = self._few_entries(self._data, DATA_COLUMNS, self._reading)
        try:
            data = self._all_data if held is None else held
            least = _min_numbers(data)
            chosen = self._chosen(found, least)
            if chosen:
                _refuse_listed_twice(data)
                refuse_unknown_transforms({m.partition_spec_id for m in self._data}, self._metadata.specs_by_id)
            reach = Reach.of(chosen, self._metadata.specs_by_id)
            files = self._files(held, reach)
            files_count, records_count, size_bytes = _amounts(files)
            dangling_count, least_of_all = 0, min(least.values(), default=None)
            for delete in chosen:
                scope = delete.scope(self._metadata.specs_by_id)
                number = least_of_all if scope is None else least.get(scope)
                dangling_count += number is None or max_reached(delete.entry) < number
        finally:
            if "_all_data" in self.__dict__:
                self._all_data.unpersist()
        return ConversionPlan(
            preview=msgspec.structs.replace(
                preview,
                converted_equality_delete_files_count=len(chosen) - dangling_count,
                converted_bytes_count=sum(delete.entry.data_file.file_size_in_bytes for delete in chosen),
                removed_dangling_equality_delete_files_count=dangling_count,
                left_equality_delete_files_count=len(found) - len(chosen),
                read_data_files_count=files_count,
                read_records_count=records_count,
            ),
            deletes=tuple(chosen),
            reach=reach,
            files=files,
            read_bytes=size_bytes,
        )

    def equality_deletes(self) -> list[EqualityDelete]:
        reading = chosen_reading(self._deletes, limits_of(self._spark).entries_count)
        columns = {"content", "file_path", "file_format", "spec_id", "partition", "sequence_number", "record_count"}
        columns |= {"file_size_in_bytes", "equality_ids", "key_metadata"}
        if reading.by is ReadBy.DRIVER:
            some = self._few_entries(self._deletes, columns, reading)
            rows = some.filter(pc.equal(some["content"], int(FileContent.EQUALITY_DELETES))).to_pylist()
        else:
            some = entries(self._storage, self._spark, self._deletes, self._everything(self._deletes), columns, reading)
            deletes = some.where(F.col("content") == int(FileContent.EQUALITY_DELETES))
            rows = [row.asDict() for row in collected(deletes, "looking for equality deletes")]
        return [EqualityDelete(delete_entry(row, self._codecs), bytes(row["partition"])) for row in rows]

    def _few_entries(self, manifests: Sequence[ManifestFile], columns: Collection[str], reading: Reading) -> pa.Table:
        return few_entries(self._storage, manifests, self._everything(manifests), columns, reading.decoder)

    @cached_property
    def _all_data(self) -> "DataFrame":
        """The live data files where Spark has them; they are asked more than once, and read once."""
        everything = self._everything(self._data)
        rows = entries(self._storage, self._spark, self._data, everything, DATA_COLUMNS, self._reading)
        return on_disk(rows)

    def _everything(self, manifests: Sequence[ManifestFile]) -> EntryFilter:
        spec_ids = {manifest.partition_spec_id for manifest in manifests}
        return EntryFilter(specs={spec_id: SpecFilter(self._metadata.partition_type(spec_id)) for spec_id in spec_ids})

    def _chosen(self, found: Sequence[EqualityDelete], least: Mapping[Scope, int]) -> list[EqualityDelete]:
        """Those whose data files are all in partitions that the filter may match."""
        specs = self._metadata.specs_by_id
        outside = min((number for place, number in least.items() if not self._may_match(place)), default=None)
        chosen = []
        for delete in found:
            scope = delete.scope(specs)
            reaches_none_outside = outside is None or max_reached(delete.entry) < outside
            if reaches_none_outside if scope is None else self._may_match(scope):
                chosen.append(delete)
        return chosen

    def _may_match(self, place: Scope) -> bool:
        """Whether the filter of the scan may match a partition."""
        rows = self._scan.where
        if rows is ALWAYS_TRUE:
            return True
        if place not in self._matching:
            spec_id, partition = place
            projected = project_inclusive(rows, self._metadata.specs_by_id[spec_id], self._scan.version.schema)
            fields = self._metadata.partition_type(spec_id).fields
            self._matching[place] = partition_matches(projected, fields, self._codecs.decode(spec_id, partition))
        return self._matching[place]

    def _files(self, held: pa.Table | None, reach: Reach) -> DataFiles:
        """The reached data files, in version 3 each with the deletes of its positions."""
        with_positions = self._metadata.format_version > 2 and bool(self._deletes)
        if held is not None:
            reached = held.filter(_reached(held, reach))
            keys = [(name, "ascending") for name in ("spec_id", "partition", "sequence_number", "file_path")]
            reached = reached.take(pc.sort_indices(reached, sort_keys=keys))
            rows = reached.to_pylist()
            for row in rows:
                refuse_encrypted_file(row)
            if not with_positions or self._add_positions(reached, rows):
                return DataFiles(few=rows)
        many = self._all_data.mapInArrow(partial(_reached_rows, reach), from_arrow_schema(_DATA))
        if with_positions:
            every = self._everything(self._deletes)
            count = entries_count(self._data)
            many = matched_with_deletes(
                many, self._scan.table, self._spark, self._deletes, every, data_count=count, only_positions=True
            )
        return DataFiles(many=on_disk(many))

    def _add_positions(self, files: pa.Table, rows: list[dict[str, Any]]) -> bool:
        """Give each row its `deletes`; returns false where they are too many to be held."""
        reading = chosen_reading(self._deletes, limits_of(self._spark).entries_count)
        if reading.by is not ReadBy.DRIVER:
            return False
        some = self._few_entries(self._deletes, MATCHED_COLUMNS, reading)
        positions = some.filter(pc.equal(some["content"], int(FileContent.POSITION_DELETES)))
        found = reaching(files, positions, self._metadata.specs_by_id)
        if found is None:
            return False
        deletes = found.deletes.to_pylist()
        for number, row in enumerate(rows):
            row["deletes"] = [deletes[place] for place in found.of_row(number)]
        return True


def data_entry(row: Mapping[str, Any], codecs: PartitionCodecs) -> ManifestEntry:
    """A live data file as it was read, from a row of `DATA_COLUMNS`; its sort order is the row's, if that has one."""
    file = DataFile(
        file_path=row["file_path"],
        file_format=row["file_format"],
        spec_id=row["spec_id"],
        partition=codecs.decode(row["spec_id"], bytes(row["partition"])),
        record_count=row["record_count"],
        file_size_in_bytes=row["file_size_in_bytes"],
        first_row_id=row["first_row_id"],
        sort_order_id=row.get("sort_order_id"),
    )
    return ManifestEntry(status=Status.EXISTING, sequence_number=row["sequence_number"], data_file=file)


def delete_entry(row: Mapping[str, Any], codecs: PartitionCodecs) -> ManifestEntry:
    """A live delete file as it was read, from the fields of `REACHING_DELETES`; those that it lacks are null."""
    file = delete_file_from_row(row, codecs.decode(row["spec_id"], bytes(row["partition"])))
    return ManifestEntry(status=Status.EXISTING, sequence_number=row["sequence_number"], data_file=file)


def _min_numbers(data: "pa.Table | DataFrame") -> dict[Scope, int]:
    """The least data sequence number of live data files in each partition."""
    if isinstance(data, pa.Table):
        found = data.group_by(["spec_id", "partition"]).aggregate([("sequence_number", "min")]).to_pylist()
        return {(row["spec_id"], row["partition"]): row["sequence_number_min"] for row in found}
    least = data.groupBy("spec_id", "partition").agg(F.min("sequence_number").alias("least"))
    return {(row["spec_id"], bytes(row["partition"])): row["least"] for row in collected(least, _STEP)}


def _refuse_listed_twice(data: "pa.Table | DataFrame") -> None:
    """Raise `InvalidTableError` where two entries are of one data file: positions that reach one of them reach the other too."""
    if isinstance(data, pa.Table):
        counts = data.group_by("file_path").aggregate([([], "count_all")])
        twice = counts.filter(pc.greater(counts["count_all"], 1))["file_path"].slice(0, 1).to_pylist()
    else:
        counted = data.groupBy("file_path").count().where(F.col("count") > 1).limit(1)
        twice = [row["file_path"] for row in collected(counted, _STEP)]
    if twice:
        raise InvalidTableError(
            f"data file {twice[0]!r} is live more than once in the table, with rows that deletes reach in one place and not in "
            "the other; `check` says which fault that is"
        )


def _amounts(files: DataFiles) -> tuple[int, int, int]:
    """How many data files, how many rows, and how many bytes."""
    if files.few is not None:
        return (
            len(files.few),
            sum(row["record_count"] for row in files.few),
            sum(row["file_size_in_bytes"] for row in files.few),
        )
    assert files.many is not None
    sums = (F.coalesce(F.sum(name), F.lit(0)) for name in ("record_count", "file_size_in_bytes"))
    try:
        [[files_count, records_count, size_bytes]] = collected(files.many.agg(F.count("*"), *sums), _STEP)
    except BaseException:
        files.forget()
        raise
    return files_count, records_count, size_bytes


def _reached(files: pa.Table | pa.RecordBatch, reach: Reach) -> pa.Array:
    rows = zip(*(files.column(name).to_pylist() for name in ("spec_id", "partition", "sequence_number")), strict=True)
    return pa.array(np.fromiter((bool(reach.of_file(*row)) for row in rows), np.bool_, files.num_rows))


def _reached_rows(reach: Reach, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield batch.filter(_reached(batch, reach)).select(_DATA.names)
