"""Commits beside Spark: readers of manifests, and versions of tables."""

import json
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import pyarrow as pa
import pytest
from msgspec.structs import replace
from pyspark.sql import SparkSession

from icekeep.catalog.base import Table
from icekeep.commit.changes.files import DeleteFiles
from icekeep.commit.changes.rewrites import RewriteFiles
from icekeep.commit.file_sets import ReadFile
from icekeep.commit.manifests import ManifestReader
from icekeep.commit.retry import commit
from icekeep.errors import ConflictError, IcekeepError
from icekeep.maintenance.compact import commit as commits
from icekeep.maintenance.compact import job as compaction
from icekeep.maintenance.compact.job import compact
from icekeep.maintenance.expire.job import expire_snapshots
from icekeep.maintenance.manifests.job import rewrite_manifests
from icekeep.maintenance.upgrade.obstacles import obstacles_of
from icekeep.planning.commit_readers import SparkManifestReader
from icekeep.planning.scan.report import plan_scan
from icekeep.planning.spark.session import Engine
from icekeep.spec.filters.parsing import parse_where
from icekeep.spec.manifests.structs import ManifestEntry
from icekeep.tables.verbs import append, upgrade_format_version
from kit.cases import thinned
from kit.changes import store_file_set
from kit.deletes import data_files, delete_equal
from kit.lake import Lake, events
from kit.runtime import no_spark


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path)


def entries(table: Table) -> list[tuple[str, ManifestEntry]]:
    reader = ManifestReader(table.storage)
    return [
        (manifest.manifest_path, entry)
        for manifest in reader.manifests(table.metadata.current_snapshot)
        for entry in reader.entries(manifest, table.metadata)
        if entry.is_live
    ]


def metadata_files(lake: Lake) -> set[str]:
    return {path.name for path in lake.directory.rglob("*.avro")}


def test_a_filter_is_asked_in_tasks(lake: Lake, in_tasks: Engine) -> None:
    table = lake.filled(commits=6, files=2)
    change = DeleteFiles(rows=parse_where("at < '2013-02-01T00:00:00+00:00'"))
    result = commit(table, change, reader=SparkManifestReader(in_tasks, table.storage))
    paths = [entry.data_file.file_path for _, entry in entries(result.table)]
    assert paths
    assert not any("at_month=2013-01" in path for path in paths)
    assert len(paths) == sum("at_month=2013-01" not in e.data_file.file_path for _, e in entries(table))
    by_tasks = [name for name in metadata_files(lake) if name.count("-m") == 1 and name.split("-m")[1].count("-") == 2]
    assert by_tasks


def test_files_of_a_stored_set_are_removed_in_tasks(lake: Lake, in_tasks: Engine) -> None:
    table = lake.filled(commits=4, files=2)
    read = [ReadFile(entry, path) for path, entry in entries(table)]
    files = store_file_set(read[::2], table.storage, f"{table.metadata.location}/.icekeep/runs/1")
    change = RewriteFiles(removed=files, added=(), schema_id=0)
    result = commit(table, change, reader=SparkManifestReader(in_tasks, table.storage))
    left = {entry.data_file.file_path for _, entry in entries(result.table)}
    assert left == {file.entry.data_file.file_path for file in read[1::2]}
    summary = result.table.metadata.current_snapshot.summary
    assert summary["deleted-data-files"] == str(len(read[::2]))
    assert int(summary["total-records"]) == sum(f.entry.data_file.record_count for f in read[1::2])


def test_a_task_that_fails_leaves_nothing_and_its_error_is_ours(lake: Lake, in_tasks: Engine) -> None:
    table = lake.filled(commits=4, files=2)
    [victim, *_] = {path for path, _ in entries(table)}
    whole = Path(victim.removeprefix("file://")).read_bytes()
    Path(victim.removeprefix("file://")).write_bytes(whole[:-5])
    before = metadata_files(lake)
    change = DeleteFiles(rows=parse_where("at is not null"))
    with pytest.raises(IcekeepError, match=r"is \d+ bytes long where metadata says \d+"):
        commit(table, change, reader=SparkManifestReader(in_tasks, table.storage))
    assert metadata_files(lake) == before


def test_a_conflict_that_a_task_finds_leaves_nothing(lake: Lake, in_tasks: Engine) -> None:
    table = lake.filled(commits=2, files=2)
    first, second, *_ = (entry for _, entry in entries(table))
    gone = replace(second, sequence_number=99)
    before = metadata_files(lake)
    with pytest.raises(ConflictError, match=r"\(1 in all\) is no longer live as it was read"):
        commit(
            table,
            RewriteFiles(removed=(first, gone), added=(), schema_id=0),
            reader=SparkManifestReader(in_tasks, table.storage),
        )
    assert metadata_files(lake) == before


