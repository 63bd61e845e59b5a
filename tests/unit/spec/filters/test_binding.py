import math
import pickle
from decimal import Decimal
from typing import Any
from uuid import UUID as Uuid

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg import conversions
from pyiceberg.types import IcebergType

import icekeep.spec.transforms
from icekeep.errors import ExpressionError, NotFoundError
from icekeep.spec.filters.binding import LiteralPosition, bind, exact_limits, is_comparable, locate_literal
from icekeep.spec.filters.evaluators import row_matches
from icekeep.spec.filters.expressions import (
    ALWAYS_FALSE,
    ALWAYS_TRUE,
    MAX_DEPTH,
    And,
    BoundPredicate,
    DateLiteral,
    Expression,
    Not,
    NowLiteral,
    Operation,
    Or,
    Predicate,
    TimestampLiteral,
)
from icekeep.spec.filters.parsing import format_expression, parse_where
from icekeep.spec.partitioning import PartitionField, PartitionSpec
from icekeep.spec.schema import Schema
from icekeep.spec.transforms import Day, Hour, Month, Transform, UnknownTransform, Void, Year
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
    UUID,
    VARIANT,
    ListType,
    MapType,
    NestedField,
    PrimitiveType,
    StructType,
    Type,
    decimal,
    fixed,
    parse_type,
)
from icekeep.spec.values import value_to_bytes, value_to_text
from kit.cases import cases, for_each
from kit.examples import check_examples
from kit.filters import COMPARISONS, columns, filters, pool, rows, schema_of, truth
from kit.strategies import primitive_types, typed_values, values_in_python_years, values_of

OP = Operation


def schema(*types: Type, required: bool = False) -> Schema:
    """Columns c1, c2 ... of the types."""
    return Schema(
        fields=tuple(
            NestedField(field_id=i, name=f"c{i}", type=type_, required=required) for i, type_ in enumerate(types, 1)
        )
    )


def bound(type_: Type, operation: Operation, *literals: Any, required: bool = False) -> Expression:
    return bind(Predicate(operation, "c1", literals), schema(type_, required=required))


def text(expression: Expression) -> str:
    return format_expression(expression)


@pytest.mark.slow
@given(st.data())
@cases(300)
def test_bound_filter_agrees_with_sql(data: st.DataObject):
    table = data.draw(columns())
    expression = data.draw(filters(table))
    row = data.draw(rows(table))
    assert row_matches(bind(expression, schema_of(table)), row) == (truth(expression, table, row) is True)


def test_names_are_bound_to_fields_and_literals_to_their_types():
    result = bind(parse_where("c1 >= '1970-01-02' AND c2 IN (2, 1.00, 2)"), schema(DATE, decimal(5, 2)))
    fields = schema(DATE, decimal(5, 2)).fields
    assert result == And(
        BoundPredicate(OP.GT_EQ, fields[0], (1,)), BoundPredicate(OP.IN, fields[1], (Decimal("1.00"), Decimal("2.00")))
    )


def test_literal_of_wrong_type_is_refused_by_column():
    with pytest.raises(
        ExpressionError, match=r"^column 'c1': 'abc' cannot be compared with type int: it must be a whole number"
    ) as caught:
        bound(INT, OP.EQ, "abc")
    assert caught.value.facts["column"] == "c1"


@for_each("literal", [math.nan, Decimal("NaN")])
@for_each("operation", COMPARISONS)
def test_nothing_compares_with_nan(operation: Operation, literal: Any):
    with pytest.raises(ExpressionError, match="NaN"):
        bound(DOUBLE, operation, literal)


@for_each(("operation", "literals"), [(OP.EQ, ()), (OP.LT, (1, 2)), (OP.IS_NULL, (1,)), (OP.STARTS_WITH, ())])
def test_the_wrong_number_of_literals_is_refused(operation: Operation, literals: tuple[Any, ...]):
    with pytest.raises(ExpressionError, match="takes"):
        bound(STRING, operation, *literals)


