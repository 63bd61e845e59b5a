import json
from decimal import Context, Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg import transforms as foreign_transforms
from pyiceberg.table.sorting import SortOrder as ForeignOrder
from pyiceberg.types import IcebergType

import icekeep.spec.sorting
import icekeep.spec.transforms
import icekeep.spec.types
import icekeep.spec.values
from icekeep.errors import InvalidTableError, UnsupportedError, UsageError
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
from icekeep.spec.transforms import (
    Bucket,
    Day,
    Hour,
    Identity,
    Month,
    Transform,
    Truncate,
    UnknownTransform,
    Void,
    Year,
    hash_value,
    parse_transform,
    transform_from_json,
    transform_to_json,
)
from icekeep.spec.types import (
    BINARY,
    BOOLEAN,
    DATE,
    DOUBLE,
    FLOAT,
    INT,
    LONG,
    STRING,
    TIME,
    TIMESTAMP,
    TIMESTAMP_NS,
    TIMESTAMPTZ,
    TIMESTAMPTZ_NS,
    UNKNOWN,
    VARIANT,
    ListType,
    NestedField,
    PrimitiveType,
    StructType,
    Type,
    decimal,
    fixed,
    parse_type,
)
from icekeep.spec.values import civil_from_days
from kit.cases import cases, for_each
from kit.examples import check_examples
from kit.filters import value_from_literal
from kit.strategies import PLAIN_TYPES, decimal_types, primitive_types, typed_values, values_in_python_years, values_of

TIMESTAMPS = (TIMESTAMP, TIMESTAMPTZ, TIMESTAMP_NS, TIMESTAMPTZ_NS)
TIME_TRANSFORMS = (Year(), Month(), Day(), Hour())
KNOWN = (Identity(), Bucket(16), Truncate(3), *TIME_TRANSFORMS, Void())
WIDE = Context(prec=60)
LISTED = (*PLAIN_TYPES, decimal(9, 2), fixed(4))
GEOMETRY = parse_type("geometry")
INTS = ListType(element_id=1, element=INT)


def foreign(type_: PrimitiveType) -> IcebergType:
    return IcebergType.handle_primitive_type(str(type_), lambda name: name)


@given(st.integers(-(2**31), 2**31 - 1))
def test_a_column_may_grow_from_int_to_long_and_keep_its_buckets(value: int):
    assert Bucket(7).apply(INT, value) == Bucket(7).apply(LONG, value)


@given(typed_values(decimal_types()))
def test_a_decimal_hashes_by_its_digits_alone(typed: tuple[Any, Decimal]):
    type_, value = typed
    assert hash_value(type_, value) == hash_value(decimal(38, type_.scale), value)


@given(typed_values(st.sampled_from([INT, LONG]) | decimal_types()), st.integers(1, 2**31 - 1))
def test_truncated_numbers_are_multiples_of_the_width_just_below(typed: tuple[Any, Any], width: int):
    type_, value = typed
    scale = getattr(type_, "scale", 0)
    truncated = Truncate(width).apply(type_, value)
    ours, theirs = (int(Decimal(number).scaleb(scale, context=WIDE)) for number in (truncated, value))
    assert ours % width == 0
    assert ours <= theirs < ours + width


@for_each(
    ("literal", "year", "month", "day", "hour"),
    [
        ("1970-01-01T00:00:00", 0, 0, 0, 0),
        ("2017-12-01T10:12:55.038194", 47, 575, 17501, 420034),
        ("1969-12-31T23:59:59.999999", -1, -1, -1, -1),
        ("1969-12-31T23:00:00", -1, -1, -1, -1),
        ("1969-01-01T00:00:00", -1, -12, -365, -8760),
        ("1968-12-31T23:59:59", -2, -13, -366, -8761),
    ],
)
def test_time_transforms_count_from_1970_downwards_too(literal: str, year: int, month: int, day: int, hour: int):
    for type_ in TIMESTAMPS:
        value = value_from_literal(type_, literal)
        assert [t.apply(type_, value) for t in TIME_TRANSFORMS] == [year, month, day, hour]
    date = value_from_literal(DATE, literal[:10])
    assert [t.apply(DATE, date) for t in TIME_TRANSFORMS[:3]] == [year, month, day]


