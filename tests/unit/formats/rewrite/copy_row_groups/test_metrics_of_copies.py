import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icekeep.formats.rewrite.copy_row_groups import stitched_metrics
from icekeep.spec.manifests.structs import DataFile
from icekeep.spec.properties import metrics_modes
from icekeep.spec.types import BINARY, DOUBLE, INT, LONG, STRING, VARIANT, ListType
from icekeep.spec.values import value_from_bytes, value_to_bytes
from kit.cases import cases
from kit.columns import EVERY_TYPE, column, rows, schema_of, table_of
from kit.stitched import put_table, with_metrics
from kit.storage import MemoryStorage

SCHEMA = schema_of(
    column(1, "n", LONG), column(2, "s", STRING), column(3, "d", DOUBLE), column(4, "b", BINARY),
    column(5, "l", ListType(element_id=6, element=INT)),
)  # fmt: skip


def entry(**facts):
    bounds = {
        name: {id_: value_to_bytes(SCHEMA.fields_by_id[id_].type, value) for id_, value in facts.pop(name).items()}
        for name in ("lower_bounds", "upper_bounds")
        if name in facts
    }
    return DataFile(
        file_path="f",
        file_format="PARQUET",
        spec_id=0,
        **{"record_count": 10, "file_size_in_bytes": 9, **facts, **bounds},
    )


def together(*files, properties=None, schema=SCHEMA):
    return stitched_metrics(files, schema, metrics_modes(properties or {}, schema), (4, 99))


def bounds(metrics, field_id):
    type_ = SCHEMA.fields_by_id[field_id].type
    return tuple(
        value_from_bytes(type_, found[field_id]) if field_id in found else None
        for found in (metrics.lower_bounds, metrics.upper_bounds)
    )


def test_counts_and_sizes_are_added_up():
    metrics = together(
        entry(column_sizes={1: 5, 6: 7}, value_counts={1: 10}, null_value_counts={1: 3}, nan_value_counts={3: 1}),
        entry(column_sizes={1: 6, 6: 8}, value_counts={1: 10}, null_value_counts={1: 4}, nan_value_counts={3: 0}),
    )
    assert metrics.record_count == 20
    assert metrics.column_sizes == {1: 11, 6: 15}
    assert metrics.value_counts == {1: 20}
    assert metrics.null_value_counts == {1: 7}
    assert metrics.nan_value_counts == {3: 1}
    assert metrics.split_offsets == (4, 99)


def test_a_count_that_one_file_does_not_tell_is_not_known():
    metrics = together(entry(value_counts={1: 10, 2: 10}, column_sizes={1: 5}), entry(value_counts={2: 10}))
    assert metrics.value_counts == {2: 20}
    assert metrics.column_sizes is None


def test_bounds_are_the_least_and_the_greatest_by_the_order_of_the_type():
    metrics = together(
        entry(lower_bounds={1: -1, 2: "a\uffff", 4: b"\x7f"}, upper_bounds={1: 2, 2: "a\uffff", 4: b"\x7f"}),
        entry(lower_bounds={1: 256, 2: "a\U00010000", 4: b"\x80"}, upper_bounds={1: 256, 2: "a\U00010000", 4: b"\x80"}),
    )
    assert bounds(metrics, 1) == (-1, 256)
    # By code points, not by the halves that UTF-16 has for some.
    assert bounds(metrics, 2) == ("a\uffff", "a\U00010000")
    assert bounds(metrics, 4) == (b"\x7f", b"\x80")


def test_a_bound_that_one_file_does_not_tell_is_not_known():
    metrics = together(
        entry(lower_bounds={1: 1}, upper_bounds={1: 2}), entry(lower_bounds={1: 0}, value_counts={1: 10})
    )
    assert bounds(metrics, 1) == (0, None)


