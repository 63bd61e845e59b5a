"""Puffin files: blobs of statistics and deletion vectors behind a footer that describes them (Puffin spec).

magic | blob ... blob | magic | footer payload (JSON) | its length (4 bytes) | flags (4 bytes) | magic
"""

from collections.abc import Mapping
from typing import BinaryIO, Self

import msgspec
import pyarrow as pa

from icekeep.errors import InvalidTableError
from icekeep.spec.units import MIB
from icekeep.spec.views import View, view_from_json, view_to_json
from icekeep.storage.base import Storage

MAGIC = b"PFA1"
CREATED_BY = "icekeep"

_TAIL_BYTES = 12
_COMPRESSED_FOOTER = 1
_CODECS = {"lz4": "lz4", "zstd": "zstd"}
_MAX_FOOTER_BYTES = 256 * MIB


class BlobMetadata(View, frozen=True):
    """Where one blob lies and what it is about; offset and length are in bytes of the file.

    `snapshot_id` and `sequence_number` are -1 where they are not known, as in deletion vectors.
    """

    type: str
    fields: tuple[int, ...]
    snapshot_id: int
    sequence_number: int
    offset: int
    length: int
    compression_codec: str | None = None
    properties: Mapping[str, str] = {}


class PuffinFooter(msgspec.Struct, frozen=True):
    """The blobs of a file in order, and the file's own properties."""

    blobs: tuple[BlobMetadata, ...]
    properties: Mapping[str, str]


def read_puffin_footer(storage: Storage, location: str) -> PuffinFooter:
    """Read what a Puffin file holds, without its blobs.

    Raises:
        MissingFileError: there is no such file.
        InvalidTableError: it is no Puffin file, or was cut short.
    """
    with storage.open(location) as stream:
        return footer_of(stream, location)


def footer_of(stream: BinaryIO, location: str) -> PuffinFooter:
    """As `read_puffin_footer`, of a file that is open."""
    try:
        return _footer(stream)
    except (ValueError, msgspec.DecodeError, RecursionError, pa.ArrowException, InvalidTableError) as error:
        raise InvalidTableError(f"cannot read Puffin file {location!r}: {error}", location=location) from error


def read_blob(storage: Storage, location: str, blob: BlobMetadata) -> bytes:
    """The bytes of one blob, unpacked.

    Raises:
        InvalidTableError: the file is shorter than its footer says, or the blob cannot be unpacked.
    """
    data = read_range(storage, location, blob.offset, blob.length)
    codec = blob.compression_codec
    if codec is None:
        return data
    if codec not in _CODECS:
        raise InvalidTableError(f"a blob of {location!r} is packed with {codec!r}; the Puffin spec knows lz4 and zstd")
    try:
        with pa.CompressedInputStream(pa.py_buffer(data), _CODECS[codec]) as stream:
            return bytes(stream.read())
    except (OSError, pa.ArrowException) as error:
        raise InvalidTableError(f"a blob of {location!r} cannot be unpacked: {error}", location=location) from error


def read_range(storage: Storage, location: str, offset: int, length: int) -> bytes:
    """Some bytes of a file; raises `InvalidTableError` where it does not have them all."""
    with storage.open(location) as stream:
        if offset < 0 or length < 0:
            raise InvalidTableError(f"{location!r} is asked for {length} bytes from {offset}", location=location)
        stream.seek(offset)
        data = stream.read(length)
    if len(data) != length:
        raise InvalidTableError(f"{location!r} ends before byte {offset + length}", location=location)
    return data


