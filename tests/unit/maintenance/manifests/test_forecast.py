"""What a survey foretells is what then comes of the entries, but for the lengths, which are judged by the old ones."""

from itertools import pairwise
from typing import Any

import pytest

from icekeep.maintenance.manifests import execute
from icekeep.maintenance.manifests.candidates import expected_manifests
from icekeep.maintenance.manifests.survey import survey
from icekeep.planning.entries import ReadBy
from icekeep.spec.manifests.structs import ManifestFile
from kit.no_spark import no_spark
from kit.staged_manifests import chosen
from kit.tables import BY_KIND, add, data_file, memory_table


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
    [foreseen], [one] = execute.foreseen(table, chosen(table), no_spark), foretold(table)
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
    [few] = execute.foreseen(table, plan, no_spark)
    reading = execute.chosen_reading

    def many(*arguments: Any) -> Any:
        found = reading(*arguments)
        return type(found)(by=ReadBy.TASKS, decoder=found.decoder, reason="")

    monkeypatch.setattr(execute, "chosen_reading", many)
    [foreseen] = execute.foreseen(table, plan, no_spark)
    assert outline(foreseen.added) == outline(few.added)
    assert sorted(foreseen.partitions) == sorted(few.partitions)


def test_no_entries_are_no_manifests():
    table = filled(8 << 20, commits=2)
    [group] = chosen(table).groups
    assert expected_manifests(group, group.runs[0], []) == []
