"""Real tables on the local disk, expired and restored: PyIceberg reads through the tags what it read before."""

import os
from collections import Counter
from pathlib import Path
from urllib.parse import urlparse

import pytest

from icekeep.catalog.base import Table
from icekeep.commit.changes.files import DeleteFiles
from icekeep.commit.retry import commit
from icekeep.maintenance.restore.job import restore
from icekeep.spec.evolution import DropColumn, RemovePartitionField
from icekeep.tables.verbs import append, update_schema, update_spec
from kit.expired_tables import expired, files_of, moves_of
from kit.lake import Lake, events, multiset

pytestmark = pytest.mark.slow


def rows_at(lake: Lake, snapshot_id: int) -> Counter[str]:
    return multiset(lake.foreign().scan(snapshot_id=snapshot_id).to_arrow())


def without_first_file(table: Table) -> Table:
    """A table whose oldest data file is deleted: only snapshots that expire lead to it."""
    paths = [f.location for f in files_of(table.metadata, table.storage).values() if f.kind.is_content]
    return commit(table, DeleteFiles(paths=frozenset({min(paths)}))).table


@pytest.mark.parametrize("format_version", [1, 2, 3])
@pytest.mark.parametrize("kind", ["sql", "hadoop"])
def test_pyiceberg_reads_through_the_tags_what_it_read_before(tmp_path: Path, kind: str, format_version: int):
    lake = Lake(tmp_path, kind)
    table = without_first_file(lake.filled(4, 2, format_version=format_version))
    before = {s.snapshot_id: rows_at(lake, s.snapshot_id) for s in table.metadata.snapshots}
    _, plan = expired(table)
    assert len(plan.snapshot_ids) == 4
    result = restore(lake.load())
    assert (result.status, result.restored_snapshots_count) == ("done", 4)
    foreign = lake.foreign()
    assert {f"restored-{i}" for i in plan.snapshot_ids} | {"main"} == set(foreign.metadata.refs)
    for snapshot_id in plan.snapshot_ids:
        assert foreign.snapshot_by_name(f"restored-{snapshot_id}").snapshot_id == snapshot_id
    assert {i: rows_at(lake, i) for i in before} == before
    assert len({str(rows) for rows in before.values()}) > 3


def test_schemas_and_specs_that_went_with_the_snapshots_come_back_with_them(tmp_path: Path):
    lake = Lake(tmp_path)
    table = lake.filled(2, 1)
    table = commit(table, DeleteFiles(paths=frozenset(paths_of(table)))).table
    table = update_schema(update_spec(table, [RemovePartitionField("at_month")]), [DropColumn("amount")])
    table = append(table, [events(50).drop_columns(["amount"])])
    before = {s.snapshot_id: rows_at(lake, s.snapshot_id) for s in table.metadata.snapshots}
    metadata = table.metadata
    after, _ = expired(table, clean_expired_metadata=True)
    after, second = expired(after, clean_expired_metadata=True, run="run-2")
    assert second.snapshot_ids == ()
    assert len(after.metadata.partition_specs) < len(metadata.partition_specs)
    assert len(after.metadata.schemas) < len(metadata.schemas)
    assert restore(lake.load(), run="run-1").restored_snapshots_count == 3
    now = lake.load().metadata
    assert now.specs_by_id == metadata.specs_by_id
    assert set(now.schemas_by_id) == {s.schema_id for s in metadata.snapshots} | {metadata.current_schema_id}
    assert {i: rows_at(lake, i) for i in before} == before


def paths_of(table: Table) -> list[str]:
    return [f.location for f in files_of(table.metadata, table.storage).values() if f.kind.is_content]


@pytest.mark.slow
def test_a_move_that_was_cut_off_on_this_machine_is_finished(tmp_path: Path):
    lake = Lake(tmp_path)
    table = without_first_file(lake.filled(3, 2))
    before = {s.snapshot_id: rows_at(lake, s.snapshot_id) for s in table.metadata.snapshots}
    _, plan = expired(table)
    for place, trash in moves_of(plan, table.storage)[:3]:
        os.makedirs(os.path.dirname(urlparse(place).path), exist_ok=True)
        os.link(urlparse(trash).path, urlparse(place).path)
    assert restore(lake.load()).restored_files_count == plan.files_count
    assert {i: rows_at(lake, i) for i in before} == before
    assert not any(path.is_file() for path in (tmp_path / "warehouse").rglob("trash/**/*"))
