"""Plans of few files: which ask to be rewritten, and what reaches them, without Spark."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from icekeep.commit.changes.deletes import RowDelta
from icekeep.commit.changes.files import AppendFiles
from icekeep.commit.retry import commit
from icekeep.errors import UnsupportedError
from icekeep.maintenance.compact.candidates import HAS_BAD_SIZE, HAS_MANY_DELETES, reasons_of_few
from icekeep.maintenance.compact.options import RewriteDataFilesOptions
from icekeep.maintenance.compact.order import chosen_strategy
from icekeep.maintenance.compact.plan import group_files
from icekeep.maintenance.compact.planner import plan
from icekeep.maintenance.rewrite.options import FileSizes, file_sizes
from icekeep.planning.deletes import ReachingDeletes, reaching
from icekeep.planning.scan.plan import FewFiles, few_files, open_scan
from icekeep.planning.spark.session import Engine, Limits
from icekeep.spec.manifests.structs import DataFile, FileContent, ManifestEntry
from kit.lake import Lake
from kit.reaching import SPECS, bounded, entry, equality, positions, table_of, vector

NO_SPARK: Any = None
SIZES: FileSizes = file_sizes(
    RewriteDataFilesOptions(min_file_size_bytes=75, max_file_size_bytes=180, target_file_size_bytes=100), 100
)


def few_of(data: list[ManifestEntry], deletes: list[ManifestEntry]) -> FewFiles:
    found = reaching(table_of(data), table_of(deletes), SPECS)
    assert isinstance(found, ReachingDeletes)
    return FewFiles(files=table_of(data), reaching=found)


def asking(data: list[ManifestEntry], deletes: list[ManifestEntry], name: str, **options: Any) -> list[str]:
    few = few_of(data, deletes)
    asks = reasons_of_few(few, SIZES, RewriteDataFilesOptions(**options))[name]
    return few.files["file_path"].filter(pa.array(asks)).to_pylist()


def test_a_size_beyond_the_limits_asks_for_a_rewrite() -> None:
    data = [entry(str(size), 1, file_size_in_bytes=size) for size in (74, 75, 100, 180, 181)]
    assert asking(data, [], HAS_BAD_SIZE) == ["74", "181"]
    assert asking(data, [], HAS_MANY_DELETES) == []


def test_delete_file_threshold_needs_a_delete_that_applies() -> None:
    data = [entry("two", 5), entry("one", 8), entry("none", 9)]
    deletes = [equality("e", 7), equality("f", 9)]
    assert asking(data, deletes, HAS_MANY_DELETES, delete_file_threshold=2) == ["two"]
    assert asking(data, deletes, HAS_MANY_DELETES, delete_file_threshold=1) == ["two", "one"]
    assert asking(data, deletes, HAS_MANY_DELETES) == []


def test_file_scoped_deletes_count_by_their_ratio() -> None:
    data = [entry(name, 5, record_count=10) for name in ("vector", "file", "little", "shared", "empty")]
    data[-1] = entry("empty", 5, record_count=0)
    deletes = [
        vector(7, "vector", record_count=3),
        *(positions(f"p{n}", 7, referenced_data_file="file", record_count=2) for n in range(2)),
        positions("l", 7, referenced_data_file="little", record_count=2),
        positions("s", 7, record_count=9),
        positions("n", 7, referenced_data_file="empty", record_count=0),
    ]
    assert asking(data, deletes, HAS_MANY_DELETES) == ["vector", "file"]
    assert asking(data, deletes, HAS_MANY_DELETES, delete_ratio_threshold=0.2) == ["vector", "file", "little"]


def test_equal_path_bounds_count_as_a_referenced_file() -> None:
    """Deletes whose path bounds are one file count like deletes that reference that file."""
    data = [entry(name, 5, record_count=10) for name in ("much", "little", "cut 1", "cut 2", "replaced")]
    deletes = [
        *(positions(name, 7, record_count=9, **bounded(b"much", b"much")) for name in ("p", "q")),
        positions("l", 7, record_count=2, **bounded(b"little", b"little")),
        # Which of the two it has positions of is not known.
        positions("c", 7, record_count=9, **bounded(b"cut", b"cut")),
        positions("w", 7, record_count=9, **bounded(b"little", b"replaced")),
        positions("r", 7, record_count=9, **bounded(b"replaced", b"replaced")),
        vector(8, "replaced", record_count=1),
    ]
    assert asking(data, deletes, HAS_MANY_DELETES) == ["much"]
    assert asking(data, deletes, HAS_MANY_DELETES, delete_ratio_threshold=0.2) == ["much", "little"]


def test_positions_that_are_older_than_a_file_are_not_counted() -> None:
    rewritten = table_of([entry("a", 5)])
    place = rewritten.schema.get_field_index("file_sequence_number")
    deletes = table_of([positions("p", 5), equality("e", 6)])
    for since, count in ((5, 2), (7, 1), (None, 2)):
        files = rewritten.set_column(place, rewritten.schema.field(place), pa.array([since], pa.int64()))
        few = FewFiles(files=files, reaching=reaching(files, deletes, SPECS))
        for threshold in (count, count + 1):
            options = RewriteDataFilesOptions(delete_file_threshold=threshold)
            [asks] = reasons_of_few(few, SIZES, options)[HAS_MANY_DELETES]
            assert asks == np.bool_(threshold == count)


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path)


def described(lake: Lake, name: str, **changes: Any) -> DataFile:
    facts = {"file_format": "PARQUET", "spec_id": 0, "record_count": 10, "file_size_in_bytes": 100}
    return DataFile(file_path=f"{lake.location()}/data/{name}", **{**facts, **changes})


def test_a_plan_of_few_files_with_deletes_needs_no_spark(lake: Lake) -> None:
    table = lake.create(partition_by=())
    table = commit(table, AppendFiles(files=tuple(described(lake, f"f{n}") for n in range(6)))).table
    only = described(
        lake,
        "p",
        content=FileContent.POSITION_DELETES,
        record_count=4,
        referenced_data_file=f"{lake.location()}/data/f1",
    )
    everywhere = described(lake, "e", content=FileContent.EQUALITY_DELETES, record_count=1, equality_ids=(1,))
    table = commit(table, RowDelta(added_deletes=(only, everywhere))).table
    for order, few in ((None, Limits(entries_count=0)), ("id", Limits(matched_entries_count=0))):
        options = RewriteDataFilesOptions(target_file_size_bytes=1000)
        strategy = chosen_strategy(None, order, table.metadata, options)
        [group] = plan(open_scan(table), Engine(spark=NO_SPARK, limits=few), strategy, options).groups
        files = group_files(group, table.storage)
        reached = {file.file_path[-2:]: [files.deletes[n].file_path[-2:] for n in file.deletes] for file in files.files}
        assert reached == {f"f{n}": ["/e", "/p"] if n == 1 else ["/e"] for n in range(6)}


def test_encrypted_files_and_deletes_are_refused_if_read(lake: Lake) -> None:
    table = lake.create(partition_by=())
    files = [described(lake, f"f{n}") for n in range(6)]
    deletes = described(
        lake, "e", content=FileContent.EQUALITY_DELETES, record_count=1, equality_ids=(1,), key_metadata=b"key"
    )
    large = described(lake, "large", file_size_in_bytes=1000, key_metadata=b"key")
    options = RewriteDataFilesOptions(target_file_size_bytes=1000)
    strategy = chosen_strategy(None, None, table.metadata, options)
    table = commit(table, AppendFiles(files=(*files, large))).table
    assert plan(open_scan(table), NO_SPARK, strategy, options).rewritten_data_files_count == 6
    table = commit(table, RowDelta(added_deletes=(deletes,))).table
    with pytest.raises(UnsupportedError, match=r"delete file '.*/e' is encrypted"):
        plan(open_scan(table), NO_SPARK, strategy, options)


def test_more_entries_than_the_limit_are_not_few(lake: Lake) -> None:
    table = lake.create(partition_by=())
    table = commit(table, AppendFiles(files=tuple(described(lake, f"f{n}") for n in range(6)))).table
    everywhere = described(lake, "e", content=FileContent.EQUALITY_DELETES, record_count=1, equality_ids=(1,))
    table = commit(table, RowDelta(added_deletes=(everywhere,))).table
    scan = open_scan(table)
    few = few_files(scan, 7, {"file_path"})
    assert few is not None
    assert few.files.column_names == ["file_path"]
    assert [[delete["file_path"][-2:] for delete in row["deletes"]] for row in few.rows()] == [["/e"]] * 6
    assert few_files(scan, 6) is None
    without = few_files(scan, 6, deletes=False)
    assert without is not None
    assert "deletes" not in without.rows()[0]
