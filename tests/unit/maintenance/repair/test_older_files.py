"""Compacted files that are lost: their rows come back from the files that the compaction read, and nobody accepts a loss."""

from contextlib import suppress

import msgspec
import pytest

from icekeep.catalog.base import Table
from icekeep.commit.retry import commit
from icekeep.errors import IcekeepError
from icekeep.maintenance.check.job import check
from icekeep.maintenance.compact.job import compact
from icekeep.maintenance.delete.reachable import CONTENT_KINDS, GarbageFile
from icekeep.maintenance.expire.job import expire_snapshots
from icekeep.maintenance.repair import job as execute
from icekeep.maintenance.repair import older_files as copying
from icekeep.maintenance.repair import planner
from icekeep.maintenance.repair.job import plan_repair, repair
from icekeep.spec.evolution import DropColumn
from icekeep.spec.manifests.structs import FileContent, Status
from icekeep.spec.updates import SetCurrentSchema
from icekeep.tables.refs import create_branch
from icekeep.tables.verbs import update_schema, upgrade_format_version
from kit.cases import Choices, for_each, scaled, seeds, some_of
from kit.changes import SharingReader
from kit.damager import (
    POSITION_DELETES,
    Rows,
    append,
    compacted,
    damager,
    filled,
    lose,
    old_entries,
    rewritten,
    rewritten_files,
)
from kit.deletes import data_files, delete_by_vector
from kit.expired_tables import in_trash, written_plan
from kit.job_world import Fault, Killed, World
from kit.naive_scan import live_entries
from kit.row_histories import FORMATS, SPECS, VERSIONS, ByIcekeep, History, in_memory
from kit.rows import scanned_rows
from kit.runtime import no_spark

pytestmark = pytest.mark.slow

MISSING = 301
BEFORE = ("append", "append", "positions", "column")
AFTER = ("append", "column", "equality", "positions", "spec")


def faults_of(table: Table, ref: str = "main") -> set[int]:
    result = check(table, no_spark, deep=True, ref=ref)
    return {one.fault_id for one in (*result.faults, *result.notices)}


def repaired(by: ByIcekeep, **told):
    """Plan, do exactly that, and hand back what was done."""
    plan = plan_repair(by.table, no_spark, fault=[MISSING], **told)
    result = repair(by.table, no_spark, fault=[MISSING], approve=plan.hash, **told)
    assert result.mended == plan.mends
    return result


def stored(by: ByIcekeep) -> set[str]:
    return {info.location for info in by.table.storage.list(f"{by.table.metadata.location}/data")}


@for_each("share", range(4))
def test_rows_and_row_ids_are_the_same_as_before_the_loss(share):
    wanted, done = scaled(8), 0
    for seed in seeds(240)[share::4]:
        if done == wanted:
            break
        chosen = Choices(seed)
        history = History(in_memory(), chosen.choice(VERSIONS), chosen.choice(SPECS))
        history.went_on((kind, chosen.getrandbits(31)) for kind in ("append", *chosen.choices(BEFORE, k=5)))
        compacted(history.by)
        history.went_on((kind, chosen.getrandbits(31)) for kind in chosen.choices(AFTER, k=chosen.randint(0, 3)))
        table = history.table
        files = rewritten_files(table)
        if not files:
            # All rows had been deleted.
            continue
        before, sound = Rows.of(table), faults_of(table)
        assert before.scanned == history.expected()
        lose(history.by, *chosen.sample(files, min(len(files), chosen.randint(1, 2))))
        result = repaired(history.by)
        if result.not_mended:
            assert all("cannot come back from older files" in one.reason for one in result.not_mended), result
            continue
        now = history.table
        assert Rows.of(now) == before, (seed, result)
        assert faults_of(now) <= sound, (seed, result)
        assert (result.lost_records_count, now.metadata.current_snapshot.summary["operation"]) == (0, "replace")
        done += 1
    assert done == wanted


