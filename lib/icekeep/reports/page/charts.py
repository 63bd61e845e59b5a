"""The charts of the report's page, as small SVG elements for a page that has the style.

pygal draws them; what it adds for files of their own is taken out: a style sheet and a script a chart, ids and the
date, tooltips that need the script, and digits that are not shown. No foreign text gets into one: labels are numbers,
sizes and dates.
"""

import re
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any
from xml.etree import ElementTree

import msgspec
from markupsafe import Markup
from pygal import XY, Bar, PluginImportFixer, StackedBar
from pygal.style import Style

from icekeep.health.values import HEALTHY_FROM, SICK_BELOW, DataHealth, TableHealth
from icekeep.maintenance.history import GrowthPoint, TableTotals
from icekeep.maintenance.rewrite.options import WELL_SIZED
from icekeep.reports.values import MaintenanceRun
from icekeep.spec.times import format_time
from icekeep.spec.types import DAY_MS, format_bytes
from icekeep.spelling import counted

# A finder for plugins with maps, of a kind that Python 3.12 knows no more and 3.11 warns of at each later import.
sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, PluginImportFixer)]

_SVG = "{http://www.w3.org/2000/svg}"
_LEFT_OUT_TAGS = {"defs", "desc", "title", "script", "style"}
_LEFT_OUT_CLASSES = {"background", "text-overlay", "tooltip-overlay", "titles", "legends"}
_KEPT_CLASSES = re.compile(r"axis|[xy]|color-\d+")
_KEPT_ATTRIBUTES = ("viewBox", "transform", "x", "y", "width", "height", "cx", "cy", "r", "d")
_NUMBER = re.compile(r"-?\d+\.\d+(?:e-?\d+)?")

PLAIN: dict[str, Any] = {
    "css": [],
    "js": [],
    "disable_xml_declaration": True,
    "show_legend": False,
    "margin": 6,
    "spacing": 6,
    "truncate_label": -1,
    "style": Style(label_font_size=11, major_label_font_size=11, font_family="sans-serif"),
}
"""What all charts are told: their sizes are for a telephone, and wide pages put several side by side."""


def drawn(chart: Any, label: str, titles: Sequence[str] = ()) -> Markup:
    """A chart as an element.

    Args:
        label: what it shows, for those who do not see it.
        titles: what each bar or dot is, in the order in which they are drawn; told when a pointer rests on it. A bar of no height
            has none, and is left out.
    """
    slim = _slim(chart.render_tree(), list(titles)[::-1])
    assert slim is not None
    slim.set("role", "img")
    slim.set("aria-label", label)
    return Markup(ElementTree.tostring(slim, encoding="unicode"))


def _slim(element: Any, titles: list[str]) -> ElementTree.Element | None:
    """A copy without what the page has no use for; `None` if nothing is left of it.

    Args:
        element: of `xml.etree` or of `lxml`, whichever pygal found.
        titles: those that are not taken yet, the next one last.
    """
    if not isinstance(element.tag, str):
        # A comment.
        return None
    tag, classes = element.tag.removeprefix(_SVG), (element.get("class") or "").split()
    if tag in _LEFT_OUT_TAGS or _LEFT_OUT_CLASSES.intersection(classes) or _is_upright(element, classes):
        return None
    is_mark = "reactive" in classes and tag in ("rect", "circle")
    if is_mark and float(element.get("height") or 1) == 0:
        return None
    slim = ElementTree.Element(tag, _kept(element))
    slim.text = (element.text or "").strip() or None
    if tag == "g" and (kept := [name for name in classes if _KEPT_CLASSES.fullmatch(name)]):
        slim.set("class", " ".join(kept))
    for child in element:
        below = _slim(child, titles)
        if below is not None:
            # What only holds things together is left out.
            slim.extend(below if below.tag == "g" and not below.attrib else [below])
    if is_mark and titles:
        ElementTree.SubElement(slim, "title").text = titles.pop()
    is_empty = len(slim) == 0 and not slim.text and tag in ("g", "text")
    return None if is_empty else slim


def _is_upright(element: Any, classes: list[str]) -> bool:
    """Whether it is a line from a label of the horizontal axis upwards, which the page does not show."""
    return "guide" in classes and " v" in (element.get("d") or "")


def _kept(element: Any) -> dict[str, str]:
    """Attributes that place an element, with the digits that can be seen."""
    known = ((name, element.get(name)) for name in _KEPT_ATTRIBUTES)
    return {name: _NUMBER.sub(_rounded, str(value)) for name, value in known if value is not None}


def _rounded(number: re.Match[str]) -> str:
    text = f"{float(number[0]):.1f}".removesuffix(".0")
    return "0" if text == "-0" else text


