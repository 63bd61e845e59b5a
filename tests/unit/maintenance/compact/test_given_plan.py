"""Plans of `compact` that are written to a file and carried out later."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from msgspec.structs import replace

from contracts.plan_contract import PlanContract
from icekeep.commit.changes.definitions import ChangeProperties
from icekeep.commit.changes.files import AppendFiles, DeleteFiles
from icekeep.commit.retry import commit
from icekeep.errors import ConflictError, IcekeepError
from icekeep.maintenance.compact.job import compact, plan_compact
from icekeep.maintenance.manifests.job import rewrite_manifests
from icekeep.maintenance.plans import read_plan_file
from icekeep.maintenance.preconditions import NOTE_OF_REMOVALS
from icekeep.spec.evolution import AddColumn, AddPartitionField, RemovePartitionField
from icekeep.tables.refs import create_branch, create_tag
from icekeep.tables.verbs import (
    rollback_to_snapshot,
    update_schema,
    update_sort_order,
    update_spec,
    upgrade_format_version,
)
from kit.deletes import data_files, delete_by_vector, delete_equal, delete_files, delete_positions, lose_reached_file
from kit.job_world import Fault, Killed, World
from kit.lake import events
from kit.naive_scan import lineage_of, live_entries
from kit.runtime import no_spark
from unit.maintenance.compact.test_job_contract import TestCompact as Contract

pytestmark = pytest.mark.slow


def delete_a_row(world: World) -> None:
    delete_positions(world.table, [(data_files(world.table)[0].file_path, 1)])


def delete_by_a_vector(world: World) -> None:
    delete_by_vector(world.table, data_files(world.table)[0].file_path, [1])


def delete_by_value(world: World) -> None:
    delete_equal(world.table, events(1, 1).select(["id"]), ["id"])


def compact_all(world: World) -> None:
    compact(world.table, no_spark, options={"rewrite-all": "true"})


def roll_back(world: World) -> None:
    rollback_to_snapshot(world.table, world.table.metadata.snapshots[1].snapshot_id)


def back_to_months(world: World) -> None:
    update_spec(world.table, [RemovePartitionField("b"), AddPartitionField("at", "month", name="at_month")])


def delete_by_value_in_march(world: World) -> None:
    """A spec that has equality deletes keeps its files."""
    [march] = [file for file in data_files(world.table) if "at_month=2013-03" in file.file_path]
    delete_equal(world.table, events(999, 1, 3).select(["id"]), ["id"], like=march)


def with_property(name: str, value: str = "snappy") -> Callable[[World], object]:
    """Sets a property."""
    return lambda world: commit(world.table, ChangeProperties(updates={name: value}))


class TestPlan(PlanContract):
    contract = Contract

    @pytest.mark.parametrize("move", [back_to_months, delete_by_value_in_march])
    def test_files_of_several_partitions_never_become_one(self, path: Path, move: Callable[[World], None]) -> None:
        """The plan is made while they move to another partition spec, and they do not move any more when it is applied."""
        world = World(2, (("at", "month"),))
        for number in range(10):
            world.append(number, month=1 + number // 5)
        world.append(77, month=3)
        update_spec(world.table, [RemovePartitionField("at_month"), AddPartitionField("id", "bucket[1]", name="b")])
        self.write(world, path, where="at < '2013-03-01T00:00:00+00:00'")
        move(world)
        before = world.table.metadata_location
        self.refused(world, path, "files of several partitions would become one.*: make a new plan")
        assert world.table.metadata_location == before

    @pytest.mark.parametrize(
        ("change", "match"),
        [
            (
                lambda world: update_sort_order(world.table, ["kind"]),
                r"sort order is 2 \(\w+\) now, and was 1 \(\w+\)",
            ),
            (lambda world: update_spec(world.table, [AddPartitionField("kind")]), "would be of partition spec 1"),
            (lambda world: update_schema(world.table, [AddColumn("more", "int")]), "schema is 1 .*, and was 0"),
            (with_property("write.parquet.compression-codec"), "write.parquet.compression-codec is snappy .* not set"),
            (with_property("write.delete.granularity", "file"), "property write.delete.granularity is file now"),
        ],
    )
    def test_what_decides_of_the_new_files_matters(
        self, path: Path, change: Callable[[World], object], match: str
    ) -> None:
        world = World(2)
        for number in range(5):
            world.append(number)
        update_sort_order(world.table, ["id"])
        self.write(world, path)
        change(world)
        self.refused(world, path, match)

    @pytest.mark.parametrize("is_planned_before", [True, False])
    def test_row_ids_assigned_after_an_upgrade_do_not_matter(self, path: Path, *, is_planned_before: bool) -> None:
        world = World(2)
        for number in range(5):
            world.append(number)
        if is_planned_before:
            self.write(world, path)
        upgrade_format_version(world.table, 3)
        if not is_planned_before:
            self.write(world, path)
        world.append(77)
        assert all(file.first_row_id is not None for file in data_files(world.table))
        ids = lineage_of(world.table)
        assert self.apply(world, path).result.rewritten_data_files_count == 5
        assert lineage_of(world.table) == ids

    def test_a_file_that_was_put_there_again_has_other_row_ids(self, path: Path) -> None:
        world = World(3)
        for number in range(5):
            world.append(number)
        self.write(world, path)
        [first, *_] = live_entries(world.table)
        commit(world.table, DeleteFiles(paths=frozenset([first.data_file.file_path])))
        commit(world.table, AppendFiles(files=(replace(first.data_file, first_row_id=None),)))
        self.refused(world, path, "1 file has other deletes now, or were added again")

    @pytest.mark.parametrize("name", ["write.metadata.previous-versions-max", "write.delete.mode", "owner"])
    def test_other_properties_do_not_matter(self, path: Path, name: str) -> None:
        world = self._filled()
        self.write(world, path)
        with_property(name, "7")(world)
        assert self.apply(world, path).result.rewritten_data_files_count == 5

    def test_applied_plan_stays_applied_whatever_changes(self, path: Path) -> None:
        world = self._filled()
        self.write(world, path)
        self.apply(world, path)
        update_sort_order(world.table, ["kind"])
        assert self.apply(world, path).applied_before

    @pytest.mark.parametrize(
        ("version", "move", "match"),
        [
            (2, delete_a_row, r"1 file has other deletes now.* came snapshot \d+ \(.*by icekeep"),
            (3, delete_by_a_vector, "1 file has other deletes now"),
            (2, delete_by_value, "5 files have other deletes now"),
            (2, compact_all, r"5 files to rewrite are gone.* came snapshot \d+ \(replace at .* by icekeep"),
            (1, roll_back, r"3 files to rewrite are gone.*'main' was moved away from snapshot \d+ to snapshot \d+"),
        ],
    )
    def test_what_became_of_a_planned_file_matters(
        self, path: Path, version: int, move: Callable[[World], None], match: str
    ) -> None:
        world = World(version)
        for number in range(5):
            world.append(number)
        self.write(world, path)
        move(world)
        error = self.refused(world, path, match)
        assert error.facts["hash"] == read_plan_file(str(path)).hash

    @pytest.mark.parametrize("move", [lambda table: create_tag(table, "v1"), lambda table: create_branch(table, "b")])
    def test_references_do_not_matter(self, path: Path, move: Callable[..., object]) -> None:
        world = self._filled()
        self.write(world, path)
        move(world.table)
        assert self.apply(world, path).result.rewritten_data_files_count == 5

    def test_manifests_that_others_rewrote_do_not_matter(self, path: Path) -> None:
        world = World(2, commit__manifest_merge__enabled="false")
        for number in range(5):
            world.append(number)
        self.write(world, path)
        rewrite_manifests(world.table, no_spark)
        assert self.apply(world, path).result.rewritten_data_files_count == 5

    def test_files_that_came_since_are_left_alone(self, path: Path) -> None:
        world = self._filled()
        planned = {file.file_path for file in data_files(world.table)}
        self.write(world, path)
        for number in range(10, 20):
            world.append(number)
        came = {file.file_path for file in data_files(world.table)} - planned
        rows = world.rows()
        assert self.apply(world, path).result.rewritten_data_files_count == 5
        assert {file.file_path for file in data_files(world.table)} > came
        assert not {file.file_path for file in data_files(world.table)} & planned
        assert world.rows() == rows

    def test_files_left_out_of_the_plan_keep_its_groups(self, path: Path) -> None:
        """Groups are those of the plan: found anew they would be put together in another way."""
        world = World(2)
        for number in range(24):
            world.append(number, rows=5 if number % 4 else 3000)
        largest = max(file.file_size_in_bytes for file in data_files(world.table))
        options = {"max-file-group-size-bytes": str(largest + 1), "min-input-files": "2"}
        self.write(world, path, options=options)
        lines = [*read_plan_file(str(path)).lines()]
        planned = {line.name for line in lines if line.kind == "data file"}
        groups_count = sum(line.kind == "group" for line in lines)
        assert 2 < len(planned) < 24
        assert groups_count > 1
        done = self.apply(world, path).result
        assert (done.rewritten_data_files_count, done.added_data_files_count) == (len(planned), groups_count)
        assert not planned & {file.file_path for file in data_files(world.table)}

    def test_a_group_that_would_become_other_files_is_refused(self, path: Path) -> None:
        world = self._filled()
        self.write(world, path)
        commit(world.table, ChangeProperties(updates={"write.target-file-size-bytes": "1000"}))
        self.refused(world, path, "the table's property write.target-file-size-bytes is 1000 now")

    def test_of_a_branch_its_own_files_count(self, path: Path) -> None:
        world = self._filled()
        create_branch(world.table, "audit")
        self.write(world, path, branch="audit")
        compact_all(world)
        main = world.table.metadata.head("main")
        assert self.apply(world, path).result.rewritten_data_files_count == 5
        assert world.table.metadata.head("main") == main
        self.write(world, path.with_name("of_main.jsonl"))

    def test_partly_applied_plan_is_completed(self, path: Path) -> None:
        """Each partition is a commit; wherever it is cut off, the next `apply` does the rest and no group twice."""
        made = World(2, [("at", "month")])
        for month in (1, 2, 3):
            for number in range(5):
                made.append(10 * month + number, month=month)
        options = {"partial-progress.enabled": "true", "partial-progress.max-commits": "3"}
        self.write(made, path, options=options)
        with Fault(counted := made.copy()) as clean:
            self.apply(counted, path)
        swaps = [place for place, (operation, _) in enumerate(clean.calls) if operation == "swap"]
        rows, parts = made.rows(), 0
        for place in swaps:
            world = made.copy()
            with Fault(world, place + 1, "killed"), suppress(IcekeepError, Killed):
                self.apply(world, path)
            left = len(data_files(world.table))
            parts += 3 < left < 15
            world.runtime.pass_ms(86_400_000)
            again = self.apply(world, path)
            assert bool(again.applied_before) is (left == 3)
            assert len(data_files(world.table)) == 3
            assert world.rows() == rows
        assert parts

    def test_concurrent_change_is_a_conflict_without_replanning(self, path: Path) -> None:
        world = self._filled()
        self.write(world, path)
        rows, others = world.rows(), []

        def compact_first(operation: str, location: str) -> None:
            if operation in ("write", "create") and location.endswith(".parquet") and not others:
                others.append(location)
                compact_all(world)

        world.storage.before = compact_first
        with pytest.raises(ConflictError):
            self.apply(world, path)
        assert others
        assert len(data_files(world.table)) == 1
        assert world.rows() == rows
        self.refused(world, path, "5 files to rewrite are gone")

    def test_its_summaries_name_it(self, path: Path) -> None:
        world = self._filled()
        told = self.write(world, path)
        self.apply(world, path)
        head = world.table.metadata.head("main")
        assert head is not None
        assert (head.summary or {})["icekeep.plan"] == told.hash

    def test_its_lines_are_in_groups_with_what_applies_to_them(self, path: Path) -> None:
        world = World(2, [("at", "month")])
        world.append(1, 2, 3, 4, 5)
        delete_a_row(world)
        self.write(world, path)
        lines = [*read_plan_file(str(path)).lines()]
        assert [(line.do, line.kind, line.group) for line in lines] == [
            ("rewrite", "group", 0),
            ("apply", "position delete file", 0),
            *[("rewrite", "data file", 0)] * 5,
            ("remove", "position delete file", None),
        ]
        assert {line.name for line in lines[2:-1]} == {file.file_path for file in data_files(world.table)}
        assert sum(line.size_bytes or 0 for line in lines[2:-1]) == lines[0].size_bytes
        assert lines[-1].name == lines[1].name
        assert lines[0].says["delete_files_count"] == 1

    def test_only_planned_dangling_deletes_are_removed(self, path: Path) -> None:
        world = Contract.fill(2)
        self.write(world, path)
        planned = {line.name for line in read_plan_file(str(path)).lines() if line.do == "remove"}
        before = {file.file_path for file in delete_files(world.table)}
        older = {file.file_path for file in data_files(world.table)}
        world.append(11, 12)
        lose_reached_file(world.table, [file for file in data_files(world.table) if file.file_path not in older])
        assert self.apply(world, path).result.removed_delete_files_count == len(planned)
        assert {file.file_path for file in delete_files(world.table)}.isdisjoint(planned)
        assert len(delete_files(world.table)) == 2
        assert before == planned | {file.file_path for file in delete_files(world.table)} & before

    def test_missing_or_needed_delete_file_is_refused(self, path: Path) -> None:
        world = Contract.fill(2)
        head = world.table.metadata.snapshots[-1]
        self.write(world, path)
        rewrite_manifests(world.table, no_spark, options=Contract.told["options"])
        self.refused(world, path, r"1 delete file to remove is gone, or needed again, such as '.*'.*came snapshot")
        rollback_to_snapshot(world.table, head.snapshot_id)
        assert self.apply(world, path).status == "done"

    def test_removed_deletes_are_unknown_if_the_spec_changes(self, path: Path) -> None:
        world = World(2)
        world.append(1, 2)
        delete_a_row(world)
        update_spec(world.table, [AddPartitionField("id", "bucket[2]")])
        options = {**Contract.told["options"], "rewrite-all": "true"}
        written = self.write(world, path, options=options)
        assert written.notes == (NOTE_OF_REMOVALS,)
        assert [line for line in read_plan_file(str(path)).lines() if line.do == "remove"] == []
        shown = plan_compact(world.table, no_spark, options=options)
        assert (shown.removed_delete_files_count, shown.removed_delete_bytes_count) == (None, None)
