"""The job on tables in memory whose data files were never written: no Spark is started for what is small.

The Java names in docstrings are those of Iceberg's TestRewriteManifestsAction (action) and ...Procedure (procedure).
"""

import itertools
import struct
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from icekeep.catalog.base import Table
from icekeep.commit.changes.rewrites import RewriteFiles
from icekeep.commit.retry import commit
from icekeep.errors import OutcomeUnknownError, UnavailableError, UsageError
from icekeep.events import StepFinished, Warned
from icekeep.maintenance.manifests import job as plan
from icekeep.maintenance.manifests.job import plan_rewrite_manifests, rewrite_manifests
from icekeep.spec.evolution import AddPartitionField, RemovePartitionField
from icekeep.spec.manifests.structs import DataFile, FileContent, ManifestContent
from icekeep.spec.metadata import new_table_metadata
from icekeep.spec.types import StructType
from icekeep.tables.verbs import update_spec, upgrade_format_version
from kit.cases import for_each
from kit.changes import Recorder, thrown
from kit.manifests import spec_and_schema
from kit.memory_catalog import IS_UNKNOWN, LANDS_BUT_IS_UNKNOWN, MemoryCatalog
from kit.rewritten_manifests import (
    SMALL,
    check_same,
    counts,
    follow,
    kinds,
    our_live_entries,
    position_deletes,
    reload,
    rewrite,
    scattered,
    wide,
    with_deletes,
    with_retired_fields,
    without_counts,
)
from kit.runtime import no_spark, with_runtime
from kit.strategies import data_files, partition_types
from kit.tables import (
    BY_KIND,
    EVENTS,
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
def test_entries_become_existing_and_keep_their_numbers(version: int) -> None:
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
def test_manifests_are_near_the_target_and_do_not_overlap(version: int) -> None:
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


def test_each_spec_and_content_is_a_group_in_one_commit() -> None:
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


def test_delete_manifests_are_merged_and_data_manifest_stays() -> None:
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


def test_row_ids_are_kept_and_assigned_once_after_an_upgrade() -> None:
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
def test_entries_of_an_older_format_version(old: int, new: int) -> None:
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


def test_version_1_list_without_file_counts_is_rewritten() -> None:
    """Iceberg Java refuses those: "No file counts in manifest"."""
    table = without_counts(kinds(3, version=1))
    assert {m.live_files_count for m in manifests_of(table)} == {None}
    result = rewrite(table)
    assert counts(result) == (3, 1)
    check_same(table, result, 1)


def test_older_data_sequence_numbers_are_kept() -> None:
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


def test_deleted_entries_and_empty_manifests_are_dropped() -> None:
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


@VERSIONS
def test_only_the_default_spec_is_rewritten_by_default(version: int) -> None:
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


@pytest.mark.parametrize("drops", [True, False])
def test_dangling_deletes_are_dropped_if_asked(drops: bool) -> None:
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
def test_dry_run_changes_nothing_and_matches_the_run(arguments: dict[str, Any]) -> None:
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


CODECS = ("gzip", "uncompressed", "zstd", "snappy")


@st.composite
def batches(draw: st.DrawFn) -> tuple[StructType, list[list[DataFile]]]:
    """A partition type and the files of some commits; every path is there once."""
    partition = draw(partition_types())
    drawn = draw(st.lists(st.lists(data_files(partition), min_size=1, max_size=4), min_size=2, max_size=4))
    named = [
        [
            replace(file, file_path=f"memory://lake/{place}/{number}", record_count=file.record_count % 1000)
            for number, file in enumerate(batch)
        ]
        for place, batch in enumerate(drawn)
    ]
    return partition, named


def table_of(partition: StructType, version: int, codec: str) -> Table:
    catalog = MemoryCatalog()
    catalog.create_namespace(EVENTS[:-1])
    spec, schema = spec_and_schema(partition)
    properties = {"write.manifest.compression-codec": codec, "commit.manifest-merge.enabled": "false"}
    metadata = new_table_metadata(
        schema=schema,
        spec=spec,
        location=catalog.default_location(EVENTS),
        table_uuid=str(catalog.runtime.new_uuid()),
        now_ms=catalog.runtime.now_ms(),
        properties=properties,
        format_version=version,
    )
    return catalog.create(EVENTS, metadata)


@pytest.mark.slow
@given(batches(), st.integers(1, 3), st.booleans(), st.sampled_from(CODECS))
def test_every_field_of_every_entry_is_kept(
    drawn: tuple[StructType, list[list[DataFile]]], version: int, is_upgraded: bool, codec: str
) -> None:
    partition, files = drawn
    table = table_of(partition, version, codec)
    for batch in files[:-1]:
        table = add(table, *batch)
    if is_upgraded and version < 3:
        table = upgrade_format_version(table, version + 1)
    table = add(table, *files[-1])
    before = our_live_entries(table)
    assert before.total() == sum(map(len, files))
    assert counts(rewrite(table)) == (len(files), 1)
    after = reload(table)
    assert our_live_entries(after) == before
    assert len(manifests_of(after)) == 1
    assert counts(rewrite(after)) == (0, 0)
