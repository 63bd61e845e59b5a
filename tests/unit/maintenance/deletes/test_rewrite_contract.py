"""What every way of rewriting must keep, of merged position deletes and converted equality deletes."""

from typing import Any

import pytest

from contracts.rewrite_contract import RewriteContract, Rewritten, plain, with_deletes
from icekeep.catalog.base import Table
from icekeep.maintenance.deletes.equality import convert_equality_deletes
from icekeep.maintenance.deletes.job import rewrite_position_deletes
from icekeep.spec.manifests.structs import FileContent
from icekeep.tables.verbs import upgrade_format_version
from kit.deletes import data_files, delete_positions
from kit.job_world import World
from kit.runtime import no_spark

pytestmark = pytest.mark.slow

POSITIONS = frozenset({FileContent.POSITION_DELETES})


class TestMergedPositionDeletes(RewriteContract):
    """They become larger files in version 2, and vectors in version 3."""

    content = FileContent.POSITION_DELETES
    leaves = POSITIONS

    @staticmethod
    def fill(version: int) -> World:
        world = plain(2)
        for number in range(3):
            for file in data_files(world.table):
                delete_positions(world.table, [(file.file_path, number)])
        if version > 2:
            upgrade_format_version(world.table, version)
            # Rows of before have ids from the next commit on.
            world.append(9)
        return world

    @classmethod
    def rewrite(cls, table: Table) -> Any:
        return rewrite_position_deletes(table, no_spark, options={"rewrite-all": "true"})

    def number_of(self, done: Rewritten, start: int) -> int:
        """That of the newest that was merged."""
        return max(entry.sequence_number or 0 for entry in done.gone)


class TestConvertedEqualityDeletes(RewriteContract):
    content = FileContent.POSITION_DELETES
    leaves = POSITIONS
    is_of_start = False

    @staticmethod
    def fill(version: int) -> World:
        return with_deletes(version)

    @classmethod
    def rewrite(cls, table: Table) -> Any:
        return convert_equality_deletes(table, no_spark)
