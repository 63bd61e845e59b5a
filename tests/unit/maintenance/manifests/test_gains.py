"""What a rewrite changes for readers, told of what is foreseen and of what is written alike."""

from typing import Any

import pytest
from msgspec.structs import replace

from icekeep.events import SILENT
from icekeep.maintenance.manifests import execute
from icekeep.maintenance.manifests.execute import (
    FilterGain,
    RewrittenManifests,
    filter_gains,
    group_gain,
    listed_after,
    measured_ms,
)
from icekeep.maintenance.rewrite.run import WrittenFiles
from kit.no_spark import no_spark
from kit.runtime import FakeRuntime
from kit.staged_manifests import asked, chosen
from kit.tables import BY_KIND, add, data_file, memory_table

KINDS = ("a", "b", "c", "d")


class Ticking(FakeRuntime):
    """Each look at the clock takes longer than the one before."""

    def __init__(self, *steps_ms: int) -> None:
        super().__init__()
        self.steps_ms = [*steps_ms]

    def monotonic_ms(self) -> int:
        self.pass_ms(self.steps_ms.pop(0))
        return super().monotonic_ms()


@pytest.fixture
def table() -> Any:
    """Eight manifests of which each reaches over all four kinds."""
    made = memory_table(spec=BY_KIND, commit__manifest_merge__enabled="false")
    for number in range(8):
        made = add(made, *(data_file(f"{number}-{kind}", partition=(kind,)) for kind in KINDS))
    return made


def test_a_filter_on_one_partition_opens_fewer_manifests_than_before(table: Any):
    plan = chosen(table)
    [done] = execute.rewritten(table, plan, no_spark, "run", WrittenFiles(table, "run", SILENT))
    gain = group_gain(table, done)
    before_bytes = sum(m.manifest_length for m in plan.replaced)
    assert (gain.spec_id, gain.content, gain.entries_count) == (0, "data", 32)
    assert (gain.manifests_count, gain.added_manifests_count) == (8, 1)
    assert (gain.rewritten_bytes_count, gain.added_bytes_count) == (before_bytes, done.added[0].manifest_length)
    assert (gain.mean_opened_before_count, gain.mean_opened_after_count) == (8, 1)
    assert (gain.max_opened_before_count, gain.max_opened_after_count) == (8, 1)
    assert (gain.mean_opened_before_bytes, gain.mean_opened_after_bytes) == (
        before_bytes,
        done.added[0].manifest_length,
    )


def test_what_is_foreseen_gains_what_is_then_gained(table: Any):
    plan = chosen(table)
    [foreseen] = execute.foreseen(table, plan, no_spark)
    [done] = execute.rewritten(table, plan, no_spark, "run", WrittenFiles(table, "run", SILENT))
    assert group_gain(table, foreseen) == group_gain(table, done)
    assert [m.manifest_path for m in foreseen.added] == [""]


def test_manifests_that_stay_are_opened_as_before(table: Any):
    paths = [m.manifest_path for m in chosen(table).listed]
    plan = chosen(table, where=f"manifest_path NOT IN ('{paths[0]}', '{paths[5]}')")
    [done] = execute.foreseen(table, plan, no_spark)
    gain = group_gain(table, done)
    assert (gain.manifests_count, gain.mean_opened_before_count, gain.mean_opened_after_count) == (6, 8, 3)
    assert [m.manifest_path for m in listed_after(done)] == ["", paths[0], paths[5]]


def test_a_group_that_stays_as_it_is_gains_nothing(table: Any):
    [group] = chosen(table, where="manifest_length < 3").groups
    gain = group_gain(table, RewrittenManifests(group))
    assert (gain.manifests_count, gain.entries_count, gain.added_bytes_count) == (0, 0, 0)
    assert listed_after(RewrittenManifests(group)) == [*group.listed]


def test_each_filter_of_the_workload_is_told_what_it_opens(table: Any):
    filters = ["kind = 'a'", "kind > 'z'", "score > 3"]
    requested, plan = asked(table, workload=filters), chosen(table, workload=filters)
    done = execute.foreseen(table, plan, no_spark)
    assert filter_gains(table, requested, plan.listed, done, 0) == (
        FilterGain(filter="kind = 'a'", opened_before_count=8, opened_after_count=1),
        FilterGain(filter="kind > 'z'", opened_before_count=0, opened_after_count=0),
        FilterGain(filter="score > 3", opened_before_count=8, opened_after_count=1),
    )
    assert filter_gains(table, asked(table), plan.listed, done, 0) == ()


def test_planning_is_measured_twice_and_the_better_time_counts(table: Any):
    plan = chosen(table)
    [done] = execute.rewritten(table, plan, no_spark, "run", WrittenFiles(table, "run", SILENT))
    runtime = Ticking(0, 70, 0, 30)
    assert measured_ms(table, done, plan.listed, no_spark, runtime) == 30
    assert runtime.steps_ms == []
    assert measured_ms(table, done, listed_after(done), no_spark, Ticking(0, 5, 0, 9)) == 5


def test_planning_reads_the_manifests_that_admit_one_partition_in_the_middle(
    table: Any, monkeypatch: pytest.MonkeyPatch
):
    plan = chosen(table)
    [done] = execute.rewritten(table, plan, no_spark, "run", WrittenFiles(table, "run", SILENT))
    opened: list[list[str]] = []

    def noted(storage: Any, spark: Any, manifests: Any, wanted: Any, *rest: Any) -> None:
        opened.append([m.manifest_path for m in manifests])
        told.append(repr(wanted.specs[0].matches))

    told: list[str] = []
    monkeypatch.setattr("icekeep.maintenance.manifests.rules.folded", noted)
    measured_ms(table, done, plan.listed, no_spark, FakeRuntime())
    assert opened == [[m.manifest_path for m in plan.listed]] * 2
    assert "'c'" in told[0]


def test_without_partitions_to_look_for_nothing_is_measured(table: Any):
    plan = chosen(table)
    [done] = execute.foreseen(table, plan, no_spark)
    assert measured_ms(table, replace(done, partitions=()), plan.listed, no_spark, FakeRuntime()) is None


@pytest.mark.parametrize("partition", [(None,), ("a",)])
def test_a_partition_of_null_is_measured_too(partition: tuple[Any, ...]):
    table = memory_table(spec=BY_KIND, commit__manifest_merge__enabled="false")
    for number in range(3):
        table = add(table, data_file(f"{number}", partition=partition))
    plan = chosen(table)
    [done] = execute.rewritten(table, plan, no_spark, "run", WrittenFiles(table, "run", SILENT))
    assert measured_ms(table, done, plan.listed, no_spark, Ticking(0, 4, 0, 4)) == 4
