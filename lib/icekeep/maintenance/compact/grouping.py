"""The files of one partition -> the groups that are worth a rewrite. Pure, and the same on the driver and in tasks.

For binpack these are Iceberg's groups, but for those that would come out as they went in. For an order of rows the files
are also chosen by what they say of their order and by how they overlap, so that a second run finds nothing to do:

* of a sort, all files that would leave a look-up with more than `order.WORTH_DEPTH` files;
* of a curve, all files of the partition once more overlap than a curve leaves (`order.worth_box_depth`), unless all of them were
  written along this curve before: values may be so skewed that no curve separates them. Files of a bad size that were written
  along it before and lie far apart stay where all would overlap more once they are put together.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby, pairwise
from operator import itemgetter

import msgspec
import numpy as np
import pyarrow as pa

from icekeep.errors import SafetyError
from icekeep.maintenance.compact.options import RewriteDataFilesOptions
from icekeep.maintenance.compact.order import (
    Ends,
    KeySpace,
    Strategy,
    along_boxes,
    box_depths,
    depth_sum,
    overlapping,
    worth_box_depth,
)
from icekeep.maintenance.compact.plan import (
    CandidateColumns,
    FileGroup,
    GroupDelete,
    GroupFile,
    GroupFiles,
    HeldFiles,
    sort_numbers,
    sums_before,
    with_deletes_once,
)
from icekeep.maintenance.intervals import Intervals, Mask
from icekeep.maintenance.rewrite.options import (
    FileSizes,
    comes_out_otherwise,
    expected_output_files,
    is_worth_rewriting,
)
from icekeep.spec.collections import cut_evenly, each_once, packed


class PlannedFile(msgspec.Struct, frozen=True, kw_only=True):
    """A live data file, what reaches it, and why it may want to be rewritten.

    Attributes:
        deletes: those that a reader must apply to it; of many files parts of one list.
        ends: what it holds of the keys of the order; `None` where that is not known or not asked.
        range_number: of a partition that is planned in ranges, the one that it is in (`key_ranges`); of a saved plan its group.
    """

    file: GroupFile
    deletes: Sequence[GroupDelete] = ()
    has_bad_size: bool = False
    has_many_deletes: bool = False
    ends: Ends | None = None
    range_number: int = 0


class GroupRules(msgspec.Struct, frozen=True, kw_only=True):
    """What groups are made by.

    Attributes:
        space: where files may be found in the order; null where nothing is ordered or bounds tell nothing.
        in_order: snapshots that wrote their files along the very curve.
        output_specs: the spec of the new files by that of the old ones.
    """

    sizes: FileSizes
    options: RewriteDataFilesOptions
    strategy: Strategy
    space: KeySpace | None = None
    in_order: frozenset[int] = frozenset()
    output_specs: Mapping[int, int]

    def is_moved(self, spec_id: int) -> bool:
        """Whether files of a spec get another one, so that they are put together whatever their partition is."""
        return self.output_specs[spec_id] != spec_id

    def key_of(self, file: GroupFile) -> tuple[int, bytes]:
        """Files of one key may be in one group: its spec, and its partition unless it is moved."""
        return file.spec_id, b"" if self.is_moved(file.spec_id) else file.partition

    def asks(self, one: PlannedFile) -> bool:
        """Whether a file has a reason of its own to be rewritten."""
        return one.has_bad_size or self.asks_at_any_size(one)

    def asks_at_any_size(self, one: PlannedFile) -> bool:
        """Whether it has one besides its size; of other orders than the table's files cannot say anything."""
        wanted = self.strategy.sort_order_id
        return self.options.rewrite_all or one.has_many_deletes or (wanted != 0 and one.file.sort_order_id != wanted)

    def expected_files_count(self, files: Sequence[PlannedFile]) -> int:
        """How many new files come of some; none where all of their rows are deleted."""
        if files and all(0 < one.file.record_count == one.file.deleted_count for one in files):
            return 0
        live_bytes = sum(one.file.live_bytes for one in files)
        return expected_output_files(live_bytes, self.sizes, self.strategy.compression_factor)