@for_each("file_format", FORMATS)
@for_each("version", [1, 2, 3])
def test_copies_take_the_places_of_lost_files(version, file_format):
    by = compacted(filled(version, file_format=file_format, partition_by=[("kind", "identity")]))
    append(by, range(24, 30))
    before, old = Rows.of(by.table), old_entries(by.table)
    lose(by)
    total = by.table.metadata.current_snapshot.summary["total-records"]
    result = repaired(by)
    now = by.table
    assert Rows.of(now) == before
    assert not faults_of(now)
    assert len(result.mended) == 2
    assert "no row is lost" in result.mended[0].action
    copies = [e for e in live_entries(now) if e.snapshot_id == now.metadata.current_snapshot_id]
    assert {e.status for e in copies} == {Status.ADDED}
    facts = lambda e: (e.data_file.partition, e.sequence_number, e.data_file.first_row_id, e.data_file.lower_bounds)  # noqa: E731
    assert sorted(map(repr, map(facts, copies))) == sorted(map(repr, map(facts, old)))
    # Engines that clean up by marks of deleted entries remove the old files, wherever else these are live.
    assert not {e.data_file.file_path for e in copies} & {e.data_file.file_path for e in old}
    assert now.metadata.current_snapshot.summary["total-records"] == total


@pytest.mark.parametrize("version", [2, 3])
def test_rows_stay_when_older_snapshots_expire(version):
    by = filled(version)
    by.delete_positions([1, 9], "PARQUET", "partition", is_referenced=False)
    compacted(by)
    before = Rows.of(by.table)
    lose(by)
    repaired(by)
    old = {entry.data_file.file_path for entry in old_entries(by.table)}
    expire_snapshots(by.table, no_spark, older_than="2100-01-01T00:00:00+00:00", retain_last=1)
    assert Rows.of(by.table) == before
    assert not old & stored(by)
    compact(by.table, no_spark, options={"rewrite-all": "true"})
    assert Rows.of(by.table).scanned == before.scanned


@for_each("version", [2, 3])
@for_each("scope", ["file", "partition"])
def test_rows_that_were_deleted_before_the_rewrite_stay_deleted(version, scope):
    by = filled(version)
    by.delete_positions([0, 1, 9], "PARQUET", scope, is_referenced=False)
    compacted(by)
    before = Rows.of(by.table)
    assert sum(before.scanned.values()) == 21
    lose(by)
    repaired(by)
    new = [e for e in live_entries(by.table) if e.snapshot_id == by.table.metadata.current_snapshot_id]
    deletes = [e.data_file for e in new if e.data_file.content is FileContent.POSITION_DELETES]
    assert Rows.of(by.table) == before
    assert sum(file.record_count for file in deletes) == 3
    assert not faults_of(by.table)


def test_files_of_one_rewrite_come_back_together():
    by = rewritten(filled(), range(12), range(12, 24))
    before = Rows.of(by.table)
    lose(by)
    result = repaired(by)
    assert Rows.of(by.table) == before
    assert len(result.mended) == 2
    assert all("of 1 more lost with it" in one.action for one in result.mended)
    assert len(data_files(by.table)) == 6


def test_each_branch_gets_copies_of_its_own():
    by = compacted(filled(3))
    create_branch(by.table, "other")
    append(by, range(24, 28))
    before = Rows.of(by.table), Rows.of(by.table, "other")
    lose(by)
    result = repaired(by)
    assert [one.branch for one in result.branches] == ["main", "other"]
    assert (Rows.of(by.table), Rows.of(by.table, "other")) == before
    assert not faults_of(by.table, "other")


def test_a_loss_that_is_accepted_is_told_apart_from_what_comes_back():
    by = compacted(filled())
    append(by, [24, 25])
    lone = next(file for file in data_files(by.table) if file not in rewritten_files(by.table))
    before = Rows.of(by.table)
    lose(by)
    lose(by, lone)
    result = repaired(by, accept_loss=[lone.file_path])
    assert (result.lost_records_count, len(result.mended)) == (1, 2)
    assert sum((before.scanned - scanned_rows(by.table)).values()) == 1
    # Readers of changes must hear of the row that went.
    assert by.table.metadata.current_snapshot.summary["operation"] == "overwrite"


