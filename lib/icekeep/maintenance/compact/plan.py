"""The groups of files that a run rewrites, as values.

A group is one unit of failure and of partial progress; it becomes one or more tasks, each about one new file. The driver
holds groups, a row of sums each: what files they have is a compressed text, which lies in storage where there are many.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import accumulate, groupby, pairwise
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from icekeep.decoding import from_msgpack
from icekeep.errors import IcekeepBug, InvalidTableError, UnsupportedError
from icekeep.planning.deletes import ReachingDeletes
from icekeep.spec.collections import (
    NO_POSITIONS,
    Part,
    PositionSet,
    Renumbering,
    Stretch,
    narrowed,
    of_stretches,
    packed_positions,
    stretches,
    unpacked_positions,
)
from icekeep.spec.delete_runs import Flags, Numbers
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


class _Runs(NamedTuple):
    """Runs of delete files, each of a data file: its number, the first place of the run, and the one after its last."""

    files: Numbers
    starts: Numbers
    stops: Numbers


class CandidateColumns:
    """Data files that may be rewritten as columns, in the order in which they are packed, and the deletes that reach them.

    Attributes:
        files: with the columns of `GroupFile` but for `deletes`, and those of the reasons to rewrite each.
        rows: the row of each in `reaching`.
        ranges: of a saved plan the group of each.
    """

    def __init__(
        self, files: pa.Table, rows: Numbers, reaching: ReachingDeletes | None, ranges: Numbers | None = None
    ) -> None:
        self.files, self.rows, self.reaching, self.ranges = files, rows, reaching, ranges
        self._made: dict[int, GroupDelete] = {}

    def of_key(self, spec_id: int, partition: bytes | None) -> "CandidateColumns":
        """Those of a spec, and of a partition unless that is `None`, which are neighbours."""
        are_own = pc.equal(self.files["spec_id"], spec_id)
        if partition is not None:
            are_own = pc.and_(are_own, pc.equal(self.files["partition"], pa.scalar(partition, pa.binary())))
        own = are_own.to_numpy()
        return CandidateColumns(self.files.filter(are_own), self.rows[own], self.reaching)

    @cached_property
    def are_regular(self) -> bool:
        """Whether sums over columns are right: no file states a size below 0, and no delete file is listed twice."""
        if self.files.num_rows and pc.min(self.files["file_size_in_bytes"]).as_py() < 0:
            return False
        if self.reaching is None:
            return True
        order = np.lexsort((self._offsets, self._path_numbers))
        paths, offsets = self._path_numbers[order], self._offsets[order]
        return not ((paths[1:] == paths[:-1]) & (offsets[1:] == offsets[:-1])).any()

    def deletes_of_groups(self, bounds: Sequence[tuple[int, int]]) -> tuple[Numbers, Numbers]:
        """How many delete files reach the files of each group, and what it takes to read these; groups are ranges of files."""
        if self.reaching is None or not bounds:
            return np.zeros(len(bounds), np.int64), np.zeros(len(bounds), np.int64)
        starts, stops = np.array(bounds, np.int64).T
        numbers = _expanded(starts, stops - starts)
        runs = self._runs(self.rows[numbers], np.repeat(np.arange(len(bounds)), stops - starts))
        sizes = pc.coalesce(self.reaching.deletes["content_size_in_bytes"], self.reaching.deletes["file_size_in_bytes"])
        return _covered_by_groups(runs, len(bounds), sums_before(sizes.to_numpy()))

    def deletes_used(self, bounds: Sequence[tuple[int, int]]) -> Numbers:
        """The places of the delete files that reach any file of some ranges."""
        if self.reaching is None:
            return np.empty(0, np.int64)
        starts, stops = np.array(bounds, np.int64).T
        rows = self.rows[_expanded(starts, stops - starts)]
        runs = self._runs(rows, np.zeros(len(rows), np.int64))
        return _narrowed(runs)[0] if len(runs.files) else runs.files

    def group_files(self, start: int, stop: int) -> GroupFiles:
        """A range of files as objects, and what reaches them: as `with_deletes_once`."""
        names = [name for name in GroupFile.__struct_fields__ if name != "deletes"]
        columns = [self.files[name][start:stop].to_pylist() for name in names]
        offsets = names.index("split_offsets")
        columns[offsets] = [None if some is None else tuple(some) for some in columns[offsets]]
        places, reached = self._deletes_in_order(self.rows[start:stop])
        files = (
            GroupFile(**dict(zip(names, values, strict=True)), deletes=positions)
            for *values, positions in zip(*columns, reached, strict=True)
        )
        return GroupFiles(tuple(files), tuple(self._deletes_at(places.tolist())))

    def _deletes_in_order(self, rows: Numbers) -> tuple[Numbers, Iterable[PositionSet]]:
        """The places of the delete files that reach some files, in the order of a group, and the positions of each file's."""
        nothing = np.empty(0, np.int64), [NO_POSITIONS] * len(rows)
        if self.reaching is None:
            return nothing
        runs = self._runs(rows, np.arange(len(rows)))
        if not len(runs.files):
            return nothing
        places, runs = _narrowed(runs)
        count = len(places)

        def per_place(weights: Numbers) -> Numbers:
            sums = (np.bincount(at, weights, count + 1) for at in (runs.starts, runs.stops))
            return np.cumsum(np.subtract(*sums)).astype(np.int64)[:count]

        is_alone = per_place(np.ones_like(runs.files)) == 1
        # As `_Reach.order`.
        kinds = np.where(self._are_equality[places], 0, np.where(is_alone, 2, 1))
        only = np.where(kinds == 2, per_place(runs.files), 0)
        order = np.lexsort((self._ranks[places], only, kinds))
        moved = _renumbered(runs, np.argsort(order))
        return places[order], _sets(moved, len(rows))

    def _deletes_at(self, places: Sequence[int]) -> Iterator[GroupDelete]:
        assert self.reaching is not None or not places
        new = [place for place in places if place not in self._made]
        if new and self.reaching is not None:
            rows = self.reaching.deletes.select(GroupDelete.__struct_fields__).take(pa.array(new)).to_pylist()
            self._made |= zip(new, map(group_delete, rows), strict=True)
        return (self._made[place] for place in places)

    def _runs(self, rows: Numbers, numbers: Numbers) -> _Runs:
        """The runs of some rows, under the numbers of these."""
        assert self.reaching is not None
        offsets = self.reaching.offsets
        counts = offsets[rows + 1] - offsets[rows]
        runs = _expanded(offsets[rows], counts)
        starts, stops = (places[runs].astype(np.int64) for places in (self.reaching.starts, self.reaching.stops))
        return _Runs(np.repeat(numbers, counts), starts, stops)

    @cached_property
    def _are_equality(self) -> Flags:
        assert self.reaching is not None
        return np.asarray(self.reaching.deletes["content"].to_numpy() == FileContent.EQUALITY_DELETES)

    @cached_property
    def _path_numbers(self) -> Numbers:
        assert self.reaching is not None
        return sort_numbers(self.reaching.deletes["file_path"])

    @cached_property
    def _offsets(self) -> Numbers:
        assert self.reaching is not None
        offsets: Numbers = pc.fill_null(self.reaching.deletes["content_offset"], -1).to_numpy()
        return offsets

    @cached_property
    def _ranks(self) -> Numbers:
        """The rank of each delete file by the last parts of `_Reach.order`."""
        assert self.reaching is not None
        deletes = self.reaching.deletes
        numbers, spec_ids = deletes["sequence_number"].to_numpy(), deletes["spec_id"].to_numpy()
        partitions = sort_numbers(deletes["partition"])
        return np.argsort(np.lexsort((self._offsets, self._path_numbers, numbers, partitions, spec_ids)))


