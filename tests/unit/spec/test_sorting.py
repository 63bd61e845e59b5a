import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.table.sorting import SortOrder as ForeignOrder

from icekeep.errors import InvalidTableError, NotFoundError, UsageError
from icekeep.spec.schema import Schema
from icekeep.spec.sorting import (
    UNSORTED,
    NullOrder,
    SortDirection,
    SortField,
    SortKey,
    SortOrder,
    build_sort_order,
    find_sort_order,
    sort_order_from_json,
    sort_order_to_json,
    validate_sort_order,
)
from icekeep.spec.transforms import Bucket, Day, Identity, UnknownTransform, parse_transform
from icekeep.spec.types import LONG, STRING, TIMESTAMP, VARIANT, ListType, NestedField, StructType, Type
from kit.cases import for_each

EXAMPLE = {
    "order-id": 1,
    "fields": [
        {"transform": "identity", "source-id": 2, "direction": "asc", "null-order": "nulls-first"},
        {"transform": "bucket[4]", "source-id": 3, "direction": "desc", "null-order": "nulls-last"},
    ],
}


def test_the_example_of_appendix_c_is_read():
    assert sort_order_from_json(EXAMPLE) == SortOrder(
        order_id=1,
        fields=(
            SortField(source_id=2, transform=Identity()),
            SortField(
                source_id=3,
                transform=Bucket(4),
                direction=SortDirection.DESC,
                null_order=NullOrder.NULLS_LAST,
            ),
        ),
    )


def one_field(**keys: Any) -> dict[str, Any]:
    field = {"transform": "identity", "source-id": 2, "direction": "asc", "null-order": "nulls-first", **keys}
    return {"order-id": 1, "fields": [{key: value for key, value in field.items() if value is not None}]}


@for_each(
    "form",
    [
        EXAMPLE,
        {"order-id": 0, "fields": []},
        {"order-id": 1, "fields": [], "owner": "me"},
        one_field(note=[1]),
        one_field(**{"transform": "zorder", "source-id": None, "source-ids": [1, 2]}),
    ],
)
def test_an_order_is_written_as_it_was_read_with_keys_that_we_do_not_know(form: dict[str, Any]):
    assert sort_order_to_json(sort_order_from_json(form)) == form


def test_a_transform_of_several_columns_is_unknown():
    order = sort_order_from_json(one_field(**{"source-id": None, "source-ids": [1, 2]}))
    assert order.fields[0].transform == UnknownTransform("identity")


def test_directions_are_read_whatever_their_case():
    assert sort_order_from_json(one_field(direction="DESC", **{"null-order": "NULLS-LAST"})).fields[0] == SortField(
        source_id=2, transform=Identity(), direction=SortDirection.DESC, null_order=NullOrder.NULLS_LAST
    )


def test_orders_are_values():
    with pytest.raises(AttributeError):
        UNSORTED.order_id = 1
    with pytest.raises(AttributeError):
        SortField(source_id=1, transform=Identity()).source_id = 2


def test_order_0_is_unsorted():
    assert UNSORTED.is_unsorted
    assert sort_order_from_json({"order-id": 0, "fields": []}) == UNSORTED
    assert not sort_order_from_json(EXAMPLE).is_unsorted


@for_each(
    "form",
    [
        None,
        [],
        {"order-id": 1},
        {"order-id": "1", "fields": []},
        {"order-id": True, "fields": []},
        {"order-id": 1, "fields": ["id"]},
        {"order-id": 0, "fields": EXAMPLE["fields"]},
        one_field(direction="up"),
        one_field(direction=None),
        one_field(**{"null-order": "first"}),
        one_field(**{"null-order": None}),
        one_field(**{"source-id": None}),
        one_field(transform=None),
        one_field(transform="bucket[0]"),
    ],
)
def test_json_that_is_no_sort_order_breaks_the_table(form: Any):
    with pytest.raises(InvalidTableError):
        sort_order_from_json(form)


FIELDS = st.builds(
    SortField,
    source_id=st.integers(1, 100),
    transform=st.sampled_from(["identity", "bucket[4]", "truncate[3]", "day", "void"]).map(parse_transform),
    direction=st.sampled_from(SortDirection),
    null_order=st.sampled_from(NullOrder),
    extra=st.just({}),
)


