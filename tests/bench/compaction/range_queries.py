"""Queries over ranges of two columns of lineitem, the same in every run."""

import datetime
import random

_QUERIES = 24
_FIRST_DAY, _DAYS = datetime.date(1992, 1, 2), 2526  # of shipping
_PARTS = 200_000  # at scale factor 1
_SEED = 7


def range_queries(scale: float) -> list[str]:
    """Filters: a range of ship dates, from a month to a year, and one of parts, from a hundredth to a fifth of all."""
    numbers = random.Random(_SEED)
    return [_query(numbers, int(_PARTS * scale)) for _ in range(_QUERIES)]


def _query(numbers: random.Random, parts: int) -> str:
    days = numbers.randint(30, 365)
    first = _FIRST_DAY + datetime.timedelta(days=numbers.randrange(_DAYS - days))
    last = first + datetime.timedelta(days=days)
    width = numbers.randint(parts // 100, parts // 5)
    part = numbers.randrange(1, parts - width)
    return f"l_shipdate >= '{first}' and l_shipdate < '{last}' and l_partkey >= {part} and l_partkey < {part + width}"
