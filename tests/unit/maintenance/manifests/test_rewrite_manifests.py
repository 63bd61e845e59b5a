"""The job on tables in memory whose data files were never written: no Spark is started for what is small.

The Java names in docstrings are those of Iceberg's TestRewriteManifestsAction (action) and ...Procedure (procedure).
"""

import itertools
import struct
from collections import Counter
from typing import Any

import pytest
from msgspec.structs import replace

from icekeep.commit.changes.rewrites import RewriteFiles
from icekeep.commit.retry import commit
from icekeep.errors import OutcomeUnknownError, UnavailableError
from icekeep.events import StepFinished, Warned
from icekeep.maintenance.manifests import job as plan
from icekeep.maintenance.manifests.job import rewrite_manifests
from icekeep.spec.evolution import AddPartitionField, RemovePartitionField
from icekeep.spec.manifests.structs import FileContent, ManifestContent
from icekeep.tables.verbs import update_spec, upgrade_format_version
from kit.changes import Recorder, thrown
from kit.memory_catalog import IS_UNKNOWN, LANDS_BUT_IS_UNKNOWN, MemoryCatalog
from kit.no_spark import no_spark
from kit.rewritten_manifests import our_live_entries
from kit.runtime import with_runtime
from kit.small_manifests import (
    SMALL,
    check_same,
    counts,
    follow,
    kinds,
    position_deletes,
    reload,
    rewrite,
    wide,
    with_deletes,
    with_retired_fields,
    without_counts,
)
from kit.tables import (
    BY_KIND,
    add,
    data_file,
    entries_of,
    manifests_of,
    memory_table,
    orphans,
    raw,
    raw_entries,
    raw_list,
    stored,
)

pytestmark = pytest.mark.slow

VERSIONS = pytest.mark.parametrize("version", [1, 2, 3])


@VERSIONS
def test_a_table_without_a_snapshot_stays_so(version: int) -> None:
    """Action: testRewriteManifestsEmptyTable; procedure: testRewriteManifestsInEmptyTable."""
    table = memory_table(format_version=version)
    assert counts(rewrite(table)) == (0, 0)
    assert reload(table).metadata_location == table.metadata_location


@VERSIONS
@pytest.mark.parametrize("arguments", [{}, {"spec_id": "all"}, {"sort_by": "kind"}, {"use_caching": True}])
def test_one_good_manifest_stays_and_nothing_is_committed(version: int, arguments: dict[str, Any]) -> None:
    """Procedure: testRewriteManifestsNoOp."""
    table = kinds(1, version=version)
    assert counts(rewrite(table, **arguments)) == (0, 0)
    assert reload(table).metadata_location == table.metadata_location


@pytest.mark.parametrize("job", [rewrite_manifests, plan.plan_rewrite_manifests])
def test_it_says_why_nothing_is_rewritten(job: Any) -> None:
    heard = Recorder()
    table = kinds(1, commit__manifest__target_size_bytes="10000")
    assert job(table, no_spark, listener=heard).rewritten_manifests_count == 0
    [note] = [event.note for event in heard.events if isinstance(event, StepFinished)]
    assert note.startswith("none of 1 is rewritten: one of several entries is too large above 18,000 bytes")
    assert "too small below 7,500, and no others are put together than would be 15% fewer" in note
    heard.events.clear()
    table = add(table, data_file("z", partition=("z",)))
    assert job(table, no_spark, listener=heard).rewritten_manifests_count == 2
    assert not any("none of" in event.note for event in heard.events if isinstance(event, StepFinished))


@VERSIONS
def test_entries_become_existing_and_keep_their_snapshots_and_numbers(version: int) -> None:
    """Action: testRewriteSmallManifestsNonPartitionedTable, ...V2Table; procedure: ...WithSnapshotIdInheritance."""
    table = memory_table(format_version=version)
    first, second = (table := add(table, "a", "b")), (table := add(table, "c"))
    ids = [one.metadata.current_snapshot_id for one in (first, second)]
    result = rewrite(table)
    assert counts(result) == (2, 1)
    [manifest] = check_same(table, result, 1)
    assert (manifest.existing_files_count, manifest.added_files_count, manifest.deleted_files_count) == (3, 0, 0)
    assert (manifest.existing_rows_count, manifest.added_rows_count, manifest.deleted_rows_count) == (30, 0, 0)
    numbers = [(0, ids[0]), (0, ids[0]), (0, ids[1])]
    assert [(e.status, e.snapshot_id) for e in sorted(raw_entries(reload(table)))] == numbers
    if version > 1:
        sequences = [(e.sequence_number, e.file_sequence_number) for e in sorted(raw_entries(reload(table)))]
        assert sequences == [(1, 1), (1, 1), (2, 2)]
        assert manifest.min_sequence_number == 1


