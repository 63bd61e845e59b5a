"""Puffin files and the deletion vectors in them (Puffin spec; spec, "Deletion Vectors").

magic | blob ... blob | magic | footer payload (JSON) | its length (4 bytes) | flags (4 bytes) | magic

A deletion vector is a blob: the deleted rows of one data file as a bitmap of positions. Its manifest entry has the blob's
offset and length, so that a reader needs no footer. One file may hold the vectors of many data files. The blob has a frame:

length (4 bytes, big-endian, of magic and bitmap) | magic | bitmap | CRC-32 of magic and bitmap (4 bytes, big-endian)
"""

import io
import zlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, BinaryIO, Self

import msgspec
import pyarrow as pa
from pyroaring import BitMap64

from icekeep.errors import IcekeepBug, InvalidTableError
from icekeep.spec.manifests.structs import DataFile, FileContent
from icekeep.spec.schema import POS
from icekeep.spec.snapshots import JsonObject, object_from_json, object_to_json
from icekeep.spec.types import MIB
from icekeep.storage.base import Storage

MAGIC = b"PFA1"
CREATED_BY = "icekeep"

FILE_FORMAT = "PUFFIN"

BLOB_TYPE = "deletion-vector-v1"
REFERENCED_DATA_FILE = "referenced-data-file"
"""The property of a vector's blob with the path of its data file."""

_VECTOR_MAGIC = bytes.fromhex("d1d33964")
_NUMBER_BYTES = 4

_TAIL_BYTES = 12
_COMPRESSED_FOOTER = 1
_MAX_FOOTER_BYTES = 256 * MIB
_MAX_POSITION = (1 << 63) - 1


