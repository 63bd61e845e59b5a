"""How metadata files are packed: plain or gzip by the spec, and zstd, which other writers use all the same; we read all three."""

import gzip
import io
import re
import sys
import zlib
from typing import Any

from icekeep.errors import UnsupportedError

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

MAX_METADATA_BYTES = 4 << 30
"""A file that grows beyond this is an attack or an accident, not table metadata."""

_GZIP = b"\x1f\x8b"
_ZSTD = b"\x28\xb5\x2f\xfd"
_OTHERS = {
    b"\x04\x22\x4d\x18": "lz4",
    b"BZh": "bzip2",
    b"\xfd7zXZ\x00": "xz",
    b"\xff\x06\x00\x00sNaPpY": "snappy",
}
_NAMED = re.compile(r"\.([a-z0-9]+)\.metadata\.json$")


def unpacked(data: bytes, max_bytes: int = MAX_METADATA_BYTES) -> bytes:
    """A metadata file's text; raises `OSError`, `EOFError` or `zlib.error` for what does not unpack to it."""
    if data.startswith(_ZSTD):
        plain, is_whole = _zstd_unpacked(data, max_bytes + 1)
        if not is_whole and len(plain) <= max_bytes:
            raise EOFError("the packed file ends before its end was reached")
    elif data.startswith(_GZIP):
        with gzip.open(io.BytesIO(data)) as stream:
            plain = stream.read(max_bytes + 1)
    else:
        return data
    if len(plain) > max_bytes:
        raise OSError(f"it unpacks to more than {max_bytes} bytes")
    return plain


def unpacked_head(data: bytes, max_bytes: int) -> bytes:
    """The text of a metadata file of which there may be the first bytes only; raises `zlib.error` where it is broken."""
    if data.startswith(_ZSTD):
        return _zstd_unpacked(data, max_bytes)[0]
    if data.startswith(_GZIP):
        return zlib.decompressobj(wbits=31).decompress(data, max_bytes)
    return data


def refuse_unknown_packing(data: bytes, location: str) -> None:
    """Raise `UnsupportedError` for a file that is packed in a way that we do not read, by its first bytes or its name."""
    codec = next((name for magic, name in _OTHERS.items() if data.startswith(magic)), None)
    named = _NAMED.search(location)
    is_packed = not data.lstrip().startswith((b"{", _GZIP, _ZSTD))
    # One whose name says that we read it is spoilt, if its bytes say something else.
    if codec is None and named is not None and named[1] not in ("gz", "zstd") and is_packed:
        codec = named[1]
    if codec is not None:
        raise UnsupportedError(
            f"cannot read table metadata {location!r}: it is packed with {codec}; plain files, gzip and zstd are read",
            location=location,
        )


def _zstd_unpacked(data: bytes, max_bytes: int) -> tuple[bytes, bool]:
    """At most this many bytes of text, and whether that is the end of it: the last of its frames is whole."""
    plain = bytearray()
    while True:
        stream: Any = zstd.ZstdDecompressor()
        try:
            plain += stream.decompress(data, max_bytes - len(plain))
        except zstd.ZstdError as error:
            raise zlib.error(f"Error while unpacking zstd: {error}") from error
        if not stream.eof or not stream.unused_data or len(plain) >= max_bytes:
            return bytes(plain), stream.eof and not stream.unused_data
        data = stream.unused_data
