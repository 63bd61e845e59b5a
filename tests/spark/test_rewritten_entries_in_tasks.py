"""Manifests of many entries, sorted and written by Spark tasks: PyIceberg finds the same ones, clustered as was asked for.

So many that tasks are needed would take minutes to make, so the parts of the job are put together here.
"""

import struct
from collections.abc import Callable, Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import fastavro
import pytest
from msgspec.structs import replace
from pyspark.sql import SparkSession

from icekeep.catalog.base import Table
from icekeep.commit.changes.files import AppendFiles
from icekeep.commit.changes.rewrites import RewriteManifests
from icekeep.commit.retry import commit
from icekeep.maintenance.manifests.candidates import ManifestGroup, ManifestRun
from icekeep.maintenance.manifests.records import RunWriter, rewritten_in_tasks
from icekeep.maintenance.manifests.survey import survey
from icekeep.planning.decoder import ManifestDecoder
from icekeep.planning.transcode import RecordsTask
from icekeep.spec.manifests.structs import DataFile, ManifestFile
from kit.cases import thinned
from kit.lake import Lake
from kit.rewritten_manifests import chosen, foreign_live_entries, our_live_entries
from kit.tables import data_file

FILES_COUNT = 2800
COMMITS = 6


def file_of(number: int, kind: str | None) -> DataFile:
    """A file that is named, not written; its lowest id follows no other order."""
    lower = {1: struct.pack("<q", number * 7919 % FILES_COUNT)}
    return replace(data_file(f"{number:05}", partition=(kind,)), lower_bounds=lower, upper_bounds=lower)


def filled(lake: Lake, kind: Callable[[int], str | None], version: int = 2) -> Table:
    """Partitions and ids are scattered over all manifests."""
    table = lake.create(
        (("kind", "identity"),),
        format_version=version,
        commit__manifest__target_size_bytes="8000",
        commit__manifest_merge__enabled="false",
        write__manifest__compression_codec="uncompressed",
    )
    for start in range(COMMITS):
        files = tuple(file_of(number, kind(number)) for number in range(start, FILES_COUNT, COMMITS))
        table = commit(table, AppendFiles(files=files)).table
    return table


def in_tasks(table: Table, spark: SparkSession, **arguments: Any) -> tuple[Table, tuple[ManifestFile, ...]]:
    """The table once its manifests are rewritten, and the new ones."""
    plan = chosen(table, spark=spark, **arguments)
    added = [
        manifest
        for group in plan.groups
        for run in group.runs
        for manifest in written_in_tasks(table, group, run, plan.target_bytes, spark)
    ]
    version = table.metadata.format_version
    change = RewriteManifests(replaced=tuple(plan.replaced), added=tuple(added), format_version=version)
    return commit(table, change).table, tuple(added)


def written_in_tasks(
    table: Table, group: ManifestGroup, run: ManifestRun, target_bytes: int, spark: SparkSession
) -> Iterable[ManifestFile]:
    task = RecordsTask(
        manifests=run.manifests,
        numbers={manifest.manifest_path: number for number, manifest in enumerate(run.manifests)},
        target=run.target,
        storage=table.storage,
        decoder=ManifestDecoder.DATAFUSION,
    )
    writer = RunWriter.of(table.metadata, group.spec_id, group.content, run.target, target_bytes, table.storage)
    found = survey(run.manifests, group.spec_id, run.target, table.storage, spark)
    return rewritten_in_tasks(task, writer, found, run.expected_count, spark)


def spans(manifests: Iterable[ManifestFile], key: Callable[[dict[str, Any]], Any]) -> list[tuple[Any, Any]]:
    """From where to where each reaches by some key of its files, in order."""
    found = []
    for manifest in manifests:
        with Path(urlparse(manifest.manifest_path).path).open("rb") as stream:
            keys = [key(entry["data_file"]) for entry in fastavro.reader(stream)]
        found.append((min(keys), max(keys)))
    return sorted(found)


def partition_of(file: dict[str, Any]) -> str:
    """Null is first."""
    return file["partition"]["kind"] or ""


def lowest_id(file: dict[str, Any]) -> int:
    return struct.unpack("<q", {bound["key"]: bound["value"] for bound in file["lower_bounds"]}[1])[0]


@pytest.mark.parametrize(
    ("sort_by", "key", "version"),
    thinned([(None, partition_of, 3), (["id"], lowest_id, 1), (["kind", "id"], partition_of, 2)], 2),
)
def test_tasks_keep_every_entry_and_cluster_them(
    lake: Lake, spark_session: SparkSession, sort_by: Any, key: Callable[[dict[str, Any]], Any], version: int
) -> None:
    table = filled(lake, lambda n: None if n % 40 == 7 else f"k{n % 40:02}", version)
    foreign = foreign_live_entries(lake.foreign())
    after, added = in_tasks(table, spark_session, sort_by=sort_by)
    assert our_live_entries(after) == our_live_entries(table)
    assert our_live_entries(after).total() == FILES_COUNT
    assert foreign_live_entries(lake.foreign()) == foreign
    assert len(added) > 20
    found = spans(added, key)
    assert all(before[1] <= later[0] for before, later in pairwise(found))
    assert not chosen(after, spark=spark_session, sort_by=sort_by).replaced


def test_tasks_split_one_large_partition(lake: Lake, spark_session: SparkSession) -> None:
    table = filled(lake, lambda _: "all")
    after, added = in_tasks(table, spark_session)
    assert our_live_entries(after) == our_live_entries(table)
    assert len(added) > 20
    assert {summary.lower_bound for manifest in added for summary in manifest.partitions or ()} == {b"all"}
    counts = [manifest.existing_files_count or 0 for manifest in added]
    assert sum(counts) == FILES_COUNT
    assert min(counts) > max(counts) / 3
