"""Rows of manifest entries made by Spark out of an id: deterministic, with bounds of many types, of files that do not exist.

Values are cut from hashes, so that nothing but the clustered columns compresses well, as in manifests of real tables.
Bounds are bytes as the spec's "Binary single-value serialization" has them.
"""

import math
from collections.abc import Callable, Sequence
from itertools import cycle
from typing import ClassVar

import msgspec
from msgspec.structs import replace
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from icekeep.spec.schema import Schema
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