BEYOND = [
    (OP.LT, "c1 IS NOT NULL", "false"),
    (OP.LT_EQ, "c1 IS NOT NULL", "false"),
    (OP.GT, "false", "c1 IS NOT NULL"),
    (OP.GT_EQ, "false", "c1 IS NOT NULL"),
    (OP.EQ, "false", "false"),
    (OP.NOT_EQ, "c1 IS NOT NULL", "c1 IS NOT NULL"),
    (OP.IN, "false", "false"),
    (OP.NOT_IN, "c1 IS NOT NULL", "c1 IS NOT NULL"),
]


@for_each(("operation", "above", "below"), BEYOND)
@for_each(
    ("type_", "literal"), [(INT, 2**31), (LONG, 2**63), (INT, Decimal("1e300")), (decimal(3, 1), 100), (INT, math.inf)]
)
def test_a_literal_beyond_the_range_decides_the_comparison(
    type_: Type, literal: Any, operation: Operation, above: str, below: str
):
    assert text(bound(type_, operation, literal)) == above
    assert text(bound(type_, operation, -literal - (type_ != decimal(3, 1)))) == below
    always = {"c1 IS NOT NULL": "true", "false": "false"}
    assert text(bound(type_, operation, literal, required=True)) == always[above]


@for_each(
    ("operation", "above", "below"),
    [
        (OP.LT, "c1 < 'Infinity'", "c1 = '-Infinity'"),
        (OP.LT_EQ, "c1 < 'Infinity'", "c1 = '-Infinity'"),
        (OP.GT, "c1 = 'Infinity'", "c1 > '-Infinity'"),
        (OP.GT_EQ, "c1 = 'Infinity'", "c1 > '-Infinity'"),
        (OP.EQ, "false", "false"),
        (OP.NOT_EQ, "c1 IS NOT NULL", "c1 IS NOT NULL"),
    ],
)
@for_each(("type_", "literal"), [(FLOAT, 1e39), (FLOAT, 3.4028235e38), (DOUBLE, 10**400)])
def test_between_the_floats_and_infinity_nothing_lies(
    type_: Type, literal: Any, operation: Operation, above: str, below: str
):
    assert text(bound(type_, operation, literal)) == above
    assert text(bound(type_, operation, -literal)) == below


@pytest.mark.parametrize("type_", [INT, LONG, decimal(3, 1)])
def test_comparisons_with_the_ends_of_a_type_are_decided(type_: Type):
    least, most = {INT: (-(2**31), 2**31 - 1), LONG: (-(2**63), 2**63 - 1)}.get(
        type_, (Decimal("-99.9"), Decimal("99.9"))
    )
    assert text(bound(type_, OP.LT, least)) == "false"
    assert text(bound(type_, OP.GT, most)) == "false"
    assert text(bound(type_, OP.GT_EQ, least)) == "c1 IS NOT NULL"
    assert text(bound(type_, OP.LT_EQ, most)) == "c1 IS NOT NULL"
    assert text(bound(type_, OP.LT_EQ, least)) == f"c1 <= {least}"
    assert text(bound(type_, OP.EQ, most)) == f"c1 = {most}"


BETWEEN_VALUES = [
    (INT, 2.5, "2"),
    (LONG, Decimal("-0.5"), "-1"),
    (decimal(5, 2), Decimal("1.005"), "1.00"),
    (decimal(5, 2), "-1.005", "-1.01"),
    (TIMESTAMP, "1970-01-01T00:00:00.000000001", "'1970-01-01T00:00:00'"),
    (TIMESTAMP, TimestampLiteral(-1), "'1969-12-31T23:59:59.999999'"),
    (TIME, "10:00:00.0000005", "'10:00:00'"),
]


@for_each(("type_", "literal", "below"), BETWEEN_VALUES)
def test_a_literal_between_two_values_decides_the_comparison(type_: Type, literal: Any, below: str):
    assert text(bound(type_, OP.LT, literal)) == text(bound(type_, OP.LT_EQ, literal)) == f"c1 <= {below}"
    assert text(bound(type_, OP.GT, literal)) == text(bound(type_, OP.GT_EQ, literal)) == f"c1 > {below}"
    assert bound(type_, OP.EQ, literal) == bound(type_, OP.IN, literal) == ALWAYS_FALSE
    assert text(bound(type_, OP.NOT_EQ, literal)) == text(bound(type_, OP.NOT_IN, literal)) == "c1 IS NOT NULL"
    assert bound(type_, OP.NOT_EQ, literal, required=True) == ALWAYS_TRUE


