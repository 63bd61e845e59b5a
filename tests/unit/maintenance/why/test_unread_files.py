"""Files that no snapshot reads: garbage, orphans, in the trash, in plans that wait; and what cannot be read."""

import pytest
from msgspec.structs import replace

from icekeep.errors import UnsupportedError, UsageError
from icekeep.maintenance.delete.lease import RESTORE, take_lease
from icekeep.maintenance.delete.reachable import FileKind, GarbageFile
from icekeep.maintenance.why.job import why
from icekeep.maintenance.why.reasons import FileState
from icekeep.spec.snapshots import MetadataLogEntry
from kit.expired_tables import DAY_MS, ExpiredWorld, written_plan
from kit.runtime import no_spark, with_runtime
from kit.tables import add, data_file, manifests_of

A, B, C, AB = (data_file(name).file_path for name in ("a", "b", "c", "ab"))


@pytest.fixture
def world():
    """`ab` took the places of `a` and `b` ten days ago."""
    return ExpiredWorld()


def told(world, path, **more):
    return why(with_runtime(world.table, world.runtime), path, no_spark, **more)


def test_what_the_next_expiration_takes_is_told_so(world):
    result = told(world, A)
    assert (result.state, result.retained_until_ms) == (FileState.RETAINED, world.runtime.now_ms())
    assert "the next `expire_snapshots` drops" in result.answer


def test_a_file_in_the_trash_has_its_run(world):
    began_ms = world.runtime.now_ms()
    world.expire(trash=3)
    result = told(world, A)
    assert (result.kind, result.state, result.file_path) == ("data file", FileState.TRASH, A)
    (plan,) = result.plans
    assert (plan.job, plan.place, plan.is_restorable) == ("expire_snapshots", "trash", True)
    assert (plan.created_ms, plan.until_ms) == (began_ms, began_ms + 3 * DAY_MS)
    assert f"`icekeep restore --table local.db.events --run {plan.run}` brings it back" in result.answer
    in_trash = next(at for at in world.memory.files if "/trash/" in at and at.endswith("/data/a"))
    assert told(world, in_trash) == told(world, "data/a") == result
    assert [event.event for event in result.history] == ["removed"]
    world.restore()
    assert told(world, A).state is FileState.RETAINED


def test_a_file_whose_plan_waits_is_told_with_the_moment(world):
    began_ms = world.runtime.now_ms()
    world.expire(options={"grace": "2d"})
    result = told(world, A)
    assert (result.state, result.is_in_storage) == (FileState.PLANNED, True)
    assert [(p.place, p.until_ms) for p in result.plans] == [("in place", began_ms + 2 * DAY_MS)]
    manifest_list = next(
        at for at in world.memory.files if "/snap-" in at and told(world, at).state is FileState.PLANNED
    )
    assert told(world, manifest_list).kind == "manifest list"


def test_removed_file_that_still_exists_is_garbage(world):
    world.expire()
    assert told(world, A).state is FileState.GONE
    assert "its file is deleted" in told(world, A).answer
    world.memory.create(A, b"back")
    result = told(world, A)
    assert (result.state, result.kind) == (FileState.GARBAGE, "data file")
    assert [event.operation for event in result.history] == ["replace"]
    assert result.removable_after_ms == world.runtime.now_ms() + 3 * DAY_MS
    assert "takes it from 2023-" in result.answer


def test_an_orphan_is_told_with_the_moment_at_which_it_goes(world):
    lost = data_file("lost").file_path
    world.memory.create(lost, b"stray")
    young = told(world, lost)
    assert (young.state, young.is_in_storage) == (FileState.ORPHAN, True)
    assert "it lies there since 2023-11-24" in young.answer
    assert young.removable_after_ms == young.created_ms + 3 * DAY_MS
    assert told(world, "data/lost") == young
    world.pass_days(3)
    assert world.remove_orphans().deleted_files_count == 0
    world.runtime.pass_ms(1)
    assert "the next `remove_orphan_files` takes it" in told(world, lost).answer
    world.remove_orphans()
    assert lost not in world.memory.files
    assert told(world, lost).state is FileState.UNKNOWN


