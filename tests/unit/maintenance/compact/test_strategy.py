"""What `strategy` and `sort_order` ask for: Iceberg's rules (TestRewriteDataFilesProcedure), and Hilbert's curve of 1.12."""

import msgspec
import pytest

from icekeep.errors import NotFoundError, OptionError, UnsupportedError, UsageError
from icekeep.formats.sort.encode import Curve, Ordering
from icekeep.maintenance.compact.options import RewriteDataFilesOptions
from icekeep.maintenance.compact.order import Strategy, chosen_strategy
from icekeep.maintenance.options import parse_options
from icekeep.spec.metadata import TableMetadata, new_table_metadata
from icekeep.spec.partitioning import build_spec
from icekeep.spec.schema import Schema
from icekeep.spec.sorting import NullOrder, SortDirection, SortField, SortKey, build_sort_order
from icekeep.spec.transforms import Bucket, Identity, UnknownTransform
from icekeep.spec.types import LONG, STRING, ListType, NestedField, StructType
from kit.cases import for_each

SCHEMA = Schema(
    fields=(
        NestedField(field_id=1, name="id", type=LONG),
        NestedField(field_id=2, name="name", type=STRING),
        NestedField(field_id=3, name="kind", type=STRING),
        NestedField(field_id=4, name="place", type=StructType((NestedField(field_id=5, name="x", type=LONG),))),
        NestedField(field_id=6, name="tags", type=ListType(element_id=7, element=STRING)),
    )
)


def table(*keys: SortKey | str, partition_by=()) -> TableMetadata:
    return new_table_metadata(
        schema=SCHEMA,
        spec=build_spec(SCHEMA, [(name, "identity", None) for name in partition_by]),
        location="file:///t",
        table_uuid="00000000-0000-0000-0000-000000000001",
        now_ms=1,
        sort_order=build_sort_order(SCHEMA, keys),
    )


def chosen(metadata: TableMetadata, strategy=None, sort_order=None, **options) -> Strategy:
    given = {name.replace("_", "-"): str(value) for name, value in options.items()}
    return chosen_strategy(strategy, sort_order, metadata, parse_options(RewriteDataFilesOptions, given))


def by(source_id: int, transform=None, direction="asc", nulls="nulls-first") -> SortField:
    return SortField(
        source_id=source_id,
        transform=transform or Identity(),
        direction=SortDirection(direction),
        null_order=NullOrder(nulls),
    )


@pytest.mark.parametrize("strategy", [None, "binpack", "BinPack"])
def test_without_a_sort_order_files_are_only_packed(strategy):
    assert chosen(table("id"), strategy) == Strategy(text="binpack")


def test_a_sort_takes_the_tables_order_and_its_id():
    found = chosen(table(SortKey("id", direction="desc"), "name"), "sort")
    assert found.ordering == Ordering(fields=(by(1, direction="desc", nulls="nulls-last"), by(2)))
    assert found.sort_order_id == 1
    assert found.text == "sort by id DESC NULLS LAST, name ASC NULLS FIRST"
    assert not found.warnings


def test_a_table_without_an_order_is_not_sorted_by_nothing():
    with pytest.raises(UsageError, match="has no sort order"):
        chosen(table(), "sort")


@pytest.mark.parametrize("strategy", [None, "sort", "SORT"])
def test_a_sort_order_alone_means_a_sort(strategy):
    found = chosen(table(), strategy, "bucket(4, name), id desc")
    assert found.ordering == Ordering(fields=(by(2, Bucket(4)), by(1, direction="desc", nulls="nulls-last")))
    assert found.sort_order_id == 0
    assert "not one of the table's sort orders" in found.warnings[0]


