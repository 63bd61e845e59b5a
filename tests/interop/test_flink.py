"""Flink 2.1 writes tables while every job of icekeep works on them, reads them, and starts again from its checkpoints.

Each table has a model, the last row of every key; icekeep's scan and Flink's own must agree with it after each job.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from icekeep.errors import UsageError
from icekeep.formats.arrow.schema import arrow_schema
from icekeep.maintenance.compact.job import compact
from icekeep.maintenance.deletes.equality import convert_equality_deletes
from icekeep.maintenance.deletes.job import rewrite_position_deletes
from icekeep.maintenance.expire.job import expire_snapshots
from icekeep.maintenance.orphans.job import remove_orphan_files
from icekeep.maintenance.restore.job import restore
from icekeep.runtime import SYSTEM
from icekeep.spec.manifests.structs import FileContent
from icekeep.spec.reach import is_deletion_vector
from icekeep.spec.types import DAY_MS
from icekeep.storage.locations import local_path
from icekeep.tables.verbs import append
from kit.beside import ALL, COMMON, FAR_AHEAD_MS, Beside, Work, sorting
from kit.changes import Recorder
from kit.flink import NAMES, V2_SINK, Flink, FlinkTable, Follower, quoted, row, texts
from kit.java import JavaError
from kit.lake import Lake
from kit.naive_scan import live_entries
from kit.shell import ROOT

CHECKPOINT = "flink.max-committed-checkpoint-id"
JOBS: Mapping[str, Work] = {
    "rewrite_manifests": COMMON["rewrite_manifests"],
    "compact after deletes": COMMON["compact after deletes"],
    "convert_equality_deletes": convert_equality_deletes,
    "rewrite_position_deletes": COMMON["rewrite_position_deletes"],
    "sort": sorting("id DESC"),
    "expire_snapshots": COMMON["expire_snapshots"],
    "rewrite_position_deletes and convert": lambda *table, **more: rewrite_position_deletes(
        *table, options=ALL, convert_equality_deletes=True, **more
    ),
    "zorder": sorting("zorder(id, number)"),
    "compact everything": COMMON["compact everything"],
}
IDLE_IN_VERSION_3 = ("rewrite_position_deletes", "expire_snapshots")
"""Jobs that find no work: there are only vectors, which are not merged, and the writer needs all of the history."""


@pytest.fixture
def lake(flink: Flink, tmp_path: Path) -> Lake:
    lake = Lake(tmp_path)
    flink.open_catalog("local", lake.properties)
    return lake


@pytest.fixture(scope="module")
def spark(flink: Flink, spark_session: SparkSession) -> SparkSession:
    """Our own Spark."""
    return spark_session


@pytest.mark.deep
def test_the_page_names_these_versions(flink: Flink) -> None:
    versions = flink.versions()
    told = f"Flink {versions['flink']} with Iceberg's connector {versions['iceberg']} "
    assert told in (ROOT / "docs" / "judges.md").read_text()


MARKS: dict[tuple[Any, ...], tuple[pytest.MarkDecorator, ...]] = {
    (2, "parquet", (("kind", "identity"),), ""): (),
    (3, "orc", (("id", "bucket[2]"),), "V2 sink"): (pytest.mark.deep,),
}
"""The cases that not only `make nightly` tries."""
CASES = [
    pytest.param(
        version,
        file_format,
        partition_by,
        V2_SINK if sink else {},
        marks=MARKS.get((version, file_format, partition_by, sink), (pytest.mark.nightly,)),
    )
    for version in (2, 3)
    for file_format in ("parquet", "orc", "avro")
    for partition_by in (
        (),
        (("kind", "identity"),),
        (("id", "bucket[2]"),),
        (("kind", "identity"), ("id", "bucket[2]")),
    )
    for sink in ("", "V2 sink")
]


@pytest.mark.parametrize(("version", "file_format", "partition_by", "settings"), CASES)
def test_every_job_works_beside_a_job_that_upserts(
    flink: Flink, lake: Lake, spark: SparkSession, version: int, file_format: str, partition_by: Any, settings: Any
) -> None:
    """Flink commits whenever files were rewritten, before each job swaps the metadata, and after it."""
    written = FlinkTable(
        flink, lake, partition_by=partition_by, version=version, file_format=file_format, settings=settings
    )
    for _ in range(3):
        written.commit()
    kinds = [entry.data_file for entry in live_entries(written.table)]
    assert {file.content for file in kinds} == set(FileContent)
    assert any(map(is_deletion_vector, kinds)) == (version == 3)
    for name, job in JOBS.items():
        beside = Beside(written.table, written.commit)
        job(beside.table, spark, listener=beside)
        assert beside.landed_count or (version == 3 and name in IDLE_IN_VERSION_3), name
        written.checked(name)
        written.commit()
    written.checked("at the end")
    written.job.cancel()


@pytest.mark.deep
@pytest.mark.parametrize(("version", "settings"), [(2, {}), pytest.param(3, V2_SINK, marks=pytest.mark.nightly)])
def test_a_commit_that_is_under_way_lands_after_each_job(
    flink: Flink, lake: Lake, spark: SparkSession, version: int, settings: Any
) -> None:
    """The job has written its metadata, and loses the swap."""
    written = FlinkTable(flink, lake, version=version, settings=settings)
    for _ in range(2):
        written.commit()
    for name in ("rewrite_manifests", "convert_equality_deletes", "sort", "expire_snapshots"):
        before = written.expected()
        written.change()
        written.job.checkpoint("held")
        JOBS[name](written.table, spark)
        assert written.by_us() == before
        written.job.release()
        written.checked(name)
    written.job.cancel()


def maintained(written: FlinkTable, spark: SparkSession) -> None:
    """Compacted, and without its history as far as that may go."""
    for name in ("compact everything", "rewrite_manifests", "expire_snapshots"):
        JOBS[name](written.table, spark)


def flink_snapshots(written: FlinkTable) -> list[Any]:
    return [s.summary[CHECKPOINT] for s in written.table.metadata.snapshots if s.summary and CHECKPOINT in s.summary]


@pytest.mark.deep
@pytest.mark.parametrize(("has_key", "file_format", "settings"), [(True, "avro", {}), (False, "parquet", V2_SINK)])
def test_restarted_job_commits_once_and_loses_nothing(
    flink: Flink, lake: Lake, spark: SparkSession, has_key: bool, file_format: str, settings: Any
) -> None:
    """apache/iceberg #5846: it looks in the summaries of snapshots for what it has committed."""
    written = FlinkTable(flink, lake, has_key=has_key, file_format=file_format, settings=settings)
    for _ in range(3):
        written.commit()
    maintained(written, spark)
    assert len(flink_snapshots(written)) == 1
    written.started(written.job.cancel())
    written.checked("started from a checkpoint that was committed")

    # It dies between its checkpoint and its commit, and everything is maintained until it is back.
    before = written.expected()
    written.change()
    written.job.checkpoint("held")
    last = written.job.cancel()
    maintained(written, spark)
    assert written.by_us() == before
    written.started(last)
    written.checked("started from a checkpoint that was not")

    written.change()
    saved = written.job.stop(lake.directory)
    written.checked("stopped")
    maintained(written, spark)
    written.started(saved)
    written.checked("started from a savepoint")
    written.job.cancel()