@pytest.mark.parametrize(
    ("name", "state", "says"),
    [
        ("db/events/data/_hidden/x", FileState.ORPHAN, "does not look at hidden names"),
        ("db/events/.icekeep/runs/r1/x", FileState.OWN, "icekeep's own"),
        ("db/others/x", FileState.ELSEWHERE, "in no place of the table"),
        ("db/events/metadata/x.metadata.json", FileState.ORPHAN, "refuses to go on because of it"),
    ],
)
def test_file_that_orphan_removal_keeps_has_a_reason(world, name, state, says):
    location = f"memory://lake/wh/{name}"
    world.memory.create(location, b"{}")
    world.pass_days(5)
    result = told(world, location)
    assert (result.state, result.removable_after_ms) == (state, None)
    assert says in result.answer


def test_what_was_never_there(world):
    for path in ("memory://lake/wh/db/events/data/none", "none"):
        result = told(world, path)
        assert (result.state, result.is_in_storage, result.history, result.plans) == (FileState.UNKNOWN, False, (), ())
    world.leave("lost1", "lost2")
    world.memory.create(data_file("x/lost1").file_path, b"")
    with pytest.raises(UsageError, match="2 files end with 'lost1'"):
        told(world, "lost1")


def test_a_missing_file_has_the_run_that_took_it(world):
    world.expire(trash=3)
    run = told(world, A).plans[0].run
    world.adopt("a")
    result = told(world, A)
    assert (result.state, result.is_in_storage) == (FileState.CURRENT, False)
    assert f"it is in the trash: `icekeep restore --table local.db.events --run {run}`" in result.answer
    del world.memory.files[C]
    assert "it is not in storage: readers of these fail" in told(world, C).answer


@pytest.mark.parametrize("what", ["manifest", "list"])
def test_beside_what_cannot_be_read_nothing_is_an_orphan(world, what):
    table = world.table
    broken = manifests_of(table)[-1].manifest_path if what == "manifest" else table.metadata.snapshots[0].manifest_list
    world.memory.files[broken] = (b"broken", world.runtime.now_ms())
    world.leave("lost")
    orphan, live = told(world, data_file("lost").file_path), told(world, C)
    assert orphan.state is FileState.UNDECIDED
    assert live.is_in_storage
    for result in (orphan, live):
        assert result.unreadable_files == (broken,)
        assert result.notes[0].startswith(f"could not look into {broken}: ")
        assert result.notes[-1].startswith("so it may also be read by snapshot ")
    if what == "list":
        assert orphan.notes[-1].endswith(str(table.metadata.snapshots[0].snapshot_id))
        # Its snapshot may have the file for all that is known: it has not been added by the next, nor removed.
        assert told(world, A).history[0].event == "added"
    assert told(world, "none").state is FileState.UNDECIDED


def test_a_list_that_counts_other_files(world):
    table = world.table
    *others, last = table.metadata.snapshots
    wrong = replace(last, summary={**last.summary, "total-data-files": "7"})
    table = replace(table, metadata=replace(table.metadata, snapshots=(*others, wrong)))
    result = why(table, C, no_spark)
    assert result.unreadable_files == (last.manifest_list,)
    assert "says total-data-files 7" in result.notes[0]
    assert why(table, C, no_spark, trust_manifest_list=True).unreadable_files == ()


def test_removed_file_is_undecided_if_metadata_is_unreadable(world):
    world.expire()
    world.memory.create(A, b"back")
    broken = manifests_of(add_one(world))[0].manifest_path
    world.memory.files[broken] = (b"broken", world.runtime.now_ms())
    assert told(world, A).state is FileState.UNDECIDED


def add_one(world):
    world.adopt("d")
    return world.table


def test_an_unreadable_list_removes_nothing(world):
    assert [event.event for event in told(world, A).history] == ["added", "removed"]
    world.memory.files[world.table.current_snapshot.manifest_list] = (b"broken", world.runtime.now_ms())
    result = told(world, A)
    assert [event.event for event in result.history] == ["added"]
    assert result.answer.startswith("as far as can be read, the current version does not have it")


def test_a_plan_whose_snapshots_are_in_the_table_takes_no_file(world):
    world.leave("lost")
    lost = data_file("lost").file_path
    table = with_runtime(world.table, world.runtime)
    ids = [snapshot.snapshot_id for snapshot in table.metadata.snapshots[:1]]
    written_plan(table, [GarbageFile(FileKind.DATA, lost)], snapshot_ids=ids, trash=False, runtime=world.runtime)
    assert told(world, lost).state is FileState.ORPHAN