@given(typed_values(st.sampled_from([DATE, *TIMESTAMPS])))
def test_years_months_and_days_are_of_one_calendar(typed: tuple[Any, int]):
    type_, value = typed
    year, month, _ = civil_from_days(Day().apply(type_, value))
    assert Year().apply(type_, value) == year - 1970
    assert Month().apply(type_, value) == (year - 1970) * 12 + month - 1


@for_each("transform", KNOWN, ids=str)
@for_each("type_", LISTED, ids=str)
def test_source_and_result_types_agree_with_pyiceberg(transform: Transform, type_: PrimitiveType):
    theirs = foreign_transforms.parse_transform(str(transform))
    assert theirs.can_transform(foreign(type_)) == transform.accepts(type_)
    if transform.accepts(type_):
        assert theirs.result_type(foreign(type_)) == foreign(transform.result_type(type_))


PAIRS = [(transform, type_) for transform in KNOWN for type_ in LISTED if transform.accepts(type_)]


@pytest.mark.slow
@pytest.mark.parametrize(("transform", "type_"), PAIRS, ids=lambda part: str(part))
@cases(20)
@given(data=st.data())
def test_values_agree_with_pyiceberg(transform: Transform, type_: PrimitiveType, data: st.DataObject):
    value = data.draw(values_in_python_years(type_))
    theirs = foreign_transforms.parse_transform(str(transform)).transform(foreign(type_))(value)
    ours = transform.apply(type_, value)
    assert ours == theirs or (ours != ours and theirs != theirs)


# PyIceberg prints floats, times and timestamps with other digits than Java, nanoseconds as numbers.
ALIKE = [pair for pair in PAIRS if pair[0] != Identity() or pair[1] not in (FLOAT, DOUBLE, TIME, *TIMESTAMPS)]


@pytest.mark.slow
@pytest.mark.parametrize(("transform", "type_"), ALIKE, ids=lambda part: str(part))
@cases(20)
@given(data=st.data())
def test_texts_agree_with_pyiceberg(transform: Transform, type_: PrimitiveType, data: st.DataObject):
    value = transform.apply(type_, data.draw(values_in_python_years(type_)))
    theirs = foreign_transforms.parse_transform(str(transform))
    assert transform.to_text(type_, value) == theirs.to_human_string(foreign(transform.result_type(type_)), value)


ACCEPTED = {
    "identity": {*LISTED, UNKNOWN},
    "bucket[4]": {*LISTED} - {BOOLEAN, FLOAT, DOUBLE},
    "truncate[4]": {INT, LONG, decimal(9, 2), STRING, BINARY},
    "year": {DATE, *TIMESTAMPS},
    "month": {DATE, *TIMESTAMPS},
    "day": {DATE, *TIMESTAMPS},
    "hour": {*TIMESTAMPS},
    "void": {*LISTED, UNKNOWN, VARIANT, GEOMETRY},
    "zorder": {*LISTED, UNKNOWN, VARIANT, GEOMETRY},
}


@for_each("text", ACCEPTED)
def test_transforms_take_the_source_types_of_the_spec(text: str):
    transform = parse_transform(text)
    assert {t for t in (*LISTED, UNKNOWN, VARIANT, GEOMETRY) if transform.accepts(t)} == ACCEPTED[text]
    assert transform.accepts(INTS) == (text in ("void", "zorder"))


@given(st.sampled_from(KNOWN), primitive_types())
def test_null_stays_null_and_is_shown_as_null(transform: Transform, type_: Type):
    if transform.accepts(type_):
        assert transform.apply(type_, None) is None
        assert transform.to_text(type_, None) == "null"


