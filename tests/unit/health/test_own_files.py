"""What a report says of icekeep's own files of a table: by the very plans that an expiration leaves."""

from msgspec.structs import replace

from icekeep.errors import UnavailableError
from icekeep.health.job import table_health
from icekeep.health.values import OwnFiles, with_own_files
from icekeep.maintenance.delete.plan_file import trash_directory
from icekeep.maintenance.delete.reachable import FileKind, GarbageFile
from icekeep.maintenance.expire.job import expire_snapshots
from icekeep.reports.job import report
from icekeep.reports.prometheus import report_figures
from icekeep.tables.verbs import append
from kit.expired_tables import in_trash, written_plan
from kit.job_world import World
from kit.lake import events
from kit.runtime import no_spark

DAY_MS = 86_400_000


def world_with_history(snapshots=4):
    world = World(2)
    table = world.catalog.load(("db", "events"))
    for number in range(snapshots):
        table = append(table, [events(number, 5)])
    world.runtime.pass_ms(DAY_MS)
    return world


def expire(world, **arguments):
    table = world.catalog.load(("db", "events"))
    now = world.runtime.now_ms()
    return expire_snapshots(table, no_spark, older_than=now, retain_last=1, **arguments)


def looked_at(world):
    table = world.catalog.load(("db", "events"))
    health = table_health(table, no_spark)
    return health, with_own_files(health, table)


def test_a_table_without_any_takes_one_listing():
    before, found = looked_at(world_with_history())
    assert found.own_files == OwnFiles()
    assert (before.own_files, before.not_measured) == (None, found.not_measured)
    assert found.requests_count == before.requests_count + 1


def test_what_is_in_the_trash_and_until_when():
    world = world_with_history()
    done = expire(world, trash="3d")
    assert done.is_in_trash
    _, found = looked_at(world)
    own = found.own_files
    deleted = done.deleted_manifest_files_count + done.deleted_manifest_lists_count
    assert (own.waiting_plans_count, own.waiting_created_ms) == (0, None)
    assert (own.trash_files_count, own.trash_bytes) == (deleted, done.deleted_bytes_count)
    assert own.trash_until_ms == world.runtime.now_ms() + 3 * DAY_MS


def test_a_plan_that_waits_for_its_grace():
    world = world_with_history()
    made_ms = world.runtime.now_ms()
    done = expire(world, trash="0", options={"grace": "36h"})
    assert done.left_files_count > 0
    world.runtime.pass_ms(DAY_MS)
    _, found = looked_at(world)
    own = found.own_files
    assert (own.waiting_plans_count, own.waiting_created_ms) == (1, made_ms)
    assert (own.trash_files_count, own.trash_bytes, own.trash_until_ms) == (0, 0, None)


def test_a_plan_of_the_trash_that_died_waits_too():
    world = world_with_history()
    expire(world, trash="3d")
    table = world.catalog.load(("db", "events"))
    [run] = world.memory.child_names(trash_directory(table.metadata))
    world.memory.delete_many([f"{trash_directory(table.metadata)}/{run}/done.json"])
    own = looked_at(world)[1].own_files
    assert own.waiting_plans_count == 1
    assert own.trash_files_count > 0


def test_plans_are_summed_up():
    world = world_with_history()
    table = world.catalog.load(("db", "events"))
    runs = {"one": (True, 100), "two": (True, 20), "three": (False, 3), "four": (False, 4)}
    for run, (trash, size) in runs.items():
        location = f"{table.metadata.location}/data/{run}"
        world.memory.create(location, b"x")
        files = [GarbageFile(FileKind.DATA, location, size)]
        plan = written_plan(table, files, run=run, trash=trash, runtime=world.runtime)
        if run == "one":
            in_trash(plan, world.memory)
        world.runtime.pass_ms(DAY_MS)
    began_ms = world.runtime.now_ms() - 4 * DAY_MS
    assert looked_at(world)[1].own_files == OwnFiles(
        waiting_plans_count=3,
        waiting_bytes=27,
        waiting_created_ms=began_ms + DAY_MS,
        trash_files_count=2,
        trash_bytes=120,
        trash_until_ms=began_ms + 3 * DAY_MS,
    )


def test_where_nothing_can_be_listed_it_is_said_and_the_rest_stands():
    world = world_with_history()
    table = world.catalog.load(("db", "events"))
    health = table_health(table, no_spark)

    class Refusing:
        def child_names(self, location):
            raise UnavailableError(f"access to {location!r} is denied")

    found = with_own_files(health, replace(table, storage=Refusing()))
    assert found.own_files is None
    assert found.not_measured[-1].startswith("plans that wait, and the trash: access to ")
    assert found.score == health.score


def test_a_report_tells_it_also_as_metrics():
    world = world_with_history()
    table = world.catalog.load(("db", "events"))
    written_plan(table, [GarbageFile(FileKind.DATA, f"{table.metadata.location}/x", 7)], runtime=world.runtime)
    [found] = report(world.catalog, no_spark).tables
    assert found.own_files.trash_bytes == 7
    told = {one.metric.name.removeprefix("icekeep_table_"): one.value for one in report_figures(report(world.catalog))}
    assert told["trash_bytes"] == found.own_files.trash_bytes
    assert told["trash_until_timestamp_seconds"] == found.own_files.trash_until_ms / 1000
    assert told["waiting_deletion_plans"] == 1
    assert told["waiting_since_timestamp_seconds"] == world.runtime.now_ms() / 1000
