"""Files that are there and cannot be read: their entries go where that is accepted, and stay where they can be read after all."""

import pytest

from icekeep.errors import UnavailableError
from icekeep.maintenance.check.job import check
from icekeep.maintenance.repair.job import plan_repair, repair
from icekeep.spec.manifests.structs import FileContent
from kit.job_world import World
from kit.lake import events
from kit.naive_scan import live_entries
from kit.no_spark import no_spark
from kit.written_deletes import data_files, delete_by_vector, delete_equal, delete_positions

pytestmark = pytest.mark.slow


def spoil(world: World, path: str) -> bytes:
    """Change bytes in the middle and at the end; returns what was there."""
    data, at = world.memory.files[path]
    spoilt = bytearray(data)
    spoilt[len(data) // 3 : len(data) // 3 + 40] = b"\xff" * 40
    spoilt[-12:] = b"\x00" * 12
    world.memory.files[path] = (bytes(spoilt), at)
    return data


def faults_of(world: World) -> set[int]:
    return {one.fault_id for one in check(world.table, no_spark, deep=True, ref="main").faults}


def with_deletes(kind: str) -> tuple[World, str, int]:
    """A world with a delete file of some kind, its location, and how many rows it deletes."""
    world = World(3 if kind == "vector" else 2)
    world.append(1)
    world.append(2)
    path = data_files(world.table)[0].file_path
    if kind == "vector":
        delete_by_vector(world.table, path, [1, 2])
    elif kind == "positions":
        delete_positions(world.table, [(path, 1), (path, 2)])
    else:
        delete_equal(world.table, events(1).slice(0, 2), ["id"])
    files = [e.data_file for e in live_entries(world.table) if e.data_file.content is not FileContent.DATA]
    return world, files[0].file_path, 2


@pytest.mark.parametrize("version", [1, 2, 3])
def test_a_broken_data_file_is_taken_out_where_its_loss_is_accepted(version):
    world = World(version)
    world.append(1)
    world.append(2)
    first, second = (file.file_path for file in data_files(world.table))
    whole = world.rows()
    spoil(world, first)
    assert faults_of(world) & {401, 405}
    state = world.state()
    result = repair(world.table, no_spark, fault=[401])
    assert "5 records are lost" in result.not_mended[0].reason
    assert world.state() == state
    result = repair(world.table, no_spark, fault=[401], accept_loss=[first])
    assert (result.status, result.lost_records_count) == ("done", 5)
    assert [file.file_path for file in data_files(world.table)] == [second]
    assert sum((whole - world.rows()).values()) == 5
    assert faults_of(world) == set()
    # The broken file itself is left where it is, for whoever can read it.
    assert first in world.memory.files


@pytest.mark.parametrize(("kind", "number"), [("vector", 414), ("positions", 413), ("equality", 413)])
def test_broken_deletes_are_taken_out_where_that_is_accepted_and_their_rows_come_back(kind, number):
    world, path, count = with_deletes(kind)
    if kind == "vector":
        file = next(e.data_file for e in live_entries(world.table) if e.data_file.file_path == path)
        data, at = world.memory.files[path]
        spoilt = bytearray(data)
        spoilt[file.content_offset + 10] ^= 0xFF
        world.memory.files[path] = (bytes(spoilt), at)
    else:
        spoil(world, path)
    assert number in faults_of(world)
    result = repair(world.table, no_spark, fault=[number])
    assert f"rows come back: {count} deletes are lost" in result.not_mended[0].reason
    result = repair(world.table, no_spark, fault=[number], accept_loss=[path])
    assert (result.status, result.lost_records_count) == ("done", count)
    assert sum(world.rows().values()) == 10
    assert faults_of(world) == set()


def test_a_file_that_is_replaced_by_a_backup_meanwhile_stays():
    world = World(2)
    world.append(1)
    world.append(2)
    path = data_files(world.table)[0].file_path
    whole = world.rows()
    data = spoil(world, path)

    def it_comes_back(operation: str, location: str) -> None:
        if operation == "write" and "/snap-" in location:
            world.memory.files[path] = (data, world.runtime.now_ms() + 1000)

    world.storage.before = it_comes_back
    result = repair(world.table, no_spark, fault=[401], accept_loss=[path])
    assert (result.mended, result.branches) == ((), ())
    assert world.rows() == whole


def test_a_store_that_is_away_is_no_broken_file():
    world = World(2)
    world.append(1)
    path = data_files(world.table)[0].file_path
    spoil(world, path)
    state = world.state()
    seen: list[str] = []

    def away(operation: str, location: str) -> None:
        if location == path and operation in ("open", "read"):
            seen.append(operation)
            # The check has read it; the repair measures it again.
            if len(seen) > 1:
                raise UnavailableError("out of reach")

    world.storage.before = away
    with pytest.raises(UnavailableError):
        plan_repair(world.table, no_spark, fault=[401], accept_loss=[path])
    world.storage.before = lambda operation, location: None
    assert len(seen) > 1
    assert world.state() == state
