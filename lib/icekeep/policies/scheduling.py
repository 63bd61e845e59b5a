"""What a scheduler runs of a policy, such as Airflow, which knows the configuration file and no catalog while it reads its plans.

A policy that lists its tables and asks nothing of them is known in advance. Of any other the tables and jobs are known only when
a run begins: then `icekeep maintain --list` is asked.
"""

from collections.abc import Mapping

import msgspec

from icekeep.policies.resolution import JobRule, TableRules, rules_for
from icekeep.policies.triggers import ALWAYS
from icekeep.policies.values import SUBMIT_OVER, JobCall, Mode, Policy, Rules
from icekeep.policies.windows import Window, is_open

DRY_RUN = "--dry-run"


class Schedule(msgspec.Struct, frozen=True):
    """What to run of a policy.

    Attributes:
        calls: by table, sorted, in the order in which they run; a job that only observes is called with `--dry-run`.
        asks: why tables and jobs are known only when a run begins; `None` where `calls` are all.
        left_to_others: jobs of listed tables of which an earlier policy decides, each with that, as people are told.
    """

    calls: Mapping[str, tuple[JobCall, ...]] = {}
    asks: str | None = None
    left_to_others: tuple[str, ...] = ()


def schedule_of(rules: Rules, policy: Policy) -> Schedule:
    """What a policy's schedule runs, as far as the file says it."""
    asks = _asks(rules, policy)
    if asks is not None:
        return Schedule(asks=asks)
    alone = msgspec.structs.replace(rules, policies=(policy,))
    found = {table: rules_for(alone, table).jobs for table in policy.tables}
    for table, jobs in found.items():
        for rule in jobs:
            if rule.trigger != ALWAYS:
                return Schedule(asks=f"job {rule.job} of table {table} has conditions (`when`)")
            if rule.window is not None:
                return Schedule(asks=f"table {table} has a `window`")
    decided = {table: rules_for(rules, table).jobs for table in policy.tables}
    return Schedule(
        {
            table: tuple(_call(rule) for rule in jobs if rule.policy == policy.name and rule.held_by is None)
            for table, jobs in decided.items()
        },
        left_to_others=tuple(
            f"{rule.job} of {table}: policy {rule.policy!r}"
            for table, jobs in decided.items()
            for rule in jobs
            if policy.name in rule.others
        ),
    )


def window_of(rules: Rules, policy: str, table: str, job: str) -> Window | None:
    """When a job of a policy may begin on a table; `None` at any time, or where the policy does not decide of it."""
    found = (rule for rule in rules_for(rules, table).jobs if rule.job == job and rule.policy == policy)
    return next((rule.window for rule in found), None)


def held_by_now(found: TableRules, job: str, policy: str, now_ms: int) -> str | None:
    """Why a job that a policy has asked for may not begin on a table by now, whatever its trigger says; `None` where it may.

    Args:
        found: what is in force for the table, with what its catalog and its own properties say.
    """
    rule = next((one for one in found.jobs if one.job == job), None)
    if rule is None:
        return f"policy {policy!r} does not ask for it on this table"
    if rule.policy != policy:
        return f"policy {rule.policy!r} decides of it, and not {policy!r}"
    if rule.held_by is None and rule.window is not None and not is_open(rule.window, now_ms):
        return f"its window is closed: {rule.window}"
    return rule.held_by


def _asks(rules: Rules, policy: Policy) -> str | None:
    if policy.match:
        return "it has `match`, and which tables there are only the catalog knows"
    if policy.submit_over_bytes is not None and {**rules.defaults.keys, **policy.layer.keys}.get(SUBMIT_OVER):
        return "it has `submit_over`, and how large tables are only the catalog knows"
    return None


def _call(rule: JobRule) -> JobCall:
    call = rule.call
    return JobCall(call.job, (*call.arguments, DRY_RUN)) if rule.mode is Mode.OBSERVE else call