def group_delete(row: Mapping[str, Any]) -> GroupDelete:
    """A delete file by a row that has its fields; raises `UnsupportedError` for an encrypted one."""
    values = {name: row[name] for name in GroupDelete.__struct_fields__}
    if values["key_metadata"] is not None:
        raise UnsupportedError(f"delete file {values['file_path']!r} is encrypted, which is not supported yet")
    ids = values["equality_ids"]
    values |= {"partition": bytes(values["partition"]), "equality_ids": None if ids is None else tuple(ids)}
    return GroupDelete(**values)


def sort_numbers(values: pa.ChunkedArray) -> Numbers:
    """Numbers that order as the values do, texts by their code points."""
    found = values.combine_chunks().dictionary_encode()
    if isinstance(found, pa.ChunkedArray):
        found = found.combine_chunks()
    ranks = np.argsort(pc.sort_indices(found.dictionary).to_numpy())
    return np.asarray(ranks[found.indices.to_numpy()])


def sums_before(values: Numbers | Flags) -> Numbers:
    """The sum of the values before each, and of all; exact, also of sizes that no file has."""
    if len(values) and float(np.abs(values.astype(np.float64)).max()) * len(values) >= 2.0**62:
        values = values.astype(object)
    return np.concatenate([[0], np.cumsum(values)])


