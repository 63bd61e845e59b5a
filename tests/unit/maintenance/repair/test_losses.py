"""Fixes by which readers lose something, or might: what is lost is said before, and done only where it was accepted."""

from collections import Counter
from collections.abc import Sequence
from contextlib import contextmanager, suppress
from copy import deepcopy
from io import BytesIO
from uuid import UUID

import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace

from icekeep.catalog.base import Table
from icekeep.commit.changes.definitions import ChangeProperties, ChangeStatistics
from icekeep.commit.changes.deletes import RowDelta
from icekeep.commit.changes.files import DeleteFiles
from icekeep.commit.changes.rewrites import RewriteManifests
from icekeep.commit.changes.snapshots import ReplaceRef
from icekeep.commit.manifests import ManifestReader
from icekeep.commit.retry import commit
from icekeep.errors import (
    ConflictError,
    IcekeepError,
    InvalidTableError,
    OutcomeUnknownError,
    SafetyError,
    UnavailableError,
    UsageError,
)
from icekeep.events import Event, Warned
from icekeep.maintenance.check.job import check
from icekeep.maintenance.delete.plan_file import trash_location as planned_trash
from icekeep.maintenance.delete.reachable import CONTENT_KINDS, FileKind, GarbageFile
from icekeep.maintenance.repair.job import RepairRun, StillNamed, plan_repair, repair
from icekeep.spec.manifests.structs import FileContent, Status
from icekeep.spec.snapshots import StatisticsFile
from icekeep.spec.types import DAY_MS
from icekeep.tables.refs import create_branch
from icekeep.tables.verbs import append
from kit.cases import Choices, for_each, some_of
from kit.changes import thrown
from kit.columns import table_of
from kit.damage import spoil as spoil_anew
from kit.damager import DELETED, Damager
from kit.deletes import data_files, delete_by_vector, delete_equal, delete_positions, vector_files
from kit.expired_tables import in_trash, trash_location, written_plan
from kit.job_world import EVENTS, Fault, Killed, World
from kit.lake import events
from kit.naive_scan import live_entries
from kit.row_histories import START, ByIcekeep, in_memory
from kit.rows import scanned_rows
from kit.runtime import no_spark

pytestmark = pytest.mark.slow


def world_of(*numbers: int, version: int = 2) -> World:
    world = World(version)
    for number in numbers:
        world.append(number)
    return world


def damager(world: World) -> Damager:
    return Damager(world.catalog, EVENTS, Choices(1))


def path_of(world: World, number: int) -> str:
    """The data file of the rows of a number."""
    wanted = events(number, 1)["id"][0].as_py()
    return next(
        file.file_path
        for file in data_files(world.table)
        if wanted in pq.read_table(BytesIO(world.memory.files[file.file_path][0]))["id"].to_pylist()
    )


class Heard(list[Event]):
    def on(self, event: Event) -> None:
        self.append(event)


def faults_of(world: World) -> set[int]:
    return {one.fault_id for one in check(world.table, no_spark, deep=True, ref="main").faults}


def lose(world: World, path: str) -> None:
    del world.memory.files[path]


def mended(world: World, *numbers: int, accept: tuple[str, ...] = (), **more: str):
    """Repaired as it was planned: what the plan foretold is what was done."""
    plan = plan_repair(world.table, no_spark, fault=numbers, accept_loss=accept)
    result = repair(world.table, no_spark, fault=numbers, accept_loss=accept, approve=plan.hash, **more)
    assert (result.mended, result.not_mended) == (plan.mends, plan.not_mended)
    assert result.lost_records_count == plan.lost_records_count
    return result


