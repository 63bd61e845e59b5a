"""What a rewrite changes for readers, told of what is foreseen and of what is written alike."""

from typing import Any

import pytest

from icekeep.events import SILENT
from icekeep.maintenance.manifests import execute
from icekeep.maintenance.manifests.execute import (
    FilterGain,
    RewrittenManifests,
    filter_gains,
    group_gain,
)
from icekeep.maintenance.rewrite.run import WrittenFiles
from kit.no_spark import no_spark
from kit.staged_manifests import asked, chosen
from kit.tables import BY_KIND, add, data_file, memory_table

KINDS = ("a", "b", "c", "d")


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
    assert [m.manifest_path for m in done.listed] == ["", paths[0], paths[5]]


def test_a_group_that_stays_as_it_is_gains_nothing(table: Any):
    [group] = chosen(table, where="manifest_length < 3").groups
    gain = group_gain(table, RewrittenManifests(group))
    assert (gain.manifests_count, gain.entries_count, gain.added_bytes_count) == (0, 0, 0)
    assert RewrittenManifests(group).listed == [*group.listed]


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
