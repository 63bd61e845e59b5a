import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.table.sorting import SortOrder as ForeignOrder

from icekeep.errors import InvalidTableError, NotFoundError, UsageError
from icekeep.spec.schema import Schema
from icekeep.spec.sorting import (
    MAX_TEXT_LENGTH,
    UNSORTED,
    CurveKeys,
    NullOrder,
    SortDirection,
    SortField,
    SortKey,
    SortOrder,
    build_sort_order,
    find_sort_order,
    parse_sort_order,
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
    assert not UNSORTED.fields
    assert sort_order_from_json({"order-id": 0, "fields": []}) == UNSORTED
    assert sort_order_from_json(EXAMPLE).fields


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


@for_each(
    ("text", "keys"),
    [
        ("id", [SortKey("id")]),
        ("id, name", [SortKey("id"), SortKey("name")]),
        ("(id, name)", [SortKey("id"), SortKey("name")]),
        ("id ASC", [SortKey("id", direction="asc")]),
        ("id desc", [SortKey("id", direction="desc")]),
        ("id DESC NULLS LAST, name asc nulls first", [
            SortKey("id", direction="desc", null_order="nulls-last"),
            SortKey("name", null_order="nulls-first"),
        ]),
        ("id NULLS LAST", [SortKey("id", null_order="nulls-last")]),
        ("bucket(16, id)", [SortKey("id", "bucket[16]")]),
        ("bucket(id, 16) DESC", [SortKey("id", "bucket[16]", "desc")]),
        ("truncate(name, 10)", [SortKey("name", "truncate[10]")]),
        ("TRUNCATE(10, name)", [SortKey("name", "truncate[10]")]),
        ("years(a), months(a), days(a), hours(a)", [SortKey("a", t) for t in ("year", "month", "day", "hour")]),
        ("year(a), month(a), day(a), hour(a)", [SortKey("a", t) for t in ("year", "month", "day", "hour")]),
        ("date(a), date_hour(a), identity(a)", [SortKey("a", t) for t in ("day", "hour", "identity")]),
        ("user.name", [SortKey("user.name")]),
        ("days(`event log`.at)", [SortKey("event log.at", "day")]),
        ("`a b` DESC, \"c\"\"d\", `e``f`", [SortKey("a b", direction="desc"), SortKey('c"d'), SortKey("e`f")]),
        # Words of the language may be names of columns.
        ("asc desc, nulls nulls last, days, zorder", [
            SortKey("asc", direction="desc"),
            SortKey("nulls", null_order="nulls-last"),
            SortKey("days"),
            SortKey("zorder"),
        ]),
        ("1st", [SortKey("1st")]),
    ],
)  # fmt: skip
def test_keys_are_read(text, keys):
    assert parse_sort_order(text) == tuple(keys)


@for_each(
    ("text", "curve"),
    [
        ("zorder(a, b)", CurveKeys("zorder", ("a", "b"))),
        ("ZOrder( a , user.b, `c d` )", CurveKeys("zorder", ("a", "user.b", "c d"))),
        ("hilbert(a, b)", CurveKeys("hilbert", ("a", "b"))),
        ("zorder(a)", CurveKeys("zorder", ("a",))),
        # Iceberg puts the columns of several terms together.
        ("zorder(a, b), zorder(c)", CurveKeys("zorder", ("a", "b", "c"))),
    ],
)
def test_curves_are_read(text, curve):
    assert parse_sort_order(text) == curve


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


def test_a_text_of_any_length_is_not_read():
    with pytest.raises(UsageError, match="characters"):
        parse_sort_order("a" * (MAX_TEXT_LENGTH + 1))


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
