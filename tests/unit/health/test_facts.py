"""Conditions of policies, held against tables as they are before and after a job."""

from importlib import import_module

import pytest

from contracts.job_contract import filled
from icekeep.health.advice import facts_of
from icekeep.health.job import table_health
from icekeep.maintenance.compact.job import compact
from icekeep.operations.jobs import POLICY_JOBS
from icekeep.policies.windows import MEASURED, Facts, Trigger, is_due
from icekeep.tables.refs import create_branch, create_tag
from kit.cases import for_each
from kit.job_world import World
from kit.runtime import no_spark

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
def test_too_few_small_files_per_partition_make_no_job_due(files):
    """Compaction leaves them as they are, so that it would be due each night."""
    world = World(2, [("at", "month")])
    for number in range(3 * files):
        world.append(number, month=1 + number % 3)
    health = table_health(world.table, no_spark)
    assert (health.data.small_files_count, health.data.small_files_together_count) == (3 * files, 0)
    assert not is_due(Trigger(small_files_over=0), facts_of(health, "compact"), 0)
    told = "12 of 12 data files are small, 12 of them too few together for compact"
    assert [one.reason for one in health.score_parts if one.name == "files"] == ([told] if files > 1 else [])
    world.append(99)
    for number in range(5 - files):
        world.append(100 + number)
    assert facts_of(table_health(world.table, no_spark), "compact").small_files == 6


def test_referenced_snapshots_make_no_expiration_due():
    """It would remove none of them, and be due each night."""
    world = World(2)
    for number in range(4):
        world.append(number)
    ids = [snapshot.snapshot_id for snapshot in world.table.metadata.snapshots]
    table = create_tag(create_tag(create_branch(world.table, "b", ids[0]), "t", ids[0]), "u", ids[1])
    assert facts_of(table_health(table, no_spark), "expire_snapshots").snapshots == 2


WITH_WORK = {
    "compact": "compact.test_job_contract:TestCompact",
    "rewrite_position_deletes": "deletes.test_job_contract:TestRewritePositionDeletes",
    "rewrite_manifests": "manifests.test_job_contract:TestRewriteManifests",
}
"""Of each job that the conditions of a policy can be known to be idle for, a table that it has work on."""

LEAST = {"small_files_over": 0, "delete_ratio_over": 0.0, "manifests_over": 0, "overlap_over": 1.0, "snapshots_over": 0}


def world_with_work(job):
    module, _, name = {**WITH_WORK, **OTHERS}[job].partition(":")
    contract = getattr(import_module(f"unit.maintenance.{module}"), name)
    return contract, filled(contract, max(contract.versions)).copy()


@pytest.mark.slow
@for_each("job", WITH_WORK)
def test_run_clears_each_condition_or_says_why_not(job):
    """Each night it would be due otherwise, and do nothing."""
    contract, world = world_with_work(job)
    contract.run(world)
    health, now_ms = table_health(world.table, no_spark), world.runtime.now_ms()
    facts = facts_of(health, job, now_ms)
    assert health.metadata.manifests_count > 0
    for condition, limit in LEAST.items():
        due = is_due(Trigger(**{condition: limit}), facts, now_ms)
        assert not due, due.why
        value = getattr(facts, condition.removesuffix("_over"))
        assert ("but the job would do nothing: " in due.why) == (value is not None and value > limit)
    for trigger in (Trigger(age_over_ms=0), Trigger(min_interval_ms=1)):
        assert not is_due(trigger, facts, now_ms)


OTHERS = {
    "expire_snapshots": "expire.test_job_contract:TestExpireSnapshots",
    "remove_orphan_files": "orphans.test_job_contract:TestRemoveOrphanFiles",
}
"""Jobs that also see to what earlier runs left, so that nobody knows before whether they are idle."""

UNMEASURED = {"check", "compute_partition_stats", "compute_table_stats", "expire_rows"}
"""Jobs of whose work a report says nothing: that of the last follows from its filter."""


@pytest.mark.slow
@for_each("job", OTHERS)
def test_run_says_why_unmeasured_condition_still_holds(job):
    contract, world = world_with_work(job)
    assert not contract.run(world).is_idle
    health, now_ms = table_health(world.table, no_spark), world.runtime.now_ms()
    facts = facts_of(health, job, now_ms)
    holding = [name for name, limit in LEAST.items() if is_due(Trigger(**{name: limit}), facts, now_ms)]
    assert "snapshots_over" in holding
    assert contract.run(world).is_idle
    [advice] = [one for one in health.jobs if one.job == job]
    assert not advice.has_work
    assert advice.reason
    for trigger in (Trigger(age_over_ms=0), Trigger(min_interval_ms=1)):
        assert not is_due(trigger, facts, now_ms)


@pytest.mark.slow
@for_each("job", WITH_WORK)
def test_job_with_work_is_due_for_every_number_over_limit(job):
    _, world = world_with_work(job)
    facts = facts_of(table_health(world.table, no_spark), job)
    for condition, limit in LEAST.items():
        value = getattr(facts, condition.removesuffix("_over"))
        assert is_due(Trigger(**{condition: limit}), facts, 0).is_due == (value is not None and value > limit)


def test_idle_facts_hold_for_default_arguments_only():
    """They say nothing of what earlier runs left."""
    world = World(2)
    world.append(0)
    health = table_health(world.table, no_spark)
    assert facts_of(health, "compact").idle
    assert not facts_of(health, "compact", arguments=("--strategy", "sort")).idle
    assert not facts_of(health, "expire_snapshots").idle
    assert {*POLICY_JOBS} == {*WITH_WORK, *OTHERS, *UNMEASURED}
    assert {f"{name}_over" for name in MEASURED} == {*LEAST}