def test_what_comes_back_is_not_lost_though_that_was_accepted():
    by = compacted(filled())
    before = Rows.of(by.table)
    [file] = rewritten_files(by.table)
    lose(by)
    assert repaired(by, accept_loss=[file.file_path]).lost_records_count == 0
    assert Rows.of(by.table) == before


def test_files_without_row_ids_come_back_where_the_lost_one_had_none_either():
    by = compacted(filled(2))
    upgrade_format_version(by.table, 3)
    before = Rows.of(by.table).scanned
    lose(by)
    repaired(by)
    assert Rows.of(by.table).scanned == before
    assert not faults_of(by.table)


def test_a_change_beside_it_that_spares_the_file_is_no_hindrance(monkeypatch):
    by = compacted(filled())
    before = scanned_rows(by.table)
    lose(by)
    meanwhile(monkeypatch, lambda: append(by, [24, 25]))
    repaired_once(by)
    assert sum((scanned_rows(by.table) - before).values()) == 2
    assert not before - scanned_rows(by.table)
    assert not faults_of(by.table)


def meanwhile(monkeypatch, act):
    """Something happens while the first file is copied."""
    acts, copy = [act], copying.copy_file

    def copied(*told):
        if acts:
            acts.pop()()
        copy(*told)

    monkeypatch.setattr(copying, "copy_file", copied)


def repaired_once(by: ByIcekeep):
    return repair(by.table, no_spark, fault=[MISSING])


def deleted(by: ByIcekeep, file):
    return lambda: delete_by_vector(by.table, file.file_path, [3])


def gone(by: ByIcekeep, _):
    return lambda: damager(by).remove(old_entries(by.table)[-1].data_file.file_path)


def cut(by: ByIcekeep, _):
    path = old_entries(by.table)[-1].data_file.file_path
    return lambda: damager(by).write(path, damager(by).read(path)[:-1])


@pytest.mark.parametrize(
    ("act", "why"), [(deleted, "deletes rows of it"), (gone, "is not there any more"), (cut, "bytes")]
)
def test_what_others_do_meanwhile_is_seen_and_no_copy_is_left(monkeypatch, act, why):
    by = compacted(filled(3))
    [file] = rewritten_files(by.table)
    lose(by)
    meanwhile(monkeypatch, act(by, file))
    files = stored(by)
    result = repaired_once(by)
    assert not result.mended
    assert why in result.not_mended[0].reason
    assert not {path for path in stored(by) - files if path.endswith(".parquet")}


class Columns(msgspec.Struct, frozen=True):
    """A change that has a table read in the columns of an older schema."""

    schema_id: int

    def apply(self, base, attempt):
        return (SetCurrentSchema(schema_id=self.schema_id),)


def test_columns_that_come_back_meanwhile_are_seen(monkeypatch):
    by = filled()
    update_schema(by.table, [DropColumn("number")])
    compacted(by)
    lose(by)
    meanwhile(monkeypatch, lambda: commit(by.table, Columns(0)))
    result = repaired_once(by)
    assert not result.mended
    assert "column 'number' was not there" in result.not_mended[0].reason


@pytest.mark.parametrize("version", [2, 3])
def test_totals_count_the_copies(version):
    by = filled(version)
    by.delete_positions([0, 1, 9], "PARQUET", "file", is_referenced=True)
    compacted(by)
    damager(by).edit_metadata(lambda document: document["snapshots"][-1]["summary"].update({"total-records": "7"}))
    before = Rows.of(by.table)
    lose(by)
    result = repair(by.table, no_spark, fault=[MISSING, 215])
    assert Rows.of(by.table) == before
    # Deleted rows count as well as others.
    assert by.table.metadata.current_snapshot.summary["total-records"] == "24"
    [action] = [one.action for one in result.mended if one.fault_id == 215]
    assert "total-records 24 in place of 7" in action
    assert not faults_of(by.table)


