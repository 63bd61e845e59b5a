import msgspec
import pytest

from icekeep.spec.layout import (
    data_directory,
    manifest_list_location,
    manifest_location,
    metadata_directory,
    own_directory,
)
from icekeep.spec.metadata import TableMetadata
from kit.metadata import MetadataBuilder

UUID = "fb072c92-a02b-11e9-ae9c-1bb7bc9eca94"


def table(**properties: str) -> TableMetadata:
    named = {f"write.{name}.path": value for name, value in properties.items()}
    return MetadataBuilder(location="s3://b/t").properties(named).build()


def test_directories_lie_below_the_table():
    assert data_directory(table()) == "s3://b/t/data"
    assert metadata_directory(table()) == "s3://b/t/metadata"


@pytest.mark.parametrize(
    ("path", "directory"),
    [
        ("s3://other/place", "s3://other/place"),
        ("s3://other/place/", "s3://other/place"),
        ("file:/place", "file:/place"),
        ("/mnt/place", "/mnt/place"),
        ("/", ""),
        ("file:/", "file:"),
        ("bronze/files", "s3://b/t/bronze/files"),
        ("bronze/", "s3://b/t/bronze"),
        ("a:b", "s3://b/t/a:b"),
    ],
)
def test_properties_put_them_elsewhere_absolute_or_relative_to_the_table(path: str, directory: str):
    assert data_directory(table(data=path)) == directory
    assert metadata_directory(table(metadata=path)) == directory
    assert data_directory(table(metadata=path)) == "s3://b/t/data"
    assert metadata_directory(table(data=path)) == "s3://b/t/metadata"


def test_an_empty_property_is_none():
    assert data_directory(table(data="")) == "s3://b/t/data"


def test_a_location_with_a_slash_at_its_end_gives_no_double_slash():
    metadata = msgspec.structs.replace(table(), location="s3://b/t/")
    assert data_directory(metadata) == "s3://b/t/data"
    assert own_directory(metadata, "plans") == "s3://b/t/.icekeep/plans"


def test_manifests_and_lists_have_the_names_that_iceberg_gives_them():
    assert manifest_location(table(), UUID, 3) == f"s3://b/t/metadata/{UUID}-m3.avro"
    assert manifest_list_location(table(), 77, 2, UUID) == f"s3://b/t/metadata/snap-77-2-{UUID}.avro"


def test_metadata_files_follow_their_property():
    assert manifest_location(table(metadata="meta"), UUID, 0) == f"s3://b/t/meta/{UUID}-m0.avro"
    assert manifest_list_location(table(metadata="/m"), 77, 2, UUID) == f"/m/snap-77-2-{UUID}.avro"


def test_what_is_ours_lies_in_a_hidden_directory_of_the_table():
    assert own_directory(table(metadata="/m", data="/d"), "trash") == "s3://b/t/.icekeep/trash"
