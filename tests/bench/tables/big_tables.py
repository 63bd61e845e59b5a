"""Big tables for benchmarks: manifests with any number of entries, of data files that do not exist.

Spark's Avro writer writes the manifests. It knows nothing of Iceberg's key-value metadata, so the header of each file is
replaced by one that has it.
"""

import datetime
import math
import re
import shutil
from collections.abc import Callable, Sequence
from itertools import cycle
from pathlib import Path
from typing import ClassVar
from urllib.parse import urlparse

import msgspec
from msgspec.structs import replace
from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from bench.tables.kept import IDENTIFIER, NAMESPACE, Kept
from icekeep.catalog.base import Committed, Table
from icekeep.planning.spark.session import build_session, stop_session
from icekeep.spec.avro import avro_schema, read_header, write_header
from icekeep.spec.manifests.structs import FieldSummary, ManifestFile
from icekeep.spec.manifests.write import EntryEncoder, ManifestBuilder, write_manifest_list
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.properties import manifest_list_location, metadata_directory
from icekeep.spec.schema import Schema
from icekeep.spec.snapshots import MAIN, Snapshot, SnapshotRef
from icekeep.spec.types import (
    BOOLEAN,
    DATE,
    DOUBLE,
    FLOAT,
    INT,
    LONG,
    STRING,
    TIMESTAMP,
    TIMESTAMPTZ,
    NestedField,
    Type,
    parse_type,
)
from icekeep.spec.updates import AddSnapshot, SetSnapshotRef, requirements_for
from icekeep.spec.values import value_to_bytes
from icekeep.tables.verbs import create_table

FIRST_DAY = 18_262
"""2020-01-01, in days since the epoch: the day of the first partition."""

ACCOUNTS = 1_000_000
ACCOUNTS_A_FILE = 30_000
"""A file has accounts of a range this wide, which begins anywhere: a filter on accounts finds files in every manifest."""

ROWS_A_FILE = 100_000
"""More than any file has."""

_KEYS = ("id", "at", "account")
_MAX_TASKS = 8
_TURN = 7919
_DAY_US = 86_400_000_000


