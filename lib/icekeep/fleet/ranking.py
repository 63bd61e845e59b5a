"""In which order tables are worked on: those first whose jobs bring the most for what they cost.

Both sides are money, since nothing else makes files that nobody opens any more, bytes that are freed and hours of a processor one
thing; where the configuration has no prices those of `USUAL` stand in for them, and only their proportions matter. Of a job

    benefit = SCANS * spared opens * (price of a request + OPEN_MS * price of a core)
            + bytes that it frees or replaces, beyond those that it writes * price of a month of storage
    cost    = price of its processor time, its bytes and its requests, and of LEAST_CPU_MS of a core for its start and commit

and of a table, whose due jobs run together,

    value = sum of benefits / sum of costs + nights that its job waits which waits the longest / WAITING_NIGHTS

So a budget that does not hold all is spent where each cent of it brings the most (the greedy way to fill a knapsack), a small
table in a bad state comes before a large one in the same state, and the last term makes sure that each comes in the end: a job
without a benefit that can be told, such as `check`, overtakes what brings twice its cost after two months.
What was cut off comes later than its value says (`overview.in_order`).
"""

from collections.abc import Callable, Iterable, Sequence

import msgspec

from icekeep.fleet.budget import Estimate
from icekeep.health.prices import Prices
from icekeep.health.values import JobAdvice
from icekeep.maintenance.compact.options import RATES_BYTES_A_SECOND, RewriteMethod
from icekeep.spec.types import DAY_MS, GIB, MIB

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
) -> Estimate:
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
    return Estimate(round(by_rates_ms * pace), read + written, by_rates_ms)
