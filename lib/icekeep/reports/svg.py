"""SVG as text: elements in which foreign text stays text, files that stand alone, and charts of bars and of a line.

Charts are for a page that has the style: a group a series (`color-0` ...), its bars or dots with titles, and two axes.
"""

from collections.abc import Iterable, Sequence
from html import escape

from icekeep.errors import printable

COLOURS = """\
:root {
  color-scheme: light dark;
  --ground: #f3f6f8; --sheet: #ffffff; --ink: #15232c; --soft: #4d5f6b; --line: #d3dde4;
  --link: #0a5d86; --bar: #2f83ab; --pale: #b5d5e4; --faint: #e3ebf0;
  --bad: #b02a1c; --bad-pale: #f0b9b2; --fair: #7d5200; --fair-pale: #eccf9c; --good: #17704f;
}
@media (prefers-color-scheme: dark) {
  :root {
    --ground: #0d1419; --sheet: #141d24; --ink: #e2ebf0; --soft: #9db0bc; --line: #2b3a45;
    --link: #7cc7e8; --bar: #4fa9cf; --pale: #2a4f62; --faint: #1f2b34;
    --bad: #ff9187; --bad-pale: #5d2a25; --fair: #e6b55f; --fair-pale: #54421f; --good: #63d0a2;
  }
}
"""
"""A style: the names of colours, as custom properties of CSS."""

STYLE = (
    COLOURS
    + """\
text { font: 12px system-ui, "Segoe UI", Roboto, "Helvetica Neue", sans-serif; fill: var(--soft); }
.title { font-size: 15px; font-weight: 650; fill: var(--ink); }
.ground { fill: var(--sheet); } .line { stroke: var(--line); }
.file { fill: var(--bar); } .rest { fill: var(--pale); } .deletes { fill: var(--bad); } .faint { opacity: .62; }
.gone { fill: none; stroke: var(--bad); stroke-width: 2; stroke-dasharray: 3 2; } .gone-text { fill: var(--bad); }
.ref { fill: var(--ink); font-weight: 600; } .way { fill: none; stroke: var(--soft); stroke-width: 1.5; }
.tip { fill: var(--soft); }
"""
)
"""What the classes of files look like."""

_TOP, _FOOT, _RIGHT, _GAP = 9, 26, 8, 6
_DIGIT_WIDTH = 6.4
_DOT = 3.5
_BAR_SHARE = 0.88
CHART_HEIGHT = 170
_XMLNS = "http://www.w3.org/2000/svg"

Marks = Sequence[tuple[int, str]]
"""The values of a series, one a place of the horizontal axis, and the title of each."""
Levels = Sequence[tuple[int, str]]
"""The values of a vertical axis that have a line, from zero up, and their labels."""


class MarkupText(str):
    """Text that is markup already: neither `element` nor a template of Jinja escapes it."""

    __slots__ = ()

    def __html__(self) -> str:
        return str(self)


def element(tag: str, *content: str, **attributes: object) -> MarkupText:
    """An element; what is in it is escaped, and made visible, but for elements. `aria_label` is the attribute `aria-label`.

    >>> element("text", "a < b", class_="title", x=2.04, y=3)
    '<text class="title" x="2" y="3">a &lt; b</text>'
    """
    named = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{_attribute(value)}"'
        for name, value in attributes.items()
        if value != ""
    )
    inner = "".join(one if isinstance(one, MarkupText) else escape(printable(one)) for one in content)
    return MarkupText(f"<{tag}{named}>{inner}</{tag}>" if inner else f"<{tag}{named}/>")


def text(x: float, y: float, words: str, kind: str = "") -> MarkupText:
    """Words in a file; `kind` is a class of `STYLE`."""
    return element("text", words, class_=kind, x=x, y=y)


def svg_file(parts: Iterable[MarkupText], width: int, height: int, label: str) -> str:
    """A file with a ground of its own, light or dark as the reader's browser wants pages."""
    ground = element("rect", class_="ground", width=width, height=height, rx=8)
    lines = "\n".join(("", f"<style>\n{STYLE}</style>", ground, *parts, ""))
    image = element("svg", MarkupText(lines), xmlns=_XMLNS, width=width, height=height, **_image(width, height, label))
    return f"{image}\n"