class BlobMetadata(JsonObject, frozen=True):
    """The footer's description of a blob; offset and length are in bytes of the file.

    `snapshot_id` and `sequence_number` are -1 where they are unknown, as in deletion vectors.
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
    """Read the footer of a Puffin file; raises `InvalidTableError` for any other file, and one that was cut short."""
    with storage.open(location) as stream:
        return footer_of(stream, location)


def footer_of(stream: BinaryIO, location: str) -> PuffinFooter:
    """As `read_puffin_footer`, for an open file."""
    try:
        return _footer(stream)
    except (ValueError, msgspec.DecodeError, RecursionError, pa.ArrowException, InvalidTableError) as error:
        raise InvalidTableError(f"cannot read Puffin file {location!r}: {error}", location=location) from error


def read_range(storage: Storage, location: str, offset: int, length: int) -> bytes:
    """The stored bytes of a blob; raises `InvalidTableError` where the file does not have them all."""
    with storage.open(location) as stream:
        if offset < 0 or length < 0:
            raise InvalidTableError(f"{location!r} is asked for {length} bytes from {offset}", location=location)
        stream.seek(offset)
        data = stream.read(length)
    if len(data) != length:
        raise InvalidTableError(f"{location!r} ends before byte {offset + length}", location=location)
    return data


def with_references_changed(data: bytes, location: str, change: Callable[[str], str]) -> bytes:
    """A Puffin file whose blobs name other data files (`referenced-data-file`); each blob stays where it is.

    Raises `InvalidTableError` where the data is no Puffin file.
    """
    stream = io.BytesIO(data)
    footer_of(stream, location)
    start, footer = _raw_footer(stream)
    for blob in footer["blobs"]:
        properties = blob.get("properties") or {}
        if REFERENCED_DATA_FILE in properties:
            blob["properties"] = {**properties, REFERENCED_DATA_FILE: change(properties[REFERENCED_DATA_FILE])}
    return data[:start] + _packed_footer(footer)


def unpacked_blob(data: bytes, codec: str | None) -> bytes:
    """The bytes of a blob as they are stored, unpacked; raises `InvalidTableError` for an unknown codec and damaged bytes."""
    if codec is None:
        return data
    if codec not in ("lz4", "zstd"):
        raise InvalidTableError(f"a blob of a Puffin file is packed by {codec!r}, which is not known")
    try:
        with pa.CompressedInputStream(pa.py_buffer(data), codec) as stream:
            plain = bytes(stream.read(_MAX_FOOTER_BYTES + 1))
    except OSError as error:
        raise InvalidTableError(f"a blob of a Puffin file cannot be unpacked: {error}") from error
    if len(plain) > _MAX_FOOTER_BYTES:
        raise InvalidTableError(f"a blob of a Puffin file unpacks to more than {_MAX_FOOTER_BYTES} bytes")
    return plain


class PuffinWriter:
    """Writes blobs, then the footer when the block ends; a block that raises leaves no file.

    `length_bytes` is the length of the finished file, `footer_bytes` that of its footer.
    """

    def __init__(self, storage: Storage, location: str, properties: Mapping[str, str] | None = None) -> None:
        self._file = storage.write(location)
        self._properties = {"created-by": CREATED_BY, **(properties or {})}
        self._blobs: list[BlobMetadata] = []
        self.length_bytes = self.footer_bytes = 0

    def __enter__(self) -> Self:
        self._stream = self._file.__enter__()
        self._write(MAGIC)
        return self

    def __exit__(self, *failure: object) -> None:
        if failure[0] is None:
            try:
                footer = {"blobs": [*map(object_to_json, self._blobs)], "properties": self._properties}
                before = self.length_bytes
                self._write(_packed_footer(footer))
                self.footer_bytes = self.length_bytes - before
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
        compression_codec: str | None = None,
    ) -> BlobMetadata:
        """Write the bytes of a blob as they are; `compression_codec` names the codec that they are packed with."""
        blob = BlobMetadata(
            type=type_,
            fields=fields,
            snapshot_id=snapshot_id,
            sequence_number=sequence_number,
            offset=self.length_bytes,
            length=len(data),
            compression_codec=compression_codec,
            properties=dict(properties or {}),
        )
        self._write(data)
        self._blobs.append(blob)
        return blob

    def _write(self, data: bytes) -> None:
        self._stream.write(data)
        self.length_bytes += len(data)


def _packed_footer(footer: Mapping[str, Any]) -> bytes:
    payload = msgspec.json.encode(footer)
    return MAGIC + payload + len(payload).to_bytes(4, "little", signed=True) + bytes(4) + MAGIC


def _raw_footer(stream: BinaryIO) -> tuple[int, dict[str, Any]]:
    """Where the footer begins, and its payload."""
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
        try:
            with pa.CompressedInputStream(pa.py_buffer(plain), "lz4") as unpacked:
                plain = bytes(unpacked.read(_MAX_FOOTER_BYTES + 1))
        except OSError as error:
            raise ValueError(f"its footer cannot be unpacked: {error}") from error
        if len(plain) > _MAX_FOOTER_BYTES:
            raise ValueError(f"its footer unpacks to more than {_MAX_FOOTER_BYTES} bytes")
    value = msgspec.json.decode(plain)
    if not isinstance(value, dict) or not isinstance(value.get("blobs"), list):
        raise ValueError("its footer has no list of blobs")
    return start, value


def _footer(stream: BinaryIO) -> PuffinFooter:
    start, value = _raw_footer(stream)
    blobs = tuple(object_from_json(BlobMetadata, blob, f"blobs[{i}]") for i, blob in enumerate(value["blobs"]))
    for blob in blobs:
        if blob.offset < len(MAGIC) or blob.length < 0 or blob.offset + blob.length > start:
            raise ValueError(f"a blob lies at bytes {blob.offset} to {blob.offset + blob.length}, outside of the blobs")
    return PuffinFooter(blobs, value.get("properties") or {})


def _at(stream: BinaryIO, position: int, length: int) -> bytes:
    if position < 0:
        raise ValueError("it is too short")
    stream.seek(position)
    data = stream.read(length)
    if len(data) != length:
        raise ValueError("it is cut short")
    return data


class VectorTarget(msgspec.Struct, frozen=True, kw_only=True):
    """The data file whose rows a vector deletes; its partition and spec become the vector's."""

    location: str
    spec_id: int
    partition: tuple[Any, ...] = ()


