"""Pages of docs/ say what the code says of flags, options and results: what `make reference` makes is what is there."""

import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from icekeep.operations.command_specs import COMMANDS, HELP_GROUPS
from icekeep.operations.jobs import JOBS
from kit.prose import wrapped

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
NAMES = [*JOBS, *COMMANDS]


@pytest.fixture
def tools(monkeypatch: pytest.MonkeyPatch) -> dict[str, ModuleType]:
    monkeypatch.syspath_prepend(ROOT / ".ci" / "docs")
    return {
        name: importlib.import_module(name) for name in ("reference", "result_fields", "markdown_tables", "list_items")
    }


@pytest.mark.slow
def test_what_is_made_is_what_the_pages_have(tools: dict[str, ModuleType]) -> None:
    """If not: `make reference`."""
    reference = tools["reference"]
    pages = reference.pages()
    assert len(pages) >= 24
    behind = [str(path) for path in pages if reference.written(path.read_text()) != path.read_text()]
    assert behind == []


def test_editors_know_the_operators_of_airflow_as_they_are(tools: dict[str, ModuleType]) -> None:
    """If not: `make reference`."""
    reference = tools["reference"]
    assert reference.STUB.read_text() == reference.stub()


@pytest.mark.slow
def test_each_job_and_command_has_its_flags_options_and_result_on_a_page(tools: dict[str, ModuleType]) -> None:
    """The actions of `ref` have some of these in common."""
    found = [block for path in tools["reference"].pages() for block in tools["reference"].blocks_of(path.read_text())]
    assert sorted(name for what, name in found if what in ("flags", "own")) == sorted(NAMES)
    assert sorted(name for what, name in found if what == "options") == sorted(
        name for name, job in JOBS.items() if job.options
    )
    results = {name for what, name in found if what == "result"}
    assert {name for name in NAMES if not name.startswith("ref ")} < results
    fields = tools["result_fields"]
    assert {*fields.all_results(NAMES)} == {*fields.all_results(results)}


def test_each_has_a_page_of_its_name() -> None:
    pages = {path.relative_to(DOCS).with_suffix("").as_posix() for path in DOCS.rglob("*.md")}
    assert {f"jobs/{name}" for name in JOBS} < pages
    assert {f"commands/{name}" for names in HELP_GROUPS.values() for name in names} < pages


@pytest.mark.slow
def test_each_field_of_a_result_has_a_meaning_and_each_meaning_a_field(tools: dict[str, ModuleType]) -> None:
    fields = tools["result_fields"]
    classes = fields.all_results(NAMES)
    untold = [
        (cls.__name__, name) for cls in classes for name in cls.__struct_fields__ if not fields.meaning_of(cls, name)
    ]
    assert len(classes) > 100
    assert untold == []
    silent = {
        (cls.__name__, name)
        for cls in classes
        for name in cls.__struct_fields__
        if not tools["markdown_tables"].meanings_of(cls).get(name)
    }
    used = {name for _, name in silent} | {f"{cls}.{name}" for cls, name in silent}
    assert {*fields.meanings()} - used == set()


def test_pages_with_blocks_are_wrapped_at_the_width_of_the_code(tools: dict[str, ModuleType]) -> None:
    """If not: `python -m kit.prose ../FILE` in `tests/`."""
    pages = [*tools["reference"].pages(), DOCS / "plans.md"]
    assert [str(path) for path in pages if wrapped(path.read_text()) != path.read_text()] == []


def test_a_block_is_made_anew_and_all_else_stays(tools: dict[str, ModuleType]) -> None:
    text = "# A\n\n<!-- begin: options compact -->\nYESTERDAY\n<!-- end -->\n\nB `<!-- end -->`\n"
    made = tools["reference"].written(text)
    assert made.startswith("# A\n\n<!-- begin: options compact -->\n\n| option |")
    assert made.endswith("|\n\n<!-- end -->\n\nB `<!-- end -->`\n")
    assert "YESTERDAY" not in made
    assert "| `stitch` | `auto` | icekeep's |" in made
    assert "| `min-input-files` | `5` | Iceberg's |" in made
    assert tools["reference"].written(made) == made


def test_a_docstring_tells_of_fields_over_several_lines(tools: dict[str, ModuleType]) -> None:
    above = type("Above", (), {"__doc__": "A.\n\n    Attributes:\n        a, b: one\n            and more.\n    "})
    below = type(
        "Below", (above,), {"__doc__": "B.\n\n    Attributes:\n        b: another.\n\n    More: no field.\n    "}
    )
    said: dict[str, Any] = tools["markdown_tables"].meanings_of(below)
    assert said == {"a": "one and more.", "b": "another."}


def test_what_belongs_to_an_item_of_a_list_is_set_in_by_four_spaces(tools: dict[str, ModuleType]) -> None:
    text = "* a\n  b\n\n  c\n\n      code\n  - d\n* e\n\n1. f\n\n   | g |\n\nh\n  i\n```\n* j\n  k\n```\n"
    made = "* a\n    b\n\n    c\n\n        code\n    - d\n\n* e\n\n1. f\n\n    | g |\n\nh\n  i\n```\n* j\n  k\n```\n"
    assert tools["list_items"].set_in(text) == made
