"""Sets of removed files that tasks write, and questions to manifests that tasks answer."""

from pathlib import Path

import pytest
from msgspec.structs import replace
from pyspark.sql import SparkSession

from icekeep.catalog.base import Table
from icekeep.commit.changes.deletes import RowDelta
from icekeep.commit.changes.rewrites import RewriteFiles
from icekeep.commit.manifests import ManifestReader
from icekeep.commit.retry import commit
from icekeep.errors import ConflictError, InvalidTableError
from icekeep.maintenance.compact.commit import read_files, store_removed_files
from icekeep.maintenance.compact.plan import FileGroup, GroupDelete, GroupFile, GroupFiles, pack_group_files
from icekeep.planning.commit_readers import SparkManifestReader
from icekeep.planning.spark.session import Engine
from icekeep.spec.collections import PositionSet
from icekeep.spec.manifests.structs import FileContent, ManifestEntry
from icekeep.spec.manifests.write import PartitionCodec
from kit.lake import Lake


def listed(table: Table) -> list[tuple[ManifestEntry, str]]:
    reader = ManifestReader(table.storage)
    return [
        (entry, manifest.manifest_path)
        for manifest in reader.manifests(table.metadata.current_snapshot)
        for entry in reader.entries(manifest, table.metadata)
        if entry.is_live
    ]


def groups_of(table: Table, directory: str) -> list[tuple[FileGroup, GroupFiles]]:
    """The table's files in groups of four from all over, one half of the groups in storage."""
    rows, found = listed(table), []
    deletes = tuple(GroupDelete(
        content=1, file_path=f"memory://d{n}", file_format="PARQUET", spec_id=0, partition=b"", sequence_number=9,
        record_count=1, file_size_in_bytes=1, content_offset=n or None,
    ) for n in range(3))  # fmt: skip
    for number in range(0, len(rows), 4):
        some = rows[number // 4 :: len(rows) // 4]
        codec = PartitionCodec(table.metadata.partition_type(0))
        files = GroupFiles(
            files=tuple(
                _file(entry, path, codec, PositionSet([at % 3] * (at > 0))) for at, (entry, path) in enumerate(some)
            ),
            deletes=deletes,
        )
        packed, location = pack_group_files(files), None
        if number % 8:
            location = f"{directory}/group-{number}"
            table.storage.create(location, packed)
        group = FileGroup(
            number=number,
            partition="",
            spec_id=0,
            output_spec_id=0,
            files_count=len(some),
            bytes=1,
            record_count=1,
            expected_files_count=1,
            packed=None if location else packed,
            location=location,
        )
        found.append((group, files))
    return found


def _file(entry: ManifestEntry, path: str, codec: PartitionCodec, deletes: PositionSet) -> GroupFile:
    file = entry.data_file
    return GroupFile(
        file_path=file.file_path,
        file_format=file.file_format,
        spec_id=0,
        partition=codec.encode(file.partition),
        record_count=file.record_count,
        file_size_in_bytes=file.file_size_in_bytes,
        snapshot_id=entry.snapshot_id,
        sequence_number=entry.sequence_number or 0,
        file_sequence_number=entry.file_sequence_number,
        manifest_path=path,
        deletes=deletes,
    )


@pytest.fixture
def table(lake: Lake) -> Table:
    return lake.filled(commits=6, files=4)


def test_the_set_that_tasks_write_says_of_each_file_what_was_read(table: Table, spark_session: SparkSession) -> None:
    directory = f"{table.metadata.location}/.icekeep/runs/1"
    groups = groups_of(table, directory)
    stored = store_removed_files(table, spark_session, [group for group, _ in groups], directory)
    expected = [read for _, files in groups for read in read_files(files, table.metadata.partition_types)]
    assert stored.files_count == len(expected) == 24
    assert stored.records_count == sum(read.entry.data_file.record_count for read in expected)
    assert stored.parts.keys() == {read.manifest_path for read in expected}
    for manifest_path in stored.parts:
        wanted = stored.load(table.storage, [manifest_path])
        here = [read for read in expected if read.manifest_path == manifest_path]
        assert set(wanted.paths.values()) == {read.entry.data_file.file_path for read in here}
        assert wanted.applied == {r.entry.data_file.file_path: r.applied_deletes for r in here if r.applied_deletes}
    # And a commit finds its files by it, with what it says was applied: delete files that are not there.
    with pytest.raises(ConflictError, match=r"delete file 'memory://d.' no longer reaches data file"):
        commit(table, RewriteFiles(removed=stored, added=(), schema_id=0))


def test_a_group_that_cannot_be_read_leaves_no_part(table: Table, spark_session: SparkSession) -> None:
    directory = f"{table.metadata.location}/.icekeep/runs/1"
    groups = [group for group, _ in groups_of(table, directory)]
    broken = replace(groups[0], packed=b"nonsense", location=None)
    with pytest.raises(InvalidTableError, match="cannot read the files of a group"):
        store_removed_files(table, spark_session, [broken, *groups[1:]], directory)
    assert not list(Path(directory.removeprefix("file://")).glob("files-*"))


def test_dangling_deletes_are_found_in_tasks(lake: Lake, in_tasks: Engine) -> None:
    table = lake.filled(commits=3, files=2)
    data = [entry for entry, _ in listed(table)]
    name = f"{table.metadata.location}/data/deletes"
    for number in range(3):
        # One in each partition, and no file of the last.
        file = replace(
            data[2 * number].data_file,
            file_path=f"{name}-{number}",
            content=FileContent.EQUALITY_DELETES,
            equality_ids=(1,),
            partition=data[2 * number].data_file.partition if number < 2 else (9999,),
        )
        table = commit(table, RowDelta(added_deletes=(file,))).table
    change = RewriteFiles(removed=(), added=(), schema_id=0, remove_dangling=True)
    done = commit(table, change, reader=SparkManifestReader(in_tasks, table.storage)).table
    left = {e.data_file.file_path for e, _ in listed(done) if e.data_file.content is not FileContent.DATA}
    assert left == {f"{name}-0", f"{name}-1"}