@for_each("type_", [VARIANT, UNKNOWN, parse_type("geometry"), parse_type("geography")])
@for_each("where", ["c1 = 'x'", "c1 < 5", "c1 IN (1)", "c1 NOT IN ('x')", "c1", "NOT c1 > 1"])
def test_types_without_comparison_allow_only_null_tests(type_: Type, where: str):
    with pytest.raises(
        ExpressionError, match=f"^column 'c1' is of type {type_}, which has no comparison; a filter may"
    ):
        bind(parse_where(where), schema(type_))
    for test in ("c1 IS NULL", "c1 IS NOT NULL"):
        assert text(bind(parse_where(test), schema(type_))) == test
    assert text(bind(parse_where("NOT c1 IS NULL"), schema(type_))) == "c1 IS NOT NULL"


def test_zero_has_no_sign():
    (value,) = bound(FLOAT, OP.EQ, -0.0).values
    assert math.copysign(1, value) == 1
    assert bound(DOUBLE, OP.IN, -0.0, 0.0) == bound(DOUBLE, OP.EQ, 0.0)


NEGATIONS = [
    ("c1 < 5", "c1 >= 5"),
    ("c1 <= 5", "c1 > 5"),
    ("c1 > 5", "c1 <= 5"),
    ("c1 >= 5", "c1 < 5"),
    ("c1 = 5", "c1 != 5"),
    ("c1 != 5", "c1 = 5"),
    ("c1 IN (5, 6)", "c1 NOT IN (5, 6)"),
    ("c1 NOT IN (5, 6)", "c1 IN (5, 6)"),
    ("c1 IS NULL", "c1 IS NOT NULL"),
    ("c1 IS NOT NULL", "c1 IS NULL"),
    ("true", "false"),
    ("c1 < 3000000000", "false"),
    ("c1 > 3000000000", "c1 IS NOT NULL"),
    ("c1 = 5 AND c1 < 7", "c1 != 5 OR c1 >= 7"),
]


@for_each(("positive", "negative"), NEGATIONS)
def test_not_is_pushed_down_to_the_predicates(positive: str, negative: str):
    expression = parse_where(positive)
    assert text(bind(Not(expression), schema(INT))) == negative
    assert bind(Not(Not(expression)), schema(INT)) == bind(expression, schema(INT))


@pytest.mark.slow
def test_a_long_chain_is_one_level_however_it_leans():
    left = right = parse_where("c1 = 0")
    for number in range(1, 5000):
        left = And(left, Predicate(OP.EQ, "c1", (number,)))
        right = Or(Predicate(OP.EQ, "c1", (number,)), right)
    for expression in (left, right):
        result = bind(expression, schema(INT))
        assert text(result).count("=") == 5000
        assert pickle.loads(pickle.dumps(result)) == result


def test_nesting_has_a_limit():
    def nested(levels: int) -> Expression:
        expression: Expression = Predicate(OP.EQ, "c1", (1,))
        for _ in range(levels):
            expression = Not(expression)
        return expression

    def alternating(levels: int) -> Expression:
        expression: Expression = Predicate(OP.EQ, "c1", (1,))
        for level in range(levels):
            connective = And if level % 2 else Or
            expression = connective(Predicate(OP.EQ, "c1", (level,)), expression)
        return expression

    bind(alternating(MAX_DEPTH), schema(INT))
    with pytest.raises(ExpressionError, match="nested deeper than 50 levels; simplify it"):
        bind(alternating(MAX_DEPTH + 1), schema(INT))
    assert bind(nested(MAX_DEPTH), schema(INT)) == bind(nested(0), schema(INT))
    with pytest.raises(ExpressionError, match="nested deeper"):
        bind(nested(MAX_DEPTH + 1), schema(INT))


