"""Manifest lists and manifests that are gone and lie in the trash of a run: they come back where they are what is meant."""

from collections import Counter
from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from icekeep.catalog.base import Table
from icekeep.commit.changes.definitions import ChangeProperties
from icekeep.commit.changes.files import DeleteFiles
from icekeep.commit.manifests import ManifestReader
from icekeep.commit.retry import commit
from icekeep.maintenance.delete.plan_file import trash_location
from icekeep.maintenance.delete.reachable import FileKind, GarbageFile
from icekeep.maintenance.repair.job import plan_repair, repair
from icekeep.spec.manifests.structs import Status
from icekeep.tables.verbs import append
from kit.cases import Choices, for_each
from kit.columns import table_of
from kit.damager import Damager
from kit.expired_tables import in_trash, written_plan
from kit.naive_scan import live_entries
from kit.row_histories import START, ByIcekeep, in_memory
from kit.rows import scanned_rows
from kit.runtime import no_spark

pytestmark = pytest.mark.slow

LIST, MANIFEST = 201, 202
FROM_TRASH = "comes back from the trash"


def mended_by(table: Table, fault: int):
    plan = plan_repair(table, no_spark, fault=[fault])
    return repair(table, no_spark, fault=[fault], approve=plan.hash)


def some_rows(by: ByIcekeep, count: int = 3):
    schema = by.table.metadata.schema
    names = [field.name for field in schema.fields]
    return table_of(schema, [dict.fromkeys(names) | {"id": 1_000 + n} for n in range(count)])


def entries_of(table: Table) -> Counter:
    """The live entries with all that they say; an older one is added or existing, by which manifest has it."""
    head = table.metadata.current_snapshot_id
    entries = live_entries(table)
    return Counter(repr(e if e.snapshot_id == head else replace(e, status=Status.EXISTING)) for e in entries)


def files_in(table: Table) -> dict[str, bytes]:
    return {location: data for location, (data, _) in table.storage.files.items()}


def three_files(version: int = 2) -> ByIcekeep:
    """A table of three data files in as many manifests, one by one appended."""
    by = in_memory()
    by.create(START, (), version)
    commit(by.table, ChangeProperties(updates={"commit.manifest-merge.enabled": "false"}))
    for _ in range(3):
        append(by.table, [some_rows(by)])
    return by


class Trashed:
    """A table of which the list of the head, some of its manifests, or both, are in the trash of a run."""

    def __init__(self, kinds: Sequence[str], version: int = 2) -> None:
        by = three_files(version)
        live = sorted(entry.data_file.file_path for entry in live_entries(by.table))
        commit(by.table, DeleteFiles(paths=frozenset(live[:1])))
        self.by, self.table = by, by.table
        self.rows, self.entries, self.files = scanned_rows(by.table), entries_of(by.table), files_in(by.table)
        head = by.table.metadata.head("main")
        self.list = str(head.manifest_list)
        self.manifests = [m.manifest_path for m in ManifestReader(by.table.storage).manifests(head)]
        storage, files = by.table.storage, []
        if "list" in kinds:
            files.append(GarbageFile(FileKind.MANIFEST_LIST, self.list))
        if "manifests" in kinds:
            files += [GarbageFile(FileKind.MANIFEST, m, storage.head(m).size_bytes) for m in self.manifests]
        self.plan = in_trash(written_plan(by.table, files), storage)
        self.damager = Damager(by.catalog, by.identifier, Choices(0))
        self.gone = [file.location for file in files]

    def trashed(self, location: str) -> str:
        return trash_location(self.plan, location)

    def comes_back(self, fault: int) -> None:
        assert not {*self.gone} & files_in(self.table).keys()
        result = mended_by(self.by.table, fault)
        assert {one.fault_id for one in result.mended} == {fault}, result
        assert all(one.is_put_back and FROM_TRASH in one.action for one in result.mended)
        now = self.by.table
        assert scanned_rows(now) == self.rows
        assert entries_of(now) == self.entries
        assert now.metadata_location == self.table.metadata_location
        written = files_in(now)
        assert all(written[location] == self.files[location] for location in self.gone)

    def stays(self, fault: int, why: str) -> None:
        before = files_in(self.table)
        result = mended_by(self.by.table, fault)
        assert not [one for one in result.mended if FROM_TRASH in one.action], result
        assert any(why in one.reason for one in result.not_mended), result
        assert before.items() <= files_in(self.by.table).items()
        assert not {*self.gone} & files_in(self.by.table).keys()


@for_each("version", [1, 2, 3])
@for_each(("kinds", "fault"), [(["list"], LIST), (["manifests"], MANIFEST), (["list", "manifests"], LIST)])
def test_they_come_back(kinds, fault, version):
    Trashed(kinds, version).comes_back(fault)


def test_a_manifest_of_another_length_stays():
    found = Trashed(["manifests"])
    for path in found.manifests:
        found.damager.change_bytes(found.trashed(path), lambda data: data.extend(b" "))
    found.stays(MANIFEST, "not in the trash of a run as the list describes it")


def test_a_manifest_that_does_not_read_as_the_list_says_stays():
    found = Trashed(["manifests"])
    for path in found.manifests:
        found.damager.change_bytes(found.trashed(path), lambda data: data.__setitem__(-30, data[-30] ^ 0xFF))
    found.stays(MANIFEST, "is not the missing one")


def test_a_manifest_that_is_there_and_cannot_be_read_stays():
    found = Trashed([])
    path = found.manifests[0]
    found.damager.change_bytes(path, lambda data: data.__delitem__(slice(-20, None)))
    found.stays(MANIFEST, "is there and cannot be read")


class TestLists:
    """Of a list nobody has written the length: what it says is held against its snapshot."""

    def spoilt(self, act) -> Trashed:
        found = Trashed(["list", "manifests"])
        act(found, found.trashed(found.list))
        return found

    def test_one_with_a_row_less(self):
        found = self.spoilt(lambda found, at: found.damager.edit_avro(at, lambda rows: rows.pop(0)))
        found.stays(LIST, "where the summary of its snapshot says")

    def test_one_that_was_cut_off(self):
        found = self.spoilt(
            lambda found, at: found.damager.change_bytes(at, lambda data: data.__delitem__(slice(-9, None)))
        )
        found.stays(LIST, "is not whole")

    def test_one_of_another_snapshot(self):
        def other(found, at):
            parent = found.table.metadata.snapshot(found.table.metadata.head("main").parent_snapshot_id)
            found.damager.write(at, found.damager.read(str(parent.manifest_list)))

        self.spoilt(other).stays(LIST, "is of another snapshot")

    def test_one_whose_manifests_are_nowhere(self):
        def lost(found, at):
            found.damager.remove(found.trashed(found.manifests[0]))

        self.spoilt(lost).stays(LIST, "neither there nor in the trash")

    def test_one_whose_manifest_has_another_length(self):
        def longer(found, at):
            at = found.trashed(found.manifests[0])
            found.damager.write(found.manifests[0], found.damager.read(at) + b" ")
            found.damager.remove(at)
            found.gone.remove(found.manifests[0])

        self.spoilt(longer).stays(LIST, "bytes, not")

    def test_a_summary_without_totals(self):
        def forget(found, at):
            def edit(document):
                head = next(s for s in document["snapshots"] if s["snapshot-id"] == document["current-snapshot-id"])
                del head["summary"]["total-records"]

            found.damager.edit_metadata(edit)

        self.spoilt(forget).stays(LIST, "says nothing")
