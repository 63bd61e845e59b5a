"""What `plan_scan` reads and says, without Spark, and the tasks of its plan."""

import math
import pickle
import subprocess
import sys
from collections import Counter
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icekeep.commit.changes.deletes import RowDelta
from icekeep.commit.changes.files import AppendFiles
from icekeep.commit.retry import commit
from icekeep.errors import InvalidTableError, UsageError
from icekeep.planning import decoder
from icekeep.planning.decoder import NotReadError
from icekeep.planning.entries import DecodedEntries, PruningStats
from icekeep.planning.scan.plan import VERSION_ARGUMENTS, bound_filter, chosen_version, select_manifests
from icekeep.planning.scan.report import LARGEST_COUNT, DeletesInUse, ScanTotals, SizeDistribution, plan_scan
from icekeep.planning.scan.tasks import (
    ReadOptions,
    Split,
    adapted_target_size,
    file_splits,
    read_options,
    sharing_deletes,
    split_tasks,
)
from icekeep.spec.collections import PositionSet, is_stretch, unpacked_positions
from icekeep.spec.filters.binding import bind
from icekeep.spec.filters.expressions import ALWAYS_TRUE
from icekeep.spec.filters.parsing import parse_where
from icekeep.spec.manifests.structs import DataFile, FileContent, ManifestContent, ManifestFile
from icekeep.spec.partitioning import PartitionField, PartitionSpec
from icekeep.spec.schema import Schema
from icekeep.spec.transforms import Day
from icekeep.spec.types import LONG, MIB, TIMESTAMPTZ, NestedField
from kit.cases import for_each
from kit.examples import check_examples
from kit.lake import Lake
from kit.metadata import DAY_MS, SCHEMA, START_MS, MetadataBuilder
from kit.runtime import no_spark
from kit.shell import ROOT
from kit.storage import HookedStorage

LATER = Schema(
    schema_id=SCHEMA.schema_id + 1, fields=(*SCHEMA.fields, NestedField(field_id=3, name="later", type=LONG))
)


def history() -> MetadataBuilder:
    """Snapshots 1 and 2 of the first schema with a branch and a tag on 2, 3 of a later schema; a day apart each."""
    return MetadataBuilder().commits(2).branch("audit", at=2).tag("v2", at=2).schema(LATER).commits(1)


@for_each(
    ("arguments", "snapshot_id", "schema"),
    [
        ({}, 3, LATER),
        ({"ref": None}, 3, LATER),
        ({"ref": "main"}, 3, LATER),
        ({"ref": "audit"}, 2, LATER),
        ({"ref": "v2"}, 2, SCHEMA),
        ({"snapshot_id": 1}, 1, SCHEMA),
        ({"snapshot_id": 3}, 3, LATER),
        ({"as_of": START_MS}, 1, SCHEMA),
        ({"as_of": START_MS + DAY_MS - 1}, 1, SCHEMA),
        ({"as_of": START_MS + DAY_MS}, 2, SCHEMA),
        ({"as_of": START_MS + 90 * DAY_MS}, 3, LATER),
    ],
)
def test_branch_uses_table_schema_and_others_their_snapshot(
    arguments: dict[str, Any], snapshot_id: int, schema: Schema
) -> None:
    version = chosen_version(history().build(), 0, **arguments)
    assert version.snapshot is not None
    assert (version.snapshot.snapshot_id, version.schema, version.appended_by) == (snapshot_id, schema, None)


def test_as_of_uses_history_of_main() -> None:
    """A moment is looked up in what main was then, not in commit times of other snapshots."""
    metadata = MetadataBuilder().commits(3).roll_back(to=1).build()
    at = [chosen_version(metadata, 0, as_of=START_MS + days * DAY_MS).snapshot for days in (2, 3)]
    assert [snapshot and snapshot.snapshot_id for snapshot in at] == [3, 1]
    ago = chosen_version(metadata, START_MS + 3 * DAY_MS, as_of=timedelta(days=1)).snapshot
    assert ago == at[0]


