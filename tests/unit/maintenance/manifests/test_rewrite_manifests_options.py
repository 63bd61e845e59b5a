"""What the job is asked for: specs, orders, filters, branches, options, and a plan before the run; no Spark is started."""

import struct
from typing import Any

import pytest
from msgspec.structs import replace

from icekeep.catalog.base import Table
from icekeep.errors import ExpressionError, NotFoundError, OptionError, UsageError
from icekeep.maintenance.manifests.job import plan_rewrite_manifests, rewrite_manifests
from icekeep.spec.evolution import AddPartitionField, RemovePartitionField
from icekeep.tables.verbs import update_spec
from kit.cases import for_each
from kit.no_spark import no_spark
from kit.small_manifests import (
    BY_KIND_AND_SCORE,
    check_same,
    counts,
    follow,
    kinds,
    position_deletes,
    reload,
    rewrite,
    scattered,
    with_deletes,
)
from kit.tables import add, data_file, entries_of, manifests_of, memory_table, raw, stored

pytestmark = pytest.mark.slow

VERSIONS = pytest.mark.parametrize("version", [1, 2, 3])


@VERSIONS
def test_only_the_default_spec_is_rewritten_unless_told_otherwise(version: int) -> None:
    """Procedure: testWriteManifestWithSpecId, testReplacePartitionField."""
    table = kinds(3, version=version)
    table = update_spec(table, [RemovePartitionField("kind"), AddPartitionField("score", "identity")])
    new = table.metadata.default_spec_id
    partition = (1.5,) if version > 1 else (None, 1.5)
    table = add(table, data_file("new0", partition=partition, spec_id=new))
    assert counts(rewrite(table)) == (0, 0)
    assert reload(table).metadata_location == table.metadata_location
    result = rewrite(table, spec_id=0)
    assert counts(result) == (3, 1)
    assert sorted(m.partition_spec_id for m in check_same(table, result, 2)) == [0, new]
    table = add(reload(table), data_file("old", partition=("a",)))
    table = add(table, data_file("new1", partition=partition, spec_id=new))
    result = rewrite(table, spec_id="all")
    assert counts(result) == (4, 2)
    assert sorted(m.partition_spec_id for m in check_same(table, result, 2)) == [0, new]


@for_each(
    ("arguments", "kind", "said"),
    [
        ({"spec_id": 7}, NotFoundError, "no partition spec 7; it has 0"),
        ({"spec_id": "al"}, UsageError, "'al'"),
        # Action: testRewriteManifestsPartitionedTableWithInvalidSortingColumns; procedure: ...WithInvalidSortBy, ...EmptySortBy.
        ({"sort_by": ["kind", "nonsense"]}, NotFoundError, "'nonsense'; the partition fields are kind, score"),
        ({"sort_by": []}, UsageError, "sort_by"),
        ({"sort_by": ""}, UsageError, "sort_by"),
        ({"sort_by": ["kind", "kind"]}, UsageError, "twice"),
        ({"where": "nonsense < 3"}, ExpressionError, "no column 'nonsense'"),
        ({"where": "manifest_length <"}, ExpressionError, "end"),
        ({"where": "manifest_length < 'x'"}, ExpressionError, "'x'"),
        ({"options": {"remove-dangling-deletes": "maybe"}}, OptionError, "maybe"),
    ],
)
def test_what_is_asked_wrongly_is_said_in_one_line_and_nothing_is_done(
    arguments: dict[str, Any], kind: type[Exception], said: str
) -> None:
    """Procedure: testInvalidRewriteManifestsCases, as far as it is not Spark's SQL."""
    table = memory_table(spec=BY_KIND_AND_SCORE)
    for number in range(3):
        table = add(table, data_file(str(number), partition=("a", float(number))))
    files = stored(table.catalog)
    for ask in (rewrite_manifests, plan_rewrite_manifests):
        with pytest.raises(kind, match=said) as raised:
            ask(table, no_spark, **arguments)
        message = str(raised.value)
        assert "\n" not in message
        assert not message.endswith(".")
    assert reload(table).metadata_location == table.metadata_location
    assert stored(table.catalog) == files


def spans(table: Table, key: Any) -> list[tuple[Any, Any]]:
    """From where to where each manifest of data reaches by some key of its files, in order."""
    found = []
    for manifest in manifests_of(table):
        keys = [key(entry) for entry in raw(table, manifest.manifest_path)]
        found.append((min(keys), max(keys)))
    return sorted(found)


KEYS = {
    "kind": lambda entry: entry["data_file"]["partition"]["kind"],
    "score": lambda entry: entry["data_file"]["partition"]["score"],
    "id": lambda entry: struct.unpack("<q", {b["key"]: b["value"] for b in entry["data_file"]["lower_bounds"]}[1])[0],
}


