"""Pages on errors: one for each kind, whole, in the words of the code, and one for each situation that the index names."""

import re
from functools import cache
from pathlib import Path

from icekeep import errors
from icekeep.catalog.base import NamespacesMissingError
from icekeep.errors import IcekeepError
from icekeep.operations.command_specs import COMMANDS, GROUP_SUMMARIES
from icekeep.operations.jobs import JOBS
from icekeep.operations.runbooks import ending_of, kinds, page, pages
from kit.cases import for_each
from kit.prose import wrapped

ROOT = Path(__file__).parents[3]
RUNBOOKS = ROOT / "docs" / "runbooks"
INDEX = (RUNBOOKS / "index.md").read_text()
NAMES = sorted(path.stem for path in RUNBOOKS.glob("*.md") if path.stem != "index")
SITUATIONS = sorted({*NAMES} - kinds().keys())
SECTIONS = [
    "The state of the table",
    "What to do now",
    "Why it happens",
    "What never to do",
    "How to avoid it",
]
ERRORS = {name for name, one in vars(errors).items() if isinstance(one, type) and issubclass(one, IcekeepError)}


def test_every_kind_of_error_has_a_page():
    of_classes = {getattr(errors, name).kind for name in ERRORS}
    assert of_classes | {"interrupted", "unexpected", "undelivered", "partial"} == kinds().keys() <= {*NAMES}
    assert len(SITUATIONS) == 8
    assert pages().keys() == {*NAMES}


def test_the_exit_statuses_of_a_kind_are_those_of_its_class():
    assert {name: kinds()[getattr(errors, name).kind] for name in ERRORS} == {
        name: str(getattr(errors, name).exit_status) for name in ERRORS
    }


def test_no_other_module_has_kinds_of_errors_of_its_own():
    """Their pages would not be found without an import of that module."""
    bases = {
        base.strip() for found in re.findall(r"^ *class \w+\(([^)]*)\)", source(), re.M) for base in found.split(",")
    }
    assert "Exception" in bases
    # One is of the kind of its base.
    assert "kind" not in vars(NamespacesMissingError)
    assert bases & ERRORS == {"IcekeepError", "UsageError", "InvalidTableError", "TryAgainError", "UnsupportedError"}
    assert len(re.findall(rf"^ *class \w+\((?:{'|'.join(ERRORS)})\b", source(), re.M)) == len(ERRORS) - 1 + 1


@cache
def source() -> str:
    """The library as one text, in which a message that is broken over lines is one."""
    texts = (path.read_text() for path in sorted((ROOT / "lib" / "icekeep").rglob("*.py")))
    return re.sub(r'"\s*\n\s*f?"', "", "\n".join(texts))


@for_each("name", NAMES)
def test_a_page_has_all_its_parts(name):
    text = page(name).text
    if name in kinds():
        assert text.startswith(f"# `{name}`: ")
    headings = re.findall(r"^## (.*)$", text, re.MULTILINE)
    assert headings == ["What it means" if name in kinds() else "What you see", *SECTIONS]
    assert all(part.strip() for part in re.split(r"^## .*$", text, flags=re.MULTILINE)[1:])


@for_each("name", NAMES)
def test_a_page_is_in_the_index_with_its_title(name):
    if name in kinds():
        assert f"| [`{name}`]({name}.md) | {kinds()[name]} | {page(name).title} |" in INDEX
    else:
        assert f" | [{name}]({name}.md) |" in INDEX


@for_each("path", sorted(RUNBOOKS.glob("*.md")), ids=lambda path: path.stem)
def test_page_is_wrapped_and_its_links_resolve(path):
    assert wrapped(path.read_text()) == path.read_text()
    beside = re.findall(r"\]\(([a-z-]+)\.md(?:#[a-z-]+)?\)", path.read_text())
    assert {*beside} <= {*NAMES}


QUOTED = [
    (name, line)
    for name in NAMES
    for part in re.findall(r"^## Why it happens$(.*?)^## ", (RUNBOOKS / f"{name}.md").read_text(), re.M | re.S)
    for line in re.findall(r"^\* `([^`]+ [^`]+)`", re.sub(r"\n  ", " ", part), re.M)
]


def test_pages_quote_error_lines():
    assert len(QUOTED) > 80
    assert {*NAMES} - {name for name, _ in QUOTED} <= {
        *("try-again", "error", "partial"),
        *("broken-metadata", "orphan-ratio", "full-trash"),
    }


@for_each(("name", "line"), QUOTED)
def test_quoted_error_line_exists_in_code(name, line):
    """`...` stands for what differs, and for what is left out."""
    parts = [stripped for part in re.split(r"\.\.\.|: ", line) if len(stripped := part.strip(" ;:.,()'")) > 3]
    assert parts
    assert [part for part in parts if part not in source()] == []


def test_only_mistakes_in_a_command_line_end_without_an_address():
    without = {kind for kind in kinds() if not ending_of(kind)}
    assert without == {"usage", "option", "expression"}
    assert ending_of("safety") == " (icekeep help safety)"


def test_config_is_both_error_kind_and_command_group():
    """`icekeep help config` shows the page, to which error lines send, and that names the command."""
    commands = {*JOBS, *COMMANDS, *GROUP_SUMMARIES}
    assert commands & {*NAMES} == {"config"}
    assert "icekeep config --help" in page("config").text
