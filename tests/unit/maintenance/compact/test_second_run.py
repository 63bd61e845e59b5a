"""What a plan says comes out is what comes out, and a second run does nothing: real files, by every strategy."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icekeep.catalog.base import Table
from icekeep.maintenance.compact.job import compact, plan_compact
from icekeep.tables.verbs import append, create_table
from kit.cases import cases, for_each
from kit.deletes import data_files, delete_by_vector, delete_positions
from kit.lake import Lake
from kit.runtime import no_spark

TARGET = 100_000
ROW_BYTES = 64
SCHEMA = pa.schema([("a", pa.int64()), ("b", pa.int64()), ("c", pa.binary())])
ORDERS = (None, "a", "b DESC, a", "zorder(a, b)", "hilbert(a, b)")


def table_of(
    directory: Path,
    shares: list[float],
    row_groups: int = 4,
    *,
    distinct: int = 1_000_000,
    version: int = 2,
    file_format: str = "parquet",
) -> Table:
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
        "write.format.default": file_format,
        "write.orc.compression-codec": "none",
        "write.avro.compression-codec": "uncompressed",
        "write.parquet.row-group-size-bytes": str(TARGET // row_groups),
        "write.parquet.compression-codec": "uncompressed",
    }
    lake = Lake(directory)
    table = create_table(lake.catalog, ("db", "t"), SCHEMA, properties=properties, format_version=version)
    return append(table, tables)


def without(table: Table, deleted: list[float]) -> Table:
    """The table with such shares of the rows of its files deleted, as Spark does it by default in version 2, or by vectors."""
    chance = np.random.default_rng(2)
    for file, share in zip(data_files(table), deleted, strict=True):
        some = sorted(chance.choice(file.record_count, int(share * file.record_count), replace=False).tolist())
        if some and table.metadata.format_version == 2:
            table = delete_positions(table, [(file.file_path, position) for position in some], names_file=False)
        elif some:
            table = delete_by_vector(table, file.file_path, some)
    return table


def settled(table: Table, order: str | None, **options: str) -> list[tuple[int, int]]:
    """What runs take and make, until one does nothing: each as its plan has said."""
    given_options = {"target-file-size-bytes": str(TARGET)} | {n.replace("_", "-"): v for n, v in options.items()}
    runs, depths = [], []
    for _ in range(9):
        table = table.catalog.load(table.identifier)
        plan = plan_compact(table, no_spark, sort_order=order, options=given_options)
        depths.append(plan.overlap_depth_before)
        if len(depths) > 2 and depths[-1] is not None:
            assert depths[-1] <= depths[-2]
        result = compact(table, no_spark, sort_order=order, options=given_options)
        done = result.rewritten_data_files_count, result.added_data_files_count
        assert done == (plan.rewritten_data_files_count, plan.added_data_files_count)
        if done == (0, 0):
            return runs
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


@pytest.mark.slow
@cases(12)
@given(
    st.lists(
        st.tuples(st.floats(0.02, 4), st.just(0.0) | st.just(1.0) | st.floats(0.05, 0.95)), min_size=1, max_size=6
    ),
    st.sampled_from(["parquet", "orc", "avro"]),
    st.sampled_from([2, 3]),
    st.sampled_from(ORDERS),
)
def test_deleted_rows_and_other_formats_change_nothing_in_that(tmp_path_factory, files, file_format, version, order):
    shares, deleted = zip(*files, strict=True)
    table = table_of(tmp_path_factory.mktemp("lake"), [*shares], version=version, file_format=file_format)
    assert len(settled(without(table, [*deleted]), order)) <= 1
