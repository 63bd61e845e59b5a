from datetime import timedelta
from typing import Any

import msgspec
import numpy as np
import pytest

from icekeep.errors import NotFoundError, UsageError
from icekeep.planning.scan.plan import VERSION_ARGUMENTS, chosen_version
from icekeep.spec.schema import Schema
from icekeep.spec.types import LONG, NestedField
from kit.cases import for_each
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


def test_a_table_without_data_has_a_version_without_a_snapshot() -> None:
    assert chosen_version(MetadataBuilder().build(), 0).snapshot is None


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


@for_each(
    ("arguments", "error", "message"),
    [
        ({"ref": "nope"}, NotFoundError, "no branch or tag 'nope'"),
        ({"snapshot_id": 9}, NotFoundError, "no snapshot 9"),
        (
            {"as_of": START_MS - 1},
            NotFoundError,
            "is not known as of 2023-11-14T22:13:19.999Z: its log begins at 2023-11-14",
        ),
        ({"start_snapshot_id": 9}, NotFoundError, "no snapshot 9"),
        ({"start_snapshot_id": 1, "end_snapshot_id": 9}, NotFoundError, "no snapshot 9"),
        ({"start_snapshot_id": 3, "end_snapshot_id": 2}, UsageError, "snapshot 3 is no ancestor of snapshot 2"),
        ({"end_snapshot_id": 2}, UsageError, "end_snapshot_id needs start_snapshot_id"),
        ({"ref": "v2", "snapshot_id": 1}, UsageError, "ref and snapshot_id contradict one another"),
        ({"as_of": START_MS, "start_snapshot_id": 1}, UsageError, "as_of and start_snapshot_id contradict"),
    ],
)
def test_what_is_not_there_or_contradicts_itself_is_refused(
    arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        chosen_version(history().build(), 0, **arguments)


def test_a_moment_before_the_first_snapshot_of_an_empty_table_is_refused() -> None:
    with pytest.raises(NotFoundError, match="it has no snapshot at all"):
        chosen_version(MetadataBuilder().build(), 0, as_of=START_MS)


def test_the_arguments_are_those_that_the_job_has_flags_for() -> None:
    from icekeep.operations.jobs import JOBS

    assert {*VERSION_ARGUMENTS} < {setting.argument for setting in JOBS["plan_scan"].settings}


@for_each(
    ("arguments", "message"),
    [
        ({"asof": "1d"}, "no argument 'asof'; what it reads is named by one of ref, snapshot_id"),
        ({"snapshot_id": "1"}, "snapshot_id is '1'; give the id of a snapshot"),
        ({"snapshot_id": True}, "snapshot_id is True"),
        ({"start_snapshot_id": "1"}, "start_snapshot_id is '1'"),
        ({"start_snapshot_id": 1, "end_snapshot_id": 2.0}, "end_snapshot_id is 2.0"),
        ({"ref": 5}, "ref is 5; give the name of a branch or tag"),
    ],
)
def test_what_names_no_version_never_means_the_current_one(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        chosen_version(history().build(), 0, **arguments)


def test_an_id_may_be_an_integer_of_numpys() -> None:
    snapshot = chosen_version(history().build(), 0, snapshot_id=np.int64(1)).snapshot  # type: ignore[typeddict-item]
    assert snapshot is not None
    assert snapshot.snapshot_id == 1
