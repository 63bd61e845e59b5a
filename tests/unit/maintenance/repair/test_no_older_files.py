"""Compacted files that are lost, and whose rows nobody can tell from older files: the entry stays, and why is said."""

import io
from collections.abc import Callable

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace

from icekeep.commit.changes.definitions import ChangeProperties
from icekeep.commit.changes.files import AppendFiles
from icekeep.commit.changes.rewrites import RewriteFiles
from icekeep.commit.retry import commit
from icekeep.errors import UnavailableError
from icekeep.maintenance.repair import older_files
from icekeep.maintenance.repair.job import repair
from icekeep.spec.evolution import AddColumn, AddPartitionField, DropColumn
from icekeep.spec.types import LONG
from icekeep.tables.verbs import update_schema, update_spec, upgrade_format_version
from kit.cases import for_each
from kit.checked_entries import add_blindly
from kit.columns import table_of
from kit.damager import (
    EQUALITY_DELETES,
    append,
    compacted,
    damager,
    filled,
    lose,
    old_entries,
    rewritten,
    rewritten_files,
)
from kit.deletes import data_files, new_data_files
from kit.naive_scan import live_entries
from kit.row_histories import ByIcekeep
from kit.rows import Place
from kit.runtime import no_spark

pytestmark = pytest.mark.slow

MISSING = 301
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


def parent_expired() -> ByIcekeep:
    return edited(compacted(filled()), -2, dict.clear)


def no_rewrite() -> ByIcekeep:
    return edited(compacted(filled()), -1, lambda one: one["summary"].update(operation="overwrite"))


def no_schema() -> ByIcekeep:
    return edited(compacted(filled()), -1, lambda one: one.pop("schema-id"))


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


def fewer_rows() -> ByIcekeep:
    return lost(rewritten(filled(), range(23)))


def older_than_sources() -> ByIcekeep:
    return lost(rewritten(filled(), range(24), data_sequence_number=2))


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


def found_by_names() -> ByIcekeep:
    """One of the sources has no field ids: another engine's file, imported as it was."""
    return found_by_name_of(lambda bare: bare)


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


REFUSED = {
    rewrite_expired: "which added it, is expired",
    parent_expired: "the snapshot before",
    no_rewrite: "has operation 'overwrite'",
    no_schema: "does not say in which columns",
    appended: "has operation 'append'",
    source_gone: "is not there any more",
    source_cut: "bytes where its entry says",
    source_unreadable: "cannot be read",
    source_live_again: "is in the table again",
    equality_deletes_between: "reaches only some of it",
    equality_deletes_applied: "when it was rewritten",
    half_lost: "is not lost with it",
    half_rewritten_since: "is not lost with it",
    fewer_rows: "older files have 24 rows, and the rewrite",
    older_than_sources: "older than one of the files",
    moved_to_another_spec: "several partition specs",
    column_revived: "column 'number' was not there",
    another_default: "the default of column 8",
    found_by_names: "has columns without field ids",
    half_found_by_names: "has columns without field ids",
    no_row_ids_before: "no row ids",
    row_ids_since: "no row ids",
    manifest_of_before_gone: "has rewritten cannot be read",
}


@for_each("spoilt", REFUSED, ids=lambda one: one.__name__)
def test_a_file_stays_lost(spoilt):
    reason = refused(spoilt())
    assert "--accept-loss" in reason
    assert f"it cannot come back from older files: {reason.partition('older files: ')[2]}" in reason
    assert REFUSED[spoilt] in reason.partition("older files: ")[2]


@for_each("version", [2, 3])
@for_each("scope", ["file", "partition"])
def test_rows_that_were_deleted_by_position_since_would_come_back(version, scope):
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
