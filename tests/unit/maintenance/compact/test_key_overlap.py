"""How deep files overlap, worked out by hand and against counting each place by itself."""

from hypothesis import given
from hypothesis import strategies as st

from icekeep.maintenance.compact.order import (
    WORTH_DEPTH,
    KeyColumn,
    KeySpace,
    along_boxes,
    box_depths,
    depth_sum,
    overlapping,
    worth_box_depth,
)
from icekeep.maintenance.intervals import Intervals
from icekeep.spec.types import LONG
from kit.cases import for_each

ON_A_LINE = KeySpace(columns=(KeyColumn(field_id=1, type=LONG),), is_curve=False)
IN_BOXES = KeySpace(columns=(KeyColumn(field_id=1, type=LONG), KeyColumn(field_id=2, type=LONG)), is_curve=True)


def key(number: int) -> bytes:
    return number.to_bytes(4, "big")


def line(*pairs):
    """Ranges of one column; one whose ends are equal is a point."""
    return [((key(low),), (key(low),)) if low == high else ((key(low), b"\xff"), (key(high),)) for low, high in pairs]


@for_each(
    ("pairs", "expected"),
    [
        ([(0, 9)], [1]),
        ([(0, 9), (9, 12), (12, 20)], [1, 1, 1]),
        ([(0, 9), (5, 12), (20, 30)], [2, 2, 1]),
        ([(0, 100), (10, 20), (30, 40), (15, 35)], [3, 3, 3, 3]),
        ([(0, 100), (10, 20), (30, 40)], [2, 2, 2]),
        ([(0, 9)] * 5, [5] * 5),
        # Files of one and the same value are what sorting makes of a value that many rows have.
        ([(7, 7)] * 5, [1] * 5),
        ([(0, 7), (7, 7), (7, 7), (7, 9)], [1, 1, 1, 1]),
        ([(0, 9), (7, 7), (7, 7)], [2, 2, 2]),
        ([(0, 7), (0, 0)], [1, 1]),
    ],
)
def test_a_depth_is_the_most_files_that_one_key_may_be_in(pairs, expected):
    assert Intervals.of(line(*pairs)).depths().tolist() == expected
    assert depth_sum(line(*pairs), ON_A_LINE) == sum(expected)


RANGES = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)).map(lambda p: (min(p), max(p))), max_size=12)


def naive(pairs, places):
    """At each half number: how many files, those of one value once."""
    found = []
    for place in places:
        wide = sum(low < place < high for low, high in pairs)
        found.append(wide + any(low == high == place for low, high in pairs))
    return found


@given(RANGES.filter(bool))
def test_depths_are_those_of_each_place_by_itself(pairs):
    expected = []
    for low, high in pairs:
        places = [low] if low == high else [low + 0.5 * n for n in range(1, 2 * (high - low))]
        expected.append(max(naive(pairs, places)))
    assert Intervals.of(line(*pairs)).depths().tolist() == expected


@given(RANGES, st.data())
def test_selection_leaves_no_file_too_deep(pairs, data):
    asked = data.draw(st.lists(st.booleans(), min_size=len(pairs), max_size=len(pairs)))
    taken = overlapping(Intervals.of(line(*pairs)), asked).tolist()
    assert all(is_taken for is_taken, was_asked in zip(taken, asked, strict=True) if was_asked)
    left = [pair for pair, is_taken in zip(pairs, taken, strict=True) if not is_taken]
    new = [pair for pair, is_taken in zip(pairs, taken, strict=True) if is_taken]
    # One new file over all of it is the worst that a sort can make of them.
    after = [*left, *([(min(low for low, _ in new), max(high for _, high in new))] if new else [])]
    assert (Intervals.of(line(*after)).depths() <= WORTH_DEPTH).all() if after else not taken
    assert not overlapping(Intervals.of(line(*after)), [False] * len(after)).any()


def test_files_below_the_depth_are_left_alone():
    twice = line((0, 100), (0, 100))
    assert not overlapping(Intervals.of(twice), [False, False]).any()
    assert overlapping(Intervals.of(line((0, 100), (0, 100), (50, 60))), [False] * 3).all()
    # What is far away is not sorted again.
    far = line((0, 100), (0, 100), (50, 60), (200, 300))
    assert overlapping(Intervals.of(far), [False] * 4).tolist() == [True, True, True, False]
    # New files lie over all that the chosen ones span.
    assert overlapping(Intervals.of(twice), [True, False]).tolist() == [True, False]
    assert overlapping(Intervals.of(line((0, 10), (90, 100), (0, 100), (0, 100))), [True, True, False, False]).all()


def boxes(*files):
    return [(tuple(key(low) for low, _ in columns), tuple(key(high) for _, high in columns)) for columns in files]


def test_box_depth_counts_boxes_that_hold_the_middle():
    apart = boxes(((0, 4), (0, 4)), ((0, 4), (4, 9)), ((4, 9), (0, 4)), ((4, 9), (4, 9)))
    assert box_depths(apart).mean() == 1
    whole = boxes(*[((0, 9), (0, 9))] * 4)
    assert box_depths(whole).mean() == 4
    # Sorted by the first column alone: by both together a look-up still meets one.
    stripes = boxes(*[((n, n + 1), (0, 9)) for n in range(9)])
    assert box_depths(stripes).mean() == 1
    assert depth_sum(stripes, IN_BOXES) == 9
    # One value in each column: no curve could tell them apart.
    assert box_depths(boxes(*[((3, 3), (5, 5))] * 6)).mean() == 1


def test_worth_box_depth_grows_logarithmically():
    assert worth_box_depth(1) == 2
    assert worth_box_depth(1024) == 12
    assert [n for n in range(1, 10) if n > worth_box_depth(n)] == [5, 6, 7, 8, 9]


def test_files_near_each_other_come_one_after_the_other():
    grid = boxes(*[((x, x + 1), (y, y + 1)) for x in range(4) for y in range(4)])
    order = [divmod(number, 4) for number in along_boxes(grid)]
    quarters = [(x // 2, y // 2) for x, y in order]
    assert [len(set(quarters[n : n + 4])) for n in range(0, 16, 4)] == [1] * 4


def test_what_is_everywhere_overlaps_with_all():
    everywhere = ((b"", b"\xff"), (b"\xff",))
    assert Intervals.of([*line((0, 5), (5, 9)), everywhere]).depths().tolist() == [2, 2, 2]
    assert box_depths([((b"", b""), (b"\xff", b"\xff"))] * 3).mean() == 3
    assert depth_sum([], ON_A_LINE) == depth_sum([], IN_BOXES) == 0
