"""What a rewrite changes for readers, and what a survey foretells of many entries: that is what then comes of them."""

from itertools import pairwise
from typing import Any

import pytest

from icekeep.events import SILENT
from icekeep.maintenance.manifests import execute
from icekeep.maintenance.manifests.candidates import expected_manifests
from icekeep.maintenance.manifests.execute import FilterGain, RewrittenManifests, filter_gains, group_gain
from icekeep.maintenance.manifests.survey import survey
from icekeep.maintenance.rewrite.run import WrittenFiles
from icekeep.planning.entries import ReadBy
from icekeep.spec.manifests.structs import ManifestFile
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
    [foreseen] = execute.rewritten(table, plan, no_spark)
    [done] = execute.rewritten(table, plan, no_spark, "run", WrittenFiles(table, "run", SILENT))
    assert group_gain(table, foreseen) == group_gain(table, done)
    assert [m.manifest_path for m in foreseen.added] == [""]


def test_manifests_that_stay_are_opened_as_before(table: Any):
    paths = [m.manifest_path for m in chosen(table).listed]
    plan = chosen(table, where=f"manifest_path NOT IN ('{paths[0]}', '{paths[5]}')")
    [done] = execute.rewritten(table, plan, no_spark)
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
    done = execute.rewritten(table, plan, no_spark)
    assert filter_gains(table, requested, plan.listed, done, 0) == (
        FilterGain(filter="kind = 'a'", opened_before_count=8, opened_after_count=1),
        FilterGain(filter="kind > 'z'", opened_before_count=0, opened_after_count=0),
        FilterGain(filter="score > 3", opened_before_count=8, opened_after_count=1),
    )
    assert filter_gains(table, asked(table), plan.listed, done, 0) == ()


def filled(target_bytes: int, commits: int = 10, kinds: int = 20) -> Any:
    """Each commit has a file of every kind, and one of none."""
    table = memory_table(
        spec=BY_KIND, commit__manifest_merge__enabled="false", commit__manifest__target_size_bytes=str(target_bytes)
    )
    for number in range(commits):
        names = [None, *(f"kind{n:03}" for n in range(kinds))]
        table = add(table, *(data_file(f"{number}-{name}", partition=(name,)) for name in names))
    return table


def foretold(table: Any, expected_count: int | None = None) -> list[ManifestFile]:
    found = chosen(table)
    [group] = found.groups
    [run] = group.runs
    run = (
        run
        if expected_count is None
        else type(run)(manifests=run.manifests, target=run.target, expected_count=expected_count)
    )
    weights = survey(run.manifests, 0, run.target, table.storage, no_spark).weights()
    return expected_manifests(group, run, weights)


def outline(manifests: Any) -> list[Any]:
    """All but paths and lengths, and how many rows there are, which a survey does not look at."""
    return [
        (
            m.partition_spec_id,
            m.content,
            m.added_files_count,
            m.existing_files_count,
            m.deleted_files_count,
            m.partitions,
        )
        for m in manifests
    ]


@pytest.mark.slow
def test_counts_and_summaries_of_one_manifest_are_those_of_what_is_written():
    table = filled(8 << 20)
    [foreseen], [one] = execute.rewritten(table, chosen(table), no_spark), foretold(table)
    assert outline([one]) == outline(foreseen.added)
    assert (one.manifest_path, one.existing_files_count) == ("", 210)
    assert one.manifest_length == sum(m.manifest_length for m in chosen(table).replaced)


@pytest.mark.parametrize("count", [2, 3, 7])
def test_entries_are_cut_evenly_and_in_the_order_of_keys(count: int):
    table = filled(8 << 20)
    expected = foretold(table, count)
    counts = [m.existing_files_count or 0 for m in expected]
    assert (sum(counts), len(counts)) == (210, count)
    assert max(counts) - min(counts) <= 1
    # Nulls come first.
    assert [m.partitions[0].contains_null for m in expected if m.partitions] == [True] + [False] * (count - 1)
    ends = [(m.partitions[0].lower_bound, m.partitions[0].upper_bound) for m in expected if m.partitions]
    assert all(before[1] <= after[0] for before, after in pairwise(ends))
    whole = sum(m.manifest_length for m in chosen(table).replaced)
    assert whole - count <= sum(m.manifest_length for m in expected) <= whole


def test_many_entries_are_foretold_as_few_are_foreseen(monkeypatch: pytest.MonkeyPatch):
    """Where tasks would write them, a survey stands for what the driver would work out."""
    table = filled(8 << 20)
    plan = chosen(table)
    [few] = execute.rewritten(table, plan, no_spark)
    reading = execute.chosen_reading

    def many(*arguments: Any) -> Any:
        found = reading(*arguments)
        return type(found)(by=ReadBy.TASKS, decoder=found.decoder, reason="")

    monkeypatch.setattr(execute, "chosen_reading", many)
    [foreseen] = execute.rewritten(table, plan, no_spark)
    assert outline(foreseen.added) == outline(few.added)
    assert sorted(foreseen.partitions) == sorted(few.partitions)


def test_no_entries_are_no_manifests():
    table = filled(8 << 20, commits=2)
    [group] = chosen(table).groups
    assert expected_manifests(group, group.runs[0], []) == []
