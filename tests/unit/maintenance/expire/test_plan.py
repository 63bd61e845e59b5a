"""Which old metadata files go with an expiration, and plans that are given up."""

import pytest
from msgspec.structs import replace

from icekeep.catalog.filesystem import VERSION_AGE_KEPT_MS
from icekeep.errors import ConflictError, InvalidTableError, SafetyError, UnavailableError
from icekeep.maintenance.delete import plan_file as plan_writing
from icekeep.maintenance.expire import run as execute
from icekeep.maintenance.expire.job import plan_expire_snapshots
from icekeep.maintenance.expire.plan import old_metadata_files
from icekeep.spec.snapshots import MetadataLogEntry
from kit.cases import for_each
from kit.expired_tables import ExpiredWorld
from kit.runtime import no_spark, with_runtime
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
def test_newest_hundred_numbered_versions_stay(version, goes):
    name = f"v{version}.metadata.json"
    assert gone(logged(name), logged(), current="v200.metadata.json") == ([name] if goes else [])


@pytest.fixture
def world():
    return ExpiredWorld()


def approved(world):
    """Expire what is approved, which is not planned again after a conflict."""
    arguments = {"older_than": world.runtime.now_ms(), "retain_last": 1}
    plan = plan_expire_snapshots(with_runtime(world.table, world.runtime), no_spark, **arguments)
    return world.expire(approve=plan.hash)


def test_catalog_outage_does_not_hide_a_conflict(world, monkeypatch):
    def refused(*_, **__):
        world.catalog.failing_loads = 1
        raise ConflictError("others kept changing it")

    monkeypatch.setattr(execute, "commit", refused)
    with pytest.raises(ConflictError, match="others kept changing it"):
        approved(world)
    assert [at for at in world.own() if at.endswith("plan.json")]


def test_a_plan_whose_commit_was_refused_is_forgotten(world, monkeypatch):
    def refused(*_, **__):
        raise ConflictError("others kept changing it")

    monkeypatch.setattr(execute, "commit", refused)
    with pytest.raises(ConflictError):
        approved(world)
    assert not [at for at in world.own() if at.startswith("plans/")]


@pytest.mark.parametrize("is_away", [False, True])
def test_a_broken_manifest_found_while_planning(world, monkeypatch, is_away):
    """Where Spark has the files they are worked out only then."""
    classify_files = plan_writing.classify_files

    def broken(*arguments):
        classify_files(*arguments)
        if is_away:
            world.storage.before = gone
        raise InvalidTableError("manifest 'm' is not whole")

    def gone(what, location):
        if what in ("list", "delete_many"):
            raise UnavailableError("out of reach")

    monkeypatch.setattr(plan_writing, "classify_files", broken)
    with pytest.raises(SafetyError, match="not everything can be read: manifest 'm' is not whole"):
        world.expire()
    assert bool([at for at in world.own() if at.startswith("plans/")]) is is_away
    assert len(world.table.metadata.snapshots) == 4