def _expanded(firsts: Numbers, counts: Numbers) -> Numbers:
    """The numbers from each first one on, as many as its count."""
    ends = np.cumsum(counts)
    return np.arange(int(counts.sum())) + np.repeat(firsts - ends + counts, counts)


def _covered_by_groups(runs: _Runs, count: int, sizes_before: Numbers) -> tuple[Numbers, Numbers]:
    """How many places the runs of each group cover, and the sum of what these take."""
    width = len(sizes_before)
    starts, stops = runs.files * width + runs.starts, runs.files * width + runs.stops
    order = np.argsort(starts, kind="stable")
    groups, starts, stops = runs.files[order], starts[order], stops[order]
    upto = np.maximum.accumulate(stops)
    starts = np.maximum(starts, np.concatenate([[-1], upto[:-1]]))
    stops = np.maximum(stops, starts)
    ends = np.searchsorted(groups, np.arange(count + 1))
    places = sums_before(stops - starts)
    sizes = sums_before(sizes_before[stops - groups * width] - sizes_before[starts - groups * width])
    return np.diff(places[ends]), np.diff(sizes[ends])


def _narrowed(runs: _Runs) -> tuple[Numbers, _Runs]:
    """The places that runs cover, in order, and the runs as positions among these."""
    order = np.argsort(runs.starts, kind="stable")
    starts, upto = runs.starts[order], np.maximum.accumulate(runs.stops[order])
    begins = np.flatnonzero(np.append(True, starts[1:] > upto[:-1]))
    firsts, lasts = starts[begins], upto[np.append(begins[1:], len(starts)) - 1]
    lengths = lasts - firsts
    at = np.searchsorted(firsts, runs.starts, "right") - 1
    moved = runs.starts - firsts[at] + (np.cumsum(lengths) - lengths)[at]
    return _expanded(firsts, lengths), _Runs(runs.files, moved, moved + runs.stops - runs.starts)


def _renumbered(runs: _Runs, places: Numbers) -> _Runs:
    """Runs of positions as runs of their places, cut where neighbours have none that follow one another."""
    breaks = np.flatnonzero(np.diff(places) != 1)
    first, last = np.searchsorted(breaks, runs.starts), np.searchsorted(breaks, runs.stops - 1)
    counts = last - first + 1
    of_run = np.repeat(np.arange(len(counts)), counts)
    is_first, is_last = np.zeros(len(of_run), np.bool_), np.zeros(len(of_run), np.bool_)
    ends = np.cumsum(counts)
    is_first[ends - counts] = is_last[ends - 1] = True
    starts, stops = runs.starts[of_run], runs.stops[of_run]
    starts[~is_first] = stops[~is_last] = breaks[_expanded(first, counts - 1)] + 1
    return _Runs(runs.files[of_run], places[starts], places[starts] + stops - starts)


