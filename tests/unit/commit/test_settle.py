import pytest
from msgspec.structs import replace

from icekeep.catalog.base import Committed, Conflict, Unknown
from icekeep.catalog.status_checks import StatusChecks
from icekeep.commit.changes.definitions import ChangeProperties
from icekeep.commit.changes.files import AppendFiles
from icekeep.commit.outcome import settle
from icekeep.errors import OutcomeUnknownError, UsageError
from icekeep.spec.updates import RemoveSnapshots, SetProperties
from kit.changes import run
from kit.memory_catalog import LANDS_BUT_IS_UNKNOWN, MemoryCatalog, after, lands_late
from kit.tables import EVENTS, add, files, live, memory_table, set_ref, swap

ONE = AppendFiles(files=files("new"))
SET = ChangeProperties(updates={"owner": "me"})
NOT_THERE = 4711


@pytest.fixture
def catalog():
    return MemoryCatalog()


@pytest.fixture
def table(catalog):
    return add(memory_table(catalog), "old")


def look(outcome, table, snapshot_id=NOT_THERE):
    return settle(outcome, table, snapshot_id, table.catalog.runtime)


def test_what_is_committed_is_not_looked_at(catalog, table):
    loads = catalog.loads_count
    outcome = Committed(table)
    assert look(outcome, table) is outcome
    assert catalog.loads_count == loads


def test_a_final_conflict_is_not_looked_at_either(catalog, table):
    loads = catalog.loads_count
    outcome = Conflict("another writer was faster", is_final=True)
    assert look(outcome, table, table.metadata.current_snapshot_id) is outcome
    assert catalog.loads_count == loads


def test_our_snapshot_in_the_table_proves_that_an_unknown_commit_landed(catalog, table):
    catalog.follow(LANDS_BUT_IS_UNKNOWN)
    result = run(table, ONE)
    assert result.snapshot_id == catalog.load(EVENTS).metadata.current_snapshot_id
    assert catalog.runtime.sleeps_ms == []


def test_our_snapshot_proves_it_although_it_is_not_the_current_one_any_more(table):
    mine = table.metadata.current_snapshot_id
    latest = add(table, "theirs")
    assert look(Unknown("lost", "memory://lake/wh/elsewhere"), table, mine) == Committed(latest)


def test_our_metadata_file_proves_that_an_unknown_commit_without_a_snapshot_landed(catalog, table):
    catalog.follow(LANDS_BUT_IS_UNKNOWN)
    result = run(table, SET)
    assert (result.changed, result.snapshot_id) == (True, None)
    assert result.table.metadata.properties["owner"] == "me"


def test_our_metadata_file_proves_it_in_the_metadata_log_too(table):
    mine = swap(table, SetProperties({"owner": "me"})).metadata_location
    latest = add(table, "theirs")
    assert latest.metadata_location != mine
    assert look(Unknown("lost", mine), table) == Committed(latest)


def test_a_version_of_the_number_that_we_wanted_need_not_be_ours(catalog, table, monkeypatch):
    theirs = replace(table, metadata_location=f"{table.metadata.location}/metadata/v2.metadata.json")
    monkeypatch.setattr(catalog, "load", lambda identifier: theirs)
    outcome = Unknown("lost", theirs.metadata_location)
    assert look(outcome, table) == outcome
    assert look(outcome, table, table.metadata.current_snapshot_id) == Committed(theirs)


def test_a_snapshot_that_landed_and_is_expired_already_is_proved_by_the_log(table):
    mine = add(table, "new")
    add(table, "theirs")
    latest = swap(table, RemoveSnapshots((mine.metadata.current_snapshot_id,)))
    found = look(Unknown("lost", mine.metadata_location), table, mine.metadata.current_snapshot_id)
    assert found == Committed(latest)


def test_what_is_not_found_stays_unknown_however_often_one_looks(catalog, table):
    loads = catalog.loads_count
    outcome = Unknown("lost", "memory://lake/wh/elsewhere")
    assert look(outcome, table) == outcome
    assert catalog.runtime.sleeps_ms == [1000, 2000, 4000]
    assert catalog.loads_count == loads + 4


def test_a_commit_that_lands_late_is_found_when_it_is_there(catalog, table):
    catalog.follow(lands_late(loads=3))
    result = run(table, ONE)
    assert live(result.table) == {"old": 1, "new": 1}
    assert catalog.runtime.sleeps_ms == [1000, 2000]


def test_a_commit_that_lands_too_late_is_unknown_and_finds_its_files(catalog, table):
    catalog.follow(lands_late(loads=5))
    with pytest.raises(OutcomeUnknownError):
        run(table, ONE)
    assert live(catalog.load(EVENTS)) == {"old": 1, "new": 1}


def test_a_look_that_fails_is_no_answer(catalog, table):
    def lose_contact():
        catalog.failing_loads = 2

    catalog.follow(after(lose_contact, then=LANDS_BUT_IS_UNKNOWN))
    assert run(table, ONE).changed
    assert catalog.runtime.sleeps_ms == [1000, 2000]