_WIDTH, _NARROW, _HEIGHT = 340, 270, 170
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
        legend: a class and a meaning for each kind of mark.
    """

    kind: str
    title: str
    svg: Markup
    told: str = ""
    legend: tuple[tuple[str, str], ...] = ()


def scores_chart(tables: Sequence[TableHealth]) -> Chart:
    """How many tables have which score, in steps of ten, and in which band they are: one with a fault is broken at any score."""
    counts = {band: [0] * 10 for band in ("sick", "fair", "healthy", "broken")}
    for one in tables:
        counts[one.band][min(9, int(one.score // 10))] += 1
    ranges = [f"{10 * step} to {10 * step + 9}" for step in range(9)] + ["90 to 100"]
    together = [sum(step) for step in zip(*counts.values(), strict=True)]
    chart = _stacked()
    chart.x_labels = [str(10 * step) for step in range(10)]
    for some in counts.values():
        chart.add("", [count or None for count in some])
    _scale(chart, max(together), _count)
    told = [f"{counted(count, 'tables')} of {scores}" for scores, count in zip(ranges, together, strict=True) if count]
    broken_count = sum(counts["broken"])
    told += [f"{counted(broken_count, 'tables')} broken"] if broken_count else []
    titles = [
        f"score {scores}: {counted(count, 'tables')}{', broken' if band == 'broken' else ''}"
        for band, some in counts.items()
        for scores, count in zip(ranges, some, strict=True)
        if count
    ]
    return Chart(
        kind="scores",
        title="Tables by score",
        svg=drawn(chart, f"Tables by score: {'; '.join(told)}", titles),
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
        told = f"{counted(sum(counts), 'files')} of {_whole_bytes(size)} to {_whole_bytes(2 * size)}: {named}"
        return Chart(kind="sizes", title="Data files by size", svg=Markup(""), told=told)
    first, last = (size.bit_length() - 1 for size in (min(files), max(files)))
    sizes = [1 << power for power in range(first, max(last + 1, first + _SIZES_LEAST))]
    rows = [files.get(size, [0, 0, 0]) for size in sizes]
    chart = _stacked()
    every = -(-len(sizes) // _LABELS)
    chart.x_labels = [_whole_bytes(size) if number % every == 0 else "" for number, size in enumerate(sizes)]
    for kind in range(3):
        chart.add("", [row[kind] or None for row in rows])
    _scale(chart, max(map(sum, rows)), _count)
    ranges = [f"{_whole_bytes(size)} to {_whole_bytes(2 * size)}" for size in sizes]
    told = "; ".join(
        f"{text}: {counted(sum(row), 'files')}" for text, row in zip(ranges, rows, strict=True) if sum(row)
    )
    titles = [
        f"{text}: {counted(row[kind], 'files')}"
        for kind in range(3)
        for text, row in zip(ranges, rows, strict=True)
        if row[kind]
    ]
    return Chart(
        kind="sizes",
        title="Data files by size",
        svg=drawn(chart, f"Data files by size: {told}", titles),
        legend=_SIZE_KINDS,
    )


def ages_chart(tables: Sequence[TableHealth], now_ms: int) -> Chart:
    """How many tables had their last maintenance, that snapshots tell of, how long ago."""
    counts = dict.fromkeys((*(name for name, _ in _AGES), "older", "never"), 0)
    for one in tables:
        age_ms = now_ms - max((seen.timestamp_ms for seen in one.last_maintenance), default=now_ms)
        name = next((name for name, days in _AGES if age_ms < days * DAY_MS), "older")
        counts[name if one.last_maintenance else "never"] += 1
    chart = _stacked()
    chart.x_labels = [*counts]
    chart.add("", [None if name == "never" else count or None for name, count in counts.items()])
    chart.add("", [*[None] * (len(counts) - 1), counts["never"] or None])
    _scale(chart, max(counts.values()), _count)
    told = [f"{name}: {counted(count, 'tables')}" for name, count in counts.items() if count]
    return Chart(
        kind="ages",
        title="Tables by age of the last maintenance",
        svg=drawn(chart, f"Tables by the age of their last maintenance: {'; '.join(told)}", told),
        legend=(("color-0", "within this time"), ("color-1", "no snapshot of maintenance")),
    )


def growth_charts(points: Sequence[GrowthPoint], runs: Sequence[MaintenanceRun]) -> tuple[Chart, ...]:
    """How files, bytes, deletes and metadata grew, with the last commit of each run marked; nothing of what was never there."""
    wanted: tuple[tuple[str, str, Shown], ...] = (
        ("Data files", "data_files_count", _count),
        ("Bytes of data and deletes", "bytes", format_bytes),
        ("Delete files", "delete_files_count", _count),
        ("Bytes of metadata", "metadata_bytes", format_bytes),
    )
    made = {run.snapshot_id for run in runs}
    moments = {point.timestamp_ms for point in points if point.snapshot_id in made}
    charts = (
        _growth(title, [(p.timestamp_ms, getattr(p, name)) for p in points], moments, shown)
        for title, name, shown in wanted
    )
    return tuple(chart for chart in charts if chart is not None)


def _growth(title: str, points: Sequence[tuple[int, int | None]], marked: set[int], shown: Shown) -> Chart | None:
    # A clock that was wrong makes a commit older than its parent.
    known = sorted(((moment, value) for moment, value in points if value is not None), key=lambda point: point[0])
    if len({moment for moment, _ in known}) < 2 or not any(value for _, value in known):
        return None
    (first_ms, first), (last_ms, last) = known[0], known[-1]
    chart = XY(
        **PLAIN,
        width=_NARROW,
        height=_HEIGHT,
        show_dots=False,
        show_x_guides=False,
        y_labels=[],
        xrange=(first_ms, last_ms),
    )
    date = partial(_date, span_ms=last_ms - first_ms)
    chart.x_labels = [{"value": at, "label": date(at)} for at in (first_ms, last_ms)]
    chart.add("", known)
    dots = [(moment, value) for moment, value in known if moment in marked]
    if dots:
        chart.add("", dots, stroke=False, show_dots=True, dots_size=3.5)
    _scale(chart, max(value for _, value in known), shown)
    told = f"{shown(first)} on {date(first_ms)}, {shown(last)} on {date(last_ms)}"
    most_ms, most = max(known, key=lambda point: point[1])
    peak = f", at most {shown(most)} on {date(most_ms)}" if shown(most) not in (shown(first), shown(last)) else ""
    titles = [f"maintenance on {_date(moment, 0)}: {shown(value)}" for moment, value in dots]
    legend = (("color-1", "a commit of maintenance"),) if dots else ()
    return Chart(
        kind="growth",
        title=title,
        svg=drawn(chart, f"{title} over time: {told}{peak}", titles),
        told=told + peak,
        legend=legend,
    )


def runs_chart(runs: Sequence[MaintenanceRun]) -> Chart | None:
    """Data and delete files before and after the last runs, the oldest first; `None` where none has both figures."""
    pairs = [(run, _files_count(run.before), _files_count(run.after)) for run in runs]
    known = [
        (run, before, after)
        for run, before, after in pairs
        if before is not None and after is not None and before != after
    ]
    known = known[:_RUNS][::-1]
    if not known:
        return None
    chart = Bar(**PLAIN, width=_WIDTH, height=_HEIGHT, y_labels=[])
    every = -(-len(known) // 4)
    chart.x_labels = [
        _date(run.timestamp_ms)[5:] if number % every == 0 else "" for number, (run, _, _) in enumerate(known)
    ]
    chart.add("", [before for _, before, _ in known])
    chart.add("", [after for _, _, after in known])
    _scale(chart, max(max(before, after) for _, before, after in known), _count)
    told = [
        f"{_date(run.timestamp_ms)}: {_count(before)} before, {_count(after)} after" for run, before, after in known
    ]
    titles = [text for side in (1, 2) for text, one in zip(told, known, strict=True) if one[side]]
    return Chart(
        kind="runs",
        title="Files before and after runs",
        svg=drawn(chart, f"Data and delete files before and after runs of maintenance: {'; '.join(told)}", titles),
        legend=(("color-0", "before"), ("color-1", "after")),
    )


def _stacked() -> Any:
    return StackedBar(**PLAIN, width=_WIDTH, height=_HEIGHT, y_labels=[])


def _scale(chart: Any, most: int, shown: Shown) -> None:
    """The vertical axis: from zero to a round number, with a few lines."""
    step = round_step(most, of=1024 if shown is format_bytes else 1000)
    tops = range(0, most + step, step)
    chart.y_labels = [
        {"value": value, "label": _whole_bytes(value) if shown is format_bytes else _short(value)} for value in tops
    ]
    chart.config.range = chart.range = (0, tops[-1])


def round_step(most: int, of: int = 1000, lines: int = 4) -> int:
    """The least of 1, 2, 5, 10, 20 ... whose multiples up to `most` are no more than `lines`; of bytes 1, 2, 5 ... of a unit.

    >>> round_step(7), round_step(95), round_step(3_000_000, of=1024) == 1024 * 1024
    (2, 50, True)
    """
    unit = 1
    while True:
        for factor in (1, 2, 5, 10, 20, 50, 100, 200, 500):
            if factor * unit * lines >= most:
                return factor * unit
        unit *= of


def _files_count(totals: TableTotals | None) -> int | None:
    if totals is None or totals.data_files_count is None:
        return None
    return totals.data_files_count + (totals.delete_files_count or 0)


def _date(moment_ms: int, span_ms: int | None = None) -> str:
    """A day, or with the time where days would all be the same."""
    text = format_time(moment_ms)
    return (
        text[:_DAY_DIGITS]
        if span_ms is None or span_ms > 3 * DAY_MS
        else text[_DAY_DIGITS - 5 : _MINUTE_DIGITS].replace("T", " ")
    )


def _count(value: int) -> str:
    return f"{value:,}"


def _short(value: int) -> str:
    for unit, name in ((1_000_000_000, "G"), (1_000_000, "M"), (1_000, "k")):
        if value >= unit and value % (unit // 10) == 0:
            return f"{value / unit:g}{name}"
    return str(value)


def _whole_bytes(size: int) -> str:
    return format_bytes(size).replace(".0 ", " ")