def test_incremental_scan_reads_appends_in_range() -> None:
    metadata = MetadataBuilder().commits(5).build()
    snapshots = [
        msgspec.structs.replace(s, summary={"operation": "replace" if s.snapshot_id == 3 else "append"})
        for s in metadata.snapshots
    ]
    metadata = msgspec.structs.replace(metadata, snapshots=tuple(snapshots))
    version = chosen_version(metadata, 0, start_snapshot_id=1, end_snapshot_id=4)
    assert [s.snapshot_id for s in version.appended_by or ()] == [2, 4]
    assert [s.snapshot_id for s in chosen_version(metadata, 0, start_snapshot_id=3).appended_by or ()] == [4, 5]
    assert chosen_version(metadata, 0, start_snapshot_id=5).appended_by == ()


def test_the_arguments_are_those_that_the_job_has_flags_for() -> None:
    from icekeep.operations.jobs import JOBS

    assert {*VERSION_ARGUMENTS} < {setting.argument for setting in JOBS["plan_scan"].settings}


MOMENT_MS = 1_772_281_845_678
TIMES = Schema(schema_id=1, fields=(NestedField(field_id=3, name="ts", type=TIMESTAMPTZ),))
SPEC = PartitionSpec(spec_id=1, fields=(PartitionField(source_id=3, field_id=1000, name="ts_day", transform=Day()),))
TABLE = MetadataBuilder().schema(TIMES).spec(SPEC).build()


def test_text_filter_uses_job_moment_and_scan_schema():
    expected = bind(parse_where("ts >= '2026-02-27T00:00:00Z' AND ts < '2026-02-28T12:30:45.678Z'"), TIMES)
    assert bound_filter("ts >= today - 1 AND ts < now", TABLE, TIMES, MOMENT_MS) == expected
    assert bound_filter(parse_where("ts >= today - 1 AND ts < now", MOMENT_MS), TABLE, TIMES, 0) == expected


@pytest.mark.parametrize("where", [None, "ts < now"])
def test_manifest_of_unknown_spec_is_invalid_table(where):
    rows = ALWAYS_TRUE if where is None else bound_filter(where, TABLE, TIMES, MOMENT_MS)
    manifest = ManifestFile(
        manifest_path="m", manifest_length=1, partition_spec_id=7, content=ManifestContent.DATA, added_snapshot_id=1
    )
    with pytest.raises(InvalidTableError, match="has no partition spec 7"):
        select_manifests(TABLE, TIMES, [manifest], rows)


def test_examples():
    check_examples("planning/scan/plan.txt", globals())


SIZES = st.lists(st.integers(0, 1 << 45), min_size=1, max_size=60)


def decoded(files: list[tuple[str, int, int, bytes]], spec_id: int = 0) -> DecodedEntries:
    """Files as (path, bytes, rows, partition), none of them dropped."""
    paths, sizes, records, partitions = ([*column] for column in zip(*files, strict=True)) if files else ([],) * 4
    rows = pa.record_batch(
        {
            "spec_id": pa.array([spec_id] * len(files), pa.int32()),
            "partition": pa.array(partitions, pa.binary()),
            "file_path": pa.array(paths, pa.string()),
            "record_count": pa.array(records, pa.int64()),
            "file_size_in_bytes": pa.array(sizes, pa.int64()),
        }
    )
    count, size = len(files), sum(sizes)
    return DecodedEntries(rows, PruningStats(count + 2, size + 20, count + 1, size + 10, count, size))


def tallied(*batches: DecodedEntries) -> ScanTotals:
    tally = ScanTotals()
    for batch in batches:
        tally.add(batch)
    return tally