class PuffinWriter:
    """Writes blobs, then the footer when the block ends; a block that raises leaves no file.

    `length_bytes` is the length of the finished file.
    """

    def __init__(self, storage: Storage, location: str, properties: Mapping[str, str] | None = None) -> None:
        self._file = storage.write(location)
        self._properties = {"created-by": CREATED_BY, **(properties or {})}
        self._blobs: list[BlobMetadata] = []
        self.length_bytes = 0

    def __enter__(self) -> Self:
        self._stream = self._file.__enter__()
        self._write(MAGIC)
        return self

    def __exit__(self, *failure: object) -> None:
        if failure[0] is None:
            try:
                self._write(_footer_bytes(self._blobs, self._properties))
            except BaseException as error:
                self._file.__exit__(type(error), error, error.__traceback__)
                raise
        self._file.__exit__(*failure)  # type: ignore[arg-type]

    def add(
        self,
        data: bytes,
        type_: str,
        *,
        fields: tuple[int, ...] = (),
        snapshot_id: int = -1,
        sequence_number: int = -1,
        properties: Mapping[str, str] | None = None,
    ) -> BlobMetadata:
        """Append one blob as it is; returns where it lies."""
        blob = BlobMetadata(
            type=type_,
            fields=fields,
            snapshot_id=snapshot_id,
            sequence_number=sequence_number,
            offset=self.length_bytes,
            length=len(data),
            properties=dict(properties or {}),
        )
        self._write(data)
        self._blobs.append(blob)
        return blob

    def _write(self, data: bytes) -> None:
        self._stream.write(data)
        self.length_bytes += len(data)


def _footer_bytes(blobs: list[BlobMetadata], properties: Mapping[str, str]) -> bytes:
    payload = msgspec.json.encode({"blobs": [view_to_json(blob) for blob in blobs], "properties": dict(properties)})
    return MAGIC + payload + len(payload).to_bytes(4, "little", signed=True) + bytes(4) + MAGIC


def _footer(stream: BinaryIO) -> PuffinFooter:
    size = stream.seek(0, 2)
    tail = _at(stream, size - _TAIL_BYTES, _TAIL_BYTES)
    length, flags = int.from_bytes(tail[:4], "little", signed=True), tail[4]
    if tail[8:] != MAGIC or any(tail[5:8]) or flags & ~_COMPRESSED_FOOTER:
        raise ValueError("it does not end as a Puffin file does")
    if not 0 <= length <= _MAX_FOOTER_BYTES:
        raise ValueError(f"its footer says that it is {length} bytes long")
    start = size - _TAIL_BYTES - length - len(MAGIC)
    payload = _at(stream, start, length + len(MAGIC))
    if start < len(MAGIC) or not payload.startswith(MAGIC) or _at(stream, 0, len(MAGIC)) != MAGIC:
        raise ValueError("it does not begin as a Puffin file does")
    plain = payload[len(MAGIC) :]
    if flags:
        plain = _unpacked(plain)
    value = msgspec.json.decode(plain)
    if not isinstance(value, dict) or not isinstance(value.get("blobs"), list):
        raise ValueError("its footer has no list of blobs")
    blobs = tuple(view_from_json(BlobMetadata, blob, f"blobs[{i}]") for i, blob in enumerate(value["blobs"]))
    for blob in blobs:
        if blob.offset < len(MAGIC) or blob.length < 0 or blob.offset + blob.length > start:
            raise ValueError(f"a blob lies at bytes {blob.offset} to {blob.offset + blob.length}, outside of the blobs")
    return PuffinFooter(blobs, value.get("properties") or {})


def _unpacked(payload: bytes) -> bytes:
    try:
        with pa.CompressedInputStream(pa.py_buffer(payload), "lz4") as stream:
            plain = bytes(stream.read(_MAX_FOOTER_BYTES + 1))
    except OSError as error:
        raise ValueError(f"its footer cannot be unpacked: {error}") from error
    if len(plain) > _MAX_FOOTER_BYTES:
        raise ValueError(f"its footer unpacks to more than {_MAX_FOOTER_BYTES} bytes")
    return plain


def _at(stream: BinaryIO, position: int, length: int) -> bytes:
    if position < 0:
        raise ValueError("it is too short")
    stream.seek(position)
    data = stream.read(length)
    if len(data) != length:
        raise ValueError("it is cut short")
    return data
