"""Conditions of policies, held against tables as they are before and after a job."""

import pytest

from icekeep.health.facts import facts_of
from icekeep.health.job import table_health
from icekeep.maintenance.compaction.job import compact
from icekeep.policies.triggers import Facts, Trigger, is_due
from kit.job_world import World
from kit.no_spark import no_spark

TRIGGER = Trigger(small_files_over=9, manifests_over=9, snapshots_over=50)


def test_a_job_is_due_before_it_ran_and_not_after_it():
    world = World(2, [("at", "month")])
    for number in range(10):
        world.append(number, month=1 + number % 2)
    before = facts_of(table_health(world.table, no_spark), "compact")
    assert before == Facts(small_files=10, delete_ratio=0.0, manifests=10, overlap=5.0, snapshots=10, last_run_ms=None)
    now_ms = world.table.runtime.now_ms()
    assert is_due(TRIGGER, before, now_ms).why == "small_files is 10, over 9; manifests is 10, over 9"
    compact(world.table, no_spark)
    head = world.table.metadata.current_snapshot
    health = table_health(world.table, no_spark)
    after = facts_of(health, "compact")
    assert (after.last_run_ms, after.snapshots) == (head.timestamp_ms, 11)
    assert after.small_files < 10
    assert not is_due(TRIGGER, after, now_ms)
    assert after.small_files == 0
    assert facts_of(health, "rewrite_manifests").last_run_ms is None
    assert facts_of(health, "compact", last_run_ms=5).last_run_ms == 5


@pytest.mark.parametrize("files", [1, 4])
def test_files_that_are_too_few_in_their_partitions_make_no_job_due(files):
    """Compaction leaves them as they are, so that it would be due each night."""
    world = World(2, [("at", "month")])
    for number in range(3 * files):
        world.append(number, month=1 + number % 3)
    health = table_health(world.table, no_spark)
    assert (health.data.small_files_count, health.data.small_files_together_count) == (3 * files, 0)
    assert not is_due(Trigger(small_files_over=0), facts_of(health, "compact"), 0)
    told = "12 of 12 data files are small beside others, 12 of them too few together for compact"
    assert [one.reason for one in health.score_parts if one.name == "files"] == ([told] if files > 1 else [])
    world.append(99)
    for number in range(5 - files):
        world.append(100 + number)
    assert facts_of(table_health(world.table, no_spark), "compact").small_files == 6