@given(SIZES)
def test_quantiles_are_within_one_percent(sizes: list[int]) -> None:
    distribution = SizeDistribution()
    distribution.add(np.array(sizes))
    assert (distribution.least, distribution.greatest, distribution.count) == (min(sizes), max(sizes), len(sizes))
    exact = sorted(sizes)[(len(sizes) + 1) // 2 - 1]
    assert distribution.quantile(0.5) == pytest.approx(exact, rel=0.011, abs=1)
    assert distribution.quantile(1.0) == pytest.approx(max(sizes), rel=0.011, abs=1)


@given(SIZES, SIZES)
def test_distributions_add_up(some: list[int], others: list[int]) -> None:
    one, two, both = SizeDistribution(), SizeDistribution(), SizeDistribution()
    one.add(np.array(some))
    two.add(np.array(others))
    both.add(np.array(some + others))
    one.merge(two)
    assert [one.quantile(share) for share in (0.1, 0.5, 0.9)] == [both.quantile(share) for share in (0.1, 0.5, 0.9)]
    assert (one.least, one.greatest, one.count) == (both.least, both.greatest, both.count)


def test_nothing_has_no_quantiles() -> None:
    empty = SizeDistribution()
    empty.add(np.array([], dtype=np.int64))
    empty.merge(SizeDistribution())
    assert (empty.quantile(0.5), empty.least, empty.greatest) == (None, None, None)


FILES = st.lists(
    st.tuples(
        st.integers(0, 10**6).map("file:/t/{}".format),
        st.integers(0, 1 << 40),
        st.integers(0, 10**9),
        st.sampled_from([b"", b"a", b"b"]),
    ),
    max_size=30,
    unique_by=lambda file: file[0],
)


@given(FILES, FILES)
def test_totals_of_tasks_add_up(
    some: list[tuple[str, int, int, bytes]], others: list[tuple[str, int, int, bytes]]
) -> None:
    one, two = tallied(decoded(some)), tallied(decoded(others, spec_id=1))
    one.merge(pickle.loads(pickle.dumps(two)))
    everything = some + others
    count, total = len(everything), sum(size for _, size, _, _ in everything)
    assert one.steps == PruningStats(count + 4, total + 40, count + 2, total + 20, count, total)
    assert one.record_count == sum(records for _, _, records, _ in everything)
    largest = sorted(((size, path) for path, size, _, _ in everything), reverse=True)[:LARGEST_COUNT]
    assert [file.bytes for file in one.largest] == [size for size, _ in largest]
    expected = {(spec, p) for spec, files in ((0, some), (1, others)) for _, _, _, p in files}
    assert len(one.bytes_by_partition) == len(expected)
    by_partition = {
        (spec, p): sum(size for _, size, _, q in files if p == q)
        for spec, files in ((0, some), (1, others))
        for _, _, _, p in files
    }
    assert one.bytes_by_partition == by_partition


def test_the_largest_files_are_kept_over_many_batches() -> None:
    batches = [decoded([(f"f{n}-{k}", n * 100 + k, 1, b"") for k in range(50)]) for n in (3, 1, 2)]
    assert [file.file_path for file in tallied(*batches).largest[:3]] == ["f3-49", "f3-48", "f3-47"]


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path)


def described(lake: Lake, name: str, **changes: Any) -> DataFile:
    facts = {"file_format": "PARQUET", "spec_id": 0, "record_count": 10, "file_size_in_bytes": 100}
    return DataFile(file_path=f"{lake.location()}/data/{name}", **{**facts, **changes})


def test_a_plan_with_deletes_reads_each_manifest_once(lake: Lake) -> None:
    table = lake.create(partition_by=())
    for number in range(3):
        table = commit(table, AppendFiles(files=(described(lake, f"f{number}"),))).table
    everywhere = described(lake, "e", content=FileContent.EQUALITY_DELETES, record_count=1, equality_ids=(1,))
    table = commit(table, RowDelta(added_deletes=(everywhere,))).table
    reads: Counter[str] = Counter()
    storage: Any = HookedStorage(table.storage, before=lambda _, location: reads.update([location]))  # type: ignore[arg-type]
    result = plan_scan(msgspec.structs.replace(table, storage=storage), no_spark)
    assert result.deletes == DeletesInUse(
        equality_delete_files_count=1, equality_delete_files_bytes=100, equality_delete_files_record_count=1
    )
    assert (result.data_files_count, result.record_count, result.partitions_count) == (3, 30, 1)
    assert sorted(reads.values()) == [1] * 5