@pytest.mark.parametrize("version", [1, 2, 3])
def test_lost_data_file_stays_until_its_loss_is_accepted(version):
    world = world_of(1, 2, 3, version=version)
    files = [file.file_path for file in data_files(world.table)]
    whole, lost = world.rows(), files[1]
    if version == 3:
        delete_by_vector(world.table, lost, [2])
    before = world.table.metadata.head("main")
    lose(world, lost)
    state = world.state()
    for accept in ((), (lost + "x",), (files[0],)):
        result = mended(world, 301, accept=accept)
        assert (result.status, result.mended) == ("partial", ())
        assert f"only done with --accept-loss {lost}: " in result.not_mended[0].reason
        assert "5 records are lost" in result.not_mended[0].reason
        assert world.state() == state
    result = mended(world, 301, accept=(lost,))
    assert (result.status, result.lost_records_count) == ("done", 5)
    assert [mend.lost_files for mend in result.mended] == [(lost,)]
    assert faults_of(world) == set()
    left = world.rows()
    assert left <= whole
    assert sum((whole - left).values()) == 5
    assert sorted(file.file_path for file in data_files(world.table)) == sorted({*files} - {lost})
    # Deletes that were for it alone went with it.
    assert len([*live_entries(world.table)]) == 2
    assert before is not None
    assert result.branches[0].previous_snapshot_id == before.snapshot_id


def test_a_lost_delete_file_stays_until_accepted():
    world = world_of(1, 2)
    whole = world.rows()
    path = data_files(world.table)[0].file_path
    delete_positions(world.table, [(path, 0), (path, 3)])
    deletes = next(e.data_file.file_path for e in live_entries(world.table) if e.data_file.content != FileContent.DATA)
    lose(world, deletes)
    result = mended(world, 303)
    assert "rows come back" in result.not_mended[0].reason
    assert "2 deletes are lost" in result.not_mended[0].reason
    result = mended(world, 303, accept=(deletes,))
    assert result.status == "done"
    assert faults_of(world) == set()
    assert world.rows() == whole


def test_a_loss_on_some_branches():
    world = world_of(1)
    create_branch(world.table, "before")
    world.append(2)
    create_branch(world.table, "after")
    path = path_of(world, 2)
    lose(world, path)
    before = world.rows("before")
    result = mended(world, 301, accept=(path,))
    assert [one.branch for one in result.branches] == ["main", "after"]
    assert world.rows() == world.rows("after") == world.rows("before") == before


def trashed(world: World, path: str, size: int | None = None):
    """As a run left it that took the file for garbage."""
    file = next(e.data_file for e in live_entries(world.table) if e.data_file.file_path == path)
    garbage = GarbageFile(CONTENT_KINDS[file.content], path, file.file_size_in_bytes)
    plan = in_trash(written_plan(world.table, [garbage], runtime=world.runtime), world.storage)
    if size is not None:
        trash = trash_location(plan, path)
        world.memory.files[trash] = (b"x" * size, 0)
    return plan


@pytest.mark.parametrize("version", [1, 2, 3])
def test_lost_file_is_recovered_from_the_trash(version):
    world = world_of(1, 2, version=version)
    whole, head = world.rows(), world.table.metadata.head("main")
    path = data_files(world.table)[0].file_path
    trashed(world, path)
    assert faults_of(world) == {301}
    result = mended(world, 301, accept=(path,))
    assert result.status == "done"
    assert result.lost_records_count == 0
    assert "from the trash of run 'run-1'" in result.mended[0].action
    assert faults_of(world) == set()
    assert world.rows() == whole
    assert world.table.metadata.head("main") == head


def test_a_file_in_the_trash_of_another_table_does_not_come_back():
    """A table that was dropped, and made again at the same place."""
    world = world_of(1, 2)
    path = data_files(world.table)[0].file_path
    trashed(world, path)
    damager(world).edit_metadata(lambda document: document.update({"table-uuid": str(UUID(int=7))}))
    state = world.state()
    assert "--accept-loss" in mended(world, 301).not_mended[0].reason
    assert world.state() == state


def test_a_file_of_another_size_in_the_trash_does_not_come_back():
    world = world_of(1, 2)
    path = data_files(world.table)[0].file_path
    trashed(world, path, size=7)
    state = world.state()
    assert mended(world, 301).status == "partial"
    assert world.state() == state


