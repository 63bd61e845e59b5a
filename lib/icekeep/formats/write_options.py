"""How data files are written, read once from a table's properties."""

from collections.abc import Callable, Mapping

import msgspec
import pyarrow as pa

from icekeep.errors import UsageError
from icekeep.spec.metrics_modes import MetricsMode, metrics_modes
from icekeep.spec.schema import Schema
from icekeep.spec.sorting import SortOrder

MIB = 1024 * 1024

_PARQUET_CODECS = {name: name for name in ("zstd", "snappy", "gzip", "brotli", "lz4")} | {"uncompressed": "none"}
_ORC_CODECS = {name: name for name in ("zlib", "zstd", "snappy", "lz4")} | {"none": "uncompressed"}
_AVRO_CODECS = {"gzip": "deflate", "zstd": "zstandard", "snappy": "snappy", "uncompressed": "null"}


class ParquetOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How Parquet files are written; the defaults are those of the table properties `write.parquet.*`."""

    row_group_size_bytes: int = 128 * MIB
    page_size_bytes: int = MIB
    dictionary_size_bytes: int = 2 * MIB
    compression: str = "zstd"
    compression_level: int | None = 3


class OrcOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How ORC files are written; the defaults are those of the table properties `write.orc.*`."""

    stripe_size_bytes: int = 64 * MIB
    compression: str = "zlib"
    compression_strategy: str = "speed"


class AvroOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How Avro files are written; the defaults are those of the table properties `write.avro.*`."""

    codec: str = "deflate"
    level: int | None = None


class WriteOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How data files are written, and in which format.

    Attributes:
        target_file_size_bytes: where a file ends.
        encoding: of the format that files are written in.
        metrics_modes: what manifests shall say of each column, by field id; null means what a table without
            properties keeps.
    """

    target_file_size_bytes: int = 512 * MIB
    encoding: ParquetOptions | OrcOptions | AvroOptions = ParquetOptions()
    metrics_modes: Mapping[int, MetricsMode] | None = None

    @property
    def file_format(self) -> str:
        """As manifests write it: `PARQUET`, `ORC` or `AVRO`."""
        return _FORMATS[type(self.encoding)]

    @property
    def file_suffix(self) -> str:
        """What the names of the files end in: `.parquet`, `.orc` or `.avro`."""
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
        properties: of the table; keys that say nothing about its data files are passed over.
        schema: that is written, for the properties `write.metadata.metrics.*`; they are not read without.
        sort_order: of the table, whose columns keep bounds.
        target_file_size_bytes: instead of the property's.

    Raises:
        UsageError: a property has a value that it cannot take.
    """
    key = "write.format.default"
    name = properties.get(key, "parquet").strip().lower()
    if name not in _READERS:
        raise UsageError(f"table property {key!r} is {name!r}; set one of {', '.join(_READERS)}", property=key)
    default = WriteOptions().target_file_size_bytes
    return WriteOptions(
        target_file_size_bytes=target_file_size_bytes or _size(properties, "write.target-file-size-bytes", default),
        encoding=_READERS[name](properties),
        metrics_modes=None if schema is None else metrics_modes(properties, schema, sort_order),
    )


def _parquet(properties: Mapping[str, str]) -> ParquetOptions:
    default = ParquetOptions()
    compression, level = _parquet_compression(properties, default)
    return ParquetOptions(
        row_group_size_bytes=_size(properties, "write.parquet.row-group-size-bytes", default.row_group_size_bytes),
        page_size_bytes=_size(properties, "write.parquet.page-size-bytes", default.page_size_bytes),
        dictionary_size_bytes=_size(properties, "write.parquet.dict-size-bytes", default.dictionary_size_bytes),
        compression=compression,
        compression_level=level,
    )


def _orc(properties: Mapping[str, str]) -> OrcOptions:
    default = OrcOptions()
    strategies = {"speed": "speed", "compression": "compression"}
    return OrcOptions(
        stripe_size_bytes=_size(properties, "write.orc.stripe-size-bytes", default.stripe_size_bytes),
        compression=_choice(properties, "write.orc.compression-codec", default.compression, _ORC_CODECS),
        compression_strategy=_choice(properties, "write.orc.compression-strategy", "speed", strategies),
    )


def _avro(properties: Mapping[str, str]) -> AvroOptions:
    codec = _choice(properties, "write.avro.compression-codec", "gzip", _AVRO_CODECS)
    limits = {"deflate": range(10), "zstandard": range(1, 23)}.get(codec)
    key = "write.avro.compression-level"
    text = properties.get(key)
    if text is None or limits is None:
        return AvroOptions(codec=codec)
    if not text.strip().isdecimal() or int(text) not in limits:
        raise UsageError(
            f"table property {key!r} is {text!r}; set a number from {limits[0]} to {limits[-1]}", property=key
        )
    return AvroOptions(codec=codec, level=int(text))


_READERS: dict[str, Callable[[Mapping[str, str]], ParquetOptions | OrcOptions | AvroOptions]] = {
    "parquet": _parquet,
    "orc": _orc,
    "avro": _avro,
}


def _size(properties: Mapping[str, str], key: str, default: int) -> int:
    text = properties.get(key)
    if text is None:
        return default
    if not text.strip().isdecimal() or int(text) < 1:
        raise UsageError(f"table property {key!r} is {text!r}; set a whole number of bytes, 1 or more", property=key)
    return int(text)


def _choice(properties: Mapping[str, str], key: str, default: str, choices: Mapping[str, str]) -> str:
    name = properties.get(key, default).lower()
    if name not in choices:
        raise UsageError(f"table property {key!r} is {name!r}; set one of {', '.join(choices)}", property=key)
    return choices[name]


def _parquet_compression(properties: Mapping[str, str], default: ParquetOptions) -> tuple[str, int | None]:
    key, level_key = "write.parquet.compression-codec", "write.parquet.compression-level"
    codec = _choice(properties, key, default.compression, _PARQUET_CODECS)
    # Levels where the property says none, of the codecs that have levels.
    levels = {default.compression: default.compression_level, "gzip": None, "brotli": None}
    if codec not in levels:
        return codec, None
    text = properties.get(level_key)
    if text is None:
        return codec, levels[codec]
    try:
        level = int(text)
        pa.Codec(codec, compression_level=level).compress(b"")
    except (ValueError, OSError) as error:
        raise UsageError(
            f"table property {level_key!r} is {text!r}, no level of {codec}: {error}", property=level_key
        ) from error
    return codec, level
