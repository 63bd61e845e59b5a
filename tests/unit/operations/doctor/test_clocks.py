import pytest

from icekeep.errors import UsageError
from icekeep.operations.doctor.driver import ahead_ms, checked_clock
from kit.cases import for_each


@for_each(
    ("theirs_ms", "grain_ms", "expected"),
    [
        (1_000, 0, 0),
        (1_500, 0, 0),
        (2_000, 0, 0),
        (2_001, 0, 1),
        (999, 0, -1),
        (999, 1, 0),
        (0, 600, -400),
        (62_000, 2_000, 60_000),
    ],
)
def test_a_clock_that_was_read_between_two_readings_of_ours_may_be_right(
    theirs_ms: int, grain_ms: int, expected: int
) -> None:
    assert ahead_ms(theirs_ms, 1_000, 2_000, grain_ms) == expected


@pytest.mark.parametrize("difference_ms", [0, 5_000, -5_000])
def test_some_seconds_are_no_finding(difference_ms: int) -> None:
    assert checked_clock("host-1", difference_ms) == "within 5 s of this machine's"


@pytest.mark.parametrize(
    ("difference_ms", "said"),
    [(5_001, "the clock of host-1 is 5 s ahead of this machine's"), (-3_600_000, "is 3,600 s behind this machine's")],
)
def test_more_is_told_with_what_depends_on_it(difference_ms: int, said: str) -> None:
    with pytest.raises(UsageError, match=f"{said}, and files are deleted by their age: set the clocks right"):
        checked_clock("host-1", difference_ms)
