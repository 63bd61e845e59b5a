"""What others commit between a repair's plan and its commit: nothing is done that was not meant, and what landed is told."""

from contextlib import contextmanager
from copy import deepcopy

import pytest

from icekeep.commit.changes.definitions import ChangeStatistics
from icekeep.commit.changes.rewrites import RewriteManifests
from icekeep.commit.changes.snapshots import ReplaceRef
from icekeep.commit.retry import commit
from icekeep.errors import ConflictError, InvalidTableError, OutcomeUnknownError
from icekeep.maintenance.check.job import check
from icekeep.maintenance.repair.job import RepairRun, StillNamed, repair
from icekeep.spec.snapshots import StatisticsFile
from kit.cases import Choices
from kit.changes import thrown
from kit.damage import spoil
from kit.damager import Damager
from kit.deletes import data_files, delete_by_vector
from kit.job_world import EVENTS, World
from kit.naive_scan import live_entries
from kit.runtime import no_spark

pytestmark = pytest.mark.slow


def world_of(*numbers: int, version: int = 2) -> World:
    world = World(version)
    for number in numbers:
        world.append(number)
    return world


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
def test_the_last_entry_of_a_doubled_file_stays_where_the_branch_goes_back_meanwhile(version, monkeypatch):
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


def test_a_loss_that_landed_is_told_although_the_next_commit_of_its_branch_was_planned_anew(monkeypatch):
    world, lost = lossy()
    refused_once(monkeypatch, ConflictError("others were first"))
    result = repair(world.table, no_spark, fault=[301, 214], accept_loss=[lost])
    assert [one.fault_id for one in result.mended] == [301, 214]
    assert result.lost_records_count == 5
    assert len(result.branches) == 2


def test_a_loss_that_landed_is_told_by_the_error_of_the_next_commit_of_its_branch(monkeypatch):
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
def test_whatever_stands_in_the_way_after_a_commit_the_result_says_what_is_mended(monkeypatch, error, said):
    world, lost = lossy()
    refused_once(monkeypatch, error)
    result = repair(world.table, no_spark, fault=[301, 214], accept_loss=[lost])
    assert (result.status, [one.fault_id for one in result.mended], len(result.branches)) == ("partial", [301], 1)
    assert result.problems == (f"the rest of what was planned is not repaired: {said}",)
    assert result.lost_records_count == 5
    again = repair(world.table, no_spark, fault=[301, 214], accept_loss=[lost])
    assert [one.fault_id for one in again.mended] == [214]


def test_what_the_first_commit_to_the_metadata_mended_is_told_where_the_second_fails(monkeypatch):
    world = world_of(1)
    lost = StatisticsFile(
        snapshot_id=world.table.metadata.current_snapshot_id,
        statistics_path=f"{world.table.metadata.location}/metadata/lost.stats",
        file_size_in_bytes=100,
        file_footer_size_in_bytes=10,
        blob_metadata=(),
    )
    commit(world.table, ChangeStatistics(updates=(lost,)))
    spoil(world.catalog, EVENTS, 1, 108)
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