@given(st.integers(1, 100), st.lists(FIELDS, max_size=3).map(tuple))
def test_orders_agree_with_pyiceberg(order_id: int, fields: tuple[SortField, ...]):
    form = sort_order_to_json(SortOrder(order_id=order_id, fields=fields))
    theirs = json.loads(ForeignOrder.model_validate_json(json.dumps(form)).model_dump_json())
    assert theirs == form
    assert sort_order_from_json(theirs) == SortOrder(order_id=order_id, fields=fields)


def column(field_id: int, name: str, type_: Type) -> NestedField:
    return NestedField(field_id=field_id, name=name, type=type_)


COLUMNS = Schema(
    fields=(
        column(1, "id", LONG),
        column(2, "at", TIMESTAMP),
        column(3, "place", StructType((column(4, "code", STRING),))),
        column(5, "tags", ListType(element_id=6, element=STRING)),
        column(7, "v", VARIANT),
        column(8, "rows", ListType(element_id=9, element=StructType((column(10, "x", LONG),)))),
    )
)


def test_an_order_is_built_of_columns_transforms_and_directions():
    keys = ["place.code", SortKey("at", "day", "desc"), SortKey("id", "bucket[4]", "desc", "nulls-first")]
    assert build_sort_order(COLUMNS, keys) == SortOrder(
        order_id=1,
        fields=(
            SortField(source_id=4, transform=Identity()),
            SortField(source_id=2, transform=Day(), direction=SortDirection.DESC, null_order=NullOrder.NULLS_LAST),
            SortField(source_id=1, transform=Bucket(4), direction=SortDirection.DESC),
        ),
    )
    assert build_sort_order(COLUMNS, ["id"], order_id=5).order_id == 5


def test_nulls_come_first_going_up_and_last_going_down_unless_told_otherwise():
    order = build_sort_order(
        COLUMNS, [SortKey("id"), SortKey("at", direction="desc"), SortKey("id", null_order="nulls-last")]
    )
    assert [f.null_order.value for f in order.fields] == ["nulls-first", "nulls-last", "nulls-last"]


def test_no_keys_make_the_unsorted_order_which_has_id_0():
    assert build_sort_order(COLUMNS, [], order_id=7) is UNSORTED


@for_each(
    ("key", "problem"),
    [
        (SortKey("id", "day"), "cannot sort by 'day' of column 'id': its type is long"),
        (SortKey("place"), "its type is struct"),
        (SortKey("v"), "its type is variant"),
        (SortKey("tags.element"), "it is in a list or a map"),
        (SortKey("rows.element.x"), "it is in a list or a map"),
        (SortKey("id", "zorder"), "there is no transform 'zorder'"),
        (SortKey("id", direction="up"), "give asc or desc"),
        (SortKey("id", null_order="first"), "and nulls-first or nulls-last"),
    ],
    ids=str,
)
def test_a_key_that_does_not_fit_is_refused(key: SortKey, problem: str):
    with pytest.raises(UsageError) as raised:
        build_sort_order(COLUMNS, [key])
    assert problem in str(raised.value)


def test_a_column_that_is_not_there_is_named():
    with pytest.raises(NotFoundError, match="there is no column 'nope'"):
        build_sort_order(COLUMNS, ["nope"])


@pytest.mark.parametrize(
    ("field", "problem"),
    [
        (SortField(source_id=99, transform=Identity()), "the source column 99 of key 'identity' is not in the schema"),
        (SortField(source_id=3, transform=Identity()), "transform 'identity' does not take column 'place'"),
        (SortField(source_id=1, transform=Day()), "transform 'day' does not take column 'id' of type long"),
    ],
    ids=str,
)
def test_an_order_that_does_not_fit_the_schema_breaks_the_table(field: SortField, problem: str):
    fits = SortField(source_id=6, transform=Identity())
    order = SortOrder(order_id=3, fields=(fits,))
    assert validate_sort_order(order, COLUMNS) is order
    with pytest.raises(InvalidTableError) as raised:
        validate_sort_order(SortOrder(order_id=3, fields=(fits, field)), COLUMNS)
    assert str(raised.value) == f"sort order 3 does not fit schema 0: {problem}" + (
        " of type struct<4: code: optional string>" if field.source_id == 3 else ""
    )


def test_an_order_is_found_by_its_id():
    order = build_sort_order(COLUMNS, ["id"])
    assert find_sort_order([UNSORTED, order], 1) is order
    with pytest.raises(InvalidTableError, match="there is no sort order 2"):
        find_sort_order([UNSORTED, order], 2)
