"""Which jobs are due on a table, and why those are not that are not: from rules, figures, earlier runs and the clock. Pure.

The first of these that holds decides of a job:

1. `held`: a layer of its policy switches it off, or cannot be read.
2. `closed`: its window is closed.
3. `postponed`: it failed lately (`retrying`).
4. `not_due`: its conditions do not hold, or it would do nothing about them. A job without any condition is due once in
   `REPEAT_MS`, so that a run that goes on after another that was killed does not do again what that one did;
   `when: {min_interval: ...}` says otherwise.
5. `due`; with `mode: observe` its plan is made, and nothing is changed.
"""

from collections.abc import Mapping
from enum import StrEnum

import msgspec

from icekeep.fleet.retrying import postponed
from icekeep.health.facts import facts_of
from icekeep.health.values import JobAdvice, TableHealth
from icekeep.policies.resolution import JobRule, TableRules
from icekeep.policies.triggers import ALWAYS, Facts, is_due
from icekeep.policies.values import JobCall, Mode
from icekeep.policies.windows import is_open
from icekeep.run_records.values import LastRuns
from icekeep.spec.times import about_span
from icekeep.spec.types import HOUR_MS

REPEAT_MS = 6 * HOUR_MS
"""A job without conditions is not due again before this has passed since it ended well."""

NEVER_RAN = LastRuns()
NOT_KNOWN = LastRuns(is_known=False)
"""Of a job whose runs are written down where nobody could ask."""


class Verdict(StrEnum):
    """What becomes of a job."""

    DUE = "due"
    NOT_DUE = "not_due"
    HELD = "held"
    CLOSED = "closed"
    POSTPONED = "postponed"


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """A job that a policy names for a table, and what becomes of it.

    Attributes:
        why: in one line.
        advice: what it would do with default arguments; `None` where that cannot be told.
        last: what is known of its earlier runs.
    """

    rule: JobRule
    verdict: Verdict
    why: str
    advice: JobAdvice | None = None
    last: LastRuns = NEVER_RAN

    @property
    def call(self) -> JobCall:
        """The job with its arguments."""
        return self.rule.call

    @property
    def observes(self) -> bool:
        """Whether only its plan is made."""
        return self.rule.mode is Mode.OBSERVE


def may_begin(rule: JobRule, last: LastRuns, now_ms: int) -> tuple[Verdict, str]:
    """What can be said of a job before anybody looks at the table: `DUE` where it is worth the look."""
    if rule.held_by is not None:
        return Verdict.HELD, rule.held_by
    if rule.window is not None and not is_open(rule.window, now_ms):
        return Verdict.CLOSED, f"its window is closed: {rule.window}"
    waits = postponed(last, now_ms)
    if waits is not None:
        return Verdict.POSTPONED, waits
    return Verdict.DUE, ""


def choices(
    rules: TableRules, health: TableHealth | None, last_runs: Mapping[str, LastRuns], now_ms: int
) -> tuple[Choice, ...]:
    """What becomes of each job that policies name for a table, in the order in which jobs run.

    Args:
        health: `None` where it cannot be told: then numbers are not known, and no condition on them holds.
        last_runs: by job.
    """
    return tuple(_choice(rule, health, last_runs.get(rule.job, NEVER_RAN), now_ms) for rule in rules.jobs)


def decided(rule: JobRule, health: TableHealth | None, last: LastRuns, now_ms: int) -> tuple[Verdict, str]:
    """What becomes of one job, and why."""
    verdict, why = may_begin(rule, last, now_ms)
    return _by_conditions(rule, health, last, now_ms) if verdict is Verdict.DUE else (verdict, why)


def _choice(rule: JobRule, health: TableHealth | None, last: LastRuns, now_ms: int) -> Choice:
    verdict, why = decided(rule, health, last, now_ms)
    advice = next((one for one in health.jobs if one.job == rule.job), None) if health is not None else None
    return Choice(rule=rule, verdict=verdict, why=why, advice=advice, last=last)


def _by_conditions(rule: JobRule, health: TableHealth | None, last: LastRuns, now_ms: int) -> tuple[Verdict, str]:
    ran_ms = last.last_ok_ms
    if rule.trigger == ALWAYS and ran_ms is not None and now_ms - ran_ms < REPEAT_MS:
        return Verdict.NOT_DUE, (
            f"it ended well {about_span(max(0, now_ms - ran_ms))} ago; without `when` it runs once in {about_span(REPEAT_MS)}"
        )
    facts = Facts(last_run_ms=ran_ms)
    if health is not None:
        facts = facts_of(health, rule.job, ran_ms, arguments=rule.call.arguments)
    due = is_due(rule.trigger, facts, now_ms)
    return (Verdict.DUE if due else Verdict.NOT_DUE), due.why
