"""What a compaction wrote is copied by the next one: TPC-H's lineitem, as `tpchgen-cli` makes it."""

import subprocess
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from icekeep.formats.rewrite.copy_row_groups import STITCH_FLOOR_BYTES
from icekeep.maintenance.compact.job import compact
from icekeep.tables.verbs import append, create_table
from kit.deletes import data_files
from kit.lake import EVENTS, Lake
from kit.shell import BIN

MIB = 1 << 20


@pytest.mark.nightly
def test_row_groups_of_lineitem_are_copied_by_the_second_rewrite(tmp_path: Path, spark_session: SparkSession) -> None:
    """At 27 bytes a row, a limit of a million rows kept every row group below the floor of 32 MiB."""
    shape = ["--tables=lineitem", "--scale-factor=1", "--parts=24", f"--output-dir={tmp_path / 'rows'}"]
    command = [str(BIN / "tpchgen-cli"), "parquet", "--quiet", "--no-progress", *shape, "--compression=ZSTD(1)"]
    subprocess.run(command, check=True)
    lake = Lake(tmp_path)
    paths = sorted((tmp_path / "rows" / "lineitem").iterdir())
    table = create_table(lake.catalog, EVENTS, pq.read_schema(paths[0]))
    for path in paths:
        table = append(table, pq.read_table(path))
    rows_count = sum(file.record_count for file in data_files(table))
    first = compact(table, spark_session, options={"target-file-size-bytes": str(64 * MIB)})
    assert (first.rewritten_data_files_count, first.stitched_data_files_count) == (24, 0)
    written = data_files(lake.load())
    large = [file for file in written if file.file_size_in_bytes > STITCH_FLOOR_BYTES + MIB]
    assert len(large) >= 2
    assert all(file.file_size_in_bytes / len(file.split_offsets) > STITCH_FLOOR_BYTES for file in large)
    options = {"target-file-size-bytes": str(512 * MIB), "rewrite-all": "true"}
    second = compact(lake.load(), spark_session, options=options)
    assert second.stitched_data_files_count >= 1
    after = data_files(lake.load())
    assert sum(file.record_count for file in after) == rows_count
    assert max(len(file.split_offsets or ()) for file in after) >= 2
