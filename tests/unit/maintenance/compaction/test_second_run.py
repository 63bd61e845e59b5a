"""What a plan says comes out is what comes out, and a second run does nothing: real files, by every strategy."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icekeep.catalog.base import Table
from icekeep.maintenance.compaction.job import compact, plan_compact
from icekeep.tables.append import append
from icekeep.tables.create import create_table
from kit.cases import cases, for_each
from kit.lake import Lake
from kit.no_spark import no_spark
from kit.written_deletes import data_files

TARGET = 100_000
ROW_BYTES = 64
SCHEMA = pa.schema([("a", pa.int64()), ("b", pa.int64()), ("c", pa.binary())])
ORDERS = (None, "a", "b DESC, a", "zorder(a, b)", "hilbert(a, b)")


def table_of(directory: Path, shares: list[float], row_groups: int = 4, *, distinct: int = 1_000_000) -> Table:
    """Files of such shares of the target, of rows that do not compress, those of each spread over all keys."""
    chance = np.random.default_rng(1)
    tables = []
    for share in shares:
        # What a footer takes, and in it a row group.
        count = max(1, int(share * (TARGET - 720 * row_groups) - 1_200) // ROW_BYTES)
        columns = [pa.array(chance.integers(0, distinct, count)) for _ in range(2)]
        columns.append(pa.array([chance.bytes(ROW_BYTES - 20) for _ in range(count)], pa.binary()))
        tables.append(pa.table(columns, schema=SCHEMA))
    properties = {
        "write.parquet.row-group-size-bytes": str(TARGET // row_groups),
        "write.parquet.compression-codec": "uncompressed",
    }
    return append(create_table(Lake(directory).catalog, ("db", "t"), SCHEMA, properties=properties), tables)


def settled(table: Table, order: str | None, **options: str) -> list[tuple[int, int]]:
    """What runs take and make, until one does nothing: each as its plan has said."""
    given_options = {"target-file-size-bytes": str(TARGET)} | {n.replace("_", "-"): v for n, v in options.items()}
    runs = []
    for _ in range(9):
        table = table.catalog.load(table.identifier)
        plan = plan_compact(table, no_spark, sort_order=order, options=given_options)
        result = compact(table, no_spark, sort_order=order, options=given_options)
        done = result.rewritten_data_files_count, result.added_data_files_count
        assert done == (plan.rewritten_data_files_count, plan.added_data_files_count)
        if done == (0, 0):
            return runs
        if result.overlap_depth_after is not None and runs:
            assert result.overlap_depth_after <= result.overlap_depth_before
        runs.append(done)
    return runs


@for_each("order", ORDERS)
def test_files_a_little_below_the_least_size_are_rewritten_once(tmp_path_factory, order):
    for shares in ([0.72] * 6, [0.74] * 4):
        table = table_of(tmp_path_factory.mktemp("lake"), shares)
        assert len(data_files(table)) == len(shares)
        assert len(settled(table, order)) == 1


@pytest.mark.slow
@cases(12)
@given(
    st.lists(st.floats(0.02, 0.74) | st.floats(0.69, 0.75) | st.floats(1.85, 4), min_size=1, max_size=8),
    st.integers(1, 8),
    st.sampled_from(ORDERS),
    st.sampled_from([3, 1_000_000]),
)
def test_a_second_run_does_nothing(tmp_path_factory, shares, row_groups, order, distinct):
    table = table_of(tmp_path_factory.mktemp("lake"), shares, row_groups, distinct=distinct)
    assert len(settled(table, order)) <= 1
