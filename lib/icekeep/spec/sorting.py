"""Sort orders: how rows are sorted within a file (spec, "Sorting", Appendix C "Sort Orders").

Orders are frozen values, read from and written to the JSON of table metadata; keys that we do not know are kept in
`extra`.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, TypeVar

import msgspec

from icekeep.errors import InvalidTableError
from icekeep.spec.transforms import Transform, transform_from_json, transform_to_json

E = TypeVar("E", bound=StrEnum)


class SortDirection(StrEnum):
    """Whether small or great values come first."""

    ASC = "asc"
    DESC = "desc"


class NullOrder(StrEnum):
    """Where nulls come, whatever the direction."""

    NULLS_FIRST = "nulls-first"
    NULLS_LAST = "nulls-last"


class SortField(msgspec.Struct, frozen=True, kw_only=True):
    """One key of a sort order: a transform of the column `source_id`.

    `extra` holds the keys of the JSON object that we do not know, and the `source-ids` of a transform of several
    columns.
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

    @property
    def is_unsorted(self) -> bool:
        return not self.fields


UNSORTED = SortOrder(order_id=0, fields=())


def sort_order_from_json(value: Any) -> SortOrder:
    """Build a sort order from its JSON object.

    Raises:
        InvalidTableError: it is not one, or order 0, which is reserved for unsorted, has fields.
    """
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
    """The JSON object of a sort order."""
    fields = [
        {
            **transform_to_json(field.source_id, field.transform, field.extra),
            "direction": field.direction.value,
            "null-order": field.null_order.value,
        }
        for field in order.fields
    ]
    return {"order-id": order.order_id, "fields": fields, **order.extra}


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
