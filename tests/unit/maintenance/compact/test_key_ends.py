"""What bounds, nulls and NaNs of a file say of its place in an order."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icekeep.formats.sort.encode import Curve, Ordering
from icekeep.maintenance.compact.options import RewriteDataFilesOptions
from icekeep.maintenance.compact.order import (
    ColumnFacts,
    Ends,
    KeyColumn,
    KeySpace,
    chosen_strategy,
    ends_of,
    key_space,
)
from icekeep.spec.metadata import TableMetadata, new_table_metadata
from icekeep.spec.partitioning import UNPARTITIONED
from icekeep.spec.schema import Schema
from icekeep.spec.transforms import Day, Truncate
from icekeep.spec.types import BINARY, DATE, DOUBLE, LONG, STRING, TIMESTAMP, NestedField, PrimitiveType
from icekeep.spec.values import lower_bound, upper_bound, value_to_bytes
from kit.cases import for_each

SCHEMA = Schema(
    fields=(
        NestedField(field_id=1, name="id", type=LONG),
        NestedField(field_id=2, name="name", type=STRING),
        NestedField(field_id=3, name="at", type=TIMESTAMP),
        NestedField(field_id=4, name="size", type=DOUBLE),
    )
)
WHOLE: Ends = ((b"", b"\xff"), (b"\xff",))


def metadata(**properties: str) -> TableMetadata:
    return new_table_metadata(
        schema=SCHEMA,
        spec=UNPARTITIONED,
        location="file:///t",
        table_uuid="00000000-0000-0000-0000-000000000001",
        now_ms=1,
        properties={f"write.metadata.metrics.column.{name}": mode for name, mode in properties.items()},
    )


def space_of(order: str, **properties: str) -> KeySpace | None:
    table = metadata(**properties)
    ordering = chosen_strategy("sort", order, table, RewriteDataFilesOptions()).ordering
    assert ordering is not None
    return key_space(ordering, table)


def column(type_: PrimitiveType, **more) -> KeySpace:
    return KeySpace(columns=(KeyColumn(field_id=1, type=type_, **more),), is_curve=False)


def facts(type_: PrimitiveType, low, high, nulls: int | None = 0, nans: int | None = None) -> ColumnFacts:
    return ColumnFacts(lower_bound(type_, low, 16), upper_bound(type_, high, 16), nulls, nans)


def ends(type_: PrimitiveType, low, high, nulls: int | None = 0, nans: int | None = None, **more) -> Ends:
    return ends_of(column(type_, **more), [facts(type_, low, high, nulls, nans)], 10)


def overlap(one: Ends, other: Ends) -> bool:
    return one[0] < other[1] and other[0] < one[1]


@for_each(
    ("type_", "first", "second"),
    [
        (LONG, (-5, 3), (3, 9)),
        (DATE, (-5, 3), (3, 9)),
        (DOUBLE, (-math.inf, -0.5), (-0.5, math.inf)),
        (STRING, ("a", "ab"), ("ab", "b")),
        (BINARY, (b"\x00", b"\x00\x01"), (b"\x00\x01", b"\xff")),
    ],
)
def test_neighbours_share_an_end_and_do_not_overlap(type_, first, second):
    assert not overlap(ends(type_, *first), ends(type_, *second))
    assert ends(type_, *first) < ends(type_, *second)
    assert overlap(ends(type_, *first), ends(type_, first[0], second[1]))
    assert ends(type_, *second, is_descending=True) < ends(type_, *first, is_descending=True)
    down = [ends(type_, low, high, is_descending=True) for low, high in (first, second)]
    assert not overlap(*down)
    assert overlap(down[0], ends(type_, first[0], second[1], is_descending=True))


def test_what_is_not_known_is_everywhere():
    assert ends_of(column(LONG), [ColumnFacts(None, None)], 10) == WHOLE
    assert ends_of(column(LONG), [ColumnFacts(b"\x01", b"\x02")], 10) == WHOLE
    assert overlap(WHOLE, ends(LONG, 1, 5))
    assert overlap(WHOLE, WHOLE)


@given(st.sampled_from([LONG, DOUBLE, STRING, BINARY]), st.binary(max_size=8), st.binary(max_size=8), st.booleans())
def test_whatever_bounds_say_no_file_ends_before_it_begins(type_, low, high, is_descending):
    of_file = column(type_, is_descending=is_descending, bounds_length=16)
    lower, upper = ends_of(of_file, [ColumnFacts(low, high, 1, 1)], 10)
    assert lower <= upper


@for_each(("type_", "low", "high"), [(LONG, 9, 1), (DOUBLE, 2.0, -2.0), (STRING, "b", "a"), (DOUBLE, math.nan, 1.0)])
def test_bounds_that_are_crossed_or_nan_tell_nothing(type_, low, high):
    found = ends_of(column(type_), [ColumnFacts(value_to_bytes(type_, low), value_to_bytes(type_, high))], 10)
    assert found == WHOLE


@pytest.mark.parametrize("is_descending", [True, False])
def test_nulls_reach_to_where_they_come(is_descending):
    first = {"is_descending": is_descending, "nulls_come_first": True}
    last = {"is_descending": is_descending, "nulls_come_first": False}
    some, none = ends(LONG, 5, 9, nulls=2, **first), ends(LONG, 1, 3, **first)
    assert overlap(some, none) == (not is_descending)
    some, none = ends(LONG, 5, 9, nulls=2, **last), ends(LONG, 1, 3, **last)
    assert overlap(some, none) == is_descending
    for order in (first, last):
        only = ends_of(column(LONG, **order), [ColumnFacts(None, None, 10)], 10)
        assert only[0] == only[1]
        assert overlap(only, WHOLE)
        assert not overlap(only, ends(LONG, 1, 3, nulls=1, **order))
        assert (only < ends(LONG, 1, 3, **order)) == order["nulls_come_first"]


def test_nans_come_after_all_numbers():
    with_nan, above = ends(DOUBLE, 1.0, 2.0, nans=1), ends(DOUBLE, 3.0, math.inf)
    assert overlap(with_nan, above)
    assert not overlap(ends(DOUBLE, 1.0, 2.0), above)
    assert overlap(ends(DOUBLE, 1.0, 2.0, nans=1, is_descending=True), ends(DOUBLE, 3.0, 4.0, is_descending=True))
    only = ends_of(column(DOUBLE), [ColumnFacts(None, None, 0, 10)], 10)
    assert only[0] == only[1] > above[0]


@given(st.text("ab/\ud7ff\ue000\U0010ffff", min_size=17, max_size=20), st.text("ab", max_size=4))
def test_texts_that_begin_alike_are_at_one_place(text, more):
    low, high = sorted((text, text[:17] + more))
    found = ends(STRING, low, high, bounds_length=16)
    if upper_bound(STRING, high, 16) is not None and len(upper_bound(STRING, high, 16).decode()) == 16:
        assert found[0] == found[1]


def test_bounds_that_were_not_cut_are_taken_as_they_are():
    assert ends(STRING, "a", "b", bounds_length=16) == ends(STRING, "a", "b")
    one = ends(STRING, "x" * 15 + "a", "x" * 15 + "c", bounds_length=16)
    assert one[0] < one[1]
    # An upper bound of the full length may have been raised: it is never below the lower one for that.
    same = ends(STRING, "x" * 16, "x" * 16, bounds_length=16)
    assert same[0] == same[1]


def test_the_second_column_counts_where_the_first_has_one_value():
    space = KeySpace(columns=(KeyColumn(field_id=1, type=LONG), KeyColumn(field_id=2, type=STRING)), is_curve=False)

    def both(first, second) -> Ends:
        return ends_of(space, [facts(LONG, *first), facts(STRING, *second)], 10)

    assert not overlap(both((7, 7), ("a", "c")), both((7, 7), ("c", "e")))
    assert overlap(both((7, 7), ("a", "d")), both((7, 7), ("c", "e")))
    # They share the value 7 and nothing else, as neighbours do.
    assert not overlap(both((3, 7), ("a", "z")), both((7, 7), ("a", "z")))
    assert not overlap(both((7, 7), ("a", "z")), both((7, 9), ("a", "z")))
    assert both((3, 7), ("a", "z")) < both((7, 7), ("a", "z")) < both((7, 9), ("a", "z"))
    assert overlap(both((3, 9), ("a", "z")), both((7, 7), ("a", "a")))


def test_order_preserving_transform_applies_to_bounds():
    hour = 3600 * 10**6
    days = {"transform": Day()}
    assert ends(TIMESTAMP, 0, 23 * hour, **days)[0] == ends(TIMESTAMP, 0, 23 * hour, **days)[1]
    assert ends(TIMESTAMP, 0, 25 * hour, **days)[0] < ends(TIMESTAMP, 0, 25 * hour, **days)[1]
    short = {"transform": Truncate(2), "bounds_length": 16}
    assert ends(STRING, "aba", "abz", **short)[0] == ends(STRING, "aba", "abz", **short)[1]


@for_each(
    ("order", "ids"),
    [
        ("id, name", (1, 2)),
        ("days(at), id", (3, 1)),
        ("id, bucket(4, name), at", (1,)),
        ("zorder(id, name, size)", (1, 2, 4)),
    ],
)
def test_a_space_has_the_columns_whose_bounds_tell_something(order, ids):
    space = space_of(order)
    assert space is not None
    assert tuple(column.field_id for column in space.columns) == ids


def test_columns_without_bounds_tell_nothing():
    assert space_of("bucket(4, id), name") is None
    assert space_of("id, name", id="counts") is None
    assert space_of("zorder(id, name)", id="none", name="counts") is None
    partly = space_of("zorder(id, name)", id="none")
    assert partly is not None
    assert [column.field_id for column in partly.columns] == [2]
    gone = Ordering(curve=Curve(kind="hilbert", column_ids=(1,)))
    assert key_space(gone, metadata(id="none")) is None


def test_on_a_curve_texts_count_as_far_as_the_curve_looks():
    space = space_of("hilbert(name, id)")
    assert space is not None
    assert space.is_curve
    alike = facts(STRING, "https://a", "https://z")
    lower, upper = ends_of(space, [alike, facts(LONG, 1, 5)], 10)
    assert lower[0] == upper[0]
    assert lower[1] < upper[1]
    longer = chosen_strategy(
        None, "zorder(name, id)", metadata(), RewriteDataFilesOptions(var_length_contribution=12)
    ).ordering
    assert longer is not None
    further = key_space(longer, metadata())
    assert further is not None
    lower, upper = ends_of(further, [alike, facts(LONG, 1, 5)], 10)
    assert lower[0] < upper[0]


def test_max_output_size_of_a_curve_ignores_the_last_bytes():
    options = RewriteDataFilesOptions(max_output_size=14)
    ordering = chosen_strategy(None, "zorder(id, at)", metadata(), options).ordering
    assert ordering is not None
    space = key_space(ordering, metadata())
    assert space is not None
    lower, upper = ends_of(space, [facts(LONG, 0, 255), facts(TIMESTAMP, 0, 256)], 10)
    assert lower[0] == upper[0]
    assert lower[1] < upper[1]