@VERSIONS
def test_a_second_run_over_many_partitions_does_nothing(version: int) -> None:
    table = wide(version)
    rewrite(table)
    after = reload(table)
    assert after.metadata_location != table.metadata_location
    assert counts(rewrite(after)) == (0, 0)
    assert reload(table).metadata_location == after.metadata_location


@VERSIONS
def test_manifests_are_cut_near_the_target_and_follow_one_another(version: int) -> None:
    """Action: testRewriteSmallManifestsPartitionedTable, ...LargeManifestsPartitionedTable; procedure: ...LargeManifests."""
    table = wide(version)
    result = rewrite(table)
    manifests = check_same(table, result, result.added_manifests_count)
    assert len(manifests) > 2
    assert max(m.manifest_length for m in manifests) < 2 * 10_000
    ends = sorted(
        tuple(struct.unpack("<q", b)[0] for b in (p.lower_bound, p.upper_bound))
        for m in manifests
        for p in m.partitions
    )
    assert all(low <= high for low, high in ends)
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(ends))


def test_one_partition_too_large_for_a_manifest_is_split() -> None:
    """Action: testRewriteLargeDeleteManifestsPartitionedTable has the like for deletes; apache/iceberg #6891."""
    table = memory_table(spec=BY_KIND, **SMALL)
    for number in range(4):
        table = add(table, *(data_file(f"{number}-{n:03}", partition=("a",)) for n in range(100)))
    result = rewrite(table)
    manifests = check_same(table, result, result.added_manifests_count)
    assert len(manifests) > 2
    assert {(p.lower_bound, p.upper_bound) for m in manifests for p in m.partitions} == {(b"a", b"a")}


def test_a_spec_of_void_fields_is_cut_too() -> None:
    """Action: testRewriteLargeManifestsEvolvedUnpartitionedV1Table."""
    table = memory_table(spec=BY_KIND, format_version=1, **SMALL)
    table = update_spec(table, [RemovePartitionField("kind")])
    spec_id = table.metadata.default_spec_id
    assert [str(f.transform) for f in table.metadata.spec.fields] == ["void"]
    table = add(table, *(data_file(f"{n:03}", partition=(None,), spec_id=spec_id) for n in range(400)))
    result = rewrite(table)
    assert result.rewritten_manifests_count == 1
    assert result.added_manifests_count >= 2
    check_same(table, result, result.added_manifests_count)


def test_every_spec_and_content_is_a_group_of_its_own_and_all_are_one_commit() -> None:
    table = kinds(2)
    [a, *_] = [e.data_file for e in entries_of(table, "a0")]
    table = with_deletes(table, position_deletes("d0", a), position_deletes("d1", a))
    table = update_spec(table, [AddPartitionField("score", "identity")])
    for number in range(2):
        table = add(table, data_file(f"n{number}", partition=("a", 0.5), spec_id=1))
    result = rewrite(table, spec_id="all")
    assert counts(result) == (6, 3)
    groups = Counter((m.partition_spec_id, m.content) for m in check_same(table, result, 3))
    assert groups == {(0, ManifestContent.DATA): 1, (0, ManifestContent.DELETES): 1, (1, ManifestContent.DATA): 1}
    assert len(reload(table).metadata.snapshots) == len(table.metadata.snapshots) + 1


def test_manifests_of_delete_files_become_one_and_that_of_data_stays() -> None:
    """Action: testRewriteSmallDeleteManifestsNonPartitionedTable."""
    table = add(memory_table(), "a")
    [data] = manifests_of(table)
    [a] = [e.data_file for e in entries_of(table)]
    equality = replace(data_file("e"), content=FileContent.EQUALITY_DELETES, equality_ids=(1,), sort_order_id=0)
    table = with_deletes(table, position_deletes("d", a), equality)
    result = rewrite(table)
    assert counts(result) == (2, 1)
    kept, new = sorted(check_same(table, result, 2), key=lambda m: m.content)
    assert kept.manifest_path == data.manifest_path
    assert kept.added_files_count == 1
    assert (new.content, new.existing_files_count, new.added_files_count) == (ManifestContent.DELETES, 2, 0)
    assert new.deleted_files_count == 0
    assert new.min_sequence_number == 2