def test_a_plan_says_which_manifests_were_read_slowly(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    table = lake.filled(commits=2)
    assert plan_scan(table, no_spark).reading.endswith("is installed")

    def fail(*_: Any) -> pa.RecordBatch:
        raise NotReadError("a release that reads nothing")

    monkeypatch.setattr(decoder, "_read_whole", fail)
    slow = plan_scan(table, no_spark)
    assert slow.reading.endswith("is installed; 2 manifests by fastavro, as it failed on them")
    assert slow.slow_manifests_count == 2


@pytest.mark.process
def test_to_import_planning_imports_neither_pandas_nor_spark() -> None:
    code = "import sys, icekeep.planning.scan.report; print(*{name.partition('.')[0] for name in sys.modules})"
    done = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": str(ROOT / "lib")}, capture_output=True, text=True, check=True
    )
    assert not {*done.stdout.split()} & {"pandas", "pyspark", "py4j"}


def test_read_options_have_iceberg_defaults():
    assert read_options({}) == ReadOptions(
        split_target_bytes=134217728, planning_lookback=10, open_file_cost_bytes=4194304, is_adaptive=True
    )


def test_each_property_is_read():
    properties = {
        "read.split.target-size": "1000",
        "read.split.planning-lookback": "+3",
        "read.split.open-file-cost": "0",
        "read.split.adaptive-size.enabled": "False",
        "read.split.metadata-target-size": "of no concern",
    }
    assert read_options(properties) == ReadOptions(
        split_target_bytes=1000, planning_lookback=3, open_file_cost_bytes=0, is_adaptive=False
    )
    assert read_options({"read.split.adaptive-size.enabled": "TRUE"}).is_adaptive


@for_each(
    ("key", "text"),
    [
        ("read.split.target-size", "0"),
        ("read.split.target-size", "128MB"),
        ("read.split.target-size", "-1"),
        ("read.split.planning-lookback", "0"),
        ("read.split.planning-lookback", ""),
        ("read.split.open-file-cost", "-1"),
        ("read.split.open-file-cost", "1.5"),
        ("read.split.adaptive-size.enabled", "yes"),
    ],
)
def test_a_property_that_cannot_be_is_refused_by_name(key, text):
    with pytest.raises(UsageError, match=f"table property '{key}' is '{text}'; set ") as caught:
        read_options({key: text})
    assert caught.value.facts == {"property": key}


@for_each("file_format", ["PARQUET", "parquet", "ORC", "AVRO"])
def test_files_split_at_offsets_or_by_size(file_format):
    assert file_splits(file_format, 100, (4, 60, 90), 30) == ((0, 60), (60, 30), (90, 10))
    assert file_splits(file_format, 100, (4,), 30) == ((0, 100),)
    assert file_splits(file_format, 100, None, 30) == ((0, 30), (30, 30), (60, 30), (90, 10))
    assert file_splits(file_format, 60, (), 30) == ((0, 30), (30, 30))
    assert file_splits(file_format, 10, None, 30) == ((0, 10),)


@for_each("offsets", [(60, 4), (4, 4), (4, 100), (4, 60, 120), (-4, 60)])
def test_offsets_that_cannot_be_true_are_not_cut_at(offsets):
    assert file_splits("PARQUET", 100, offsets, 50) == ((0, 50), (50, 50))


def test_files_of_other_formats_and_empty_files_have_one_split():
    assert file_splits("puffin", 100, (4, 60), 30) == ((0, 100),)
    assert file_splits("lance", 100, None, 30) == ((0, 100),)
    assert file_splits("PARQUET", 0, None, 30) == file_splits("lance", 0, None, 30) == ((0, 0),)


