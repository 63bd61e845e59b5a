"""A repair taken back: the branches that end with it, and nothing else."""

import pytest

from icekeep.errors import NotFoundError, SafetyError
from icekeep.maintenance.repair.job import repair
from icekeep.maintenance.restore.job import list_restorable, restore
from icekeep.tables.refs import create_branch, create_tag
from icekeep.tables.verbs import append
from kit.cases import Choices
from kit.damager import Damager
from kit.job_world import EVENTS, World
from kit.lake import events
from kit.runtime import no_spark


def repaired(version: int = 2):
    """A world of two branches with faults, and the result of a repair of both."""
    world = World(version)
    world.append(1)
    create_branch(world.table, "audit")
    world.append(2)
    damager = Damager(world.catalog, EVENTS, Choices(3))
    for place in [*damager.entries()]:
        damager.edit_file(place, file_size_in_bytes=place.file["file_size_in_bytes"] + 1)
    heads = {name: ref.snapshot_id for name, ref in world.table.metadata.refs.items()}
    result = repair(world.table, no_spark, fault=[302])
    assert [one.branch for one in result.branches] == ["main", "audit"]
    return world, heads, result


def heads_of(world: World) -> dict[str, int]:
    return {name: ref.snapshot_id for name, ref in world.table.metadata.refs.items()}


@pytest.mark.parametrize("version", [1, 2, 3])
def test_the_branches_of_a_repair_go_back_to_their_snapshots_before_it(version):
    world, heads, result = repaired(version)
    assert heads_of(world) != heads
    files = {*world.memory.files}
    [listed] = list_restorable(world.table)
    assert (listed.run, listed.job, listed.files_count) == (result.run, "repair", 0)
    back = restore(world.table, run=result.run)
    assert (back.status, back.job) == ("done", "repair")
    assert back.restored_branches == ("audit", "main")
    assert heads_of(world) == heads
    assert files < {*world.memory.files}
    assert list_restorable(world.table) == ()
    with pytest.raises(SafetyError, match=r"no branch ends with a snapshot of run .*: it was taken back before"):
        restore(world.table, run=result.run)


def test_later_commits_are_not_lost_with_it():
    world, _, result = repaired()
    world.append(5)
    heads = heads_of(world)
    back = restore(world.table, run=result.run)
    assert (back.status, back.restored_branches) == ("partial", ("audit",))
    assert (back.note or "").startswith("branches that have later commits keep it: 'main'; ")
    with pytest.raises(SafetyError, match="would lose the commits after it"):
        restore(world.table, run=result.run)
    assert heads_of(world)["main"] == heads["main"]


def test_a_tag_stays_where_it_is_and_a_run_that_is_not_there_is_told():
    world, heads, result = repaired()
    create_tag(world.table, "mended")
    restore(world.table, run=result.run)
    assert heads_of(world)["main"] == heads["main"] != heads_of(world)["mended"]
    # Of a script whose variable was empty nobody knows which repair it means.
    for run in ("repair-of-another-table", "repair-"):
        with pytest.raises(NotFoundError, match="no snapshot of table"):
            restore(world.table, run=run)


def test_a_branch_that_was_made_of_what_was_mended_goes_back_unless_it_has_commits():
    """Nobody can tell it from one that the repair mended; a tag keeps what was fixed."""
    world, heads, result = repaired()
    create_branch(world.table, "later")
    create_branch(world.table, "further")
    append(world.table, [events(7, 5)], branch="further")
    further = heads_of(world)["further"]
    back = restore(world.table, run=result.run)
    assert (back.status, back.restored_branches) == ("partial", ("audit", "later", "main"))
    assert heads_of(world) == {**heads, "later": heads["main"], "further": further}


def test_what_was_restored_before_is_not_what_the_newest_run_means():
    world, _, result = repaired()
    with pytest.raises(
        NotFoundError,
        match=f"nothing to restore .*; a repair is taken back by its name: `icekeep restore .* --run {result.run}`",
    ):
        restore(world.table)


def test_a_repair_that_names_its_run_as_repairs_did_before_goes_back_too():
    world, heads, result = repaired()
    location = world.pointer()
    data, *rest = world.memory.files[location]
    assert data.count(b'"icekeep.run-id"') == 2
    world.memory.files[location] = (data.replace(b'"icekeep.run-id"', b'"icekeep.run"'), *rest)
    [listed] = list_restorable(world.table)
    assert listed.run == result.run
    assert restore(world.table, run=result.run).status == "done"
    assert heads_of(world) == heads
