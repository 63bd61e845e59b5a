"""What a snapshot says of itself, and what commits write for tables of each format version (spec, Appendix E)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from msgspec.structs import replace

from icekeep import __version__, runs
from icekeep.catalog.base import Table
from icekeep.commit.changes.files import AppendFiles
from icekeep.commit.changes.rewrites import RewriteFiles, RewriteManifests
from icekeep.commit.retry import commit
from icekeep.commit.summary import COMMIT_ID, SummaryBuilder, made_by, producer_keys, run_of
from icekeep.runs import Run
from icekeep.spec.manifests.structs import FileContent
from icekeep.spec.manifests.write import write_manifest_list
from icekeep.spec.metadata import metadata_to_json
from icekeep.spec.updates import UpgradeFormatVersion
from kit.cases import for_each
from kit.changes import Applying
from kit.tables import (
    add,
    data_file,
    entries_of,
    files,
    live,
    manifests_of,
    memory_table,
    raw,
    raw_list,
    staged_manifest,
    swap,
)

TOTALS = {
    "total-records": "1000",
    "total-files-size": "50000",
    "total-data-files": "40",
    "total-delete-files": "3",
    "total-position-deletes": "7",
    "total-equality-deletes": "0",
}
POSITION_DELETES = replace(data_file("p", 5), content=FileContent.POSITION_DELETES)
EQUALITY_DELETES = replace(data_file("e", 2), content=FileContent.EQUALITY_DELETES)
DELETION_VECTOR = replace(POSITION_DELETES, file_format="puffin")


def counted(added=(), removed=(), parent=TOTALS, operation="overwrite", **extra):
    builder = SummaryBuilder({key.replace("_", "-"): value for key, value in extra.items()})
    for file in added:
        builder.add(file)
    for file in removed:
        builder.remove(file)
    return builder.build(operation, parent, "c-1")


def test_a_first_append_counts_from_nothing():
    assert counted([data_file("a", 10), data_file("b", 5)], parent=None, operation="append") == {
        "operation": "append",
        COMMIT_ID: "c-1",
        "added-data-files": "2",
        "added-records": "15",
        "added-files-size": "150",
        "changed-partition-count": "1",
        "total-records": "15",
        "total-files-size": "150",
        "total-data-files": "2",
        "total-delete-files": "0",
        "total-position-deletes": "0",
        "total-equality-deletes": "0",
    }


def test_what_is_zero_is_left_out_but_for_totals():
    summary = counted([data_file("empty", 0)], [data_file("void", 0)], parent=None)
    assert {key: value for key, value in summary.items() if not key.startswith("total-")} == {
        "operation": "overwrite",
        COMMIT_ID: "c-1",
        "added-data-files": "1",
        "deleted-data-files": "1",
        "changed-partition-count": "1",
    }
    assert summary["total-records"] == "0"


def test_rewrite_counts_both_sides_in_totals():
    summary = counted([data_file("new", 20)], [data_file("a", 12), data_file("b", 8)], operation="replace")
    assert {key: value for key, value in summary.items() if key.startswith(("added", "deleted", "removed"))} == {
        "added-data-files": "1",
        "added-records": "20",
        "added-files-size": "200",
        "deleted-data-files": "2",
        "deleted-records": "20",
        "removed-files-size": "200",
    }
    assert {key: summary[key] for key in TOTALS} == {**TOTALS, "total-data-files": "39"}


def test_replace_without_files_carries_totals_over():
    # seaweedfs PR #10420: a maintenance commit left total-records out, and every later one had none to count on.
    summary = counted(operation="replace", manifests_created="1")
    assert summary == {"operation": "replace", COMMIT_ID: "c-1", "manifests-created": "1", **TOTALS}


@for_each("missing", sorted(TOTALS))
@for_each("bad", [None, "", "many", "-5", "1.5", "²"])
def test_a_total_that_the_parent_does_not_have_is_not_invented(missing, bad):
    parent = {key: value for key, value in TOTALS.items() if key != missing} | ({} if bad is None else {missing: bad})
    summary = counted([data_file("a"), POSITION_DELETES, EQUALITY_DELETES], parent=parent)
    assert missing not in summary
    assert TOTALS.keys() - {missing} <= summary.keys()


def test_a_parent_without_a_summary_is_not_the_same_as_no_parent():
    assert not TOTALS.keys() & counted([data_file("a")], parent={}).keys()
    assert TOTALS.keys() <= counted([data_file("a")], parent=None).keys()


def test_negative_total_is_dropped_and_zero_kept():
    few = {**TOTALS, "total-records": "9", "total-data-files": "1", "total-files-size": "100"}
    summary = counted(removed=[data_file("a", 10)], parent=few, operation="delete")
    assert "total-records" not in summary
    assert (summary["total-data-files"], summary["total-files-size"]) == ("0", "0")


@pytest.mark.parametrize(
    ("file", "added", "removed"),
    [
        (
            POSITION_DELETES,
            {"added-position-delete-files": "1", "added-position-deletes": "5"},
            {"removed-position-delete-files": "1", "removed-position-deletes": "5"},
        ),
        (
            EQUALITY_DELETES,
            {"added-equality-delete-files": "1", "added-equality-deletes": "2"},
            {"removed-equality-delete-files": "1", "removed-equality-deletes": "2"},
        ),
        (
            DELETION_VECTOR,
            {"added-dvs": "1", "added-position-deletes": "5"},
            {"removed-dvs": "1", "removed-position-deletes": "5"},
        ),
    ],
)
def test_delete_files_are_counted_by_kind_and_never_as_data(file, added, removed):
    size = str(file.file_size_in_bytes)
    for verb, expected, summary in (("added", added, counted([file])), ("removed", removed, counted(removed=[file]))):
        own = {key: value for key, value in summary.items() if key.startswith(("added", "deleted", "removed"))}
        assert own == {f"{verb}-delete-files": "1", f"{verb}-files-size": size, **expected}
    assert counted([file])["total-delete-files"] == "4"
    assert counted(removed=[file])["total-delete-files"] == "2"


def test_partitions_that_change_are_counted_once_and_by_spec():
    files = [
        data_file("a", partition=("x",)),
        data_file("b", partition=("x",)),
        data_file("c", partition=("y",)),
        data_file("d", partition=("y",), spec_id=1),
        data_file("e", partition=(None,)),
    ]
    assert counted(files[:3], files[3:])["changed-partition-count"] == "4"
    assert counted(files[3:], files[:3])["changed-partition-count"] == "4"
    assert "changed-partition-count" not in counted()


def test_what_a_caller_adds_cannot_pass_for_what_we_say():
    builder = SummaryBuilder({"operation": "x", COMMIT_ID: "x", "added-records": "x", "mine": "1"})
    builder.add(data_file("a"))
    summary = builder.build("overwrite", None, "c-1")
    assert (summary["operation"], summary[COMMIT_ID], summary["added-records"]) == ("overwrite", "c-1", "10")
    assert summary["mine"] == "1"


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 10**12)), max_size=20), st.integers(0, 10**15))
def test_totals_are_the_parents_plus_what_came_minus_what_went(steps, before):
    files = [data_file(str(number), records) for number, (_, records) in enumerate(steps)]
    added = [file for (is_added, _), file in zip(steps, files, strict=True) if is_added]
    removed = [file for (is_added, _), file in zip(steps, files, strict=True) if not is_added]
    summary = counted(added, removed, parent={"total-records": str(before)})
    after = before + sum(f.record_count for f in added) - sum(f.record_count for f in removed)
    assert summary.get("total-records") == (str(after) if after >= 0 else None)


def test_all_nans_are_one_partition_and_the_two_zeros_are_two():
    nans = [data_file(name, partition=(float("nan"),)) for name in "ab"]
    zeros = [data_file("c", partition=(0.0,)), data_file("d", partition=(-0.0,))]
    assert counted(nans)["changed-partition-count"] == "1"
    assert counted([*nans, *zeros])["changed-partition-count"] == "3"


COMMIT = "Apache Iceberg 1.9.0 (commit 7dbafb438ee1e68d0047bebcb587265d7d87d8a1)"


@for_each(
    ("summary", "expected"),
    [
        (None, None),
        ({}, None),
        ({"operation": "append", "added-records": "3"}, None),
        ({"icekeep.commit-id": "5c0a"}, "icekeep"),
        ({"icekeep.job": "compact"}, "icekeep"),
        ({"spark.app.id": "local-1"}, "Spark, application local-1"),
        (
            {"engine-name": "spark", "engine-version": "3.5.5", "app-id": "a-1", "iceberg-version": COMMIT},
            "Spark 3.5.5, application a-1, Iceberg 1.9.0",
        ),
        # Iceberg's own library writes both; the application is told once.
        ({"engine-name": "spark", "app-id": "a-1", "spark.app.id": "a-1"}, "Spark, application a-1"),
        ({"trino_query_id": "2026_1", "trino_user": "ana"}, "Trino, query 2026_1"),
        ({"presto_query_id": "2026_2"}, "Presto, query 2026_2"),
        ({"flink.job-id": "77f", "flink.operator-id": "o1"}, "Flink, job 77f"),
        ({"kafka.connect.offsets.control-t.cg": "{}"}, "Kafka Connect"),
        ({"engine-name": "Dremio", "engine-version": "26.0"}, "Dremio 26.0"),
        ({"iceberg-version": COMMIT}, "Iceberg 1.9.0"),
        # Another engine that kept what it found in a summary of ours.
        ({"engine-name": "hive", "icekeep.commit-id": "5c0a"}, "Hive"),
        (
            {"engine-name": "hive", "icekeep.run-id": "compact-1", "icekeep.policy": "p", "app-id": "a"},
            "Hive, application a",
        ),
        ({"engine-name": "", "spark.app.id": ""}, "Spark"),
        ({"engine-name": "icekeep", "engine-version": "0.2.0", "app-id": "a-1"}, "icekeep 0.2.0, application a-1"),
        ({"engine-name": "icekeep", "icekeep.run-id": "compact-1", "app-id": "a-1"}, "icekeep, run compact-1"),
        ({"icekeep.job": "repair", "icekeep.run": "repair-1"}, "icekeep, run repair-1"),
        ({"icekeep.run-id": "compact-1", "icekeep.policy": "nightly"}, "icekeep, run compact-1, policy nightly"),
    ],
)
def test_who_made_a_snapshot_is_told_by_the_keys_of_its_summary(summary, expected):
    assert made_by(summary) == expected


def test_a_commit_of_a_run_says_who_made_it(monkeypatch):
    monkeypatch.setattr(runs._Application, "id", None)
    run = Run(run_id="compact-1", job="compact", policy="nightly", parent_id="maintain-1")
    own = {"engine-name": "icekeep", "engine-version": __version__}
    assert producer_keys(None) == own
    told = {**own, "icekeep.job": "compact", "icekeep.run-id": "compact-1", "icekeep.policy": "nightly"}
    assert producer_keys(run) == told
    runs.note_application("app-1")
    assert producer_keys(run) == {**told, "app-id": "app-1"}
    assert producer_keys(structs.replace(run, app_id="app-2"))["app-id"] == "app-2"


@pytest.mark.parametrize("key", ["icekeep.run-id", "icekeep.run"])
def test_run_id_is_read_under_old_and_new_key(key):
    assert run_of({key: "repair-1"}) == "repair-1"
    assert run_of({}) == run_of(None) == ""


VERSIONS = pytest.mark.parametrize("version", [1, 2, 3])


def rewritten(table: Table, removed: tuple[str, ...], new: str) -> Table:
    entries = entries_of(table, *removed)
    records = sum(e.data_file.record_count for e in entries)
    change = RewriteFiles(removed=entries, added=(data_file(new, records),), schema_id=table.metadata.current_schema_id)
    return commit(table, change, runtime=table.catalog.runtime).table


def with_one_manifest(table: Table) -> Table:
    staged = staged_manifest(table, entries_of(table), f"optimized-m-{len(table.metadata.snapshots)}")
    change = RewriteManifests(replaced=tuple(manifests_of(table)), added=(staged,))
    return commit(table, change, runtime=table.catalog.runtime).table


def row_ids(table: Table) -> dict[str, range]:
    """The ids that inheritance gives to the rows of each live file."""
    return {
        e.data_file.file_path.rsplit("/", 1)[-1]: range(
            e.data_file.first_row_id, e.data_file.first_row_id + e.data_file.record_count
        )
        for e in entries_of(table)
    }


@VERSIONS
def test_every_change_is_committed_to_a_table_of_every_version(version: int):
    table = add(add(memory_table(format_version=version), "a", "b"), "c")
    table = rewritten(table, ("a", "c"), "ac")
    assert live(table) == {"b": 1, "ac": 1}
    table = with_one_manifest(table)
    assert live(table) == {"b": 1, "ac": 1}
    assert table.metadata.current_snapshot.summary["total-records"] == "30"


# Version 1.


def test_version_1_has_no_sequence_numbers_anywhere():
    table = rewritten(add(add(memory_table(format_version=1), "a"), "b"), ("a",), "c")
    written = metadata_to_json(table.metadata)
    assert "last-sequence-number" not in written
    assert all("sequence-number" not in snapshot for snapshot in written["snapshots"])
    for row in raw_list(table):
        assert row.keys().isdisjoint({"sequence_number", "min_sequence_number", "content", "first_row_id"})
        for entry in raw(table, row["manifest_path"]):
            assert entry.keys() == {"status", "snapshot_id", "data_file"}
            assert entry["data_file"].keys().isdisjoint({"content", "equality_ids", "first_row_id"})
    assert {e.sequence_number for e in entries_of(table)} == {0}


def test_version_1_entries_say_which_snapshot_added_them():
    table = add(memory_table(format_version=1), "a")
    (row,) = raw_list(table)
    (entry,) = raw(table, row["manifest_path"])
    assert entry["snapshot_id"] == row["added_snapshot_id"] == table.metadata.current_snapshot_id


def test_version_1_files_have_the_block_size_that_nobody_reads():
    (row,) = raw_list(add(memory_table(format_version=1), "a"))
    assert raw(add(memory_table(format_version=1), "a"), row["manifest_path"])[0]["data_file"][
        "block_size_in_bytes"
    ] == (64 << 20)


# Upgrades.


def upgraded(table: Table, version: int) -> Table:
    return swap(table, UpgradeFormatVersion(version))


def test_files_of_version_1_have_sequence_number_0():
    table = add(upgraded(add(memory_table(format_version=1), "a"), 2), "b")
    assert {e.data_file.file_path[-1]: e.sequence_number for e in entries_of(table)} == {"a": 0, "b": 1}
    table = rewritten(table, ("b",), "c")
    assert {e.data_file.file_path[-1]: e.sequence_number for e in entries_of(table)} == {"a": 0, "c": 2}


def test_the_first_commit_in_version_3_numbers_older_rows():
    old = upgraded(add(add(memory_table(), "a"), "b"), 3)
    assert old.metadata.next_row_id == 0
    assert {e.data_file.first_row_id for e in entries_of(old)} == {None}
    table = add(old, "c")
    assert row_ids(table) == {"c": range(10), "b": range(10, 20), "a": range(20, 30)}
    assert table.metadata.next_row_id == 30
    assert table.metadata.current_snapshot.first_row_id == 0
    assert table.metadata.current_snapshot.added_rows == 30


def test_missing_counts_are_completed_before_numbering():
    old = upgraded(add(memory_table(format_version=1), "a"), 3)
    without_counts(old)
    table = add(old, "b")
    assert row_ids(table) == {"b": range(10), "a": range(10, 20)}


def without_counts(table: Table) -> None:
    """Make the counts of the current manifest list null, as writers of version 1 may leave them."""
    location = table.metadata.current_snapshot.manifest_list
    bare = [
        replace(m, added_files_count=None, added_rows_count=None, existing_rows_count=None) for m in manifests_of(table)
    ]
    data = write_manifest_list(bare, table.metadata.current_snapshot, format_version=1)
    table.storage.delete_many([location])
    table.storage.create(location, data)


# Row lineage.


def test_rows_are_numbered_from_the_next_row_id_of_the_table():
    table = add(add(memory_table(format_version=3), data_file("a", 5), data_file("b", 7)), data_file("c", 3))
    assert row_ids(table) == {"a": range(5), "b": range(5, 12), "c": range(12, 15)}
    assert [s.first_row_id for s in table.metadata.snapshots] == [0, 12]
    assert [s.added_rows for s in table.metadata.snapshots] == [12, 3]
    assert table.metadata.next_row_id == 15


def test_row_ids_survive_manifest_rewrite():
    table = add(add(memory_table(format_version=3), "a", "b"), "c")
    before = row_ids(table)
    table = rewritten(table, ("a",), "d")
    assert {name: ids for name, ids in row_ids(table).items() if name != "d"} == {
        name: ids for name, ids in before.items() if name != "a"
    }
    assert row_ids(with_one_manifest(table)) == row_ids(table)


def test_deleted_entries_keep_the_row_ids_that_their_files_had():
    table = rewritten(add(memory_table(format_version=3), "a", "b"), ("b",), "c")
    records = [r for row in raw_list(table) for r in raw(table, row["manifest_path"])]
    assert {r["data_file"]["file_path"][-1]: r["data_file"]["first_row_id"] for r in records} == {
        "a": 0,
        "b": 10,
        "c": None,
    }


def test_retry_takes_row_ids_from_new_base():
    table = add(memory_table(format_version=3), "a")
    late = Applying(AppendFiles(files=files("late")), attempt_1=lambda: add(table, "other"))
    after = commit(table, late, runtime=table.catalog.runtime).table
    assert len(late.bases) == 2
    assert row_ids(after) == {"a": range(10), "other": range(10, 20), "late": range(20, 30)}
    assert [s.first_row_id for s in after.metadata.snapshots] == [0, 10, 20]


@pytest.mark.slow
@given(st.lists(st.sampled_from(["append", "rewrite", "manifests"]), max_size=6))
def test_no_row_id_is_ever_given_twice(steps: list[str]):
    table = add(memory_table(format_version=3), "0", "1")
    given_ids: dict[str, range] = row_ids(table)
    for number, step in enumerate(steps):
        names = sorted(live(table))
        if step == "append":
            table = add(table, f"n{number}", f"m{number}")
        elif step == "rewrite":
            table = rewritten(table, tuple(names[:2]), f"n{number}")
        else:
            table = with_one_manifest(table)
        for name, ids in row_ids(table).items():
            assert given_ids.setdefault(name, ids) == ids
            assert ids.stop <= table.metadata.next_row_id
    taken = [row_id for ids in given_ids.values() for row_id in ids]
    assert len(set(taken)) == len(taken)
