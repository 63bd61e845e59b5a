"""The files that a metadata log names, and the uuid of the newest of them."""

import msgspec
import pytest

from icekeep.catalog.base import Table
from icekeep.errors import UnavailableError, UnsupportedError, UsageError
from icekeep.events import SILENT
from icekeep.maintenance.check.faults import Tally
from icekeep.maintenance.check.lists import CheckedTable
from icekeep.maintenance.check.metadata import check_logs
from icekeep.spec.snapshots import MetadataLogEntry
from kit.faults import told
from kit.memory_catalog import MemoryCatalog
from kit.storage import HookedStorage, MemoryStorage
from kit.tables import add, memory_table


def looked_at(table: Table) -> Tally:
    tally = Tally()
    check_logs(CheckedTable(table=table, snapshots=(), spark=None, listener=SILENT, tally=tally))
    return tally


def logged(table: Table) -> list[str]:
    return [entry.metadata_file for entry in table.metadata.metadata_log]


def with_log(table: Table, *locations: str) -> Table:
    log = tuple(MetadataLogEntry(timestamp_ms=0, metadata_file=location) for location in locations)
    return msgspec.structs.replace(table, metadata=msgspec.structs.replace(table.metadata, metadata_log=log))


def with_storage(table: Table, hook) -> Table:
    return msgspec.structs.replace(table, storage=HookedStorage(table.storage, before=hook))


@pytest.fixture
def storage() -> MemoryStorage:
    return MemoryStorage()


@pytest.fixture
def table(storage) -> Table:
    table = memory_table(MemoryCatalog(storage))
    for name in ("a", "b", "c"):
        table = add(table, name)
    assert len(logged(table)) == 3
    return table


def overwrite(storage: MemoryStorage, location: str, data: bytes) -> None:
    storage.delete_many([location])
    storage.create(location, data)


def test_a_log_whose_files_are_there_and_of_the_table_is_sound(table):
    tally = looked_at(table)
    assert (told(tally), tally.gaps()) == ([], ())


def test_a_file_of_the_log_that_is_missing_is_told(table, storage):
    storage.delete_many(logged(table)[:1])
    assert told(looked_at(table)) == [(138, logged(table)[0])]


def test_another_uuid_in_the_metadata_before_is_told(table, storage):
    overwrite(storage, logged(table)[-1], b'{"table-uuid": "0d5e5e3f-0000-4000-8000-000000000000"}')
    tally = looked_at(table)
    assert told(tally) == [(126, table.metadata_location)]
    assert tally.faults(126)[0].facts["metadata_file"] == logged(table)[-1]


@pytest.mark.parametrize("before", [b"{}", b'{"table-uuid": null}'])
def test_metadata_of_version_1_without_a_uuid_is_no_other_table(table, storage, before):
    overwrite(storage, logged(table)[-1], before)
    assert told(looked_at(table)) == []


def test_the_case_of_a_uuid_makes_no_other_table(table, storage):
    overwrite(storage, logged(table)[-1], f'{{"table-uuid": "{table.metadata.table_uuid.upper()}"}}'.encode())
    assert told(looked_at(table)) == []


def test_where_the_newest_file_cannot_be_read_the_one_before_is_asked_and_the_gap_told(table, storage):
    overwrite(storage, logged(table)[-1], b"{")
    overwrite(storage, logged(table)[-2], b'{"table-uuid": "other"}')
    tally = looked_at(table)
    assert told(tally) == [(126, table.metadata_location)]
    assert [logged(table)[-1] in gap.what for gap in tally.gaps()] == [True]


def test_of_a_long_log_the_newest_hundred_are_looked_for(table):
    gone = [f"memory://lake/gone/{number:05d}-x.metadata.json" for number in range(150)]
    assert looked_at(with_log(table, *gone)).counts == {138: 100}


def test_a_name_that_is_no_location_is_a_file_that_is_missing(table):
    assert told(looked_at(with_log(table, *logged(table), "v1.json"))) == [(138, "v1.json")]


def test_a_file_that_is_in_the_log_twice_is_missing_once(table):
    assert told(looked_at(with_log(table, "memory://lake/gone.json", "memory://lake/gone.json"))) == [
        (138, "memory://lake/gone.json")
    ]


@pytest.mark.parametrize("denied", ["head", "read"])
def test_a_file_that_is_denied_is_a_gap(table, denied):
    def deny(operation: str, location: str) -> None:
        if operation == denied and location == logged(table)[-1]:
            raise UsageError("denied")

    tally = looked_at(with_storage(table, deny))
    assert told(tally) == []
    assert [(logged(table)[-1] in gap.what, gap.why) for gap in tally.gaps()] == [(True, "denied")]


def test_a_file_in_a_store_that_is_not_served_is_a_gap_and_hides_no_other(table, storage):
    def refuse(operation: str, location: str) -> None:
        if "elsewhere" in location:
            raise UnsupportedError("no such store")

    storage.delete_many(logged(table)[:1])
    tally = looked_at(with_storage(with_log(table, *logged(table), "memory://elsewhere/v1.json"), refuse))
    assert told(tally) == [(138, logged(table)[0])]
    assert [gap.why for gap in tally.gaps()] == ["no such store"]


@pytest.mark.parametrize("failing", ["head", "read"])
def test_a_store_that_is_out_of_reach_ends_the_check(table, failing):
    def fail(operation: str, location: str) -> None:
        if operation == failing:
            raise UnavailableError("out of reach")

    with pytest.raises(UnavailableError):
        looked_at(with_storage(table, fail))
