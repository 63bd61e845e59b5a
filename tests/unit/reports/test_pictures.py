"""The pictures of the docs are whole, and drawn by the script that says so."""

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from icekeep.reports.svg import STYLE

ROOT = Path(__file__).parents[3]
SCRIPT = (ROOT / ".ci" / "docs" / "pictures.py").read_text()
NAMES = re.findall(r'"(\w+)": \w+', SCRIPT[SCRIPT.index("PICTURES: ") :].splitlines()[0])


def test_there_are_three_of_them() -> None:
    assert NAMES == ["layout", "carrying", "expiration"]


@pytest.mark.parametrize("name", NAMES)
def test_a_picture_stands_alone_in_light_and_dark(name: str) -> None:
    text = (ROOT / "docs" / "images" / f"{name}.svg").read_text()
    svg = ElementTree.fromstring(text)
    assert svg.get("aria-label")
    assert "prefers-color-scheme: dark" in text
    assert STYLE in text
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "")
    assert "/tmp" not in text
    width = float(svg.get("width") or 0)
    for one in svg.iter("{http://www.w3.org/2000/svg}rect"):
        assert float(one.get("x") or 0) + float(one.get("width") or 0) <= width
