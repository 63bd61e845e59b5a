from icekeep.catalog.metadata_files import file_version
from kit.cases import for_each


@for_each(
    ("name", "version"),
    [
        ("00005-0c566122-32a2-4791-8908-05ded38b56cf.metadata.json", 5),
        ("123456-0c566122.gz.metadata.json", 123456),
        ("v7.metadata.json", 7),
        ("v7.gz.metadata.json", 7),
        ("v7.metadata.json.gz", 7),
        ("0c566122-32a2-4791-8908-05ded38b56cf.metadata.json", -1),
        ("metadata.json", -1),
        ("v.metadata.json", -1),
    ],
)
def test_the_version_of_a_metadata_file_is_in_its_name(name, version):
    assert file_version(f"s3://bucket/1-2/v9.metadata.json/{name}") == version
