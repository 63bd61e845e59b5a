"""Compacted files that are lost: their rows come back from the files that the compaction read, or nothing is done."""

import io
from collections.abc import Callable
from contextlib import suppress

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace

from icekeep.catalog.base import Table
from icekeep.commit.changes.definitions import ChangeProperties
from icekeep.commit.changes.files import AppendFiles
from icekeep.commit.changes.rewrites import RewriteFiles
from icekeep.commit.retry import commit
from icekeep.errors import IcekeepError, UnavailableError
from icekeep.maintenance.check.job import check
from icekeep.maintenance.compact.job import compact
from icekeep.maintenance.delete.reachable import CONTENT_KINDS, GarbageFile
from icekeep.maintenance.expire.job import expire_snapshots
from icekeep.maintenance.repair import job as execute
from icekeep.maintenance.repair import older_files, planner
from icekeep.maintenance.repair import older_files as copying
from icekeep.maintenance.repair.job import plan_repair, repair
from icekeep.spec.evolution import AddColumn, AddPartitionField, DropColumn
from icekeep.spec.manifests.structs import FileContent, Status
from icekeep.spec.types import LONG
from icekeep.spec.updates import SetCurrentSchema
from icekeep.tables.refs import create_branch
from icekeep.tables.verbs import update_schema, update_spec, upgrade_format_version
from kit.cases import Choices, for_each, scaled, seeds, some_of
from kit.changes import SharingReader
from kit.checked_entries import add_blindly
from kit.columns import table_of
from kit.damager import (
    EQUALITY_DELETES,
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
from kit.deletes import data_files, delete_by_vector, new_data_files
from kit.expired_tables import in_trash, written_plan
from kit.job_world import Fault, Killed, World
from kit.naive_scan import live_entries
from kit.row_histories import FORMATS, SPECS, VERSIONS, ByIcekeep, History, in_memory
from kit.rows import Place, scanned_rows
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


def test_accepted_loss_is_counted_apart_from_recovered_rows():
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


def test_files_without_row_ids_replace_one_without_row_ids():
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


def test_deletes_that_only_might_apply_do_not_block():
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


def test_the_trash_goes_before_older_files():
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


SCRAP = b"scrap"


def refused(by: ByIcekeep) -> str:
    """Why the lost file, or the first of them, stays as it is; that nothing was changed."""
    at = by.table.metadata_location
    result = repair(by.table, no_spark, fault=[MISSING])
    assert (result.mended, result.branches, by.table.metadata_location) == ((), (), at)
    return next(one.reason for one in result.not_mended if "no branch has it" not in one.reason)


def lost(by: ByIcekeep) -> ByIcekeep:
    lose(by)
    return by


def edited(by: ByIcekeep, which: int, change: Callable[[dict], object]) -> ByIcekeep:
    """After a snapshot's JSON was changed; one that is not anything any more goes."""
    by = lost(by)

    def change_snapshots(document):
        change(document["snapshots"][which])
        document["snapshots"] = [one for one in document["snapshots"] if one]
        ids = {one["snapshot-id"] for one in document["snapshots"]}
        document["snapshot-log"] = [one for one in document["snapshot-log"] if one["snapshot-id"] in ids]

    damager(by).edit_metadata(change_snapshots)
    return by


def rewrite_expired() -> ByIcekeep:
    by = compacted(filled())
    append(by, [24])
    return edited(by, -2, dict.clear)


def appended() -> ByIcekeep:
    by = filled()
    lose(by, data_files(by.table)[0])
    return by


def source_gone() -> ByIcekeep:
    by = lost(compacted(filled()))
    damager(by).remove(old_entries(by.table)[2].data_file.file_path)
    return by


def source_cut() -> ByIcekeep:
    by = lost(compacted(filled()))
    path = old_entries(by.table)[2].data_file.file_path
    damager(by).write(path, damager(by).read(path)[:-1])
    return by


def source_unreadable() -> ByIcekeep:
    by = lost(compacted(filled()))
    path = old_entries(by.table)[2].data_file.file_path
    damager(by).change_bytes(path, lambda data: data.__setitem__(slice(-8, None), SCRAP + b"..."))
    return by


def source_live_again() -> ByIcekeep:
    by = compacted(filled())
    add_blindly(by.table, old_entries(by.table)[1].data_file)
    return lost(by)


def rows_deleted_since(version: int, scope: str) -> ByIcekeep:
    by = compacted(filled(version))
    append(by, [24, 25])
    by.delete_positions([3, 24], "PARQUET", scope, is_referenced=scope == "file")
    return lost(by)


def equality_deletes_between() -> ByIcekeep:
    """Others may give a delete file a number of before; that one reaches the oldest of the sources alone."""
    by = compacted(filled())
    by.delete_equal(["id"], [[3]], Place(0, ()), "PARQUET", ())
    spoiler = damager(by)
    [delete] = list(spoiler.entries(EQUALITY_DELETES))
    spoiler.edit_entry(delete, lambda entry: entry.update(sequence_number=2))
    spoiler.edit_row(delete.manifest, min_sequence_number=2)
    return lost(by)


def equality_deletes_applied() -> ByIcekeep:
    by = filled()
    by.delete_equal(["id"], [[3]], Place(0, ()), "PARQUET", ())
    return lost(compacted(by))


def half_lost() -> ByIcekeep:
    by = rewritten(filled(), range(12), range(12, 24))
    lose(by, rewritten_files(by.table)[0])
    return by


def half_rewritten_since() -> ByIcekeep:
    """The other one of two files is gone from the table, and its rows are elsewhere."""
    by = rewritten(filled(), range(12), range(12, 24))
    kept, other = rewritten_files(by.table)
    table = by.table
    old = tuple(entry for entry in live_entries(table) if entry.data_file.file_path == other.file_path)
    names = [field.name for field in table.metadata.schema.fields]
    rows = [dict.fromkeys(names) | {"id": n} for n in range(other.record_count)]
    files = new_data_files(table, table_of(table.metadata.schema, rows))
    commit(table, RewriteFiles(removed=old, added=files, schema_id=table.metadata.current_schema_id))
    lose(by, kept)
    return by


def moved_to_another_spec() -> ByIcekeep:
    by = filled()
    update_spec(by.table, [AddPartitionField("kind", "identity")])
    return lost(compacted(by))


def column_revived() -> ByIcekeep:
    by = filled()
    update_schema(by.table, [DropColumn("number")])
    compacted(by)
    damager(by).edit_metadata(lambda document: document.update({"current-schema-id": 0}))
    return lost(by)


def another_default() -> ByIcekeep:
    by = filled(3)
    update_schema(by.table, [AddColumn("more", LONG, default=7)])
    compacted(by)

    def change(document):
        schema = dict(document["schemas"][-1])
        schema["schema-id"] += 1
        schema["fields"] = [dict(one) for one in schema["fields"]]
        schema["fields"][-1]["initial-default"] = 8
        document["schemas"].append(schema)
        document["current-schema-id"] = schema["schema-id"]

    damager(by).edit_metadata(change)
    return lost(by)


def half_found_by_names() -> ByIcekeep:
    """One column of a source has a field id, the other none."""
    with_id = pa.field("id", pa.int64(), metadata={"PARQUET:field_id": "1"})
    return found_by_name_of(lambda bare: bare.cast(bare.schema.set(0, with_id)))


def found_by_name_of(ids: Callable[[pa.Table], pa.Table]) -> ByIcekeep:
    by = filled()
    mapping = '[{"field-id": 1, "names": ["id"]}, {"field-id": 2, "names": ["kind"]}]'
    commit(by.table, ChangeProperties(updates={"schema.name-mapping.default": mapping}))
    table = by.table
    like = data_files(table)[0]
    rows = pq.read_table(io.BytesIO(damager(by).read(like.file_path)))
    bare = rows.cast(rows.schema.remove_metadata()).select(["id", "kind"])
    bare = ids(pa.table({name: bare.column(name).combine_chunks() for name in ("id", "kind")}))
    out = io.BytesIO()
    pq.write_table(bare, out)
    path = like.file_path.replace(".parquet", "-bare.parquet")
    damager(by).write(path, out.getvalue())
    file = replace(
        like, file_path=path, file_size_in_bytes=len(out.getvalue()), record_count=bare.num_rows, split_offsets=None
    )
    commit(table, AppendFiles(files=(file,)))
    return lost(compacted(by))


def no_row_ids_before() -> ByIcekeep:
    by = filled(2)
    upgrade_format_version(by.table, 3)
    return lost(compacted(by))


def row_ids_since() -> ByIcekeep:
    by = compacted(filled(2))
    upgrade_format_version(by.table, 3)
    append(by, [24])
    return lost(by)


def encrypted(which: str) -> ByIcekeep:
    by = compacted(filled())
    spoiler = damager(by)
    if which == "lost":
        spoiler.edit_file(spoiler.entry(), key_metadata=b"key")
        return lost(by)
    rows = spoiler.records(spoiler.metadata()["snapshots"][-2]["manifest-list"])

    def change(entries):
        entries[0]["data_file"]["key_metadata"] = b"key"

    spoiler.edit_avro(rows[0]["manifest_path"], change)
    spoiler.edit_row(rows[0]["manifest_path"], manifest_length=len(spoiler.read(rows[0]["manifest_path"])))
    return lost(by)


def manifest_of_before_gone() -> ByIcekeep:
    by = lost(compacted(filled()))
    spoiler = damager(by)
    rows = spoiler.records(spoiler.metadata()["snapshots"][-2]["manifest-list"])
    spoiler.remove(rows[-1]["manifest_path"])
    return by


REFUSED = [
    (rewrite_expired, "which added it, is expired"),
    (lambda: edited(compacted(filled()), -2, dict.clear), "the snapshot before"),
    (
        lambda: edited(compacted(filled()), -1, lambda one: one["summary"].update(operation="overwrite")),
        "has operation 'overwrite'",
    ),
    (
        lambda: edited(compacted(filled()), -1, lambda one: one.pop("schema-id")),
        "does not say in which columns",
    ),
    (appended, "has operation 'append'"),
    (source_gone, "is not there any more"),
    (source_cut, "bytes where its entry says"),
    (source_unreadable, "cannot be read"),
    (source_live_again, "is in the table again"),
    (equality_deletes_between, "reaches only some of it"),
    (equality_deletes_applied, "when it was rewritten"),
    (half_lost, "is not lost with it"),
    (half_rewritten_since, "is not lost with it"),
    (lambda: lost(rewritten(filled(), range(23))), "older files have 24 rows, and the rewrite"),
    (
        lambda: lost(rewritten(filled(), range(24), data_sequence_number=2)),
        "older than one of the files",
    ),
    (moved_to_another_spec, "several partition specs"),
    (column_revived, "column 'number' was not there"),
    (another_default, "the default of column 8"),
    (lambda: found_by_name_of(lambda bare: bare), "has columns without field ids"),
    (half_found_by_names, "has columns without field ids"),
    (no_row_ids_before, "no row ids"),
    (row_ids_since, "no row ids"),
    (manifest_of_before_gone, "has rewritten cannot be read"),
]


@for_each(("spoilt", "why"), REFUSED)
def test_a_file_stays_lost(spoilt, why):
    reason = refused(spoilt())
    assert "--accept-loss" in reason
    assert f"it cannot come back from older files: {reason.partition('older files: ')[2]}" in reason
    assert why in reason.partition("older files: ")[2]


@for_each("version", [2, 3])
@for_each("scope", ["file", "partition"])
def test_rows_deleted_by_position_since_block_the_recovery(version, scope):
    assert "deletes rows of it, and would not in older files" in refused(rows_deleted_since(version, scope))


def test_doubled_files_come_first():
    by = compacted(filled())
    [file] = rewritten_files(by.table)
    add_blindly(by.table, file)
    lose(by, file)
    assert "repair faults 212 and 220 first" in refused(by)


@pytest.mark.parametrize("which", ["lost", "source"])
def test_encrypted_files_are_not_copied(which):
    assert "is encrypted" in refused(encrypted(which))


def test_a_store_that_is_out_of_reach_is_no_reason_to_lose_rows(monkeypatch):
    by = lost(compacted(filled()))

    def failing(*_):
        raise UnavailableError("the store is out of reach")

    monkeypatch.setattr(older_files, "open_reader", failing)
    [file] = rewritten_files(by.table)
    with pytest.raises(UnavailableError):
        repair(by.table, no_spark, fault=[MISSING], accept_loss=[file.file_path])
