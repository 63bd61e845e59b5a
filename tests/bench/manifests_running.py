"""What both rivals of `manifests.py` do: a small table first, then the one that counts, as often as is asked.

Standard library only. A run's table is made what it was before by a process of its own (`expiration_copies.py`).
"""

from collections.abc import Callable
from typing import Any

from bench import rival
from bench.expiration_running import restore
from bench.watching import Watch

REWRITE, APPEND, PLAN = "rewrite", "append", "plan"

_PLANS = 3

Prepare = Callable[[str], Callable[[], dict[str, Any]]]
"""From the name of a catalog: the work to time on its table, which says what its outcome says."""

Planner = Callable[[str], dict[str, Any]]
"""Plan a filter of the request over the table that counts; as `rival.measured`."""


def answer_of(request: dict[str, Any], prepare: Prepare, planner: Planner) -> dict[str, Any]:
    """What a rival's process answers.

    Returns:
        `runs`, each with what `Watch` saw and the `result`; `before` and `after`, the plans of each filter of the request
        over the table as it was and as the last run left it. Of `PLAN` only the last, over the table as it is.
    """
    small, table = request["small"], request["table"]
    filters = request["filters"]
    if request["job"] == PLAN:
        return {"after": {name: planner(name) for name in filters}}
    restore(small)
    prepare(small["catalog"])()
    restore(table)
    before = {name: planner(name) for name in filters}
    runs = []
    for number in range(request["runs"]):
        if number:
            restore(table)
        work = prepare(table["catalog"])
        with Watch() as watch:
            result = work()
        runs.append({**watch.figures(), "result": result})
    return {"runs": runs, "before": before, "after": {name: planner(name) for name in filters}}


def planned(load: Callable[[], Any], plan: Callable[[Any], tuple[int, int]]) -> dict[str, Any]:
    """Plan once and some times more; the best counts."""
    return rival.measured(load, plan, _PLANS)
