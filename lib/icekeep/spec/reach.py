"""Which data files one delete file may reach, and up to which sequence number (spec, "Scan Planning" and "Delete Formats").

Matching all delete files with all data files is `delete_runs`, for columns, and `matched_deletes`, for entries.
"""

import math
import struct
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any

import msgspec

from icekeep.errors import IcekeepBug, InvalidTableError
from icekeep.spec.manifests.structs import DataFile, FileContent, ManifestEntry
from icekeep.spec.partitioning import PartitionSpec
from icekeep.spec.schema import DELETE_FILE_PATH

PartitionKey = tuple[int, tuple[Any, ...]]
PathDigest = bytes
PathBounds = tuple[bytes | None, bytes | None]
Specs = Mapping[int, PartitionSpec]


class AppliedDelete(msgspec.Struct, frozen=True):
    """The identity of a committed delete file; the vectors of one Puffin file differ in their offset."""

    file_path: str
    content_offset: int | None
    sequence_number: int
    content: FileContent = FileContent.POSITION_DELETES


def applied_delete(delete: ManifestEntry) -> AppliedDelete:
    file = delete.data_file
    return AppliedDelete(file.file_path, file.content_offset, sequence_number(delete), file.content)


def is_deletion_vector(file: DataFile) -> bool:
    """Whether a file is a blob of a Puffin file that holds the deleted positions of one data file."""
    return file.content is FileContent.POSITION_DELETES and file.file_format.lower() == "puffin"


def partition_key(file: DataFile) -> PartitionKey:
    """The spec and partition of a file, equal where the spec says partitions are.

    Floating point values are compared by their bits: a NaN equals every NaN, and -0.0 is not 0.0.
    """
    return file.spec_id, tuple(
        struct.pack(">d", math.nan if math.isnan(value) else value) if isinstance(value, float) else value
        for value in file.partition
    )


def encoded_path(path: str) -> bytes:
    """A path as UTF-8, in whose order bounds are, with lone surrogates."""
    return path.encode("utf-8", "surrogatepass")


DIGEST_BYTES = 16
"""Of digests that stand for paths, entries and scopes where there are too many of them to hold."""


def path_digest(path: str | bytes) -> PathDigest:
    return blake2b(path if isinstance(path, bytes) else encoded_path(path), digest_size=DIGEST_BYTES).digest()


def sequence_number(entry: ManifestEntry) -> int:
    """The data sequence number of a committed entry."""
    if entry.sequence_number is None:
        raise IcekeepBug(f"the entry of {entry.data_file.file_path!r} has no sequence number: it is not committed")
    return entry.sequence_number


def max_reached(delete: ManifestEntry) -> int:
    """The greatest data sequence number that a delete file reaches: for equality deletes the one before their own."""
    content = delete.data_file.content
    if content is FileContent.DATA:
        raise IcekeepBug(f"{delete.data_file.file_path!r} is a data file, not a delete file")
    return sequence_number(delete) - (content is FileContent.EQUALITY_DELETES)


def is_newer(delete: ManifestEntry, data_sequence_number: int) -> bool:
    """Whether a delete file is new enough for data of a sequence number."""
    return max_reached(delete) >= data_sequence_number


def is_global(file: DataFile, specs: Specs) -> bool:
    """Whether a delete file holds equality deletes for all partitions: its spec is unpartitioned."""
    if file.spec_id not in specs:
        raise missing_spec(file.file_path, file.spec_id)
    return file.content is FileContent.EQUALITY_DELETES and specs[file.spec_id].is_unpartitioned


def only_data_file(file: DataFile) -> str | None:
    """The `referenced_data_file` of position deletes, required for deletion vectors; `None`: there may be several data files."""
    if file.content is not FileContent.POSITION_DELETES:
        return None
    if file.referenced_data_file is None and is_deletion_vector(file):
        raise nameless_vector(file.file_path)
    return file.referenced_data_file


def may_name(file: DataFile, path: str) -> bool:
    """Whether a position delete file or deletion vector may hold positions of the data file at a path."""
    only = only_data_file(file)
    if only is not None:
        return only == path
    return named_range([encoded_path(path)], path_bounds(file)) == slice(0, 1)


def path_bounds(file: DataFile) -> PathBounds:
    """The bounds of the column `file_path` of a position delete file, as UTF-8."""
    lower = (file.lower_bounds or {}).get(DELETE_FILE_PATH.field_id)
    return lower, (file.upper_bounds or {}).get(DELETE_FILE_PATH.field_id)


def sole_path(bounds: PathBounds) -> bytes | None:
    """The path of equal bounds, which all rows name; `None` for different bounds, which rule out no data file.

    Wrong or swapped bounds of several paths would bring deleted rows back, and other readers ignore them: they use bounds that
    are equal, or else the file's rows.
    """
    lower, upper = bounds
    return lower if lower == upper else None


def named_range(paths: Sequence[bytes], bounds: PathBounds) -> slice:
    """The slice of sorted paths that the bounds of a position delete file allow."""
    sole = sole_path(bounds)
    if sole is None:
        return slice(0, len(paths))
    # Some writers cut both bounds, and do not increment the upper one: then they are a prefix of paths.
    return slice(bisect_left(paths, sole), bisect_right(paths, sole, key=lambda path: path[: len(sole)]))


def own_path(file: DataFile) -> bytes | None:
    """The path of the only data file of a vector or position delete file, by its entry; `None` if there may be several.

    It is for choosing files and counting rows. Equal bounds may be wrong or cut, and then are the path of no data file, so
    no delete file is dropped because of them before its rows are read.
    """
    if file.content is not FileContent.POSITION_DELETES:
        return None
    only = only_data_file(file)
    return sole_path(path_bounds(file)) if only is None else encoded_path(only)


def own_path_digest(file: DataFile) -> PathDigest:
    """A digest of the paths of a delete file and of its `own_path`, on which two entries of one file may differ."""
    return path_pair_digest(file.file_path, own_path(file) or b"")


def path_pair_digest(delete_path: str, data_path: bytes) -> PathDigest:
    """The `own_path_digest` by the paths of the delete file and the data file."""
    return path_digest(b"\0".join((encoded_path(delete_path), data_path)))


def missing_spec(delete_path: str, spec_id: int) -> InvalidTableError:
    return InvalidTableError(f"delete file {delete_path!r} has partition spec {spec_id}, which is not there")


def nameless_vector(delete_path: str) -> InvalidTableError:
    return InvalidTableError(f"the deletion vector in {delete_path!r} does not say which data file it is for")


def in_another_partition(delete_path: str, data_path: str) -> InvalidTableError:
    return InvalidTableError(
        f"delete file {delete_path!r} is for data file {data_path!r}, which has another partition spec or partition"
    )
