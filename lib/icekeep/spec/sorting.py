"""Sort orders: how rows are sorted within a file (spec, "Sorting", Appendix C "Sort Orders"), as JSON and as users write them.

As text, in the syntax of Iceberg's Spark procedures, they are keys separated by commas: a column or a transform of one, a
direction and where nulls come, as in `day DESC NULLS LAST, bucket(16, id), user.name`; or a curve through several columns,
`zorder(a, b)` or `hilbert(a, b)`. Other names than plain words are put in backticks or double quotes, doubled within a name.
`extra` keeps the JSON keys that we do not know.
"""

import re
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any, Literal, TypeVar, cast

import msgspec

from icekeep.errors import InvalidTableError, UsageError
from icekeep.spec.filters.parsing import QUOTED_NAME, SPACE, TRANSFORMS, TextReader, Token
from icekeep.spec.schema import Schema
from icekeep.spec.transforms import Transform, known_transform, transform_from_json, transform_to_json
from icekeep.spec.types import PrimitiveType, StructType

E = TypeVar("E", bound=StrEnum)


class SortDirection(StrEnum):
    ASC = "asc"
    DESC = "desc"


class NullOrder(StrEnum):
    NULLS_FIRST = "nulls-first"
    NULLS_LAST = "nulls-last"


class SortField(msgspec.Struct, frozen=True, kw_only=True):
    """One key of a sort order: a transform of the column `source_id`.

    `extra` holds unknown JSON keys, and the `source-ids` of a transform of several columns.
    """

    source_id: int
    transform: Transform
    direction: SortDirection = SortDirection.ASC
    null_order: NullOrder = NullOrder.NULLS_FIRST
    extra: Mapping[str, Any] = {}


class SortOrder(msgspec.Struct, frozen=True, kw_only=True):
    """The keys that rows are sorted by, the first one first; order 0 has none."""

    order_id: int
    fields: tuple[SortField, ...]
    extra: Mapping[str, Any] = {}


class SortKey(msgspec.Struct, frozen=True):
    """One key of a sort order as a user names it.

    Attributes:
        column: the full name of a column.
        transform: a transform of it, as in the metadata (`bucket[16]`, `day`).
        direction: `asc` or `desc`.
        null_order: `nulls-first` or `nulls-last`; `None` for the first with `asc` and the last with `desc`.
    """

    column: str
    transform: str = "identity"
    direction: str = "asc"
    null_order: str | None = None


UNSORTED = SortOrder(order_id=0, fields=())

_NULLS = {SortDirection.ASC: NullOrder.NULLS_FIRST, SortDirection.DESC: NullOrder.NULLS_LAST}


def sort_order_from_json(value: Any) -> SortOrder:
    """Build a sort order from its JSON object; raises `InvalidTableError`, also if order 0, which means unsorted, has fields."""
    if (
        not isinstance(value, dict)
        or type(value.get("order-id")) is not int
        or not isinstance(value.get("fields"), list)
    ):
        raise InvalidTableError(
            "a sort order must be an object with a whole number 'order-id' and a list of fields", section="Appendix C"
        )
    rest = dict(value)
    order_id, fields = rest.pop("order-id"), rest.pop("fields")
    if order_id == UNSORTED.order_id and fields:
        raise InvalidTableError("sort order 0 has fields; it is reserved for unsorted", section="Sorting")
    return SortOrder(order_id=order_id, fields=tuple(_field_from_json(field, order_id) for field in fields), extra=rest)


def sort_order_to_json(order: SortOrder) -> dict[str, Any]:
    fields = [
        {
            **transform_to_json(field.source_id, field.transform, field.extra),
            "direction": field.direction.value,
            "null-order": field.null_order.value,
        }
        for field in order.fields
    ]
    return {"order-id": order.order_id, "fields": fields, **order.extra}


def build_sort_order(schema: Schema, keys: Iterable[SortKey | str], *, order_id: int = 1) -> SortOrder:
    """Make a new sort order of keys, or full names of columns to sort by ascending; without keys it is `UNSORTED`.

    Raises `NotFoundError` for a missing column, `UsageError` for one in a list or a map, for an unknown transform or direction,
    and for a transform that does not take the column.
    """
    fields = tuple(_build_field(schema, SortKey(key) if isinstance(key, str) else key) for key in keys)
    return SortOrder(order_id=order_id, fields=fields) if fields else UNSORTED


def find_sort_order(orders: Iterable[SortOrder], order_id: int) -> SortOrder:
    for order in orders:
        if order.order_id == order_id:
            return order
    raise InvalidTableError(f"there is no sort order {order_id}", section="Sorting")


def validate_sort_order(order: SortOrder, schema: Schema) -> SortOrder:
    """Return the order, or raise `InvalidTableError` if it does not fit the schema.

    Each key is a transform of a primitive column whose type it takes. Only the default order must fit the current schema; the
    columns of others may have been dropped.
    """
    for field in order.fields:
        source = schema.fields_by_id.get(field.source_id)
        if source is None:
            problem = f"the source column {field.source_id} of key {str(field.transform)!r} is not in the schema"
        elif not isinstance(source.type, PrimitiveType) or not field.transform.accepts(source.type):
            name = schema.names_by_id[field.source_id]
            problem = f"transform {str(field.transform)!r} does not take column {name!r} of type {source.type}"
        else:
            continue
        raise InvalidTableError(f"sort order {order.order_id} does not fit schema {schema.schema_id}: {problem}")
    return order


