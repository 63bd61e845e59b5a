"""Paths under another prefix, in metadata files, lists and manifests: changed where they are paths, and there alone."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icekeep.commit.manifests import ManifestReader
from icekeep.errors import InvalidTableError
from icekeep.spec.avro import read_header, read_records
from icekeep.spec.relocation import (
    PathChange,
    relocated_manifest,
    relocated_manifest_list,
    relocated_metadata,
    same_records,
)
from kit.cases import cases
from kit.copied import SOURCE, TARGET, everything

THERE, BACK = PathChange(SOURCE, TARGET), PathChange(TARGET, SOURCE)
PARTS = st.lists(st.text("ab.%=", min_size=1, max_size=3).filter(lambda part: part != ".."), max_size=3)


@given(PARTS)
@cases(100)
def test_a_path_comes_back_as_it_was(parts):
    path = "/".join([SOURCE, *parts])
    assert THERE.holds(path)
    assert BACK.path(THERE.path(path)) == path
    assert THERE.path(path).startswith(TARGET)


@pytest.mark.parametrize("path", [f"{SOURCE}2/f", f"{SOURCE}/../f", f"{SOURCE}/a/../../f", "s3://b/f", SOURCE[1:]])
def test_paths_of_other_places_are_refused(path):
    assert not THERE.holds(path)
    with pytest.raises(InvalidTableError, match="is not under the prefix"):
        THERE.path(path)


@given(PARTS, PARTS)
@cases(100)
def test_bounds_keep_their_order(one, other):
    paths = sorted("/".join([SOURCE, "data", *parts]).encode() for parts in (one, other))
    bounds = [THERE.bound(path) for path in paths]
    assert bounds == sorted(bounds)
    assert THERE.bound(b"memory://lake/wh/db/ev") is None


def test_metadata_comes_back_as_it_was():
    for version in (1, 2, 3):
        metadata = everything(version).table.metadata
        moved = relocated_metadata(metadata, THERE)
        assert SOURCE not in repr(moved)
        assert relocated_metadata(moved, BACK) == metadata


def test_manifests_and_lists_differ_in_their_paths_alone():
    for version in (1, 2, 3):
        table = everything(version).table
        reader = ManifestReader(table.storage)
        for snapshot in table.metadata.snapshots:
            manifests = reader.manifests(snapshot)
            lengths = {one.manifest_path: one.manifest_length for one in manifests}
            data = table.storage.read(snapshot.manifest_list)
            moved = relocated_manifest_list(data, snapshot.manifest_list, THERE, lengths)
            assert replaced(moved) == records(data)
            for one in manifests:
                data = table.storage.read(one.manifest_path)
                moved = relocated_manifest(data, one, THERE, THERE, {})
                assert replaced(moved) == records(data)
                assert read_header(moved, "").metadata == read_header(data, "").metadata
                assert relocated_manifest(data, one, THERE, THERE, {}) == moved
                assert same_records(moved, moved, "")
                assert not same_records(moved, data, "")


def test_a_delete_file_that_is_written_again_has_its_new_size():
    table = everything(2).table
    reader = ManifestReader(table.storage)
    found = [m for m in reader.manifests(table.metadata.current_snapshot) if m.content]
    for manifest in found:
        entries = [e.data_file for e in reader.entries(manifest, table.metadata)]
        sizes = {file.file_path: 4242 for file in entries}
        moved = relocated_manifest(table.storage.read(manifest.manifest_path), manifest, THERE, THERE, sizes)
        for record in records(moved):
            assert record["data_file"]["file_size_in_bytes"] == 4242
            assert record["data_file"]["split_offsets"] is None
    assert found


def records(data):
    return [*read_records(data, read_header(data, ""), "")]


def replaced(data):
    """Records with the source's prefix in the place of the target's, however deep."""

    def plain(value):
        match value:
            case dict():
                return {key: plain(one) for key, one in value.items()}
            case list():
                return [plain(one) for one in value]
            case str():
                return value.replace(TARGET, SOURCE)
            case bytes():
                return value.replace(TARGET.encode(), SOURCE.encode())
        return value

    return [plain(record) for record in records(data)]