class Cut(msgspec.Struct, frozen=True):
    """Of the `position`th bin of a key the first `files_count` files, and nothing else."""

    position: int
    files_count: int


class PlannedGroup(msgspec.Struct, frozen=True, kw_only=True):
    """A group, not numbered yet, the partition of its key as bytes, and the bin that it is of which range of the key."""

    group: FileGroup
    partition: bytes
    position: int
    range_number: int = 0
    files: GroupFiles | None = None


class FileTotals(msgspec.Struct, kw_only=True):
    """Files that were looked at, whether or not they are in a group; sizes in bytes, depths of all files together."""

    candidate_files_count: int = 0
    left_files_count: int = 0
    left_bytes: int = 0
    depth_sum: float = 0.0
    depth_files_count: int = 0

    def add(self, other: "FileTotals") -> None:
        """Take in what was found elsewhere."""
        for name in self.__struct_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def add_left(self, files: Sequence[PlannedFile]) -> None:
        """Count files that asked for a rewrite and are in no group."""
        self.left_files_count += len(files)
        self.left_bytes += sum(one.file.file_size_in_bytes for one in files)


class _Chosen(msgspec.Struct, frozen=True):
    """A file that would be rewritten; `is_deep` if it is because of its overlap with others."""

    planned: PlannedFile
    is_deep: bool = False


def groups_of_key(
    files: Iterable[PlannedFile], rules: GroupRules, totals: FileTotals, cut: Cut | None = None
) -> Iterator[PlannedGroup]:
    """The groups of the files of one key, or of one range of it, that are worth a rewrite.

    Memory holds one group for binpack, else all files.

    Args:
        files: in the order of their partitions and paths.
        totals: takes in what was found.
    """
    if rules.strategy.ordering is None:
        chosen: Iterable[_Chosen] = (_Chosen(one) for one in files if rules.asks(one))
    else:
        chosen = _chosen_to_sort(list(files), rules, totals)
    options = rules.options
    bins = packed(
        chosen,
        (lambda one: one.planned.file.file_size_in_bytes, options.max_file_group_size_bytes),
        (each_once, options.max_file_group_input_files),
    )
    for position, some in enumerate(bins):
        if cut is not None:
            if position < cut.position:
                continue
            if position > cut.position:
                return
            some = some[: cut.files_count]
        planned = [one.planned for one in some]
        totals.candidate_files_count += sum(rules.asks(one.planned) or one.is_deep for one in some)
        if _is_worth_it(some, planned, rules, is_cut=cut is not None):
            yield group_of(planned, position, rules)
        else:
            totals.add_left(planned)


def _chosen_to_sort(files: list[PlannedFile], rules: GroupRules, totals: FileTotals) -> list[_Chosen]:
    space, ends = rules.space, [one.ends for one in files if one.ends is not None]
    if space is None or len(ends) < len(files):
        return [_Chosen(one) for one in files if rules.asks(one)]
    totals.depth_files_count += len(files)
    if not files or rules.is_moved(files[0].file.spec_id):
        for _, some in groupby(files, lambda one: one.file.partition):
            totals.depth_sum += depth_sum([one.ends for one in some if one.ends is not None], space)
        # They are of many partitions, and will be of others: how they overlap now says nothing.
        return [_Chosen(one) for one in files if rules.asks(one)]
    line = None if space.is_curve else Intervals.of(ends)
    totals.depth_sum += depth_sum(ends, space) if line is None else float(line.depths().sum())
    asking = np.array([rules.asks_at_any_size(one) for one in files])
    by_size = np.array([one.has_bad_size for one in files])
    are_in_order = np.array([one.file.snapshot_id in rules.in_order for one in files])
    if line is None and by_size.any() and not _is_no_deeper(files, ends, by_size, rules):
        # Files that are in order already would lose their neighbours.
        by_size &= ~are_in_order
    if by_size.any() and _is_better_sized([files[number] for number in np.flatnonzero(by_size).tolist()], rules):
        asking |= by_size
    is_in_order = bool(are_in_order.all())
    taken = _with_deep_ones(asking, ends, line, is_in_order=is_in_order)
    deep = taken & ~asking
    if taken.any() and (by_size & ~taken).any():
        # With work to be done here, files of a bad size come along.
        asking = taken | by_size
        taken = _with_deep_ones(asking, ends, line, is_in_order=is_in_order)
        deep |= taken & ~asking
    if not taken.any():
        badly_sized = [one for one in files if one.has_bad_size]
        totals.candidate_files_count += len(badly_sized)
        totals.add_left(badly_sized)
        return []
    order = along_boxes(ends) if space.is_curve else sorted(range(len(files)), key=ends.__getitem__)
    return [_Chosen(files[number], is_deep=bool(deep[number])) for number in order if taken[number]]