def test_file_written_meanwhile_is_never_overwritten():
    world = world_of(1, 2)
    path = data_files(world.table)[0].file_path
    trashed(world, path)

    def someone_writes(operation: str, location: str) -> None:
        if operation == "move_many":
            world.memory.files[path] = (b"theirs", 0)

    world.storage.before = someone_writes
    trash = {location for location in world.memory.files if "/trash/run-1/files/" in location}
    assert repair(world.table, no_spark, fault=[301]).mended == ()
    assert trash < world.memory.files.keys()
    assert world.memory.files[path] == (b"theirs", 0)


def test_file_that_reappears_stays_in_the_table():
    world = world_of(1, 2)
    whole, path = world.rows(), data_files(world.table)[0].file_path
    kept = world.memory.files[path]
    lose(world, path)

    def it_comes_back(operation: str, location: str) -> None:
        if operation == "write" and "/snap-" in location:
            world.memory.files[path] = kept

    world.storage.before = it_comes_back
    result = repair(world.table, no_spark, fault=[301], accept_loss=[path])
    assert (result.mended, result.branches) == ((), ())
    assert world.rows() == whole


@pytest.mark.parametrize("version", [1, 2, 3])
def test_doubled_file_keeps_the_entry_with_fewest_deletes(version):
    """Else a row would go that readers saw by the newer entry."""
    world = world_of(1, 2, version=version)
    once = world.rows()
    path = path_of(world, 1)
    entry = next(e for e in live_entries(world.table) if e.data_file.file_path == path)
    if version == 2:
        delete_positions(world.table, [(path, 0)])
    world.append(3)
    spoilt = damager(world)
    place = next(p for p in spoilt.entries(0) if p.file["file_path"] == path)
    copied = deepcopy(place.entry)
    if version > 1:
        # As if it had been added once more by the last commit.
        assert entry.sequence_number == 1
        copied |= {"sequence_number": 3 + (version == 2), "file_sequence_number": None, "status": 0}
        copied["file_sequence_number"] = copied["sequence_number"]
        copied["snapshot_id"] = world.table.metadata.head("main").snapshot_id
    if version == 3:
        copied["data_file"]["first_row_id"] = entry.data_file.first_row_id
    manifest = next(row["manifest_path"] for row in spoilt.rows() if row["manifest_path"] != place.manifest)
    spoilt.edit_manifest(manifest, lambda entries: entries.append(copied))
    seen = world.rows()
    result = mended(world, 212)
    assert f"only done with --accept-loss {path}: " in result.not_mended[0].reason
    result = mended(world, 212, accept=(path,))
    assert result.lost_records_count == 5
    assert not {212} & faults_of(world)
    now = world.rows()
    assert now.keys() == seen.keys()
    assert {now[row] for row in once} == {1}


@pytest.mark.parametrize("change", [{"record_count": 4}, {"file_path": "other"}])
def test_of_entries_that_differ_none_is_chosen(change):
    world = world_of(1, 2)
    path = path_of(world, 1)
    spoilt = damager(world)
    place = next(p for p in spoilt.entries(0) if p.file["file_path"] == path)
    copied = deepcopy(place.entry)
    copied["data_file"] |= change if "record_count" in change else {"file_path": path.replace("/data/", "//data/")}
    spoilt.edit_manifest(place.manifest, lambda entries: entries.append(copied))
    state = world.state()
    result = mended(world, 212, accept=(path, copied["data_file"]["file_path"]))
    assert (result.status, result.mended) == ("partial", ())
    assert world.state() == state


def test_manifest_with_a_doubled_file_gets_no_other_repair():
    world = world_of(1)
    spoilt = damager(world)
    (place,) = spoilt.entries(0)
    spoilt.edit_file(place, file_size_in_bytes=place.file["file_size_in_bytes"] + 1)
    spoilt.edit_manifest(place.manifest, lambda entries: entries.append(deepcopy(entries[0])))
    state, path = world.state(), place.file["file_path"]
    for numbers in ((302,), (215,), (302, 215, 301)):
        result = mended(world, *numbers, accept=(path,))
        assert result.mended == ()
        assert all("212" in one.reason for one in result.not_mended if one.fault_id in (302, 215))
    assert world.state() == state
    mended(world, 212, accept=(path,))
    assert mended(world, 302).status == "done"
    assert faults_of(world) == set()


