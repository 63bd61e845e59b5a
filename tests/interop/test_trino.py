"""Trino 476 writes tables while every job of icekeep works on them, reads them, and has jobs of its own.

Each table has a model of its rows; icekeep's scan and Trino must agree with it after each job. `sound_tables` checks each table
at the end of its test.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from icekeep.catalog.open import open_catalog
from icekeep.events import Event
from icekeep.maintenance.check.job import check
from icekeep.maintenance.orphans.job import remove_orphan_files
from icekeep.maintenance.restore.job import restore
from icekeep.runtime import SYSTEM
from icekeep.spec.manifests.structs import FileContent
from icekeep.spec.types import DAY_MS
from icekeep.storage.locations import local_path
from kit.beside import Beside
from kit.every_job import COMMON, Work, sorting
from kit.java_rest import JavaRestServer
from kit.lake import Lake
from kit.naive_scan import live_entries
from kit.no_spark import no_spark
from kit.trino import Trino
from kit.trino_tables import TrinoTable

pytestmark = pytest.mark.deep

JOBS: Mapping[str, Work] = {
    "rewrite_manifests": COMMON["rewrite_manifests"],
    "rewrite_position_deletes": COMMON["rewrite_position_deletes"],
    "compact after deletes": COMMON["compact after deletes"],
    "sort": sorting("day, id DESC"),
    "expire_snapshots": COMMON["expire_snapshots"],
    "zorder": sorting("zorder(id, at)"),
    "hilbert": sorting("hilbert(id, at)"),
    "compact everything": COMMON["compact everything"],
}


@pytest.fixture
def lake(trino: Trino, tmp_path: Path) -> Lake:
    """A SQL catalog, called `local` by us and by Trino."""
    lake = Lake(tmp_path)
    trino.open_catalog("local", lake.properties)
    return lake


@pytest.fixture(scope="module")
def spark(trino: Trino, spark_session: SparkSession) -> SparkSession:
    """Our own Spark."""
    return spark_session


def contents(written: TrinoTable) -> set[FileContent]:
    return {entry.data_file.content for entry in live_entries(written.table)}


@pytest.mark.parametrize(
    ("file_format", "partitioning"),
    [
        ("PARQUET", ["kind"]),
        ("ORC", ["bucket(id, 2)"]),
        *(
            pytest.param(*case, marks=pytest.mark.nightly)
            for case in (
                ("AVRO", []),
                ("PARQUET", []),
                ("PARQUET", ["month(at)", "truncate(kind, 2)"]),
                ("ORC", ["day", "kind"]),
                ("AVRO", ["year(seen)", "bucket(uid, 3)"]),
            )
        ),
    ],
)
def test_every_job_works_beside_trino(
    trino: Trino, lake: Lake, spark: SparkSession, file_format: str, partitioning: list[str]
) -> None:
    """Trino inserts, deletes, updates and merges whenever a job rewrote files, and before it swaps the metadata."""
    written = TrinoTable(trino, lake.catalog, file_format=file_format, partitioning=partitioning)
    for change in (written.insert, written.insert, written.update, written.merge):
        change()
    assert contents(written) == {FileContent.DATA, FileContent.POSITION_DELETES}
    written.checked("before all")
    for name, job in JOBS.items():
        beside = Beside(written.table, written.change)
        job(beside.table, spark, listener=beside)
        assert beside.landed_count, name
        written.checked(name)


def test_trinos_own_jobs_and_ours_after_one_another(trino: Trino, lake: Lake, spark: SparkSession) -> None:
    written = TrinoTable(trino, lake.catalog, partitioning=["kind"])
    for change in (written.insert, written.delete, written.insert, written.update):
        change()
    for ours, theirs in (
        ("compact after deletes", "optimize"),
        ("rewrite_manifests", "optimize_manifests"),
        ("rewrite_position_deletes", "expire_snapshots(retention_threshold => '0s')"),
        ("sort", "remove_orphan_files(retention_threshold => '0s')"),
    ):
        written.merge()
        JOBS[ours](written.table, spark)
        written.checked(ours)
        written.maintain(theirs)
        assert check(written.table, no_spark, deep=True).faults == (), theirs
        written.checked(theirs)
    trino.query(f"ANALYZE {written.name}")
    trino.query(f"ALTER TABLE {written.name} DROP COLUMN counts")
    assert check(written.table, no_spark, deep=True).faults == ()


def test_what_expired_comes_back_though_trino_removed_orphans_meanwhile(trino: Trino, lake: Lake) -> None:
    """icekeep keeps deleted files beside the table's; for Trino they are in no directory of it that it cleans."""
    written = TrinoTable(trino, lake.catalog)
    versions = []
    for _ in range(3):
        written.insert()
        versions.append((written.table.metadata.current_snapshot_id, written.expected()))
    written.delete()
    trino.query(f"DELETE FROM {written.name}")
    JOBS["expire_snapshots"](written.table, no_spark)
    assert len(written.table.metadata.snapshots) == 1
    trino.query(f"ALTER TABLE {written.name} EXECUTE remove_orphan_files(retention_threshold => '0s')")
    restore(written.table)
    for snapshot_id, rows in versions:
        assert written.by_trino(f"FOR VERSION AS OF {snapshot_id}") == rows


def test_only_orphans_go_while_trino_commits(trino: Trino, lake: Lake) -> None:
    written = TrinoTable(trino, lake.catalog, partitioning=["kind"])
    written.insert()
    written.update()
    files = {Path(local_path(entry.data_file.file_path)) for entry in live_entries(written.table)}
    orphan = sorted(files)[0].with_name("orphan.parquet")
    orphan.write_bytes(b"PAR1")
    for file in (orphan, *files):
        os.utime(file, (0, 0))
    told: list[Event] = []

    class Merging:
        def on(self, event: Event) -> None:
            if not told:
                written.merge()
            told.append(event)

    result = remove_orphan_files(written.table, older_than=SYSTEM.now_ms() - 2 * DAY_MS, listener=Merging())
    assert told
    assert result.deleted_files_count == 1
    assert not orphan.exists()
    written.merge()
    written.checked("without orphans")


def test_in_postgresql(trino: Trino, postgres: Any, spark: SparkSession, tmp_path: Path) -> None:
    properties = {"type": "sql", "uri": postgres.new_database(), "warehouse": (tmp_path / "warehouse").as_uri()}
    catalog = open_catalog("local", properties)
    catalog.create_namespace(("db",))
    trino.open_catalog("local", properties)
    maintained(TrinoTable(trino, catalog), spark)


def test_by_a_rest_catalog(trino: Trino, spark: SparkSession, tmp_path: Path) -> None:
    """Of Iceberg Java."""
    server = JavaRestServer(tmp_path)
    try:
        catalog = open_catalog("local", server.properties)
        catalog.create_namespace(("db",))
        trino.open_catalog("local", server.properties)
        maintained(TrinoTable(trino, catalog), spark)
    finally:
        trino.query("DROP CATALOG local")
        server.close()


def maintained(written: TrinoTable, spark: SparkSession) -> None:
    """Trino and two of our jobs get in each other's way."""
    for change in (written.insert, written.insert, written.update):
        change()
    for name in ("rewrite_position_deletes", "sort"):
        beside = Beside(written.table, written.merge)
        JOBS[name](beside.table, spark, listener=beside)
        assert beside.landed_count, name
        written.checked(name)
