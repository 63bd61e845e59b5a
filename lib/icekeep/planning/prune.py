"""Prune batches of entries by a filter: the rules of `spec/filters/evaluators.py` over Arrow columns.

Bounds are decoded to types whose order is Iceberg's: whole numbers, floats with one zero, and bytes for everything else.
Decimals, of up to 38 digits, become 32 bytes with the sign bit flipped, so that the least is all zeros.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from icekeep.formats.arrow.projection import Mask, where_true
from icekeep.formats.evaluate import matches
from icekeep.planning.manifests import map_positions
from icekeep.spec.filters.evaluators import Contents, contents_of, evaluate, may_match, must_match
from icekeep.spec.filters.expressions import (
    ALWAYS_FALSE,
    ALWAYS_TRUE,
    INEQUALITIES,
    PREFIX_OPERATIONS,
    TRUE_OF_NULL_TO_SOME,
    UNARY_OPERATIONS,
    BoundPredicate,
    Expression,
    Operation,
    predicates,
)
from icekeep.spec.types import (
    DAY_SECONDS,
    FLOATING_TYPES,
    MAX_LONG,
    STRING,
    UUID,
    DecimalType,
    FixedType,
    NestedField,
    PrimitiveType,
    Type,
)
from icekeep.spec.values import INTEGER_WIDTHS, TICKS_PER_SECOND, value_to_bytes

_Bytes = np.ndarray[Any, np.dtype[np.uint8]]
_DECIMAL_WIDTH = 32
_UUID_WIDTH = 16
_SIGN = 0x80


def decode_bounds(type_: Type, bounds: pa.BinaryArray) -> pa.Array:
    """The bounds as values that compare with one another and with those of `encode_literals`.

    An unknown bound is null: one that is missing, or whose bytes are no value of the type or of one before promotion.
    """
    match type_:
        case DecimalType():
            return _decimals(bounds)
        case FixedType(length=length):
            return _where(pc.less_equal(pc.binary_length(bounds), length), bounds)
        case PrimitiveType(name="float" | "double" as name):
            return _floats(bounds, (4,) if name == "float" else (4, 8))
        case PrimitiveType(name=name) if name in INTEGER_WIDTHS or name == "boolean":
            return _integers(bounds, name)
        case PrimitiveType(name="string"):
            return _strings(bounds)
        case PrimitiveType(name="uuid"):
            return _where(pc.equal(pc.binary_length(bounds), _UUID_WIDTH), bounds)
        case PrimitiveType(name="binary"):
            return bounds
    return pa.nulls(len(bounds), pa.binary())


def encode_literals(type_: Type, values: Sequence[Any]) -> pa.Array:
    if type_ == STRING:
        return pa.array([value.encode("utf-8", "surrogatepass") for value in values], pa.binary())
    return decode_bounds(type_, pa.array([value_to_bytes(type_, value) for value in values], pa.binary()))


def in_java_order(uuids: pa.Array) -> pa.Array:
    """Decoded UUIDs as bytes in the order of Java, which compares them as two signed longs."""
    fixed = pc.cast(uuids, pa.binary(_UUID_WIDTH))
    content = np.frombuffer(fixed.buffers()[1], np.uint8)[fixed.offset * _UUID_WIDTH :][: len(fixed) * _UUID_WIDTH]
    signed = content.reshape(-1, _UUID_WIDTH).copy()
    signed[:, [0, _UUID_WIDTH // 2]] ^= _SIGN
    return _from_rows(signed, np.asarray(pc.is_valid(uuids)))


def _integers(bounds: pa.BinaryArray, name: str) -> pa.Array:
    numbers, is_known = np.zeros(len(bounds), np.int64), np.zeros(len(bounds), np.bool_)
    width = INTEGER_WIDTHS.get(name, 1)
    at, raw = _of_length(bounds, width)
    read = raw.view(f"<i{width}")[:, 0]
    numbers[at], is_known[at] = read != 0 if name == "boolean" else read, True
    if name in ("long", "timestamp", "timestamp_ns"):
        at, raw = _of_length(bounds, 4)
        before = raw.view("<i4")[:, 0].astype(np.int64)
        # A bound of four bytes was written when the column was still an int or a date.
        scale = 1 if name == "long" else DAY_SECONDS * TICKS_PER_SECOND[name]
        in_range = np.abs(before) <= MAX_LONG // scale
        numbers[at], is_known[at] = np.where(in_range, before, 0) * scale, in_range
    return pa.array(numbers, mask=~is_known)


def _floats(bounds: pa.BinaryArray, widths: Sequence[int]) -> pa.Array:
    numbers, is_known = np.zeros(len(bounds), np.float64), np.zeros(len(bounds), np.bool_)
    for width in widths:
        at, raw = _of_length(bounds, width)
        with np.errstate(invalid="ignore"):  # a signalling NaN is a NaN
            numbers[at], is_known[at] = raw.view(f"<f{width}")[:, 0], True
    return pa.array(numbers + 0.0, mask=~is_known)


def _decimals(bounds: pa.BinaryArray) -> pa.Array:
    rows, is_known = np.zeros((len(bounds), _DECIMAL_WIDTH), np.uint8), np.zeros(len(bounds), np.bool_)
    for width in np.unique(_lengths(bounds)):
        if 1 <= width <= _DECIMAL_WIDTH:
            at, raw = _of_length(bounds, int(width))
            rows[at, -width:], is_known[at] = raw, True
            rows[at[raw[:, 0] >= _SIGN], :-width] = 0xFF
    # As in `decimal_from_unscaled`: within 2**127 - 1 of zero, so that the upper half is the sign of the lower.
    upper, lower = rows[:, : _DECIMAL_WIDTH // 2], rows[:, _DECIMAL_WIDTH // 2 :]
    is_least = (lower[:, 0] == _SIGN) & ~lower[:, 1:].any(axis=1)
    is_known &= (upper == np.where(lower[:, :1] >= _SIGN, 0xFF, 0)).all(axis=1) & ~is_least
    rows[:, 0] ^= _SIGN
    return _from_rows(rows, is_known)


def _strings(bounds: pa.BinaryArray) -> pa.Array:
    try:
        pc.cast(bounds, pa.string())
    except pa.ArrowInvalid:
        texts = []
        for bound in bounds.to_pylist():
            try:
                if bound is not None:
                    bound.decode()
                texts.append(bound)
            except UnicodeDecodeError:
                texts.append(None)
        return pa.array(texts, pa.binary())
    return bounds


def _where(condition: pa.Array, bounds: pa.BinaryArray) -> pa.Array:
    # Not a constant: to make a scalar imports pandas.
    return pc.if_else(condition, bounds, pa.scalar(None, pa.binary()))


def _lengths(bounds: pa.BinaryArray) -> np.ndarray[Any, np.dtype[np.int32]]:
    """The length of each bound in bytes, -1 where it is null."""
    if not len(bounds):
        return np.zeros(0, np.int32)
    lengths = np.diff(np.frombuffer(bounds.buffers()[1], np.int32)[bounds.offset : bounds.offset + len(bounds) + 1])
    if bounds.null_count:
        lengths[np.asarray(bounds.is_null())] = -1
    return lengths


def _of_length(bounds: pa.BinaryArray, width: int) -> tuple[np.ndarray[Any, np.dtype[np.int64]], _Bytes]:
    """The rows of bounds with this many bytes, and a matrix of these bytes."""
    at = np.flatnonzero(_lengths(bounds) == width)
    if not len(at):
        return at, np.zeros((0, width), np.uint8)
    _, offsets, content = bounds.buffers()
    starts = np.frombuffer(offsets, np.int32)[bounds.offset :][at]
    return at, np.lib.stride_tricks.sliding_window_view(np.frombuffer(content, np.uint8), width)[starts]


def _from_rows(rows: _Bytes, is_known: np.ndarray[Any, np.dtype[np.bool_]]) -> pa.Array:
    content = pa.py_buffer(np.ascontiguousarray(rows))
    fixed = pa.Array.from_buffers(pa.binary(rows.shape[1]), len(rows), [None, content])
    return _where(pa.array(is_known), pc.cast(fixed, pa.binary()))


_Counts = np.ndarray[tuple[int], np.dtype[np.int64]]


def files_that_may_match(bound: Expression, entries: pa.RecordBatch) -> Mask:
    """`file_may_match` for each of the entries, which have the columns of `columns_needed`."""
    statistics = {predicate.field.field_id: _Statistics(entries, predicate.field) for predicate in predicates(bound)}

    def file_may_match(predicate: BoundPredicate) -> Mask:
        column = statistics[predicate.field.field_id]
        return may_match(predicate.operation, predicate, column.contents, column.bounds_allow)

    return (entries.column("record_count").to_numpy() != 0) & evaluate(bound, file_may_match)


def files_that_must_match(
    bound: Expression,
    entries: pa.RecordBatch,
    fields: Sequence[NestedField],
    strict: Mapping[BoundPredicate, Expression],
) -> Mask:
    """Whether all rows of each of the entries match, by their partitions and metrics, predicate by predicate.

    Args:
        entries: with the columns of `columns_needed(bound, strictly=True)` and `partition`.
        fields: of the partition type of the entries.
        strict: the strict projection of each predicate onto the partitions of the entries' spec.
    """
    statistics = {predicate.field.field_id: _Statistics(entries, predicate.field) for predicate in predicates(bound)}

    def all_match(predicate: BoundPredicate) -> Mask:
        column, projected = statistics[predicate.field.field_id], strict[predicate]
        by_metrics = must_match(predicate, column.contents, column.bounds_allow)
        if projected is ALWAYS_FALSE:
            return np.ones(entries.num_rows, np.bool_) & by_metrics
        return by_metrics | partitions_that_match(projected, fields, entries.column("partition"))

    return (entries.column("record_count").to_numpy() == 0) | evaluate(bound, all_match)


def columns_needed(bound: Expression, *, strictly: bool = False) -> frozenset[str]:
    """The columns of entries that `files_that_may_match` reads, or `files_that_must_match`."""
    needed = {"record_count"}
    if strictly and bound is not ALWAYS_TRUE:
        needed |= {"value_counts", "null_value_counts", "nan_value_counts", "lower_bounds", "upper_bounds"}
    for predicate in predicates(bound):
        needed.add("null_value_counts")
        operation, type_ = predicate.operation, predicate.field.type
        if type_ in FLOATING_TYPES:
            needed.add("nan_value_counts")
        if operation in _ASK_FOR_NULL:
            needed.add("value_counts")
        if operation not in UNARY_OPERATIONS and not (operation in INEQUALITIES and type_ == UUID):
            # Each bound is needed to tell whether the other is reliable.
            needed |= {"lower_bounds", "upper_bounds"}
    return frozenset(needed)


_ASK_FOR_NULL = TRUE_OF_NULL_TO_SOME | {Operation.IS_NULL, Operation.NOT_NAN}


def partitions_that_match(bound: Expression, fields: Sequence[NestedField], partitions: pa.StructArray) -> Mask:
    """`partition_matches` for each of the partitions: structs of `fields`, named by field id, of Arrow's types for them."""
    columns = {field.field_id: partitions.field(str(field.field_id)) for field in fields}
    return matches(bound, lambda predicate: columns[predicate.field.field_id], len(partitions))