def test_many_manifests_of_delete_files_are_clustered_and_cut() -> None:
    """Action: testRewriteSmallDeleteManifestsPartitionedTable, testRewriteLargeDeleteManifestsPartitionedTable."""
    table = memory_table(spec=BY_KIND, **SMALL)
    table = add(table, *(data_file(f"{n:03}", partition=(f"k{n:03}",)) for n in range(40)))
    files = [e.data_file for e in entries_of(table)]
    chosen = [files[n * 7 % 40] for n in range(40)]
    table = with_deletes(
        table, *(position_deletes(f"d{n}", file, key_metadata=bytes(500)) for n, file in enumerate(chosen))
    )
    result = rewrite(table, where="content = 'deletes'")
    assert result.rewritten_manifests_count == 40
    assert 1 < result.added_manifests_count < 10
    manifests = check_same(table, result, 1 + result.added_manifests_count)
    ends = sorted(
        (p.lower_bound, p.upper_bound) for m in manifests if m.content is ManifestContent.DELETES for p in m.partitions
    )
    assert follow(ends)


def test_every_field_of_data_and_delete_files_is_kept() -> None:
    """Action: testRewriteManifestsPreservesOptionalFields."""
    metrics = {name: {1: 3, 2: 7} for name in ("column_sizes", "value_counts", "null_value_counts", "nan_value_counts")}
    bounds = {"lower_bounds": {1: b"\x00" * 8, 2: b""}, "upper_bounds": {2: b"\xff"}}
    more = {"key_metadata": b"\x00k", "split_offsets": (4, 9), "sort_order_id": 0}
    full = [
        replace(data_file(f"f{n}"), **metrics, **bounds, **more, file_format=name)
        for n, name in enumerate(("PARQUET", "ORC", "AVRO"))
    ]
    table = memory_table(format_version=3)
    for file in (*full, data_file("empty"), replace(full[0], file_path="memory://lake/x", column_sizes={})):
        table = add(table, file)
    vectors = [
        position_deletes("v.puffin", file, file_format="PUFFIN", content_offset=n, content_size_in_bytes=40 + n)
        for n, file in enumerate(full)
    ]
    table = with_deletes(table, *vectors)
    result = rewrite(table)
    assert counts(result) == (8, 2)
    check_same(table, result, 2)
    text = "\n".join(our_live_entries(reload(table)))
    assert all(f'"{name}": [[1, 3], [2, 7]]' in text for name in metrics)
    assert '"key_metadata": "006b"' in text
    assert '"content_offset": 2' in text


@VERSIONS
def test_fields_that_writers_shall_not_write_go(version: int) -> None:
    """`distinct_counts`, `file_ordinal` and `sort_columns` of old writers, in some of the manifests (spec, "Manifests")."""
    table = with_retired_fields(kinds(4, version=version), {0, 2})
    [manifest] = check_same(table, rewrite(table), 1)
    after = reload(table)
    stored = {name for record in raw(after, manifest.manifest_path) for name in record["data_file"]}
    assert "null_value_counts" in stored
    assert not stored & {"distinct_counts", "file_ordinal", "sort_columns"}
    assert counts(rewrite(after)) == (0, 0)


def test_row_ids_are_kept_and_those_of_before_version_3_are_given_once() -> None:
    """Action: testRewriteV3ManifestsPreservesFirstRowId, ...PartitionedManifests..., ...AfterV2ToV3Upgrade."""
    table = kinds(3, version=3)
    check_same(table, rewrite(table), 1)
    old = kinds(3)
    table = upgrade_format_version(old, 3)
    assert {e.data_file.first_row_id for e in entries_of(table)} == {None}
    assert counts(rewrite(table)) == (3, 1)
    after = reload(table)
    ids = sorted(e.data_file.first_row_id for e in entries_of(after))
    assert ids == [*range(0, 90, 10)]
    assert after.metadata.next_row_id >= 90
    # What was given is not given anew.
    after = add(after, data_file("next", partition=("a",)))
    assert after.metadata.head("main").first_row_id >= 90
    check_same(after, rewrite(after), 1)
    assert sorted(e.data_file.first_row_id for e in entries_of(reload(after)))[:9] == ids


@pytest.mark.parametrize(("old", "new"), [(1, 2), (1, 3), (2, 3)])
def test_entries_that_an_older_version_of_the_format_stored_go_into_manifests_of_the_newer(old: int, new: int) -> None:
    table = kinds(2, version=old)
    runtime = table.catalog.runtime
    table = upgrade_format_version(with_runtime(table, runtime), new)
    table = add(table, data_file("new", partition=("a",)))
    result = rewrite(table)
    assert counts(result) == (3, 1)
    check_same(table, result, 1)
    [row] = raw_list(reload(table))
    assert row["min_sequence_number"] == (0 if old == 1 else 1)
    files = [record["data_file"] for record in raw(table, row["manifest_path"])]
    assert {file["content"] for file in files} == {0}
    assert new == 2 or None not in {file["first_row_id"] for file in files}


