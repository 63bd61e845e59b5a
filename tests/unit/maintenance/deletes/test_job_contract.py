"""What every job must do, of `rewrite_position_deletes`, with and without the conversion of equality deletes."""

import pytest

from contracts.job_contract import JobContract
from icekeep.maintenance.deletes import JOB
from icekeep.tables.verbs import upgrade_format_version
from kit.deletes import data_files, delete_equal, delete_positions, lose_reached_file
from kit.job_world import World
from kit.lake import events

pytestmark = pytest.mark.slow


ONLY_PLANNED = frozenset({"snapshot_id", "target_file_size_bytes", "candidate_files_count"})


def upgraded(world: World, version: int) -> World:
    """Deletes of version 2 in a table of `version`."""
    if version > 2:
        upgrade_format_version(world.table, version)
    return world


class TestRewritePositionDeletes(JobContract):
    job = JOB
    versions = (2, 3)
    foretold = (
        "rewritten_delete_files_count",
        "rewritten_bytes_count",
    )
    only_planned = ONLY_PLANNED

    @staticmethod
    def fill(version: int) -> World:
        world = World(min(version, 2), write__delete__granularity="partition")
        table = world.append(1, 2, 3)
        if version > 1:
            table = lose_reached_file(table)
            paths = [file.file_path for file in data_files(table)]
            for number in range(4):
                table = delete_positions(table, [(path, number) for path in paths])
            for path in paths:
                table = delete_positions(table, [(path, 2)])
        return upgraded(world, version)


class TestConvertEqualityDeletes(JobContract):
    job = JOB
    versions = (2, 3)
    told = {"convert_equality_deletes": True}
    foretold = ("conversion.converted_equality_delete_files_count", "conversion.converted_bytes_count")
    only_planned = ONLY_PLANNED | {"conversion.snapshot_id"}

    @staticmethod
    def fill(version: int) -> World:
        world = World(min(version, 2))
        table = world.append(1, 2)
        if version > 1:
            for number in (1, 2):
                table = delete_equal(table, events(number, 1).select(["id"]), ["id"])
        return upgraded(world, version)