def test_a_field_of_a_struct_is_required_only_if_the_struct_is():
    def nested(struct_required: bool) -> Schema:
        inner = StructType((NestedField(field_id=2, name="x", type=INT, required=True),))
        return Schema(fields=(NestedField(field_id=1, name="s", type=inner, required=struct_required),))

    assert bind(Predicate(OP.IS_NULL, "s.x"), nested(struct_required=True)) == ALWAYS_FALSE
    optional = bind(Predicate(OP.IS_NULL, "s.x"), nested(struct_required=False))
    assert isinstance(optional, BoundPredicate)
    assert not optional.field.required


def test_list_elements_cannot_be_filtered():
    """A list may be tested for null, but its elements cannot be named in a filter."""
    numbers = Schema(
        fields=(NestedField(field_id=1, name="n", type=ListType(element_id=2, element=INT, element_required=True)),)
    )
    with pytest.raises(ExpressionError, match="in a list or a map"):
        bind(Predicate(OP.EQ, "n.element", (1,)), numbers)
    assert text(bind(Predicate(OP.IS_NULL, "n"), numbers)) == "n IS NULL"
    with pytest.raises(ExpressionError, match="column 'n' is of type list, which has no comparison"):
        bind(Predicate(OP.EQ, "n", (1,)), numbers)


@given(st.data())
def test_columns_of_structs_are_bound_as_those_of_the_table(data: st.DataObject):
    table = data.draw(columns())
    expression = data.draw(filters(table))
    flat = bind(expression, schema_of(table))
    struct = NestedField(field_id=9, name="s", type=StructType(schema_of(table).fields), required=True)
    assert bind(below(expression, "s."), Schema(fields=(struct,))) == below(flat, "s.")


def below(expression: Expression, prefix: str) -> Expression:
    """The expression with a prefix before all names."""
    match expression:
        case And() | Or():
            return type(expression)(below(expression.left, prefix), below(expression.right, prefix))
        case Not(child=child):
            return Not(below(child, prefix))
        case Predicate(column=column):
            return msgspec.structs.replace(expression, column=prefix + column)
        case BoundPredicate(field=field):
            return msgspec.structs.replace(expression, field=msgspec.structs.replace(field, name=prefix + field.name))
    return expression


# References


CITY = NestedField(field_id=7, name="city", type=STRING, required=True)


ADDRESS = StructType((CITY, NestedField(field_id=8, name="zip code", type=STRING)))


def column(field_id: int, name: str, type_: Type, *, required: bool = False) -> NestedField:
    return NestedField(field_id=field_id, name=name, type=type_, required=required)


SCHEMA = Schema(
    fields=(
        column(1, "id", LONG, required=True),
        column(2, "ts", TIMESTAMP),
        column(3, "home", ADDRESS, required=True),
        column(4, "tags", ListType(element_id=9, element=STRING)),
        column(5, "counts", MapType(key_id=10, key=STRING, value_id=11, value=LONG)),
        column(6, "a.b", INT),
    )
)


def find(name: str, *parts: PartitionField, schema: Schema = SCHEMA, where: str = "{} = 1") -> NestedField:
    specs = [PartitionSpec(spec_id=i, fields=(part,)) for i, part in enumerate(parts)]
    predicate = bind(parse_where(where.format(f'"{name}"')), schema, specs)
    assert isinstance(predicate, BoundPredicate)
    return predicate.field


TEXT = "{} = 'x'"


def part(name: str, transform: Transform, source_id: int = 2) -> PartitionField:
    return PartitionField(source_id=source_id, field_id=1000, name=name, transform=transform)


@pytest.mark.parametrize("name", ["tags.element", "counts.key", "counts.value"])
def test_columns_in_lists_and_maps_cannot_be_named(name: str):
    with pytest.raises(ExpressionError, match=f"^column '{name}' lies in a list or a map; a filter takes columns of"):
        find(name)
    assert find("tags", where="{} IS NULL").field_id == 4