def test_a_list_of_version_1_need_not_say_how_many_files_there_are() -> None:
    """Iceberg Java refuses those: "No file counts in manifest"."""
    table = without_counts(kinds(3, version=1))
    assert {m.live_files_count for m in manifests_of(table)} == {None}
    result = rewrite(table)
    assert counts(result) == (3, 1)
    check_same(table, result, 1)


def test_data_sequence_numbers_that_are_older_than_their_files_are_kept() -> None:
    """As compaction gives them, so that deletes of meanwhile reach its files."""
    table = kinds(3)
    removed = entries_of(table, "a0", "a1")
    change = RewriteFiles(
        removed=removed, added=(data_file("a01", 20, partition=("a",)),), schema_id=0, data_sequence_number=1
    )
    table = commit(table, change, runtime=table.catalog.runtime).table
    numbers = {e.name: (e.sequence_number, e.file_sequence_number) for e in raw_entries(table)}
    assert numbers["a01"] == (1, None)
    [manifest] = check_same(table, rewrite(table), 1)
    numbers = {e.name: (e.sequence_number, e.file_sequence_number) for e in raw_entries(reload(table))}
    assert numbers["a01"] == (1, 4)
    assert manifest.min_sequence_number == 1


def test_entries_of_deleted_files_and_manifests_that_hold_nothing_else_go() -> None:
    table = kinds(3)
    [file] = list(entries_of(table, "a0"))
    gone = entries_of(table, "a1", "b1", "None1")
    change = RewriteFiles(removed=(file, *gone), added=(), schema_id=0)
    table = commit(table, change, runtime=table.catalog.runtime).table
    assert Counter(e.status for e in raw_entries(table))[2] == 4
    result = rewrite(table)
    [manifest] = check_same(table, result, 1)
    assert manifest.deleted_files_count == manifest.deleted_rows_count == 0
    assert {e.status for e in raw_entries(reload(table))} == {0}


def test_what_was_written_is_kept_where_the_outcome_is_unknown() -> None:
    """Action: testRewriteManifestsWithCommitStateUnknownException."""
    catalog = MemoryCatalog()
    table = memory_table(catalog, spec=BY_KIND)
    for number in range(3):
        table = add(table, data_file(f"a{number}", partition=("a",)))
    catalog.follow(LANDS_BUT_IS_UNKNOWN)
    check_same(table, rewrite(table), 1)
    table = add(add(reload(table), data_file("b", partition=("b",))), data_file("c", partition=("c",)))
    before = stored(catalog)
    catalog.follow(*[IS_UNKNOWN] * 50)
    with pytest.raises(OutcomeUnknownError):
        rewrite(table)
    assert len({path for path in stored(catalog) - before if path.endswith(".avro")}) >= 2


@pytest.mark.parametrize("figure", ["group_gain", "filter_gains"])
def test_a_figure_that_cannot_be_found_out_fails_no_run(figure: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is told by a warning, in a plan as in a run."""
    monkeypatch.setattr(plan, figure, thrown(UnavailableError("the store is away")))
    table = kinds(3)
    for job in (plan.plan_rewrite_manifests, rewrite_manifests):
        listener = Recorder()
        result = job(table, no_spark, workload="kind = 'a'", listener=listener)
        assert counts(result) == (3, 1)
        [warning] = [event.message for event in listener.events if isinstance(event, Warned)]
        assert warning.endswith("is not known: the store is away; the work itself is not affected")
    assert orphans(table.catalog) == set()


def test_what_cannot_be_followed_is_planned_anew() -> None:
    """Nothing of the attempt that failed is left; entries of one version of the format are not those of another."""
    table = kinds(3)
    upgrade_format_version(table, 3)
    listener = Recorder()
    assert counts(rewrite(table, listener=listener)) == (3, 1)
    [warning] = [event.message for event in listener.events if isinstance(event, Warned)]
    assert "planned again: the table has format version 3 now" in warning
    assert len(manifests_of(reload(table))) == 1
    assert sorted(e.data_file.first_row_id for e in entries_of(reload(table))) == [*range(0, 90, 10)]
    assert orphans(table.catalog) == set()
