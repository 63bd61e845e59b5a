"""The delete files of a group in an order in which those that reach a file are a few stretches. Pure.

Equality deletes come first, those of a partition together and by their sequence numbers: a file is reached by those that are
newer than it, the end of such a list. Deletes of positions that reach several files follow in the same way, and last come
those that reach one file alone, file by file.

What files hold of the keys of an order, as far as their bounds tell: a range of keys, or a box for a curve. Pure.

Bounds are of columns, keys are of several: of a file that holds one value of the first column the second one counts too,
and so on. A range does not hold its ends, since neighbours in a sorted table share them; so files that share no more than
an end do not overlap.

How far the files of a partition are from an order: how many of them a look-up by key meets. Pure.

Of a sort, the depth of a file is the most files, itself among them, that one key of its range may be in; of a curve it is
the number of files whose box holds the middle of its own. 1 is an order without overlap, the number of files is none at
all. Files that hold one and the same key count as one, since no order could tell them apart.

The files of one partition -> the groups that are worth a rewrite. Pure, and the same on the driver and in tasks.

For binpack these are Iceberg's groups, but for those that would come out as they went in. For an order of rows the files
are also chosen by what they say of their order and by how they overlap, so that a second run finds nothing to do:

* of a sort, all files that would leave a look-up with more than `key_overlap.WORTH_DEPTH` files;
* of a curve, all files of the partition once more overlap than a curve leaves (`key_overlap.worth_box_depth`), unless all of
  them were written along this curve before: values may be so skewed that no curve separates them. Files of a bad size that were
  written along it before and lie far apart stay where all would overlap more once they are put together.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, groupby
from operator import itemgetter
from typing import Any

import msgspec
import numpy as np

from icekeep.errors import IcekeepBug, InvalidTableError, SafetyError, UnsupportedError
from icekeep.formats.sort.encode import Curve, Ordering
from icekeep.maintenance.compact.options import RewriteDataFilesOptions
from icekeep.maintenance.compact.plan import FileGroup, GroupDelete, GroupFile, GroupFiles, Strategy
from icekeep.maintenance.intervals import Intervals, Mask, Places
from icekeep.maintenance.rewrite.options import FileSizes, expected_output_files
from icekeep.spec.collections import Part, PositionSet, Renumbering, cut_evenly, each_once, narrowed, packed, stretches
from icekeep.spec.manifests.structs import FileContent
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.properties import MetricsMode, metrics_modes
from icekeep.spec.sorting import NullOrder, SortDirection, SortField
from icekeep.spec.transforms import Day, Hour, Identity, Month, Transform, Truncate, Year
from icekeep.spec.types import BINARY, DOUBLE, FLOATING_TYPES, LONG, FixedType, PrimitiveType, Type
from icekeep.spec.values import INTEGER_WIDTHS, are_crossed, sort_key, value_from_bytes

_Name = tuple[str, int | None]


class _Reach(msgspec.Struct):
    """How many files of a group a delete file reaches, and the sum of their numbers: of one file that is its number."""

    delete: GroupDelete
    files_count: int = 0
    numbers_sum: int = 0


class _Share(msgspec.Struct, frozen=True):
    """Files whose delete files are parts of one list: their numbers, and as much of the list as they use."""

    files: Sequence[int]
    deletes: Sequence[GroupDelete]
    parts: Sequence[PositionSet]


def with_deletes_once(files: Iterable[tuple[GroupFile, Sequence[GroupDelete]]]) -> GroupFiles:
    """Files, each with the delete files that reach it, as a group has them.

    Where these are a `Part`, no time is spent on each of its members: files may share a thousand of them.
    """
    pairs = [(file, _part(deletes)) for file, deletes in files]
    shares = _shares([part for _, part in pairs])
    reaches: dict[_Name, _Reach] = {}
    for share in shares:
        _count(share, reaches)
    in_order = sorted(reaches.values(), key=_order)
    places = {_name(reach.delete): place for place, reach in enumerate(in_order)}
    positions: dict[int, PositionSet] = {}
    for share in shares:
        numbers = Renumbering([places[_name(delete)] for delete in share.deletes])
        positions |= zip(share.files, map(numbers.moved, share.parts), strict=True)
    return GroupFiles(
        tuple(msgspec.structs.replace(file, deletes=positions[number]) for number, (file, _) in enumerate(pairs)),
        tuple(reach.delete for reach in in_order),
    )


def _part(deletes: Sequence[GroupDelete]) -> Part[GroupDelete]:
    return deletes if isinstance(deletes, Part) else Part(deletes, PositionSet(range(len(deletes))))


def _shares(parts: Sequence[Part[GroupDelete]]) -> list[_Share]:
    numbers: dict[int, list[int]] = defaultdict(list)
    for number, part in enumerate(parts):
        numbers[id(part.whole)].append(number)
    return [
        _Share(some, *narrowed(parts[some[0]].whole, [parts[number].positions for number in some]))
        for some in numbers.values()
    ]


def _count(share: _Share, reaches: dict[_Name, _Reach]) -> None:
    counts, sums = ([0] * (len(share.deletes) + 1) for _ in range(2))
    for number, part in zip(share.files, share.parts, strict=True):
        for start, stop in stretches(part):
            counts[start] += 1
            counts[stop] -= 1
            sums[start] += number
            sums[stop] -= number
    for delete, count, total in zip(share.deletes, accumulate(counts), accumulate(sums), strict=False):
        reach = reaches.setdefault(_name(delete), _Reach(delete))
        reach.files_count += count
        reach.numbers_sum += total


def _name(delete: GroupDelete) -> _Name:
    return delete.file_path, delete.content_offset


def _order(reach: _Reach) -> tuple[int, int, int, bytes, int, str, int]:
    delete = reach.delete
    kind = only = 0
    if delete.content != FileContent.EQUALITY_DELETES:
        kind = 1 if reach.files_count > 1 else 2
        only = reach.numbers_sum if kind == 2 else 0
    offset = -1 if delete.content_offset is None else delete.content_offset
    return kind, only, delete.spec_id, delete.partition, delete.sequence_number, delete.file_path, offset


Ends = tuple[tuple[bytes, ...], tuple[bytes, ...]]
"""Of a sort the lower and the upper end of the keys, which compare as they are; of a curve those of each column."""

_LEAST, _NULL_FIRST, _VALUE, _NULL_LAST, _GREATEST = b"", b"\x00", b"\x01", b"\x02", b"\xff"
_ORDERED = (Identity, Truncate, Year, Month, Day, Hour)
_HIGHEST_BEFORE_SURROGATES = "\ud7ff"


class KeyColumn(msgspec.Struct, frozen=True, kw_only=True):
    """One column of an order.

    Attributes:
        bounds_length: at how many characters or bytes the table cuts bounds; `None` where it does not.
        bytes_count: how many bytes of a value count on a curve; `None` for all.
    """

    field_id: int
    type: PrimitiveType
    transform: Transform = Identity()
    is_descending: bool = False
    nulls_come_first: bool = True
    bounds_length: int | None = None
    bytes_count: int | None = None


class KeySpace(msgspec.Struct, frozen=True, kw_only=True):
    """The columns of an order whose bounds say where a file lies in it: of a sort the first ones."""

    columns: tuple[KeyColumn, ...]
    is_curve: bool

    @property
    def field_ids(self) -> tuple[int, ...]:
        """Of which columns bounds are needed."""
        return tuple(column.field_id for column in self.columns)


class ColumnFacts(msgspec.Struct, frozen=True):
    """What a file's entry says of one column."""

    lower: bytes | None
    upper: bytes | None
    null_count: int | None = None
    nan_count: int | None = None


