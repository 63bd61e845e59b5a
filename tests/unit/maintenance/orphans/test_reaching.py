import numpy as np
import pytest

from icekeep.errors import InvalidTableError, SafetyError, UnavailableError
from icekeep.maintenance.orphans.reaching import fails_closed, read_newly_reached, read_reached
from icekeep.planning.location_keys import location_keys
from icekeep.spec.updates import SetProperties
from kit.tables import add, manifests_of, memory_table, swap

ROOT = "memory://lake/wh/db/events"


def reached(table):
    return read_reached(table, lambda: pytest.fail("Spark"), trust_totals=False)


def newly_reached(table, before):
    return read_newly_reached(table, before.metadata, reached(before), lambda: pytest.fail("Spark"), trust_totals=False)


def test_everything_that_metadata_names_is_reached_once():
    """PEERS 11: each kind of file that the spec knows; statistics are in the tests of the job."""
    first = add(memory_table(), "a", "b")
    table = add(first, "c")
    found = reached(table)
    manifests = {m.manifest_path for m in (*manifests_of(first), *manifests_of(table))}
    assert {m.manifest_path for m in found.manifests} == manifests
    assert sorted(found.names.to_pylist()) == sorted(
        {
            *manifests,
            *(snapshot.manifest_list for snapshot in table.metadata.snapshots),
            table.metadata_location,
            *(entry.metadata_file for entry in table.metadata.metadata_log),
            f"{ROOT}/metadata/version-hint.text",
        }
    )
    assert len(table.metadata.metadata_log) == 2
    assert found.untotalled_count == 0


def test_a_table_without_snapshots_leads_to_its_metadata():
    table = memory_table()
    found = reached(table)
    assert found.manifests == ()
    assert table.metadata_location in found.names.to_pylist()


def test_of_what_was_added_since_only_the_manifests_are_read():
    before = add(memory_table(), "a")
    table = add(swap(before, SetProperties({"a": "b"})), "c")
    found = newly_reached(table, before)
    assert len(manifests_of(table)) == 2
    assert [m.added_snapshot_id for m in found.manifests] == [table.metadata.current_snapshot_id]
    keys = location_keys(found.names)
    assert np.isin(location_keys(reached(before).names[:1]), keys).sum() <= 1
    assert table.metadata_location in found.names.to_pylist()


def test_where_nothing_was_added_nothing_is_read():
    before = add(memory_table(), "a")
    assert newly_reached(swap(before, SetProperties({"a": "b"})), before).manifests == ()


def test_what_is_broken_stops_all_and_what_may_pass_stays_what_it_is():
    with pytest.raises(SafetyError, match="nothing is deleted, since not everything can be read: cut"), fails_closed():
        raise InvalidTableError("cut")
    with pytest.raises(UnavailableError), fails_closed():
        raise UnavailableError("later")
