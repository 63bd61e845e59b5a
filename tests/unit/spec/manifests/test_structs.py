from typing import Any

import pytest
from pyiceberg.manifest import MANIFEST_ENTRY_SCHEMAS, MANIFEST_LIST_FILE_SCHEMAS

from icekeep.spec.manifests.structs import (
    FileContent,
    ManifestContent,
    ManifestEntry,
    ManifestFile,
    Status,
    entry_type,
    manifest_file_type,
)
from icekeep.spec.types import StructType, walk
from kit.cases import for_each
from kit.manifests import DAY, UNPARTITIONED, added, data_file, deleted, existing


def described(struct: StructType) -> dict[int, tuple[str, bool, str]]:
    """Every field at every depth by id: its name, whether it is required, its type if it is a plain one."""
    return {f.field_id: (f.name, f.required, str(f.type) if "<" not in str(f.type) else "") for f in walk(struct)}


def foreign(schema: Any) -> dict[int, tuple[str, bool, str]]:
    fields = schema._lazy_id_to_field.values()
    return {f.field_id: (f.name, f.required, "" if "<" in str(f.field_type) else str(f.field_type)) for f in fields}


def test_numbers_stand_for_what_the_spec_says():
    assert {s.name: int(s) for s in Status} == {"EXISTING": 0, "ADDED": 1, "DELETED": 2}
    assert {c.name: int(c) for c in FileContent} == {"DATA": 0, "POSITION_DELETES": 1, "EQUALITY_DELETES": 2}
    assert {c.name: int(c) for c in ManifestContent} == {"DATA": 0, "DELETES": 1}


@pytest.mark.parametrize("version", [1, 2, 3])
def test_manifest_lists_have_the_fields_that_pyiceberg_gives_them(version: int):
    assert described(manifest_file_type(version)) == foreign(MANIFEST_LIST_FILE_SCHEMAS[version])


@pytest.mark.parametrize("version", [1, 2, 3])
def test_manifests_have_the_fields_that_pyiceberg_gives_them(version: int):
    ours, theirs = described(entry_type(UNPARTITIONED, version)), foreign(MANIFEST_ENTRY_SCHEMAS[version])
    # The spec has it from version 2 on, PyIceberg from version 3 on.
    assert ours.pop(143, theirs.get(143)) == theirs.pop(
        143, ("referenced_data_file", False, "string") if version > 1 else None
    )
    # PyIceberg requires what version 1 does, and stores equality ids as long where the spec says int.
    ours.pop(1)
    theirs.pop(1)
    if version > 1:
        assert (ours.pop(136)[2], theirs.pop(136)[2]) == ("int", "long")
    assert ours == theirs


def test_the_snapshot_id_of_an_entry_can_be_inherited_from_version_2_on():
    assert not described(entry_type(UNPARTITIONED, 2))[1][1]


def test_the_partition_has_the_type_of_its_spec():
    assert described(entry_type(DAY, 2))[1000] == ("day", False, "date")


@pytest.mark.parametrize("version", [1, 2, 3])
def test_distinct_counts_and_old_fields_are_not_written(version: int):
    ids = described(entry_type(UNPARTITIONED, version)).keys()
    assert not ids & {106, 107, 111, 112, 123, 124}
    assert (105 in ids) is (version == 1)


@pytest.mark.parametrize(("entry", "live"), [(added(), True), (existing(), True), (deleted(), False)])
def test_an_entry_that_is_not_deleted_is_live(entry: ManifestEntry, live: bool):
    assert entry.is_live is live
    assert ManifestEntry(status=Status.DELETED, data_file=data_file()).is_live is False


@for_each(
    ("counts", "live", "may_have"),
    [
        ({"added_files_count": 2, "existing_files_count": 3, "deleted_files_count": 9}, 5, True),
        ({"added_files_count": 0, "existing_files_count": 0, "deleted_files_count": 9}, 0, False),
        ({"added_files_count": 0, "existing_files_count": 1, "deleted_files_count": 0}, 1, True),
        ({"added_files_count": 0}, None, True),
        ({"existing_files_count": 0}, None, True),
        ({}, None, True),
    ],
)
def test_counts_that_are_not_known_may_hide_live_files(counts: dict[str, int], live: int | None, may_have: bool):
    manifest = ManifestFile(manifest_path="m", manifest_length=1, partition_spec_id=0, added_snapshot_id=1, **counts)
    assert manifest.live_files_count == live
    assert manifest.may_have_live_files is may_have