@given(typed_values())
def test_void_makes_null_of_every_value(typed: tuple[Type, Any]):
    type_, value = typed
    assert Void().apply(type_, value) is None
    assert Void().to_text(type_, value) == "null"


@given(typed_values().filter(lambda typed: Bucket(3).accepts(typed[0])), st.integers(1, 2**31 - 1))
def test_buckets_are_numbered_from_zero(typed: tuple[Type, Any], bucket_count: int):
    assert 0 <= Bucket(bucket_count).apply(*typed) < bucket_count


@for_each("text", ["identity", "bucket[16]", "truncate[4]", "year", "month", "day", "hour", "void"])
def test_a_transform_gives_its_text_back(text: str):
    transform = parse_transform(text)
    assert not isinstance(transform, UnknownTransform)
    assert str(transform) == text
    assert parse_transform(text.upper()) == transform
    assert hash(parse_transform(text)) == hash(transform)


@for_each("text", ["zorder", "bucket", "bucket[]", "bucket[a]", "truncate[-1]", "bucket[٤]", "bucket[1][2]", ""])
def test_unknown_transform_keeps_text_and_is_never_applied(text: str):
    transform = parse_transform(text)
    assert transform == UnknownTransform(text)
    assert str(transform) == text
    assert transform.to_text(INT, "a") == "a"
    with pytest.raises(UnsupportedError, match="not one that icekeep can apply"):
        transform.apply(INT, 1)


@for_each("transform", [*KNOWN, UnknownTransform("zorder")], ids=str)
def test_transforms_are_values(transform: Transform):
    assert len({transform, parse_transform(str(transform))}) == 1
    with pytest.raises(AttributeError):
        transform.width = 1


@pytest.mark.parametrize("text", ["bucket[1]", "truncate[1]", "bucket[2147483647]"])
def test_parameters_go_from_1_to_the_greatest_int(text: str):
    assert str(parse_transform(text)) == text
    assert not isinstance(parse_transform(text), UnknownTransform)


@for_each("text", ["bucket[0]", "truncate[0]", "bucket[2147483648]", "truncate[9999999999]"])
def test_a_parameter_out_of_range_breaks_the_table(text: str):
    with pytest.raises(InvalidTableError, match="not between 1 and"):
        parse_transform(text)


@given(values_of(DOUBLE))
def test_the_text_of_a_double_reads_back_as_it(value: float):
    read = float(Identity().to_text(DOUBLE, value).replace("Infinity", "inf"))
    assert repr(read) == repr(value)


@for_each(
    ("keys", "source_id", "transform", "kept"),
    [
        ({"source-id": 4, "transform": "day"}, 4, Day(), {}),
        ({"source-ids": [4], "transform": "day", "x": 1}, 4, Day(), {"x": 1}),
        ({"source-ids": [4, 5], "transform": "bucket[4]"}, 4, UnknownTransform("bucket[4]"), {"source-ids": [4, 5]}),
        (
            {"source-id": 4, "source-ids": [4, 5], "transform": "zorder"},
            4,
            UnknownTransform("zorder"),
            {"source-id": 4, "source-ids": [4, 5]},
        ),
    ],
)
def test_a_transform_of_several_columns_is_kept_as_it_was(
    keys: dict[str, Any], source_id: int, transform: Transform, kept: dict[str, Any]
):
    rest = dict(keys)
    assert transform_from_json(rest, "a field") == (source_id, transform)
    assert rest == kept
    written = {"source-id": 4, "transform": "day", "x": 1} if keys.get("source-ids") == [4] else keys
    assert transform_to_json(source_id, transform, rest) == written


def test_examples():
    check_examples("spec/transforms.txt", icekeep.spec.values, icekeep.spec.types, globals())


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


def test_examples_of_sorting():
    check_examples("spec/sorting.txt", icekeep.spec.sorting, icekeep.spec.transforms, globals())