def _build_field(schema: Schema, key: SortKey) -> SortField:
    source = schema.field(key.column)
    transform = known_transform(key.transform)
    if any(not isinstance(outer.type, StructType) for outer in schema.enclosing_fields(source.field_id)):
        raise UsageError(f"cannot sort by {key.column!r}: it is in a list or a map, so a row has no one value of it")
    if not isinstance(source.type, PrimitiveType) or not transform.accepts(source.type):
        raise UsageError(f"cannot sort by {str(transform)!r} of column {key.column!r}: its type is {source.type}")
    try:
        direction = SortDirection(key.direction)
        nulls = NullOrder(key.null_order or _NULLS[direction])
    except ValueError as error:
        raise UsageError(
            f"cannot sort by {key.column!r}: {error}; give asc or desc, and nulls-first or nulls-last"
        ) from None
    return SortField(source_id=source.field_id, transform=transform, direction=direction, null_order=nulls)


def _field_from_json(value: Any, order_id: int) -> SortField:
    what = f"a field of sort order {order_id}"
    if not isinstance(value, dict):
        raise InvalidTableError(f"{what} is {value!r}; it must be an object", section="Appendix C")
    rest = dict(value)
    source_id, transform = transform_from_json(rest, what)
    return SortField(
        source_id=source_id,
        transform=transform,
        direction=_choice(SortDirection, rest.pop("direction", None), f"{what}: direction"),
        null_order=_choice(NullOrder, rest.pop("null-order", None), f"{what}: null-order"),
        extra=rest,
    )


def _choice(choices: type[E], value: Any, what: str) -> E:
    # Java's library reads both keys whatever their case.
    if isinstance(value, str) and value.lower() in list(choices):
        return choices(value.lower())
    raise InvalidTableError(f"{what} is {value!r}; the spec knows {' and '.join(choices)}", section="Appendix C")


MAX_TEXT_LENGTH = 16 * 1024
"""How many characters a sort order may have."""


class CurveKeys(msgspec.Struct, frozen=True):
    """A curve through columns, by their full names."""

    kind: Literal["zorder", "hilbert"]
    columns: tuple[str, ...]


def parse_sort_order(text: str) -> tuple[SortKey, ...] | CurveKeys:
    """Read a sort order; the case of keywords does not matter, that of column names does. Raises `UsageError` as `TextReader`.

    Nulls come first with ASC and last with DESC unless the text says otherwise. As in Iceberg, the columns of several curves
    of one kind make one curve.
    """
    return SortOrderReader(text).parse()


_TOKEN = re.compile(
    rf"""
    {SPACE}
    | (?P<number>[0-9]+(?!\w))
    | (?P<name>\w+)
    | {QUOTED_NAME}
    | (?P<mark>[(),.])
    """,
    re.VERBOSE,
)
_CURVES = ("ZORDER", "HILBERT")


class SortOrderReader(TextReader):
    what, error, max_length = "sort order", UsageError, MAX_TEXT_LENGTH
    pattern, quotes = _TOKEN, '"`'
    functions = (*TRANSFORMS, *(word.lower() for word in _CURVES))

    def parse(self) -> tuple[SortKey, ...] | CurveKeys:
        if self._token.kind == "end":
            self._fail("it is empty; leave it out to mean the table's own order")
        in_parentheses = self._take("(")
        terms = [self._term()]
        while self._take(","):
            terms.append(self._term())
        if in_parentheses and not self._take(")"):
            self._fail("a comma or the closing parenthesis is missing here")
        if self._token.kind != "end":
            self._fail("a comma, ASC, DESC, NULLS FIRST, NULLS LAST or the end is missing here")
        curves = [term for term in terms if isinstance(term, CurveKeys)]
        keys = tuple(term for term in terms if isinstance(term, SortKey))
        if not curves:
            return keys
        if keys or len({curve.kind for curve in curves}) > 1:
            self._fail("a curve goes with no other key and no other curve", self.tokens[0])
        return CurveKeys(curves[0].kind, tuple(column for curve in curves for column in curve.columns))

    def _term(self) -> SortKey | CurveKeys:
        first = self._token
        self._name()
        if self._token.text == "(":
            self._index += 1
            if first.word in _CURVES:
                return self._curve(first)
            column, transform = self._transform(first)
        else:
            self._index -= 1
            column, transform = self._column(), "identity"
        return self._key(column, transform)

    def _curve(self, name: Token) -> CurveKeys:
        columns = [self._column()]
        while self._take(","):
            columns.append(self._column())
        self._require(")")
        if self._token.word in ("ASC", "DESC", "NULLS"):
            self._fail("a curve has no direction")
        return CurveKeys(cast("Literal['zorder', 'hilbert']", name.word.lower()), tuple(columns))

    def _key(self, column: str, transform: str) -> SortKey:
        direction, null_order = "desc" if self._take("DESC") else "asc", None
        if direction == "asc":
            self._take("ASC")
        if self._take("NULLS"):
            null_order = "nulls-first" if self._take("FIRST") else "nulls-last"
            if null_order == "nulls-last":
                self._require("LAST", "after NULLS there is FIRST or LAST")
        return SortKey(column, transform, direction, null_order)
