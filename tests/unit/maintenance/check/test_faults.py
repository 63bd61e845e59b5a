"""The classes of faults, the page of them, and how faults are counted and kept."""

import pickle

from icekeep.maintenance.check.faults import CLASSES, MAX_EXAMPLES, MAX_GAPS, Fault, FaultId, Gap, Tally
from kit.cases import for_each
from kit.prose import PAGE, fault_page


def fault(number, where):
    return Fault(number=number, where=where, detail="wrong")


def test_the_first_faults_by_place_are_kept():
    tally = Tally()
    places = [f"{n:05}" for n in range(1000)]
    for place in reversed(places):
        tally.add(fault(301, place))
    assert tally.counts == {301: 1000}
    assert [one.where for one in tally.faults(301)][:MAX_EXAMPLES] == places[:MAX_EXAMPLES]
    assert len(tally.faults(301)) <= 10 * MAX_EXAMPLES
    assert tally.faults(302) == ()


def test_of_a_class_that_is_asked_for_all_are_kept():
    tally = Tally([301])
    for n in range(1000):
        tally.add(fault(301, f"{n:05}"))
    assert len(tally.faults(301)) == 1000


def test_what_tasks_found_is_taken_in():
    driver, task = Tally(), Tally()
    driver.add(fault(301, "a"))
    driver.gap("x", "why")
    task.add(fault(301, "b"))
    task.add(fault(302, "c"))
    task.gap("x", "why")
    task.gap("y", "why")
    driver.merge(pickle.loads(pickle.dumps(task)))
    assert driver.counts == {301: 2, 302: 1}
    assert [one.where for one in driver.faults(301)] == ["a", "b"]
    assert driver.gaps() == (Gap(what="x", why="why"), Gap(what="y", why="why"))
    assert driver.gaps_count == 2


def test_of_very_many_gaps_the_first_are_kept():
    tally = Tally()
    for n in range(2 * MAX_GAPS):
        tally.gap(f"{n:05}", "why")
    assert tally.gaps_count == 2 * MAX_GAPS
    assert len(tally.gaps()) == MAX_GAPS


def test_each_number_has_a_class():
    assert [*CLASSES] == [*FaultId]
    assert {one.number // 100 for one in CLASSES.values()} == {1, 2, 3, 4}


@for_each("one", CLASSES.values(), ids=lambda one: one.name)
def test_a_class_has_all_its_texts(one):
    for text in (one.rule, one.readers, one.mend):
        assert text
        assert not text.endswith(".")
        assert "|" not in text


def test_the_page_says_what_the_classes_say():
    """`python -m kit.prose` in `tests/` rewrites it."""
    assert PAGE.read_text() == fault_page()
