"""The arguments of the job, held against a table; and the filters of a workload."""

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from icekeep.errors import ExpressionError, IcekeepError, NotFoundError, OptionError, UsageError
from icekeep.maintenance.manifests.options import RewriteManifestsOptions
from icekeep.maintenance.manifests.ranges import overlap
from icekeep.maintenance.manifests.rules import (
    RewriteManifestsRequest,
    RewriteRules,
    checked_rules,
    manifests_opened,
    sort_by_of_workload,
)
from icekeep.planning.transcode import BoundPart, PartitionPart
from icekeep.spec.filters.expressions import Operation, Predicate
from icekeep.spec.manifests.structs import FieldSummary, ManifestContent, ManifestFile
from icekeep.spec.metadata import TableMetadata, new_table_metadata
from icekeep.spec.partitioning import UNPARTITIONED, PartitionField, PartitionSpec, build_spec
from icekeep.spec.schema import Schema
from icekeep.spec.transforms import UnknownTransform, Void
from icekeep.spec.types import DATE, DOUBLE, INT, LONG, STRING, TIMESTAMP, VARIANT, NestedField, StructType
from icekeep.spec.values import value_to_bytes
from kit.cases import for_each
from kit.tables import COLUMNS

DATA, DELETES = ManifestContent
BY_TWO = build_spec(COLUMNS, [("kind", "identity", None), ("id", "bucket[4]", None)])


def metadata() -> TableMetadata:
    """A table whose spec 0 is by kind and a bucket of ids, and whose later spec 3, the default, is by score."""
    made = new_table_metadata(schema=COLUMNS, spec=BY_TWO, location="memory://b/t", table_uuid="u", now_ms=0)
    later = replace(build_spec(COLUMNS, [("score", "identity", None)]), spec_id=3)
    return replace(made, partition_specs=(*made.partition_specs, later), default_spec_id=3)


def requested(**arguments: Any) -> RewriteRules:
    return checked_rules(metadata(), RewriteManifestsRequest(**arguments))


def parts(content: ManifestContent = DATA, spec_id: int = 0, **arguments: Any) -> tuple[Any, ...]:
    return requested(**{"spec_id": spec_id, **arguments}).sort_of(metadata(), spec_id, content)


KIND, BUCKET = PartitionPart(0, STRING), PartitionPart(1, INT)


# Specs.


@for_each(("spec_id", "chosen"), [(None, (3,)), (0, (0,)), ("0", (0,)), (3, (3,)), ("all", (0, 3))])
def test_a_spec_is_the_default_one_or_a_named_one_or_all(spec_id: Any, chosen: tuple[int, ...]):
    assert requested(spec_id=spec_id).spec_ids == chosen


def test_a_spec_that_the_table_lacks_is_not_found():
    with pytest.raises(NotFoundError) as caught:
        requested(spec_id=7)
    assert str(caught.value) == "the table at 'memory://b/t' has no partition spec 7; it has 0, 3"


@pytest.mark.parametrize("spec_id", ["any", "", "1.5"])
def test_a_spec_that_is_no_number_is_refused(spec_id: str):
    with pytest.raises(UsageError, match=r"give the number of a partition spec, or 'all'"):
        requested(spec_id=spec_id)


# What to cluster by.


def test_all_partition_fields_unless_told_otherwise():
    assert parts() == (KIND, BUCKET)
    assert parts(spec_id=3) == (PartitionPart(0, DOUBLE),)


@for_each("sort_by", [["id_bucket", "kind"], ("id_bucket", "kind"), "id_bucket,kind", " id_bucket , kind "])
def test_names_come_as_a_list_or_as_text_with_commas(sort_by: Any):
    assert requested(spec_id=0, sort_by=sort_by).sort_by == ("id_bucket", "kind")
    assert parts(sort_by=sort_by) == (BUCKET, KIND)


def test_sort_by_columns_applies_to_data_manifests_only():
    """Delete manifests are clustered by partition fields alone."""
    asked = {"sort_by": "score, id_bucket"}
    assert parts(**asked) == (BoundPart(3, DOUBLE), BUCKET)
    assert parts(DELETES, **asked) == (BUCKET, KIND)
    assert parts(DELETES, sort_by="id") == (KIND, BUCKET)
    assert parts(DELETES) == (KIND, BUCKET)


def test_a_workload_says_what_to_cluster_by():
    assert parts(workload=["score > 3", "kind = 'a'"])[:1] == (BoundPart(3, DOUBLE),)
    assert parts(workload=["kind = 'a'"])[0] == KIND
    assert parts(workload="score > 3 ; kind = 'a';") == parts(workload=["score > 3", "kind = 'a'"])
    assert [text.strip() for text in requested(spec_id=0, workload="score > 3 ; kind = 'a';").workload] == [
        "score > 3",
        "kind = 'a'",
    ]
    assert BoundPart(1, LONG) in parts(workload=["id = 4"]) or BUCKET in parts(workload=["id = 4"])


