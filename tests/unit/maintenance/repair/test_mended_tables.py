"""Random tables, each spoilt in one way that can be mended: the fault goes, no other comes, and the rows are the history's."""

from copy import deepcopy
from functools import cache

import pytest

from icekeep.catalog.base import Catalog
from icekeep.maintenance.check.faults import CLASSES
from icekeep.maintenance.check.job import check
from icekeep.maintenance.repair.job import plan_repair, repair
from icekeep.spec.reach import partition_key
from kit.cases import for_each, scaled, seeds, some_of
from kit.damage import DANGLING, MENDABLE, spoil
from kit.damager import CannotDamageError
from kit.naive_scan import live_entries, naive_rows
from kit.row_histories import History, in_memory
from kit.rows import scanned_rows
from kit.runtime import no_spark

pytestmark = pytest.mark.slow

TABLES = 40
RECORD_COUNT = 402


@cache
def history(number: int) -> History:
    return History.of(number, in_memory())


def damaged(number: int, seed: int) -> tuple[Catalog, tuple[str, ...]] | None:
    """A copy of the table of a seed, spoilt; `None` where it has nothing that could be."""
    by = history(seed).by
    catalog = deepcopy(by.catalog)
    try:
        spoil(catalog, by.identifier, seed, number)
    except CannotDamageError:
        return None
    return catalog, by.identifier


def found_in(table, ref="main"):
    result = check(table, no_spark, deep=True, ref=ref)
    return {one.fault_id for one in (*result.faults, *result.notices)}


def described(table):
    """By what a row's id follows, and which deletes reach it."""
    return {
        (entry.data_file.file_path, entry.data_file.content_offset): (
            entry.sequence_number,
            entry.file_sequence_number,
            entry.snapshot_id,
            entry.data_file.first_row_id,
            partition_key(entry.data_file),
        )
        for entry in live_entries(table)
    }


@for_each("number", some_of(MENDABLE, least=6), ids=lambda number: CLASSES[number].name)
def test_a_fault_is_mended_and_no_row_changes(number):
    wanted, mended = scaled(6), 0
    for seed in seeds(TABLES):
        if mended == wanted:
            break
        if (spoilt := damaged(number, seed)) is None:
            continue
        catalog, identifier = spoilt
        table = catalog.load(identifier)
        before = found_in(table)
        if number not in before:
            continue
        plan = plan_repair(table, no_spark, fault=[number])
        result = repair(table, no_spark, fault=[number], approve=plan.hash)
        if not result.mended:
            assert catalog.load(identifier).metadata_location == table.metadata_location
            assert [one for one in result.not_mended if one.reason], (seed, result)
            continue
        now = catalog.load(identifier)
        assert found_in(now) <= before - {number}, (seed, result)
        if number in DANGLING:
            # The damage itself brings rows back.
            assert scanned_rows(now) == scanned_rows(table), (seed, result)
        else:
            assert scanned_rows(now) == history(seed).expected(), (seed, result)
            # Row ids follow the counts of a manifest, so these stay as readers of the wrong count have them.
            as_before = table if number == RECORD_COUNT else history(seed).table
            assert described(now) == described(as_before), (seed, result)
            # This reader knows no equality deletes; it goes by entries alone, and prunes nothing.
            assert naive_rows(now) == naive_rows(history(seed).table), (seed, result)
        assert result.metadata_location == now.metadata_location
        assert result.lost_records_count == 0
        mended += 1
    assert mended >= min(2, wanted)
