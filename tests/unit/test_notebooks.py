"""Notebooks of the docs are kept without what they have shown, and call only what there is."""

import json
import re
from pathlib import Path

import pytest

import icekeep

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))


def test_there_is_one() -> None:
    assert NOTEBOOKS


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_no_output_is_kept(path: Path) -> None:
    cells = [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in cells)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_what_is_called_is_there(path: Path) -> None:
    source = "\n".join("".join(cell["source"]) for cell in json.loads(path.read_text())["cells"])
    names = {*re.findall(r"icekeep\.(\w+)\(", source)}
    assert len(names) > 8
    assert names <= {*icekeep.__all__}
