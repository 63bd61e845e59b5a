"""The order of rows that a run makes, and how far files are from it already.

The arguments are those of Iceberg's procedure: `strategy` is `binpack` or `sort`, and `sort_order` is the order of a sort,
a z-order and Hilbert's curve among them; without it a sort takes the table's order, and with it alone a sort is meant.

Of each file its bounds tell what keys of an order it holds: a range of keys of a sort, a box for a curve. Bounds are of columns,
keys are of several: of a file that holds one value of the first column the second one counts too, and so on. A range does not
hold its ends, since neighbours in a sorted table share them; so files that share no more than an end do not overlap.

How many files a look-up by key meets is the depth of the files. Of a sort, the depth of a file is the most files, itself among
them, that one key of its range may be in; of a curve it is the number of files whose box holds the middle of its own. 1 is an
order without overlap. Files that hold one and the same key count as one, since no order could tell them apart.
"""

import math
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from icekeep.errors import IcekeepBug, InvalidTableError, OptionError, UnsupportedError, UsageError, argument, table_at
from icekeep.formats.sort.encode import Curve, Ordering
from icekeep.maintenance.compact.options import RewriteDataFilesOptions
from icekeep.maintenance.intervals import Intervals, Mask, Places
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.properties import metrics_modes
from icekeep.spec.schema import Schema
from icekeep.spec.sorting import (
    UNSORTED,
    CurveKeys,
    NullOrder,
    SortDirection,
    SortField,
    build_sort_order,
    parse_sort_order,
)
from icekeep.spec.transforms import Day, Hour, Identity, Month, Transform, Truncate, UnknownTransform, Year
from icekeep.spec.types import BINARY, DOUBLE, FLOATING_TYPES, LONG, MAX_INT, FixedType, PrimitiveType, Type
from icekeep.spec.values import INTEGER_WIDTHS, are_crossed, sort_key, value_from_bytes

BINPACK = "binpack"
SORT = "sort"

ORDER_KEY = "icekeep.order"
"""In the summary of a snapshot: along which curve its new files were written, which no field of a file could say."""

_BY_ANY_ORDER = ("compression-factor", "shuffle-partitions-per-file")
_BY_ZORDER = ("var-length-contribution", "max-output-size")


class Strategy(msgspec.Struct, frozen=True, kw_only=True):
    """How the rows of new files are ordered, and what that takes.

    Attributes:
        text: for people, such as `binpack`, `sort by day ASC NULLS FIRST` or `zorder(a, b)`.
        ordering: of the rows of one partition; null leaves them as they are.
        sort_order_id: what new files say: the id of the table's order that this is, else 0. Where it is not 0, a file that
            says something else is not in this order.
        compression_factor: new bytes for one of the old ones, as the user expects them.
        shuffle_partitions_per_file: into how many parts the rows of one new file are shuffled.
        warnings: what the user should know before it runs.
    """

    text: str
    ordering: Ordering | None = None
    sort_order_id: int = UNSORTED.order_id
    compression_factor: float = 1.0
    shuffle_partitions_per_file: int = 1
    warnings: tuple[str, ...] = ()