class _Statistics:
    """The statistics of one field in a batch of entries."""

    def __init__(self, entries: pa.RecordBatch, field: NestedField) -> None:
        self._entries, self._field = entries, field
        self._record_counts: _Counts = entries.column("record_count").to_numpy()

    @cached_property
    def contents(self) -> Contents:
        nans = self._counts("nan_value_counts") if self._field.type in FLOATING_TYPES else 0
        return contents_of(self._record_counts, self._counts("value_counts"), self._counts("null_value_counts"), nans)

    def bounds_allow(self, operation: Operation, predicate: BoundPredicate) -> Mask:
        """An `evaluators.BoundsAllow`, for many files."""
        lower, upper = self._bounds
        literals = encode_literals(predicate.field.type, predicate.values)
        if operation in _COMPARISONS:
            compare, is_least = _COMPARISONS[operation]
            return _unless_false(compare(lower if is_least else upper, literals[0]))
        is_prefix, prefix = operation in PREFIX_OPERATIONS, literals[0].as_py()
        if operation in TRUE_OF_NULL_TO_SOME:
            if is_prefix:
                return ~(where_true(pc.starts_with(lower, prefix)) & where_true(pc.starts_with(upper, prefix)))
            return ~(where_true(pc.equal(lower, upper)) & where_true(pc.is_in(lower, value_set=literals)))
        if is_prefix:
            is_not_after = pc.or_(pc.less_equal(lower, literals[0]), pc.starts_with(lower, prefix))
            return _unless_false(is_not_after) & _unless_false(pc.greater_equal(upper, literals[0]))
        within = _have_within(literals, lower, upper)
        if self._field.type == UUID:
            literals = in_java_order(literals)
            literals = literals.take(pc.sort_indices(literals))
            within |= _have_within(literals, in_java_order(lower), in_java_order(upper))
        return within

    def _counts(self, name: str) -> _Counts | int:
        """Counts of the field's values, -1 where one is missing or impossible."""
        if name not in self._entries.schema.names:
            return -1
        maps = self._entries.column(name)
        positions = map_positions(maps, self._field.field_id)
        at = np.flatnonzero(positions >= 0)
        counts = np.full(len(maps), -1, np.int64)
        counts[at] = pc.fill_null(maps.items.take(pa.array(positions[at])), -1).to_numpy()
        return np.where((counts >= 0) & (counts <= self._record_counts), counts, -1)

    @cached_property
    def _bounds(self) -> tuple[pa.Array, pa.Array]:
        """Lower and upper bounds, both null where one is NaN, lower exceeds upper, or the file's row count is unknown."""
        decoded = []
        for name in ("lower_bounds", "upper_bounds"):
            maps = self._entries.column(name)
            positions = map_positions(maps, self._field.field_id)
            bounds = maps.items.take(pa.array(positions, mask=positions < 0))
            decoded.append(decode_bounds(self._field.type, bounds))
        lower, upper = decoded
        unreliable = where_true(pc.greater(lower, upper))
        if self._field.type == UUID and unreliable.any():
            unreliable &= where_true(pc.greater(in_java_order(lower), in_java_order(upper)))
        if self._field.type in FLOATING_TYPES:
            unreliable |= where_true(pc.is_nan(lower)) | where_true(pc.is_nan(upper))
        unreliable |= self._record_counts < 0
        if not unreliable.any():
            return lower, upper
        nothing, mask = pa.scalar(None, lower.type), pa.array(unreliable)
        return pc.if_else(mask, nothing, lower), pc.if_else(mask, nothing, upper)


_COMPARISONS = {
    Operation.LT: (pc.less, True),
    Operation.LT_EQ: (pc.less_equal, True),
    Operation.GT: (pc.greater, False),
    Operation.GT_EQ: (pc.greater_equal, False),
}


def _have_within(literals: pa.Array, lower: pa.Array, upper: pa.Array) -> Mask:
    positions = pc.fill_null(pc.search_sorted(literals, lower, side="left"), 0).to_numpy()
    first = literals.take(pa.array(np.minimum(positions, len(literals) - 1)))
    return (positions < len(literals)) & _unless_false(pc.less_equal(first, upper))


def _unless_false(truths: pa.Array) -> Mask:
    return pc.fill_null(truths, True).to_numpy(zero_copy_only=False)