def _with_deep_ones(asking: Mask, ends: Sequence[Ends], line: Intervals | None, *, is_in_order: bool) -> Mask:
    """Which files are sorted when those that ask for it are.

    Args:
        line: where the files of a sort lie; `None` for a curve.
        is_in_order: whether all files were written along this curve before.
    """
    if line is not None:
        return overlapping(line, asking)
    alone = [ends[number] for number in np.flatnonzero(~asking).tolist()]
    if is_in_order or not alone:
        return asking
    # Files that are written along the curve by themselves would lie over those that are there.
    over = worth_box_depth(int(asking.sum())) if asking.any() else 0
    is_deep = box_depths(alone).mean() + over > worth_box_depth(len(ends))
    return np.ones_like(asking) if is_deep else asking


def _is_no_deeper(files: Sequence[PlannedFile], ends: Sequence[Ends], chosen: Mask, rules: GroupRules) -> bool:
    """Whether files of a curve overlap no more once the chosen ones are rewritten along it.

    Each new file is taken for the box around neighbours on the curve that make a file together.
    """
    kept = [ends[number] for number in np.flatnonzero(~chosen).tolist()]
    moved = [(files[number].file.live_bytes, ends[number]) for number in np.flatnonzero(chosen).tolist()]
    count = expected_output_files(sum(size for size, _ in moved), rules.sizes, rules.strategy.compression_factor)
    along = [moved[number] for number in along_boxes([box for _, box in moved])]
    new: list[Ends] = []
    for neighbours in cut_evenly(along, itemgetter(0), count):
        lower, upper = (list(zip(*some, strict=True)) for some in zip(*(box for _, box in neighbours), strict=True))
        new.append((tuple(map(min, lower)), tuple(map(max, upper))))
    before = box_depths([*kept, *(box for _, box in moved)])
    return bool(box_depths([*kept, *new]).mean() <= before.mean())


def _is_worth_it(some: Sequence[_Chosen], planned: Sequence[PlannedFile], rules: GroupRules, *, is_cut: bool) -> bool:
    """Whether something is better after a rewrite; what is left of a group that was worth it need not be large."""
    if any(rules.asks_at_any_size(one) for one in planned):
        return True
    if rules.space is not None and any(one.is_deep for one in some):
        # Files that overlap with one another do not in one group.
        ends = [one.ends for one in planned if one.ends is not None]
        if box_depths(ends).mean() > 1 if rules.space.is_curve else (Intervals.of(ends).depths() > 1).any():
            return True
    return _comes_out_otherwise(planned, rules) if is_cut else _is_better_sized(planned, rules)


def _is_better_sized(some: Sequence[PlannedFile], rules: GroupRules) -> bool:
    total = sum(one.file.file_size_in_bytes for one in some)
    is_right = is_worth_rewriting(len(some), total, rules.options.min_input_files, rules.sizes)
    return is_right and _comes_out_otherwise(some, rules)


def _comes_out_otherwise(some: Sequence[PlannedFile], rules: GroupRules) -> bool:
    return comes_out_otherwise(
        len(some),
        rules.expected_files_count(some),
        has_large=any(one.file.file_size_in_bytes > rules.sizes.max_bytes for one in some),
        is_moved=rules.is_moved(some[0].file.spec_id),
    )


