"""The groups of files that a run rewrites, as values.

A group is one unit of failure and of partial progress; it becomes one or more tasks, each about one new file. The driver
holds groups, a row of sums each: what files they have is a compressed text, which lies in storage where there are many.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import accumulate

import msgspec
import pyarrow as pa

from icekeep.decoding import from_msgpack
from icekeep.errors import IcekeepBug, InvalidTableError
from icekeep.spec.collections import (
    NO_POSITIONS,
    Part,
    PositionSet,
    Renumbering,
    narrowed,
    packed_positions,
    stretches,
    unpacked_positions,
)
from icekeep.spec.manifests.structs import FileContent, own_bytes
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


class _Reach(msgspec.Struct):
    """How many files of a group a delete file reaches, and the sum of their numbers: of one file that is its number."""

    delete: GroupDelete
    files_count: int = 0
    numbers_sum: int = 0

    @property
    def order(self) -> tuple[int, int, int, bytes, int, str, int]:
        delete, kind, only = self.delete, 0, 0
        if delete.content != FileContent.EQUALITY_DELETES:
            kind = 1 if self.files_count > 1 else 2
            only = self.numbers_sum if kind == 2 else 0
        offset = -1 if delete.content_offset is None else delete.content_offset
        return kind, only, delete.spec_id, delete.partition, delete.sequence_number, delete.file_path, offset


def with_deletes_once(files: Iterable[tuple[GroupFile, Sequence[GroupDelete]]]) -> GroupFiles:
    """Files, each with the delete files that reach it, as a group has them: in an order in which these are a few runs.

    Equality deletes come first, those of a partition together and by their sequence numbers: a file is reached by those that are
    newer than it, the end of such a list. Deletes of positions that reach several files follow in the same way, and last come
    those that reach one file alone, file by file.

    Where the delete files of a file are a `Part`, no time is spent on each of its members: files may share a thousand of them.
    """
    pairs = [
        (file, deletes if isinstance(deletes, Part) else Part(deletes, PositionSet(range(len(deletes)))))
        for file, deletes in files
    ]
    by_list: dict[int, list[int]] = defaultdict(list)
    for number, (_, own_deletes) in enumerate(pairs):
        by_list[id(own_deletes.whole)].append(number)
    reaches: dict[tuple[str, int | None], _Reach] = {}
    # Of each list the files that share it, those of their delete files that it lists, and what each file has of these.
    shared: list[tuple[list[int], list[_Reach], list[PositionSet]]] = []
    for numbers in by_list.values():
        whole = pairs[numbers[0]][1].whole
        deletes, parts = narrowed(whole, [pairs[number][1].positions for number in numbers])
        counts, sums = ([0] * (len(deletes) + 1) for _ in range(2))
        for number, part in zip(numbers, parts, strict=True):
            for start, stop in stretches(part):
                counts[start] += 1
                counts[stop] -= 1
                sums[start] += number
                sums[stop] -= number
        own = [reaches.setdefault((one.file_path, one.content_offset), _Reach(one)) for one in deletes]
        for reach, count, total in zip(own, accumulate(counts), accumulate(sums), strict=False):
            reach.files_count += count
            reach.numbers_sum += total
        shared.append((numbers, own, parts))
    in_order = sorted(reaches.values(), key=lambda reach: reach.order)
    places = {id(reach): place for place, reach in enumerate(in_order)}
    positions: dict[int, PositionSet] = {}
    for numbers, own, parts in shared:
        moved = Renumbering([places[id(reach)] for reach in own]).moved
        positions |= zip(numbers, map(moved, parts), strict=True)
    return GroupFiles(
        tuple(msgspec.structs.replace(file, deletes=positions[number]) for number, (file, _) in enumerate(pairs)),
        tuple(reach.delete for reach in in_order),
    )


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
