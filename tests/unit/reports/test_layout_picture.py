"""How files lie in partitions, and pictures of it: as many boxes as files, to one scale, and nothing of others as markup."""

import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from icekeep.errors import UsageError
from icekeep.operations.console.notebook import html_of
from icekeep.reports import layout_picture as module
from icekeep.reports.layout_picture import (
    FILES_SHOWN,
    PARTITIONS_SHOWN,
    FileLayout,
    LaidFile,
    LaidPartition,
    file_layout,
    layout_picture,
    layouts_svg,
)
from icekeep.reports.svg import STYLE
from kit.deletes import add_deletes, position_deletes
from kit.tables import BY_KIND, add, data_file, memory_table

SVG = "{http://www.w3.org/2000/svg}"


def laid(*sizes: int, partitions: int = 1, deletes: int = 0) -> FileLayout:
    files = tuple(LaidFile(bytes=size, record_count=1, deletes_count=deletes) for size in sizes)
    return FileLayout(
        table="local.db.<b>",
        snapshot_id=1,
        manifests_count=1,
        data_files_count=len(sizes) * partitions,
        data_files_bytes=sum(sizes) * partitions,
        applied_deletes_count=deletes * len(sizes) * partitions,
        partitions=tuple(
            LaidPartition(partition=f"day=<{number}>", spec_id=0, files=files) for number in range(partitions)
        ),
    )


def boxes(svg: str, kind: str = "file") -> list[Any]:
    found = ElementTree.fromstring(svg).iter(f"{SVG}rect")
    # The legend's box has no title.
    return [one for one in found if one.get("class") == kind and one.find(f"{SVG}title") is not None]


def test_files_are_grouped_by_partition_with_their_deletes() -> None:
    table = memory_table(spec=BY_KIND)
    table = add(table, data_file("x1", 5, ("x",)), data_file("x2", 7, ("x",)), data_file("y1", 3, ("y",)))
    table = add_deletes(table, position_deletes("d", "x1", partition=("x",)), named=("x1",))
    found = file_layout(table)
    assert [(one.partition, [file.bytes for file in one.files]) for one in found.partitions] == [
        ("kind=x", [70, 50]),
        ("kind=y", [30]),
    ]
    assert [file.deletes_count for file in found.partitions[0].files] == [0, 1]
    assert (found.data_files_count, found.data_files_bytes, found.manifests_count) == (3, 150, 2)
    assert found.applied_deletes_count == 1
    assert [one.partition for one in file_layout(table, where="kind = 'y'").partitions] == ["kind=y"]


def test_more_files_than_a_picture_shows_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FILES_MAX", 2)
    with pytest.raises(UsageError, match="more files than a picture shows"):
        file_layout(add(memory_table(), "a", "b", "c"))


def test_box_width_is_file_size_on_one_scale() -> None:
    svg = layout_picture(before=laid(1000, 3000), after=laid(4000)).svg
    small, large, whole = (float(one.get("width")) - 2 for one in boxes(svg))
    assert large == pytest.approx(3 * small, abs=0.3)
    assert whole == pytest.approx(4 * small, abs=0.4)
    assert [one.text for one in ElementTree.fromstring(svg).iter(f"{SVG}text") if one.get("class") == "title"] == [
        "before",
        "after",
    ]


def test_picture_stays_inside_edge_for_many_files() -> None:
    svg = layouts_svg({"many": laid(*([5] * 1000), partitions=40, deletes=3)})
    assert len(boxes(svg)) == PARTITIONS_SHOWN * FILES_SHOWN
    assert len(boxes(svg, "rest")) == PARTITIONS_SHOWN
    assert max(float(one.get("x")) + float(one.get("width")) for one in boxes(svg, "rest")) <= 760
    assert f"and {40 - PARTITIONS_SHOWN} partitions more" in svg


def test_deletes_are_marks_that_grow_with_their_number() -> None:
    heights = [
        float(
            next(
                one
                for one in ElementTree.fromstring(layouts_svg({"a": laid(9, deletes=n)})).iter(f"{SVG}rect")
                if one.get("class") == "deletes"
            ).get("height")
            or 0
        )
        for n in (1, 4, 8, 80)
    ]
    assert heights == sorted(heights)
    assert heights[0] < heights[2] == heights[3]
    assert 'class="deletes"' not in layouts_svg({"a": laid(9)})


def test_names_are_no_markup_and_the_picture_loads_nothing() -> None:
    svg = layouts_svg({"<script>": laid(9)})
    assert "day=&lt;0&gt;" in svg
    assert "<script" not in svg
    assert "http" not in svg.replace("http://www.w3.org/2000/svg", "")


def test_a_table_without_files_has_a_picture_too() -> None:
    svg = layout_picture(empty=file_layout(memory_table())).svg
    assert "0 data files, 0 B, in 0 partitions; 0 manifests" in svg


def test_a_notebook_shows_a_picture() -> None:
    html = html_of(laid(9))
    assert html.startswith("<div><b>FileLayout</b><br><img ")
    assert "data:image/svg+xml;base64," in html


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
