"""In which order tables are worked on, and what is counted of their requests."""

import pickle
from collections import Counter

import msgspec
import pytest

from icekeep.commit.changes.definitions import ChangeProperties
from icekeep.commit.retry import commit
from icekeep.fleet.overview import counted, in_order
from icekeep.maintenance.compact.job import compact
from icekeep.maintenance.expire.job import expire_snapshots
from icekeep.planning.memory import Memory
from icekeep.storage.base import DeleteStatus
from icekeep.storage.wrappers import NAMES_A_REQUEST, CountedStorage, Meter
from kit.cases import for_each
from kit.job_world import World
from kit.runtime import no_spark
from kit.storage import MemoryStorage


class Table(msgspec.Struct):
    name: str
    worth: float
    tried_ms: int | None = None
    cut_off_ms: int | None = None
    due: tuple[str, ...] = ("compact",)
    health: None = None

    def value(self, prices):
        return self.worth if self.due else 0.0


def order_of(*tables):
    return " ".join(one.name for one in in_order(tables, None))


def cut(name, worth, at_ms):
    return Table(name, worth, at_ms, at_ms)


@for_each(
    ("tables", "expected"),
    [
        ([Table("a", 1), Table("b", 3), Table("c", 2)], "b c a"),
        # Nobody else was tried since: it comes last of those that are due.
        ([Table("a", 1), cut("big", 9, 50), Table("c", 2, 49), Table("idle", 0, None, None, ())], "c a big idle"),
        # All others were: it comes by its value again.
        ([Table("a", 1, 51), cut("big", 9, 50), Table("c", 2, 60)], "big c a"),
        ([Table("a", 1, 51), cut("small", 1.5, 50), Table("c", 2, 60)], "c small a"),
        # One was not: it comes right after that.
        ([Table("a", 1, 51), cut("big", 9, 50), Table("c", 2, 49)], "c big a"),
        # Of two the one that was cut off last comes last.
        ([cut("big", 9, 50), cut("great", 8, 40), Table("c", 2, 30)], "c great big"),
        ([cut("big", 9, 50), cut("great", 8, 40), Table("c", 2, 45)], "great c big"),
    ],
)
def test_job_cut_off_comes_after_jobs_not_tried_since(tables, expected):
    assert order_of(*tables) == expected
    assert order_of(*reversed(tables)) == expected


def test_requests_count_once_and_deletes_by_thousand():
    meter, storage = Meter(), MemoryStorage()
    over = CountedStorage(storage, meter)
    with over.write("memory://lake/t/a") as stream:
        stream.write(b"a")
    over.create("memory://lake/t/b", b"b")
    assert over.read("memory://lake/t/a") == over.open("memory://lake/t/a").read() == b"a"
    assert over.head("memory://lake/t/b").size_bytes == 1
    assert len([*over.list("memory://lake/t")]) == len(over.child_names("memory://lake/t")) == 2
    shares = over.shares("memory://lake/t", 1)
    assert len([*over.list_share(shares[0])]) == 2
    assert meter.requests_count == 8
    over.move("memory://lake/t/a", "memory://lake/t/c")
    over.move_many([("memory://lake/t/b", "memory://lake/t/d"), ("memory://lake/t/c", "memory://lake/t/e")])
    assert meter.requests_count == 11
    names = [
        "memory://lake/t/d",
        "memory://lake/t/e",
        *(f"memory://lake/t/{number}" for number in range(NAMES_A_REQUEST - 1)),
    ]
    statuses = Counter(one.status for one in over.delete_many(iter(names)))
    assert statuses == {DeleteStatus.DELETED: 2, DeleteStatus.MISSING: NAMES_A_REQUEST - 1}
    assert meter.requests_count == 13


def test_in_a_task_it_is_the_storage_itself():
    assert type(pickle.loads(pickle.dumps(CountedStorage(MemoryStorage(), Meter())))) is MemoryStorage


@pytest.mark.slow
@pytest.mark.parametrize("is_remembered", [False, True])
def test_store_requests_of_jobs_are_counted_without_catalog(is_remembered):
    plain = World(2)
    for number in range(7):
        plain.append(number)
    world, meter, seen = plain.copy(), Meter(), []
    world.storage.before = lambda operation, location: seen.append((operation, location))
    deletions, delete_many = [], world.storage.delete_many

    def delete(locations):
        deletions.append([*locations])
        return delete_many(deletions[-1])

    world.storage.delete_many = delete
    table = counted(world.table, meter)
    table = Memory().over(table) if is_remembered else table
    compact(table, no_spark)
    after_one = meter.requests_count
    assert after_one > 10
    expire_snapshots(table.refresh(), no_spark, older_than=world.runtime.now_ms(), retain_last=1)
    assert meter.requests_count > after_one
    asked = [operation for operation, location in seen if not location.endswith(".metadata.json")]
    # Of these each call is a request, however many names it has; the first two are the catalog's.
    one_by_one = [operation for operation in asked if operation not in ("load", "swap", "delete_many")]
    calls = [names for names in deletions if any(not one.endswith(".metadata.json") for one in names)]
    assert meter.requests_count == len(one_by_one) + len(calls)
    assert 0 < len(calls) < asked.count("delete_many")
    compact(plain.table, no_spark)
    assert world.rows() == plain.rows()
    assert world.lost_files() == set()


def test_table_is_still_counted_after_commit_or_refresh():
    world, meter = World(2), Meter()
    world.append(1)
    table = counted(world.table, meter)
    for act in (
        lambda: table.refresh(),
        lambda: commit(table, ChangeProperties(updates={"a": "b"}), runtime=world.runtime).table,
    ):
        after, before = act(), meter.requests_count
        after.storage.head(after.metadata_location)
        assert meter.requests_count == before + 1
        assert after.catalog.name == world.catalog.name