@given(
    st.sampled_from(["PARQUET", "ORC", "avro", "other"]),
    st.integers(0, 300),
    st.none() | st.lists(st.integers(-2, 310), max_size=6).map(sorted) | st.lists(st.integers(0, 300), max_size=4),
    st.integers(1, 400),
)
def test_every_byte_of_a_file_is_in_exactly_one_split(file_format, size, offsets, target):
    splits = file_splits(file_format, size, offsets, target)
    assert splits[0][0] == 0
    assert all(start + length == following for (start, length), (following, _) in pairwise(splits))
    assert sum(splits[-1]) == size
    assert size == 0 or all(length > 0 for _, length in splits)


def file_of(size, *, split_offsets=None, deletes_bytes=0, deletes_count=0):
    """A planned file; its deletes have `deletes_bytes` together."""
    first = {"file_size_in_bytes": 0, "content_size_in_bytes": deletes_bytes}
    others = [{"file_size_in_bytes": 0, "content_size_in_bytes": None}] * (deletes_count - 1)
    return {
        "file_format": "PARQUET",
        "file_size_in_bytes": size,
        "split_offsets": split_offsets,
        "deletes": [first, *others] if deletes_count else None,
        "key_metadata": None,
    }


def weight_of(split, cost):
    deletes = split.file["deletes"] or []
    deletes_bytes = sum(one["content_size_in_bytes"] or 0 for one in deletes)
    return max(split.length + deletes_bytes, (1 + len(deletes)) * cost)


def test_adjacent_splits_of_one_file_are_merged():
    a, b = file_of(100, split_offsets=(4, 30, 60)), file_of(100, split_offsets=(4, 30, 60))
    assert a == b
    [task] = split_tasks([a, b], ReadOptions(open_file_cost_bytes=1), 1000)
    assert [(split.file is a, split.start, split.length) for split in task] == [(True, 0, 100), (False, 0, 100)]
    assert list(split_tasks([], ReadOptions())) == []


def test_row_groups_become_tasks_of_about_the_target():
    big = file_of(100, split_offsets=(4, 30, 60, 80))
    small = file_of(20)
    tasks = split_tasks([big, small], ReadOptions(open_file_cost_bytes=1), 60)
    assert list(tasks) == [[Split(big, 0, 60)], [Split(big, 60, 40), Split(small, 0, 20)]]


def test_deletes_and_the_cost_of_opening_fill_a_task():
    for cost, deletes, expected in (
        (1, (30, 1), [2, 1]),
        (40, (30, 1), [1, 1, 1]),
        (20, (5, 2), [1, 1, 1]),
        (30, (0, 0), [2, 1]),
    ):
        files = [file_of(10, deletes_bytes=deletes[0], deletes_count=deletes[1]) for _ in "abc"]
        options = ReadOptions(split_target_bytes=80, open_file_cost_bytes=cost)
        assert [len(task) for task in split_tasks(files, options)] == expected


_FILES = st.lists(
    st.builds(
        lambda size, cuts, deletes: file_of(
            size,
            split_offsets=sorted({c for c in cuts if c < size}) or None,
            deletes_bytes=deletes * 5,
            deletes_count=deletes,
        ),
        st.integers(0, 200),
        st.lists(st.integers(0, 200), max_size=4),
        st.integers(0, 3),
    ),
    max_size=8,
)


@given(_FILES, st.integers(10, 120), st.integers(1, 4), st.integers(0, 20))
def test_every_byte_of_every_file_is_in_exactly_one_task(files, target, lookback, cost):
    options = ReadOptions(split_target_bytes=target, planning_lookback=lookback, open_file_cost_bytes=cost)
    tasks = list(split_tasks(files, options))
    for file in files:
        pieces = sorted((s.start, s.length) for task in tasks for s in task if s.file is file)
        assert pieces[0][0] == 0
        assert all(start + length == following for (start, length), (following, _) in pairwise(pieces))
        assert sum(pieces[-1]) == file["file_size_in_bytes"]
    for task in tasks:
        touching = [a for a, b in pairwise(task) if a.file is b.file and a.start + a.length == b.start]
        assert not touching
        weight = sum(weight_of(split, cost) for split in task)
        if weight > target:
            # One block that cannot be cut, in a file whose deletes come with it.
            [only] = task
            assert any(
                (only.start, only.length) == cut
                for cut in file_splits("PARQUET", only.file["file_size_in_bytes"], only.file["split_offsets"], target)
            )


