"""What `plan_scan` reads and says, without Spark."""

import pickle
import subprocess
import sys
from collections import Counter
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
from icekeep.planning import decoder
from icekeep.planning.decoder import NotReadError
from icekeep.planning.entries import DecodedEntries, PruningStats
from icekeep.planning.scan.report import LARGEST_COUNT, DeletesInUse, ScanTotals, SizeDistribution, plan_scan
from icekeep.spec.manifests.structs import DataFile, FileContent
from kit.lake import Lake
from kit.runtime import no_spark
from kit.shell import ROOT
from kit.storage import HookedStorage

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
def test_quantiles_are_exact_to_one_percent_and_the_ends_are_exact(sizes: list[int]) -> None:
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
def test_totals_count_what_they_are_given_and_those_of_other_tasks_add_up(
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
