"""The files of one partition -> the groups that are worth a rewrite. Pure, and the same on the driver and in tasks.

For binpack these are Iceberg's groups, but for those that would come out as they went in. For an order of rows the files
are also chosen by what they say of their order and by how they overlap, so that a second run finds nothing to do:

* of a sort, all files that would leave a look-up with more than `key_overlap.WORTH_DEPTH` files;
* of a curve, all files of the partition once more overlap than a curve leaves (`key_overlap.worth_box_depth`), unless all of
  them were written along this curve before: values may be so skewed that no curve separates them. Files of a bad size that were
  written along it before and lie far apart stay where all would overlap more once they are put together.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from operator import itemgetter

import msgspec

from icekeep.errors import SafetyError
from icekeep.maintenance.compaction.group_deletes import with_deletes_once
from icekeep.maintenance.compaction.key_overlap import (
    along_boxes,
    around,
    box_depth,
    depth_sum,
    overlapping,
    worth_box_depth,
)
from icekeep.maintenance.compaction.key_ranges import Ends, KeySpace
from icekeep.maintenance.compaction.options import RewriteDataFilesOptions
from icekeep.maintenance.compaction.plan import FileGroup, GroupDelete, GroupFile, GroupFiles
from icekeep.maintenance.compaction.strategy import Strategy
from icekeep.maintenance.groups.file_sizes import FileSizes, expected_output_files
from icekeep.maintenance.intervals import Intervals
from icekeep.spec.collections import cut_evenly, each_once, packed


class PlannedFile(msgspec.Struct, frozen=True, kw_only=True):
    """A live data file, what reaches it, and why it may want to be rewritten.

    Attributes:
        deletes: those that a reader must apply to it; of many files parts of one list.
        ends: what it holds of the keys of the order; `None` where that is not known or not asked.
        stretch: the number of the stretch that it is in, of a partition that is cut (`stretches`).
    """

    file: GroupFile
    deletes: Sequence[GroupDelete] = ()
    has_bad_size: bool = False
    has_many_deletes: bool = False
    ends: Ends | None = None
    stretch: int = 0


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


class Cut(msgspec.Struct, frozen=True):
    """Of the `position`th bin of a key the first `files_count` files, and nothing else."""

    position: int
    files_count: int


class PlannedGroup(msgspec.Struct, frozen=True, kw_only=True):
    """A group, not numbered yet, the partition of its key as bytes, and the bin that it is of which stretch of the key."""

    group: FileGroup
    partition: bytes
    position: int
    stretch: int = 0
    files: GroupFiles | None = None


class FileTally(msgspec.Struct, kw_only=True):
    """Files that were looked at, whether or not they are in a group; sizes in bytes, depths of all files together."""

    candidate_files_count: int = 0
    left_files_count: int = 0
    left_bytes: int = 0
    depth_sum: float = 0.0
    depth_files_count: int = 0

    def add(self, other: "FileTally") -> None:
        """Take in what was found elsewhere."""
        for name in self.__struct_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def add_left(self, files: Iterable[PlannedFile]) -> None:
        """Count files that asked for a rewrite and are in no group."""
        for one in files:
            self.left_files_count += 1
            self.left_bytes += one.file.file_size_in_bytes


def groups_of_key(
    files: Iterable[PlannedFile], rules: GroupRules, tally: FileTally, cut: Cut | None = None
) -> Iterator[PlannedGroup]:
    """The groups of the files of one key, or of one stretch of it, that are worth a rewrite.

    Memory holds one group for binpack, else all files.

    Args:
        files: in the order of their partitions and paths.
        tally: takes in what was found.
    """
    if rules.strategy.ordering is None:
        chosen: Iterable[_Chosen] = (_Chosen(one) for one in files if _asks(one, rules))
    else:
        chosen = _chosen_to_sort(list(files), rules, tally)
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
        tally.candidate_files_count += sum(_asks(one.planned, rules) or one.is_deep for one in some)
        if _is_worth_it(some, rules, is_cut=cut is not None):
            yield group_of([one.planned for one in some], position, rules)
        else:
            tally.add_left(one.planned for one in some)


class _Chosen(msgspec.Struct, frozen=True):
    """A file that would be rewritten; `is_deep` if it is because of its overlap with others."""

    planned: PlannedFile
    is_deep: bool = False


def _asks(one: PlannedFile, rules: GroupRules) -> bool:
    """Whether a file has a reason of its own."""
    return rules.options.rewrite_all or one.has_bad_size or one.has_many_deletes or _is_out_of_order(one, rules)


def _is_out_of_order(one: PlannedFile, rules: GroupRules) -> bool:
    """Whether a file does not say that it is in the table's order; of other orders files cannot say anything."""
    wanted = rules.strategy.sort_order_id
    return wanted != 0 and one.file.sort_order_id != wanted