@for_each(
    ("name", "hint"),
    [
        ("ID", "did you mean 'id'?"),
        ("iid", "did you mean 'id'?"),
        ("Home.City", "did you mean 'home.city'?"),
        ("city", "did you mean 'home.city'?"),
        ("home.zipcode", "did you mean 'home.zip code'?"),
        ("a_b", "did you mean 'a.b'?"),
        ("tag", "did you mean 'tags'?"),
        ("zzzz", "the columns are id, ts, home, home.city, home.zip code, tags, counts, a.b"),
    ],
)
def test_unknown_column_suggests_nearest_names(name: str, hint: str):
    with pytest.raises(NotFoundError) as caught:
        find(name)
    assert caught.value.message == f"there is no column {name!r}; {hint}"
    assert caught.value.facts == {"column": name}


def refused(where: str, *parts: PartitionField) -> str:
    name = parts[0].name
    with pytest.raises(NotFoundError) as caught:
        find(name, *parts, where=where)
    prefix = f"there is no column {name!r}: "
    assert caught.value.message.startswith(prefix)
    return caught.value.message.removeprefix(prefix)


@pytest.mark.parametrize("transform", [Void(), UnknownTransform("zorder")])
def test_uninformative_partition_field_is_refused(transform: Transform):
    assert refused("{} = 3", part("p", transform)) == (
        f"it is a partition field, {transform} of column 'ts'; filter on that column"
    )


# Unfolding


def bound_text(type_: PrimitiveType, where: str) -> str:
    schema = Schema(fields=(NestedField(field_id=1, name="x", type=type_),))
    return format_expression(bind(parse_where(where, 0), schema))


@for_each(
    ("type_", "where", "problem"),
    [
        (
            DOUBLE,
            "bucket(4, x) = 1",
            "bucket(4, x) is no filter on column 'x' of type double, which this transform does not take",
        ),
        (DATE, "hours(x) = 1", "hours(x) is no filter on column 'x' of type date, which this transform does not take"),
        (LONG, "days(x) = 1", "days(x) is no filter on column 'x' of type long, which this transform does not take"),
        (LONG, "bucket(4, x) IS NAN", "bucket(4, x) is never NaN; only float and double have NaN"),
        (LONG, "truncate(4, x) LIKE 'a%'", "truncate(4, x) has no prefix; only string and binary start with one"),
        (STRING, "bucket(4, x) LIKE 'a%'", "bucket(4, x) has no prefix; only string and binary start with one"),
        (
            LONG,
            "bucket(4, x) = 'a'",
            "column 'bucket(4, x)': 'a' cannot be compared with type int: it must be a whole number",
        ),
        (
            STRING,
            "truncate(4, x) = 5",
            "column 'truncate(4, x)': 5 cannot be compared with type string: it must be text, in",
        ),
        (
            TIMESTAMP,
            "days(x) = 5",
            "column 'days(x)': 5 cannot be compared with type date: it must be text, in single quotes",
        ),
        (TIMESTAMP, "days(x) = '2026-02-30'", "column 'days(x)': '2026-02-30' cannot be compared with type date: "),
        (
            TIMESTAMP,
            "years(x) = true",
            "column 'years(x)': true cannot be compared with type int: it must be a whole number",
        ),
        (
            TIMESTAMP,
            "years(x) = 2026",
            "years(x) counts the years from 1970, so that 2026 is the year 3996; write '2026' in quotes for that year, or 56",
        ),
        (
            TIMESTAMP,
            "months(x) = '2026-13'",
            "months(x) is compared with a whole number, or with text such as '2026-01', not",
        ),
        (
            TIMESTAMP,
            "months(x) = '2026-01-01'",
            "months(x) is compared with a whole number, or with text such as '2026-01', not",
        ),
        (TIMESTAMP, "hours(x) = '2026-01-01-24'", "hours(x) is compared with a whole number, or with text such as"),
        (TIMESTAMP, "hours(x) = today", "column 'hours(x)': DATE '1970-01-01' cannot be compared with type int"),
    ],
)
def test_invalid_filter_for_column_type_is_one_line_error(type_: PrimitiveType, where: str, problem: str):
    with pytest.raises(ExpressionError) as refused:
        bound_text(type_, where)
    assert refused.value.message.startswith(problem)
    assert "\n" not in refused.value.message


