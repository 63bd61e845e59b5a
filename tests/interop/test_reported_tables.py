"""The health of tables that Iceberg Java, PyIceberg and icekeep made: each figure as a naive look at every entry says it."""

import math

import pytest

from icekeep.health.job import table_health
from icekeep.maintenance.check.job import check
from icekeep.operations.console.output import format_json
from icekeep.operations.console.values import plain_values
from icekeep.tables.refs import create_tag
from kit.foreign_tables import Origin, made, origins
from kit.java import IcebergJava
from kit.lake import Lake
from kit.naive_scan import check_data, check_deletes, check_jobs, check_partitions, check_references
from kit.runtime import no_spark

pytestmark = pytest.mark.deep


@pytest.fixture(scope="module")
def lake(java: IcebergJava, tmp_path_factory: pytest.TempPathFactory) -> Lake:
    lake = Lake(tmp_path_factory.mktemp("reported"))
    java.open_catalog("local", lake.properties)
    return lake


def chosen(origin: Origin) -> object:
    """A fifth is tried in each run, of each engine and file format some, the others in `make nightly`."""
    return pytest.param(origin, marks=() if origin.seed % 5 == 0 else pytest.mark.nightly, id=str(origin))


@pytest.mark.parametrize("origin", [chosen(origin) for origin in origins()])
def test_figures_are_those_of_the_entries_and_no_fault_is_told(origin: Origin, lake: Lake, java: IcebergJava) -> None:
    table = made(origin, lake, java).by.table
    table = create_tag(table, "first", table.metadata.snapshots[0].snapshot_id)
    found = table_health(table, no_spark)
    for figures in (check_data, check_deletes, check_partitions, check_references, check_jobs):
        figures(found, table)
    assert (found.faults, found.not_measured) == ((), ())
    assert check(table, no_spark).faults == ()
    assert 0 <= found.score <= 100
    assert math.isfinite(found.score)
    assert "NaN" not in format_json(plain_values(found))
