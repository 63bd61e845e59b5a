"""Which jobs are due on a table and why others are not, in which order tables are worked on, and within which budget. Pure.

**Retries.** A job that fails on a table is tried less and less often, and never not at all.

    failures in a row   is tried again
    1                   by the next run, be it the next night's or one that goes on after a kill
    2                   2 nights after the last failure
    3                   4 nights after it
    4 and more          8 nights after it

What fails several times in one night has failed once. Where a catalog is out of reach, or another writer won (exit
status 75), a job has not failed: it is tried by each run. Whatever ends well begins anew. From the third failure on the
job is named in the result of each run until it ends well.

What was interrupted after long work has not failed, and is not tried less often; but it comes after what has waited
longer (`overview`), and is named from the third night on: it may need more time than it ever gets.

**What is due** follows from rules, figures, earlier runs and the clock. The first of these that holds decides of a job:

1. `held`: a layer of its policy switches it off, or cannot be read.
2. `closed`: its window is closed.
3. `postponed`: it failed lately.
4. `not_due`: its conditions do not hold, or it would do nothing about them. A job without any condition is due once in
   `REPEAT_MS`, so that a run that goes on after another that was killed does not do again what that one did;
   `when: {min_interval: ...}` says otherwise.
5. `due`; with `mode: observe` its plan is made, and nothing is changed.

**The budget** of a run is time and bytes: a job is begun only where what is left holds what it is estimated to take.
The time until a job's window closes is such a limit, too, in the second half of the window. A budget begins nothing; it
never ends anything either: a job that takes longer than its estimate goes on.

**The order**: first the tables whose jobs bring the most for what they cost. Both sides are money, since nothing else
makes files that nobody opens any more, bytes that are freed and hours of a processor one thing; where the configuration
has no prices those of `USUAL` are taken, and only their proportions matter. Of a job

    benefit = SCANS * spared opens * (price of a request + OPEN_MS * price of a core)
            + bytes that it frees or replaces, beyond those that it writes * price of a month of storage
    cost    = price of its processor time, its bytes and its requests, and of LEAST_CPU_MS of a core for its start and commit

and of a table, whose due jobs run together,

    value = sum of benefits / sum of costs + nights that its job waits which waits the longest / WAITING_NIGHTS

So a budget that does not hold all is spent where each cent of it brings the most (the greedy way to fill a knapsack), a
small table in a bad state comes before a large one in the same state, and the last term makes sure that each comes in
the end: a job without a benefit that can be told, such as `check`, overtakes what brings twice its cost after two
months. What was cut off comes later than its value says (`overview.in_order`).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from statistics import median

import msgspec

from icekeep.health.advice import facts_of
from icekeep.health.prices import Prices
from icekeep.health.values import JobAdvice, TableHealth
from icekeep.maintenance.compact.options import RATES_BYTES_A_SECOND, RewriteMethod
from icekeep.policies.resolution import JobRule, TableRules
from icekeep.policies.values import JobCall, Mode
from icekeep.policies.windows import ALWAYS, Facts, is_due, is_open
from icekeep.run_records.values import CUT_OFF_MS, LastRuns
from icekeep.spec.times import about_span
from icekeep.spec.types import DAY_MS, GIB, HOUR_MS, MIB, MINUTE_MS, format_bytes

NAMED_FROM = 3
"""From so many failures in a row on a job is named, and from so many nights in a row in which it was cut off."""

_DIED = "its process died"
_NIGHTS = (0, 0, 2, 4, 8)
_EARLY_MS = 6 * HOUR_MS
"""A run of the next night may begin, and come to a table, earlier than the one before."""


def wait_ms(failures_in_a_row: int) -> int:
    """How long a job is not tried after its last failure, milliseconds.

    >>> [wait_ms(count) // 3_600_000 for count in (0, 1, 2, 3, 4, 100)]
    [0, 0, 42, 90, 186, 186]
    """
    nights = _NIGHTS[min(max(failures_in_a_row, 0), len(_NIGHTS) - 1)]
    return nights * DAY_MS - _EARLY_MS if nights else 0


def postponed(last: LastRuns, now_ms: int) -> str | None:
    """Why a job is not tried now, in one line; `None` where it may be."""
    if last.last_failure_ms is None:
        return None
    left_ms = last.last_failure_ms + wait_ms(last.failures_in_a_row) - now_ms
    if left_ms <= 0:
        return None
    again, why = about_span(left_ms), last.last_error or _DIED
    return f"it failed {last.failures_in_a_row} times in a row, and is tried again in {again}: {why}"


def is_named(last: LastRuns) -> bool:
    """Whether it fails for so long that somebody has to look."""
    return max(last.failures_in_a_row, last.cut_offs_in_a_row) >= NAMED_FROM


def why_named(last: LastRuns) -> str:
    """In one line."""
    if last.failures_in_a_row >= NAMED_FROM:
        return last.last_error or _DIED
    return (
        f"it was interrupted in {last.cut_offs_in_a_row} nights in a row, after {about_span(CUT_OFF_MS)} of work or more: "
        "give the run more time, or the job less to do at once"
    )


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


_PACE_LEAST, _PACE_MOST = 1 / 64, 16.0


class JobEstimate(msgspec.Struct, frozen=True):
    """What a job is going to take: milliseconds from its beginning to its end, bytes read and written.

    Attributes:
        by_rates_ms: the milliseconds by rates alone, before what earlier runs have taught.
    """

    elapsed_ms: int = 0
    bytes: int = 0
    by_rates_ms: int = 0


class Budget:
    """What is left of a run's time and bytes. Not for several threads at once: who asks holds a lock.

    Estimates go by rates that were measured on another machine, and by as many cores as can be known beforehand, as long as no
    earlier run is on record; and tonight's store may be slower than last night's. So they are
    multiplied by the pace of this run: how much longer than their estimates those jobs took that have ended and were estimated at
    a minute or more. What shorter jobs took beyond their estimates is what each job needs whatever it does (Spark's jobs,
    commits to a slow store): the median of that is added, and multiplies nothing.
    """

    def __init__(self, now_ms: int, *, max_ms: int | None = None, max_bytes: int | None = None) -> None:
        self._ends_ms = None if max_ms is None else now_ms + max_ms
        self._max_bytes = max_bytes
        self._taken_bytes = 0
        self._estimated_ms = self._elapsed_ms = 0
        self._beyond_ms: list[int] = []

    @property
    def pace(self) -> float:
        """How much longer jobs take than estimated, 1/64 to 16; 1 as long as none has ended that says anything of it."""
        if not self._estimated_ms:
            return 1.0
        return min(_PACE_MOST, max(_PACE_LEAST, self._elapsed_ms / self._estimated_ms))

    @property
    def overhead_ms(self) -> int:
        """What each job takes beside its work, and beyond what estimates have of that."""
        return round(median(self._beyond_ms)) if self._beyond_ms else 0

    def refusal(self, estimate: JobEstimate, now_ms: int, closes_ms: int | None = None) -> str | None:
        """Why a job cannot be begun, in one line; `None` where it can.

        Args:
            closes_ms: when the job's window closes; `None` where that does not hold it.
        """
        wants_ms = round(estimate.elapsed_ms * self.pace) + self.overhead_ms
        if closes_ms is not None and wants_ms > closes_ms - now_ms:
            return (
                f"in the second half of its window only what fits is begun: it would take about {about_span(wants_ms)}, "
                f"and its window closes in {about_span(closes_ms - now_ms)}"
            )
        if self._ends_ms is not None:
            left_ms = self._ends_ms - now_ms
            if left_ms <= 0:
                return "the time of this run is over"
            if wants_ms > left_ms:
                return (
                    f"it would take about {about_span(wants_ms)}, and {about_span(left_ms)} of the run's time are left"
                )
        if self._max_bytes is not None:
            left = max(0, self._max_bytes - self._taken_bytes)
            if estimate.bytes > left:
                wants = format_bytes(estimate.bytes)
                return f"it would read and write about {wants}, and {format_bytes(left)} of the run's bytes are left"
        return None

    def begin(self, estimate: JobEstimate) -> None:
        """Take what a job is estimated to need."""
        self._taken_bytes += estimate.bytes

    def give_back(self, estimate: JobEstimate) -> None:
        """What was taken for a job that was not begun after all."""
        self._taken_bytes -= estimate.bytes

    def end(self, estimate: JobEstimate, elapsed_ms: int) -> None:
        """Take note of how long a job took that has ended well."""
        if estimate.elapsed_ms < MINUTE_MS:
            self._beyond_ms.append(max(0, elapsed_ms - estimate.elapsed_ms))
            return
        self._estimated_ms += estimate.elapsed_ms
        self._elapsed_ms += elapsed_ms


USUAL = Prices(core_hour=0.05, million_requests=0.4, gib_month=0.023)
"""About what object stores and virtual machines cost."""

SCANS = 300
"""How many scans a table is taken to have in the month in which a job pays: ten a day."""

OPEN_MS = 30
"""How long a core of a reader waits for a file that it opens: two requests of an object store."""

LEAST_CPU_MS = 1_000
WAITING_NIGHTS = 30

TASK_BYTES = 512 * MIB
"""Input of a task, about: a job has no more tasks than these, however many could run at once."""

Slots = Callable[[int], int]
"""How many tasks of a job that reads so many bytes run at once."""

_REQUEST_MS = 10
_LEAST_ELAPSED_MS = 500
_SORT = "--strategy=sort"
_ALL = "--option=rewrite-all=true"
_DEEP = "--deep"


class Worth(msgspec.Struct, frozen=True):
    """What a job brings and costs, in money, and how many nights it has not ended well, 0 for one that just has."""

    benefit: float
    cost: float
    waiting_nights: float = 0.0


def worth_of(advice: JobAdvice | None, waiting_ms: int | None, prices: Prices | None = None) -> Worth:
    """What a job is worth on a table.

    Args:
        advice: what the job would do; `None` where that cannot be told.
        waiting_ms: since it last ended well; `None`: it never has, which counts as `WAITING_NIGHTS`.
        prices: those of the configuration.
    """
    by = USUAL if prices is None else prices
    one = JobAdvice(job="", has_work=False, reason="") if advice is None else advice
    of_an_open = by.cost(cpu_ms=OPEN_MS, read_bytes=0, written_bytes=0, requests_count=1)
    freed_bytes = max(0, (one.freed_bytes or 0) + one.replaced_bytes - one.written_bytes)
    benefit = SCANS * one.spared_opens_count * of_an_open + freed_bytes / GIB * by.gib_month
    cost = by.cost(
        cpu_ms=one.cpu_ms + LEAST_CPU_MS,
        read_bytes=one.read_bytes,
        written_bytes=one.written_bytes,
        requests_count=one.requests_count,
    )
    nights = WAITING_NIGHTS if waiting_ms is None else max(0, waiting_ms) / DAY_MS
    return Worth(benefit if one.has_work else 0.0, cost, nights)


def value_of(worths: Iterable[Worth]) -> float:
    """What a table is worth by all of its due jobs; more comes first. 0 for one that has none."""
    given = [*worths]
    cost, benefit = sum(one.cost for one in given), sum(one.benefit for one in given)
    waiting = max((one.waiting_nights for one in given), default=0.0)
    # Whoever says that nothing costs anything still wants the most first.
    return (benefit / cost if cost else benefit) + waiting / WAITING_NIGHTS


def one_slot(_: int) -> int:
    """One task after the other."""
    return 1


def estimate_of(
    job: str,
    arguments: Sequence[str],
    advice: JobAdvice | None,
    table_bytes: int,
    slots: Slots = one_slot,
    pace: float = 1.0,
) -> JobEstimate:
    """What a job takes of a budget, by the rates of `docs/performance.md`, which are those of one core.

    Its start and its requests take as long as they do, however many cores work; the rest is divided by these.

    Args:
        arguments: of its command line: a job that sorts takes longer, one that rewrites all or reads all takes the whole table.
        table_bytes: of the table's data files.
        pace: how much longer its last runs took than the rates say.
    """
    takes_all = (job == "compact" and _ALL in arguments) or (job == "check" and _DEEP in arguments)
    one = JobAdvice(job=job, has_work=False, reason="") if advice is None else advice
    read, written, cpu_ms = one.read_bytes, one.written_bytes, one.cpu_ms
    if takes_all:
        read, written = table_bytes, table_bytes if job == "compact" else 0
        cpu_ms = table_bytes * 1000 // RATES_BYTES_A_SECOND[RewriteMethod.REENCODE]
    if job == "compact" and _SORT in arguments:
        cpu_ms = cpu_ms * RATES_BYTES_A_SECOND[RewriteMethod.REENCODE] // RATES_BYTES_A_SECOND[RewriteMethod.SORT]
    tasks = read // TASK_BYTES
    # To ask how many run at once takes its time, with thousands of tables.
    work_ms = cpu_ms // max(1, min(slots(read), tasks)) if tasks > 1 else cpu_ms
    by_rates_ms = _LEAST_ELAPSED_MS + work_ms + one.requests_count * _REQUEST_MS
    return JobEstimate(round(by_rates_ms * pace), read + written, by_rates_ms)