def test_a_manifest_that_is_listed_twice_is_listed_once():
    world = world_of(1, 2)
    once = world.rows()
    spoilt = damager(world)
    spoilt.edit_rows(lambda rows: rows.append(deepcopy(rows[0])))
    path = spoilt.rows()[0]["manifest_path"]
    assert "then once" in mended(world, 220).not_mended[0].reason
    result = mended(world, 220, accept=(path,))
    assert result.lost_records_count == 5
    assert world.rows() == once
    assert faults_of(world) == set()


def test_rows_of_a_doubled_manifest_that_differ_are_left():
    world = world_of(1, 2)
    spoilt = damager(world)

    def other(rows):
        rows.append({**rows[0], "sequence_number": 9})

    spoilt.edit_rows(other)
    path, state = spoilt.rows()[0]["manifest_path"], world.state()
    assert "differ" in mended(world, 220, accept=(path,)).not_mended[0].reason
    assert world.state() == state


def two_vectors(world: World, path: str, positions, *, sequence_number: int | None = None) -> None:
    """Put a vector of these positions beside the one that a data file has."""
    vector = next(e for e in live_entries(world.table) if e.data_file.referenced_data_file == path)
    other = world.copy()
    delete_by_vector(other.table, path, positions)
    new = next(e for e in live_entries(other.table) if e.data_file.referenced_data_file == path).data_file
    world.memory.files[new.file_path] = other.memory.files[new.file_path]
    spoilt = damager(world)
    place = next(p for p in spoilt.entries(1) if p.file["referenced_data_file"] == path)

    def add(entries):
        copied = deepcopy(entries[place.index])
        copied["data_file"] |= {
            name: getattr(new, name)
            for name in ("file_path", "content_offset", "content_size_in_bytes", "record_count", "file_size_in_bytes")
        }
        if sequence_number is not None:
            copied |= {"sequence_number": sequence_number, "file_sequence_number": sequence_number, "status": 0}
            copied["snapshot_id"] = world.table.metadata.snapshots[0].snapshot_id
        entries.append(copied)

    spoilt.edit_manifest(place.manifest, add)
    assert vector.data_file.file_path != new.file_path


def test_two_vectors_are_merged_if_accepted():
    world = world_of(1, 2, version=3)
    path = path_of(world, 1)
    delete_by_vector(world.table, path, [0])
    two_vectors(world, path, [3])
    assert 213 in faults_of(world)
    result = mended(world, 213)
    assert "become one of 2 positions" in result.not_mended[0].reason
    assert "1 row of readers of" in result.not_mended[0].reason
    mended(world, 213, accept=(path,))
    assert faults_of(world) == set()
    [vector] = [e for e in live_entries(world.table) if e.data_file.content != FileContent.DATA]
    assert vector.data_file.record_count == 2
    assert sum(world.rows().values()) == 8


def test_vector_that_reaches_no_row_is_not_merged():
    world = world_of(9, 1, version=3)
    path = path_of(world, 1)
    delete_by_vector(world.table, path, [0])
    two_vectors(world, path, [3], sequence_number=1)
    state = world.state()
    result = mended(world, 213, accept=(path,))
    assert result.mended == ()
    assert world.state() == state


def test_an_approved_plan_is_that_or_nothing():
    world = world_of(1, 2)
    spoilt = damager(world)
    place = next(iter(spoilt.entries(0)))
    spoilt.edit_file(place, file_size_in_bytes=1)
    plan = plan_repair(world.table, no_spark, fault=[302])
    # Another file is damaged as well, after somebody has looked at the plan.
    other = [*spoilt.entries(0)][1]
    spoilt.edit_file(other, file_size_in_bytes=1)
    state = world.state()
    with pytest.raises(SafetyError, match="approved"):
        repair(world.table, no_spark, fault=[302], approve=plan.hash)
    with pytest.raises(SafetyError, match="is approved: nothing would be changed"):
        plan_repair(world.table, no_spark, fault=[302], approve=plan.hash)
    now = plan_repair(world.table, no_spark, fault=[302])
    assert plan_repair(world.table, no_spark, fault=[302], approve=now.hash) == now
    assert world.state() == state


