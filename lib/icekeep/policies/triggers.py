"""When a job is worth running on a table: conditions over a few numbers about it.

The numbers are measured elsewhere (from metadata, and from what is known of earlier runs); here they are only compared.
"""

import re

import msgspec

from icekeep.errors import UsageError
from icekeep.spec.times import format_span, format_time, span_ms


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a table and of one job on it. `None` is a number that nobody has measured.

    Attributes:
        small_files: how many data files of the current snapshot are smaller than compaction would leave them, and are enough
            together to be taken by it.
        delete_ratio: deleted rows of the current snapshot, as a part of all rows that its data files hold, 0 to 1.
        manifests: how many manifests the current snapshot has.
        overlap: how many data manifests a filter on one partition opens, in the mean; 1 is best.
        snapshots: how many snapshots the table has.
        last_run_ms: when the job last ended well on the table, epoch milliseconds; `None` where it never has, or nobody knows.
        idle: why the job would do nothing to the table, whatever the numbers are; empty where it would, or that is not known.
    """

    small_files: int | None = None
    delete_ratio: float | None = None
    manifests: int | None = None
    overlap: float | None = None
    snapshots: int | None = None
    last_run_ms: int | None = None
    idle: str = ""


class Trigger(msgspec.Struct, frozen=True, kw_only=True):
    """Conditions of a job; `None` is one that nobody has set.

    The job is due where one of those that end with `_over` holds, which is where the number is above the limit, unless the job
    is known to do nothing about it. It is not due while `min_interval_ms` has not passed since it last ran, whatever else
    holds. Without any `_over` it is due when that has.

    Attributes:
        age_over_ms: of the job's last run, milliseconds; one that never ran is older than any limit.
        min_interval_ms: milliseconds.
    """

    small_files_over: int | None = None
    delete_ratio_over: float | None = None
    manifests_over: int | None = None
    overlap_over: float | None = None
    snapshots_over: int | None = None
    age_over_ms: int | None = None
    min_interval_ms: int | None = None


class Due(msgspec.Struct, frozen=True):
    """Whether a job is to run, and why or why not, in one line."""

    is_due: bool
    why: str

    def __bool__(self) -> bool:
        return self.is_due


_COUNTS = frozenset({"small_files_over", "manifests_over", "snapshots_over"})
SPANS = frozenset({"age_over", "min_interval"})
_LEAST = {"overlap_over": 1.0, "delete_ratio_over": 0.0}
_MOST = {"delete_ratio_over": 1.0}
CONDITIONS = tuple(name.removesuffix("_ms") for name in Trigger.__struct_fields__)
"""The names of conditions as people write them."""

_DECIMAL = re.compile(r"[0-9]{1,15}(\.[0-9]{1,15})?")
MEASURED = ("small_files", "delete_ratio", "manifests", "overlap", "snapshots")
"""The numbers of a table that a condition may ask for, with `_over`."""
ALWAYS = Trigger()
"""No condition at all."""


def parse_condition(name: str, text: str) -> int | float:
    """The limit of a condition from its text; spans are milliseconds.

    >>> parse_condition("small_files_over", "100"), parse_condition("delete_ratio_over", "0.1"), parse_condition("age_over", "7d")
    (100, 0.1, 604800000)

    Raises:
        UsageError: it is no limit of this condition, or there is no such condition.
    """
    if name not in CONDITIONS:
        raise UsageError(f"there is no condition {name!r}; there is {', '.join(CONDITIONS)}")
    if name in SPANS:
        return span_ms(text)
    if not _DECIMAL.fullmatch(text.strip()) or (name in _COUNTS and "." in text):
        raise UsageError(f"{text!r} is no limit of {name}; give a {'whole ' if name in _COUNTS else ''}number")
    limit = int(text) if name in _COUNTS else float(text)
    if not _LEAST.get(name, 0) <= limit <= _MOST.get(name, limit):
        raise UsageError(
            f"{text!r} is no limit of {name}; give a number of {_LEAST[name]:g} or more"
            + (f", {_MOST[name]:g} at most" if name in _MOST else "")
        )
    return limit


def is_due(trigger: Trigger, facts: Facts, now_ms: int) -> Due:
    """Whether a job is to run now. A number that is not known makes no job due, and is told.

    >>> is_due(Trigger(small_files_over=100), Facts(small_files=101), 0)
    Due(is_due=True, why='small_files is 101, over 100')
    >>> is_due(Trigger(small_files_over=100, manifests_over=5), Facts(small_files=100), 0)
    Due(is_due=False, why='small_files is 100, not over 100; manifests is not known')
    """
    waits = _waits(trigger, facts, now_ms)
    if waits is not None:
        return Due(False, waits)
    asked = [*_asked(trigger, facts), *_asked_of_age(trigger, facts, now_ms)]
    if not asked:
        return Due(True, "no condition is set")
    holding = [why for holds, why in asked if holds]
    return Due(bool(holding), "; ".join(holding or [why for _, why in asked]))


def _waits(trigger: Trigger, facts: Facts, now_ms: int) -> str | None:
    """Why the job must wait although it may be worth it."""
    interval_ms = trigger.min_interval_ms
    if interval_ms is None or facts.last_run_ms is None or now_ms - facts.last_run_ms >= interval_ms:
        return None
    return f"{_ran(facts.last_run_ms, now_ms)}, and min_interval is {format_span(interval_ms)}"


def _asked(trigger: Trigger, facts: Facts) -> list[tuple[bool, str]]:
    asked: list[tuple[bool, str]] = []
    for name in MEASURED:
        limit, value = getattr(trigger, f"{name}_over"), getattr(facts, name)
        if limit is None:
            continue
        if value is None:
            asked.append((False, f"{name} is not known"))
        else:
            holds = value > limit
            why = f"{name} is {value:,}, {'' if holds else 'not '}over {limit:,}"
            is_idle = holds and bool(facts.idle)
            asked.append(
                (holds and not is_idle, f"{why}, but the job would do nothing: {facts.idle}" if is_idle else why)
            )
    return asked


def _asked_of_age(trigger: Trigger, facts: Facts, now_ms: int) -> list[tuple[bool, str]]:
    limit_ms = trigger.age_over_ms
    if limit_ms is None:
        return []
    if facts.last_run_ms is None:
        return [(True, "no policy has run it, as far as is known")]
    age_ms = now_ms - facts.last_run_ms
    holds = age_ms > limit_ms
    return [(holds, f"{_ran(facts.last_run_ms, now_ms)}, {'' if holds else 'not '}over {format_span(limit_ms)}")]


def _ran(last_run_ms: int, now_ms: int) -> str:
    if last_run_ms > now_ms:
        # Some writer's clock was wrong.
        return f"it ran at {format_time(last_run_ms)}, which is still to come"
    return f"it ran {format_span(now_ms - last_run_ms)} ago"
