"""Plans of `rewrite_position_deletes` that are written to a file and carried out later."""

from pathlib import Path

import pytest

from contracts.plan_contract import PlanContract
from icekeep.commit.changes.definitions import ChangeProperties
from icekeep.commit.retry import commit
from icekeep.errors import UsageError
from icekeep.maintenance.compact.job import compact
from icekeep.maintenance.deletes.job import rewrite_position_deletes
from icekeep.maintenance.plans import read_plan_file
from icekeep.spec.evolution import AddColumn
from icekeep.tables.verbs import update_schema, upgrade_format_version
from kit.deletes import data_files, delete_positions
from kit.runtime import no_spark
from unit.maintenance.deletes.test_job_contract import TestRewritePositionDeletes as Contract

pytestmark = pytest.mark.slow


class TestPlan(PlanContract):
    contract = Contract

    def test_delete_files_that_others_rewrote_matter(self, path: Path) -> None:
        world = Contract.fill(2)
        self.write(world, path)
        rewrite_position_deletes(world.table, no_spark)
        self.refused(world, path, r"\d+ delete files are gone, or not what they were.*came snapshot")

    def test_delete_files_that_reach_nothing_any_more_matter(self, path: Path) -> None:
        world = Contract.fill(2)
        self.write(world, path)
        compact(world.table, no_spark, options={"rewrite-all": "true", "remove-dangling-deletes": "true"})
        self.refused(world, path, "delete files are gone, or not what they were")

    def test_deletes_that_came_since_are_left_alone(self, path: Path) -> None:
        world = Contract.fill(2)
        self.write(world, path)
        planned = sum(line.is_of_a_file for line in read_plan_file(str(path)).lines())
        delete_positions(world.table, [(data_files(world.table)[0].file_path, 4)])
        rows = world.rows()
        result = self.apply(world, path).result
        assert result.rewritten_delete_files_count + result.removed_dangling_delete_files_count == planned
        assert world.rows() == rows

    def test_a_table_that_was_upgraded_would_get_vectors(self, path: Path) -> None:
        world = Contract.fill(2)
        self.write(world, path)
        upgrade_format_version(world.table, 3)
        self.refused(world, path, "the delete files would become vectors now")

    def test_another_format_matters_and_the_schema_does_not(self, path: Path) -> None:
        world = Contract.fill(2)
        self.write(world, path)
        update_schema(world.table, [AddColumn("more", "int")])
        assert self.apply(world, path, dry_run=True).status == "planned"
        commit(world.table, ChangeProperties(updates={"write.delete.format.default": "avro"}))
        self.refused(world, path, "the table's property write.delete.format.default is avro now, and was not set")

    def test_a_conversion_cannot_be_planned_for(self, path: Path) -> None:
        world = Contract.fill(2)
        with pytest.raises(UsageError, match="leave out convert_equality_deletes for a plan"):
            self.write(world, path, convert_equality_deletes=True)
        assert not path.exists()
