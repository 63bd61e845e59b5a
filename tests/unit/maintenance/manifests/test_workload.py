"""The filters of a workload as an order to sort manifests by, and what they open."""

import msgspec
import pytest

from icekeep.errors import ExpressionError, NotFoundError
from icekeep.maintenance.manifests.ranges import overlap
from icekeep.maintenance.manifests.rules import manifests_opened, sort_by_of_workload
from icekeep.spec.filters.expressions import Operation, Predicate
from icekeep.spec.manifests.structs import FieldSummary, ManifestContent, ManifestFile
from icekeep.spec.metadata import TableMetadata, new_table_metadata
from icekeep.spec.partitioning import UNPARTITIONED, PartitionField, PartitionSpec, build_spec
from icekeep.spec.schema import Schema
from icekeep.spec.transforms import UnknownTransform, Void
from icekeep.spec.types import DATE, DOUBLE, LONG, STRING, TIMESTAMP, VARIANT, NestedField, StructType
from icekeep.spec.values import value_to_bytes
from kit.cases import for_each

SCHEMA = Schema(
    fields=(
        NestedField(field_id=1, name="id", type=LONG, required=True),
        NestedField(field_id=2, name="kind", type=STRING),
        NestedField(field_id=3, name="score", type=DOUBLE),
        NestedField(field_id=4, name="ts", type=TIMESTAMP),
        NestedField(field_id=5, name="place", type=StructType((NestedField(field_id=6, name="town", type=STRING),))),
        NestedField(field_id=7, name="day", type=DATE),
        NestedField(field_id=8, name="anything", type=VARIANT),
    )
)
SPEC = build_spec(
    SCHEMA,
    [("ts", "day", None), ("id", "bucket[16]", None), ("kind", "identity", None), ("ts", "bucket[4]", "ts_bucket")],
)
ALL = tuple(field.name for field in SPEC.fields)


def first_of(*filters: object, spec: PartitionSpec = UNPARTITIONED) -> tuple[str, ...]:
    return sort_by_of_workload(filters, SCHEMA, spec)  # type: ignore[arg-type]


# The order


def test_without_filters_partition_fields_are_in_the_order_of_the_spec():
    assert ALL == ("ts_day", "id_bucket", "kind", "ts_bucket")
    assert first_of(spec=SPEC) == ALL


def test_columns_that_are_filtered_most_come_first():
    assert first_of("score > 1", "id = 3 AND score < 5", "id = 4", "id = 5", "kind = 'a'") == ("id", "score", "kind")


def test_of_as_many_the_one_that_appears_first_comes_first():
    assert first_of("score > 1 AND kind = 'a'", "id = 3") == ("score", "kind", "id")
    assert first_of("kind = 'a' AND score > 1", "id = 3") == ("kind", "score", "id")


def test_a_column_counts_once_for_a_filter():
    assert first_of("id > 3 AND id < 9 AND id != 5", "kind = 'a'", "kind = 'b'") == ("kind", "id")


@for_each(
    "where",
    [
        "kind = 'a'",
        "kind < 'a'",
        "kind >= 'a'",
        "kind IN ('a', 'b')",
        "kind BETWEEN 'a' AND 'b'",
        "kind IS NULL",
        "kind LIKE 'a%'",
        "NOT kind > 'a'",
        "NOT (kind != 'a' OR kind IS NOT NULL)",
        "kind = 'a' OR kind LIKE 'b%'",
        "kind = 'a' AND score = 1 OR kind = 'b'",
    ],
)
def test_a_filter_bounds_a_column(where: str):
    assert "kind" in first_of(where)


@for_each(
    "where",
    [
        "kind != 'a'",
        "kind NOT IN ('a', 'b')",
        "kind IS NOT NULL",
        "kind NOT LIKE 'a%'",
        "NOT kind = 'a'",
        "kind = 'a' OR score = 1",
        "kind = 'a' OR kind != 'b'",
        "true",
        "false",
        "id IS NULL",
        "score IS NOT NAN",
        "anything IS NULL",
        "place IS NULL",
    ],
)
def test_a_filter_bounds_no_column(where: str):
    assert first_of(where) == ()


def test_a_column_in_a_struct_has_its_full_name():
    assert first_of("place.town = 'a'") == ("place.town",)


def test_a_column_becomes_the_partition_fields_that_help_to_filter_it():
    assert first_of("kind = 'a'", spec=SPEC) == ("kind", "ts_day", "id_bucket", "ts_bucket")
    assert first_of("id = 5", spec=SPEC) == ("id_bucket", "ts_day", "kind", "ts_bucket")