def test_concurrent_commit_is_kept_by_an_approved_repair():
    world = world_of(1, 2)
    spoilt = damager(world)
    spoilt.edit_file(next(iter(spoilt.entries(0))), file_size_in_bytes=1)
    plan = plan_repair(world.table, no_spark, fault=[302])
    done: list[int] = []

    def another_appends(operation: str, location: str) -> None:
        if operation == "write" and "/snap-" in location and not done:
            done.append(1)
            world.append(3)

    world.storage.before = another_appends
    result = repair(world.table, no_spark, fault=[302], approve=plan.hash)
    world.storage.before = lambda operation, location: None
    assert done
    assert result.status == "done"
    assert faults_of(world) == set()
    assert sum(world.rows().values()) == 15


def test_a_kind_that_is_not_there_or_no_kind_at_all_is_refused():
    world = world_of(1)
    for wrong in ([999], []):
        with pytest.raises(UsageError, match="fault"):
            repair(world.table, no_spark, fault=wrong)
    assert Counter(repair(world.table, no_spark, fault=[301]).mended) == Counter()


@pytest.mark.parametrize("way", Fault.WAYS)
def test_a_repair_that_dies_at_any_call_is_finished_by_the_next(way):
    """One lost file comes back, another is taken out on two branches, and two vectors become one."""
    world = world_of(1, 2, 3, version=3)
    merged, lost, returns = (path_of(world, number) for number in (1, 2, 3))
    delete_by_vector(world.table, merged, [0])
    two_vectors(world, merged, [3])
    create_branch(world.table, "audit")
    trashed(world, returns)
    lose(world, lost)
    asked = {"fault": (301, 213), "accept_loss": (lost, merged)}
    done = world.copy()
    with Fault(done) as clean:
        repair(done.table, no_spark, **asked)
    rows = done.rows()
    assert sum(rows.values()) == 8
    places = some_of(range(len(clean.calls)), least=4)
    for place in places:
        spoilt = world.copy()
        with Fault(spoilt, place, way), suppress(IcekeepError, Killed):
            repair(spoilt.table, no_spark, **asked)
        told = f"{way}: {clean.calls[place]}, call {place} of {len(clean.calls)}"
        for file in world.memory.files:
            assert file in spoilt.memory.files or "/trash/" in file, told
        # The next run, once nobody can hold the claim any more.
        spoilt.runtime.pass_ms(2 * DAY_MS)
        repair(spoilt.table, no_spark, **asked)
        for branch in ("main", "audit"):
            assert spoilt.rows(branch) == rows, told
        assert not {213, 301} & faults_of(spoilt), told


def test_an_interrupt_tells_what_landed_before_it():
    world = world_of(1)
    create_branch(world.table, "audit")
    spoilt = damager(world)
    spoilt.edit_file(next(iter(spoilt.entries(0))), file_size_in_bytes=1)
    heard, swaps = Heard(), []

    def interrupted(operation: str, location: str) -> None:
        if swaps and operation == "load":
            raise KeyboardInterrupt

    world.storage.before = interrupted
    world.storage.after = lambda operation, location: swaps.append(location) if operation == "swap" else None
    table = world.table
    with pytest.raises(KeyboardInterrupt):
        repair(table, no_spark, fault=[302], listener=heard)
    told = [event.message for event in heard if isinstance(event, Warned)]
    assert len(told) == 1
    assert "had repaired before: branch 'main' at snapshot" in told[0]