def _chosen_to_sort(files: list[PlannedFile], rules: GroupRules, tally: FileTally) -> list[_Chosen]:
    space, ends = rules.space, [one.ends for one in files if one.ends is not None]
    if space is None or len(ends) < len(files):
        return [_Chosen(one) for one in files if _asks(one, rules)]
    tally.depth_files_count += len(files)
    if not files or rules.is_moved(files[0].file.spec_id):
        for _, some in groupby(files, lambda one: one.file.partition):
            tally.depth_sum += depth_sum([one.ends for one in some if one.ends is not None], space)
        # They are of many partitions, and will be of others: how they overlap now says nothing.
        return [_Chosen(one) for one in files if _asks(one, rules)]
    line = None if space.is_curve else Intervals.of(ends)
    tally.depth_sum += depth_sum(ends, space) if line is None else float(line.depths().sum())
    asking = [rules.options.rewrite_all or one.has_many_deletes or _is_out_of_order(one, rules) for one in files]
    by_size = [one.has_bad_size for one in files]
    if line is None and any(by_size) and not _is_no_deeper(files, by_size, rules):
        # Files that are in order already would lose their neighbours.
        by_size = [
            badly_sized and one.file.snapshot_id not in rules.in_order
            for one, badly_sized in zip(files, by_size, strict=True)
        ]
    if _sizes_are_worth_it(files, by_size, rules):
        asking = [asks or badly_sized for asks, badly_sized in zip(asking, by_size, strict=True)]
    taken, deep = _with_deep_ones(files, line, asking, rules)
    if any(taken) and any(badly_sized and not is_taken for badly_sized, is_taken in zip(by_size, taken, strict=True)):
        # With work to be done here, files of a bad size come along.
        asking = [is_taken or badly_sized for is_taken, badly_sized in zip(taken, by_size, strict=True)]
        taken, deeper = _with_deep_ones(files, line, asking, rules)
        deep |= deeper
    if not any(taken):
        badly_sized = [one for one in files if one.has_bad_size]
        tally.candidate_files_count += len(badly_sized)
        tally.add_left(badly_sized)
        return []
    order = along_boxes(ends) if space.is_curve else sorted(range(len(files)), key=lambda number: ends[number])
    return [_Chosen(files[number], is_deep=number in deep) for number in order if taken[number]]


def _sizes_are_worth_it(files: Sequence[PlannedFile], by_size: Sequence[bool], rules: GroupRules) -> bool:
    group = [_Chosen(one) for one, badly_sized in zip(files, by_size, strict=True) if badly_sized]
    return bool(group) and _is_better_sized(group, rules)


def _with_deep_ones(
    files: Sequence[PlannedFile], line: Intervals | None, asking: Sequence[bool], rules: GroupRules
) -> tuple[list[bool], set[int]]:
    """Which files are sorted when those that ask for it are, and the positions of those that this adds to them.

    Args:
        line: where the files of a sort lie; `None` for a curve.
    """
    taken = _along_curve(files, asking, rules) if line is None else overlapping(line, asking).tolist()
    return taken, {number for number, is_taken in enumerate(taken) if is_taken and not asking[number]}


def _is_no_deeper(files: Sequence[PlannedFile], chosen: Sequence[bool], rules: GroupRules) -> bool:
    """Whether files of a curve overlap no more once the chosen ones are rewritten along it.

    Each new file is taken for the box around neighbours on the curve that make a file together.
    """
    kept = [one.ends for one, is_chosen in zip(files, chosen, strict=True) if not is_chosen and one.ends is not None]
    moved = [
        (one.file.live_bytes, one.ends)
        for one, is_chosen in zip(files, chosen, strict=True)
        if is_chosen and one.ends is not None
    ]
    count = expected_output_files(sum(size for size, _ in moved), rules.sizes, rules.strategy.compression_factor)
    in_order = [moved[number] for number in along_boxes([ends for _, ends in moved])]
    stretches = cut_evenly(in_order, itemgetter(0), count)
    new = [around([ends for _, ends in stretch]) for stretch in stretches]
    return box_depth([*kept, *new]) <= box_depth([*kept, *(ends for _, ends in moved)])


