"""Golden texts: the messages and documents of a test as they were when someone last read them, in `test_x.golden.txt` beside it.

    def test_refusals(golden):
        golden({case: refused(case) for case in CASES})    # the section [test_refusals], a line `case: message` for each
        golden(document, "a branch")                       # [test_refusals: a branch], as JSON

`pytest --update -n0 FILE` writes the sections of the tests that run; what has changed is then read in the diff, as code is.
A section that its test does not ask for makes it fail, and one whose test is gone `unit/test_golden.py`.
"""

import difflib
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

_HEAD = re.compile(r"^\[(test_\w+(?:: .+)?)\]$", re.MULTILINE)


class Golden:
    """The sections of one test."""

    def __init__(self, file: Path, test: str, *, update: bool) -> None:
        self._file, self._test, self._update = file, test, update
        self._asked: dict[str, str] = {}

    def __call__(self, value: Any, name: str = "") -> None:
        """Compare a text, lines by their names, or what JSON can say with the section of the test and the name."""
        __tracebackhide__ = True
        section, text = f"{self._test}: {name}" if name else self._test, as_text(value)
        assert self._asked.setdefault(section, text) == text, f"[{section}] is asked for with two texts"
        if self._update:
            return
        golden = read_sections(self._file).get(section, "")
        if text != golden:
            diff = difflib.unified_diff(golden.splitlines(), text.splitlines(), "golden", "now", lineterm="")
            update = "meant? pytest --update"
            pytest.fail("\n".join([f"[{section}] of {self._file.name}, {update}", *diff]), pytrace=False)

    def finish(self, *, all_asked: bool) -> None:
        """Write what was asked for, or say what was not, where the test has run `all_asked` of its cases."""
        sections = read_sections(self._file)
        unused = [
            one for one in sections if all_asked and one.partition(": ")[0] == self._test and one not in self._asked
        ]
        if self._update:
            kept = {one: text for one, text in sections.items() if one not in unused} | self._asked
            if kept != sections:
                self._file.write_text("\n".join(f"[{one}]\n{text}\n" for one, text in sorted(kept.items())))
        else:
            assert not unused, f"{self._file.name} has sections that the test does not ask for: pytest --update"


def as_text(value: Any) -> str:
    """What stands in a golden file: no empty lines at the end, nor a line that looks like a section's head."""
    if value and isinstance(value, Mapping) and all(isinstance(one, str) for one in value.values()):
        value = "\n".join(f"{key}: {text}".rstrip().replace("\n", "\n    ") for key, text in value.items())
    text = value if isinstance(value, str) else json.dumps(value, indent=2, ensure_ascii=False)
    assert not _HEAD.search(text), text
    return text.rstrip("\n")


def read_sections(file: Path) -> dict[str, str]:
    """The texts of a golden file, by their heads; none where there is no such file."""
    _, *found = _HEAD.split(file.read_text()) if file.exists() else [""]
    return {head: text.strip("\n") for head, text in zip(found[::2], found[1::2], strict=True)}


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Iterator[Golden]:
    """The check of a test; it is named `golden` in its arguments."""
    update = request.config.getoption("--update")
    assert not (update and hasattr(request.config, "workerinput")), "--update writes in one process: give -n0"
    test = getattr(request.node, "originalname", request.node.name)
    check = Golden(request.path.with_suffix(".golden.txt"), test, update=update)
    failed = request.session.testsfailed
    yield check
    if request.session.testsfailed == failed:
        check.finish(all_asked=not hasattr(request.node, "callspec"))
