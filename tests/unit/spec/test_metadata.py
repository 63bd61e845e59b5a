from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

import icekeep.spec.metadata
import icekeep.spec.sorting
from icekeep.errors import InvalidTableError, NotFoundError
from icekeep.spec.metadata import (
    TableMetadata,
    new_table_metadata,
    newest_ancestor_before,
    validate_metadata,
)
from icekeep.spec.partitioning import UNPARTITIONED, PartitionField, PartitionSpec
from icekeep.spec.schema import Schema
from icekeep.spec.snapshots import Snapshot, SnapshotLogEntry, SnapshotRef
from icekeep.spec.sorting import SortField, SortOrder
from icekeep.spec.transforms import Bucket, Day, Identity, UnknownTransform, Void
from icekeep.spec.types import INT, LONG, STRING, TIMESTAMP, NestedField
from kit.cases import for_each
from kit.examples import check_examples
from kit.metadata import LOCATION, SCHEMA, START_MS, MetadataBuilder
from kit.tables import COLUMNS


def column(field_id: int, type_: Any = LONG) -> NestedField:
    return NestedField(field_id=field_id, name=f"c{field_id}", type=type_)


def schema(schema_id: int, *columns: NestedField) -> Schema:
    return Schema(fields=columns, schema_id=schema_id)


def spec(spec_id: int, *fields: tuple[int, Any]) -> PartitionSpec:
    return PartitionSpec(
        spec_id=spec_id,
        fields=tuple(
            PartitionField(source_id=source, field_id=1000 + i, name=f"p{i}", transform=transform)
            for i, (source, transform) in enumerate(fields)
        ),
    )


def changed(**changes: Any) -> TableMetadata:
    return msgspec.structs.replace(MetadataBuilder().commits(3).tag("audit", at=1).build(), **changes)


def refused(metadata: TableMetadata) -> str:
    with pytest.raises(InvalidTableError) as raised:
        validate_metadata(metadata)
    return raised.value.message.removeprefix(f"table metadata of {LOCATION!r}: ")


def test_a_new_table_has_version_2_and_no_snapshot():
    order = SortOrder(order_id=1, fields=(SortField(source_id=1, transform=Identity()),))
    metadata = new_table_metadata(
        schema=msgspec.structs.replace(SCHEMA, schema_id=3),
        spec=spec(2, (1, Bucket(8)), (2, Identity())),
        location="s3://b/t/",
        table_uuid="u",
        now_ms=START_MS,
        sort_order=order,
        properties={"a": "b"},
    )
    assert (metadata.format_version, metadata.table_uuid, metadata.location) == (2, "u", "s3://b/t")
    assert (metadata.last_sequence_number, metadata.last_updated_ms) == (0, START_MS)
    assert (metadata.last_column_id, metadata.last_partition_id) == (2, 1001)
    assert (metadata.current_schema_id, metadata.default_spec_id, metadata.default_sort_order_id) == (3, 2, 1)
    assert (metadata.current_snapshot, metadata.snapshots, metadata.refs) == (None, (), {})
    assert metadata.properties == {"a": "b"}


def test_the_current_schema_and_the_default_spec_are_found_by_their_ids():
    metadata = MetadataBuilder().schema(schema(1, column(7))).spec(spec(5, (7, Identity()))).build()
    assert metadata.schema.fields[0].field_id == 7
    assert metadata.spec.spec_id == 5


def test_a_snapshot_is_found_by_its_id():
    metadata = MetadataBuilder().commits(3).build()
    assert metadata.snapshot(2).parent_snapshot_id == 1
    with pytest.raises(NotFoundError, match="has no snapshot 9; `icekeep history --table NAME --all` lists") as raised:
        metadata.snapshot(9)
    assert raised.value.facts == {"snapshot_id": 9}


def test_a_head_is_found_by_the_name_of_a_branch_or_tag():
    metadata = MetadataBuilder().commits(2).tag("audit", at=1).commits(1, branch="dev").build()
    assert [metadata.head(name).snapshot_id for name in ("main", "audit", "dev")] == [2, 1, 3]  # type: ignore[union-attr]
    assert metadata.current_snapshot is metadata.head()


def test_main_of_an_empty_table_has_no_head_and_other_names_are_not_found():
    metadata = MetadataBuilder().build()
    assert metadata.head() is None
    with pytest.raises(NotFoundError, match="no branch or tag 'dev'") as raised:
        metadata.head("dev")
    assert raised.value.facts == {"ref": "dev"}


def test_ancestors_go_from_a_snapshot_to_the_first():
    metadata = MetadataBuilder().commits(3).commits(2, branch="dev").build()
    assert [s.snapshot_id for s in metadata.ancestors(5)] == [5, 4, 3, 2, 1]
    assert [s.snapshot_id for s in metadata.ancestors(2)] == [2, 1]
    assert list(metadata.ancestors(None)) == []


