import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.table.sorting import SortOrder as ForeignOrder

import icekeep.spec.sorting
import icekeep.spec.transforms
from icekeep.errors import InvalidTableError, UsageError
from icekeep.spec.schema import Schema
from icekeep.spec.sorting import (
    UNSORTED,
    NullOrder,
    SortDirection,
    SortField,
    SortKey,
    SortOrder,
    build_sort_order,
    parse_sort_order,
    sort_order_from_json,
    sort_order_to_json,
    validate_sort_order,
)
from icekeep.spec.transforms import Bucket, Day, Identity, parse_transform
from icekeep.spec.types import LONG, STRING, TIMESTAMP, VARIANT, ListType, NestedField, StructType, Type
from kit.cases import for_each
from kit.examples import check_examples

EXAMPLE = {
    "order-id": 1,
    "fields": [
        {"transform": "identity", "source-id": 2, "direction": "asc", "null-order": "nulls-first"},
        {"transform": "bucket[4]", "source-id": 3, "direction": "desc", "null-order": "nulls-last"},
    ],
}


def one_field(**keys: Any) -> dict[str, Any]:
    field = {"transform": "identity", "source-id": 2, "direction": "asc", "null-order": "nulls-first", **keys}
    return {"order-id": 1, "fields": [{key: value for key, value in field.items() if value is not None}]}


def test_orders_are_values():
    with pytest.raises(AttributeError):
        UNSORTED.order_id = 1
    with pytest.raises(AttributeError):
        SortField(source_id=1, transform=Identity()).source_id = 2


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


@for_each(
    ("text", "position", "problem"),
    [
        ("", 1, "it is empty"),
        ("   ", 4, "it is empty"),
        ("a,", 3, "a column is missing"),
        ("a b", 3, "a comma, ASC, DESC"),
        ("a asc desc", 7, "a comma, ASC, DESC"),
        ("a nulls", 8, "after NULLS"),
        ("a nulls desc", 9, "after NULLS"),
        ("a desc nulls first asc", 20, "a comma, ASC, DESC"),
        ("a..b", 3, "a column is missing"),
        ("a.", 3, "a column is missing"),
        ("(a, b", 6, "closing parenthesis"),
        ("bucket(a)", 9, "the number of bucket is missing"),
        ("bucket(16)", 10, "after the number of bucket a column"),
        ("bucket(a, b)", 11, "a whole number is missing"),
        ("days(a, 3)", 7, "closing parenthesis"),
        ("lower(a)", 1, "there is no transform"),
        ("a, lower(b)", 4, "there is no transform"),
        ("zorder()", 8, "a column is missing"),
        ("zorder(a, b", 12, "closing parenthesis"),
        ("zorder(a, b) desc", 14, "a curve has no direction"),
        ("zorder(a, b), c", 1, "a curve goes with no other"),
        ("c, hilbert(a, b)", 1, "a curve goes with no other"),
        ("zorder(a, b), hilbert(a, b)", 1, "a curve goes with no other"),
        ("`a", 1, "not closed"),
        ("a; drop", 2, "no meaning"),
        ("a, 7", 4, "a column is missing"),
    ],
)
def test_what_is_no_sort_order_is_refused_with_its_place(text, position, problem):
    with pytest.raises(UsageError, match="cannot read the sort order") as raised:
        parse_sort_order(text)
    assert raised.value.facts["position"] == position
    assert problem in raised.value.message


NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8).filter(lambda name: "." not in name)
TRANSFORMS = st.sampled_from(["identity", "year", "month", "day", "hour"]) | st.builds(
    "{}[{}]".format, st.sampled_from(["bucket", "truncate"]), st.integers(1, 2**31 - 1)
)
KEYS = st.builds(
    SortKey,
    st.lists(NAMES, min_size=1, max_size=3).map(".".join),
    TRANSFORMS,
    st.sampled_from(["asc", "desc"]),
    st.sampled_from([None, "nulls-first", "nulls-last"]),
)


def written(key: SortKey, quote: str) -> str:
    name = ".".join(quote + part.replace(quote, quote * 2) + quote for part in key.column.split("."))
    function, _, number = key.transform.rstrip("]").partition("[")
    term = f"{function}({number}, {name})" if number else f"{function}({name})"
    nulls = "" if key.null_order is None else key.null_order.replace("-", " ")
    return f"{name if key.transform == 'identity' else term} {key.direction} {nulls}"


@given(st.lists(KEYS, min_size=1, max_size=4), st.sampled_from(["`", '"']))
def test_what_is_written_is_what_is_read(keys, quote):
    assert parse_sort_order(", ".join(written(key, quote) for key in keys)) == tuple(keys)


@given(st.text(max_size=40) | st.text('abc ,().`"1desnul', max_size=30))
def test_any_text_is_read_or_refused(text):
    refused = None
    try:
        parse_sort_order(text)
    except UsageError as error:
        refused = error
    if refused is not None:
        assert 1 <= refused.facts["position"] <= len(text) + 1
        assert "\n" not in refused.message


def test_examples():
    check_examples("spec/sorting.txt", icekeep.spec.sorting, icekeep.spec.transforms, globals())
