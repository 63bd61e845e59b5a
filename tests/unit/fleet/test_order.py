"""The order of work: by value, and what was cut off after what has not been tried since."""

import msgspec

from icekeep.fleet.overview import in_order
from kit.cases import for_each


class Table(msgspec.Struct):
    name: str
    worth: float
    tried_ms: int | None = None
    cut_off_ms: int | None = None
    due: tuple[str, ...] = ("compact",)
    health: None = None

    def value(self, prices):
        return self.worth if self.due else 0.0


def order_of(*tables):
    return " ".join(one.name for one in in_order(tables, None))


def cut(name, worth, at_ms):
    return Table(name, worth, at_ms, at_ms)


@for_each(
    ("tables", "expected"),
    [
        ([Table("a", 1), Table("b", 3), Table("c", 2)], "b c a"),
        # Nobody else was tried since: it comes last of those that are due.
        ([Table("a", 1), cut("big", 9, 50), Table("c", 2, 49), Table("idle", 0, None, None, ())], "c a big idle"),
        # All others were: it comes by its value again.
        ([Table("a", 1, 51), cut("big", 9, 50), Table("c", 2, 60)], "big c a"),
        ([Table("a", 1, 51), cut("small", 1.5, 50), Table("c", 2, 60)], "c small a"),
        # One was not: it comes right after that.
        ([Table("a", 1, 51), cut("big", 9, 50), Table("c", 2, 49)], "c big a"),
        # Of two the one that was cut off last comes last.
        ([cut("big", 9, 50), cut("great", 8, 40), Table("c", 2, 30)], "c great big"),
        ([cut("big", 9, 50), cut("great", 8, 40), Table("c", 2, 45)], "great c big"),
    ],
)
def test_what_was_cut_off_comes_after_what_has_not_been_tried_since(tables, expected):
    assert order_of(*tables) == expected
    assert order_of(*reversed(tables)) == expected
