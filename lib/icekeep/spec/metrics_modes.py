"""What a table wants to be kept of each column's values: the properties `write.metadata.metrics.*`.

Names, defaults and the choice of columns in a wide table are those of Iceberg Java's `MetricsConfig`. Unlike there, a mode
that cannot be read is an error: taken for the default, a mistake would cost pruning for years and nobody would see it.
"""

import re
from collections.abc import Iterator, Mapping
from itertools import islice

import msgspec

from icekeep.spec.schema import Schema
from icekeep.spec.sorting import SortOrder
from icekeep.spec.table_properties import whole_number, wrong_property
from icekeep.spec.transforms import Day, Hour, Identity, Month, Truncate, Year
from icekeep.spec.types import ListType, MapType, NestedField, PrimitiveType, StructType, Type, child_fields

DEFAULT_KEY = "write.metadata.metrics.default"
COLUMN_KEY_PREFIX = "write.metadata.metrics.column."
LIMIT_KEY = "write.metadata.metrics.max-inferred-column-defaults"

_TRUNCATE = re.compile(r"truncate\(([0-9]{1,9})\)")
_DEFAULT_LIMIT = 100
_ORDERED = (Identity, Truncate, Year, Month, Day, Hour)


class MetricsMode(msgspec.Struct, frozen=True):
    """What is kept of one column.

    Attributes:
        counts: how many values, nulls and NaNs there are, and how many bytes they take.
        bounds: the least and the greatest value as well.
        length: the most code points or bytes of a bound of text or bytes; any number if None.
    """

    counts: bool
    bounds: bool
    length: int | None = None


NONE = MetricsMode(counts=False, bounds=False)
COUNTS = MetricsMode(counts=True, bounds=False)
FULL = MetricsMode(counts=True, bounds=True)
DEFAULT = MetricsMode(counts=True, bounds=True, length=16)
"""`truncate(16)`."""


def metrics_modes(
    properties: Mapping[str, str], schema: Schema, sort_order: SortOrder | None = None
) -> dict[int, MetricsMode]:
    """The mode of every primitive field of a schema, by field id.

    Where no property sets a default and the schema has more columns than `max-inferred-column-defaults`, only that many
    get metrics: of each struct its own fields before those nested in them. Columns that the table is sorted by keep
    bounds even then. Keys that name no column of the schema are passed over, since columns come and go.

    Raises:
        PropertyError: a property has a value that it cannot take.
    """
    fields = {f.field_id: f for f in schema.fields_by_id.values() if isinstance(f.type, PrimitiveType)}
    default = _mode(properties, DEFAULT_KEY, DEFAULT)
    if DEFAULT_KEY not in properties and _counted(schema.as_struct()) > (limit := _limit(properties)):
        default = NONE
        modes = dict.fromkeys(islice(_by_precedence(schema.as_struct()), limit), DEFAULT)
    else:
        modes = {}
    for field_id in _sorted_by(sort_order):
        modes[field_id] = default if default.bounds else DEFAULT
    for key in properties:
        if key.startswith(COLUMN_KEY_PREFIX):
            # Read in any case: a mistake shows even when the column is not there.
            mode = _mode(properties, key, default)
            modes[schema.ids_by_name.get(key.removeprefix(COLUMN_KEY_PREFIX), 0)] = mode
    return {field_id: modes.get(field_id, default) for field_id in fields}


def _mode(properties: Mapping[str, str], key: str, default: MetricsMode) -> MetricsMode:
    text = properties.get(key)
    if text is None:
        return default
    name = text.lower()
    if name in _NAMED:
        return _NAMED[name]
    if (match := _TRUNCATE.fullmatch(name)) is None or int(match[1]) < 1:
        raise wrong_property(key, text, "'none', 'counts', 'full', or 'truncate(N)' with N of 1 or more")
    return msgspec.structs.replace(DEFAULT, length=int(match[1]))


_NAMED = {"none": NONE, "counts": COUNTS, "full": FULL}


def _limit(properties: Mapping[str, str]) -> int:
    limit = whole_number(properties, LIMIT_KEY, _DEFAULT_LIMIT, least=None)
    # As in Java, where what is below 0 counts as not set.
    return limit if limit >= 0 else _DEFAULT_LIMIT


def _sorted_by(sort_order: SortOrder | None) -> Iterator[int]:
    for field in () if sort_order is None else sort_order.fields:
        if isinstance(field.transform, _ORDERED):
            yield field.source_id


def _counted(type_: Type) -> int:
    """How many columns a schema has for the limit: primitives, and structs that are fields of structs."""
    if isinstance(type_, ListType | MapType):
        return sum(isinstance(c.type, PrimitiveType) + _counted(c.type) for c in child_fields(type_))
    return sum(isinstance(c.type, PrimitiveType | StructType) + _counted(c.type) for c in child_fields(type_))


def _by_precedence(type_: Type) -> Iterator[int]:
    """Ids of primitive fields in the order in which they are worth metrics: shallow ones first."""
    children: tuple[NestedField, ...] = child_fields(type_)
    for child in children:
        if isinstance(child.type, PrimitiveType):
            yield child.field_id
    for child in children:
        yield from _by_precedence(child.type)
