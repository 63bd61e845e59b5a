"""The charts of the report's page: what is counted, in which kinds, and what is said of it to those who do not see it.

No foreign text gets into one: labels are numbers, sizes and dates.
"""

from collections.abc import Callable, Sequence

import msgspec

from icekeep.health.values import HEALTHY_FROM, SICK_BELOW, DataHealth, TableHealth
from icekeep.maintenance.history import GrowthPoint, TableTotals
from icekeep.maintenance.rewrite.options import WELL_SIZED
from icekeep.reports.svg import Levels, Marks, MarkupText, bar_chart, line_chart
from icekeep.reports.values import MaintenanceRun
from icekeep.spec.times import format_time
from icekeep.spec.types import DAY_MS, format_bytes
from icekeep.spelling import counted

_WIDTH, _NARROW = 340, 270
_LABELS = 5
_SIZES_LEAST = 6
_AGES = (("1 day", 1), ("7 days", 7), ("30 days", 30), ("90 days", 90))
_SIZE_KINDS = (("color-0", "smaller than the target"), ("color-1", "about right"), ("color-2", "larger"))
_RUNS = 10
_DAY_DIGITS = len("2026-01-31")
_MINUTE_DIGITS = len("2026-01-31T12:00")

Shown = Callable[[int], str]


class Chart(msgspec.Struct, frozen=True):
    """A chart and the words that go with it.

    Attributes:
        kind: its class on the page.
        svg: empty where the summary says all.
        legend: a class and a meaning for each kind of mark.
    """

    kind: str
    title: str
    svg: MarkupText
    summary: str = ""
    legend: tuple[tuple[str, str], ...] = ()