@pytest.mark.deep
@pytest.mark.parametrize("settings", [{}, V2_SINK])
def test_without_its_progress_a_job_does_not_start_again(
    flink: Flink, lake: Lake, spark: SparkSession, settings: Any
) -> None:
    """apache/iceberg #5846: it is Flink that needs what `keep-writer-progress` keeps, to know that its files are in the table."""
    written = FlinkTable(flink, lake, has_key=False, settings=settings)
    written.commit()
    last = written.job.cancel()
    compact(written.table, spark, options=ALL)
    expire_snapshots(written.table, older_than=FAR_AHEAD_MS, retain_last=1, options={"keep-writer-progress": "0"})
    with pytest.raises(JavaError, match="Failed to open input stream"):
        written.started(last)


@pytest.mark.deep
def test_a_job_that_commits_vectors_needs_all_of_the_history(flink: Flink, lake: Lake) -> None:
    """apache/iceberg #2482, for vectors: Iceberg Java looks for those of others, and Flink does not say from where on."""
    written = FlinkTable(flink, lake, version=3)
    for _ in range(2):
        written.commit()
    told = Recorder()
    kept = expire_snapshots(written.table, older_than=FAR_AHEAD_MS, retain_last=1, listener=told)
    assert (kept.expired_snapshots_count, len(kept.kept_for_writers)) == (0, 1)
    [warning] = told.warnings
    assert warning.startswith(f"snapshots that would have expired stay (1): Flink job {written.job.job_id}, operator ")
    written.commit()
    gone = expire_snapshots(
        written.table, older_than=FAR_AHEAD_MS, retain_last=1, options={"keep-writer-progress": "0"}
    )
    assert gone.expired_snapshots_count == 2
    with pytest.raises(JavaError, match="Cannot determine history between starting snapshot null"):
        written.commit()


