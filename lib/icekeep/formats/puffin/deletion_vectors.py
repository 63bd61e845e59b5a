"""Deletion vectors: the deleted rows of one data file as a bitmap of positions, in a Puffin file (spec, "Deletion Vectors").

A manifest entry names the blob by offset and length, so that a reader needs no footer. One Puffin file may hold the
vectors of many data files.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from pyroaring import BitMap64

from icekeep.errors import IcekeepBug, InvalidTableError
from icekeep.formats.puffin.files import PuffinWriter, read_range
from icekeep.spec.deletion_vectors import BLOB_TYPE, frame, unframe
from icekeep.spec.manifests.structs import DataFile, FileContent
from icekeep.spec.metadata_columns import POS
from icekeep.storage.base import Storage

FILE_FORMAT = "PUFFIN"

_MAX_POSITION = (1 << 63) - 1
_FIELDS = (POS.field_id,)
"""What Iceberg's writers say that a vector is about."""


class VectorTarget(msgspec.Struct, frozen=True, kw_only=True):
    """The data file whose rows a vector deletes; its partition and spec become the vector's."""

    location: str
    spec_id: int
    partition: tuple[Any, ...] = ()


def read_deletion_vector(storage: Storage, file: DataFile) -> BitMap64:
    """The positions that a deletion vector deletes.

    Args:
        file: the entry of the vector, with `content_offset` and `content_size_in_bytes`.

    Raises:
        MissingFileError: there is no such file.
        InvalidTableError: the entry is no deletion vector, or the blob is damaged or has not the positions it says.
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


def write_deletion_vectors(
    storage: Storage, location: str, vectors: Iterable[tuple[VectorTarget, BitMap64]]
) -> tuple[DataFile, ...]:
    """Write vectors as one Puffin file; returns their entries' files, in order. If anything fails, no file is left.

    Raises:
        FileExistsError: the name is taken.
        IcekeepBug: a vector deletes nothing, or two are for one data file.
    """
    written: list[tuple[VectorTarget, int, int, int]] = []
    locations: set[str] = set()
    with PuffinWriter(storage, location) as writer:
        for target, positions in vectors:
            if target.location in locations:
                raise IcekeepBug(f"two deletion vectors for {target.location!r}")
            locations.add(target.location)
            blob = writer.add(
                frame(_serialized(positions)), BLOB_TYPE, fields=_FIELDS, properties=_properties(target, positions)
            )
            written.append((target, blob.offset, blob.length, len(positions)))
    return tuple(
        DataFile(
            content=FileContent.POSITION_DELETES,
            file_path=location,
            file_format=FILE_FORMAT,
            spec_id=target.spec_id,
            partition=target.partition,
            record_count=count,
            file_size_in_bytes=writer.length_bytes,
            referenced_data_file=target.location,
            content_offset=offset,
            content_size_in_bytes=length,
        )
        for target, offset, length, count in written
    )


def _properties(target: VectorTarget, positions: BitMap64) -> Mapping[str, str]:
    return {"referenced-data-file": target.location, "cardinality": str(len(positions))}


def _serialized(positions: BitMap64) -> bytes:
    if not positions:
        raise IcekeepBug("a deletion vector that deletes nothing is not written")
    if positions.max() > _MAX_POSITION:
        raise IcekeepBug(f"row position {positions.max()} is too great for a deletion vector")
    packed = positions.copy()
    packed.run_optimize()
    return bytes(packed.serialize())


def positions_of(blob: bytes, where: str) -> BitMap64:
    """The positions in the blob of a deletion vector; `where` names it in errors.

    Raises:
        InvalidTableError: the blob is damaged or is no deletion vector.
    """
    data = unframe(blob, where)
    try:
        positions = BitMap64.deserialize(data)
    except (ValueError, IndexError) as error:
        raise InvalidTableError(f"the deletion vector {where} cannot be read: {error}") from error
    if positions and positions.max() > _MAX_POSITION:
        raise InvalidTableError(f"the deletion vector {where} deletes a row at {positions.max()}, above all positions")
    return positions