def scores_chart(tables: Sequence[TableHealth]) -> Chart:
    """How many tables have which score, in steps of ten, and in which band they are: one with a fault is broken at any score."""
    counts = {band: [0] * 10 for band in ("sick", "fair", "healthy", "broken")}
    for one in tables:
        counts[one.band][min(9, int(one.score // 10))] += 1
    ranges = [f"{10 * step} to {10 * step + 9}" for step in range(9)] + ["90 to 100"]
    series = []
    for band, steps in counts.items():
        end = ", broken" if band == "broken" else ""
        titles = (f"score {scores}: {counted(n, 'tables')}{end}" for scores, n in zip(ranges, steps, strict=True))
        series.append([*zip(steps, titles, strict=True)])
    sums = [sum(steps) for steps in zip(*counts.values(), strict=True)]
    summary = [f"{counted(count, 'tables')} of {scores}" for scores, count in zip(ranges, sums, strict=True) if count]
    broken_count = sum(counts["broken"])
    summary += [f"{counted(broken_count, 'tables')} broken"] if broken_count else []
    return Chart(
        kind="scores",
        title="Tables by score",
        svg=_stacked(f"Tables by score: {'; '.join(summary)}", [str(10 * step) for step in range(10)], series),
        legend=(
            ("color-0", f"sick, below {SICK_BELOW:g}"),
            ("color-1", "fair"),
            ("color-2", f"healthy, {HEALTHY_FROM:g} and more"),
            *([("color-3", "broken: it has faults")] if broken_count else []),
        ),
    )


def sizes_chart(tables: Sequence[DataHealth]) -> Chart | None:
    """How many data files have which size, a sentence where all have about the same; `None` where there is no file."""
    files: dict[int, list[int]] = {}
    for data in tables:
        for bucket in data.histogram:
            middle = bucket.least_bytes * 1.5
            least, most = (share * data.target_file_bytes for share in WELL_SIZED)
            kind = 0 if middle < least else 1 if middle <= most else 2
            files.setdefault(bucket.least_bytes, [0, 0, 0])[kind] += bucket.files_count
    if not files:
        return None
    if len(files) == 1:
        [(size, counts)] = files.items()
        kinds = [(count, name) for count, (_, name) in zip(counts, _SIZE_KINDS, strict=True) if count]
        named = kinds[0][1] if len(kinds) == 1 else ", ".join(f"{count:,} {name}" for count, name in kinds)
        summary = f"{counted(sum(counts), 'files')} of {_doubling(size)}: {named}"
        return Chart(kind="sizes", title="Data files by size", svg=MarkupText(""), summary=summary)
    first, last = (size.bit_length() - 1 for size in (min(files), max(files)))
    sizes = [1 << power for power in range(first, max(last + 1, first + _SIZES_LEAST))]
    rows = [(f"{_doubling(size)}: ", files.get(size, [0, 0, 0])) for size in sizes]
    return Chart(
        kind="sizes",
        title="Data files by size",
        svg=_stacked(
            f"Data files by size: {'; '.join(text + counted(sum(row), 'files') for text, row in rows if sum(row))}",
            _thinned([_whole_bytes(size) for size in sizes], _LABELS),
            [[(row[kind], text + counted(row[kind], "files")) for text, row in rows] for kind in range(3)],
        ),
        legend=_SIZE_KINDS,
    )


def ages_chart(tables: Sequence[TableHealth], now_ms: int) -> Chart:
    """How many tables had their last maintenance, as snapshots show it, how long ago."""
    counts = dict.fromkeys((*(name for name, _ in _AGES), "older", "never"), 0)
    for one in tables:
        age_ms = now_ms - max((seen.timestamp_ms for seen in one.last_maintenance), default=now_ms)
        name = next((name for name, days in _AGES if age_ms < days * DAY_MS), "older")
        counts[name if one.last_maintenance else "never"] += 1
    marks = [(count, f"{name}: {counted(count, 'tables')}") for name, count in counts.items()]
    summary = "; ".join(title for count, title in marks if count)
    return Chart(
        kind="ages",
        title="Tables by age of the last maintenance",
        svg=_stacked(
            f"Tables by the age of their last maintenance: {summary}",
            [*counts],
            [[*marks[:-1], (0, "")], [(0, "")] * (len(marks) - 1) + marks[-1:]],
        ),
        legend=(("color-0", "within this time"), ("color-1", "no snapshot of maintenance")),
    )


def growth_charts(points: Sequence[GrowthPoint], runs: Sequence[MaintenanceRun]) -> tuple[Chart, ...]:
    """How files, bytes, deletes and metadata grew, with the last commit of each run marked; nothing of what was never there."""
    figures: tuple[tuple[str, str, Shown], ...] = (
        ("Data files", "data_files_count", _count),
        ("Bytes of data and deletes", "bytes", format_bytes),
        ("Delete files", "delete_files_count", _count),
        ("Bytes of metadata", "metadata_bytes", format_bytes),
    )
    made = {run.snapshot_id for run in runs}
    moments = {point.timestamp_ms for point in points if point.snapshot_id in made}
    charts = (
        _growth(title, [(p.timestamp_ms, getattr(p, name)) for p in points], moments, shown)
        for title, name, shown in figures
    )
    return tuple(chart for chart in charts if chart is not None)


def _growth(title: str, points: Sequence[tuple[int, int | None]], marked: set[int], shown: Shown) -> Chart | None:
    # A clock that was wrong makes a commit older than its parent.
    known = sorted(((moment, value) for moment, value in points if value is not None), key=lambda point: point[0])
    if len({moment for moment, _ in known}) < 2 or not any(value for _, value in known):
        return None
    (first_ms, first), (last_ms, last) = known[0], known[-1]
    most_ms, most = max(known, key=lambda point: point[1])
    first_day, most_day, last_day = (_date(moment, last_ms - first_ms) for moment in (first_ms, most_ms, last_ms))
    summary = f"{shown(first)} on {first_day}, {shown(last)} on {last_day}"
    if shown(most) not in (shown(first), shown(last)):
        summary += f", at most {shown(most)} on {most_day}"
    dots = [
        (moment, value, f"maintenance on {_date(moment, 0)}: {shown(value)}")
        for moment, value in known
        if moment in marked
    ]
    label = f"{title} over time: {summary}"
    svg = line_chart(label, _levels(most, shown), (first_day, last_day), known, dots, width=_NARROW)
    legend = (("color-1", "a commit of maintenance"),) if dots else ()
    return Chart(kind="growth", title=title, svg=svg, summary=summary, legend=legend)


def runs_chart(runs: Sequence[MaintenanceRun]) -> Chart | None:
    """Data and delete files before and after the last runs, the oldest first; `None` where none has both figures."""
    pairs = [(_date(run.timestamp_ms), _files_count(run.before), _files_count(run.after)) for run in runs]
    known = [
        (day, before, after)
        for day, before, after in pairs
        if before is not None and after is not None and before != after
    ]
    known = known[:_RUNS][::-1]
    if not known:
        return None
    days, befores, afters = zip(*known, strict=True)
    titles = [f"{day}: {_count(before)} before, {_count(after)} after" for day, before, after in known]
    svg = bar_chart(
        f"Data and delete files before and after runs of maintenance: {'; '.join(titles)}",
        _levels(max(*befores, *afters), _count),
        _thinned([day[len("2026-") :] for day in days], 4),
        [[*zip(side, titles, strict=True)] for side in (befores, afters)],
        width=_WIDTH,
        is_stacked=False,
    )
    return Chart(
        kind="runs",
        title="Files before and after runs",
        svg=svg,
        legend=(("color-0", "before"), ("color-1", "after")),
    )


def _stacked(label: str, places: Sequence[str], series: Sequence[Marks]) -> MarkupText:
    most = max(sum(value for value, _ in marks) for marks in zip(*series, strict=True))
    return bar_chart(label, _levels(most, _count), places, series, width=_WIDTH, is_stacked=True)


def _thinned(labels: Sequence[str], most: int) -> list[str]:
    """Labels of which so many are left."""
    every = -(-len(labels) // most)
    return [label if number % every == 0 else "" for number, label in enumerate(labels)]


def _levels(most: int, shown: Shown) -> Levels:
    """The lines of a vertical axis from zero to a round number at or above `most`."""
    is_bytes = shown is format_bytes
    step = round_step(most, is_bytes=is_bytes)
    return [
        (value, _whole_bytes(value) if is_bytes else _short(value)) for value in range(0, max(most, 1) + step, step)
    ]


def round_step(most: int, *, is_bytes: bool = False, lines: int = 4) -> int:
    """The least of 1, 2, 5, 10, 20 ... whose multiples up to `most` are no more than `lines`; of bytes a power of two.

    >>> round_step(7), round_step(95), round_step(3_000_000, is_bytes=True) == 1024 * 1024
    (2, 50, True)
    """
    unit = 1
    while True:
        for factor in (1, 2, 4, 8) if is_bytes else (1, 2, 5):
            if factor * unit * lines >= most:
                return factor * unit
        unit *= 16 if is_bytes else 10


def _files_count(totals: TableTotals | None) -> int | None:
    if totals is None or totals.data_files_count is None:
        return None
    return totals.data_files_count + (totals.delete_files_count or 0)


def _date(moment_ms: int, span_ms: int | None = None) -> str:
    """A day, or with the time where days would all be the same."""
    text = format_time(moment_ms)
    if span_ms is None or span_ms > 3 * DAY_MS:
        return text[:_DAY_DIGITS]
    return text[_DAY_DIGITS - 5 : _MINUTE_DIGITS].replace("T", " ")


def _count(value: int) -> str:
    return f"{value:,}"


def _short(value: int) -> str:
    for unit, name in ((1_000_000_000, "G"), (1_000_000, "M"), (1_000, "k")):
        if value >= unit and value % (unit // 10) == 0:
            return f"{value / unit:g}{name}"
    return str(value)


def _doubling(size: int) -> str:
    return f"{_whole_bytes(size)} to {_whole_bytes(2 * size)}"


def _whole_bytes(size: int) -> str:
    return format_bytes(size).replace(".0 ", " ")