def key_space(ordering: Ordering, metadata: TableMetadata) -> KeySpace | None:
    """Where files may be found in an order; `None` where bounds cannot tell, because the table keeps none of its columns."""
    modes = metrics_modes(metadata.properties, metadata.schema, metadata.sort_order)
    if ordering.curve is not None:
        columns = _curve_columns(ordering.curve, metadata, modes)
        return KeySpace(columns=columns, is_curve=True) if columns else None
    sorted_by: list[KeyColumn] = []
    for field in ordering.fields:
        column = _sort_column(field, metadata, modes)
        if column is None:
            break
        sorted_by.append(column)
    return KeySpace(columns=tuple(sorted_by), is_curve=False) if sorted_by else None


def ends_of(space: KeySpace, facts: Sequence[ColumnFacts], record_count: int) -> Ends:
    """What a file holds of the keys.

    Args:
        facts: of each of the space's columns; what is not known reaches to the end.
    """
    found = [_component(column, known, record_count) for column, known in zip(space.columns, facts, strict=True)]
    if space.is_curve:
        return tuple(low for low, _ in found), tuple(high for _, high in found)
    lower: list[bytes] = []
    upper: list[bytes] = []
    for low, high in found:
        lower.append(low)
        upper.append(high)
        if low != high:
            # Beyond all keys that begin like this one, as the upper end is before all of them.
            lower.append(_GREATEST)
            break
    return tuple(lower), tuple(upper)