@given(st.data())
@cases(200)
def test_the_text_of_a_unit_is_the_unit(data: st.DataObject):
    """As partition paths show it, which numbers of other tests do not."""
    transform, name = data.draw(
        st.sampled_from([(Year(), "years"), (Month(), "months"), (Day(), "days"), (Hour(), "hours")])
    )
    type_ = data.draw(st.sampled_from([one for one in (DATE, TIMESTAMP, TIMESTAMPTZ) if transform.accepts(one)]))
    row, other = data.draw(pool(type_, with_ends=False)), data.draw(pool(type_, with_ends=False))
    unit = transform.apply(type_, other)
    schema = Schema(fields=(NestedField(field_id=1, name="x", type=type_),))
    where = bind(parse_where(f"{name}(x) = '{transform.to_text(type_, unit)}'"), schema)
    assert row_matches(where, {1: row}) == (transform.apply(type_, row) == unit)


LARGEST_FLOAT = float.fromhex("0x1.fffffep+127")
AN_UUID = Uuid("f79c3e09-677c-4bbd-a479-3f349cb785e7")
HOUR_MS = 3_600_000
DAY_NANOS = 86_400 * 10**9


def place(type_: Type, literal: Any) -> LiteralPosition:
    return locate_literal(NestedField(field_id=1, name="x", type=type_), literal)


VALUES = [
    (BOOLEAN, True, True),
    (INT, 34, 34),
    (INT, 34.0, 34),
    (INT, Decimal("34.00"), 34),
    (INT, Decimal("-0"), 0),
    (LONG, -(2**63), -(2**63)),
    (DOUBLE, 1, 1.0),
    (DOUBLE, Decimal("0.1"), 0.1),
    (DOUBLE, math.inf, math.inf),
    (DOUBLE, "Infinity", math.inf),
    (FLOAT, "-inf", -math.inf),
    (FLOAT, "+INFINITY", math.inf),
    (FLOAT, 0.1, 0.10000000149011612),
    (FLOAT, LARGEST_FLOAT, LARGEST_FLOAT),
    (decimal(9, 2), 14, Decimal("14.00")),
    (decimal(9, 2), 14.2, Decimal("14.20")),
    (decimal(9, 2), Decimal("14.200"), Decimal("14.20")),
    (decimal(9, 2), "14.2", Decimal("14.20")),
    (decimal(38, 38), Decimal("-1E-38"), Decimal("-1E-38")),
    (DATE, "2013-02-28", 15764),
    (DATE, DateLiteral(-1), -1),
    (TIME, "22:31:08", 81_068_000_000),
    (TIMESTAMP, "2017-11-16T22:31:08", 1510871468000000),
    (TIMESTAMP, "2017-11-16 22:31:08.000001", 1510871468000001),
    (TIMESTAMP, "2017-11-16", 1510790400000000),
    (TIMESTAMPTZ, "2017-11-16T14:31:08-08:00", 1510871468000000),
    (TIMESTAMPTZ, "2017-11-16T22:31:08", 1510871468000000),
    (TIMESTAMP_NS, "2017-11-16T22:31:08.000001001", 1510871468000001001),
    (TIMESTAMPTZ_NS, "2017-11-16T22:31:08Z", 1510871468000000000),
    (TIMESTAMP, TimestampLiteral(-1000), -1),
    (TIMESTAMPTZ, TimestampLiteral(5000, zoned=True), 5),
    (TIMESTAMP_NS, TimestampLiteral(5), 5),
    (STRING, "abc", "abc"),
    (UUID, str(AN_UUID).upper(), AN_UUID),
    (UUID, AN_UUID, AN_UUID),
    (fixed(2), "00FF", b"\x00\xff"),
    (fixed(2), b"\x00\xff", b"\x00\xff"),
    (BINARY, "", b""),
    (BINARY, b"ab", b"ab"),
]