def spoil(world: World, path: str) -> bytes:
    """Change bytes in the middle and at the end; returns what was there."""
    data, at = world.memory.files[path]
    spoilt = bytearray(data)
    spoilt[len(data) // 3 : len(data) // 3 + 40] = b"\xff" * 40
    spoilt[-12:] = b"\x00" * 12
    world.memory.files[path] = (bytes(spoilt), at)
    return data


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
def test_broken_data_file_is_removed_if_its_loss_is_accepted(version):
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
def test_broken_deletes_are_removed_if_accepted(kind, number):
    """Rows that they deleted come back, and the result counts them."""
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


def with_shared_file(files_count: int) -> tuple[World, Damager]:
    """A table in which one Puffin file has a vector for each data file."""
    world = World(3)
    append(world.table, [events(number, 5) for number in range(files_count)])
    files = data_files(world.table)
    vectors = vector_files(world.table, [(file, 0) for file in files], [])
    assert len({vector.file_path for vector in vectors}) == 1
    commit(world.table, RowDelta(added_deletes=vectors))
    return world, Damager(world.catalog, EVENTS, Choices(1))


def marked(spoilt: Damager) -> set[str]:
    """The locations of the files that the head marks as deleted."""
    entries = [entry for row in spoilt.rows() for entry in spoilt.records(row["manifest_path"])]
    return {entry["data_file"]["file_path"] for entry in entries if entry["status"] == DELETED}


def now(world: World) -> Damager:
    return Damager(world.catalog, EVENTS, Choices(1))


@pytest.mark.parametrize("files_count", [1, 2])
def test_when_the_file_of_a_broken_vector_is_marked(files_count):
    world, spoilt = with_shared_file(files_count)
    place = next(spoilt.entries(1))
    path, at = place.file["file_path"], place.file["content_offset"] + 9
    spoilt.change_bytes(path, lambda data: data.__setitem__(at, data[at] ^ 0xFF))
    result = repair(world.table, no_spark, fault=[413, 414], accept_loss=[path])
    assert [one.lost_files for one in result.mended] == [(path,)]
    assert marked(now(world)) == ({path} if files_count == 1 else set())
    assert (world.table.metadata.head("main").summary or {})["removed-dvs"] == "1"
    assert sum(world.rows().values()) == 5 * files_count - (files_count - 1)


@pytest.mark.parametrize("files_count", [1, 2])
def test_when_the_files_of_merged_vectors_are_marked(files_count):
    world, spoilt = with_shared_file(files_count)
    place = next(spoilt.entries(1))
    path, other = place.file["file_path"], deepcopy(place.entry)
    other["data_file"]["file_path"] += "-2"
    spoilt.write(path + "-2", spoilt.read(path))
    spoilt.edit_manifest(place.manifest, lambda entries: entries.append(other))
    result = repair(world.table, no_spark, fault=[213], accept_loss=[place.file["referenced_data_file"]])
    assert len(result.mended) == 1
    assert marked(now(world)) == {path + "-2"} | ({path} if files_count == 1 else set())
    assert sum(world.rows().values()) == 4 * files_count


def test_shared_file_of_unknown_use_is_not_marked():
    world, spoilt = with_shared_file(1)
    place = next(spoilt.entries(1))
    path, at = place.file["file_path"], place.file["content_offset"] + 9
    append(world.table, [events(7, 5)])
    delete_by_vector(world.table, next(f.file_path for f in data_files(world.table) if f.first_row_id), [0])
    spoilt = now(world)
    spoilt.change_bytes(path, lambda data: data.__setitem__(at, data[at] ^ 0xFF))
    other = next(
        row["manifest_path"] for row in spoilt.rows() if row["content"] and row["manifest_path"] != place.manifest
    )
    del world.memory.files[other]
    result = repair(world.table, no_spark, fault=[413, 414], accept_loss=[path])
    assert [one.lost_files for one in result.mended] == [(path,)]
    entries = [
        e for row in now(world).rows() if row["manifest_path"] != other for e in spoilt.records(row["manifest_path"])
    ]
    assert path not in {entry["data_file"]["file_path"] for entry in entries}


@contextmanager
def planned_before(monkeypatch, act):
    """What is done once, after a repair has planned and before it commits."""
    execute, done = RepairRun.execute, []

    def later(self, table, planned):
        if not done:
            done.append(act())
        execute(self, table, planned)

    with monkeypatch.context() as patched:
        patched.setattr(RepairRun, "execute", later)
        yield
    assert done


@pytest.mark.parametrize("version", [1, 2, 3])
def test_the_last_entry_of_a_doubled_file_stays(version, monkeypatch):
    """The newer entry is to stay; the snapshot that the branch goes back to has the older one alone."""
    world = world_of(1, version=version)
    once, before = world.rows(), world.table.metadata.current_snapshot_id
    [entry] = live_entries(world.table)
    world.append(2)
    spoilt, last = Damager(world.catalog, EVENTS, Choices(1)), world.table.metadata.current_snapshot_id
    copied = deepcopy(next(p.entry for p in spoilt.entries(0) if p.file["file_path"] == entry.data_file.file_path))
    copied |= {"status": 0, "snapshot_id": last}
    if version > 1:
        copied |= {"sequence_number": 2, "file_sequence_number": 2}
    if version == 3:
        copied["data_file"]["first_row_id"] = entry.data_file.first_row_id
    newest = next(row["manifest_path"] for row in spoilt.rows() if row["added_snapshot_id"] == last)
    spoilt.edit_manifest(newest, lambda entries: entries.append(copied))

    def goes_back():
        commit(world.table, ReplaceRef(name="main", type="branch", snapshot_id=before, expected_id=last))

    path = entry.data_file.file_path
    with planned_before(monkeypatch, goes_back):
        result = repair(world.table, no_spark, fault=[212], accept_loss=[path])
    assert (result.mended, result.lost_records_count) == ((), 0)
    assert world.rows() == once
    assert world.table.metadata.current_snapshot_id == before


def lossy() -> tuple[World, str]:
    """A table with a lost file of 5 rows, and a vector that reaches nothing."""
    world = world_of(1, 2, version=3)
    lost, other = (file.file_path for file in data_files(world.table))
    delete_by_vector(world.table, other, [0])
    spoilt = Damager(world.catalog, EVENTS, Choices(1))
    spoilt.edit_file(spoilt.vector(), referenced_data_file=other + "-gone")
    del world.memory.files[lost]
    return world, lost


def refused_once(monkeypatch, error):
    """The commit that takes out what reaches nothing ends with an error, the first time."""
    apply, done = RewriteManifests.apply, []

    def refused(self, base, attempt):
        if not done:
            done.append(1)
            raise error
        return apply(self, base, attempt)

    monkeypatch.setattr(RewriteManifests, "apply", refused)


def test_a_loss_that_landed_before_a_new_plan(monkeypatch):
    world, lost = lossy()
    refused_once(monkeypatch, ConflictError("others were first"))
    result = repair(world.table, no_spark, fault=[301, 214], accept_loss=[lost])
    assert [one.fault_id for one in result.mended] == [301, 214]
    assert result.lost_records_count == 5
    assert len(result.branches) == 2


def test_a_loss_that_landed_before_an_error(monkeypatch):
    world, lost = lossy()
    refused_once(monkeypatch, OutcomeUnknownError("nobody knows"))
    with pytest.raises(
        OutcomeUnknownError, match=r"nobody knows; run .* had repaired before: branch 'main' at snapshot"
    ):
        repair(world.table, no_spark, fault=[301, 214], accept_loss=[lost])


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (InvalidTableError("the manifest is damaged"), "the manifest is damaged"),
        (RuntimeError("the JVM is gone"), "RuntimeError: the JVM is gone"),
    ],
    ids=["ours", "another's"],
)
def test_a_failure_after_a_commit_says_what_is_mended(monkeypatch, error, said):
    world, lost = lossy()
    refused_once(monkeypatch, error)
    result = repair(world.table, no_spark, fault=[301, 214], accept_loss=[lost])
    assert (result.status, [one.fault_id for one in result.mended], len(result.branches)) == ("partial", [301], 1)
    assert result.problems == (f"the rest of what was planned is not repaired: {said}",)
    assert result.lost_records_count == 5
    again = repair(world.table, no_spark, fault=[301, 214], accept_loss=[lost])
    assert [one.fault_id for one in again.mended] == [214]


