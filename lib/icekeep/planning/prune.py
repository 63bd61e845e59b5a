"""Bounds of columns decoded for many files at once: `value_from_bytes` for Arrow arrays.

The arrays have types whose order is Iceberg's: whole numbers, floats with one zero, and bytes for everything else. Decimals
are bytes too, since they have up to 38 digits: 32 of them, with the sign turned round, so that the least has all zeros.

Which entries of a batch a filter needs: `file_may_match` and `partition_matches` for many files at once.
"""

from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from icekeep.formats.arrow.arrays import Mask, where_true
from icekeep.formats.filter import evaluate, matches
from icekeep.spec.filters.expressions import (
    TRUE_OF_NULL_TO_SOME,
    UNARY_OPERATIONS,
    BoundPredicate,
    Expression,
    Operation,
    predicates,
)
from icekeep.spec.types import (
    DAY_SECONDS,
    DOUBLE,
    FLOAT,
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
    """The bounds as values that can be compared with one another and with `encode_literals`.

    Null is a bound that is unknown: it is not there, or its bytes are no value of the type, present or before promotion.
    """
    decoder = _decoder(type_)
    return pa.nulls(len(bounds), pa.binary()) if decoder is None else decoder(bounds)


def encode_literals(type_: Type, values: Sequence[Any]) -> pa.Array:
    """Values of the type as `decode_bounds` has them."""
    if type_ == STRING:
        return pa.array([value.encode("utf-8", "surrogatepass") for value in values], pa.binary())
    return decode_bounds(type_, pa.array([value_to_bytes(type_, value) for value in values], pa.binary()))


def in_java_order(uuids: pa.Array) -> pa.Array:
    """UUIDs, decoded, as bytes in the order of Java, which compares them as two signed longs."""
    fixed = pc.cast(uuids, pa.binary(_UUID_WIDTH))
    content = np.frombuffer(fixed.buffers()[1], np.uint8)[fixed.offset * _UUID_WIDTH :][: len(fixed) * _UUID_WIDTH]
    signed = content.reshape(-1, _UUID_WIDTH).copy()
    signed[:, [0, _UUID_WIDTH // 2]] ^= _SIGN
    return _from_rows(signed, np.asarray(pc.is_valid(uuids)))


_Decoder = Callable[[pa.BinaryArray], pa.Array]


def _decoder(type_: Type) -> _Decoder | None:
    match type_:
        case DecimalType():
            return _decimals
        case FixedType(length=length):
            return lambda bounds: _where(pc.less_equal(pc.binary_length(bounds), length), bounds)
        case PrimitiveType(name=name) if name in INTEGER_WIDTHS:
            return partial(_integers, name=name)
        case PrimitiveType(name=name):
            return _DECODERS.get(name)
    return None


def _integers(bounds: pa.BinaryArray, name: str) -> pa.Array:
    numbers, known = np.zeros(len(bounds), np.int64), np.zeros(len(bounds), np.bool_)
    width = INTEGER_WIDTHS[name]
    at, raw = _of_length(bounds, width)
    numbers[at], known[at] = raw.view(f"<i{width}")[:, 0], True
    if name in ("long", "timestamp", "timestamp_ns"):
        at, raw = _of_length(bounds, 4)
        before = raw.view("<i4")[:, 0].astype(np.int64)
        # A bound of four bytes was written when the column was still an int or a date.
        scale = 1 if name == "long" else DAY_SECONDS * TICKS_PER_SECOND[name]
        in_range = np.abs(before) <= MAX_LONG // scale
        numbers[at], known[at] = np.where(in_range, before, 0) * scale, in_range
    return pa.array(numbers, mask=~known)


def _floats(bounds: pa.BinaryArray, widths: Sequence[int]) -> pa.Array:
    numbers, known = np.zeros(len(bounds), np.float64), np.zeros(len(bounds), np.bool_)
    for width in widths:
        at, raw = _of_length(bounds, width)
        with np.errstate(invalid="ignore"):  # a NaN that signals is a NaN
            numbers[at], known[at] = raw.view(f"<f{width}")[:, 0], True
    return pa.array(numbers + 0.0, mask=~known)


def _booleans(bounds: pa.BinaryArray) -> pa.Array:
    numbers, known = np.zeros(len(bounds), np.int64), np.zeros(len(bounds), np.bool_)
    at, raw = _of_length(bounds, 1)
    numbers[at], known[at] = raw[:, 0] != 0, True
    return pa.array(numbers, mask=~known)


def _decimals(bounds: pa.BinaryArray) -> pa.Array:
    rows, known = np.zeros((len(bounds), _DECIMAL_WIDTH), np.uint8), np.zeros(len(bounds), np.bool_)
    for width in np.unique(_lengths(bounds)):
        if 1 <= width <= _DECIMAL_WIDTH:
            at, raw = _of_length(bounds, int(width))
            rows[at, -width:], known[at] = raw, True
            rows[at[raw[:, 0] >= _SIGN], :-width] = 0xFF
    known &= _has_38_digits(rows)
    rows[:, 0] ^= _SIGN
    return _from_rows(rows, known)


def _has_38_digits(rows: _Bytes) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Which numbers of 32 bytes have a value of at most 2**127 - 1, as `decimal_from_unscaled` takes them."""
    upper, lower = rows[:, : _DECIMAL_WIDTH // 2], rows[:, _DECIMAL_WIDTH // 2 :]
    sign = np.where(lower[:, :1] >= _SIGN, 0xFF, 0)
    is_least = (lower[:, 0] == _SIGN) & ~lower[:, 1:].any(axis=1)
    return (upper == sign).all(axis=1) & ~is_least


def _strings(bounds: pa.BinaryArray) -> pa.Array:
    try:
        pc.cast(bounds, pa.string())
    except pa.ArrowInvalid:
        return pa.array([bound if _is_text(bound) else None for bound in bounds.to_pylist()], pa.binary())
    return bounds


def _is_text(bound: bytes | None) -> bool:
    try:
        return bound is not None and bound.decode() is not None
    except UnicodeDecodeError:
        return False


def _uuids(bounds: pa.BinaryArray) -> pa.Array:
    return _where(pc.equal(pc.binary_length(bounds), _UUID_WIDTH), bounds)


_DECODERS: dict[str, _Decoder] = {
    "boolean": _booleans,
    "float": partial(_floats, widths=(4,)),
    "double": partial(_floats, widths=(4, 8)),
    "string": _strings,
    "uuid": _uuids,
    "binary": lambda bounds: bounds,
}


def _where(condition: pa.Array, bounds: pa.BinaryArray) -> pa.Array:
    return pc.if_else(condition, bounds, pa.scalar(None, pa.binary()))


def _lengths(bounds: pa.BinaryArray) -> np.ndarray[Any, np.dtype[np.int32]]:
    """The bytes of each bound, -1 where it is null."""
    if not len(bounds):
        return np.zeros(0, np.int32)
    lengths = np.diff(np.frombuffer(bounds.buffers()[1], np.int32)[bounds.offset : bounds.offset + len(bounds) + 1])
    if bounds.null_count:
        lengths[np.asarray(bounds.is_null())] = -1
    return lengths


def _of_length(bounds: pa.BinaryArray, width: int) -> tuple[np.ndarray[Any, np.dtype[np.int64]], _Bytes]:
    """Which bounds have this many bytes, and their bytes, a row each."""
    at = np.flatnonzero(_lengths(bounds) == width)
    if not len(at):
        return at, np.zeros((0, width), np.uint8)
    _, offsets, content = bounds.buffers()
    starts = np.frombuffer(offsets, np.int32)[bounds.offset :][at]
    return at, np.lib.stride_tricks.sliding_window_view(np.frombuffer(content, np.uint8), width)[starts]


def _from_rows(rows: _Bytes, known: np.ndarray[Any, np.dtype[np.bool_]]) -> pa.Array:
    """Binary values of one length from a matrix of bytes."""
    content = pa.py_buffer(np.ascontiguousarray(rows))
    fixed = pa.Array.from_buffers(pa.binary(rows.shape[1]), len(rows), [None, content])
    return _where(pa.array(known), pc.cast(fixed, pa.binary()))


_Counts = np.ndarray[tuple[int], np.dtype[np.int64]]


def files_that_may_match(bound: Expression, entries: pa.RecordBatch) -> Mask:
    """Which files may hold a row that matches, as `evaluators.file_may_match` decides them one by one.

    Args:
        bound: a filter over rows.
        entries: files with the columns that `columns_needed` names, of the types in `columns`.
    """
    record_counts = entries.column("record_count").to_numpy()
    facts = {predicate.field.field_id: _Facts(entries, predicate.field) for predicate in predicates(bound)}
    may_match = evaluate(bound, lambda p: _may_match(p, facts[p.field.field_id]), entries.num_rows)
    if (record_counts < 0).any():
        may_match = np.where(record_counts < 0, evaluate(bound, lambda _: np.ones(1, np.bool_), 1), may_match)
    return may_match & (record_counts != 0)


def columns_needed(bound: Expression) -> frozenset[str]:
    """The columns of entries that `files_that_may_match` looks at."""
    needed = {"record_count"}
    for predicate in predicates(bound):
        needed |= _columns_needed(predicate)
    return frozenset(needed)


def partitions_that_match(bound: Expression, fields: Sequence[NestedField], partitions: pa.StructArray) -> Mask:
    """Which partition tuples match a projection, as `evaluators.partition_matches` decides them one by one.

    Args:
        bound: an expression from `project_inclusive` or `project_strict`.
        fields: the fields of the partition type.
        partitions: structs with these fields, each named by its field id, of the Arrow types of `formats.arrow.schema`.
    """
    columns = {field.field_id: partitions.field(str(field.field_id)) for field in fields}
    return matches(bound, lambda predicate: columns[predicate.field.field_id], len(partitions))


_ASK_FOR_NULL = frozenset(
    {Operation.IS_NULL, Operation.NOT_NAN, Operation.NOT_EQ, Operation.NOT_IN, Operation.NOT_STARTS_WITH}
)
_ORDERINGS = frozenset({Operation.LT, Operation.LT_EQ, Operation.GT, Operation.GT_EQ})


def _columns_needed(predicate: BoundPredicate) -> set[str]:
    needed = {"null_value_counts"}
    operation, type_ = predicate.operation, predicate.field.type
    if type_ in (FLOAT, DOUBLE):
        needed.add("nan_value_counts")
    if operation in _ASK_FOR_NULL:
        needed.add("value_counts")
    if operation in UNARY_OPERATIONS or (operation in _ORDERINGS and type_ == UUID):
        return needed
    # One bound tells whether the other can be relied on.
    return needed | {"lower_bounds", "upper_bounds"}


class _Facts:
    """What statistics tell about the values of one field; "values" are those that are neither null nor NaN."""

    def __init__(self, entries: pa.RecordBatch, field: NestedField) -> None:
        self._entries = entries
        self._field = field
        self._record_counts: _Counts = entries.column("record_count").to_numpy()

    @cached_property
    def may_hold_null(self) -> Mask:
        nulls, nans = self._nulls_and_nans
        values = self._counts("value_counts")
        # Rows that a writer counted as no value at all are null: their struct is.
        uncounted = (values >= 0) & (values < self._record_counts)
        return ((nulls != 0) | uncounted) & (nans != self._record_counts)

    @cached_property
    def may_hold_nan(self) -> Mask:
        nulls, nans = self._nulls_and_nans
        return (nans != 0) & (nulls != self._record_counts)

    @cached_property
    def may_hold_values(self) -> Mask:
        nulls, nans = self._nulls_and_nans
        return np.maximum(nulls, 0) < self._record_counts - np.maximum(nans, 0)

    @cached_property
    def lower(self) -> pa.Array:
        return self._reliable(self._decoded_lower)

    @cached_property
    def upper(self) -> pa.Array:
        return self._reliable(self._decoded_upper)

    @cached_property
    def only_values(self) -> Mask:
        """Whether neither null nor NaN may be there."""
        return ~self.may_hold_null & ~self.may_hold_nan

    @cached_property
    def _nulls_and_nans(self) -> tuple[_Counts, _Counts]:
        nulls = self._counts("null_value_counts")
        if not self._is_floating:
            return nulls, np.zeros_like(nulls)
        nans = self._counts("nan_value_counts")
        impossible = np.maximum(nulls, 0) > self._record_counts - np.maximum(nans, 0)
        return np.where(impossible, -1, nulls), np.where(impossible, -1, nans)

    @property
    def is_of_uuids(self) -> bool:
        return self._field.type == UUID

    @property
    def _is_floating(self) -> bool:
        return self._field.type in (FLOAT, DOUBLE)

    @cached_property
    def _decoded_lower(self) -> pa.Array:
        return self._decoded("lower_bounds")

    @cached_property
    def _decoded_upper(self) -> pa.Array:
        return self._decoded("upper_bounds")

    def _reliable(self, bounds: pa.Array) -> pa.Array:
        """The bounds, null where either of a file's is NaN or the two are crossed."""
        unreliable = self._are_unreliable
        return pc.if_else(pa.array(unreliable), pa.scalar(None, bounds.type), bounds) if unreliable.any() else bounds

    @cached_property
    def _are_unreliable(self) -> Mask:
        lower, upper = self._decoded_lower, self._decoded_upper
        crossed = where_true(pc.greater(lower, upper))
        if self.is_of_uuids and crossed.any():
            crossed &= where_true(pc.greater(in_java_order(lower), in_java_order(upper)))
        if self._is_floating:
            crossed |= where_true(pc.is_nan(lower)) | where_true(pc.is_nan(upper))
        return crossed

    def _counts(self, name: str) -> _Counts:
        """Counts of the field's values, -1 where one is missing or cannot be."""
        maps = self._entries.column(name)
        positions = _positions(maps, self._field.field_id)
        found = np.flatnonzero(positions >= 0)
        counts = np.full(len(maps), -1, np.int64)
        counts[found] = pc.fill_null(maps.items.take(pa.array(positions[found])), -1).to_numpy()
        return np.where((counts >= 0) & (counts <= self._record_counts), counts, -1)

    def _decoded(self, name: str) -> pa.Array:
        maps = self._entries.column(name)
        positions = _positions(maps, self._field.field_id)
        return decode_bounds(self._field.type, maps.items.take(pa.array(positions, mask=positions < 0)))


def _positions(maps: pa.MapArray, key: int) -> _Counts:
    """Where the item of a key lies among `maps.items`, the last where it is repeated; -1 where there is none."""
    offsets = maps.offsets.to_numpy()
    first, after = (int(offsets[0]), int(offsets[-1])) if len(offsets) else (0, 0)
    found = np.flatnonzero(maps.keys.to_numpy()[first:after] == key) + first
    rows = np.searchsorted(offsets, found, side="right") - 1
    positions = np.full(len(maps), -1, np.int64)
    positions[rows] = found
    if maps.null_count:
        positions[np.asarray(maps.is_null())] = -1
    return positions


_Test = Callable[[_Facts, pa.Array], Mask]


def _may_match(predicate: BoundPredicate, facts: _Facts) -> Mask:
    if (test := _UNARY.get(predicate.operation)) is not None:
        return test(facts)
    if predicate.bucket is not None:
        is_true_of_null = predicate.operation in TRUE_OF_NULL_TO_SOME
        return facts.may_hold_values | facts.may_hold_null if is_true_of_null else facts.may_hold_values
    return _TESTS[predicate.operation](facts, encode_literals(predicate.field.type, predicate.values))


def _least(compare: Callable[[pa.Array, pa.Scalar], pa.Array]) -> _Test:
    """Whether some value may compare so, by the least one; writers differ on the order of UUIDs."""
    return lambda facts, values: _ordered(facts, lambda: compare(facts.lower, values[0]))


def _greatest(compare: Callable[[pa.Array, pa.Scalar], pa.Array]) -> _Test:
    return lambda facts, values: _ordered(facts, lambda: compare(facts.upper, values[0]))


def _ordered(facts: _Facts, truths: Callable[[], pa.Array]) -> Mask:
    return facts.may_hold_values if facts.is_of_uuids else facts.may_hold_values & _unless_false(truths())


def _may_hold_some(facts: _Facts, values: pa.Array) -> Mask:
    within = _some_within(facts.lower, values, facts.upper)
    if facts.is_of_uuids:
        ordered = in_java_order(values)
        within |= _some_within(
            in_java_order(facts.lower), ordered.take(pc.sort_indices(ordered)), in_java_order(facts.upper)
        )
    return facts.may_hold_values & within


def _some_within(lower: pa.Array, values: pa.Array, upper: pa.Array) -> Mask:
    """Whether one of `values`, which are sorted, lies within bounds; it does so where they are unknown."""
    positions = pc.fill_null(pc.search_sorted(values, lower, side="left"), 0).to_numpy()
    first = values.take(pa.array(np.minimum(positions, len(values) - 1)))
    return (positions < len(values)) & _unless_false(pc.less_equal(first, upper))


def _may_hold_others(facts: _Facts, values: pa.Array) -> Mask:
    """Whether anything but `values` may be there, null included; nothing may where all is known to be one of them."""
    is_one = where_true(pc.equal(facts.lower, facts.upper)) & where_true(pc.is_in(facts.lower, value_set=values))
    return ~(facts.only_values & is_one)


def _may_start_with(facts: _Facts, values: pa.Array) -> Mask:
    prefix = values[0]
    from_below = pc.or_(pc.less_equal(facts.lower, prefix), pc.starts_with(facts.lower, prefix.as_py()))
    return facts.may_hold_values & _unless_false(from_below) & _unless_false(pc.greater_equal(facts.upper, prefix))


def _may_start_otherwise(facts: _Facts, values: pa.Array) -> Mask:
    all_start = [where_true(pc.starts_with(bounds, values[0].as_py())) for bounds in (facts.lower, facts.upper)]
    return ~(facts.only_values & all_start[0] & all_start[1])


def _unless_false(truths: pa.Array) -> Mask:
    """A mask of truths, true where they are unknown."""
    return pc.fill_null(truths, True).to_numpy(zero_copy_only=False)


_UNARY: dict[Operation, Callable[[_Facts], Mask]] = {
    Operation.IS_NULL: lambda facts: facts.may_hold_null,
    Operation.NOT_NULL: lambda facts: facts.may_hold_values | facts.may_hold_nan,
    Operation.IS_NAN: lambda facts: facts.may_hold_nan,
    Operation.NOT_NAN: lambda facts: facts.may_hold_values | facts.may_hold_null,
}
_TESTS: dict[Operation, _Test] = {
    Operation.LT: _least(pc.less),
    Operation.LT_EQ: _least(pc.less_equal),
    Operation.GT: _greatest(pc.greater),
    Operation.GT_EQ: _greatest(pc.greater_equal),
    Operation.EQ: _may_hold_some,
    Operation.IN: _may_hold_some,
    Operation.NOT_EQ: _may_hold_others,
    Operation.NOT_IN: _may_hold_others,
    Operation.STARTS_WITH: _may_start_with,
    Operation.NOT_STARTS_WITH: _may_start_otherwise,
}