@for_each(("type_", "literal", "value"), VALUES)
def test_literals_become_values_of_the_column(type_: Type, literal: Any, value: Any):
    found = place(type_, literal)
    assert found == LiteralPosition(value)
    assert type(found.value) is type(value)


@for_each(
    ("type_", "literal", "side"),
    [
        (INT, 2**31 - 1, 0), (INT, 2**31, 1), (INT, -(2**31), 0), (INT, -(2**31) - 1, -1),
        (INT, 2147483647.5, 1), (INT, Decimal("2147483647.1"), 1), (INT, math.inf, 1), (INT, Decimal("-Infinity"), -1),
        (INT, Decimal("-2147483648.1"), -1), (INT, Decimal("1E+999999"), 1), (INT, Decimal("-1E+999999"), -1),
        (LONG, 2**63 - 1, 0), (LONG, 2**63, 1), (LONG, -(2**63) - 1, -1), (LONG, Decimal("1E+400"), 1),
        (decimal(3, 1), Decimal("99.9"), 0), (decimal(3, 1), 100, 1), (decimal(3, 1), Decimal("-99.91"), -1),
        (decimal(3, 1), Decimal("99.91"), 1), (decimal(3, 1), Decimal("-99.9"), 0), (decimal(38, 0), 10**38, 1),
        (FLOAT, LARGEST_FLOAT, 0), (FLOAT, 3.4028235e38, 1), (FLOAT, -3.4028235e38, -1), (FLOAT, 10**400, 1),
        (FLOAT, math.inf, 0), (FLOAT, Decimal("Infinity"), 0), (FLOAT, Decimal("1E+39"), 1),
        (DOUBLE, 1.7976931348623157e308, 0), (DOUBLE, 10**309, 1), (DOUBLE, -math.inf, 0), (DOUBLE, -(10**309), -1),
        (DATE, DateLiteral(2**31), 1), (DATE, DateLiteral(-(2**31)), 0), (DATE, "-9999999-01-01", -1),
        (TIMESTAMP_NS, "9999-12-31", 1), (TIMESTAMP_NS, "1500-01-01", -1), (TIMESTAMP, "9999-12-31", 0),
        (TIMESTAMPTZ_NS, DateLiteral(10**6), 1), (TIMESTAMP, TimestampLiteral(2**63 * 1000), 1),
        (TIMESTAMP, TimestampLiteral(2**63 * 1000 - 1), 1), (TIMESTAMP, TimestampLiteral(2**63 * 1000 - 1000), 0),
    ],
)  # fmt: skip
def test_literal_lies_within_or_beside_type_range(type_: Type, literal: Any, side: int):
    assert place(type_, literal).side == side


@for_each(
    ("type_", "literal"),
    [
        (BOOLEAN, 1), (BOOLEAN, "true"), (INT, "12"), (INT, True), (LONG, math.nan), (INT, Decimal("sNaN")), (INT, None),
        (INT, Decimal("1E-1001")), (INT, DateLiteral(5)), (DOUBLE, "1"), (DOUBLE, True), (DOUBLE, math.nan),
        (DOUBLE, Decimal("NaN")), (DOUBLE, NowLiteral(5)), (decimal(9, 2), True), (decimal(9, 2), math.nan),
        (decimal(9, 2), "a"), (decimal(9, 2), b"1"), (DATE, "2013-02-30"), (DATE, "2013-01-01T00:00:00"), (DATE, 15706),
        (DATE, TimestampLiteral(0)), (TIME, "25:00"), (TIME, NowLiteral(0)), (TIMESTAMP, 1510871468000000),
        (TIMESTAMP, "2017-11-16T22:31:08Z"), (TIMESTAMP, TimestampLiteral(0, zoned=True)), (STRING, 5),
        (STRING, "\udcff"), (STRING, b"a"), (STRING, DateLiteral(0)), (UUID, "f79c3e09"), (UUID, b"0" * 16),
        (BINARY, "0g"), (BINARY, 5), (fixed(2), "00"), (fixed(2), b"abc"),
    ],
)  # fmt: skip
def test_incomparable_literal_names_column_and_type(type_: Type, literal: Any):
    with pytest.raises(ExpressionError) as caught:
        place(type_, literal)
    assert caught.value.message.startswith("column 'x': ")
    assert f"cannot be compared with type {type_}:" in caught.value.message
    assert caught.value.facts == {"column": "x", "literal": str(literal), "type": str(type_)}


