"""What is remembered of metadata: shared room, and nothing kept behind."""

import pytest

from icekeep.errors import InvalidTableError
from icekeep.health import values as metered
from icekeep.health.job import table_health
from icekeep.health.values import MeteredStorage, Room
from icekeep.reports import job
from kit.job_world import World
from kit.runtime import no_spark
from kit.storage import MemoryStorage


def storage_of(**files: int) -> MemoryStorage:
    storage = MemoryStorage()
    for name, size in files.items():
        storage.create(f"memory://wh/{name}", b"x" * size)
    return storage


def test_tables_that_are_looked_at_at_once_share_one_room():
    storage, room = storage_of(a=60, b=60, c=40), Room(100)
    first, second = MeteredStorage(storage, room), MeteredStorage(storage, room)
    with first:
        with second:
            for one, name in ((first, "a"), (second, "b"), (second, "c")):
                for _ in range(2):
                    assert len(one.read(f"memory://wh/{name}")) == storage.head(f"memory://wh/{name}").size_bytes
            # There was no room for the second of the three.
            assert (first.requests_count, second.requests_count) == (1, 3)
        # What one gives back another may take.
        first.read("memory://wh/c")
        first.read("memory://wh/c")
        assert first.requests_count == 2
    assert room.take(100)


def test_a_look_leaves_nothing_in_memory_however_it_ends(monkeypatch):
    world = World(2)
    for number in range(3):
        world.append(number)
    room = Room(1_000_000)
    monkeypatch.setattr(metered.MeteredStorage.__init__, "__defaults__", (room,))
    table_health(world.table, no_spark)
    (manifest_list,) = [one for one in world.memory.files if "snap-" in one][-1:]
    world.memory.files[manifest_list] = (b"broken", world.memory.files[manifest_list][1])
    with pytest.raises(InvalidTableError):
        table_health(world.table, no_spark)
    assert room.take(1_000_000)


def test_a_table_of_many_snapshots_is_looked_at_alone(monkeypatch):
    world = World(2)
    world.append(1)
    assert not job._is_large(world.table)
    monkeypatch.setattr(job, "LARGE_SNAPSHOTS_COUNT", 0)
    assert job._is_large(world.table)