def chosen_strategy(
    strategy: str | None, sort_order: str | None, metadata: TableMetadata, options: RewriteDataFilesOptions
) -> Strategy:
    """Work out what the arguments ask for; the columns are those of the current schema.

    Raises:
        UsageError, NotFoundError: the arguments contradict each other, the order cannot be read, or it does not fit the
            table.
        OptionError: an option belongs to another strategy.
        UnsupportedError: the table's order has a transform that is not known.
    """
    name = (strategy or (BINPACK if sort_order is None else SORT)).lower()
    if name not in (BINPACK, SORT):
        raise UsageError(f"there is no strategy {strategy!r}; give {BINPACK} or {SORT}", strategy=strategy)
    if name == BINPACK:
        if sort_order is not None:
            raise UsageError(
                f"strategy {BINPACK} takes no sort order ({sort_order!r}); give strategy {SORT}", strategy=strategy
            )
        _refuse(options, (*_BY_ANY_ORDER, *_BY_ZORDER), f"a strategy of {SORT}")
        return Strategy(text=BINPACK)
    keys = None if sort_order is None else parse_sort_order(sort_order)
    if isinstance(keys, CurveKeys):
        found = _along_curve(keys, metadata, options)
    elif keys is None:
        found = _by_table_order(metadata)
    else:
        fields = build_sort_order(metadata.schema, keys).fields
        same = (order.order_id for order in metadata.sort_orders if _facts(order.fields) == _facts(fields))
        order_id, text = next(same, UNSORTED.order_id), _sort_text(fields, metadata.schema)
        unknown = (
            f"{text}: that is not one of the table's sort orders, so the new files will not say that they are sorted"
        )
        found = Strategy(
            text=text,
            ordering=Ordering(fields=fields),
            sort_order_id=order_id,
            warnings=() if order_id else (unknown,),
        )
    if not isinstance(keys, CurveKeys) or keys.kind != "zorder":
        _refuse(options, _BY_ZORDER, "a sort order such as zorder(a, b)")
    return msgspec.structs.replace(
        found,
        compression_factor=options.compression_factor or 1.0,
        shuffle_partitions_per_file=options.shuffle_partitions_per_file or 1,
    )


def _by_table_order(metadata: TableMetadata) -> Strategy:
    order = metadata.sort_order
    if not order.fields:
        raise UsageError(f"{table_at(metadata.location)} has no sort order; give one as {argument('sort_order')}")
    for field in order.fields:
        if isinstance(field.transform, UnknownTransform):
            raise UnsupportedError(
                f"sort order {order.order_id} has the transform {str(field.transform)!r}, which is not known; give another "
                f"one as {argument('sort_order')}"
            )
    return Strategy(
        text=_sort_text(order.fields, metadata.schema),
        ordering=Ordering(fields=order.fields),
        sort_order_id=order.order_id,
    )


def _along_curve(keys: CurveKeys, metadata: TableMetadata, options: RewriteDataFilesOptions) -> Strategy:
    fields = build_sort_order(metadata.schema, keys.columns).fields
    constant = {field.source_id for field in metadata.spec.fields if isinstance(field.transform, Identity)}
    warnings = tuple(
        f"{keys.kind}: column {name!r} is left out, since it has one value in each partition"
        for name, field in zip(keys.columns, fields, strict=True)
        if field.source_id in constant
    )
    ids = tuple(dict.fromkeys(field.source_id for field in fields if field.source_id not in constant))
    if not ids:
        raise UsageError(f"all columns of the {keys.kind} have one value in each partition; name others")
    text = f"{keys.kind}({', '.join(metadata.schema.names_by_id[i] for i in ids)})"
    curve = Curve(
        kind=keys.kind,
        column_ids=ids,
        var_length_contribution=options.var_length_contribution or 8,
        max_output_bytes=options.max_output_size or MAX_INT,
    )
    return Strategy(text=text, ordering=Ordering(curve=curve), warnings=warnings)


def _facts(fields: Sequence[SortField]) -> list[tuple[int, str, str, str]]:
    return [(field.source_id, str(field.transform), field.direction, field.null_order) for field in fields]


def _sort_text(fields: Sequence[SortField], schema: Schema) -> str:
    texts = []
    for field in fields:
        name = schema.names_by_id[field.source_id]
        term = name if isinstance(field.transform, Identity) else f"{field.transform}({name})"
        texts.append(f"{term} {field.direction.upper()} {field.null_order.replace('-', ' ').upper()}")
    return "sort by " + ", ".join(texts)


def _refuse(options: RewriteDataFilesOptions, names: Sequence[str], needed: str) -> None:
    for name in names:
        given = getattr(options, name.replace("-", "_"))
        if given is not None:
            raise OptionError(name, given=given, expected=f"it together with {needed}, or leave it out")


def order_summary(strategy: Strategy) -> dict[str, str]:
    """What a run adds to the summaries of its snapshots: the curve along which it writes."""
    curve = None if strategy.ordering is None else strategy.ordering.curve
    if curve is None:
        return {}
    ids = ",".join(map(str, curve.column_ids))
    return {ORDER_KEY: f"{curve.kind}({ids})/{curve.var_length_contribution}/{curve.max_output_bytes}"}


