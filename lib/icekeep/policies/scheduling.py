"""What a scheduler runs that knows the configuration file alone, such as Airflow: no catalog, and no number about a table.

It runs each policy by itself. One that such a scheduler cannot follow is not scheduled, and is told: nothing of it is run at a
time, or under conditions, that nobody has asked for.
"""

from collections.abc import Mapping

import msgspec

from icekeep.policies.resolution import JobRule, rules_for
from icekeep.policies.triggers import ALWAYS
from icekeep.policies.values import JobCall, Mode, Policy, Rules

_DRY_RUN = "--dry-run"


class Schedule(msgspec.Struct, frozen=True):
    """What to run of a policy.

    Attributes:
        calls: by table, sorted, in the order in which they run; a job that only observes is called with `--dry-run`.
        unscheduled: why the whole policy is not scheduled; `None` where it is.
    """

    calls: Mapping[str, tuple[JobCall, ...]] = {}
    unscheduled: str | None = None


def schedule_of(rules: Rules, policy: Policy) -> Schedule:
    """What a policy's schedule runs, as far as the file says it."""
    if policy.match:
        return Schedule(unscheduled="it has `match`, and which tables there are only the catalog knows")
    alone = msgspec.structs.replace(rules, policies=(policy,))
    found = {table: rules_for(alone, table).jobs for table in policy.tables}
    for table, jobs in found.items():
        for rule in jobs:
            if rule.trigger != ALWAYS:
                return Schedule(unscheduled=f"job {rule.job} of table {table} has conditions (`when`)")
            if rule.window is not None:
                return Schedule(unscheduled=f"table {table} has a `window`")
    return Schedule(
        {table: tuple(_call(rule) for rule in jobs if rule.held_by is None) for table, jobs in found.items()}
    )


def _call(rule: JobRule) -> JobCall:
    call = rule.call
    return JobCall(call.job, (*call.arguments, _DRY_RUN)) if rule.mode is Mode.OBSERVE else call
