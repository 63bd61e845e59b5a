"""The jobs on tables of every format version, read again by PyIceberg."""

import json
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import pytest
from pyspark.sql import SparkSession

from icekeep.commit.manifests import ManifestReader
from icekeep.maintenance.compact.job import compact
from icekeep.maintenance.expire.job import expire_snapshots
from icekeep.maintenance.manifests.job import rewrite_manifests
from icekeep.planning.scan.report import plan_scan
from icekeep.tables.verbs import append, upgrade_format_version
from kit.cases import thinned
from kit.lake import Lake, events

VERSIONS = pytest.mark.parametrize("version", thinned([3, 1, 2], 3))


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path)


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


def test_a_table_of_version_1_whose_snapshots_name_their_manifests_is_maintained(
    spark_session: SparkSession, lake: Lake
) -> None:
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


def test_an_upgraded_table_is_maintained_and_its_rows_keep_what_they_were(
    spark_session: SparkSession, lake: Lake
) -> None:
    table = lake.filled(commits=3, format_version=1)
    for version in (2, 3):
        table = append(upgrade_format_version(table, version), [events(100 * version + n) for n in range(3)])
    rows = lake.rows()
    compact(lake.load(), spark_session, options={"rewrite-all": "true"})
    rewrite_manifests(lake.load(), spark_session)
    expire_snapshots(lake.load(), spark_session, older_than=2**62, retain_last=1)
    assert lake.rows() == rows
    assert lake.load().metadata.format_version == 3
