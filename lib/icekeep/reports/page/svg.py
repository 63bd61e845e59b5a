"""Charts of pygal as small SVG elements for a page that has the style: what pygal adds for files of their own is taken out.

That is a style sheet and a script a chart, ids and the date, tooltips that need the script, and digits that nobody sees.
"""

import re
import sys
from collections.abc import Sequence
from typing import Any
from xml.etree import ElementTree

from markupsafe import Markup
from pygal import XY, Bar, PluginImportFixer, StackedBar
from pygal.style import Style

__all__ = ["PLAIN", "XY", "Bar", "StackedBar", "drawn"]

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