@pytest.mark.parametrize("deletes", [False, True])
def test_plans_in_a_restore_and_in_a_deletion(world, deletes):
    world.expire(options={"grace": "1d"})
    (plan,) = told(world, A).plans
    table, now_ms = world.table, world.runtime.now_ms() + DAY_MS
    world.pass_days(1)
    directory = f"{table.metadata.location}/.icekeep/plans/{plan.run}"
    claim = take_lease(directory, "expire_snapshots" if deletes else RESTORE, table.storage, world.runtime, now_ms)
    if deletes:
        claim.begin_deleting(table.storage, world.runtime)
    (told_now,) = told(world, A).plans
    assert told_now.is_restorable is not deletes
    assert told_now.until_ms == (now_ms if deletes else now_ms + DAY_MS)


def test_files_of_living_runs_and_in_other_places(world):
    run = "11112222-3333-4444-5555-666677778888"
    world.leave(f"00000-{run}.parquet")
    world.memory.create(f"{world.table.metadata.location}/.icekeep/runs/{run}/alive-000001.json", b"{}")
    assert "is at work" in told(world, data_file(f"00000-{run}.parquet").file_path).answer
    table = with_runtime(world.table, world.runtime)
    elsewhere = replace(table.metadata, properties={"write.data.path": "memory://lake/elsewhere"})
    world.memory.create("memory://lake/elsewhere/d/x", b"")
    assert why(replace(table, metadata=elsewhere), "memory://lake/elsewhere/d/x", no_spark).state == FileState.ELSEWHERE
    world.catalog.reclaim_roots = ("memory://lake/elsewhere",)
    result = why(replace(table, metadata=elsewhere), "memory://lake/elsewhere/d/x", no_spark)
    assert (result.state, result.removable_after_ms) == (FileState.ORPHAN, None)
    assert "--location memory://lake/elsewhere/d" in result.answer


def test_file_outside_the_table_is_said_to_stay(world):
    imported = replace(data_file("x"), file_path="memory://lake/imported/x")
    add(world.table, imported)
    result = told(world, "imported/x")
    assert (result.state, result.file_path) == (FileState.CURRENT, imported.file_path)
    assert "in no place of the table" in result.notes[0]


def test_manifests_of_a_missing_spec_are_unreadable(world):
    table = world.table
    other = replace(table.metadata.spec, spec_id=1)
    lacking = replace(table.metadata, partition_specs=(other,), default_spec_id=1)
    result = why(replace(table, metadata=lacking), C, no_spark)
    assert result.state is FileState.UNDECIDED
    assert {*result.unreadable_files} >= {manifest.manifest_path for manifest in manifests_of(table)}
    assert "partition spec 0" in result.notes[0]


def test_beside_an_unreadable_plan_nothing_is_an_orphan(world):
    world.expire(options={"grace": "2d"})
    part = next(at for at in world.memory.files if at.endswith(".jsonl"))
    world.memory.files[part] = (b'{"kind": 1}', world.runtime.now_ms())
    world.leave("lost")
    result = told(world, data_file("lost").file_path)
    assert result.state is FileState.UNDECIDED
    assert ".icekeep/plans/" in result.unreadable_files[0]


def test_statistics_that_older_metadata_names_are_no_orphan(world):
    statistics = "memory://lake/wh/db/events/metadata/old.stats"
    world.memory.create(statistics, b"puffin")
    older = f"{world.table.metadata.location}/metadata/older.metadata.json"
    world.memory.create(older, b'{"statistics": [{"statistics-path": "%s"}]}' % statistics.encode())
    table = with_runtime(world.table, world.runtime)
    log = (*table.metadata.metadata_log, MetadataLogEntry(timestamp_ms=1, metadata_file=older))
    result = why(replace(table, metadata=replace(table.metadata, metadata_log=log)), statistics, no_spark)
    assert (result.state, result.kind) == (FileState.RETAINED, "statistics file")
    assert told(world, statistics).state is FileState.ORPHAN


def test_gc_disabled_is_noted_and_encryption_refused(world):
    table = world.table
    kept = replace(table.metadata, properties={"gc.enabled": "false"})
    assert "gc.enabled=false" in why(replace(table, metadata=kept), A, no_spark).notes[-1]
    wrong = replace(table.metadata, properties={"history.expire.max-snapshot-age-ms": "soon"})
    assert "when it expires cannot be determined" in why(replace(table, metadata=wrong), A, no_spark).notes[0]
    encrypted = replace(table.metadata, properties={"encryption.key-id": "k"})
    with pytest.raises(UnsupportedError, match="why refuses the table"):
        why(replace(table, metadata=encrypted), A, no_spark)
