from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icekeep.errors import IcekeepBug, InvalidTableError, UsageError
from icekeep.spec.evolution import keeps_partition_values, promote_default, promote_value, validate_promotion
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
    parse_transform,
)
from icekeep.spec.types import (
    DATE,
    DOUBLE,
    FLOAT,
    INT,
    LONG,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NS,
    TIMESTAMPTZ,
    TIMESTAMPTZ_NS,
    UNKNOWN,
    ListType,
    MapType,
    NestedField,
    PrimitiveType,
    StructType,
    Type,
    decimal,
)
from kit.cases import for_each
from kit.strategies import decimal_types, primitive_types, values_of

STRUCT = StructType((NestedField(field_id=1, name="x", type=INT),))
ALWAYS = [(INT, LONG), (FLOAT, DOUBLE), (decimal(9, 2), decimal(10, 2)), (decimal(1, 1), decimal(38, 1))]
SINCE_V3 = [(DATE, TIMESTAMP), (DATE, TIMESTAMP_NS), (UNKNOWN, INT), (UNKNOWN, STRUCT), (UNKNOWN, TIMESTAMPTZ)]


@for_each(("old", "new"), ALWAYS, ids=str)
@for_each("version", [1, 2, 3])
def test_numbers_widen_in_every_version(old: Type, new: Type, version: int):
    validate_promotion(old, new, version)
    validate_promotion(old, old, version)


@for_each(("old", "new"), SINCE_V3, ids=str)
def test_unknown_and_dates_are_promoted_since_version_3(old: Type, new: Type):
    validate_promotion(old, new, 3)
    for version in (1, 2):
        with pytest.raises(UsageError, match="in format version 3 only; upgrade the table first"):
            validate_promotion(old, new, version)


@for_each(
    ("old", "new", "problem"),
    [
        (LONG, INT, "long may not become int"),
        (DOUBLE, FLOAT, "double may not become float"),
        (INT, DOUBLE, "int may not become double"),
        (INT, STRING, "int may not become string"),
        (decimal(9, 2), decimal(8, 2), "precision may grow, its scale stays"),
        (decimal(9, 2), decimal(10, 3), "precision may grow, its scale stays"),
        (DATE, TIMESTAMPTZ, "it may become timestamp or timestamp_ns"),
        (DATE, TIMESTAMPTZ_NS, "it may become timestamp or timestamp_ns"),
        (TIMESTAMP, TIMESTAMP_NS, "may not become"),
        (INT, STRUCT, "int may not become a struct; add a column"),
        (STRUCT, INT, "a struct may not become int"),
        (STRUCT, ListType(element_id=1, element=INT), "a struct may not become a list"),
        (MapType(key_id=1, key=INT, value_id=2, value=INT), STRUCT, "a map may not become a struct"),
        (INT, UNKNOWN, "int may not become unknown"),
    ],
    ids=str,
)
def test_narrowing_and_changes_of_kind_are_refused(old: Type, new: Type, problem: str):
    with pytest.raises(UsageError, match=problem.replace("(", r"\(")):
        validate_promotion(old, new, 3)


@given(primitive_types(), primitive_types(), st.sampled_from([1, 2, 3]))
def test_only_the_promotions_of_the_spec_are_allowed(old: PrimitiveType, new: PrimitiveType, version: int):
    allowed = old == new or (old, new) in ALWAYS or (version == 3 and (old, new) in SINCE_V3)
    if old.name == new.name == "decimal":
        allowed = old.scale == new.scale and old.precision <= new.precision
    try:
        validate_promotion(old, new, version)
    except UsageError:
        assert not allowed
    else:
        assert allowed


@given(st.sampled_from([(INT, LONG), (DATE, TIMESTAMP), (DATE, TIMESTAMP_NS)]), st.integers(-100_000, 100_000))
def test_a_transform_keeps_its_values_where_the_spec_lets_its_column_be_promoted(types, value: int):
    old, new = types
    for text in ("year", "month", "day", "bucket[16]", "bucket[7]", "truncate[10]", "void"):
        transform = parse_transform(text)
        if transform.accepts(old) and keeps_partition_values(transform, old, new):
            assert transform.apply(new, promote_value(old, new, value)) == transform.apply(old, value)


@pytest.mark.parametrize("transform", [Bucket(16), Identity(), UnknownTransform("zorder")], ids=str)
def test_a_date_with_a_transform_that_would_make_other_values_is_not_promoted(transform: Transform):
    assert not keeps_partition_values(transform, DATE, TIMESTAMP)
    assert keeps_partition_values(transform, DATE, DATE)


def test_numbers_and_calendar_units_are_not_affected():
    assert all(
        keeps_partition_values(t, INT, LONG) for t in (Bucket(4), Truncate(3), Identity(), UnknownTransform("z"))
    )
    assert all(keeps_partition_values(t, DATE, TIMESTAMP_NS) for t in (Year(), Month(), Day(), Void()))
    assert not keeps_partition_values(Hour(), DATE, TIMESTAMP)


@for_each(
    ("old", "new", "stored", "promoted"),
    [
        (INT, LONG, 5, 5),
        (FLOAT, DOUBLE, 1.1, 1.100000023841858),
        (decimal(9, 2), decimal(12, 2), "1.50", "1.50"),
        (DATE, TIMESTAMP, "1969-12-31", "1969-12-31T00:00:00"),
        (DATE, TIMESTAMP_NS, "2024-01-31", "2024-01-31T00:00:00"),
        (UNKNOWN, INT, None, None),
        (STRUCT, StructType(()), {}, {}),
    ],
    ids=str,
)
def test_a_stored_default_stays_the_same_value(old: Type, new: Type, stored: Any, promoted: Any):
    assert promote_default(old, new, stored) == promoted


def test_values_in_lists_maps_and_structs_are_promoted_and_those_of_dropped_fields_left_out():
    def row(type_: Type, *more: NestedField) -> StructType:
        return StructType((NestedField(field_id=1, name="x", type=type_), *more))

    dropped, added = (NestedField(field_id=i, name=f"f{i}", type=STRING) for i in (2, 3))
    old = ListType(element_id=9, element=row(FLOAT, dropped))
    new = ListType(element_id=9, element=row(DOUBLE, added))
    assert promote_default(old, new, [{"1": 1.1, "2": "gone"}, None]) == [{"1": 1.100000023841858}, None]
    old_map = MapType(key_id=1, key=STRING, value_id=2, value=DATE)
    new_map = MapType(key_id=1, key=STRING, value_id=2, value=TIMESTAMP)
    assert promote_value(old_map, new_map, (("k", 1), ("n", None))) == (("k", 86_400_000_000), ("n", None))


def test_a_date_that_no_timestamp_can_hold_is_an_error():
    assert promote_value(DATE, TIMESTAMP_NS, 106_751) == 106_751 * 86_400 * 10**9
    with pytest.raises(InvalidTableError, match="out of the range of timestamp_ns"):
        promote_value(DATE, TIMESTAMP_NS, 106_752)
    with pytest.raises(InvalidTableError, match="out of the range of timestamp"):
        promote_value(DATE, TIMESTAMP, -(2**31))


def test_values_of_other_kinds_cannot_be_promoted():
    with pytest.raises(IcekeepBug):
        promote_value(INT, STRUCT, 1)


@given(st.data(), decimal_types())
def test_a_decimal_keeps_its_value(data: st.DataObject, old):
    value = data.draw(values_of(old))
    assert promote_value(old, decimal(38, old.scale), value) == value