def test_a_table_that_is_gone_proves_nothing_about_an_unknown_commit(catalog, table):
    catalog.drop(EVENTS)
    outcome = Unknown("lost", "memory://lake/wh/elsewhere")
    assert look(outcome, table) == outcome
    assert len(catalog.runtime.sleeps_ms) == 3


def test_the_table_says_how_often_and_how_long_to_look(catalog):
    table = memory_table(
        catalog,
        **{
            "commit.status-check.num-retries": "5",
            "commit.status-check.min-wait-ms": "10",
            "commit.status-check.max-wait-ms": "60",
        },
    )
    look(Unknown("lost", "nowhere"), table)
    assert catalog.runtime.sleeps_ms == [10, 20, 40, 60, 60]


def test_looking_ends_when_the_time_for_it_is_over(catalog):
    properties = {"commit.status-check.total-timeout-ms": "2999", "commit.status-check.num-retries": "99"}
    table = memory_table(catalog, **properties)
    look(Unknown("lost", "nowhere"), table)
    assert catalog.runtime.sleeps_ms == [1000, 2000]


def test_one_look_is_taken_even_if_the_table_allows_no_more(catalog):
    table = add(memory_table(catalog, **{"commit.status-check.num-retries": "0"}), "mine")
    found = look(Unknown("lost", "nowhere"), table, table.metadata.current_snapshot_id)
    assert found == Committed(table)
    assert catalog.runtime.sleeps_ms == []


def test_a_conflict_that_hides_our_own_snapshot_is_a_commit(table):
    assert look(Conflict("409"), table, table.metadata.current_snapshot_id) == Committed(table)


def test_a_conflict_with_others_is_one_after_a_single_look(catalog, table):
    loads = catalog.loads_count
    set_ref(table, "theirs", table.metadata.current_snapshot_id)
    assert look(Conflict("409"), table) == Conflict("409", is_final=True)
    assert catalog.loads_count == loads + 2
    assert catalog.runtime.sleeps_ms == []


def test_a_conflict_that_cannot_be_looked_into_is_unknown(catalog, table):
    catalog.failing_loads = 10**6
    found = look(Conflict("409"), table)
    assert found == Unknown("409; the table cannot be loaded to see whether that was this very commit", "")


def test_a_catalog_that_is_out_of_reach_is_asked_for_as_long_as_the_table_says(catalog, table):
    """Looks that see nothing for they reach nobody are not counted: a fail-over takes longer than three of them."""
    catalog.failing_loads = 20
    assert look(Unknown("lost", "nowhere"), table, table.metadata.current_snapshot_id) == Committed(table)
    assert catalog.runtime.sleeps_ms[:7] == [1000, 2000, 4000, 8000, 16_000, 32_000, 60_000]
    catalog.failing_loads = 10**6
    assert look(Unknown("lost", "nowhere"), table) == Unknown("lost", "nowhere")
    assert sum(catalog.runtime.sleeps_ms) > 1_800_000


def test_looks_have_pauses_between_them_whatever_the_table_says(catalog):
    names = ("commit.status-check.min-wait-ms", "commit.status-check.max-wait-ms")
    table = memory_table(catalog, **dict.fromkeys(names, "0"))
    catalog.failing_loads = 10**6
    look(Unknown("lost", "nowhere"), table)
    assert len(catalog.runtime.sleeps_ms) < 2000


def test_a_conflict_is_looked_into_again_when_the_catalog_is_back(catalog, table):
    catalog.failing_loads = 1
    assert look(Conflict("409"), table, table.metadata.current_snapshot_id) == Committed(table)
    catalog.failing_loads = 1
    assert look(Conflict("409"), table) == Conflict("409")
    assert catalog.runtime.sleeps_ms == [1000, 1000]


def test_a_conflict_over_a_table_that_was_dropped_is_one(catalog, table):
    catalog.drop(EVENTS)
    assert look(Conflict("dropped"), table) == Conflict("dropped")
    assert catalog.runtime.sleeps_ms == []


@pytest.mark.parametrize("name", ["num-retries", "min-wait-ms", "max-wait-ms", "total-timeout-ms"])
def test_a_bad_property_is_refused_beforehand_and_hides_no_outcome_afterwards(catalog, name):
    table = add(memory_table(catalog, **{f"commit.status-check.{name}": "1"}), "mine")
    bad = swap(table, SetProperties({f"commit.status-check.{name}": "²"}))
    with pytest.raises(UsageError, match=f"'commit.status-check.{name}' is '²'; set a whole number"):
        StatusChecks.of(bad.metadata)
    assert StatusChecks.of(table.metadata)
    lost = Unknown("lost", "nowhere")
    assert look(lost, bad) == lost
    assert look(lost, bad, table.metadata.current_snapshot_id) == Committed(bad)