def test_of_several_partition_fields_of_a_column_all_that_help_are_taken_in_the_order_of_the_spec():
    moment = "TIMESTAMP '2026-01-01T00:00:00'"
    assert first_of(f"ts = {moment}", spec=SPEC) == ("ts_day", "ts_bucket", "id_bucket", "kind")
    # A range says nothing of hashes.
    assert first_of(f"ts > {moment}", "kind = 'a'", spec=SPEC) == ("ts_day", "kind", "id_bucket", "ts_bucket")


def test_a_column_whose_partition_fields_do_not_help_stays_a_column():
    assert first_of("id > 5", spec=SPEC) == ("id", *ALL)


def test_a_column_that_is_not_partitioned_by_comes_before_the_partition_fields_that_are_left():
    assert first_of("score > 5", "score > 5", "kind = 'a'", spec=SPEC) == (
        "score",
        "kind",
        "ts_day",
        "id_bucket",
        "ts_bucket",
    )


def test_a_partition_field_without_values_is_left_out():
    void = PartitionField(source_id=2, field_id=1000, name="kind_null", transform=Void())
    unknown = PartitionField(source_id=2, field_id=1001, name="kind_hash", transform=UnknownTransform("hash"))
    spec = PartitionSpec(spec_id=1, fields=(void, unknown))
    assert first_of("kind = 'a'", spec=spec) == ("kind", "kind_hash")


def test_a_filter_may_be_relative_to_now():
    assert first_of("ts > now - 7d AND day >= today - 7") == ("ts", "day")


def test_a_filter_may_be_an_expression():
    assert first_of(Predicate(Operation.EQ, "kind", ("a",))) == ("kind",)


def test_a_filter_that_does_not_fit_the_table_is_refused():
    with pytest.raises(NotFoundError, match="there is no column 'sort'"):
        first_of("sort = 1")
    with pytest.raises(NotFoundError, match="it is a partition field"):
        first_of("ts_day = DATE '2026-01-01'", spec=SPEC)
    with pytest.raises(ExpressionError):
        first_of("kind =")


# What is opened

DAY_MS = 86_400_000
BY_KIND = build_spec(SCHEMA, [("kind", "identity", None)])
BY_DAY = build_spec(SCHEMA, [("day", "identity", None)], spec_id=1, first_field_id=1001)


def metadata() -> TableMetadata:
    made = new_table_metadata(
        schema=SCHEMA, spec=BY_KIND, location="file:/t", table_uuid="u", now_ms=0, format_version=3
    )
    return msgspec.structs.replace(made, partition_specs=(BY_KIND, BY_DAY))


def of_kinds(lower: str, upper: str, **changes: object) -> ManifestFile:
    bounds = [value_to_bytes(STRING, bound) for bound in (lower, upper)]
    return _manifest(0, FieldSummary(contains_null=False, lower_bound=bounds[0], upper_bound=bounds[1]), **changes)


def of_day(day: int) -> ManifestFile:
    bound = value_to_bytes(DATE, day)
    return _manifest(1, FieldSummary(contains_null=False, lower_bound=bound, upper_bound=bound))


def _manifest(spec_id: int, summary: FieldSummary, **changes: object) -> ManifestFile:
    row = {
        "manifest_path": "m",
        "manifest_length": 1,
        "partition_spec_id": spec_id,
        "added_snapshot_id": 1,
        "added_files_count": 1,
        "existing_files_count": 0,
        "partitions": (summary,),
    }
    return ManifestFile(**{**row, **changes})  # type: ignore[arg-type]


KINDS = [of_kinds("a", "c"), of_kinds("b", "d"), of_kinds("e", "e")]


def test_each_filter_opens_the_manifests_of_every_spec_that_may_match():
    found = manifests_opened(
        ["kind = 'c'", "kind > 'd'", "day = DATE '1970-01-04'", "true", "score = 1"],
        [*KINDS, of_day(2), of_day(3)],
        metadata(),
        0,
    )
    assert found == [2 + 2, 1 + 2, 3 + 1, 5, 5]


def test_now_is_the_moment_that_is_given():
    days = [of_day(day) for day in range(10)]
    assert manifests_opened(["day >= today - 2"], days, metadata(), 9 * DAY_MS) == [3]


def test_delete_manifests_and_those_without_live_files_do_not_count():
    others = [of_kinds("a", "z", content=ManifestContent.DELETES), of_kinds("a", "z", added_files_count=0)]
    assert manifests_opened(["kind = 'e'"], [*KINDS, *others], metadata(), 0) == [1]


def test_a_scan_of_one_partition_opens_what_overlap_counts():
    kinds = ["a", "b", "c", "d", "e", "f"]
    opened = manifests_opened([f"kind = '{kind}'" for kind in kinds], KINDS, metadata(), 0)
    counted = [overlap(KINDS, [(kind,)], metadata().partition_type(0).fields).max_manifests for kind in kinds]
    assert opened == counted == [1, 2, 2, 1, 1, 0]