def test_a_dropped_source_column_is_found_in_the_newest_schema_that_has_it():
    metadata = (
        MetadataBuilder(schema=schema(0, column(1, INT), column(2)), spec=spec(0, (1, Identity())))
        .schema(schema(2, column(1, LONG), column(2)))
        .schema(schema(3, column(2)))
        .spec(spec(1, (2, Identity())))
        .build()
    )
    assert [f.type for f in metadata.partition_type(0).fields] == [LONG]


def test_source_columns_may_be_found_in_different_schemas():
    metadata = (
        MetadataBuilder(schema=schema(0, column(1, STRING)), spec=spec(0, (1, Identity()), (9, Void()), (2, Day())))
        .schema(schema(1, column(2, TIMESTAMP)))
        .spec(spec(1))
        .build()
    )
    partition = metadata.partition_type(0)
    assert [(f.field_id, f.name, str(f.type)) for f in partition.fields] == [
        (1000, "p0", "string"),
        (1001, "p1", "string"),
        (1002, "p2", "date"),
    ]


def test_a_source_column_that_no_schema_has_is_an_error_unless_its_type_does_not_matter():
    metadata = MetadataBuilder(spec=spec(0, (9, Identity()))).spec(spec(1, (9, UnknownTransform("x")))).build()
    assert len(metadata.partition_type(1).fields) == 1
    with pytest.raises(InvalidTableError, match="source column 9"):
        metadata.partition_type(0)


def test_the_schema_of_a_manifest_has_the_source_columns_of_its_spec():
    metadata = (
        MetadataBuilder(schema=schema(0, column(1), column(2)), spec=spec(0, (2, Identity())))
        .schema(schema(1, column(1), column(2), column(3)))
        .schema(schema(2, column(1), column(3)))
        .spec(spec(1, (1, Identity())))
        .spec(spec(2, (2, Void())))
        .spec(spec(3, (2, Bucket(4)), (9, Bucket(4))))
        .build()
    )
    assert metadata.current_schema_id == 2
    assert [metadata.manifest_schema(number).schema_id for number in range(4)] == [1, 2, 2, 2]


@pytest.mark.parametrize("format_version", [1, 2, 3])
def test_metadata_that_fits_together_is_valid(format_version: int):
    metadata = MetadataBuilder(format_version).commits(3).tag("audit", at=1).branch("dev", max_ref_age_ms=1).build()
    assert validate_metadata(metadata) is metadata
    assert validate_metadata(MetadataBuilder(format_version).build())


def test_the_default_spec_must_fit_the_current_schema_but_an_older_one_need_not():
    assert "source column 9" in refused(changed(partition_specs=(spec(0, (9, Identity())),)))
    validate_metadata(MetadataBuilder(spec=spec(0, (9, Identity()))).spec(spec(1, (1, Identity()))).build())


@pytest.mark.parametrize("current", [1, None])
def test_main_must_be_at_the_current_snapshot(current: int | None):
    assert refused(changed(current_snapshot_id=current)) == (f"the current snapshot is {current}, but main points at 3")


@for_each("limit", ["min_snapshots_to_keep", "max_snapshot_age_ms", "max_ref_age_ms"])
@for_each("value", [0, -1])
def test_retention_limits_of_a_ref_must_be_positive(limit: str, value: int):
    refs = {**changed().refs, "dev": SnapshotRef(snapshot_id=3, type="branch", **{limit: value})}
    assert refused(changed(refs=refs)) == "ref 'dev' has a retention limit that is not a positive number"


EMPTY = new_table_metadata(schema=COLUMNS, spec=UNPARTITIONED, location="memory://t", table_uuid="u", now_ms=0)


def with_history(
    *snapshots: tuple[int, int | None, int], current: int | None = None, log: tuple[int, ...] = ()
) -> TableMetadata:
    """Snapshots as (id, parent, timestamp); the log's entries one after the other."""
    return replace(
        EMPTY,
        snapshots=tuple(Snapshot(snapshot_id=i, parent_snapshot_id=p, timestamp_ms=t) for i, p, t in snapshots),
        current_snapshot_id=current,
        snapshot_log=tuple(SnapshotLogEntry(timestamp_ms=n, snapshot_id=i) for n, i in enumerate(log)),
    )


@given(st.lists(st.integers(0, 9), min_size=1, max_size=8), st.integers(-1, 11))
def test_the_newest_ancestor_before_a_moment_is_the_one_with_the_greatest_time_below_it(times, moment):
    chain = [(n, n - 1 if n else None, t) for n, t in enumerate(times)]
    found = newest_ancestor_before(with_history(*chain, current=len(times) - 1), moment)
    below = [t for t in times if t < moment]
    assert (None if found is None else found.timestamp_ms) == (max(below) if below else None)


def test_examples():
    check_examples("spec/metadata.txt", icekeep.spec.metadata, icekeep.spec.sorting, globals())