def _along_curve(files: Sequence[PlannedFile], asking: Sequence[bool], rules: GroupRules) -> list[bool]:
    if all(one.file.snapshot_id in rules.in_order for one in files):
        return list(asking)
    # Files that are written along the curve by themselves would lie over those that are there.
    alone = [one.ends for one, asks in zip(files, asking, strict=True) if not asks and one.ends is not None]
    over = worth_box_depth(sum(asking)) if any(asking) else 0
    is_deep = bool(alone) and box_depth(alone) + over > worth_box_depth(len(files))
    return [asks or is_deep for asks in asking]


def _is_worth_it(some: Sequence[_Chosen], rules: GroupRules, *, is_cut: bool) -> bool:
    """Whether something is better after a rewrite; what is left of a group that was worth it need not be large."""
    if rules.options.rewrite_all or any(
        one.planned.has_many_deletes or _is_out_of_order(one.planned, rules) for one in some
    ):
        return True
    by_size = _comes_out_otherwise if is_cut else _is_better_sized
    return _is_less_deep(some, rules) or by_size(some, rules)


def _is_less_deep(some: Sequence[_Chosen], rules: GroupRules) -> bool:
    """Whether files that were chosen for their overlap overlap with one another, which goes away in one group."""
    if rules.space is None or not any(one.is_deep for one in some):
        return False
    ends = [one.planned.ends for one in some if one.planned.ends is not None]
    if rules.space.is_curve:
        return box_depth(ends) > 1
    return bool((Intervals.of(ends).depths() > 1).any())


def _is_better_sized(some: Sequence[_Chosen], rules: GroupRules) -> bool:
    """Iceberg's rule, for groups that do not come out as they went in: else each run would only do the same again."""
    total = sum(one.planned.file.file_size_in_bytes for one in some)
    several = len(some) > 1
    enough = len(some) >= rules.options.min_input_files or total > rules.sizes.target_bytes
    is_right = (several and enough) or total > rules.sizes.max_bytes
    return is_right and _comes_out_otherwise(some, rules)


def _comes_out_otherwise(some: Sequence[_Chosen], rules: GroupRules) -> bool:
    """Whether files move to another spec, one is too large, or fewer come out."""
    files, sizes = [one.planned.file for one in some], rules.sizes
    if rules.is_moved(files[0].spec_id) or any(file.file_size_in_bytes > sizes.max_bytes for file in files):
        return True
    return _expected_files_count(files, rules) < len(files)


def _expected_files_count(files: Sequence[GroupFile], rules: GroupRules) -> int:
    if files and all(0 < file.record_count == file.deleted_count for file in files):
        return 0
    live_bytes = sum(file.live_bytes for file in files)
    return expected_output_files(live_bytes, rules.sizes, rules.strategy.compression_factor)


def group_of(files: Sequence[PlannedFile], position: int, rules: GroupRules) -> PlannedGroup:
    """Files as one group, in their order.

    Raises:
        SafetyError: they are of several partitions, and are not moved to another spec: one file would hold rows of all of them,
            where readers look for those of one. A plan that was made while they were moved has such groups.
    """
    spec_id, partition = rules.key_of(files[0].file)
    for one in files:
        if rules.key_of(one.file) != (spec_id, partition):
            raise SafetyError(
                f"files of several partitions would become one, such as {files[0].file.file_path!r} and "
                f"{one.file.file_path!r}; nothing was changed: make a new plan"
            )
    total = sum(one.file.file_size_in_bytes for one in files)
    group_files = with_deletes_once((one.file, one.deletes) for one in files)
    group = FileGroup(
        number=0,
        partition="",
        spec_id=spec_id,
        output_spec_id=rules.output_specs[spec_id],
        files_count=len(files),
        bytes=total,
        record_count=sum(one.file.record_count for one in files),
        delete_files_count=len(group_files.deletes),
        delete_bytes=sum(delete.bytes_to_read for delete in group_files.deletes),
        expected_files_count=_expected_files_count([one.file for one in files], rules),
    )
    return PlannedGroup(
        group=group, partition=partition, position=position, stretch=files[0].stretch, files=group_files
    )