def _sort_column(field: SortField, metadata: TableMetadata, modes: Mapping[int, MetricsMode]) -> KeyColumn | None:
    mode = modes.get(field.source_id)
    source = metadata.schema.fields_by_id.get(field.source_id)
    if mode is None or not mode.bounds or source is None or not isinstance(field.transform, _ORDERED):
        return None
    if not isinstance(source.type, PrimitiveType):
        return None
    return KeyColumn(
        field_id=field.source_id,
        type=source.type,
        transform=field.transform,
        is_descending=field.direction is SortDirection.DESC,
        nulls_come_first=field.null_order is NullOrder.NULLS_FIRST,
        bounds_length=mode.length,
    )


def _curve_columns(curve: Curve, metadata: TableMetadata, modes: Mapping[int, MetricsMode]) -> tuple[KeyColumn, ...]:
    # Bits are taken from the columns in turn until a z-value has all the bytes that it may have.
    share = -(-curve.max_output_bytes // len(curve.column_ids))
    length = min(share, curve.var_length_contribution)
    columns = []
    for field_id in curve.column_ids:
        mode, type_ = modes.get(field_id), metadata.schema.fields_by_id[field_id].type
        if mode is not None and mode.bounds and isinstance(type_, PrimitiveType):
            varies = type_.name in ("string", "binary") or isinstance(type_, FixedType)
            columns.append(
                KeyColumn(
                    field_id=field_id,
                    type=type_,
                    bounds_length=mode.length,
                    bytes_count=length if varies else share,
                )
            )
    return tuple(columns)


def _component(column: KeyColumn, facts: ColumnFacts, record_count: int) -> tuple[bytes, bytes]:
    """The least and the greatest key of one column."""
    null = _NULL_FIRST if column.nulls_come_first else _NULL_LAST
    has_nulls = bool(facts.null_count)
    if has_nulls and facts.null_count == record_count:
        return null, null
    low, high = _values(column, facts)
    if facts.nan_count and column.type in FLOATING_TYPES:
        nan = _VALUE + sort_key((column.type,), (float("nan"),))
        # A file of NaNs has no bounds.
        low, high = (nan, nan) if facts.lower is None and facts.upper is None else (low, nan)
    if column.is_descending:
        low, high = _reversed(high), _reversed(low)
    if has_nulls:
        low, high = (null, high) if column.nulls_come_first else (low, null)
    return low, high


def _values(column: KeyColumn, facts: ColumnFacts) -> tuple[bytes, bytes]:
    try:
        low = None if facts.lower is None else value_from_bytes(column.type, facts.lower)
        high = None if facts.upper is None else value_from_bytes(column.type, facts.upper)
        if are_crossed(low, high):
            return _LEAST, _GREATEST
        if column.bounds_length is not None and isinstance(low, str | bytes) and isinstance(high, str | bytes):
            low, high = _at_one_precision(low, high, column.bounds_length)
        least, greatest = (
            _LEAST if low is None else _key(column, low),
            _GREATEST if high is None else _key(column, high),
        )
        # Another writer has another order of UUIDs.
        return (least, greatest) if least <= greatest else (_LEAST, _GREATEST)
    except (InvalidTableError, UnsupportedError, IcekeepBug):
        # What nobody can read tells nothing; that is no reason to fail here, where it is only a hint.
        return _LEAST, _GREATEST


def _at_one_precision(low: Any, high: Any, length: int) -> tuple[Any, Any]:
    """Bounds that were cut: of an upper one the last character was raised; files whose values begin alike are then alike."""
    if len(high) == length:
        high = _lowered(high)
    low, high = low[:length], high[:length]
    return low, max(low, high)


def _lowered(high: Any) -> Any:
    if isinstance(high, bytes):
        return high[:-1] + bytes([high[-1] - 1]) if high[-1] else high[:-1]
    last = ord(high[-1])
    if last == 0:
        return high[:-1]
    return high[:-1] + (_HIGHEST_BEFORE_SURROGATES if last == 0xE000 else chr(last - 1))


def _key(column: KeyColumn, value: Any) -> bytes:
    if column.bytes_count is not None:
        return _VALUE + _curve_key(column.type, value, column.bytes_count)
    value = column.transform.apply(column.type, value)
    return _VALUE + sort_key((column.transform.result_type(column.type),), (value,))


def _curve_key(type_: PrimitiveType, value: Any, bytes_count: int) -> bytes:
    if isinstance(value, str | bytes):
        data = value.encode() if isinstance(value, str) else value
        return sort_key((BINARY,), (data[:bytes_count],))
    widened: Type = LONG if type_.name in INTEGER_WIDTHS else DOUBLE if type_.name == "float" else type_
    return sort_key((widened,), (value,))[: 1 + bytes_count]


def _reversed(key: bytes) -> bytes:
    """The same for an order that descends; keys of values end where they say, so that turning their bits is enough."""
    if not key.startswith(_VALUE):
        return _LEAST if key == _GREATEST else _GREATEST
    return _VALUE + bytes(byte ^ 0xFF for byte in key[1:])


WORTH_DEPTH = 2
"""A look-up in a sorted table may meet this many files: what was sorted before, and what was sorted since."""

_SAMPLES_COUNT = 400
_MAX_ROUNDS = 8


def depth_sum(ranges: Sequence[Ends], space: KeySpace) -> float:
    """The depths of all files of one partition together."""
    if not ranges:
        return 0.0
    if space.is_curve:
        met = _met(ranges)
        # In this order the sum of few files is a whole number, whatever it is added to first.
        return sum(met) * len(ranges) / len(met)
    return float(Intervals.of(ranges).depths().sum())


def overlapping(files: Intervals, chosen: Sequence[bool]) -> Mask:
    """Which files of a partition are to be sorted with those that are chosen already: all that would still lie too deep.

    The new files will span what the chosen ones do, each key in one of them. A file that is left alone has a depth of
    `WORTH_DEPTH` at most after that, and so have the new files; so the same asked again answers none.
    """
    taken = np.asarray(chosen, dtype=np.bool_).copy()
    for _ in range(_MAX_ROUNDS):
        too_deep = ~taken & (files.depths(~taken, files.taken(taken).span()) > WORTH_DEPTH)
        if not too_deep.any():
            return taken
        taken |= too_deep
    # Each round found more beyond the ends of the last one: a staircase, which is sorted as a whole.
    return np.ones(len(taken), dtype=np.bool_)


def box_depth(boxes: Sequence[Ends]) -> float:
    """The mean depth of the files of one partition on a curve; of many files, of a sample of them."""
    met = _met(boxes)
    return sum(met) / len(met)


def _met(boxes: Sequence[Ends]) -> list[int]:
    """How many boxes hold the middle of each box, or of each box of a sample."""
    lower, upper = _box_places(boxes)
    is_point = (lower == upper).all(axis=1)
    alike = np.unique(np.concatenate([lower, upper], axis=1)[is_point], axis=0)
    width = lower.shape[1]
    lows = np.concatenate([lower[~is_point], alike[:, :width]])
    highs = np.concatenate([upper[~is_point], alike[:, width:]])
    middles = ((lower + upper) // 2)[:: max(1, len(boxes) // _SAMPLES_COUNT)]
    return [int(((lows <= middle) & (middle <= highs)).all(axis=1).sum()) for middle in middles]


def worth_box_depth(files_count: int) -> float:
    """Above so many files that a look-up meets, of so many in all, a partition is worth sorting along a curve anew.

    Files that a curve cuts out of a partition are no boxes; their boxes overlap where a file reaches over one of the halves,
    quarters and so on that the curve goes through, at most one file a level.
    """
    return 2 + math.log2(max(1, files_count))


def around(boxes: Sequence[Ends]) -> Ends:
    """The box of several files together."""
    lower, upper = (list(zip(*ends, strict=True)) for ends in zip(*boxes, strict=True))
    return tuple(map(min, lower)), tuple(map(max, upper))


def along_boxes(boxes: Sequence[Ends]) -> list[int]:
    """The files in an order in which neighbours lie near each other in all columns: a z-order of their middles' ranks."""
    lower, upper = _box_places(boxes)
    middles = lower + upper
    places = []
    for position, middle in enumerate(middles.tolist()):
        code = 0
        for bit in range(40, -1, -1):
            for value in middle:
                code = code << 1 | value >> bit & 1
        places.append((code, position))
    return [position for _, position in sorted(places)]


def _box_places(boxes: Sequence[Ends]) -> tuple[Places, Places]:
    """The ends of boxes by their ranks among all ends of each column, times two: what is odd lies between two."""
    lower = np.empty((len(boxes), len(boxes[0][0])), dtype=np.int64)
    upper = np.empty_like(lower)
    for column in range(lower.shape[1]):
        ranks = {key: rank for rank, key in enumerate(sorted({ends[column] for box in boxes for ends in box}))}
        lower[:, column] = [2 * ranks[low[column]] for low, _ in boxes]
        upper[:, column] = [2 * ranks[high[column]] for _, high in boxes]
    return lower, upper


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
