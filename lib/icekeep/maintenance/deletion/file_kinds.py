"""Kinds of files that maintenance deletes, and the columns by which such files are handed on."""

from collections.abc import Iterable, Mapping
from enum import StrEnum

import msgspec
import pyarrow as pa

from icekeep.spec.manifests.structs import FileContent
from icekeep.storage.base import Storage
from icekeep.storage.locations import checksum_location, has_checksum_files
from icekeep.storage.many import head_many


class FileKind(StrEnum):
    """Kinds of garbage, in the order in which they are deleted: what others name goes before what names it."""

    DATA = "data file"
    POSITION_DELETES = "position delete file"
    EQUALITY_DELETES = "equality delete file"
    ORPHAN = "orphan file"
    STATISTICS = "statistics file"
    MANIFEST = "manifest"
    MANIFEST_LIST = "manifest list"
    METADATA = "metadata file"
    CHECKSUM = "checksum file"
    OWN = "file below .icekeep"

    @property
    def is_content(self) -> bool:
        """Whether manifests name such files: only of these a table may have more than a driver can hold."""
        return self in (FileKind.DATA, FileKind.POSITION_DELETES, FileKind.EQUALITY_DELETES, FileKind.ORPHAN)


CONTENT_KINDS: Mapping[FileContent, FileKind] = {
    FileContent.DATA: FileKind.DATA,
    FileContent.POSITION_DELETES: FileKind.POSITION_DELETES,
    FileContent.EQUALITY_DELETES: FileKind.EQUALITY_DELETES,
}

GARBAGE = pa.schema(
    [
        pa.field("kind", pa.string(), nullable=False),
        pa.field("location", pa.string(), nullable=False),
        pa.field("size_bytes", pa.int64()),
    ]
)
"""A file that may go: what it is, its location as metadata or the store spell it, its length where that is known."""


class GarbageFile(msgspec.Struct, frozen=True):
    """The same as a value."""

    kind: FileKind
    location: str
    size_bytes: int | None = None


class FilesOfKind(msgspec.Struct, frozen=True, kw_only=True):
    """How many files of one kind there are, and their bytes as far as they are known."""

    kind: FileKind
    files_count: int
    bytes: int


def garbage_table(files: Iterable[GarbageFile]) -> pa.Table:
    """Files as rows of `GARBAGE`."""
    rows = [(str(f.kind), f.location, f.size_bytes) for f in files]
    columns = zip(*rows, strict=True) if rows else [(), (), ()]
    return pa.table(
        [pa.array(column, field.type) for column, field in zip(columns, GARBAGE, strict=True)], schema=GARBAGE
    )


_CHECKSUM_BEGIN = b"crc\0"
"""What checksum files of Hadoop begin with, and no file that metadata names; others of such names are left alone."""


def with_checksums(files: pa.Table, storage: Storage) -> pa.Table:
    """Some files, rows of `GARBAGE`, and the checksum files that Hadoop wrote beside them on disks of this machine."""
    beside = [checksum_location(at) for at in files["location"].to_pylist() if has_checksum_files(at)]
    there = [found for found in head_many(beside, storage) if found is not None]
    rows = [
        GarbageFile(FileKind.CHECKSUM, found.location, found.size_bytes)
        for found in there
        if _is_checksum(found.location, storage)
    ]
    return pa.concat_tables([files.select(GARBAGE.names).cast(GARBAGE), garbage_table(rows)]) if rows else files


def _is_checksum(location: str, storage: Storage) -> bool:
    with storage.open(location) as stream:
        return stream.read(len(_CHECKSUM_BEGIN)) == _CHECKSUM_BEGIN


def by_kind(files: pa.Table) -> tuple[FilesOfKind, ...]:
    """The files of each kind that there is, in the order of kinds."""
    totals = files.group_by("kind").aggregate([("size_bytes", "sum"), ("location", "count")]).to_pylist()
    rows = {row["kind"]: row for row in totals}
    return tuple(
        FilesOfKind(
            kind=kind,
            files_count=rows[kind]["location_count"],
            bytes=rows[kind]["size_bytes_sum"] or 0,
        )
        for kind in FileKind
        if kind in rows
    )


def added(*several: Iterable[FilesOfKind]) -> tuple[FilesOfKind, ...]:
    """The sum of some counts, kind by kind."""
    counts = dict.fromkeys(FileKind, 0)
    sizes = dict.fromkeys(FileKind, 0)
    for some in several:
        for one in some:
            counts[one.kind] += one.files_count
            sizes[one.kind] += one.bytes
    return tuple(FilesOfKind(kind=k, files_count=counts[k], bytes=sizes[k]) for k in FileKind if counts[k])
