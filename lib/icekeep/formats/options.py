"""How data files are written and named, from a table's properties.

Names are as in Iceberg's Spark writers: `<partition_id>-<task_attempt_id>-<operation_id>-<count>`. Two attempts at one task need
different `task_attempt_id`s, and two runs different `operation_id`s, such as UUIDs: only the files of one attempt are committed,
and with equal names another could overwrite them.
"""

from collections.abc import Callable, Mapping
from functools import partial
from itertools import count
from typing import Any, TypeVar

import msgspec

from icekeep.spec.avro import AVRO_CODECS, LEVELS
from icekeep.spec.properties import (
    MetricsMode,
    boolean_property,
    choice,
    data_layout,
    metrics_modes,
    probability,
    whole_number,
)
from icekeep.spec.schema import Schema
from icekeep.spec.sorting import SortOrder
from icekeep.spec.types import MIB

_PARQUET_CODECS = {name: name for name in ("zstd", "snappy", "gzip", "brotli", "lz4")}
_PARQUET_CODECS |= {"lz4_raw": "lz4", "uncompressed": "none"}
_ORC_CODECS = {name: name for name in ("zlib", "zstd", "snappy", "lz4")} | {"none": "uncompressed"}
_PARQUET_LEVELS = {"zstd": LEVELS["zstandard"], "gzip": LEVELS["deflate"], "brotli": range(12)}

_Value = TypeVar("_Value")

_count = partial(whole_number, least=1)


class ParquetColumns(msgspec.Struct, frozen=True, kw_only=True):
    """Options of single columns of Parquet files, by full names; columns that the schema lacks are ignored.

    Attributes:
        bloom_filters: whether to write a bloom filter.
        bloom_filter_fpp: the false positive probability, by default 0.01.
        bloom_filter_ndv: the number of distinct values; by default from the data.
        bloom_filter_max_bytes: the limit of each filter of a row group.
        statistics: whether to write statistics; by default true.
        dictionaries: whether values may be dictionary-encoded; by default from the data.
        default_dictionary: false where no column may be, unless `dictionaries` allows it.
    """

    bloom_filters: Mapping[str, bool] = {}
    bloom_filter_fpp: Mapping[str, float] = {}
    bloom_filter_ndv: Mapping[str, int] = {}
    bloom_filter_max_bytes: int = MIB
    statistics: Mapping[str, bool] = {}
    dictionaries: Mapping[str, bool] = {}
    default_dictionary: bool = True


class ParquetOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How Parquet files are written; the defaults are those of the table properties `write.parquet.*`."""

    row_group_size_bytes: int = 128 * MIB
    page_size_bytes: int = MIB
    page_rows: int = 20_000
    page_version: str = "1.0"
    dictionary_size_bytes: int = 2 * MIB
    compression: str = "zstd"
    compression_level: int | None = 3
    columns: ParquetColumns = ParquetColumns()


class OrcOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How ORC files are written; the defaults are those of the table properties `write.orc.*`.

    `bloom_filter_columns` are full names; columns that the schema lacks are ignored.
    """

    stripe_size_bytes: int = 64 * MIB
    batch_rows: int = 1024
    compression: str = "zlib"
    compression_strategy: str = "speed"
    bloom_filter_columns: tuple[str, ...] = ()
    bloom_filter_fpp: float = 0.05


class AvroOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How Avro files are written; the defaults are those of the table properties `write.avro.*`."""

    codec: str = "deflate"
    level: int | None = None


class WriteOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How data files are written, and in which format.

    Attributes:
        encoding: of the format that files are written in.
        metrics_modes: by field id; null for those of a table without properties.
        row_group_arrow_bytes: a row group is written when its data takes this much memory, however well it compresses; less
            where a task has less memory.
    """

    target_file_size_bytes: int = 512 * MIB
    encoding: ParquetOptions | OrcOptions | AvroOptions = ParquetOptions()
    metrics_modes: Mapping[int, MetricsMode] | None = None
    row_group_arrow_bytes: int = 256 * MIB

    @property
    def file_format(self) -> str:
        """As manifests write it: `PARQUET`, `ORC` or `AVRO`."""
        return _FORMATS[type(self.encoding)]

    @property
    def file_suffix(self) -> str:
        """The suffix of file names: `.parquet`, `.orc` or `.avro`."""
        return f".{self.file_format.lower()}"


_FORMATS = {ParquetOptions: "PARQUET", OrcOptions: "ORC", AvroOptions: "AVRO"}