class _Sums:
    """Of candidates as columns, the sums over any neighbours."""

    def __init__(self, columns: CandidateColumns, rules: GroupRules) -> None:
        files, self._rules = columns.files, rules
        sizes, records, deleted = (
            files[name].to_numpy() for name in ("file_size_in_bytes", "record_count", "deleted_count")
        )
        live, some = sizes.copy(), np.flatnonzero(deleted > 0)
        # As `GroupFile.live_bytes`; the product may be more than 64 bits.
        exact = sizes[some].astype(object) * (records[some] - deleted[some]) // records[some]
        live[some] = exact.astype(np.int64)
        self.bytes, self.records, self._live = map(sums_before, (sizes, records, live))
        self._emptied = sums_before((records > 0) & (records == deleted))
        self._large = sums_before(sizes > rules.sizes.max_bytes)
        self._asking = sums_before(files["has_many_deletes"].to_numpy() | rules.options.rewrite_all)

    def expected_files_count(self, start: int, stop: int) -> int:
        """As of `GroupRules`."""
        if self._emptied[stop] - self._emptied[start] == stop - start:
            return 0
        live_bytes = int(self._live[stop] - self._live[start])
        return expected_output_files(live_bytes, self._rules.sizes, self._rules.strategy.compression_factor)

    def is_worth_it(self, start: int, stop: int, *, is_moved: bool, is_cut: bool) -> bool:
        """As `_is_worth_it`, of a binpack."""
        if self._asking[stop] > self._asking[start]:
            return True
        count, total, rules = stop - start, int(self.bytes[stop] - self.bytes[start]), self._rules
        is_right = is_cut or is_worth_rewriting(count, total, rules.options.min_input_files, rules.sizes)
        return is_right and comes_out_otherwise(
            count,
            self.expected_files_count(start, stop),
            has_large=bool(self._large[stop] > self._large[start]),
            is_moved=is_moved,
        )


def groups_of_columns(
    columns: CandidateColumns, rules: GroupRules, totals: FileTotals, cut: Cut | None = None
) -> list[PlannedGroup]:
    """As `groups_of_key` over all keys, of a binpack; no object is made for a file."""
    sums, options, count = _Sums(columns, rules), rules.options, len(columns.rows)
    # Where a group ends that begins with each file: what is more than all is no limit.
    most_bytes = min(options.max_file_group_size_bytes, int(sums.bytes[-1]))
    numbers = np.arange(count)
    ends = np.searchsorted(sums.bytes, sums.bytes[:-1] + most_bytes, "right") - 1
    ends = np.minimum(ends, numbers + min(options.max_file_group_input_files, count))
    stops = np.maximum(ends, numbers + 1).tolist()
    chosen: list[tuple[int, int, int]] = []
    for first, last in pairwise(_key_bounds(columns, rules)):
        spec_id, start = columns.files["spec_id"][first].as_py(), first
        for position in range(last - first):
            if start == last or (cut is not None and position > cut.position):
                break
            stop = min(stops[start], last)
            if cut is None or position == cut.position:
                upto = stop if cut is None else min(stop, start + cut.files_count)
                totals.candidate_files_count += upto - start
                if sums.is_worth_it(start, upto, is_moved=rules.is_moved(spec_id), is_cut=cut is not None):
                    chosen.append((start, upto, position))
                else:
                    totals.left_files_count += upto - start
                    totals.left_bytes += int(sums.bytes[upto] - sums.bytes[start])
            start = stop
    return _column_groups(columns, rules, sums, chosen)


