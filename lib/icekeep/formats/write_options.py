"""How data files are written, read once from a table's properties."""

from collections.abc import Mapping

import msgspec
import pyarrow as pa

from icekeep.errors import UsageError

MIB = 1024 * 1024

_CODECS = {name: name for name in ("zstd", "snappy", "gzip", "brotli", "lz4")} | {"uncompressed": "none"}


class WriteOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How data files are written; the defaults are those of the table properties that `write_options` reads."""

    target_file_size_bytes: int = 512 * MIB
    row_group_size_bytes: int = 128 * MIB
    page_size_bytes: int = MIB
    dictionary_size_bytes: int = 2 * MIB
    compression: str = "zstd"
    compression_level: int | None = 3


_DEFAULTS = WriteOptions()
_DEFAULT_LEVELS = {_DEFAULTS.compression: _DEFAULTS.compression_level, "gzip": None, "brotli": None}
"""Levels where the property says none, of the codecs that have levels."""


def write_options(properties: Mapping[str, str], *, target_file_size_bytes: int | None = None) -> WriteOptions:
    """Read the table properties `write.target-file-size-bytes` and `write.parquet.*`.

    Args:
        properties: of the table; keys that say nothing about Parquet files are passed over.
        target_file_size_bytes: instead of the property's.

    Raises:
        UsageError: a property has a value that it cannot take.
    """
    size = target_file_size_bytes or _size(properties, "write.target-file-size-bytes", _DEFAULTS.target_file_size_bytes)
    compression, level = _compression(properties)
    return WriteOptions(
        target_file_size_bytes=size,
        row_group_size_bytes=_size(properties, "write.parquet.row-group-size-bytes", _DEFAULTS.row_group_size_bytes),
        page_size_bytes=_size(properties, "write.parquet.page-size-bytes", _DEFAULTS.page_size_bytes),
        dictionary_size_bytes=_size(properties, "write.parquet.dict-size-bytes", _DEFAULTS.dictionary_size_bytes),
        compression=compression,
        compression_level=level,
    )


def _size(properties: Mapping[str, str], key: str, default: int) -> int:
    text = properties.get(key)
    if text is None:
        return default
    if not text.strip().isdecimal() or int(text) < 1:
        raise UsageError(f"table property {key!r} is {text!r}; set a whole number of bytes, 1 or more", property=key)
    return int(text)


def _compression(properties: Mapping[str, str]) -> tuple[str, int | None]:
    key, level_key = "write.parquet.compression-codec", "write.parquet.compression-level"
    name = properties.get(key, _DEFAULTS.compression).lower()
    if name not in _CODECS:
        raise UsageError(f"table property {key!r} is {name!r}; set one of {', '.join(_CODECS)}", property=key)
    if name not in _DEFAULT_LEVELS:
        return _CODECS[name], None
    text = properties.get(level_key)
    if text is None:
        return _CODECS[name], _DEFAULT_LEVELS[name]
    try:
        level = int(text)
        pa.Codec(name, compression_level=level).compress(b"")
    except (ValueError, OSError) as error:
        raise UsageError(
            f"table property {level_key!r} is {text!r}, no level of {name}: {error}", property=level_key
        ) from error
    return _CODECS[name], level
