import pytest

from icekeep.errors import UsageError
from icekeep.spec.properties import COUNTS, DEFAULT, FULL, NONE, MetricsMode, metrics_modes
from icekeep.spec.sorting import SortField, SortOrder
from icekeep.spec.transforms import Bucket, Day, Identity, Truncate, Void
from icekeep.spec.types import DATE, INT, STRING, ListType, MapType, StructType
from kit.cases import for_each
from kit.columns import column, schema_of

SCHEMA = schema_of(
    column(1, "a", INT),
    column(2, "s", StructType((column(3, "b", STRING),))),
    column(4, "l", ListType(element_id=5, element=INT)),
    column(6, "m", MapType(key_id=7, key=STRING, value_id=8, value=INT)),
)
KEY = "write.metadata.metrics."


def wide(count):
    return schema_of(*(column(i, f"c{i}", INT) for i in range(1, count + 1)))


def kept(modes):
    return {field_id for field_id, mode in modes.items() if mode != NONE}


def test_without_properties_every_primitive_field_is_truncated_to_16():
    assert metrics_modes({}, SCHEMA) == dict.fromkeys((1, 3, 5, 7, 8), DEFAULT)
    assert MetricsMode(counts=True, bounds=True, length=16) == DEFAULT


MODES = [
    ("none", NONE),
    ("counts", COUNTS),
    ("full", FULL),
    ("truncate(1)", MetricsMode(counts=True, bounds=True, length=1)),
    ("TRUNCATE(100)", MetricsMode(counts=True, bounds=True, length=100)),
    ("Full", FULL),
]


@for_each(("text", "mode"), MODES)
def test_a_mode_is_the_default_of_all_or_that_of_one_column(text, mode):
    assert metrics_modes({KEY + "default": text}, SCHEMA) == dict.fromkeys((1, 3, 5, 7, 8), mode)
    one = metrics_modes({KEY + "column.s.b": text}, SCHEMA)
    assert one == {1: DEFAULT, 3: mode, 5: DEFAULT, 7: DEFAULT, 8: DEFAULT}


@for_each("text", ["", "some", "truncate", "truncate(0)", "truncate(-1)", "truncate(x)", "truncate(1"])
@for_each("key", ["default", "column.a", "column.not there"])
def test_a_mode_that_cannot_be_is_an_error_that_names_the_property(key, text):
    with pytest.raises(UsageError, match=f"table property '{KEY}{key}' is "):
        metrics_modes({KEY + key: text}, SCHEMA)


def test_a_column_that_is_not_there_is_passed_over():
    assert metrics_modes({KEY + "column.gone": "full"}, SCHEMA) == metrics_modes({}, SCHEMA)


def test_of_a_wide_schema_the_first_100_columns_get_metrics():
    assert kept(metrics_modes({}, wide(100))) == set(range(1, 101))
    assert kept(metrics_modes({}, wide(101))) == set(range(1, 101))
    assert metrics_modes({}, wide(101))[1] == DEFAULT


def test_the_limit_is_a_property():
    limit = KEY + "max-inferred-column-defaults"
    assert kept(metrics_modes({limit: "2"}, wide(3))) == {1, 2}
    assert kept(metrics_modes({limit: "0"}, wide(3))) == set()
    for text in ("many", ""):
        with pytest.raises(UsageError, match=f"table property '{limit}'"):
            metrics_modes({limit: text}, wide(3))


def test_a_default_that_is_set_has_no_limit():
    assert kept(metrics_modes({KEY + "default": "counts"}, wide(150))) == set(range(1, 151))


def test_a_column_of_its_own_mode_has_it_beyond_the_limit():
    modes = metrics_modes({KEY + "column.c120": "full", KEY + "column.c1": "none"}, wide(150))
    assert kept(modes) == {*range(2, 101), 120}
    assert modes[120] == FULL


def test_the_fields_of_a_struct_come_before_those_below_them():
    inner = StructType((column(50, "deep", StructType((column(51, "x", INT),))), column(52, "y", INT)))
    schema = schema_of(
        column(1, "s", inner),
        column(2, "l", ListType(element_id=53, element=INT)),
        column(3, "m", MapType(key_id=54, key=INT, value_id=55, value=INT)),
        column(4, "a", INT),
    )
    limit = KEY + "max-inferred-column-defaults"
    in_order = [4, 52, 51, 53, 54, 55]
    for count in range(len(in_order)):
        assert kept(metrics_modes({limit: str(count)}, schema)) == set(in_order[:count])


def test_structs_count_for_the_limit_though_they_have_no_metrics_themselves():
    schema = schema_of(column(1, "s", StructType((column(2, "x", INT), column(3, "y", INT)))))
    limit = KEY + "max-inferred-column-defaults"
    assert kept(metrics_modes({limit: "2"}, schema)) == {2, 3}
    schema = schema_of(*schema.fields, column(4, "a", INT))
    assert kept(metrics_modes({limit: "3"}, schema)) == {2, 3, 4}
    assert kept(metrics_modes({limit: "2"}, schema)) == {4, 2}


def test_columns_that_the_table_is_sorted_by_keep_bounds():
    schema = schema_of(*(column(i, f"c{i}", DATE) for i in range(1, 7)))
    transforms = [Identity(), Truncate(4), Day(), Bucket(4), Void()]
    order = SortOrder(
        order_id=1, fields=tuple(SortField(source_id=i, transform=t) for i, t in enumerate(transforms, start=1))
    )
    for default in ("none", "counts"):
        modes = metrics_modes({KEY + "default": default}, schema, order)
        assert {i for i, mode in modes.items() if mode == DEFAULT} == {1, 2, 3}
    assert metrics_modes({KEY + "default": "full"}, schema, order)[1] == FULL
    assert metrics_modes({KEY + "default": "none", KEY + "column.c1": "counts"}, schema, order)[1] == COUNTS
