import json

import numpy as np
import pytest
from msgspec.structs import replace

from icekeep.errors import InvalidTableError, SafetyError, UnavailableError, UnsupportedError, UsageError
from icekeep.maintenance.delete.reachable import fails_closed
from icekeep.maintenance.orphans.metadata import _files_at_once, reached_by
from icekeep.spec.metadata import metadata_to_json
from icekeep.spec.snapshots import MetadataLogEntry
from icekeep.spec.updates import SetProperties
from icekeep.storage.base import FileInfo
from icekeep.storage.location_keys import location_keys
from kit.memory_catalog import MemoryCatalog
from kit.runtime import FakeRuntime
from kit.storage import HookedStorage, MemoryStorage
from kit.tables import add, manifests_of, memory_table, swap

ROOT = "memory://lake/wh/db/events"


def reached(table):
    return reached_by(table, lambda: pytest.fail("Spark"), trust_manifest_list=False)


def named(found):
    return found.named["location"].to_pylist()


def newly_reached(table, before):
    return reached_by(table, lambda: pytest.fail("Spark"), trust_manifest_list=False, since=reached(before).seen)


def test_everything_that_metadata_names_is_reached_once():
    """amoro #1959: each kind of file that the spec knows; statistics are in the tests of the job."""
    first = add(memory_table(), "a", "b")
    table = add(first, "c")
    found = reached(table)
    manifests = {m.manifest_path for m in (*manifests_of(first), *manifests_of(table))}
    assert {m.manifest_path for m in found.manifests} == manifests
    assert sorted(named(found)) == sorted(
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
    assert table.metadata_location in named(found)


def test_of_what_was_added_since_only_the_manifests_are_read():
    before = add(memory_table(), "a")
    table = add(swap(before, SetProperties({"a": "b"})), "c")
    found = newly_reached(table, before)
    assert len(manifests_of(table)) == 2
    assert [m.added_snapshot_id for m in found.manifests] == [table.metadata.current_snapshot_id]
    keys = location_keys(found.named["location"])
    assert np.isin(location_keys(reached(before).named["location"][:1]), keys).sum() <= 1
    assert table.metadata_location in named(found)


def test_where_nothing_was_added_nothing_is_read():
    before = add(memory_table(), "a")
    assert newly_reached(swap(before, SetProperties({"a": "b"})), before).manifests == ()


def test_what_is_broken_stops_all_and_what_may_pass_stays_what_it_is():
    with pytest.raises(SafetyError, match="nothing is deleted, since not everything can be read: cut"), fails_closed():
        raise InvalidTableError("cut")
    with pytest.raises(UnavailableError), fails_closed():
        raise UnavailableError("later")


def logged(*errors):
    """A table whose log names three metadata files, the second of which names statistics; what its reading raises."""
    catalog = MemoryCatalog(HookedStorage(MemoryStorage(FakeRuntime())))
    first = add(memory_table(catalog), "a")
    statistics = [{"snapshot-id": 1, "statistics-path": f"{ROOT}/metadata/old.puffin"}]
    older = first.metadata_location
    table = swap(first, SetProperties({"a": "b"}))
    document = {**metadata_to_json(first.metadata), "statistics": statistics}
    catalog.storage.inner.files[older] = (json.dumps(document).encode(), 0)
    assert older in [entry.metadata_file for entry in table.metadata.metadata_log]

    def fail(operation, location):
        if operation == "read" and location == older and errors:
            raise errors[0]

    catalog.storage.before = fail
    return table, older


def test_the_statistics_of_older_metadata_are_reached():
    table, _ = logged()
    assert f"{ROOT}/metadata/old.puffin" in named(reached(table))


@pytest.mark.parametrize(
    "error", [UnavailableError("down"), UsageError("the store denies access"), UnsupportedError("no client")]
)
def test_older_metadata_that_cannot_be_read_stops_it(error):
    """What it names may be what a rollback of the catalog needs."""
    table, _ = logged(error)
    with pytest.raises(type(error), match=error.message):
        reached(table)


@pytest.mark.parametrize("data", [b"nonsense", b'{"statistics": 7}', b"\x1f\x8b\xff\xff"])
def test_older_metadata_that_makes_no_sense_stops_it_unless_nobody_can_read_it(data):
    table, older = logged()
    table.storage.inner.files[older] = (data, 0)
    with pytest.raises(
        SafetyError, match=r"in the metadata log cannot be read .*; if it is broken for good, move it away"
    ) as raised:
        reached(table)
    assert older in raised.value.message
    table.storage.inner.files[older] = (b'{"statistics": [', 0)
    assert f"{ROOT}/metadata/old.puffin" not in named(reached(table))


def test_older_metadata_elsewhere_that_is_not_ours_to_read_stops_nothing():
    """As of a table that was moved: its log names the old place, to which there may be no access any more."""
    table, older = logged()
    elsewhere = MetadataLogEntry(timestamp_ms=0, metadata_file="memory://old/wh/db/events/metadata/v1.metadata.json")
    metadata = replace(table.metadata, metadata_log=(elsewhere, *table.metadata.metadata_log))

    def fail(operation, location):
        if location == elsewhere.metadata_file:
            raise UsageError("the store denies access")

    table.storage.before = fail
    names = named(reached(replace(table, metadata=metadata)))
    assert {elsewhere.metadata_file, older, f"{ROOT}/metadata/old.puffin"} <= set(names)


def test_older_metadata_that_was_read_is_not_read_again_and_what_could_not_be_read_is():
    """Each look at the table read the whole log: a hundred files of perhaps hundreds of megabytes."""
    table, older = logged()
    unknown, *_ = (e.metadata_file for e in table.metadata.metadata_log if e.metadata_file != older)
    whole = table.storage.inner.files.pop(unknown)
    read = []
    table.storage.before = lambda operation, location: read.append(location) if operation == "read" else None
    before = reached(table)
    assert {older, unknown} <= {*read}
    assert before.seen.metadata_files == {e.metadata_file for e in table.metadata.metadata_log} - {unknown}
    table.storage.inner.files[unknown] = whole
    now = swap(table, SetProperties({"c": "d"}))
    read.clear()
    newly = reached_by(now, lambda: pytest.fail("Spark"), trust_manifest_list=False, since=before.seen)
    logs = {e.metadata_file for e in now.metadata.metadata_log}
    assert [location for location in read if location in logs] == [unknown, table.metadata_location]
    assert newly.seen.metadata_files == logs


@pytest.mark.parametrize(("size_bytes", "most"), [(1_000, 16), (4_000_000, 6), (400_000_000, 1)])
def test_large_metadata_files_are_read_one_after_the_other(monkeypatch, size_bytes, most):
    table, _ = logged()
    monkeypatch.setattr(table.storage, "head", lambda location: FileInfo(location, size_bytes, 0))
    assert _files_at_once(table) <= most
    assert _files_at_once(table) >= most / 2