class Shape(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """How big a table is: entries in so many manifests and partitions, each with statistics of so many columns.

    The partitions follow one another over the manifests; or they are `scattered`: each run of as many entries as there are
    partitions has one of every partition.
    """

    entries: int
    manifests: int
    partitions: int = 1000
    columns: int = 20
    scattered: bool = False

    read: ClassVar[tuple[str, ...]] = ("*.avro",)
    is_restored: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.entries % self.manifests:
            raise ValueError(f"{self.entries} entries cannot be dealt out evenly to {self.manifests} manifests")

    @property
    def small(self) -> "Shape":
        return replace(self, entries=2000, manifests=20)

    @property
    def manifest_entries(self) -> int:
        """How many entries each manifest has."""
        return self.entries // self.manifests

    @property
    def tasks(self) -> int:
        """How many tasks write; each makes as many manifests, one after another, as a task costs more than a manifest."""
        return math.gcd(self.manifests, _MAX_TASKS)

    @property
    def name(self) -> str:
        scattered = "-scattered" if self.scattered else ""
        sizes = f"{self.entries}-entries-{self.manifests}-manifests-{self.partitions}-partitions-{self.columns}-columns"
        return sizes + scattered

    @property
    def partition_number(self) -> str:
        """The partition of an entry as an expression over its `id`, in Spark's SQL."""
        if not self.scattered:
            return f"id * {self.partitions} div {self.entries}"
        turn = f"id div {self.partitions} * {_TURN}"  # no two neighbouring runs are in the same order
        return f"pmod(id * {scattering_step(self.partitions)} + {turn}, {self.partitions})"


class Kind(msgspec.Struct, frozen=True):
    """A type of column, and how the bounds of one file follow from two numbers of 12 bits."""

    type: Type
    bound: Callable[[Column], Column]


def little_endian(number: Column, size_bytes: int) -> Column:
    """The lowest bytes of a whole number, lowest first."""
    swapped = F.shiftleft(number, 56)
    for position in range(1, size_bytes):
        byte = F.shiftrightunsigned(number, 8 * position).bitwiseAND(F.lit(0xFF))
        swapped = swapped.bitwiseOR(F.shiftleft(byte, 56 - 8 * position))
    return F.substring(swapped.cast("binary"), 1, size_bytes)


def _instant(number: Column) -> Column:
    return little_endian(F.shiftleft(number, 32) + FIRST_DAY * _DAY_US, 8)


# Floating-point bounds are put together from their bits: the numbers 1 + n / 2**12.
KINDS = {
    "int": Kind(INT, lambda n: little_endian(n * 256, 4)),
    "long": Kind(LONG, lambda n: little_endian(F.shiftleft(n, 16), 8)),
    "double": Kind(DOUBLE, lambda n: little_endian(F.shiftleft(n, 40) + F.lit(1023 << 52), 8)),
    "string": Kind(STRING, lambda n: F.concat(F.lit("item-"), F.hex(n + (1 << 24))).cast("binary")),
    "timestamp": Kind(TIMESTAMP, _instant),
    # From 2**23 to 2**31 the fewest bytes that hold the unscaled value are four.
    "decimal": Kind(parse_type("decimal(12, 2)"), lambda n: F.substring((n + (1 << 24)).cast("binary"), 5, 4)),
    "date": Kind(DATE, lambda n: little_endian(n + FIRST_DAY, 4)),
    "float": Kind(FLOAT, lambda n: little_endian(F.shiftleft(n, 11) + (127 << 23), 4)),
    "timestamptz": Kind(TIMESTAMPTZ, _instant),
    "boolean": Kind(BOOLEAN, lambda n: F.when(n < 1 << 11, F.lit(b"\0")).otherwise(F.lit(b"\1"))),
}
"""Columns come in these kinds, in turn."""


def scattering_step(partitions: int) -> int:
    """How far the partitions of two neighbours lie apart, round and round: far, and so that every partition has its turn."""
    step = partitions * 618 // 1000
    while math.gcd(step, partitions) > 1:
        step += 1
    return max(1, step)


def schema(columns: int) -> Schema:
    """`id` and `at` grow from file to file; `account` is in no order; then come columns of each kind, again and again."""
    named: list[tuple[str, Type]] = [("id", LONG), ("at", TIMESTAMPTZ), ("account", LONG)]
    for number, (name, kind) in zip(range(4, columns + 1), cycle(KINDS.items()), strict=False):
        named.append((f"{name}_{number}", kind.type))
    return Schema(
        fields=tuple(NestedField(field_id=n, name=name, type=type_) for n, (name, type_) in enumerate(named, 1))
    )


def numbered_files(spark: SparkSession, shape: Shape) -> DataFrame:
    """One row a file in the order of the ids, with what is needed of it more than once."""
    unique = F.xxhash64("id", F.lit(0))
    # Few counts, so that the window of the compression often finds one again: 20 value counts are as many bytes as a path.
    count = (unique.bitwiseAND(F.lit(15)) + 16) * (ROWS_A_FILE // 32)
    return spark.range(0, shape.entries, 1, shape.tasks).select(
        "id",
        F.expr(f"id div {shape.manifest_entries}").alias("manifest_number"),
        F.expr(shape.partition_number).alias("partition_number"),
        unique.alias("hash"),
        count.alias("record_count"),
    )


def entries(files: DataFrame, location: str, shape: Shape) -> DataFrame:
    """Added entries of a manifest of version 2, with the fields that `structs.entry_type` has."""
    columns = [_Column(field.field_id, field.name) for field in schema(shape.columns).fields]
    day = F.date_from_unix_date((F.col("partition_number") + FIRST_DAY).cast("int"))
    nothing = F.lit(None)
    file = F.struct(
        F.lit(0).alias("content"),
        _path(location, day).alias("file_path"),
        F.lit("PARQUET").alias("file_format"),
        F.struct(day.alias("at_day")).alias("partition"),
        F.col("record_count"),
        file_size().alias("file_size_in_bytes"),
        _map(columns, lambda c: c.size()).alias("column_sizes"),
        _map(columns, lambda c: F.col("record_count")).alias("value_counts"),
        _map(columns, lambda c: c.nulls()).alias("null_value_counts"),
        _map([c for c in columns if c.has_nans], lambda c: F.lit(0).cast("bigint")).alias("nan_value_counts"),
        _map(columns, lambda c: c.lower()).alias("lower_bounds"),
        _map(columns, lambda c: c.upper()).alias("upper_bounds"),
        nothing.cast("binary").alias("key_metadata"),
        F.array(F.lit(4).cast("bigint")).alias("split_offsets"),
        nothing.cast("array<int>").alias("equality_ids"),
        F.lit(0).alias("sort_order_id"),
        nothing.cast("string").alias("referenced_data_file"),
    )
    missing = nothing.cast("bigint")  # what an added entry inherits from its manifest
    return files.select(
        F.lit(1).alias("status"),
        missing.alias("snapshot_id"),
        missing.alias("sequence_number"),
        missing.alias("file_sequence_number"),
        file.alias("data_file"),
    )


def file_size() -> Column:
    """The length of a file of `numbered_files`, in bytes."""
    return F.col("record_count") * 100 + F.pmod(F.col("hash"), F.lit(1 << 20))


class _Column:
    """The statistics of one column in one row of `numbered_files`."""

    def __init__(self, field_id: int, name: str) -> None:
        self._name = name
        self._kind = name.rsplit("_", 1)[0]
        self.field_id = field_id
        self._hash = F.xxhash64("id", F.lit(field_id))

    @property
    def has_nans(self) -> bool:
        return self._kind in ("float", "double")

    def size(self) -> Column:
        return self._bits(48, 8) + F.col("record_count") * 4

    def nulls(self) -> Column:
        return F.lit(0).cast("bigint") if self._name in _KEYS else self._bits(56, 3)

    def lower(self) -> Column:
        if self._name in _KEYS:
            return little_endian(self._first(), 8)
        return KINDS[self._kind].bound(self._bits(0, 11))

    def upper(self) -> Column:
        match self._name:
            case "id":
                return little_endian(self._first() + F.col("record_count") - 1, 8)
            case "at":
                return little_endian(self._first() + self._bits(32, 31) * 10, 8)
            case "account":
                return little_endian(self._first() + ACCOUNTS_A_FILE - 1, 8)
        return KINDS[self._kind].bound(self._bits(0, 11) + self._bits(11, 11))

    def _first(self) -> Column:
        """The lowest value of a column that has no kind."""
        match self._name:
            case "id":
                return F.col("id") * ROWS_A_FILE
            case "at":
                start = (F.col("partition_number") + FIRST_DAY) * _DAY_US
                return start + self._bits(0, 31) * 20
        return F.pmod(self._hash, F.lit(ACCOUNTS))

    def _bits(self, first: int, count: int) -> Column:
        return F.shiftrightunsigned(self._hash, first).bitwiseAND(F.lit((1 << count) - 1))


def _map(columns: Sequence[_Column], value: Callable[[_Column], Column]) -> Column:
    """A map as manifests store it, an array of pairs."""
    pairs = [F.struct(F.lit(c.field_id).alias("key"), value(c).alias("value")) for c in columns]
    return F.array(*pairs)


def _path(location: str, day: Column) -> Column:
    number = F.lpad(F.col("id").cast("string"), 8, "0")
    unique = F.lower(F.hex(F.col("hash")))
    return F.concat(
        F.lit(f"{location}/data/at_day="),
        day.cast("string"),
        F.lit("/"),
        number,
        F.lit("-"),
        unique,
        F.lit("-00001.parquet"),
    )


AVRO_WRITER = "org.apache.spark.sql.avro.AvroFileFormat"
"""Spark's own class: by its short name, `avro`, pip's PySpark does not find it."""

SPARK = {"spark.master": "local[2]", "spark.driver.memory": "2g", "spark.log.level": "ERROR"}
"""Errors only: the Avro writer warns of each field of each file."""

_PART = re.compile(r"part-(?P<task>\d+)-.+-c(?P<file>\d+)\..*avro")
_FORMAT_VERSION = 2
_SNAPSHOT_ID = 4_242_424_242
_UUID = "0b1900aa-5e1f-4c5a-9d27-6f1d3c2b4a59"
"""In the names of manifests, as other writers name them: what never changes is known by it."""
_HEADER_BYTES = 1 << 20
_COPY_BYTES = 8 << 20


class Filter(msgspec.Struct, frozen=True):
    """A filter as text for icekeep and PyIceberg, for Spark, and for Spark over the table's metadata table `files`."""

    where: str
    sql: str
    files_sql: str


FILTERS = ("none", "partition", "bounds")


def filters(shape: Shape) -> dict[str, Filter]:
    """Nothing; a tenth of the partitions, in the middle of manifests; an account range that 9 % of the files touch."""
    low, high = ACCOUNTS // 2, ACCOUNTS // 2 + 2 * ACCOUNTS_A_FILE
    return {
        "none": Filter("true", "true", "true"),
        "partition": days_filter(shape, max(1, shape.partitions // 10)),
        "bounds": Filter(
            f"account >= {low} and account < {high}",
            f"account >= {low} and account < {high}",
            f"readable_metrics.account.upper_bound >= {low} and readable_metrics.account.lower_bound < {high}",
        ),
    }


def days_filter(shape: Shape, days: int) -> Filter:
    """So many partitions in a row, which begin somewhere in the middle."""
    first = FIRST_DAY + shape.partitions * 43 // 100
    since, until = day_text(first), day_text(first + days)
    return Filter(
        f"at >= '{since}T00:00:00+00:00' and at < '{until}T00:00:00+00:00'",
        f"at >= timestamp '{since} 00:00:00Z' and at < timestamp '{until} 00:00:00Z'",
        f"partition.at_day >= date '{since}' and partition.at_day < date '{until}'",
    )


def day_text(days: int) -> str:
    """Days since the epoch as ISO 8601."""
    return (datetime.date(1970, 1, 1) + datetime.timedelta(days=days)).isoformat()


def make(table: Kept, spark: SparkSession | None = None) -> dict[str, int]:
    """Make a table, in a session of its own if none is given."""
    if spark is None:
        spark = build_session("big-tables", SPARK)
        try:
            return make(table, spark)
        finally:
            stop_session(spark)
    catalog, shape = table.catalog, table.shape
    catalog.create_namespace((NAMESPACE,), exists_ok=True)
    created = create_table(catalog, IDENTIFIER, schema(shape.columns), partition_by=[("at", "day")])
    files = numbered_files(_session(spark), shape)
    staging = table.directory / "staging"
    rows = entries(files, created.metadata.location, shape)
    write_entries(rows, created.metadata, staging, file_rows=shape.manifest_entries)
    directory = metadata_directory(created.metadata)
    written = [
        spliced(path, created.metadata, f"{directory}/{_UUID}-m{number:05}.avro")
        for number, path in enumerate(parts(staging))
    ]
    counted = _counted(files)
    if not len(written) == len(counted) == shape.manifests:
        raise RuntimeError(f"Spark wrote {len(written)} manifests instead of {shape.manifests}")
    manifests = [_manifest(path, row) for path, row in zip(written, counted, strict=True)]
    _commit(created, manifests, sum(row["bytes"] for row in counted))
    shutil.rmtree(staging)
    return {"entries": shape.entries}


def _session(spark: SparkSession) -> SparkSession:
    """A session on the same Spark, to make rows in."""
    session = spark.newSession()
    session.conf.set("spark.sql.ansi.enabled", "false")  # a number may be taken as its bytes
    # The expressions of an entry are too much for one method, which the JVM would not compile: six times as slow.
    session.conf.set("spark.sql.codegen.wholeStage", "false")
    return session


def write_entries(rows: DataFrame, metadata: TableMetadata, directory: Path, *, file_rows: int = 0) -> None:
    """Let Spark write rows of `entries` as Avro files, of at most this many rows each if it is not 0."""
    encoder = EntryEncoder(metadata.partition_type(metadata.default_spec_id), _FORMAT_VERSION)
    avro = msgspec.json.encode(avro_schema(encoder.struct, "manifest_entry")).decode()
    options = {"avroSchema": avro, "compression": "deflate", "maxRecordsPerFile": str(file_rows)}
    rows.write.format(AVRO_WRITER).options(**options).save(directory.as_uri())


def parts(directory: Path) -> list[Path]:
    """What Spark wrote, in the order of the rows: by the numbers of the task and of its file, which the names tell."""

    def order(path: Path) -> tuple[int, int]:
        numbers = _PART.fullmatch(path.name)
        assert numbers is not None, path
        return int(numbers["task"]), int(numbers["file"])

    return sorted(directory.glob("part-*.avro"), key=order)


def spliced(part: Path, metadata: TableMetadata, location: str) -> str:
    """Copy one of Spark's files to a location with the header of a manifest, and remove it; returns the location."""
    encoder = EntryEncoder(metadata.partition_type(metadata.default_spec_id), _FORMAT_VERSION)
    empty, _ = ManifestBuilder(
        location, encoder, metadata.spec, metadata.schema, format_version=_FORMAT_VERSION
    ).finish(None)
    with part.open("rb") as blocks, Path(urlparse(location).path).open("wb") as manifest:
        theirs = read_header(blocks.read(_HEADER_BYTES), str(part))
        manifest.write(write_header(read_header(empty, location).metadata, theirs.sync))
        blocks.seek(theirs.length_bytes)
        shutil.copyfileobj(blocks, manifest, _COPY_BYTES)
    part.unlink()
    return location


def _counted(files: DataFrame) -> list[Row]:
    """What a manifest list says of each manifest, in order."""
    return (
        files.groupBy("manifest_number")
        .agg(
            F.count("*").alias("files"),
            F.sum("record_count").alias("records"),
            F.sum(file_size()).alias("bytes"),
            F.min("partition_number").alias("first"),
            F.max("partition_number").alias("last"),
        )
        .orderBy("manifest_number")
        .collect()
    )


def _manifest(location: str, row: Row) -> ManifestFile:
    lower, upper = (value_to_bytes(DATE, row[name] + FIRST_DAY) for name in ("first", "last"))
    return ManifestFile(
        manifest_path=location,
        manifest_length=Path(urlparse(location).path).stat().st_size,
        partition_spec_id=0,
        added_snapshot_id=_SNAPSHOT_ID,
        added_files_count=row["files"],
        existing_files_count=0,
        deleted_files_count=0,
        added_rows_count=row["records"],
        existing_rows_count=0,
        deleted_rows_count=0,
        partitions=(FieldSummary(contains_null=False, lower_bound=lower, upper_bound=upper),),
    )


def _commit(table: Table, manifests: list[ManifestFile], size_bytes: int) -> None:
    """Append all manifests in one snapshot."""
    metadata = table.metadata
    counts = {
        "data-files": sum(m.added_files_count or 0 for m in manifests),
        "records": sum(m.added_rows_count or 0 for m in manifests),
        "files-size": size_bytes,
    }
    snapshot = Snapshot(
        snapshot_id=_SNAPSHOT_ID,
        sequence_number=metadata.next_sequence_number,
        timestamp_ms=metadata.last_updated_ms,
        manifest_list=manifest_list_location(metadata, _SNAPSHOT_ID, 1, "big"),
        summary={"operation": "append"}
        | {f"{prefix}-{name}": str(count) for prefix in ("added", "total") for name, count in counts.items()},
        schema_id=metadata.current_schema_id,
    )
    assert snapshot.manifest_list is not None
    with table.storage.write(snapshot.manifest_list) as stream:
        stream.write(write_manifest_list(manifests, snapshot, format_version=_FORMAT_VERSION))
    updates = AddSnapshot(snapshot), SetSnapshotRef(MAIN, SnapshotRef(snapshot_id=_SNAPSHOT_ID, type="branch"))
    outcome = table.catalog.swap(table, requirements_for(metadata, updates), updates)
    if not isinstance(outcome, Committed):
        raise RuntimeError(f"the table was not committed: {outcome}")
