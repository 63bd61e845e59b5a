"""A table with one of everything that a copy must carry, and where it is copied to."""

import msgspec

from icekeep.catalog.base import Table
from icekeep.commit.changes.definitions import ChangeStatistics
from icekeep.commit.retry import commit
from icekeep.formats.puffin import PuffinWriter
from icekeep.maintenance.check.job import check
from icekeep.spec.snapshots import StatisticsFile
from icekeep.tables.read import read_table
from icekeep.tables.refs import create_branch, create_tag
from icekeep.tables.verbs import append
from kit.deletes import data_files, delete_by_vector, delete_equal, delete_positions
from kit.job_world import World
from kit.lake import events, multiset
from kit.runtime import no_spark

COPY = ("db", "copied")
SOURCE = "memory://lake/wh/db/events"
TARGET = "memory://lake/elsewhere/copied"


def with_statistics(table: Table) -> Table:
    """The table after a commit of a statistics file for its current snapshot."""
    head = table.metadata.current_snapshot
    assert head is not None
    location = f"{table.metadata.location}/metadata/{head.snapshot_id}.stats"
    with PuffinWriter(table.storage, location) as writer:
        writer.add(b"sketch", "apache-datasketches-theta-v1", fields=(1,), snapshot_id=head.snapshot_id)
    file = StatisticsFile(
        snapshot_id=head.snapshot_id,
        statistics_path=location,
        file_size_in_bytes=writer.length_bytes,
        file_footer_size_in_bytes=writer.length_bytes - 10,
        blob_metadata=(),
    )
    return commit(table, ChangeStatistics(updates=(file,))).table


def with_deletes(table: Table, file_format: str = "PARQUET") -> Table:
    """The table after deletes of rows, as its version has them: by position or by vector, and by equality."""
    version, files = table.metadata.format_version, data_files(table)
    if version == 1:
        return table
    if version == 2:
        table = delete_positions(table, [(files[0].file_path, 1), (files[1].file_path, 3)], file_format)
        table = delete_positions(table, [(files[1].file_path, 0)], file_format)
    else:
        table = delete_by_vector(table, files[0].file_path, [0, 2])
    doomed = events(1, 2).select(["id"])
    return delete_equal(table, doomed, ["id"])


def everything(version: int, file_format: str = "PARQUET") -> World:
    """Rows, deletes, a branch, a tag and statistics."""
    world = World(version)
    world.append(0, 1)
    world.append(2)
    create_tag(world.table, "early")
    with_deletes(world.table, file_format)
    table = create_branch(world.table, "trial")
    append(table, events(7, 3), branch="trial")
    with_statistics(world.table)
    return world


def copied_rows(world: World) -> dict[str, object]:
    """The rows of the copy by reference; it is sound, and leads to no file of the source."""
    table = world.catalog.load(COPY)
    result = check(table, no_spark, deep=True)
    assert (result.status, result.faults) == ("sound", ())
    return {ref: multiset(read_table(table, ref=ref)) for ref in table.metadata.refs}


def source_rows(world: World) -> dict[str, object]:
    return {ref: world.rows(ref) for ref in world.table.metadata.refs}


def files_below(world: World, prefix: str) -> dict[str, bytes]:
    """Locations and bytes of the files below a prefix."""
    return {one: data for one, (data, _) in world.memory.files.items() if one.startswith(prefix + "/")}


def without_logs(table: Table) -> object:
    """The parts of metadata that a copy has from its source."""
    metadata = table.metadata
    return (
        msgspec.structs.replace(
            metadata, metadata_log=(), snapshot_log=(), last_updated_ms=0, properties={}, table_uuid=None, location=""
        ).snapshots_by_id.keys(),
        metadata.refs,
        metadata.schemas,
        metadata.partition_specs,
    )
