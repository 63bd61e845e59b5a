"""What is in force for one table: which policy decides of each job, and which layer of each value.

Of the policies that reach the table and name a job, the first in the file decides, and it alone: no value of a later
one is mixed in. Layers never add a job that no policy names, but they can switch one off, or on again where an outer
one has switched it off; but what the file switches off for a namespace or a table itself, no property of the table
switches on.

A scheduler such as Airflow knows the configuration file and no catalog while it reads its plans. A policy that lists
its tables and has no conditions is known in advance. Of any other the tables and jobs are known only when a run begins:
then `icekeep maintain --list` is asked.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from icekeep.errors import UsageError, and_more
from icekeep.policies.values import (
    ENABLED,
    MODE,
    SUBMIT_OVER,
    WHEN,
    WINDOW,
    JobCall,
    Layer,
    LayerKind,
    Mode,
    Policy,
    PolicyValue,
    Rules,
)
from icekeep.policies.windows import ALWAYS, Trigger, Window, is_open


class Effective(msgspec.Struct, frozen=True):
    """A value that is in force; `overridden` are those of outer layers that it is in place of, the innermost first."""

    key: str
    innermost: PolicyValue
    overridden: tuple[PolicyValue, ...] = ()


class JobRule(msgspec.Struct, frozen=True, kw_only=True):
    """What is in force for a job on a table.

    Attributes:
        policy: the one that decides.
        others: later policies that name the job too, in the order of the file; nothing of them is in force.
        common: what is said of all jobs.
        values: what is said of this one.
        held_by: why it may not run, whatever its trigger and window say; `None` where it may.
    """

    job: str
    policy: str
    others: tuple[str, ...]
    common: tuple[Effective, ...] = ()
    values: tuple[Effective, ...] = ()
    held_by: str | None = None

    @property
    def call(self) -> JobCall:
        """The job with the arguments of its command line, in the order of its settings."""
        settings = [one.innermost for one in self.values if isinstance(one.innermost.value, tuple)]
        in_order = sorted(settings, key=lambda one: one.order)
        return JobCall(self.job, tuple(argument for one in in_order for argument in one.value))

    @property
    def mode(self) -> Mode:
        """Whether it works or only observes."""
        mode: Mode = self._value(MODE, Mode.RUN)
        return mode

    @property
    def window(self) -> Window | None:
        """When it may begin; `None` at any time."""
        window: Window | None = self._value(WINDOW, None)
        return window

    @property
    def trigger(self) -> Trigger:
        """Under which conditions it is worth running."""
        prefix = f"{WHEN}."
        conditions = {
            value.key.removeprefix(prefix): value.innermost.value
            for value in self.values
            if value.key.startswith(prefix)
        }
        known = {name: conditions.get(name.removesuffix("_ms")) for name in Trigger.__struct_fields__}
        return Trigger(**known)

    def _value(self, key: str, default: Any) -> Any:
        return next((value.innermost.value for value in self.common if value.key == key), default)


class TableRules(msgspec.Struct, frozen=True, kw_only=True):
    """What is in force for a table.

    Attributes:
        policies: those that reach it, in the order of the file.
        jobs: those that one of them names, in the order in which they run.
        unasked: by job what layers say of jobs that none of them names; nothing of it is in force.
    """

    table: str
    policies: tuple[str, ...]
    jobs: tuple[JobRule, ...]
    unasked: Mapping[str, tuple[PolicyValue, ...]] = {}


def rules_for(rules: Rules, table: str, *, stored: Layer | None = None, properties: Layer | None = None) -> TableRules:
    """What is in force for a table.

    Args:
        table: its full name.
        stored: what its catalog has stored for it, `None` for nothing.
        properties: what its own properties say, `None` for nothing.
    """
    reaching = [policy for policy in rules.policies if policy.reaches(table)]
    inner = tuple(layer for layer in (stored, *rules.layers_of(table), properties) if layer is not None)
    jobs = []
    for job in rules.job_names:
        naming = [policy for policy in reaching if job in policy.layer.jobs]
        if naming:
            layers = (rules.defaults, naming[0].layer, *inner)
            rule = JobRule(
                job=job,
                policy=naming[0].name,
                others=tuple(policy.name for policy in naming[1:]),
                common=layered(layers, None),
                values=layered(layers, job),
                held_by=_held_by(job, layers),
            )
            jobs.append(rule)
    asked = {rule.job for rule in jobs}
    unasked = {
        job: tuple(value for layer in inner for value in layer.of_job(job).values())
        for job in rules.job_names
        if job not in asked and any(layer.of_job(job) for layer in inner)
    }
    names = tuple(policy.name for policy in reaching)
    return TableRules(table=table, policies=names, jobs=tuple(jobs), unasked=unasked if reaching else {})


def layered(layers: Sequence[Layer], job: str | None) -> tuple[Effective, ...]:
    """The values that are in force where layers lie one within the other, the outermost first, of a job or of all (`None`)."""
    values: dict[str, list[PolicyValue]] = {}
    for layer in layers:
        for key, one in layer.of_job(job).items():
            values.setdefault(key, []).append(one)
    return tuple(Effective(key, some[-1], tuple(some[-2::-1])) for key, some in values.items())


def _held_by(job: str, layers: Sequence[Layer]) -> str | None:
    for layer in layers:
        if layer.is_doubtful or job in layer.doubtful_jobs:
            whose = {LayerKind.PROPERTIES: "the table's properties", LayerKind.STORED: "the catalog's stored policies"}
            return f"{whose.get(layer.kind, layer.name)} cannot be read"
    # Against layers of the file that are about places alone, whoever may write a table has no word.
    of_places = [layer for layer in layers if layer.kind in (LayerKind.NAMESPACE, LayerKind.TABLE)]
    for some in (layers, of_places):
        for value in (*layered(some, None), *layered(some, job)):
            if value.key == ENABLED and not value.innermost.value:
                return f"switched off by {value.innermost.source}"
    return None


DRY_RUN = "--dry-run"

_PRESETS = {
    "@once": None,
    "@continuous": None,
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@quarterly": "0 0 1 */3 *",
    "@yearly": "0 0 1 1 *",
}
"""The words that Airflow takes for a schedule, as cron; `None` where none says the same."""

SCHEDULE_FORM = (
    "five fields ('0 2 * * *': minute 0-59, hour 0-23, day of the month 1-31, month 1-12 or jan-dec, day of the week 0-7 or "
    f"sun-sat), one of {', '.join(sorted(_PRESETS))}, or null"
)
"""What a schedule may be, as errors say it."""

_FIRST = datetime(2024, 1, 1, tzinfo=UTC)
"""Where a schedule begins that is looked at for its first time; `never` must not depend on the day on which it is read."""


class Schedule(msgspec.Struct, frozen=True):
    """What to run of a policy.

    Attributes:
        calls: by table, sorted, in the order in which they run; a job that only observes is called with `--dry-run`.
        asks: why tables and jobs are known only when a run begins; `None` where `calls` are all.
        left_to_others: jobs of listed tables of which an earlier policy decides, each with that, as people are told.
        never_run: those of them that nobody runs, since that policy has no schedule.
    """

    calls: Mapping[str, tuple[JobCall, ...]] = {}
    asks: str | None = None
    left_to_others: tuple[str, ...] = ()
    never_run: tuple["NeverRun", ...] = ()


class NeverRun(msgspec.Struct, frozen=True, kw_only=True):
    """A job that a policy with a schedule asks for on some tables, and that no schedule runs.

    Attributes:
        tables: sorted by name.
        decided_by: a policy without a schedule that stands before it, reaches the same tables and names the job too.
    """

    job: str
    policy: str
    decided_by: str
    tables: tuple[str, ...]

    @property
    def line(self) -> str:
        """For people."""
        where = f"{self.tables[0]}{and_more(self.tables)}"
        return (
            f"no schedule runs {self.job} on {where}, which policy {self.policy!r} asks for: policy {self.decided_by!r} stands "
            "before it, decides of that job there, and has no schedule"
        )


def parse_schedule(text: str) -> str:
    """The text of a schedule, in UTC, without space around it: what Airflow takes, and nothing that it would refuse.

    >>> parse_schedule(" 0 2 * * mon-fri ")
    '0 2 * * mon-fri'

    Raises:
        UsageError: a field is missing or out of its range, or the time never comes.
    """
    # The parser that Airflow has. It takes a while to import, and only files with policies need it.
    from croniter import CroniterBadCronError, CroniterBadDateError, croniter

    text = text.strip()
    cron = _PRESETS.get(text, text)
    if cron is None:
        return text
    try:
        croniter(cron, _FIRST).get_next()
    except CroniterBadDateError:
        raise UsageError(f"{text!r} never comes: no year has such a day") from None
    except CroniterBadCronError:
        raise UsageError(f"{text!r} is not a cron schedule; give {SCHEDULE_FORM}") from None
    return text


def never_run(rules: Rules, found: Iterable[TableRules], asking: Collection[str] | None = None) -> tuple[NeverRun, ...]:
    """The jobs that schedules ask for and do not run, as a policy for work by hand decides of them.

    Args:
        found: what is in force for some tables. What is held there is left out: it should not run.
        asking: only what these policies ask for; by default all that have a schedule.
    """
    scheduled = {policy.name for policy in rules.policies if policy.schedule is not None}
    asking = scheduled if asking is None else scheduled & {*asking}
    tables: dict[tuple[str, str, str], list[str]] = {}
    for one in found:
        for rule in one.jobs:
            asked_by = next((name for name in rule.others if name in asking), None)
            if rule.policy not in scheduled and rule.held_by is None and asked_by is not None:
                tables.setdefault((rule.job, asked_by, rule.policy), []).append(one.table)
    return tuple(
        NeverRun(job=job, policy=policy, decided_by=decided_by, tables=tuple(sorted(names)))
        for (job, policy, decided_by), names in tables.items()
    )


def schedule_of(rules: Rules, policy: Policy) -> Schedule:
    """What a policy's schedule runs, as far as the file says it."""
    if policy.match:
        return Schedule(asks="it has `match`, and which tables there are only the catalog knows")
    if policy.submit_over_bytes is not None and {**rules.defaults.keys, **policy.layer.keys}.get(SUBMIT_OVER):
        return Schedule(asks="it has `submit_over`, and how large tables are only the catalog knows")
    alone = msgspec.structs.replace(rules, policies=(policy,))
    found = {table: rules_for(alone, table).jobs for table in policy.tables}
    for table, jobs in found.items():
        for rule in jobs:
            if rule.trigger != ALWAYS:
                return Schedule(asks=f"job {rule.job} of table {table} has conditions (`when`)")
            if rule.window is not None:
                return Schedule(asks=f"table {table} has a `window`")
    in_force = {table: rules_for(rules, table) for table in policy.tables}
    decided = {table: one.jobs for table, one in in_force.items()}
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
        never_run=never_run(rules, in_force.values(), {policy.name}),
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


def _call(rule: JobRule) -> JobCall:
    call = rule.call
    return JobCall(call.job, (*call.arguments, DRY_RUN)) if rule.mode is Mode.OBSERVE else call
