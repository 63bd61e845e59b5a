"""A thousand tables, each spoilt in one way or in two: what was spoilt is named, and nothing is named in a sound table."""

from copy import deepcopy
from functools import cache

import pytest

from icekeep.catalog.base import Catalog
from icekeep.errors import UsageError
from icekeep.maintenance.check.faults import CLASSES
from icekeep.maintenance.check.job import check
from kit.cases import Choices, for_each, scaled, seeds
from kit.damage import DAMAGE, IMPLIED, checked, found_in, spoil
from kit.damager import CannotDamageError, Damager
from kit.row_histories import History, in_memory
from kit.runtime import no_spark

TABLES = 40


@cache
def _history(number: int) -> History:
    return History.of(number, in_memory())


def table_of(number: int) -> tuple[Catalog, tuple[str, ...]]:
    """A copy of the table that follows from a number, which may be spoilt."""
    by = _history(number % TABLES).by
    return deepcopy(by.catalog), by.identifier


@cache
def found_before(number: int) -> frozenset[int]:
    """What is found in the table of a number while it is sound."""
    return frozenset(found_in(checked(*table_of(number))))


def damaged(number: int, seed: int, *damage: int) -> tuple[Catalog, tuple[str, ...]] | None:
    """The table of a seed, spoilt in each way; `None` where it has nothing that could be."""
    catalog, identifier = table_of(seed)
    try:
        spoil(catalog, identifier, seed, number, *damage)
    except CannotDamageError:
        return None
    return catalog, identifier


@for_each("seed", seeds(min(TABLES, scaled(100))))
def test_nothing_is_found_in_a_sound_table(seed):
    result = checked(*table_of(seed))
    assert result.faults == ()
    assert result.not_checked == ()
    assert found_in(result) <= {214}
    assert result.status == "sound"


def test_earlier_metadata_is_named():
    catalog, identifier = table_of(1)
    before = catalog.load(identifier)
    spoil(catalog, identifier, 1, 101)
    found = checked(catalog, identifier).sound_metadata
    logged = [entry.metadata_file for entry in before.metadata.metadata_log]
    assert [one.metadata_location for one in found] == logged[: -len(found) - 1 : -1]
    assert found


def test_of_a_kind_that_is_asked_for_every_fault_is_told():
    catalog, identifier = table_of(3)
    table = catalog.load(identifier)
    paths = {place.file["file_path"] for place in Damager(catalog, identifier, Choices(1)).entries(0)}
    assert len(paths) > 1
    table.storage.delete_many(paths)
    [found] = check(table, no_spark, all_of=[301]).faults
    assert {one.where for one in found.examples} >= paths
    with pytest.raises(
        UsageError, match=r"^there is no kind of faults 7; give numbers such as 301, `icekeep check` prints"
    ):
        check(table, no_spark, all_of=[301, 7])


@for_each("number", sorted(DAMAGE), ids=lambda number: CLASSES[number].name)
def test_what_was_spoilt_is_found_and_named(number):
    wanted, spoilt = scaled(10), 0
    for seed in seeds(2 * TABLES):
        if spoilt == wanted:
            break
        if (table := damaged(number, seed)) is None:
            continue
        result = checked(*table)
        found = found_in(result) - (found_before(seed % TABLES) - {number})
        assert number in found, (seed, found, result.not_checked)
        assert found - {number} <= IMPLIED.get(number, set()), (seed, result)
        assert CLASSES[number].is_notice or result.status == "faulty"
        spoilt += 1
    assert spoilt >= min(2, wanted)