@pytest.mark.parametrize("version", [2, 3])
def test_manifests_that_are_read_in_tasks_tell_the_same(monkeypatch, version):
    for module in (planner, execute):
        monkeypatch.setattr(module, "SparkManifestReader", lambda _, storage: SharingReader(storage))
    by = filled(version)
    by.delete_positions([0, 9], "PARQUET", "partition", is_referenced=False)
    compacted(by)
    append(by, range(24, 28))
    by.delete_positions([25], "PARQUET", "partition", is_referenced=False)
    before = Rows.of(by.table)
    lose(by)
    repaired(by)
    assert Rows.of(by.table) == before
    assert not faults_of(by.table)


def test_deletes_that_might_be_for_the_file_and_are_not_are_no_hindrance():
    by = compacted(filled())
    append(by, range(24, 28))
    by.delete_positions([24, 25], "PARQUET", "partition", is_referenced=False)
    spoiler = damager(by)
    [place] = spoiler.entries(POSITION_DELETES)
    # Not every writer says which files a delete file is for.
    spoiler.edit_file(place, referenced_data_file=None, lower_bounds=None, upper_bounds=None)
    before = Rows.of(by.table)
    lose(by)
    repaired(by)
    assert Rows.of(by.table) == before


def test_positions_behind_the_end_of_a_file_delete_nothing():
    by = filled(3)
    delete_by_vector(by.table, data_files(by.table)[0].file_path, [1, 1000])
    compacted(by)
    before = Rows.of(by.table)
    lose(by)
    repaired(by)
    assert Rows.of(by.table) == before


def test_a_file_that_is_there_again_stays(monkeypatch):
    by = compacted(filled())
    [file] = rewritten_files(by.table)
    data, before = damager(by).read(file.file_path), Rows.of(by.table)
    lose(by)
    meanwhile(monkeypatch, lambda: damager(by).write(file.file_path, data))
    files = stored(by) | {file.file_path}
    result = repaired_once(by)
    assert not result.mended
    assert Rows.of(by.table) == before
    assert {path.rpartition("/")[2] for path in stored(by)} == {path.rpartition("/")[2] for path in files}


def test_a_file_that_is_in_the_trash_comes_back_from_there_though_older_files_have_its_rows():
    by = rewritten(filled(), range(12), range(12, 24))
    before = Rows.of(by.table)
    first, other = rewritten_files(by.table)
    lose(by, first)
    garbage = GarbageFile(CONTENT_KINDS[other.content], other.file_path, other.file_size_in_bytes)
    in_trash(written_plan(by.table, [garbage], runtime=by.table.runtime), by.table.storage)
    result = repaired(by)
    assert ["from the trash of run" in one.action for one in result.mended] == [True]
    assert f"{other.file_path!r} is not lost with it" in result.not_mended[0].reason
    lose(by, other)
    repaired(by)
    assert Rows.of(by.table) == before


@pytest.mark.parametrize("way", Fault.WAYS)
def test_a_repair_that_dies_at_any_call_is_finished_by_the_next(way):
    world = World(3)
    for number in (1, 2):
        world.append(number)
    delete_by_vector(world.table, data_files(world.table)[0].file_path, [0])
    compact(world.table, no_spark, options={"rewrite-all": "true"})
    create_branch(world.table, "audit")
    rows = world.rows()
    for file in data_files(world.table):
        del world.memory.files[file.file_path]
    done = world.copy()
    with Fault(done) as clean:
        repair(done.table, no_spark, fault=[MISSING])
    for place in some_of(range(len(clean.calls)), least=4):
        spoilt = world.copy()
        with Fault(spoilt, place, way), suppress(IcekeepError, Killed):
            repair(spoilt.table, no_spark, fault=[MISSING])
        told = f"{way}: {clean.calls[place]}, call {place} of {len(clean.calls)}"
        assert world.memory.files.keys() <= spoilt.memory.files.keys(), told
        repair(spoilt.table, no_spark, fault=[MISSING])
        for branch in ("main", "audit"):
            assert spoilt.rows(branch) == rows, told
            assert not faults_of(spoilt.table, branch), told