def aged(written: FlinkTable, days: int) -> None:
    """All files of the table are older."""
    then = SYSTEM.now_ms() / 1000 - days * 86_400
    for path in written.lake.files_on_disk():
        os.utime(path, (then, then))


@pytest.mark.deep
def test_orphan_removal_beside_job_with_uncommitted_files(flink: Flink, lake: Lake) -> None:
    """apache/iceberg #4194, #8994, #9002: young files stay; those of a job that was away for days come back from the trash."""
    written = FlinkTable(flink, lake)
    written.commit()
    orphan = Path(local_path(written.table.metadata.location)) / "data" / "left-behind.parquet"
    orphan.write_bytes(b"of a writer that died")
    aged(written, days=4)
    before, old = written.expected(), lake.files_on_disk()
    written.change()
    written.job.checkpoint("held")
    last = written.job.cancel()
    young = lake.files_on_disk() - old
    assert {path.parent.name for path in young} == {"data", "metadata"}
    with pytest.raises(UsageError, match="may be those of a writer that has not committed yet"):
        remove_orphan_files(written.table, older_than=SYSTEM.now_ms())
    removed = remove_orphan_files(written.table, older_than=SYSTEM.now_ms() - DAY_MS)
    assert removed.deleted_files_count == 1
    assert not orphan.exists()

    aged(written, days=4)
    removed = remove_orphan_files(written.table, force=True)
    assert removed.deleted_files_count >= 3
    assert written.by_us() == before
    restore(written.table)
    written.started(last)
    written.checked("at the end")
    written.job.cancel()


def followed(flink: Flink, written: FlinkTable, strategy: str) -> Follower:
    """A streaming query of all columns, which looks for new snapshots all the time."""
    columns = ", ".join(map(quoted, NAMES))
    options = f"'streaming'='true', 'monitor-interval'='20ms', 'starting-strategy'='{strategy}'"
    return flink.follow(written.name, f"SELECT {columns} FROM {quoted(written.name)} /*+ OPTIONS({options}) */")


@pytest.mark.deep
@pytest.mark.parametrize("strategy", ["TABLE_SCAN_THEN_INCREMENTAL", "INCREMENTAL_FROM_EARLIEST_SNAPSHOT"])
def test_streaming_query_reads_each_row_once_across_rewrites(
    flink: Flink, lake: Lake, spark: SparkSession, strategy: str
) -> None:
    written = FlinkTable(flink, lake, has_key=False)
    written.commit()
    follower = followed(flink, written, strategy)
    seen = follower.rows(last=max(written.rows))
    for name in ("sort", "rewrite_manifests", "compact everything", "expire_snapshots"):
        beside = Beside(written.table, written.commit)
        JOBS[name](beside.table, spark, listener=beside)
        written.commit()
        seen += follower.rows(last=max(written.rows), end=name == "expire_snapshots")
    assert texts(seen) == written.expected()
    written.checked("at the end")
    written.job.cancel()


@pytest.mark.deep
def test_a_streaming_query_has_no_rows_of_commits_with_deletes(flink: Flink, lake: Lake) -> None:
    """apache/iceberg #9948: of a table that is upserted it has what was there when it began, and what others append."""
    written = FlinkTable(flink, lake)
    written.commit()
    at_first = written.expected()
    follower = followed(flink, written, "TABLE_SCAN_THEN_INCREMENTAL")
    seen = follower.rows(last=max(written.rows))
    written.commit()
    alone = row(7, 7)
    schema = arrow_schema(written.table.metadata.schema)
    append(written.table, pa.Table.from_pylist([dict(zip(NAMES, alone, strict=True))], schema=schema))
    seen += follower.rows(last=7, end=True)
    assert texts(seen) == at_first + texts([alone])
    written.job.cancel()