@for_each(
    ("sort_by", "key"),
    [
        (None, "kind"),
        (["kind"], "kind"),
        ("score", "score"),
        ("score, kind", "score"),
        (["id"], "id"),
        ("id,kind", "id"),
    ],
)
def test_manifests_follow_one_another_by_what_they_are_sorted_by(sort_by: Any, key: str) -> None:
    """Action: ...WithCustomSorting; procedure: ...WithSortBy, ...SortBySingleColumn. `id` is no partition field."""
    table = scattered()
    assert not follow(spans(table, KEYS[key]))
    result = rewrite(table, sort_by=sort_by)
    manifests = check_same(table, result, result.added_manifests_count)
    assert len(manifests) > 2
    found = spans(reload(table), KEYS[key])
    assert follow(found)
    after = reload(table)
    assert counts(rewrite(after, sort_by=sort_by)) == (0, 0)
    assert reload(table).metadata_location == after.metadata_location


def test_the_filters_of_a_workload_say_what_to_sort_by() -> None:
    table = scattered()
    result = rewrite(table, workload=["score > 3", "score < 9 AND score > 2"])
    assert follow(spans(reload(table), KEYS["score"]))
    assert [gain.opened_before_count for gain in result.workload] == [4, 4]
    assert result.workload[1].opened_after_count < 4
    with pytest.raises(UsageError, match="sort_by and workload"):
        rewrite(table, workload=["score > 3"], sort_by="kind")


def test_only_manifests_that_the_filter_matches_are_rewritten() -> None:
    """Action: testRewriteManifestsWithPredicate."""
    table = add(kinds(3), *(data_file(f"c{n:03}", partition=("c",)) for n in range(1000)))
    large = max(manifests_of(table), key=lambda m: m.manifest_length)
    result = rewrite(table, where=f"manifest_length < {large.manifest_length}")
    assert counts(result) == (3, 1)
    assert large.manifest_path in {m.manifest_path for m in check_same(table, result, 2)}
    assert counts(rewrite(reload(table), where="content = 'deletes'")) == (0, 0)
    assert counts(rewrite(reload(table), where="partition_spec_id = 1 OR live_files_count > 5000")) == (0, 0)
    assert counts(rewrite(reload(table), where="live_files_count > 1")) == (2, 1)


@pytest.mark.parametrize("use_caching", [True, False])
def test_caching_is_accepted_and_changes_nothing(use_caching: bool) -> None:
    """Procedure: testRewriteSmallManifestsWithoutCaching."""
    table = kinds(2)
    result = rewrite(table, use_caching=use_caching)
    assert counts(result) == (2, 1)
    check_same(table, result, 1)


@pytest.mark.parametrize("drops", [True, False])
def test_dangling_delete_files_are_left_out_where_that_is_asked_for(drops: bool) -> None:
    table = kinds(1)
    [a] = [e.data_file for e in entries_of(table, "a0")]
    stays = position_deletes("stays", a)
    dangling = [
        position_deletes("no such file", a, referenced_data_file="memory://lake/wh/db/events/data/gone"),
        position_deletes("no such partition", replace(a, partition=("z",)), referenced_data_file=None),
    ]
    table = with_deletes(table, stays, *dangling)
    options = {"remove-dangling-deletes": "true"} if drops else {}
    plan = plan_rewrite_manifests(table, no_spark, options=options)
    assert plan.removed_delete_files_count == (2 if drops else None)
    result = rewrite(table, options=options)
    assert result.removed_delete_files_count == (2 if drops else 0)
    names = {e.data_file.file_path.rpartition("/")[2] for e in entries_of(reload(table))}
    left = {"a0", "b0", "None0", "stays"}
    assert names == (left if drops else left | {"no such file", "no such partition"})
    after = reload(table)
    assert counts(rewrite(after, options=options)) == (0, 0)
    assert reload(table).metadata_location == after.metadata_location


@for_each(
    "arguments", [{}, {"spec_id": "all"}, {"sort_by": "score"}, {"sort_by": "id"}, {"where": "sequence_number > 1"}]
)
def test_a_plan_changes_nothing_and_its_numbers_are_those_of_the_run(arguments: dict[str, Any]) -> None:
    table = scattered()
    files = stored(table.catalog)
    plan = plan_rewrite_manifests(table, no_spark, **arguments)
    assert stored(table.catalog) == files
    assert reload(table).metadata_location == table.metadata_location
    result = rewrite(table, **arguments)
    assert (plan.rewritten_manifests_count, plan.added_manifests_count) == counts(result)
    assert plan.rewritten_bytes_count == result.rewritten_bytes_count
    assert plan.entries_count == result.entries_count
    assert plan.left_alone_manifests_count == result.left_alone_manifests_count == 0
    assert plan.rewritten_manifests_count > 2
    assert plan.snapshot_id == table.metadata.current_snapshot_id


def test_what_a_filter_opens_before_and_after() -> None:
    table = scattered()
    plan, result = plan_rewrite_manifests(table, no_spark), rewrite(table)
    [foretold], [done] = plan.groups, result.groups
    assert foretold == done
    assert done.max_opened_before_count == 4
    assert done.mean_opened_after_count < done.mean_opened_before_count / 2
    assert done.mean_opened_after_bytes < done.mean_opened_before_bytes
