"""The pages about the playground name the tables that there are, and commands that can be run."""

import re
import shlex
from pathlib import Path

import pytest

import icekeep
from icekeep.operations.arguments import parse_command
from icekeep.playground.states import STATES
from kit.cases import for_each

DOCS = Path(__file__).parents[3] / "docs"
PAGES = ("playground.md", "commands/demo.md", "python/notebooks.md")
TEXTS = {page: (DOCS / page).read_text() for page in PAGES}
COMMANDS = [line for text in TEXTS.values() for line in text.splitlines() if line.startswith("icekeep ")]


def test_the_page_has_a_row_for_each_table() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \|", TEXTS["playground.md"], re.MULTILINE)
    told = dict(rows)
    assert set(told) == {state.name for state in STATES}
    for state in STATES:
        assert told[state.name].split(",")[0] in state.what


@for_each("line", sorted({*COMMANDS}))
def test_a_command_of_the_pages_can_be_run(line: str) -> None:
    parse_command(shlex.split(line)[1:], None, 0)


def test_there_are_commands() -> None:
    assert len({*COMMANDS}) > 10


def test_notebook_page_functions_exist_in_door() -> None:
    names = {*re.findall(r"icekeep\.(\w+)\(", TEXTS["python/notebooks.md"])}
    assert {"progress", "file_layout", "layout_picture", "scan"} <= names <= {*icekeep.__all__}


@pytest.mark.parametrize("page", PAGES)
def test_pictures_and_notebooks_that_a_page_shows_are_there(page: str) -> None:
    shown = re.findall(r"\]\(([^)]+\.(?:svg|png|ipynb))\)", TEXTS[page])
    assert all(((DOCS / page).parent / one).is_file() for one in shown)
