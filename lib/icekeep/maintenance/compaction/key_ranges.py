"""What files hold of the keys of an order, as far as their bounds tell: a range of keys, or a box for a curve. Pure.

Bounds are of columns, keys are of several: of a file that holds one value of the first column the second one counts too,
and so on. A range does not hold its ends, since neighbours in a sorted table share them; so files that share no more than
an end do not overlap.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from icekeep.errors import IcekeepBug, InvalidTableError, UnsupportedError
from icekeep.formats.sort.encode import Curve, Ordering
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.properties import MetricsMode, metrics_modes
from icekeep.spec.sorting import NullOrder, SortDirection, SortField
from icekeep.spec.transforms import Day, Hour, Identity, Month, Transform, Truncate, Year
from icekeep.spec.types import BINARY, DOUBLE, FLOAT, LONG, FixedType, PrimitiveType, Type
from icekeep.spec.values import INTEGER_WIDTHS, are_crossed, sort_key, value_from_bytes

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
    if facts.nan_count and column.type in (FLOAT, DOUBLE):
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