def test_an_order_that_the_table_has_has_its_id():
    metadata = table("id")
    other = build_sort_order(SCHEMA, [SortKey("name", direction="desc", null_order="nulls-first")], order_id=7)
    metadata = msgspec.structs.replace(metadata, sort_orders=(*metadata.sort_orders, other))
    assert chosen(metadata, sort_order="name DESC NULLS FIRST").sort_order_id == 7
    assert chosen(metadata, sort_order="name DESC NULLS FIRST").warnings == ()
    assert chosen(metadata, sort_order="name DESC").sort_order_id == 0
    assert chosen(metadata, sort_order="id").sort_order_id == 1
    assert chosen(metadata, sort_order="id, name").sort_order_id == 0


@pytest.mark.parametrize("kind", ["zorder", "hilbert"])
def test_a_curve_goes_through_its_columns(kind):
    found = chosen(table("id"), "sort", f"{kind}(id, name, place.x)")
    assert found.ordering == Ordering(curve=Curve(kind=kind, column_ids=(1, 2, 5)))
    assert found.text == f"{kind}(id, name, place.x)"
    assert found.sort_order_id == 0


def test_partition_column_is_left_out_of_a_curve_and_warned():
    found = chosen(table(partition_by=["kind"]), None, "zorder(kind, id, name)")
    assert found.ordering is not None
    assert found.ordering.curve == Curve(kind="zorder", column_ids=(1, 2))
    assert found.warnings == ("zorder: column 'kind' is left out, since it has one value in each partition",)
    with pytest.raises(UsageError, match="all columns of the hilbert"):
        chosen(table(partition_by=["kind", "id"]), None, "hilbert(kind, id)")


def test_binpack_with_an_order_is_an_error():
    with pytest.raises(UsageError, match="takes no sort order"):
        chosen(table("id"), "binpack", "id")
    with pytest.raises(UsageError, match="there is no strategy 'zorder'"):
        chosen(table("id"), "zorder", "id")


@pytest.mark.parametrize("order", ["nothing", "zorder(id, nothing)", "place.y"])
def test_a_column_must_be_there(order):
    with pytest.raises(NotFoundError, match="there is no column"):
        chosen(table(), None, order)


@for_each("order", ["place", "zorder(id, place)", "hilbert(id, tags)", "tags.element", "days(id)"])
def test_a_column_must_have_one_value_that_has_an_order(order):
    with pytest.raises(UsageError, match="cannot sort by"):
        chosen(table(), None, order)


def test_table_order_with_an_unknown_transform_is_refused():
    order = msgspec.structs.replace(build_sort_order(SCHEMA, ["id"]), fields=(by(1, UnknownTransform("spiral")),))
    metadata = msgspec.structs.replace(table("id"), sort_orders=(order,))
    with pytest.raises(UnsupportedError, match="'spiral', which is not known"):
        chosen(metadata, "sort")
    assert chosen(metadata, "sort", "name").sort_order_id == 0


@for_each(
    ("order", "name", "value"),
    [
        (None, "compression-factor", 2.0),
        (None, "shuffle-partitions-per-file", 2),
        (None, "var-length-contribution", 16),
        (None, "max-output-size", 16),
        ("id", "var-length-contribution", 16),
        ("id", "max-output-size", 16),
        ("hilbert(id, name)", "var-length-contribution", 16),
        ("hilbert(id, name)", "max-output-size", 16),
    ],
)
def test_options_of_another_strategy_are_refused(order, name, value):
    with pytest.raises(OptionError, match=name):
        chosen(table(), None, order, **{name: value})


def test_options_of_the_strategy_are_taken():
    found = chosen(table(), None, "id", compression_factor="1.5", shuffle_partitions_per_file=3)
    assert (found.compression_factor, found.shuffle_partitions_per_file) == (1.5, 3)
    found = chosen(table(), None, "zorder(id, name)", var_length_contribution=16, max_output_size=24)
    assert found.ordering is not None
    assert found.ordering.curve == Curve(
        kind="zorder", column_ids=(1, 2), var_length_contribution=16, max_output_bytes=24
    )
