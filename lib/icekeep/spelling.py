"""Which known word is meant by one that is not known, how an error asks, and numbers of things in words."""

import difflib
from collections.abc import Collection, Iterable

_NEAR_COUNT = 3
_NEAR_TO_BEST = 0.1
_LEAST_HELD = 3
"""So many letters of a word say which words hold it."""

_LEAST_MISTYPED = 4
"""With fewer letters names are others though they differ in one: `ods`, `dds`."""


def counted(count: int, things: str) -> str:
    """A number of things, whose English plural is given and ends with them.

    >>> counted(1, "delete files"), counted(2000, "files"), counted(1, "entries")
    ('1 delete file', '2,000 files', '1 entry')
    """
    return f"{count:,} {singular(things) if count == 1 else things}"


def counted_doing(count: int, things: str, verb: str) -> str:
    """The same, and a verb after it, as it is of several things.

    >>> counted_doing(1, "files", "are"), counted_doing(2, "files", "lie"), counted_doing(1, "entries", "reach")
    ('1 file is', '2 files lie', '1 entry reaches')
    """
    if count == 1:
        verb = {"are": "is", "have": "has", "do": "does", "reach": "reaches"}.get(verb, f"{verb}s")
    return f"{counted(count, things)} {verb}"


def singular(things: str) -> str:
    """One of some things, by their regular English plural."""
    return f"{things.removesuffix('ies')}y" if things.endswith("ies") else things.removesuffix("s")


def near_words(word: str, known: Iterable[str]) -> list[str]:
    """The known words that may be meant by one that is not known: the few that hold it, else those spelled nearly so.

    Case, and dashes for underscores, do not matter.

    >>> near_words("compct", ["compact", "check"]), near_words("expire", ["expire_snapshots", "check"])
    (['compact'], ['expire_snapshots'])
    >>> near_words("xyz", ["compact", "check"])
    []
    """
    by_spelling = {_spelled(one): one for one in known}
    wanted = _spelled(word)
    holding = [one for spelling, one in by_spelling.items() if wanted in spelling]
    if len(wanted) >= _LEAST_HELD and 0 < len(holding) <= _NEAR_COUNT:
        return holding
    rated = [
        (difflib.SequenceMatcher(None, near, wanted).ratio(), near)
        for near in difflib.get_close_matches(wanted, by_spelling, _NEAR_COUNT)
    ]
    return [by_spelling[near] for ratio, near in rated if ratio >= rated[0][0] - _NEAR_TO_BEST]


def with_one_typo(word: str, known: Iterable[str]) -> list[str]:
    """The known names that a user meant but for one slip: a letter missing, added or wrong, two swapped, or case.

    For names that a user has given: those that only look alike, such as `sales_eu` and `sales_us`, are other things. So are
    names that differ in a digit, and short ones.

    >>> with_one_typo("evnets", ["events", "events_old"]), with_one_typo("Events", ["events"])
    (['events'], ['events'])
    >>> with_one_typo("events_1", ["events_2"]), with_one_typo("ods", ["dds"])
    ([], [])
    """
    return [one for one in known if _is_one_typo(_spelled(word), _spelled(one))][:_NEAR_COUNT]


def did_you_mean(near: Iterable[str]) -> str:
    """How an error names the words that may be meant."""
    return f"did you mean {' or '.join(map(repr, near))}?"


def named_or_known(name: str, known: Collection[str]) -> str:
    """What an error says to a name that a user has given, and that is none of a few: the one that is mistyped, else all.

    >>> named_or_known("nightli", ["nightly", "weekly"]), named_or_known("x", ["a", "b"])
    ("did you mean 'nightly'?", 'there is a, b')
    """
    near = with_one_typo(name, known)
    return did_you_mean(near) if near else f"there is {', '.join(known) or 'none'}"


def _is_one_typo(one: str, other: str) -> bool:
    if one == other:
        return True
    length = max(len(one), len(other))
    while one[:1] == other[:1]:
        one, other = one[1:], other[1:]
    while one and one[-1:] == other[-1:]:
        one, other = one[:-1], other[:-1]
    if length < _LEAST_MISTYPED or any(letter.isdigit() for letter in one + other):
        return False
    return max(len(one), len(other)) == 1 or (len(one) == len("ab") and one == other[::-1])


def _spelled(word: str) -> str:
    return word.lower().replace("-", "_")