def test_a_first_commit_is_told_where_the_second_fails(monkeypatch):
    world = world_of(1)
    lost = StatisticsFile(
        snapshot_id=world.table.metadata.current_snapshot_id,
        statistics_path=f"{world.table.metadata.location}/metadata/lost.stats",
        file_size_in_bytes=100,
        file_footer_size_in_bytes=10,
        blob_metadata=(),
    )
    commit(world.table, ChangeStatistics(updates=(lost,)))
    spoil_anew(world.catalog, EVENTS, 1, 108)
    monkeypatch.setattr(StillNamed, "apply", thrown(RuntimeError("the JVM is gone")))
    result = repair(world.table, no_spark, fault=[108, 304])
    assert (result.status, [one.fault_id for one in result.mended]) == ("partial", [108])


def test_statistics_that_others_set_meanwhile_stay(monkeypatch):
    world = world_of(1)
    directory, snapshot_id = f"{world.table.metadata.location}/metadata", world.table.metadata.current_snapshot_id
    lost, new = (
        StatisticsFile(
            snapshot_id=snapshot_id,
            statistics_path=f"{directory}/{name}.stats",
            file_size_in_bytes=100,
            file_footer_size_in_bytes=10,
            blob_metadata=(),
        )
        for name in ("lost", "new")
    )
    world.memory.files[new.statistics_path] = (b"x" * 100, 0)
    commit(world.table, ChangeStatistics(updates=(lost,)))
    with planned_before(monkeypatch, lambda: commit(world.table, ChangeStatistics(updates=(new,)))):
        result = repair(world.table, no_spark, fault=[304])
    assert result.mended == ()
    assert [one.statistics_path for one in world.table.metadata.statistics] == [new.statistics_path]
    assert 304 not in {one.fault_id for one in check(world.table, no_spark).faults}


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
        return planned_trash(self.plan, location)

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


