"""What a report says of metadata files that left the log: whether they are there, by one listing where any may be."""

import os

from msgspec.structs import replace

from icekeep.catalog.filesystem import FilesystemCatalog
from icekeep.errors import UnavailableError
from icekeep.health import job as lost_metadata
from icekeep.health.job import table_health, with_lost_metadata
from icekeep.health.prices import Prices
from icekeep.maintenance.orphans.job import plan_remove_orphan_files, remove_orphan_files
from icekeep.reports.job import report
from icekeep.spec.types import DAY_MS
from icekeep.storage.local.storage import LocalStorage
from icekeep.tables.verbs import append, create_table
from kit.job_world import EVENTS, World
from kit.lake import SCHEMA, events
from kit.runtime import no_spark

PRICES = Prices(million_requests=1_000_000.0)


def world_with_lost_metadata(**properties):
    world = World(2, write__metadata__previous_versions_max="2", **properties)
    for number in range(6):
        world.append(number)
    world.runtime.pass_ms(4 * DAY_MS)
    return world


def orphans(health):
    return next(one for one in health.jobs if one.job == "remove_orphan_files")


def reported_by(catalog):
    return orphans(report(catalog, no_spark).tables[0])


def reported(world):
    return reported_by(world.catalog)


def test_a_report_tells_the_files_that_the_job_finds():
    world = world_with_lost_metadata()
    plan = plan_remove_orphan_files(world.table, no_spark)
    found = reported(world)
    assert (found.files_count, found.freed_bytes) == (plan.orphan_files_count, plan.orphan_bytes_count)
    assert found.reason == f"{plan.orphan_files_count} metadata files left the log and were not deleted"
    assert found.command


def test_what_was_removed_is_not_proposed_until_more_is_there():
    """Also while what was removed is in the trash."""
    world = world_with_lost_metadata()
    before = reported(world)
    assert remove_orphan_files(world.table, no_spark, trash="3d").is_in_trash
    found = reported(world)
    assert (found.has_work, found.files_count, found.freed_bytes, found.command) == (False, 0, 0, "")
    assert found.requests_count == before.requests_count - before.files_count
    world.append(7)
    # What left the log with this commit has been there for days.
    assert reported(world).files_count == 1


def test_costs_are_those_of_what_is_there():
    world = world_with_lost_metadata()
    before = table_health(world.table, no_spark, prices=PRICES)
    remove_orphan_files(world.table, no_spark, trash=0)
    found = orphans(with_lost_metadata(before, world.table, PRICES))
    assert found.cost == found.requests_count < orphans(before).cost


def test_a_table_that_has_lost_none_is_not_listed():
    world = World(2)
    world.append(1)
    health = table_health(world.table, no_spark)
    assert with_lost_metadata(health, world.table, None) is health


def test_what_lies_elsewhere_is_not_proposed():
    """By default the job lists only the table's location."""
    world = world_with_lost_metadata(write__metadata__path="memory://elsewhere/events")
    assert orphans(table_health(world.table, no_spark)).has_work
    assert not plan_remove_orphan_files(world.table, no_spark).orphan_files_count
    assert not reported(world).has_work


def test_a_long_listing_is_cut_off(monkeypatch):
    world = world_with_lost_metadata()
    health = table_health(world.table, no_spark)
    monkeypatch.setattr(lost_metadata, "NAMES_MAX", 0)
    assert orphans(with_lost_metadata(health, world.table, None)) == orphans(health)
    metadata_first = sorted(world.memory.files)
    monkeypatch.setattr(lost_metadata, "NAMES_MAX", 3)
    monkeypatch.setattr(world.memory, "files", {name: world.memory.files[name] for name in metadata_first})
    found = orphans(with_lost_metadata(health, world.table, None))
    assert found.reason.startswith(f"at least {found.files_count} metadata files")


def test_failed_listing_is_noted_and_the_rest_stands():
    world = world_with_lost_metadata()
    health = table_health(world.table, no_spark)

    class Refusing:
        def list_share(self, share):
            raise UnavailableError(f"access to {share.prefix!r} is denied")

    found = with_lost_metadata(health, replace(world.table, storage=Refusing()), None)
    assert found.jobs == health.jobs
    assert found.not_measured[-1].startswith("which metadata files that left the log are still there: access to ")


def test_versions_kept_by_directory_catalog_are_not_proposed(tmp_path):
    """The newest hundred stay, whatever the log has."""
    catalog = FilesystemCatalog("local", {"warehouse": f"file://{tmp_path}/warehouse"}, LocalStorage())
    catalog.create_namespace(EVENTS[:-1])
    table = create_table(catalog, EVENTS, SCHEMA, properties={"write.metadata.previous-versions-max": "2"})
    for number in range(6):
        table = append(table, [events(number, 1)])
    for path in tmp_path.rglob("*.metadata.json"):
        os.utime(path, (0, 0))
    assert report(catalog, no_spark).tables[0].metadata.lost_metadata_files_count
    assert not plan_remove_orphan_files(table, no_spark).orphan_files_count
    assert not reported_by(catalog).has_work