def bar_chart(
    label: str, levels: Levels, places: Sequence[str], series: Sequence[Marks], *, width: int, is_stacked: bool
) -> MarkupText:
    """Bars on top of one another, or beside one another.

    Args:
        label: what it shows, for those who do not see it.
        places: their labels, empty for those without one.
        series: a mark of value 0 is not drawn.
    """
    frame = _Frame(levels, width)
    step = frame.width / len(places)
    bar_width = step * _BAR_SHARE / (1 if is_stacked else len(series))
    below = [0] * len(places)
    groups = []
    for number, marks in enumerate(series):
        bars = []
        for place, (value, title) in enumerate(marks):
            x = frame.left + step * (place + (1 - _BAR_SHARE) / 2) + (0 if is_stacked else number * bar_width)
            top, bottom = frame.y(below[place] + value), frame.y(below[place])
            if value:
                box = {"x": x, "y": top, "width": bar_width - (0 if is_stacked else 1), "height": bottom - top}
                bars.append(element("rect", element("title", title), **box))
            below[place] += value if is_stacked else 0
        groups.append(bars)
    middles = [(frame.left + step * (place + 0.5), name) for place, name in enumerate(places)]
    return frame.drawn(label, middles, groups)


def line_chart(
    label: str,
    levels: Levels,
    ends: tuple[str, str],
    points: Sequence[tuple[int, int]],
    dots: Sequence[tuple[int, int, str]],
    *,
    width: int,
) -> MarkupText:
    """A line from the first to the last of some points, which are in the order of their x, and dots with titles on it."""
    frame = _Frame(levels, width)
    (first, _), (last, _) = points[0], points[-1]

    def place(x: int, y: int) -> tuple[float, float]:
        return frame.left + _DOT + (frame.width - 2 * _DOT) * (x - first) / (last - first), frame.y(y)

    line = " ".join(f"{_attribute(x)} {_attribute(y)}" for x, y in (place(*point) for point in points))
    circles = []
    for x, y, title in dots:
        cx, cy = place(x, y)
        circles.append(element("circle", element("title", title), cx=cx, cy=cy, r=_DOT))
    names = [(frame.left, ends[0]), (frame.left + frame.width, ends[1])]
    return frame.drawn(label, names, [[element("path", d=f"M{line}")], circles])


class _Frame:
    """The axes of a chart, and what lies where between them."""

    def __init__(self, levels: Levels, width: int) -> None:
        self._levels, self._all_width = levels, width
        self.left = 2 * _GAP + _DIGIT_WIDTH * max(len(label) for _, label in levels)
        self.width = width - _RIGHT - self.left

    def y(self, value: int) -> float:
        top, _ = self._levels[-1]
        return _TOP + (CHART_HEIGHT - _TOP - _FOOT) * (1 - value / top)

    def drawn(
        self, label: str, names: Iterable[tuple[float, str]], groups: Sequence[Sequence[MarkupText]]
    ) -> MarkupText:
        """The whole chart: `names` are labels of the horizontal axis by where they stand."""
        lines = [
            element("path", d=f"M{_attribute(self.left)} {_attribute(self.y(at))}h{_attribute(self.width)}")
            for at, _ in self._levels
        ]
        values = [element("text", name, x=self.left - _GAP, y=self.y(at) + 4) for at, name in self._levels]
        below = [element("text", name, x=x, y=CHART_HEIGHT - 8) for x, name in names if name]
        return element(
            "svg",
            element("g", *lines, *values, class_="axis y"),
            element("g", *below, class_="axis x"),
            *(element("g", *marks, class_=f"color-{number}") for number, marks in enumerate(groups) if marks),
            **_image(self._all_width, CHART_HEIGHT, label),
        )


def _image(width: int, height: int, label: str) -> dict[str, str]:
    return {"viewBox": f"0 0 {width} {height}", "role": "img", "aria_label": label}


def _attribute(value: object) -> str:
    """The text of an attribute, numbers with the digits that can be seen."""
    if isinstance(value, float):
        # A zero is added as -0.0 has a sign.
        return f"{round(value, 1) + 0.0:.1f}".removesuffix(".0")
    return escape(printable(str(value)))
