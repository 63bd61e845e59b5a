from msgspec.structs import replace

from icekeep.catalog.filesystem import VERSION_AGE_KEPT_MS
from icekeep.maintenance.expire.plan import old_metadata_files
from icekeep.spec.snapshots import MetadataLogEntry
from kit.cases import for_each
from kit.tables import memory_table

NOW_MS = 10 * VERSION_AGE_KEPT_MS
OLD_MS = NOW_MS - VERSION_AGE_KEPT_MS


def logged(*names, at_ms=OLD_MS):
    entries = tuple(MetadataLogEntry(timestamp_ms=at_ms, metadata_file=f"memory://t/metadata/{name}") for name in names)
    return replace(memory_table().metadata, metadata_log=entries)


def gone(before, after, current="00200-x.metadata.json"):
    found = old_metadata_files(before, after, f"memory://t/metadata/{current}", NOW_MS)
    return [location.rsplit("/", 1)[-1] for location in found]


def test_what_fell_out_of_the_log_goes_with_the_run():
    before, after = logged("00001-a.metadata.json", "00002-b.metadata.json"), logged("00002-b.metadata.json")
    assert gone(before, after) == ["00001-a.metadata.json"]


def test_the_current_file_and_what_is_spelled_otherwise_stay():
    before = logged("00001-a.metadata.json", "./00002-b.metadata.json")
    assert gone(before, logged("00002-b.metadata.json"), current="00001-a.metadata.json") == []


def test_a_file_that_is_spelled_by_another_store_stays():
    before = logged("00001-a.metadata.json", "00002-b.metadata.json")
    entries = (MetadataLogEntry(timestamp_ms=OLD_MS, metadata_file="other:/Metadata/00002-b.metadata.json"),)
    assert gone(before, replace(logged(), metadata_log=entries), current="00200-x") == ["00001-a.metadata.json"]


@for_each("location", ["", "metadata/00001-a.metadata.json", "s3:\0//t/a.metadata.json", "memory://t/data/a"])
def test_what_is_no_metadata_file_is_passed_over(location):
    """A log is text, and whoever may write metadata may write any."""
    entries = (MetadataLogEntry(timestamp_ms=OLD_MS, metadata_file=location),)
    assert gone(replace(logged(), metadata_log=entries), logged()) == []
    assert gone(logged("00001-a.metadata.json"), replace(logged(), metadata_log=entries)) == ["00001-a.metadata.json"]


def test_what_the_commit_deletes_itself_is_left_to_it():
    before = logged("00001-a.metadata.json")
    after = replace(logged(), properties={"write.metadata.delete-after-commit.enabled": "true"})
    assert gone(before, after) == []


def test_young_files_stay():
    before = logged("00001-a.metadata.json", at_ms=OLD_MS + 1)
    assert gone(before, logged()) == []


@for_each(("version", "goes"), [(99, True), (100, True), (101, False), (199, False)])
def test_of_versions_that_are_found_by_number_the_newest_hundred_stay(version, goes):
    name = f"v{version}.metadata.json"
    assert gone(logged(name), logged(), current="v200.metadata.json") == ([name] if goes else [])
