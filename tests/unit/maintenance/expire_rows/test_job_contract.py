"""What every job must do, of `expire_rows` with each way to treat the edge, and its written plans."""

import re
from collections import Counter
from pathlib import Path

import pytest

from contracts.job_contract import JobContract
from contracts.plan_contract import PlanContract
from icekeep import compact
from icekeep.errors import NotFoundError
from icekeep.maintenance.expire_rows import JOB
from icekeep.maintenance.plans import read_plan_file
from icekeep.spec.evolution import RenameColumn
from icekeep.tables.verbs import update_schema
from kit.deletes import data_files, delete_equal, delete_positions
from kit.job_world import World
from kit.lake import events
from kit.runtime import no_spark
from unit.maintenance.deletes.test_job_contract import upgraded

pytestmark = pytest.mark.slow

_ID = re.compile(r"'id': (\d+)")
WHERE = "id < 3000002"
"""All rows of the first two files, and two of the third."""


def without(rows: Counter[str], below: int) -> Counter[str]:
    """The rows whose id is not below a number."""
    return Counter({row: count for row, count in rows.items() if int(_ID.search(row)[1]) >= below})


class KeptEdge(JobContract):
    job = JOB
    told = {"where": WHERE}
    foretold = ("removed_data_files_count", "removed_records_count", "removed_bytes_count", "edge_data_files_count")
    only_planned = frozenset({"snapshot_id", "partitions_count"})

    @staticmethod
    def fill(version: int) -> World:
        """Deletes of a file that expires, of one at the edge, and equality deletes that reach all files."""
        world = World(min(version, 2), write__delete__granularity="file")
        table = world.append(1, 2, 3, 4)
        if version > 1:
            first = min(file.file_path for file in data_files(table))
            table = delete_positions(table, [(first, 1)])
            table = delete_equal(table, events(3, 5).select(["id"]).slice(4), ["id"])
        return upgraded(world, version)


class TestKeep(KeptEdge):
    @staticmethod
    def rows_left(rows: Counter[str]) -> Counter[str]:
        return without(rows, 3000000)


class TestDeletes(KeptEdge):
    versions = (2, 3)
    told = {"where": WHERE, "edge": "deletes"}

    @pytest.fixture(params=[2, 3])
    def version(self, request: pytest.FixtureRequest) -> int:
        """Version 1, which has no deletes, is refused."""
        return request.param

    @staticmethod
    def rows_left(rows: Counter[str]) -> Counter[str]:
        return without(rows, 3000002)


class TestRewrite(KeptEdge):
    told = {"where": WHERE, "edge": "rewrite"}

    @staticmethod
    def rows_left(rows: Counter[str]) -> Counter[str]:
        return without(rows, 3000002)


class TestPlanOfKeep(PlanContract):
    contract = TestKeep

    def test_its_lines_are_files_that_go(self, path: Path) -> None:
        world = self._filled()
        first, second, *_ = sorted(file.file_path for file in data_files(world.table))
        self.write(world, path)
        lines = [*read_plan_file(str(path)).lines()]
        assert [(line.do, line.kind) for line in lines] == [("remove", "data file")] * 2 + [
            ("remove", "position delete file")
        ]
        assert {line.name for line in lines[:2]} == {first, second}

    def test_a_compacted_file_is_refused(self, path: Path) -> None:
        world = self._filled()
        self.write(world, path)
        compact(world.table, no_spark, options={"rewrite-all": "true"})
        self.refused(world, path, "2 data files are gone, or not as before")

    def test_matching_files_that_came_since_stay(self, path: Path) -> None:
        world = self._filled()
        self.write(world, path)
        world.append(1)
        assert self.apply(world, path).result.removed_data_files_count == 2
        assert len(data_files(world.table)) == 3

    def test_now_is_when_the_plan_was_made(self, path: Path) -> None:
        world = World(2)
        at_ms = world.runtime.now_ms()
        world.append(1)
        world.append(2, month=2)
        days = (at_ms - 1359676800000) // 86_400_000 + 1
        self.write(world, path, where=f"at < now - {days}d")
        world.runtime.pass_ms(400 * 86_400_000)
        assert self.apply(world, path).result.removed_data_files_count == 1
        assert len(data_files(world.table)) == 1

    def test_another_column_of_the_name_is_refused(self, path: Path) -> None:
        world = self._filled()
        self.write(world, path)
        update_schema(world.table, [RenameColumn("id", "number")])
        with pytest.raises(NotFoundError, match="there is no column 'id'"):
            self.apply(world, path)


class TestPlanOfDeletes(PlanContract):
    contract = TestDeletes

    def test_its_lines_name_the_edge(self, path: Path) -> None:
        world = self._filled()
        self.write(world, path)
        assert [line.do for line in read_plan_file(str(path)).lines()] == ["remove"] * 3 + ["delete rows"]


class TestPlanOfRewrite(PlanContract):
    contract = TestRewrite

    def test_its_lines_name_the_edge(self, path: Path) -> None:
        world = self._filled()
        self.write(world, path)
        assert [line.do for line in read_plan_file(str(path)).lines()] == ["remove"] * 3 + ["rewrite"]