@for_each(
    ("change", "why"),
    [
        (lambda data: data.extend(b" "), "not in the trash of a run as the list describes it"),
        (lambda data: data.__setitem__(-30, data[-30] ^ 0xFF), "is not the missing one"),
    ],
)
def test_manifests_that_are_not_the_missing_ones_stay(change, why):
    found = Trashed(["manifests"])
    for path in found.manifests:
        found.damager.change_bytes(found.trashed(path), change)
    found.stays(MANIFEST, why)


def test_a_manifest_that_is_there_and_cannot_be_read_stays():
    found = Trashed([])
    found.damager.change_bytes(found.manifests[0], lambda data: data.__delitem__(slice(-20, None)))
    found.stays(MANIFEST, "is there and cannot be read")


def of_another_snapshot(found: Trashed, at: str) -> None:
    parent = found.table.metadata.snapshot(found.table.metadata.head("main").parent_snapshot_id)
    found.damager.write(at, found.damager.read(str(parent.manifest_list)))


def of_a_longer_manifest(found: Trashed, _: str) -> None:
    at = found.trashed(found.manifests[0])
    found.damager.write(found.manifests[0], found.damager.read(at) + b" ")
    found.damager.remove(at)
    found.gone.remove(found.manifests[0])


def without_totals(found: Trashed, _: str) -> None:
    def edit(document):
        head = next(s for s in document["snapshots"] if s["snapshot-id"] == document["current-snapshot-id"])
        del head["summary"]["total-records"]

    found.damager.edit_metadata(edit)


@for_each(
    ("spoil_list", "why"),
    [
        (
            lambda found, at: found.damager.edit_avro(at, lambda rows: rows.pop(0)),
            "where the summary of its snapshot says",
        ),
        (
            lambda found, at: found.damager.change_bytes(at, lambda data: data.__delitem__(slice(-9, None))),
            "is not whole",
        ),
        (of_another_snapshot, "is of another snapshot"),
        (lambda found, _: found.damager.remove(found.trashed(found.manifests[0])), "neither there nor in the trash"),
        (of_a_longer_manifest, "bytes, not"),
        (without_totals, "says nothing"),
    ],
)
def test_a_list_that_contradicts_its_snapshot_stays(spoil_list, why):
    """Of a list nobody has written the length: what it says is held against its snapshot."""
    found = Trashed(["list", "manifests"])
    spoil_list(found, found.trashed(found.list))
    found.stays(LIST, why)