@for_each(
    ("arguments", "error", "message"),
    [
        ({"sort_by": []}, UsageError, "sort_by is empty"),
        ({"sort_by": ""}, UsageError, "sort_by has an empty name"),
        ({"sort_by": "kind,,id"}, UsageError, "sort_by has an empty name"),
        ({"sort_by": "kind,kind"}, UsageError, "sort_by names 'kind' twice"),
        ({"sort_by": "week"}, NotFoundError, "neither a partition field nor a column 'week'"),
        ({"sort_by": "kind", "workload": ["kind = 'a'"]}, UsageError, "sort_by and workload both say"),
        ({"workload": ["kind ="]}, ExpressionError, ""),
        ({"workload": ["week = 1"]}, NotFoundError, "week"),
        ({"spec_id": "all", "sort_by": "id_bucket"}, NotFoundError, "'id_bucket'"),
        ({"options": {"drop-dangling": "true"}}, OptionError, "drop-dangling"),
        ({"options": {"remove-dangling-deletes": "perhaps"}}, OptionError, "remove-dangling-deletes"),
        ({"options": {"measure-planning": "true"}}, OptionError, "measure-planning"),
    ],
)
def test_what_is_asked_wrongly_is_an_error_of_one_line(
    arguments: dict[str, Any], error: type[IcekeepError], message: str
):
    with pytest.raises(error) as caught:
        requested(**{"spec_id": 0, **arguments})
    text = str(caught.value)
    assert message in text
    assert "\n" not in text
    assert not text.endswith(".")


def test_an_empty_workload_is_none():
    assert (
        requested(workload="").workload == requested(workload=" ; ").workload == requested(workload=()).workload == ()
    )
    assert requested(spec_id=0, sort_by="kind", workload="").sort_by == ("kind",)


# Options.


@pytest.mark.parametrize("given", [True, "true", "TRUE"])
def test_options_come_as_text_or_as_values(given: Any):
    asked = {"remove-dangling-deletes": given}
    expected = RewriteManifestsOptions(remove_dangling_deletes=True)
    assert requested(options=asked).options == requested(options=expected).options == expected


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


def test_partition_fields_keep_spec_order_without_filters():
    assert ALL == ("ts_day", "id_bucket", "kind", "ts_bucket")
    assert first_of(spec=SPEC) == ALL


def test_columns_that_are_filtered_most_come_first():
    assert first_of("score > 1", "id = 3 AND score < 5", "id = 4", "id = 5", "kind = 'a'") == ("id", "score", "kind")


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


def test_filtered_column_puts_its_partition_fields_first():
    assert first_of("kind = 'a'", spec=SPEC) == ("kind", "ts_day", "id_bucket", "ts_bucket")
    assert first_of("id = 5", spec=SPEC) == ("id_bucket", "ts_day", "kind", "ts_bucket")


def test_several_partition_fields_of_a_column():
    moment = "TIMESTAMP '2026-01-01T00:00:00'"
    assert first_of(f"ts = {moment}", spec=SPEC) == ("ts_day", "ts_bucket", "id_bucket", "kind")
    # A range says nothing of hashes.
    assert first_of(f"ts > {moment}", "kind = 'a'", spec=SPEC) == ("ts_day", "kind", "id_bucket", "ts_bucket")


def test_column_without_useful_partition_field_is_kept():
    """A range filter on a bucketed column clusters by the column itself."""
    assert first_of("id > 5", spec=SPEC) == ("id", *ALL)


def test_unpartitioned_columns_before_the_fields_left():
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


def by_kind_and_by_day() -> TableMetadata:
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


def test_filter_opens_matching_manifests_of_every_spec():
    found = manifests_opened(
        ["kind = 'c'", "kind > 'd'", "day = DATE '1970-01-04'", "true", "score = 1"],
        [*KINDS, of_day(2), of_day(3)],
        by_kind_and_by_day(),
        0,
    )
    assert found == [2 + 2, 1 + 2, 3 + 1, 5, 5]


def test_now_is_the_moment_that_is_given():
    days = [of_day(day) for day in range(10)]
    assert manifests_opened(["day >= today - 2"], days, by_kind_and_by_day(), 9 * DAY_MS) == [3]


def test_delete_and_empty_manifests_do_not_count():
    others = [of_kinds("a", "z", content=ManifestContent.DELETES), of_kinds("a", "z", added_files_count=0)]
    assert manifests_opened(["kind = 'e'"], [*KINDS, *others], by_kind_and_by_day(), 0) == [1]


def test_a_scan_of_one_partition_opens_what_overlap_counts():
    kinds = ["a", "b", "c", "d", "e", "f"]
    opened = manifests_opened([f"kind = '{kind}'" for kind in kinds], KINDS, by_kind_and_by_day(), 0)
    counted = [overlap(KINDS, [(kind,)], by_kind_and_by_day().partition_type(0).fields).max_manifests for kind in kinds]
    assert opened == counted == [1, 2, 2, 1, 1, 0]
