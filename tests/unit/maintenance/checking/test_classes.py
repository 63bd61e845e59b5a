from icekeep.maintenance.check import faults as classes
from icekeep.maintenance.check.faults import CLASSES, CONTENT_CLASSES, FILE_CLASSES, MANIFEST_CLASSES, METADATA_CLASSES
from kit.cases import for_each
from kit.fault_page import PAGE, fault_page

ALL = (*METADATA_CLASSES, *MANIFEST_CLASSES, *FILE_CLASSES, *CONTENT_CLASSES)


def test_there_are_many_classes_each_with_a_number_and_a_name_of_its_own():
    assert len(CLASSES) == len(ALL) == len({one.name for one in ALL})
    assert len(CLASSES) >= 60
    assert [one.number for one in ALL] == sorted(CLASSES)


@for_each(
    ("level", "some"),
    enumerate((METADATA_CLASSES, MANIFEST_CLASSES, FILE_CLASSES, CONTENT_CLASSES), start=1),
)
def test_a_number_tells_its_level(level, some):
    assert {one.number // 100 for one in some} == {level}


@for_each("one", ALL, ids=lambda one: one.name)
def test_a_class_has_all_its_texts_and_none_ends_with_a_full_stop(one):
    for text in (one.rule, one.readers, one.mend):
        assert text
        assert not text.endswith(".")
        assert "|" not in text


def test_the_page_says_what_the_classes_say():
    """`python -m kit.fault_page` in `tests/` rewrites it."""
    assert PAGE.read_text() == fault_page()
    assert classes.__doc__
