"""What `plan_scan` reads and says, without Spark."""

from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from icekeep.commit.changes.deletes import RowDelta
from icekeep.commit.changes.files import AppendFiles
from icekeep.commit.retry import commit
from icekeep.planning import decoder
from icekeep.planning.decoder import NotReadError
from icekeep.planning.scan.report import DeletesInUse, plan_scan
from icekeep.spec.manifests.structs import DataFile, FileContent
from kit.lake import Lake
from kit.no_spark import no_spark
from kit.storage import HookedStorage


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
