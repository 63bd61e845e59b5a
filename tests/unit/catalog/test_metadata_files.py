from types import SimpleNamespace

from icekeep.catalog.metadata_files import file_version, metadata_files
from icekeep.errors import UnsupportedError
from kit.cases import for_each
from kit.storage import MemoryStorage

DIRECTORY = "memory://lake/wh/t/metadata"


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


NAMES = ("v9.metadata.json", "v10.gz.metadata.json", "00009-a.metadata.json", "00012-b.metadata.json", "snap-1.avro")


@for_each(
    ("like", "versions", "expected"),
    [
        ("", range(0), {*NAMES[:4]}),
        ("v10.metadata.json", range(9, 10), {"v9.metadata.json"}),
        ("v10.metadata.json", range(11), {*NAMES[:2]}),
        ("00012-b.metadata.json", range(9, 13), {*NAMES[2:4]}),
        ("00012-b.metadata.json", range(9, 10), {"00009-a.metadata.json"}),
    ],
)
@for_each("lists_by_prefix", [True, False])
def test_metadata_files_right_in_a_directory_are_listed_by_their_versions(lists_by_prefix, like, versions, expected):
    storage, asked = MemoryStorage(), list[str]()
    for name in (*NAMES, "below/v9.metadata.json"):
        storage.create(f"{DIRECTORY}/{name}", b"")

    def list_share(share):
        asked.append(share.starts_with)
        if not lists_by_prefix:
            raise UnsupportedError("not in order")
        return (
            info for info in storage.list(DIRECTORY) if info.location.startswith(f"{DIRECTORY}/{share.starts_with}")
        )

    listing = SimpleNamespace(list_share=list_share, list=storage.list)
    found = {
        info.location.rpartition("/")[2] for info in metadata_files(listing, DIRECTORY, like=like, versions=versions)
    }
    assert found == (expected if lists_by_prefix else {*NAMES[:4]})
    assert "" not in asked or not versions
