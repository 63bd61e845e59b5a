"""What a manifest says of a file that several others were put together to: the sum of what it says of these."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from icekeep.errors import IcekeepError
from icekeep.formats.base import FileMetrics
from icekeep.spec.bounds import are_crossed, lower_bound, upper_bound
from icekeep.spec.manifests.structs import DataFile
from icekeep.spec.metrics_modes import MetricsMode
from icekeep.spec.schema import Schema
from icekeep.spec.types import PrimitiveType
from icekeep.spec.values import value_from_bytes

_Metric = Callable[[DataFile], Mapping[int, Any] | None]


def stitched_metrics(
    files: Sequence[DataFile], schema: Schema, modes: Mapping[int, MetricsMode], split_offsets: tuple[int, ...]
) -> FileMetrics:
    """The metrics of all the files' rows together.

    A count is known where all files tell it, a bound where all files tell it that have values of the column. What the modes
    do not keep is dropped and bounds are cut to their lengths; what the files lack stays unknown, since no value is looked at.

    Args:
        files: as their manifest entries describe them, with the types of `schema`.
        modes: what to keep of each column, by field id.
        split_offsets: of the new file.
    """
    counted = [field_id for field_id, mode in modes.items() if mode.counts]
    sizes = _sums(files, lambda file: file.column_sizes, counted)
    lower: dict[int, bytes] = {}
    upper: dict[int, bytes] = {}
    for field_id, mode in modes.items():
        type_ = schema.fields_by_id[field_id].type
        # A crossed pair says nothing of its file; put together with others it would not show any more.
        if mode.bounds and isinstance(type_, PrimitiveType) and not _any_crossed(files, field_id, type_):
            least = _bounds(files, lambda file: file.lower_bounds, field_id, type_)
            greatest = _bounds(files, lambda file: file.upper_bounds, field_id, type_)
            if least:
                lower[field_id] = lower_bound(type_, min(least), mode.length)
            if greatest and (bound := upper_bound(type_, max(greatest), mode.length)) is not None:
                upper[field_id] = bound
    return FileMetrics(
        record_count=sum(file.record_count for file in files),
        column_sizes=sizes or None,
        value_counts=_sums(files, lambda file: file.value_counts, counted),
        null_value_counts=_sums(files, lambda file: file.null_value_counts, counted),
        nan_value_counts=_sums(files, lambda file: file.nan_value_counts, counted),
        lower_bounds=lower,
        upper_bounds=upper,
        split_offsets=split_offsets,
    )


def _sums(files: Sequence[DataFile], metric: _Metric, field_ids: Iterable[int]) -> dict[int, int]:
    """The sums of a metric, of the columns for which every file tells it."""
    sums: dict[int, int] = {}
    for field_id in field_ids:
        counts = [(metric(file) or {}).get(field_id) for file in files]
        known = [count for count in counts if count is not None]
        if len(known) == len(counts):
            sums[field_id] = sum(known)
    return sums


def _bounds(files: Sequence[DataFile], metric: _Metric, field_id: int, type_: PrimitiveType) -> list[Any]:
    """The files' bounds of a column as values; none where one is missing or says nothing."""
    bounds: list[Any] = []
    for file in files:
        bound = (metric(file) or {}).get(field_id)
        if bound is None:
            if not _has_no_values(file, field_id):
                return []
            continue
        value = _value(type_, bound)
        if value is None or value != value:
            return []
        bounds.append(value)
    return bounds


def _any_crossed(files: Sequence[DataFile], field_id: int, type_: PrimitiveType) -> bool:
    pairs = (((file.lower_bounds or {}).get(field_id), (file.upper_bounds or {}).get(field_id)) for file in files)
    return any(are_crossed(*(_value(type_, bound) for bound in pair)) for pair in pairs if pair[0] != pair[1])


def _value(type_: PrimitiveType, bound: bytes | None) -> Any:
    """A bound as a value; null where it is none, of a type without order: readers can make nothing of it either."""
    try:
        return None if bound is None else value_from_bytes(type_, bound)
    except IcekeepError:
        return None


def _has_no_values(file: DataFile, field_id: int) -> bool:
    """Whether all values of a column are known to be null or NaN, which bounds do not count."""
    values, nulls, nans = (
        (counts or {}).get(field_id) for counts in (file.value_counts, file.null_value_counts, file.nan_value_counts)
    )
    return values is not None and nulls is not None and nulls + (nans or 0) == values