def test_crossed_bounds_of_one_file_are_not_hidden_in_those_of_all():
    right = entry(lower_bounds={1: 5, 2: "m"}, upper_bounds={1: 6, 2: "n"})
    crossed = entry(lower_bounds={1: 10, 2: "a"}, upper_bounds={1: 1, 2: "z"})
    for files in ((right, crossed), (crossed, right), (crossed, entry(lower_bounds={1: 2}))):
        assert bounds(together(*files), 1) == (None, None)
    assert bounds(together(right, crossed), 2) == ("a", "z")


def test_a_file_with_nothing_but_nulls_and_nan_needs_no_bounds():
    metrics = together(
        entry(lower_bounds={1: 1, 3: 2.0}, upper_bounds={1: 2, 3: 3.0}),
        entry(value_counts={1: 10, 3: 10}, null_value_counts={1: 10, 3: 4}, nan_value_counts={3: 6}),
    )
    assert bounds(metrics, 1) == (1, 2)
    assert bounds(metrics, 3) == (2.0, 3.0)


def test_a_bound_that_is_no_value_makes_the_column_unknown():
    torn = DataFile(
        file_path="f", file_format="PARQUET", spec_id=0, record_count=1, file_size_in_bytes=1,
        lower_bounds={1: b"123", 2: b"\xff"}, upper_bounds={1: b"123", 2: b"\xff"},
    )  # fmt: skip
    whole = entry(lower_bounds={1: 1, 2: "a", 3: math.nan}, upper_bounds={1: 2, 2: "b", 3: math.nan})
    metrics = together(torn, whole)
    assert bounds(metrics, 1) == bounds(metrics, 2) == (None, None)
    assert bounds(together(whole), 3) == (None, None)


def test_bounds_of_a_type_without_order_are_left_out():
    schema = schema_of(column(1, "v", VARIANT))
    metrics = together(entry(lower_bounds={1: 1}, upper_bounds={1: 2}), schema=schema)
    assert not metrics.lower_bounds
    assert not metrics.upper_bounds


def test_both_zeros_lie_between_the_bounds_whichever_the_files_have():
    metrics = together(entry(lower_bounds={3: 0.0}, upper_bounds={3: -0.0}))
    assert math.copysign(1, bounds(metrics, 3)[0]) == -1
    assert math.copysign(1, bounds(metrics, 3)[1]) == 1


def test_what_the_table_keeps_no_more_is_dropped_and_bounds_are_cut():
    full = entry(
        column_sizes={1: 5, 2: 5, 3: 5}, value_counts={1: 10, 2: 10, 3: 10}, null_value_counts={1: 0, 2: 0, 3: 0},
        lower_bounds={1: 1, 2: "abcdef", 3: 1.0}, upper_bounds={1: 2, 2: "abcdef", 3: 2.0},
    )  # fmt: skip
    prefix = "write.metadata.metrics.column."
    metrics = together(full, properties={f"{prefix}n": "none", f"{prefix}s": "truncate(3)", f"{prefix}d": "counts"})
    assert metrics.column_sizes == metrics.value_counts | {2: 5, 3: 5}
    assert metrics.value_counts.keys() == metrics.null_value_counts.keys() == {2, 3}
    assert metrics.lower_bounds == {2: b"abc"}
    assert metrics.upper_bounds == {2: b"abd"}


@pytest.mark.slow
@cases(25)
@given(st.lists(rows(EVERY_TYPE), min_size=1, max_size=3))
def test_the_metrics_of_parts_together_are_those_of_the_whole(parts):
    storage = MemoryStorage()
    files = [put_table(storage, f"memory:/t/{n}", table_of(EVERY_TYPE, part)) for n, part in enumerate(parts)]
    whole = put_table(storage, "memory:/t/whole", table_of(EVERY_TYPE, [row for part in parts for row in part]))
    found = together(*(with_metrics(storage, file, EVERY_TYPE) for file in files), schema=EVERY_TYPE)
    expected = with_metrics(storage, whole, EVERY_TYPE)
    assert found.record_count == expected.record_count
    for name in ("value_counts", "null_value_counts", "nan_value_counts", "lower_bounds", "upper_bounds"):
        assert getattr(found, name) == getattr(expected, name)