def groups_of_ranges(columns: CandidateColumns, rules: GroupRules) -> list[PlannedGroup]:
    """The files of each range of a saved plan as a group, whatever it is worth; raises as `group_of`."""
    assert columns.ranges is not None
    bounds = [*np.flatnonzero(np.diff(columns.ranges, prepend=-1, append=-1)).tolist()]
    keys = np.array(_key_bounds(columns, rules))
    for start, stop in pairwise(bounds):
        inside = keys[(keys > start) & (keys < stop)]
        if len(inside):
            paths = columns.files["file_path"]
            raise _several_partitions(paths[start].as_py(), paths[int(inside[0])].as_py())
    return _column_groups(columns, rules, _Sums(columns, rules), [(start, stop, 0) for start, stop in pairwise(bounds)])


def _key_bounds(columns: CandidateColumns, rules: GroupRules) -> list[int]:
    """Where the files of a key begin, and where the last ones end."""
    spec_ids = columns.files["spec_id"].to_numpy()
    are_moved = np.isin(spec_ids, [spec_id for spec_id in rules.output_specs if rules.is_moved(spec_id)])
    partitions = np.where(are_moved, -1, sort_numbers(columns.files["partition"]))
    differ = (spec_ids[1:] != spec_ids[:-1]) | (partitions[1:] != partitions[:-1])
    return [0, *(np.flatnonzero(differ) + 1).tolist(), len(spec_ids)] if len(spec_ids) else [0]


def _column_groups(
    columns: CandidateColumns, rules: GroupRules, sums: _Sums, chosen: Sequence[tuple[int, int, int]]
) -> list[PlannedGroup]:
    """Ranges of candidates, each with the position of its bin, as groups."""
    deletes = columns.deletes_of_groups([(start, stop) for start, stop, _ in chosen])
    firsts = columns.files.select(["spec_id", "partition"])
    firsts = firsts.take(pa.array([start for start, _, _ in chosen], pa.int64()))
    groups = []
    for row, (start, stop, position), deletes_count, deletes_bytes in zip(
        firsts.to_pylist(), chosen, *deletes, strict=True
    ):
        spec_id = row["spec_id"]
        group = FileGroup(
            number=0,
            partition="",
            spec_id=spec_id,
            output_spec_id=rules.output_specs[spec_id],
            files_count=stop - start,
            bytes=int(sums.bytes[stop] - sums.bytes[start]),
            record_count=int(sums.records[stop] - sums.records[start]),
            delete_files_count=int(deletes_count),
            delete_bytes=int(deletes_bytes),
            expected_files_count=sums.expected_files_count(start, stop),
            held=HeldFiles(columns, start, stop),
        )
        groups.append(
            PlannedGroup(
                group=group,
                partition=b"" if rules.is_moved(spec_id) else row["partition"],
                position=position,
                range_number=0 if columns.ranges is None else int(columns.ranges[start]),
            )
        )
    return groups


def _several_partitions(path: str, other: str) -> SafetyError:
    return SafetyError(
        f"files of several partitions would become one, such as {path!r} and {other!r}; nothing was changed: make a new plan"
    )


def group_of(files: Sequence[PlannedFile], position: int, rules: GroupRules) -> PlannedGroup:
    """Files as one group, in their order.

    Raises:
        SafetyError: they are of several partitions, and are not moved to another spec: one file would hold rows of all of them,
            where readers look for those of one. A plan that was made while they were moved has such groups.
    """
    spec_id, partition = rules.key_of(files[0].file)
    for one in files:
        if rules.key_of(one.file) != (spec_id, partition):
            raise _several_partitions(files[0].file.file_path, one.file.file_path)
    group_files = with_deletes_once((one.file, one.deletes) for one in files)
    group = FileGroup(
        number=0,
        partition="",
        spec_id=spec_id,
        output_spec_id=rules.output_specs[spec_id],
        files_count=len(files),
        bytes=sum(one.file.file_size_in_bytes for one in files),
        record_count=sum(one.file.record_count for one in files),
        delete_files_count=len(group_files.deletes),
        delete_bytes=sum(delete.bytes_to_read for delete in group_files.deletes),
        expected_files_count=rules.expected_files_count(files),
    )
    return PlannedGroup(
        group=group, partition=partition, position=position, range_number=files[0].range_number, files=group_files
    )