def test_today_and_now_convert_between_date_and_timestamp():
    today, now = DateLiteral(3), NowLiteral(3 * 24 * HOUR_MS + 5 * HOUR_MS)
    assert place(DATE, today) == place(DATE, now) == LiteralPosition(3)
    assert place(TIMESTAMP, today) == LiteralPosition(3 * DAY_NANOS // 1000)
    assert place(TIMESTAMPTZ_NS, today) == LiteralPosition(3 * DAY_NANOS)
    assert place(TIMESTAMPTZ, now) == LiteralPosition(now.epoch_ms * 1000)
    assert place(TIMESTAMP_NS, now) == LiteralPosition(now.epoch_ms * 10**6)
    assert place(DATE, NowLiteral(-1)) == LiteralPosition(-1)


def test_whole_and_decimal_numbers_have_exact_limits():
    assert exact_limits(INT) == (-(2**31), 2**31 - 1)
    assert exact_limits(TIMESTAMP_NS) == (-(2**63), 2**63 - 1)
    assert exact_limits(decimal(38, 0)) == (Decimal(-(10**38) + 1), Decimal(10**38 - 1))
    assert exact_limits(decimal(2, 2)) == (Decimal("-0.99"), Decimal("0.99"))
    for type_ in (FLOAT, STRING, BOOLEAN, ListType(element_id=2, element=INT)):
        assert exact_limits(type_) is None


def test_types_without_an_order_are_not_comparable():
    point = StructType((NestedField(field_id=2, name="a", type=INT),))
    for type_ in (UNKNOWN, VARIANT, parse_type("geometry"), parse_type("geography(OGC:CRS84, karney)"), point):
        assert not is_comparable(type_)
    for type_ in (BOOLEAN, INT, DOUBLE, decimal(9, 2), TIMESTAMPTZ_NS, UUID, fixed(2), BINARY):
        assert is_comparable(type_)


@for_each("type_", [FLOAT, DOUBLE])
@for_each("literal", [-0.0, Decimal("-0.0"), Decimal("-1E-400")])
def test_minus_zero_is_zero(type_: Type, literal: Any):
    assert math.copysign(1, place(type_, literal).value) == 1


@for_each("literal", [DateLiteral(0), TimestampLiteral(0), NowLiteral(0), LiteralPosition(0)])
def test_literals_are_values(literal: Any):
    assert hash(literal) == hash(type(literal)(0))
    with pytest.raises(AttributeError, match="immutable"):
        setattr(literal, literal.__struct_fields__[0], 1)


@given(typed_values(primitive_types().filter(lambda t: t.name not in ("boolean", "int", "long", "float", "double"))))
def test_the_text_of_a_value_is_a_literal_for_it(typed: tuple[Type, Any]):
    type_, value = typed
    assert place(type_, value_to_text(type_, value)) == LiteralPosition(value)


@given(values_of(DOUBLE))
def test_numbers_are_literals_for_themselves(value: float):
    if not math.isnan(value):
        assert place(DOUBLE, value) == LiteralPosition(value)


@given(values_in_python_years(TIMESTAMPTZ))
def test_timestamps_are_read_as_pyiceberg_reads_them(micros: int):
    text = value_to_text(TIMESTAMPTZ, micros)
    theirs = conversions.from_json(IcebergType.handle_primitive_type("timestamptz", lambda name: name), text)
    assert conversions.to_bytes(IcebergType.handle_primitive_type("timestamptz", lambda name: name), theirs) == (
        value_to_bytes(TIMESTAMPTZ, place(TIMESTAMPTZ, text).value)
    )


def test_examples():
    check_examples("spec/filters/binding.txt", icekeep.spec.transforms, globals())
