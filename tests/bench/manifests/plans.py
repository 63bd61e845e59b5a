"""What the planning of some filters takes. Standard library only."""

import time
from collections.abc import Callable, Mapping
from typing import Any

_PLANS = 4


def timed_plans(
    filters: Mapping[str, Any], ready: Callable[[Any], Callable[[], Callable[[], dict[str, int]]]]
) -> dict[str, Any]:
    """Of each filter the best time of some plans, each of a table that was just loaded, and the files that they find.

    Args:
        ready: loads the table; what it returns plans a filter.
    """
    found = {}
    for name, asked in filters.items():
        seconds, results = [], []
        for _ in range(_PLANS):
            plan = ready(asked)
            began = time.perf_counter()
            say = plan()
            seconds.append(time.perf_counter() - began)
            results.append(say())
        if any(result != results[0] for result in results):
            raise AssertionError(f"the same plan has different results: {results}")
        found[name] = {"seconds": min(seconds), **results[0]}
    return found
