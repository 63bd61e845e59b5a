"""Counts and bounds of columns as they are told, by an entry or a footer, against those of the values."""

from collections.abc import Collection, Iterator, Mapping
from typing import Any, Protocol

import msgspec
import pyarrow as pa

from icekeep.formats.base import FileMetrics
from icekeep.planning.prune import decode_bounds
from icekeep.spec.types import PrimitiveType
from icekeep.spec.values import INTEGER_WIDTHS

BOUNDS, NULLS, VALUES, NANS = 405, 406, 407, 408

_ORDERED = frozenset((*INTEGER_WIDTHS, "boolean", "float", "double", "decimal", "string", "fixed", "binary"))
"""Types whose order is one: writers order UUIDs in two ways, and other types have bounds of another form."""


class Told(Protocol):
    """What is told of columns, by field id; an id that is not there tells nothing."""

    @property
    def value_counts(self) -> Mapping[int, int]: ...
    @property
    def null_value_counts(self) -> Mapping[int, int]: ...
    @property
    def nan_value_counts(self) -> Mapping[int, int]: ...
    @property
    def lower_bounds(self) -> Mapping[int, bytes]: ...
    @property
    def upper_bounds(self) -> Mapping[int, bytes]: ...


class Wrong(msgspec.Struct, frozen=True):
    """Columns of which a metric is wrong, with what is recorded and what was found of each."""

    number: int
    columns: tuple[int, ...]
    recorded: tuple[Any, ...]
    found: tuple[Any, ...]


def wrong_metrics(
    told: Told,
    found: FileMetrics,
    types: Mapping[int, PrimitiveType],
    top_level: Collection[int],
    *,
    is_orc: bool = False,
) -> Iterator[Wrong]:
    """What is not so.

    Args:
        found: of the values.
        types: of the columns that are judged.
        top_level: of which counts of nulls and values are judged: of fields of structs writers count in several ways.
        is_orc: timestamps before 1970 are not judged then, as libraries read fractions of seconds there in two ways.
    """
    for number, counts, known, judged in (
        (NULLS, told.null_value_counts, found.null_value_counts, top_level),
        (VALUES, told.value_counts, found.value_counts, top_level),
        (NANS, told.nan_value_counts, found.nan_value_counts, types),
    ):
        # Negative counts are told as what they are.
        wrong = [id_ for id_ in sorted(counts) if id_ in judged and id_ in known and 0 <= counts[id_] != known[id_]]
        if wrong:
            yield Wrong(number, tuple(wrong), tuple(counts[i] for i in wrong), tuple(known[i] for i in wrong))
    outside = [id_ for id_, type_ in sorted(types.items()) if _is_outside(id_, type_, told, found, is_orc=is_orc)]
    if outside:
        yield Wrong(BOUNDS, tuple(outside), _bounds_of(told, outside), _bounds_of(found, outside))


def _is_outside(id_: int, type_: PrimitiveType, told: Told, found: FileMetrics, *, is_orc: bool) -> bool:
    least, greatest = found.lower_bounds.get(id_), found.upper_bounds.get(id_)
    recorded = told.lower_bounds.get(id_), told.upper_bounds.get(id_)
    if type_.name not in _ORDERED or least is None or recorded in ((None, None), (least, greatest)):
        return False
    decoded = decode_bounds(type_, pa.array([*recorded, least, greatest], pa.binary())).to_pylist()
    lower, upper, least_value, greatest_value = decoded
    if is_orc and type_.name.startswith("timestamp") and least_value is not None and least_value < 0:
        return False
    # A bound that is NaN is above and below nothing, and says nothing.
    below = lower is not None and least_value is not None and lower > least_value
    above = upper is not None and greatest_value is not None and upper < greatest_value
    return bool(below or above)


def _bounds_of(told: Told, ids: Collection[int]) -> tuple[list[str | None], ...]:
    return tuple(
        [None if bound is None else bound.hex() for bound in (told.lower_bounds.get(i), told.upper_bounds.get(i))]
        for i in ids
    )
