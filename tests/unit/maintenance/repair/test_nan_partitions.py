"""Entries whose partition is NaN, which equals nothing but is the same: they are mended as all others are."""

import math

import pytest

from icekeep.maintenance.check.job import check
from icekeep.maintenance.repair.job import repair
from icekeep.spec.types import DOUBLE, LONG
from kit.columns import column, schema_of
from kit.damage import spoil
from kit.no_spark import no_spark
from kit.our_histories import in_memory

pytestmark = pytest.mark.slow

SCHEMA = schema_of(column(1, "id", LONG, required=True), column(2, "score", DOUBLE))


@pytest.mark.parametrize("number", [302, 402, 407])
def test_an_entry_of_a_partition_of_nan_is_mended(number):
    by = in_memory()
    by.create(SCHEMA, [("score", "identity")], 2)
    by.append([{"id": n, "score": math.nan} for n in range(4)], "PARQUET")
    rows = by.rows()
    spoil(by.catalog, by.identifier, 1, number)
    result = repair(by.table, no_spark, fault=[number])
    assert [one.fault_id for one in result.mended] == [number]
    assert check(by.table, no_spark, deep=True, ref="main").faults == ()
    assert by.rows() == rows
