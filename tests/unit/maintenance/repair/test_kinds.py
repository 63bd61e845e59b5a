"""What the check says of a fault, and what the repair does about it."""

from icekeep.maintenance.check.faults import CLASSES
from icekeep.maintenance.repair.planner import REPAIRED, no_repair
from kit.cases import for_each


@for_each("number", sorted(CLASSES))
def test_the_check_names_the_repair_of_the_kinds_that_it_mends(number):
    assert ("`icekeep repair`" in CLASSES[number].mend) == (number in REPAIRED)


@for_each("number", sorted(CLASSES.keys() - REPAIRED))
def test_of_all_others_it_says_what_to_do(number):
    assert no_repair(number).partition("; ")[2]


def test_nothing_is_mended_that_is_no_fault():
    assert CLASSES.keys() > REPAIRED
    assert len(REPAIRED) > 30