def _sets(runs: _Runs, count: int) -> Iterator[PositionSet]:
    """The positions of each file, by runs in the order of their files."""
    pairs = [*zip(runs.starts.tolist(), runs.stops.tolist(), strict=True)]
    ends = np.searchsorted(runs.files, np.arange(count + 1)).tolist()
    # Many files have the same.
    made: dict[tuple[Stretch, ...], PositionSet] = {(): NO_POSITIONS}
    for start, stop in pairwise(ends):
        some = tuple(pairs[start:stop])
        if some not in made:
            made[some] = of_stretches(some)
        yield made[some]


class HeldFiles:
    """The files of a group that a plan holds as columns: a range of the candidates."""

    __slots__ = ("bounds", "candidates")

    def __init__(self, candidates: CandidateColumns, start: int, stop: int) -> None:
        self.candidates, self.bounds = candidates, (start, stop)

    def group_files(self) -> GroupFiles:
        """As objects, which are made anew each time."""
        return self.candidates.group_files(*self.bounds)

    @property
    def paths(self) -> pa.ChunkedArray:
        """Of the data files."""
        start, stop = self.bounds
        return self.candidates.files["file_path"].slice(start, stop - start)


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
        held: the files, of a plan that stays in this process.
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
    held: HeldFiles | None = None

    @property
    def is_moved(self) -> bool:
        """Whether the new files are of another spec than the old ones."""
        return self.spec_id != self.output_spec_id

    @property
    def has_files(self) -> bool:
        """Whether `group_files` knows its files; in a preview of very many there are sums only."""
        return self.packed is not None or self.location is not None or self.held is not None


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


def packed_group(group: FileGroup) -> FileGroup:
    """A group that may leave this process."""
    if group.held is None:
        return group
    return msgspec.structs.replace(group, packed=pack_group_files(group.held.group_files()), held=None)


def named_files(groups: Iterable[FileGroup], storage: Storage) -> Iterator[list[str]]:
    """The paths of the files of groups, and of the deletes that reach them; of columns one of each directory."""
    held = [group.held for group in groups if group.held is not None]
    if held:
        paths = pa.chunked_array([chunk for one in held for chunk in one.paths.chunks], pa.string())
        yield _one_of_each_directory(paths)
        # All groups of a plan but one that was cut are of the same columns.
        by_columns = groupby(held, lambda one: one.candidates)
        for columns, some in by_columns:
            if columns.reaching is not None:
                used = columns.deletes_used([one.bounds for one in some])
                yield _one_of_each_directory(columns.reaching.deletes["file_path"].take(pa.array(used)))
    for group in groups:
        if group.held is None and group.has_files:
            files = group_files(group, storage)
            yield [*(file.file_path for file in files.files), *(one.file_path for one in files.deletes)]


def _one_of_each_directory(paths: pa.ChunkedArray) -> list[str]:
    places = sort_numbers(pc.replace_substring_regex(paths, "/[^/]*$", ""))
    found: list[str] = paths.take(pa.array(np.sort(np.unique(places, return_index=True)[1]))).to_pylist()
    return found


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
    if group.held is not None:
        return group.held.group_files()
    if group.packed is not None:
        return unpack_group_files(group.packed)
    if group.location is None:
        raise IcekeepBug(f"the files of group {group.number} are not kept; a preview of this many has sums only")
    return unpack_group_files(storage.read(group.location))


def plan_locations(plan: RewritePlan) -> list[str]:
    """What planning has put in storage, to be removed when the run is over."""
    return [group.location for group in plan.groups if group.location is not None]
