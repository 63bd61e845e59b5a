from datetime import timedelta
from typing import Any

import msgspec
import pytest

from icekeep.errors import InvalidTableError
from icekeep.planning.scan.plan import VERSION_ARGUMENTS, bound_filter, chosen_version, select_manifests
from icekeep.spec.filters.binding import bind
from icekeep.spec.filters.expressions import ALWAYS_TRUE
from icekeep.spec.filters.parsing import parse_where
from icekeep.spec.manifests.structs import ManifestContent, ManifestFile
from icekeep.spec.partitioning import PartitionField, PartitionSpec
from icekeep.spec.schema import Schema
from icekeep.spec.transforms import Day
from icekeep.spec.types import LONG, TIMESTAMPTZ, NestedField
from kit.cases import for_each
from kit.examples import check_examples
from kit.metadata import DAY_MS, SCHEMA, START_MS, MetadataBuilder

LATER = Schema(
    schema_id=SCHEMA.schema_id + 1, fields=(*SCHEMA.fields, NestedField(field_id=3, name="later", type=LONG))
)


def history() -> MetadataBuilder:
    """Snapshots 1 and 2 of the first schema with a branch and a tag on 2, 3 of a later schema; a day apart each."""
    return MetadataBuilder().commits(2).branch("audit", at=2).tag("v2", at=2).schema(LATER).commits(1)


@for_each(
    ("arguments", "snapshot_id", "schema"),
    [
        ({}, 3, LATER),
        ({"ref": None}, 3, LATER),
        ({"ref": "main"}, 3, LATER),
        ({"ref": "audit"}, 2, LATER),
        ({"ref": "v2"}, 2, SCHEMA),
        ({"snapshot_id": 1}, 1, SCHEMA),
        ({"snapshot_id": 3}, 3, LATER),
        ({"as_of": START_MS}, 1, SCHEMA),
        ({"as_of": START_MS + DAY_MS - 1}, 1, SCHEMA),
        ({"as_of": START_MS + DAY_MS}, 2, SCHEMA),
        ({"as_of": START_MS + 90 * DAY_MS}, 3, LATER),
    ],
)
def test_a_branch_is_read_with_the_tables_schema_and_anything_else_with_its_snapshots(
    arguments: dict[str, Any], snapshot_id: int, schema: Schema
) -> None:
    version = chosen_version(history().build(), 0, **arguments)
    assert version.snapshot is not None
    assert (version.snapshot.snapshot_id, version.schema, version.appended_by) == (snapshot_id, schema, None)


def test_a_moment_is_looked_up_in_what_main_was_not_in_what_was_committed() -> None:
    metadata = MetadataBuilder().commits(3).roll_back(to=1).build()
    at = [chosen_version(metadata, 0, as_of=START_MS + days * DAY_MS).snapshot for days in (2, 3)]
    assert [snapshot and snapshot.snapshot_id for snapshot in at] == [3, 1]
    ago = chosen_version(metadata, START_MS + 3 * DAY_MS, as_of=timedelta(days=1)).snapshot
    assert ago == at[0]


def test_an_incremental_scan_reads_the_appends_after_its_start_up_to_its_end() -> None:
    metadata = MetadataBuilder().commits(5).build()
    snapshots = [
        msgspec.structs.replace(s, summary={"operation": "replace" if s.snapshot_id == 3 else "append"})
        for s in metadata.snapshots
    ]
    metadata = msgspec.structs.replace(metadata, snapshots=tuple(snapshots))
    version = chosen_version(metadata, 0, start_snapshot_id=1, end_snapshot_id=4)
    assert [s.snapshot_id for s in version.appended_by or ()] == [2, 4]
    assert [s.snapshot_id for s in chosen_version(metadata, 0, start_snapshot_id=3).appended_by or ()] == [4, 5]
    assert chosen_version(metadata, 0, start_snapshot_id=5).appended_by == ()


def test_the_arguments_are_those_that_the_job_has_flags_for() -> None:
    from icekeep.operations.jobs import JOBS

    assert {*VERSION_ARGUMENTS} < {setting.argument for setting in JOBS["plan_scan"].settings}


MOMENT_MS = 1_772_281_845_678
TIMES = Schema(schema_id=1, fields=(NestedField(field_id=3, name="ts", type=TIMESTAMPTZ),))
SPEC = PartitionSpec(spec_id=1, fields=(PartitionField(source_id=3, field_id=1000, name="ts_day", transform=Day()),))
TABLE = MetadataBuilder().schema(TIMES).spec(SPEC).build()


def test_text_is_read_with_the_moment_of_the_job_and_bound_to_the_schema_of_the_scan():
    expected = bind(parse_where("ts >= '2026-02-27T00:00:00Z' AND ts < '2026-02-28T12:30:45.678Z'"), TIMES)
    assert bound_filter("ts >= today - 1 AND ts < now", TABLE, TIMES, MOMENT_MS) == expected
    assert bound_filter(parse_where("ts >= today - 1 AND ts < now", MOMENT_MS), TABLE, TIMES, 0) == expected


@pytest.mark.parametrize("where", [None, "ts < now"])
def test_a_manifest_of_a_spec_that_the_table_has_not_is_an_error_of_the_table(where):
    rows = ALWAYS_TRUE if where is None else bound_filter(where, TABLE, TIMES, MOMENT_MS)
    manifest = ManifestFile(
        manifest_path="m", manifest_length=1, partition_spec_id=7, content=ManifestContent.DATA, added_snapshot_id=1
    )
    with pytest.raises(InvalidTableError, match="has no partition spec 7"):
        select_manifests(TABLE, TIMES, [manifest], rows)


def test_examples():
    check_examples("planning/scan/plan.txt", globals())