@for_each(
    ("scan_bytes", "parallelism", "expected"),
    [
        (1000 * MIB, 4, 128 * MIB),
        (512 * MIB, 4, 128 * MIB),
        (400 * MIB, 8, 50 * MIB),
        (100 * MIB, 50, 16 * MIB),
        (0, 4, 16 * MIB),
    ],
)
def test_a_small_scan_is_cut_finer_so_that_all_slots_have_work(scan_bytes, parallelism, expected):
    assert adapted_target_size(ReadOptions(), scan_bytes, parallelism) == expected
    assert adapted_target_size(ReadOptions(is_adaptive=False), scan_bytes, parallelism) == 128 * MIB
    few = ReadOptions(split_target_bytes=MIB)
    assert adapted_target_size(few, scan_bytes, parallelism) == MIB


@given(st.integers(0, 10**12), st.integers(1, 10**4), st.integers(1, 10**9))
def test_adapted_split_size_fills_slots_below_target(scan_bytes, parallelism, target):
    size = adapted_target_size(ReadOptions(split_target_bytes=target), scan_bytes, parallelism)
    assert 1 <= size <= target
    if size > 16 * MIB:
        assert math.ceil(scan_bytes / size) >= parallelism


def delete(number, content=FileContent.EQUALITY_DELETES, partition=b"p", path=None, offset=None, only=None):
    return {
        "content": int(content),
        "file_path": path or f"d{number}",
        "spec_id": 1,
        "partition": partition,
        "sequence_number": number,
        "content_offset": offset,
        "referenced_data_file": only,
    }


DELETES = [
    *(delete(number) for number in range(5)),
    *(delete(number, partition=b"q", path=f"q{number}") for number in range(3)),
    *(
        delete(1, FileContent.POSITION_DELETES, path="v.puffin", offset=offset, only=only)
        for offset, only in [(4, "a"), (9, "b"), (9, "c")]
    ),
    delete(7, FileContent.POSITION_DELETES, path="pos"),
]


def read_back(task):
    """What each row of a task has."""
    together = [one for row in task for one in row["deletes"]]
    return [(row["start"], [together[n] for n in unpacked_positions(PositionSet, row["reached_by"])]) for row in task]


@given(st.lists(st.lists(st.sampled_from(DELETES), unique_by=repr, max_size=6), min_size=1, max_size=6))
def test_each_row_has_what_it_had(rows):
    task = [{"start": start, "deletes": deletes} for start, deletes in enumerate(rows)]
    shared = sharing_deletes(task)
    # In whatever order the rows come.
    for some in (shared, shared[::-1]):
        found = dict(read_back(some))
        for start, deletes in enumerate(rows):
            assert sorted(map(repr, found[start])) == sorted(map(repr, deletes))
    assert sum(len(row["deletes"]) for row in shared) == len({repr(one) for deletes in rows for one in deletes})


def test_shared_deletes_list_equality_first_and_as_ranges():
    """Equality deletes come first, so that those newer than a file are one range."""
    equality = DELETES[:5]
    task = [{"start": n, "deletes": [DELETES[-1], *equality[n:]]} for n in range(5)]
    first, *_ = shared = sharing_deletes(task)
    assert [one["file_path"] for one in first["deletes"]] == ["d0", "d1", "d2", "d3", "d4", "pos"]
    assert all(is_stretch(unpacked_positions(PositionSet, row["reached_by"])) for row in shared)
    assert [row["deletes"] for row in shared[1:]] == [[]] * 4
