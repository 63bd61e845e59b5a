"""Which known word is meant by one that is not known."""

from icekeep.spelling import with_one_typo
from kit.cases import for_each


@for_each(
    ("word", "known", "meant"),
    [
        ("event", "events", True),
        ("eventss", "events", True),
        ("ebents", "events", True),
        ("evetns", "events", True),
        ("EVENTS", "events", True),
        ("small-files", "small_files", True),
        ("small_files", "delete_files", False),
        ("events", "events_old", False),
        ("event", "vents_", False),
        ("events_1", "events_2", False),
        ("events", "events2", False),
        ("ods", "dds", False),
        ("", "ab", False),
    ],
)
def test_only_one_slip_makes_a_name_that_may_be_meant(word, known, meant):
    assert with_one_typo(word, [known]) == ([known] if meant else [])
