import mmh3
import msgspec
import pytest

from icekeep.errors import UnsupportedError, UsageError
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.properties import (
    data_directory,
    data_layout,
    manifest_list_location,
    manifest_location,
    metadata_directory,
    own_directory,
)
from kit.cases import for_each
from kit.metadata import MetadataBuilder

UUID = "fb072c92-a02b-11e9-ae9c-1bb7bc9eca94"


def table(**properties: str) -> TableMetadata:
    named = {f"write.{name}.path": value for name, value in properties.items()}
    return MetadataBuilder(location="s3://b/t").properties(named).build()


def test_directories_lie_below_the_table():
    assert data_directory(table()) == "s3://b/t/data"
    assert metadata_directory(table()) == "s3://b/t/metadata"


@for_each(
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


def located(
    name: str, partition: str = "", path: str | None = None, table_location: str = "s3://b/db/t", **settings: str
) -> str:
    """The location of a data file; `settings` are properties `write.object-storage.*`."""
    properties = {f"write.object-storage.{key.replace('_', '-')}": value for key, value in settings.items()}
    if path is not None:
        properties["write.data.path"] = path
    return data_layout(table_location, properties).location(name, partition)


def test_a_data_file_lies_in_the_directory_of_its_partition():
    assert located("f.parquet") == "s3://b/db/t/data/f.parquet"
    assert located("f.parquet", "day=1/kind=a") == "s3://b/db/t/data/day=1/kind=a/f.parquet"
    assert located("f.parquet", "day=1", path="/mnt/x/") == "/mnt/x/day=1/f.parquet"
    assert located("f.parquet", path="/") == "/f.parquet"
    # Only the other layout leaves partitions out.
    assert located("f", "day=1", enabled="false", partitioned_paths="false") == "s3://b/db/t/data/day=1/f"


# What Iceberg Java makes of `a` and `b`, and the last 20 bits of the murmur3 hashes of longer paths.
HASHED = [
    ("a", "", "0101/0110/1001/10110010"),
    ("b", "", "1110/0111/1110/00000011"),
    ("f.parquet", "", "0111/1111/1110/11001100"),
    ("f.parquet", "day=1", "0011/1110/1010/10010110"),
    ("00007-23-b9c1-00001.orc", "kind=a%2Fb", "1011/0110/0011/10111111"),
]


@for_each(("name", "partition", "directories"), HASHED)
def test_object_storage_spreads_files_by_the_hash_of_what_follows_it(name: str, partition: str, directories: str):
    rest = f"{partition}/{name}".removeprefix("/")
    assert located(name, partition, enabled="TRUE") == f"s3://b/db/t/data/{directories}/{rest}"
    bits = f"{mmh3.hash(rest, signed=False):032b}"[-20:]
    assert directories.replace("/", "") == bits


def test_without_partitioned_paths_the_name_alone_is_hashed_and_the_last_bits_are_part_of_it():
    location = "s3://b/db/t/data/0111/1111/1110/11001100-f.parquet"
    assert located("f.parquet", "day=1", enabled="true", partitioned_paths="false") == location


def test_tables_that_share_a_directory_are_told_apart_by_the_end_of_their_location():
    shared = {"path": "s3://shared/files", "enabled": "true"}
    assert located("f.parquet", **shared) == "s3://shared/files/0111/1111/1110/11001100/db/t/f.parquet"
    assert (
        located("f.parquet", "day=1", partitioned_paths="false", **shared)
        == "s3://shared/files/0111/1111/1110/11001100/db/t/f.parquet"
    )
    assert located("f.parquet", table_location="s3://b/t/", **shared).endswith("/11001100/t/f.parquet")
    assert located("f.parquet", table_location="/w/h/db/t", **shared).endswith("/11001100/db/t/f.parquet")
    # What lies below the table needs no such names.
    assert (
        located("f.parquet", path="s3://b/db/t/x", enabled="true") == "s3://b/db/t/x/0111/1111/1110/11001100/f.parquet"
    )


def test_leading_zeros_of_the_hash_are_kept():
    first = [located(f"{n}", enabled="true").split("/")[6:10] for n in range(64)]
    assert {tuple(map(len, parts)) for parts in first} == {(4, 4, 4, 8)}
    assert any(parts[0] == "0000" for parts in first)


@pytest.mark.parametrize("key", ["write.folder-storage.path", "write.object-storage.path"])
def test_withdrawn_properties_are_refused_where_they_would_count(key: str):
    properties = {key: "s3://old", "write.object-storage.enabled": "true"}
    with pytest.raises(UsageError, match=f"table property '{key}' was withdrawn; set 'write.data.path' to 's3://old'"):
        data_layout("s3://b/t", properties)
    assert data_layout("s3://b/t", {**properties, "write.data.path": "s3://new"}).directory == "s3://new"
    properties["write.object-storage.enabled"] = "false"
    if "object" in key:
        assert data_layout("s3://b/t", properties).directory == "s3://b/t/data"
    else:
        with pytest.raises(UsageError, match="withdrawn"):
            data_layout("s3://b/t", properties)


def test_code_of_another_engine_that_says_where_files_go_is_not_passed_over():
    with pytest.raises(UnsupportedError, match=r"'write\.location-provider\.impl' is 'a\.b\.C'"):
        data_layout("s3://b/t", {"write.location-provider.impl": "a.b.C"})


@pytest.mark.parametrize("key", ["enabled", "partitioned-paths"])
def test_a_flag_is_true_or_false(key: str):
    properties = {"write.object-storage.enabled": "true", f"write.object-storage.{key}": "yes"}
    with pytest.raises(UsageError, match=f"'write.object-storage.{key}' is 'yes'; set 'true' or 'false'"):
        data_layout("s3://b/t", properties)