def test_removed_files_beyond_the_limit_are_stored_and_deleted(
    lake: Lake, in_tasks: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commits, "HELD_MAX_COUNT", 5)
    table = lake.filled(commits=6, files=3)
    rows = lake.rows()
    result = compaction.compact(table, in_tasks, options={"min-input-files": "2"})
    assert result.rewritten_data_files_count == 18
    assert lake.rows() == rows
    assert not list(lake.directory.rglob("*.msgpack"))


VERSIONS = pytest.mark.parametrize("version", thinned([3, 1, 2], 3))


@VERSIONS
def test_every_job_works_on_a_table_of_every_version(spark_session: SparkSession, lake: Lake, version: int) -> None:
    lake.filled(format_version=version)
    rows = lake.rows()
    planned = plan_scan(lake.load(), spark_session, where="at < '2013-02-01'")
    assert (planned.data_files_count, planned.total_data_files_count) == (6, 18)
    compacted = compact(lake.load(), spark_session)
    assert (compacted.rewritten_data_files_count, compacted.added_data_files_count) == (18, 3)
    assert lake.rows() == rows
    for number in (100, 101):
        append(lake.load(), events(number))
    rows = lake.rows()
    rewritten = rewrite_manifests(lake.load(), spark_session)
    assert (rewritten.rewritten_manifests_count > 2, rewritten.added_manifests_count) == (True, 1)
    assert lake.rows() == rows
    expired = expire_snapshots(lake.load(), spark_session, older_than=2**62, retain_last=1)
    assert expired.deleted_data_files_count == 18
    assert lake.rows() == rows
    assert lake.load().metadata.format_version == version


def test_version_1_table_with_inline_manifests_is_maintained(spark_session: SparkSession, lake: Lake) -> None:
    lake.filled(format_version=1)
    rows = lake.rows()
    without_lists(lake)
    assert plan_scan(lake.load(), spark_session).data_files_count == 18
    assert rewrite_manifests(lake.load(), spark_session).added_manifests_count == 1
    assert compact(lake.load(), spark_session).rewritten_data_files_count == 18
    # PyIceberg reads no snapshot without a list, so it judges when those have expired.
    expired = expire_snapshots(lake.load(), spark_session, older_than=2**62, retain_last=1)
    assert expired.deleted_data_files_count == 18
    assert lake.rows() == rows


def without_lists(lake: Lake) -> None:
    """Let every snapshot name its manifests itself, as the first writers of version 1 did, and remove the lists."""
    table = lake.load()
    reader = ManifestReader(table.storage)

    def inline(snapshot: dict[str, Any]) -> dict[str, Any]:
        known = table.metadata.snapshot(snapshot["snapshot-id"])
        Path(urlparse(snapshot.pop("manifest-list")).path).unlink()
        return {**snapshot, "manifests": manifests[known.snapshot_id]}

    manifests = {s.snapshot_id: [m.manifest_path for m in reader.manifests(s)] for s in table.metadata.snapshots}
    document = json.loads(table.storage.read(table.metadata_location))
    lake.edit_metadata(snapshots=[inline(snapshot) for snapshot in document["snapshots"]])


def test_upgraded_table_is_maintained_and_keeps_its_rows(spark_session: SparkSession, lake: Lake) -> None:
    table = lake.filled(commits=3, format_version=1)
    for version in (2, 3):
        table = append(upgrade_format_version(table, version), [events(100 * version + n) for n in range(3)])
    rows = lake.rows()
    compact(lake.load(), spark_session, options={"rewrite-all": "true"})
    rewrite_manifests(lake.load(), spark_session)
    expire_snapshots(lake.load(), spark_session, older_than=2**62, retain_last=1)
    assert lake.rows() == rows
    assert lake.load().metadata.format_version == 3


def test_obstacles_to_an_upgrade_are_counted_in_tasks_too(lake: Lake, in_tasks: Engine) -> None:
    table = lake.filled(commits=2, format_version=2)
    table = delete_equal(table, pa.table({"id": [1]}), ["id"], like=data_files(table)[0])
    in_tasks = replace(in_tasks, limits=replace(in_tasks.limits, folded_entries_count=0))
    found = obstacles_of(table, 3, in_tasks)
    assert found == obstacles_of(table, 3, no_spark)
    assert [(one.name, one.found_count) for one in found if one.holds_up] == [("equality-deletes", 1)]
