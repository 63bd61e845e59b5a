"""A table whose next row id is too low: no repair adds a snapshot to it, whose row ids would be those of other rows."""

import pytest

from icekeep.errors import InvalidTableError
from icekeep.maintenance.repair.job import repair
from kit.damage import spoil
from kit.job_world import EVENTS, World
from kit.runtime import no_spark

pytestmark = pytest.mark.slow

TOTALS, NEXT_ROW_ID = 215, 128
TOO_LOW = "next-row-id is too low, and a new snapshot would give out row ids twice: repair fault 128 first"


@pytest.fixture
def world() -> World:
    world = World(3)
    for number in range(3):
        world.append(number)
    spoil(world.catalog, EVENTS, 1, TOTALS, NEXT_ROW_ID)
    return world


def test_nothing_is_committed_while_the_next_row_id_is_too_low(world):
    before = world.table.metadata_location
    result = repair(world.table, no_spark, fault=[TOTALS])
    assert [(one.fault_id, one.reason) for one in result.not_mended] == [(TOTALS, TOO_LOW)]
    assert world.table.metadata_location == before


def test_no_other_change_adds_a_snapshot_either(world):
    before = world.table.metadata_location
    with pytest.raises(
        InvalidTableError, match=r"next-row-id \d+, and row ids up to \d+ .*`icekeep repair --table NAME --fault 128`"
    ):
        world.append(9)
    assert world.table.metadata_location == before


def test_it_is_raised_before_anything_else_is_committed(world):
    rows_count = sum(int(s.added_rows or 0) for s in world.table.metadata.snapshots)
    result = repair(world.table, no_spark, fault=[TOTALS, NEXT_ROW_ID])
    assert {one.fault_id for one in result.mended} == {TOTALS, NEXT_ROW_ID}
    assert result.not_mended == ()
    head = world.table.metadata.current_snapshot
    assert head is not None
    assert head.first_row_id == rows_count


def test_where_a_catalog_cannot_raise_it_nothing_is_committed(world):
    world.catalog.compares_metadata = False
    before = world.table.metadata_location
    result = repair(world.table, no_spark, fault=[TOTALS, NEXT_ROW_ID])
    assert result.mended == ()
    assert {one.fault_id: one.reason for one in result.not_mended}[TOTALS] == TOO_LOW
    assert world.table.metadata_location == before