def read_deletion_vector(storage: Storage, file: DataFile) -> BitMap64:
    """The positions that a deletion vector deletes; `file` is that of its entry.

    Raises `InvalidTableError` if the entry is no deletion vector, or the blob is damaged or has another number of positions.
    """
    if file.content_offset is None or file.content_size_in_bytes is None or file.referenced_data_file is None:
        raise InvalidTableError(
            f"delete file {file.file_path!r} is no deletion vector: it lacks content_offset, content_size_in_bytes or "
            "referenced_data_file",
            location=file.file_path,
        )
    where = f"at byte {file.content_offset} of {file.file_path!r}"
    blob = read_range(storage, file.file_path, file.content_offset, file.content_size_in_bytes)
    positions = positions_of(blob, where)
    if len(positions) != file.record_count:
        raise InvalidTableError(
            f"the deletion vector {where} deletes {len(positions)} rows, but its manifest says {file.record_count}",
            location=file.file_path,
        )
    return positions


def frame(bitmap: bytes) -> bytes:
    """A serialized bitmap as the bytes of its blob."""
    body = _VECTOR_MAGIC + bitmap
    return len(body).to_bytes(_NUMBER_BYTES, "big") + body + zlib.crc32(body).to_bytes(_NUMBER_BYTES, "big")


def unframe(blob: bytes, where: str) -> bytes:
    """The bitmap in a blob; verifies length, magic and checksum. `where` names the blob in errors."""
    body, checksum = blob[_NUMBER_BYTES:-_NUMBER_BYTES], blob[-_NUMBER_BYTES:]
    if len(blob) < 2 * _NUMBER_BYTES + len(_VECTOR_MAGIC) or int.from_bytes(blob[:_NUMBER_BYTES], "big") != len(body):
        raise InvalidTableError(
            f"the deletion vector {where} has {len(blob)} bytes, which is not the length that it says"
        )
    if not body.startswith(_VECTOR_MAGIC):
        raise InvalidTableError(
            f"the deletion vector {where} begins with {body[:4].hex()}, not with {_VECTOR_MAGIC.hex()}"
        )
    if int.from_bytes(checksum, "big") != zlib.crc32(body):
        raise InvalidTableError(f"the deletion vector {where} is damaged: its checksum does not fit")
    return body[len(_VECTOR_MAGIC) :]


def write_deletion_vectors(
    storage: Storage, location: str, vectors: Iterable[tuple[VectorTarget, BitMap64]]
) -> tuple[DataFile, ...]:
    """Write vectors as one Puffin file; returns the files of their entries, in order. If anything fails, no file is left."""
    files: list[DataFile] = []
    locations: set[str] = set()
    with PuffinWriter(storage, location) as writer:
        for target, positions in vectors:
            if target.location in locations:
                raise IcekeepBug(f"two deletion vectors for {target.location!r}")
            locations.add(target.location)
            if not positions:
                raise IcekeepBug("a deletion vector that deletes nothing is not written")
            if positions.max() > _MAX_POSITION:
                raise IcekeepBug(f"row position {positions.max()} is too great for a deletion vector")
            packed = positions.copy()
            packed.run_optimize()
            blob = writer.add(
                frame(bytes(packed.serialize())),
                BLOB_TYPE,
                # As Iceberg's writers do: the metadata column of positions.
                fields=(POS.field_id,),
                properties={REFERENCED_DATA_FILE: target.location, "cardinality": str(len(positions))},
            )
            files.append(
                DataFile(
                    content=FileContent.POSITION_DELETES,
                    file_path=location,
                    file_format=FILE_FORMAT,
                    spec_id=target.spec_id,
                    partition=target.partition,
                    record_count=len(positions),
                    file_size_in_bytes=0,
                    referenced_data_file=target.location,
                    content_offset=blob.offset,
                    content_size_in_bytes=blob.length,
                )
            )
    return tuple(msgspec.structs.replace(file, file_size_in_bytes=writer.length_bytes) for file in files)


def positions_of(blob: bytes, where: str) -> BitMap64:
    """The positions in the blob of a deletion vector; raises `InvalidTableError` for other bytes. `where` names it in errors."""
    data = unframe(blob, where)
    try:
        positions = BitMap64.deserialize(data)
    except (ValueError, IndexError) as error:
        raise InvalidTableError(f"the deletion vector {where} cannot be read: {error}") from error
    if positions and positions.max() > _MAX_POSITION:
        raise InvalidTableError(f"the deletion vector {where} deletes a row at {positions.max()}, above all positions")
    return positions