def snapshots_in_order(strategy: Strategy, metadata: TableMetadata) -> frozenset[int]:
    """The snapshots that say that their files were written along the very curve of a strategy."""
    mark = order_summary(strategy).get(ORDER_KEY)
    if mark is None:
        return frozenset()
    return frozenset(s.snapshot_id for s in metadata.snapshots if (s.summary or {}).get(ORDER_KEY) == mark)


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


class ColumnFacts(msgspec.Struct, frozen=True):
    """What a file's entry says of one column."""

    lower: bytes | None
    upper: bytes | None
    null_count: int | None = None
    nan_count: int | None = None


def key_space(ordering: Ordering, metadata: TableMetadata) -> KeySpace | None:
    """Where files may be found in an order; `None` where bounds cannot tell, because the table keeps none of its columns."""
    modes, schema = metrics_modes(metadata.properties, metadata.schema, metadata.sort_order), metadata.schema
    columns: list[KeyColumn] = []
    if (curve := ordering.curve) is not None:
        # Bits are taken from the columns in turn until a z-value has all the bytes that it may have.
        share = -(-curve.max_output_bytes // len(curve.column_ids))
        for field_id in curve.column_ids:
            mode, type_ = modes.get(field_id), schema.fields_by_id[field_id].type
            if mode is not None and mode.bounds and isinstance(type_, PrimitiveType):
                varies = type_.name in ("string", "binary") or isinstance(type_, FixedType)
                bytes_count = min(share, curve.var_length_contribution) if varies else share
                columns.append(
                    KeyColumn(field_id=field_id, type=type_, bounds_length=mode.length, bytes_count=bytes_count)
                )
    for field in ordering.fields if curve is None else ():
        mode, source = modes.get(field.source_id), schema.fields_by_id.get(field.source_id)
        is_kept = mode is not None and mode.bounds and isinstance(field.transform, _ORDERED)
        if mode is None or not is_kept or source is None or not isinstance(source.type, PrimitiveType):
            # Later columns count only among rows of one value of this one, of which nothing is known.
            break
        columns.append(
            KeyColumn(
                field_id=field.source_id,
                type=source.type,
                transform=field.transform,
                is_descending=field.direction is SortDirection.DESC,
                nulls_come_first=field.null_order is NullOrder.NULLS_FIRST,
                bounds_length=mode.length,
            )
        )
    return KeySpace(columns=tuple(columns), is_curve=curve is not None) if columns else None


def ends_of(space: KeySpace, facts: Sequence[ColumnFacts], record_count: int) -> Ends:
    """What a file holds of the keys, by the facts of each of the space's columns; what is not known reaches to the end."""
    found = [_column_ends(column, known, record_count) for column, known in zip(space.columns, facts, strict=True)]
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


def _column_ends(column: KeyColumn, facts: ColumnFacts, record_count: int) -> tuple[bytes, bytes]:
    """The least and the greatest key of one column."""
    null = _NULL_FIRST if column.nulls_come_first else _NULL_LAST
    has_nulls = bool(facts.null_count)
    if has_nulls and facts.null_count == record_count:
        return null, null
    low, high = _value_ends(column, facts)
    if facts.nan_count and column.type in FLOATING_TYPES:
        nan = _VALUE + sort_key((column.type,), (float("nan"),))
        # A file of NaNs has no bounds.
        low, high = (nan, nan) if facts.lower is None and facts.upper is None else (low, nan)
    if column.is_descending:
        low, high = _reversed(high), _reversed(low)
    if has_nulls:
        low, high = (null, high) if column.nulls_come_first else (low, null)
    return low, high


def _value_ends(column: KeyColumn, facts: ColumnFacts) -> tuple[bytes, bytes]:
    try:
        low = None if facts.lower is None else value_from_bytes(column.type, facts.lower)
        high = None if facts.upper is None else value_from_bytes(column.type, facts.upper)
        if are_crossed(low, high):
            return _LEAST, _GREATEST
        length = column.bounds_length
        if length is not None and isinstance(low, str | bytes) and isinstance(high, str | bytes):
            # Files whose values begin alike, as far as bounds say, are alike.
            high = _lowered(high) if len(high) == length else high
            low, high = low[:length], max(low[:length], high[:length])
        least = _LEAST if low is None else _value_key(column, low)
        greatest = _GREATEST if high is None else _value_key(column, high)
        # Another writer has another order of UUIDs.
        return (least, greatest) if least <= greatest else (_LEAST, _GREATEST)
    except (InvalidTableError, UnsupportedError, IcekeepBug):
        # What cannot be read tells nothing; that is no reason to fail here, where it is only a hint.
        return _LEAST, _GREATEST


def _lowered(high: Any) -> Any:
    """An upper bound that was cut with its last character as it was before it was raised."""
    if isinstance(high, bytes):
        return high[:-1] + bytes([high[-1] - 1]) if high[-1] else high[:-1]
    last = ord(high[-1])
    if last == 0:
        return high[:-1]
    return high[:-1] + (_HIGHEST_BEFORE_SURROGATES if last == 0xE000 else chr(last - 1))


def _value_key(column: KeyColumn, value: Any) -> bytes:
    """One value as bytes that compare as values do in the order."""
    count, type_ = column.bytes_count, column.type
    if count is None:
        value = column.transform.apply(type_, value)
        return _VALUE + sort_key((column.transform.result_type(type_),), (value,))
    if isinstance(value, str | bytes):
        data = value.encode() if isinstance(value, str) else value
        return _VALUE + sort_key((BINARY,), (data[:count],))
    widened: Type = LONG if type_.name in INTEGER_WIDTHS else DOUBLE if type_.name == "float" else type_
    return _VALUE + sort_key((widened,), (value,))[: 1 + count]


def _reversed(key: bytes) -> bytes:
    """The same for an order that descends; keys of values end where they say, so that turning their bits is enough."""
    if not key.startswith(_VALUE):
        return _LEAST if key == _GREATEST else _GREATEST
    return _VALUE + bytes(byte ^ 0xFF for byte in key[1:])


WORTH_DEPTH = 2
"""A look-up in a sorted table may meet this many files: what was sorted before, and what was sorted since."""

_SAMPLES_COUNT = 400
_MAX_ROUNDS = 8


def depth_sum(ends: Sequence[Ends], space: KeySpace) -> float:
    """The depths of all files of one partition together."""
    if not ends:
        return 0.0
    if space.is_curve:
        depths = box_depths(ends)
        # In this order the sum of few files is a whole number, whatever it is added to first.
        return float(depths.sum() * len(ends) / len(depths))
    return float(Intervals.of(ends).depths().sum())


def overlapping(files: Intervals, chosen: Sequence[bool] | Mask) -> Mask:
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


def box_depths(boxes: Sequence[Ends]) -> Places:
    """The depth of each file of one partition on a curve; of many files, of each in a sample of them."""
    lower, upper = _box_places(boxes)
    is_point = (lower == upper).all(axis=1)
    alike = np.unique(np.concatenate([lower, upper], axis=1)[is_point], axis=0)
    width = lower.shape[1]
    lows = np.concatenate([lower[~is_point], alike[:, :width]])
    highs = np.concatenate([upper[~is_point], alike[:, width:]])
    middles = ((lower + upper) // 2)[:: max(1, len(boxes) // _SAMPLES_COUNT)]
    # One after the other: the boxes of all at once would take the memory of their product.
    return np.array([((lows <= middle) & (middle <= highs)).all(axis=1).sum() for middle in middles], np.int64)


def worth_box_depth(files_count: int) -> float:
    """Above this many files that a look-up meets, of `files_count` in all, a partition is worth sorting along a curve again.

    Files that a curve cuts out of a partition are no boxes; their boxes overlap where a file reaches over one of the halves,
    quarters and so on that the curve goes through, at most one file a level.
    """
    return 2 + math.log2(max(1, files_count))


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
