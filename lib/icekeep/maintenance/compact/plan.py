"""The groups of files that a run rewrites, as values.

A group is one unit of failure and of partial progress; it becomes one or more tasks, each about one new file. The driver
holds groups, a row of sums each: what files they have is a compressed text, which lies in storage where there are many.
"""

import msgspec
import pyarrow as pa

from icekeep.decoding import from_msgpack
from icekeep.errors import IcekeepBug, InvalidTableError
from icekeep.spec.collections import NO_POSITIONS, PositionSet, packed_positions, unpacked_positions
from icekeep.spec.manifests.structs import own_bytes
from icekeep.spec.snapshots import MAIN
from icekeep.storage.base import Storage

_CODEC = "zstd"


class GroupFile(msgspec.Struct, frozen=True, kw_only=True):
    """A live data file as it was read.

    Attributes:
        partition: its tuple as bytes (`PartitionCodec`).
        deleted_count: how many of its rows are deleted as far as entries say: an estimate (`candidates`).
        deletes: positions in `GroupFiles.deletes` of the delete files that reach it.
    """

    file_path: str
    file_format: str
    spec_id: int
    partition: bytes
    record_count: int
    file_size_in_bytes: int
    snapshot_id: int | None
    sequence_number: int
    file_sequence_number: int | None
    manifest_path: str
    split_offsets: tuple[int, ...] | None = None
    first_row_id: int | None = None
    sort_order_id: int | None = None
    deleted_count: int = 0
    deletes: PositionSet = NO_POSITIONS

    @property
    def live_bytes(self) -> int:
        """About how many bytes its live rows take; all of them where the entry does not say how many rows there are."""
        if self.deleted_count <= 0:
            return self.file_size_in_bytes
        return self.file_size_in_bytes * (self.record_count - self.deleted_count) // self.record_count


class GroupDelete(msgspec.Struct, frozen=True, kw_only=True):
    """A live delete file as it was read: the fields of `planning.manifests.REACHING_DELETES`."""

    content: int
    file_path: str
    file_format: str
    spec_id: int
    partition: bytes
    sequence_number: int
    record_count: int
    file_size_in_bytes: int
    equality_ids: tuple[int, ...] | None = None
    referenced_data_file: str | None = None
    content_offset: int | None = None
    content_size_in_bytes: int | None = None
    key_metadata: bytes | None = None

    @property
    def bytes_to_read(self) -> int:
        """What reading it takes, as `own_bytes` says."""
        return own_bytes(self.file_size_in_bytes, self.content_size_in_bytes)


class GroupFiles(msgspec.Struct, frozen=True):
    """The files of one group, and the delete files that reach any of them, each once, in the order of `with_deletes_once`."""

    files: tuple[GroupFile, ...]
    deletes: tuple[GroupDelete, ...] = ()


_Packed = bytes  # the struct has a field of the name `bytes`


class FileGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Files that are rewritten together: of one spec and partition, or of one spec where they move to another.

    Attributes:
        number: from 0, in the order of planning.
        partition: where the files are, as a path for people (`day=2013-01-05`); empty where they are in none or in several.
        spec_id: of the files.
        output_spec_id: of the new files.
        bytes: of the files.
        delete_files_count: those that reach any of the files, each once; `delete_bytes` is what reading them takes.
        expected_files_count: how many files the group becomes, unless some are copied byte for byte (`method`); none where all
            of its rows are deleted.
        packed: the files (`pack_group_files`), or `None` where `location` says where that lies.
    """

    number: int
    partition: str
    spec_id: int
    output_spec_id: int
    files_count: int
    bytes: int
    record_count: int
    delete_files_count: int = 0
    delete_bytes: int = 0
    expected_files_count: int
    packed: _Packed | None = None
    location: str | None = None

    @property
    def is_moved(self) -> bool:
        """Whether the new files are of another spec than the old ones."""
        return self.spec_id != self.output_spec_id

    @property
    def has_files(self) -> bool:
        """Whether `group_files` knows its files; in a preview of very many there are sums only."""
        return self.packed is not None or self.location is not None


class LeftAlone(msgspec.Struct, frozen=True):
    """Files that a run leaves as they are though their size or their deletes ask for work, and why."""

    reason: str
    files_count: int
    bytes: int


class RewritePlan(msgspec.Struct, frozen=True, kw_only=True):
    """What one run of the job will do, on the head of `branch`, whose snapshot and sequence number these are.

    Attributes:
        strategy: as text, such as `binpack` or `sort by day ASC NULLS FIRST`.
        candidate_files_count: how many files ask for work, whether or not they are in a group.
        overlap_depth_before: how many files a look-up by key meets, over all files (`order.depth_sum`); `None` where
            nothing is sorted.
        groups: in the order of execution.
        notes: what people should know of how it was planned.
    """

    branch: str = MAIN
    snapshot_id: int | None
    sequence_number: int
    schema_id: int
    strategy: str = "binpack"
    target_file_size_bytes: int
    candidate_files_count: int
    rewritten_data_files_count: int
    rewritten_bytes_count: int
    expected_files_count: int
    left_alone: tuple[LeftAlone, ...] = ()
    overlap_depth_before: float | None = None
    groups: tuple[FileGroup, ...] = ()
    notes: tuple[str, ...] = ()


def pack_group_files(files: GroupFiles) -> bytes:
    """The files of a group as bytes: msgpack, compressed."""
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, _CODEC) as stream:
        stream.write(msgspec.msgpack.encode(files, enc_hook=packed_positions))
    return bytes(sink.getvalue())


def unpack_group_files(packed: bytes) -> GroupFiles:
    """The files of a group from their bytes; raises `InvalidTableError` if they are broken."""
    try:
        with pa.CompressedInputStream(pa.BufferReader(packed), _CODEC) as stream:
            return from_msgpack(stream.read(), GroupFiles, unpacked_positions)
    except (OSError, msgspec.DecodeError) as error:
        raise InvalidTableError(f"cannot read the files of a group: {error}; make a new plan") from error


def group_files(group: FileGroup, storage: Storage) -> GroupFiles:
    """The files of a group, from the plan or from where planning has put them.

    Raises `InvalidTableError` and `MissingFileError` where they cannot be read back.
    """
    if group.packed is not None:
        return unpack_group_files(group.packed)
    if group.location is None:
        raise IcekeepBug(f"the files of group {group.number} are not kept; a preview of this many has sums only")
    return unpack_group_files(storage.read(group.location))


def plan_locations(plan: RewritePlan) -> list[str]:
    """What planning has put in storage, to be removed when the run is over."""
    return [group.location for group in plan.groups if group.location is not None]
