"""Delete files that seem to reach nothing by what manifest lists say wrongly: they stay till that is mended."""

from copy import deepcopy
from struct import pack

import pytest

from icekeep.maintenance.check.job import check
from icekeep.maintenance.repair.job import repair
from kit.cases import Choices
from kit.damager import Damager
from kit.deletes import data_files, delete_equal, delete_positions
from kit.job_world import EVENTS, World
from kit.lake import events
from kit.naive_scan import live_entries
from kit.runtime import no_spark

pytestmark = pytest.mark.slow


def damager(world: World) -> Damager:
    return Damager(world.catalog, EVENTS, Choices(1))


def faults_of(world: World) -> set[int]:
    found = check(world.table, no_spark, ref="main")
    return {one.fault_id for one in (*found.faults, *found.notices)}


def with_a_dangling_delete(number: int) -> World:
    """A table with deletes of positions and of values, and with one more that really reaches nothing."""
    world = World(2, partition_by=[("id", "bucket[2]")] if number == 206 else ())
    world.append(1)
    world.append(2)
    file = data_files(world.table)[0]
    delete_positions(world.table, [(file.file_path, 0)])
    delete_equal(world.table, events(1, 5).slice(1, 1), ["id"], like=file if number == 206 else None)
    spoilt = damager(world)
    place = next(spoilt.entries(1))
    other = deepcopy(place.entry)
    other["data_file"]["file_path"] += "-2"
    other["data_file"]["referenced_data_file"] += "-gone"
    world.memory.files[other["data_file"]["file_path"]] = world.memory.files[place.file["file_path"]]
    spoilt.edit_manifest(place.manifest, lambda entries: entries.append(other))
    return world


def spoil(world: World, number: int) -> None:
    """Spoil what the list says of the data manifests."""
    spoilt = damager(world)
    for row in [row for row in spoilt.rows() if row["content"] == 0]:
        path = row["manifest_path"]
        if number == 204:
            spoilt.edit_row(path, added_files_count=0, existing_files_count=0)
        elif number == 207:
            spoilt.edit_row(path, min_sequence_number=99)
        else:
            summaries = deepcopy(row["partitions"])
            for one in summaries:
                one["lower_bound"] = one["upper_bound"] = pack("<i", 7)
            spoilt.edit_row(path, partitions=summaries)


@pytest.mark.parametrize("number", [204, 206, 207])
def test_deletes_that_seem_to_reach_nothing_stay_while_a_list_is_wrong(number):
    """By 204 whole data manifests would be left out of the new list, as such that hold nothing."""
    world = with_a_dangling_delete(number)
    rows, entries = world.rows(), len(live_entries(world.table))
    spoil(world, number)
    assert {214, number} <= faults_of(world)
    state = world.state()
    result = repair(world.table, no_spark, fault=[214])
    assert result.mended == ()
    assert f"repair {number} first" in result.not_mended[0].reason
    assert world.state() == state
    repair(world.table, no_spark, fault=[number])
    repair(world.table, no_spark, fault=[214])
    assert not {214, number} & faults_of(world)
    assert world.rows() == rows
    assert len(live_entries(world.table)) == entries - 1
