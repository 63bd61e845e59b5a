"""What a manifest list would say of a manifest, by the manifest alone."""

import json
from typing import Any

import msgspec
import pytest

from icekeep.errors import InvalidTableError
from icekeep.spec.manifests.read import completed, inspect_manifest, lacks_counts
from kit.cases import for_each
from kit.manifests import DAY, MANIFEST, added, data_file, deleted, existing, with_metadata, write_manifest

THREE = [
    existing(data_file("file:/a", record_count=1, partition=(1,)), snapshot_id=9),
    added(data_file("file:/b", record_count=2, partition=(None,)), snapshot_id=8),
    deleted(data_file("file:/c", record_count=4, partition=(3,)), snapshot_id=8),
]


def version_1(entries: list[Any]) -> bytes:
    return write_manifest(entries, format_version=1)[0]


def test_counts_length_and_partitions_are_those_of_the_entries():
    data = version_1(THREE)
    row = inspect_manifest(data, MANIFEST)
    _, expected = write_manifest(THREE, format_version=1, sequence_number=None)
    assert row == msgspec.structs.replace(
        expected, added_snapshot_id=8, sequence_number=0, min_sequence_number=0, manifest_length=len(data)
    )
    assert (row.added_rows_count, row.existing_rows_count, row.deleted_rows_count) == (2, 1, 4)
    assert row.partitions[0].contains_null


@pytest.mark.parametrize(
    ("entries", "snapshot_id"),
    [
        ([THREE[0], THREE[1]], 8),
        ([THREE[0], THREE[2]], 8),
        ([THREE[0], existing(snapshot_id=11), existing(snapshot_id=10)], 11),
        ([], None),
    ],
    ids=["added", "deleted", "existing only", "empty"],
)
def test_the_snapshot_that_added_it_is_the_first_that_changed_an_entry_or_else_the_newest(entries, snapshot_id):
    assert inspect_manifest(version_1(entries), MANIFEST).added_snapshot_id == snapshot_id


def test_a_manifest_without_a_spec_id_is_of_the_first_spec():
    data = with_metadata(version_1(THREE), {"partition-spec-id": None})
    assert inspect_manifest(data, MANIFEST).partition_spec_id == 0


@for_each(
    ("metadata", "problem"),
    [
        ({"partition-spec-id": b"x"}, "has the partition-spec-id"),
        ({"partition-spec": None}, "its 'partition-spec' is missing"),
        ({"partition-spec": b"["}, "its 'partition-spec' cannot be read"),
        ({"schema": b"{}"}, "its 'schema' cannot be read: a schema must be an object"),
    ],
)
def test_a_header_that_does_not_tell_the_partition_type_is_refused(metadata, problem):
    with pytest.raises(InvalidTableError, match=f"manifest '{MANIFEST}'.*{problem}"):
        inspect_manifest(with_metadata(version_1(THREE), metadata), MANIFEST)


def test_partitions_that_are_not_of_the_spec_are_refused():
    schema = {"type": "struct", "fields": [{"id": 1, "name": "s", "required": False, "type": "string"}]}
    changed = {"schema": json.dumps(schema).encode(), "partition-spec": spec_of("identity")}
    with pytest.raises(InvalidTableError, match="holds partitions that are not of its spec"):
        inspect_manifest(with_metadata(version_1(THREE), changed), MANIFEST)


def test_of_what_an_unknown_transform_makes_nothing_is_summarized():
    row = inspect_manifest(with_metadata(version_1(THREE), {"partition-spec": spec_of("unheard-of")}), MANIFEST)
    assert (row.partitions, lacks_counts(row)) == (None, False)


def spec_of(transform):
    fields = [{"name": "day", "transform": transform, "source-id": 1, "field-id": 1000}]
    return json.dumps(fields).encode()


def test_what_a_row_says_already_is_kept():
    data, row = write_manifest(THREE)
    assert completed(row, data, DAY) == row
    bare = msgspec.structs.replace(row, deleted_rows_count=None)
    assert (lacks_counts(row), lacks_counts(bare)) == (False, True)
    assert completed(bare, data, DAY) == row
