"""Filters over manifests."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icekeep.errors import ExpressionError
from icekeep.maintenance.manifests.rules import COLUMNS, manifests_that_match
from icekeep.spec.filters.expressions import ALWAYS_TRUE, Operation, Predicate
from icekeep.spec.manifests.structs import ManifestContent, ManifestFile
from icekeep.spec.metadata import TableMetadata, new_table_metadata
from icekeep.spec.partitioning import UNPARTITIONED
from icekeep.spec.snapshots import Snapshot
from kit.cases import for_each
from kit.strategies import manifest_files
from kit.tables import COLUMNS as TABLE_COLUMNS

DAY_MS = 86_400_000
NOW_MS = 100 * DAY_MS


def metadata() -> TableMetadata:
    """A table whose snapshot 7 is two days old; snapshot 5 has expired."""
    made = new_table_metadata(
        schema=TABLE_COLUMNS, spec=UNPARTITIONED, location="file:/t", table_uuid="u", now_ms=NOW_MS
    )
    snapshot = Snapshot(snapshot_id=7, timestamp_ms=NOW_MS - 2 * DAY_MS, manifest_list="file:/t/l.avro")
    return msgspec.structs.replace(made, snapshots=(snapshot,))


FULL = ManifestFile(
    manifest_path="file:/t/metadata/a.avro",
    manifest_length=1000,
    partition_spec_id=2,
    added_snapshot_id=7,
    content=ManifestContent.DELETES,
    sequence_number=9,
    min_sequence_number=4,
    added_files_count=1,
    existing_files_count=20,
    deleted_files_count=300,
    added_rows_count=11,
    existing_rows_count=220,
    deleted_rows_count=3300,
)
BARE = ManifestFile(manifest_path="b", manifest_length=1, partition_spec_id=0, added_snapshot_id=5)


def matches(where: Any, manifest: ManifestFile = FULL) -> bool:
    return manifests_that_match(where, [manifest], metadata(), NOW_MS) == [manifest]


@for_each(
    "where",
    [
        "manifest_path = 'file:/t/metadata/a.avro'",
        "manifest_path LIKE 'file:/t/%'",
        "manifest_length = 1000",
        "manifest_length < 1001",
        "partition_spec_id IN (2, 3)",
        "content = 'deletes'",
        "sequence_number = 9",
        "min_sequence_number = 4",
        "added_snapshot_id = 7",
        "added_at = TIMESTAMP '1970-04-09T00:00:00Z'",
        "added_at < now - 1d",
        "added_at < today - 1",
        "added_files_count = 1",
        "existing_files_count = 20",
        "deleted_files_count = 300",
        "live_files_count = 21",
        "added_rows_count = 11",
        "existing_rows_count = 220",
        "deleted_rows_count = 3300",
        "NOT manifest_length < 1000 AND (content = 'data' OR live_files_count BETWEEN 20 AND 22)",
    ],
)
def test_a_filter_asks_what_the_list_says(where: str):
    assert matches(where)
    assert not matches(f"NOT ({where})")


def test_every_column_of_the_list_can_be_named():
    for column in COLUMNS:
        assert matches(f"{column} IS NOT NULL")


@for_each(
    "where", ["live_files_count = 21", "live_files_count != 21", "NOT live_files_count < 5", "added_rows_count >= 0"]
)
def test_null_matches_no_comparison(where: str):
    assert not matches(where, BARE)
    assert matches("live_files_count IS NULL AND added_rows_count IS NULL AND sequence_number IS NULL", BARE)


def test_the_time_of_a_snapshot_that_expired_is_null():
    assert matches("added_at IS NULL", BARE)
    assert not matches("added_at < now", BARE)
    assert matches("added_at IS NULL", msgspec.structs.replace(FULL, added_snapshot_id=None))


def test_an_expression_is_taken_as_well_as_text():
    assert matches(Predicate(Operation.GT, "manifest_length", (999,)))
    assert not matches(Predicate(Operation.GT, "manifest_length", (1000,)))


def test_manifests_keep_their_order():
    rows = [msgspec.structs.replace(BARE, manifest_path=name, manifest_length=n) for n, name in enumerate("dacb")]
    found = manifests_that_match("manifest_length != 1", rows, metadata(), NOW_MS)
    assert [row.manifest_path for row in found] == ["d", "c", "b"]
    assert manifests_that_match(ALWAYS_TRUE, rows, metadata(), NOW_MS) == rows


def test_who_names_another_column_is_told_the_columns():
    with pytest.raises(ExpressionError) as caught:
        matches("length > 3")
    assert caught.value.message == f"manifests have no column 'length'; their columns are {', '.join(COLUMNS)}"
    assert caught.value.facts == {"column": "length"}


@pytest.mark.parametrize("where", ["manifest_length >", "manifest_length = 'small'", "added_at IS NAN"])
def test_a_text_that_is_no_filter_is_refused(where: str):
    with pytest.raises(ExpressionError):
        matches(where)


@given(st.lists(manifest_files(), max_size=5), st.integers(0, 2**40))
def test_a_filter_and_its_opposite_share_out_manifests_whose_count_is_known(rows: list[ManifestFile], limit: int):
    small = manifests_that_match(f"manifest_length < {limit}", rows, metadata(), NOW_MS)
    large = manifests_that_match(f"NOT manifest_length < {limit}", rows, metadata(), NOW_MS)
    assert small == [row for row in rows if row.manifest_length < limit]
    assert large == [row for row in rows if row.manifest_length >= limit]
    few = manifests_that_match("live_files_count < 5", rows, metadata(), NOW_MS)
    assert few == [row for row in rows if row.live_files_count is not None and row.live_files_count < 5]
