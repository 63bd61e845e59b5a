"""What a manifest says about the values of a file, counted while its rows are written (spec, "Data File Fields").

Works on Arrow data, a table at a time, for every format; Parquet's footers know all but the NaNs (`parquet.footer_metrics`), so
its writer counts only those. Fields inside lists and maps get nothing: no filter can name them, and readers and writers do
not agree on what to count there. Iceberg Java keeps nothing of them either.
"""

from collections.abc import Iterator, Mapping
from typing import Any
from uuid import UUID as UUIDValue

import pyarrow as pa
import pyarrow.compute as pc

from icekeep.formats.base import FileMetrics
from icekeep.spec.bounds import lower_bound, upper_bound
from icekeep.spec.metrics_modes import NONE, MetricsMode
from icekeep.spec.schema import Schema
from icekeep.spec.types import DOUBLE, FLOAT, UNKNOWN, UUID, NestedField, PrimitiveType, StructType

_FLOATING = (FLOAT, DOUBLE)


class MetricsCollector:
    """Counts and bounds of a file's columns; give it each table that goes into the file."""

    def __init__(self, schema: Schema, modes: Mapping[int, MetricsMode]) -> None:
        """`modes` says what to keep of each column, by field id; the others keep nothing."""
        self._schema = schema
        self._modes = modes
        self._record_count = 0
        self._nulls: dict[int, int] = {}
        self._nans: dict[int, int] = {}
        self._ranges: dict[int, tuple[Any, Any]] = {}

    def add(self, table: pa.Table) -> None:
        """Count rows in the columns of the schema."""
        self._record_count += table.num_rows
        for field, column in primitive_columns(table, self._schema):
            mode = self._modes.get(field.field_id, NONE)
            if not mode.counts:
                continue
            self._nulls[field.field_id] = self._nulls.get(field.field_id, 0) + column.null_count
            if field.type in _FLOATING:
                nans = pc.is_nan(column)
                count = pc.sum(nans).as_py() or 0
                self._nans[field.field_id] = self._nans.get(field.field_id, 0) + count
                if count:
                    column = column.filter(pc.invert(nans))
            if mode.bounds:
                self._widen(field, column)

    def metrics(self, split_offsets: tuple[int, ...] | None = None) -> FileMetrics:
        """The metrics of all rows so far; sizes of columns are not known here."""
        lower: dict[int, bytes] = {}
        upper: dict[int, bytes] = {}
        for id_, (least, greatest) in self._ranges.items():
            type_, length = self._schema.fields_by_id[id_].type, self._modes[id_].length
            assert isinstance(type_, PrimitiveType)
            lower[id_] = lower_bound(type_, least, length)
            if (bound := upper_bound(type_, greatest, length)) is not None:
                upper[id_] = bound
        return FileMetrics(
            record_count=self._record_count,
            column_sizes=None,
            value_counts=dict.fromkeys(self._nulls, self._record_count),
            null_value_counts=dict(self._nulls),
            nan_value_counts=dict(self._nans),
            lower_bounds=lower,
            upper_bounds=upper,
            split_offsets=split_offsets,
        )

    def _widen(self, field: NestedField, column: pa.ChunkedArray) -> None:
        range_ = pc.min_max(_comparable(column))
        if not range_["min"].is_valid:
            return
        least, greatest = (_value(field, range_[end].as_py()) for end in ("min", "max"))
        if (known := self._ranges.get(field.field_id)) is not None:
            least, greatest = min(known[0], least), max(known[1], greatest)
        self._ranges[field.field_id] = (least, greatest)


def count_nans(table: pa.Table, schema: Schema) -> dict[int, int]:
    """Count the NaN of each `float` and `double` outside lists and maps, by field id.

    Args:
        table: data as `project` gives it.
        schema: the columns that it has.
    """
    return {
        field.field_id: pc.sum(pc.is_nan(column)).as_py() or 0
        for number, top in enumerate(schema.fields)
        if _holds_floats(top)
        for field, column in _primitive_columns(table.column(number), top)
        if field.type in _FLOATING
    }


def primitive_columns(table: pa.Table, schema: Schema) -> Iterator[tuple[NestedField, Any]]:
    """Every primitive field outside lists and maps with its values, null where a struct above it is null."""
    for position, field in enumerate(schema.fields):
        yield from _primitive_columns(table.column(position), field)


def _primitive_columns(column: Any, field: NestedField) -> Iterator[tuple[NestedField, Any]]:
    if isinstance(field.type, StructType):
        # All children at once: to ask for one takes time for each of the others. Below a null struct they are null.
        for child, below in zip(field.type.fields, column.flatten(), strict=True):
            yield from _primitive_columns(below, child)
    elif isinstance(field.type, PrimitiveType) and field.type != UNKNOWN:
        yield field, column


def _holds_floats(field: NestedField) -> bool:
    """Whether a field is a `float` or a `double`, or a struct that has one at any depth."""
    if isinstance(field.type, StructType):
        return any(map(_holds_floats, field.type.fields))
    return field.type in _FLOATING


def _comparable(column: Any) -> Any:
    """The values as Arrow can compare them and `spec` has them: whole numbers for times, bytes for UUIDs."""
    type_ = column.type
    if pa.types.is_dictionary(type_):
        return column.cast(type_.value_type)
    if pa.types.is_date32(type_):
        return column.cast(pa.int32())
    if pa.types.is_time64(type_) or pa.types.is_timestamp(type_):
        return column.cast(pa.int64())
    return column.cast(pa.binary(16)) if type_ == pa.uuid() else column


def _value(field: NestedField, value: Any) -> Any:
    return UUIDValue(bytes=value) if field.type == UUID else value