def write_options(
    properties: Mapping[str, str],
    schema: Schema | None = None,
    sort_order: SortOrder | None = None,
    *,
    target_file_size_bytes: int | None = None,
) -> WriteOptions:
    """Read the table properties `write.target-file-size-bytes`, `write.format.default` and those of that format.

    Args:
        schema: of the files; without it the properties `write.metadata.metrics.*` are not read.
        sort_order: of the table, whose columns keep bounds.
        target_file_size_bytes: overrides the property.

    Raises:
        PropertyError: a property has an invalid value.
    """
    encoding: ParquetOptions | OrcOptions | AvroOptions
    match choice(properties, "write.format.default", "parquet", {name: name for name in ("parquet", "orc", "avro")}):
        case "parquet":
            encoding = _parquet(properties)
        case "orc":
            encoding = _orc(properties)
        case _:
            codec = choice(properties, "write.avro.compression-codec", "gzip", AVRO_CODECS)
            level = _level(properties, "write.avro.compression-level", None, LEVELS.get(codec))
            encoding = AvroOptions(codec=codec, level=level)
    default = WriteOptions().target_file_size_bytes
    return WriteOptions(
        target_file_size_bytes=target_file_size_bytes or _count(properties, "write.target-file-size-bytes", default),
        encoding=encoding,
        metrics_modes=None if schema is None else metrics_modes(properties, schema, sort_order),
    )


def _parquet(properties: Mapping[str, str]) -> ParquetOptions:
    default = ParquetOptions()
    prefix = "write.parquet."
    codec = choice(properties, "write.parquet.compression-codec", default.compression, _PARQUET_CODECS)
    level = default.compression_level if codec == default.compression else None
    columns = ParquetColumns(
        bloom_filters=_by_column(properties, f"{prefix}bloom-filter-enabled.column.", boolean_property),
        bloom_filter_fpp=_by_column(properties, f"{prefix}bloom-filter-fpp.column.", probability),
        bloom_filter_ndv=_by_column(properties, f"{prefix}bloom-filter-ndv.column.", _count),
        bloom_filter_max_bytes=_count(properties, "write.parquet.bloom-filter-max-bytes", MIB),
        statistics=_by_column(properties, f"{prefix}stats-enabled.column.", boolean_property),
        dictionaries=_by_column(properties, f"{prefix}dict-encoding-enabled.column.", boolean_property),
        # The one property of Parquet's own library that Iceberg Java reads from a table.
        default_dictionary=boolean_property(properties, "parquet.enable.dictionary", True),
    )
    return ParquetOptions(
        row_group_size_bytes=_count(properties, "write.parquet.row-group-size-bytes", default.row_group_size_bytes),
        page_size_bytes=_count(properties, "write.parquet.page-size-bytes", default.page_size_bytes),
        page_rows=_count(properties, "write.parquet.page-row-limit", default.page_rows),
        page_version=choice(properties, "write.parquet.page-version", "v1", {"v1": "1.0", "v2": "2.0"}),
        dictionary_size_bytes=_count(properties, "write.parquet.dict-size-bytes", default.dictionary_size_bytes),
        compression=codec,
        compression_level=_level(properties, "write.parquet.compression-level", level, _PARQUET_LEVELS.get(codec)),
        columns=columns,
    )


def _orc(properties: Mapping[str, str]) -> OrcOptions:
    default = OrcOptions()
    names = properties.get("write.orc.bloom.filter.columns", "")
    strategies = {name: name for name in ("speed", "compression")}
    return OrcOptions(
        stripe_size_bytes=_count(properties, "write.orc.stripe-size-bytes", default.stripe_size_bytes),
        batch_rows=_count(properties, "write.orc.vectorized.batch-size", default.batch_rows),
        compression=choice(properties, "write.orc.compression-codec", default.compression, _ORC_CODECS),
        compression_strategy=choice(properties, "write.orc.compression-strategy", "speed", strategies),
        bloom_filter_columns=tuple(filter(None, (name.strip() for name in names.split(",")))),
        bloom_filter_fpp=probability(properties, "write.orc.bloom.filter.fpp", default.bloom_filter_fpp),
    )


def _level(properties: Mapping[str, str], key: str, default: int | None, levels: range | None) -> int | None:
    """A codec's level; for a codec without levels the property is not read."""
    if levels is None or key not in properties:
        return default
    return whole_number(properties, key, 0, levels[0], levels[-1])


def _by_column(
    properties: Mapping[str, str], prefix: str, read: Callable[[Mapping[str, str], str, Any], _Value]
) -> dict[str, _Value]:
    """The values of the properties with a prefix, by the column name after it."""
    keys = [key for key in properties if key.startswith(prefix)]
    return {key.removeprefix(prefix): read(properties, key, None) for key in keys}


def attempt_name(operation_id: str, partition_id: int = 0, task_attempt_id: int = 0) -> str:
    """The start of the names of all files of an attempt at a task."""
    return f"{partition_id:05d}-{task_attempt_id}-{operation_id}"


class FileNames:
    """Locations of an attempt's new files, where the table's properties put data files."""

    def __init__(self, attempt: str, table_location: str, properties: Mapping[str, str]) -> None:
        """`attempt` is an `attempt_name`; raises as `data_layout`."""
        self._attempt, self._layout = attempt, data_layout(table_location, properties)
        self._numbers = count(1)

    def location(self, suffix: str, partition_path: str = "") -> str:
        """The location of the next file; one for several partitions has no `partition_path`."""
        return self._layout.location(f"{self._attempt}-{next(self._numbers):05d}{suffix}", partition_path)
