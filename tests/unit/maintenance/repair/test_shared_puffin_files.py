"""One vector of a Puffin file goes and others stay: the file is not marked as deleted, since engines delete what is marked."""

from copy import deepcopy

import pytest

from icekeep.commit.changes.deletes import RowDelta
from icekeep.commit.retry import commit
from icekeep.maintenance.repair.job import repair
from icekeep.tables.verbs import append
from kit.choices import Choices
from kit.damager import DELETED, Damager
from kit.job_world import EVENTS, World
from kit.lake import events
from kit.no_spark import no_spark
from kit.written_deletes import data_files, delete_by_vector, vector_files

pytestmark = pytest.mark.slow


def with_shared_file(files_count: int) -> tuple[World, Damager]:
    """A table in which one Puffin file has a vector for each data file."""
    world = World(3)
    append(world.table, [events(number, 5) for number in range(files_count)])
    files = data_files(world.table)
    vectors = vector_files(world.table, [(file, 0) for file in files], [])
    assert len({vector.file_path for vector in vectors}) == 1
    commit(world.table, RowDelta(added_deletes=vectors))
    return world, Damager(world.catalog, EVENTS, Choices(1))


def marked(spoilt: Damager) -> set[str]:
    """The locations of the files that the head marks as deleted."""
    entries = [entry for row in spoilt.rows() for entry in spoilt.records(row["manifest_path"])]
    return {entry["data_file"]["file_path"] for entry in entries if entry["status"] == DELETED}


def now(world: World) -> Damager:
    return Damager(world.catalog, EVENTS, Choices(1))


@pytest.mark.parametrize("files_count", [1, 2])
def test_the_file_of_a_broken_vector_is_marked_only_where_no_other_vector_is_in_it(files_count):
    world, spoilt = with_shared_file(files_count)
    place = next(spoilt.entries(1))
    path, at = place.file["file_path"], place.file["content_offset"] + 9
    spoilt.change_bytes(path, lambda data: data.__setitem__(at, data[at] ^ 0xFF))
    result = repair(world.table, no_spark, fault=[413, 414], accept_loss=[path])
    assert [one.lost_files for one in result.mended] == [(path,)]
    assert marked(now(world)) == ({path} if files_count == 1 else set())
    assert (world.table.metadata.head("main").summary or {})["removed-dvs"] == "1"
    assert sum(world.rows().values()) == 5 * files_count - (files_count - 1)


@pytest.mark.parametrize("files_count", [1, 2])
def test_the_files_of_merged_vectors_are_marked_only_where_no_other_vector_is_in_them(files_count):
    world, spoilt = with_shared_file(files_count)
    place = next(spoilt.entries(1))
    path, other = place.file["file_path"], deepcopy(place.entry)
    other["data_file"]["file_path"] += "-2"
    spoilt.write(path + "-2", spoilt.read(path))
    spoilt.edit_manifest(place.manifest, lambda entries: entries.append(other))
    result = repair(world.table, no_spark, fault=[213], accept_loss=[place.file["referenced_data_file"]])
    assert len(result.mended) == 1
    assert marked(now(world)) == {path + "-2"} | ({path} if files_count == 1 else set())
    assert sum(world.rows().values()) == 4 * files_count


def test_no_file_is_marked_where_nobody_knows_whether_others_use_it():
    world, spoilt = with_shared_file(1)
    place = next(spoilt.entries(1))
    path, at = place.file["file_path"], place.file["content_offset"] + 9
    append(world.table, [events(7, 5)])
    delete_by_vector(world.table, next(f.file_path for f in data_files(world.table) if f.first_row_id), [0])
    spoilt = now(world)
    spoilt.change_bytes(path, lambda data: data.__setitem__(at, data[at] ^ 0xFF))
    other = next(
        row["manifest_path"] for row in spoilt.rows() if row["content"] and row["manifest_path"] != place.manifest
    )
    del world.memory.files[other]
    result = repair(world.table, no_spark, fault=[413, 414], accept_loss=[path])
    assert [one.lost_files for one in result.mended] == [(path,)]
    entries = [
        e for row in now(world).rows() if row["manifest_path"] != other for e in spoilt.records(row["manifest_path"])
    ]
    assert path not in {entry["data_file"]["file_path"] for entry in entries}
