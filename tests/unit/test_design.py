"""What the documents of the design name is there."""

import re
from pathlib import Path

from kit.cases import for_each

ROOT = Path(__file__).parents[2]
DESIGN = ROOT / "docs" / "design"
TEXT = (DESIGN / "README.md").read_text()
PATHS = sorted({*re.findall(r"`([a-z_]+/[a-z_/]*(?:\.py)?)`", TEXT)} - {"jobs/", "commit.retry"})
RECORDS = sorted(path.name for path in (DESIGN / "decisions").glob("[0-9]*.md"))


def test_there_are_paths_and_decisions():
    assert len(PATHS) > 20
    assert len(RECORDS) > 10


@for_each("path", PATHS)
def test_a_path_that_the_design_names_is_there(path):
    lib = ROOT / "lib" / "icekeep"
    assert any((room / path).exists() for room in (lib, lib / "formats", lib / "planning", ROOT))


@for_each("name", RECORDS)
def test_a_decision_says_why_what_and_what_follows_and_is_listed(name):
    text = (DESIGN / "decisions" / name).read_text()
    assert all(f"**{part}.**" in text for part in ("Context", "Decision", "Consequence"))
    assert f"({name})" in (DESIGN / "decisions" / "README.md").read_text()
    for path in re.findall(r"`((?:[a-z_]+/)+[a-z_]+\.py)`", text):
        assert (ROOT / "lib" / "icekeep" / path).is_file()
