"""What README and the pages of docs/ tell people to run, write and open is there, and is what the code takes."""

import importlib.util
import json
import re
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import msgspec
import pytest

import icekeep
from icekeep import cli
from icekeep.catalog.open import open_catalog
from icekeep.errors import IcekeepError, UnsupportedError, UsageError
from icekeep.formats.machine import COMFORTABLE_BYTES
from icekeep.formats.parquet.footer import MAX_FOOTER_BYTES
from icekeep.formats.puffin import _MAX_FOOTER_BYTES as PUFFIN_FOOTER_BYTES
from icekeep.formats.rewrite.copy_row_groups import MAX_ROW_GROUPS
from icekeep.health.files import MAX_HEADS
from icekeep.maintenance.check import deletes, row_ids
from icekeep.maintenance.delete.run import CALL_FILES
from icekeep.operations.command_specs import COMMANDS
from icekeep.operations.configuration.file import parse_config
from icekeep.operations.jobs import JOBS, resolve
from icekeep.operations.runbooks import kinds
from icekeep.planning.spark.session import LIMITS
from icekeep.planning.spark.workers import THREAD_BYTES
from icekeep.rendered import Rendered
from icekeep.spec.avro import _MAX_BLOCK_BYTES, _MAX_HEADER_BYTES
from icekeep.spec.filters.expressions import MAX_DEPTH
from icekeep.spec.filters.parsing import MAX_LITERALS, MAX_TEXT_LENGTH
from icekeep.spec.metadata import MAX_METADATA_BYTES, SUPPORTED_FORMAT_VERSION
from icekeep.spec.sorting import MAX_TEXT_LENGTH as SORT_ORDER_LENGTH
from icekeep.spec.types import GIB, MAX_NESTING, MIB
from icekeep.spelling import with_one_typo
from kit.cases import for_each
from kit.pages import (
    Block,
    all_pages,
    anchors,
    blocks,
    broken_links,
    commands,
    commands_of,
    configurations,
    name_of,
    parsed,
    prose,
    spans,
    told,
    told_of,
)
from kit.prose import WIDTH, wrapped
from kit.shell import ROOT
from simulation.mutants import MUTANTS

ERROR_ENDING = re.compile(r"\(icekeep help ([a-z-]+)\)\s*\Z")
README = ROOT / "README.md"
JOB_ROW = re.compile(r"^\| \[`(\w+)`\]\(docs/jobs/(\w+)\.md\) \|", re.MULTILINE)
PAGES = all_pages()
OF_TESTS = {"design", "judges.md", "conformance.md", "performance.md", "performance"}
"""Pages that speak of the flags of tests and benchmarks, too."""
OF_USERS = [page for page in PAGES if not OF_TESTS & {*page.parts}]
TARGETS = {*re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE)}
FLAGS = {setting.flag for job in JOBS.values() for setting in job.settings} | {
    setting.flag for verb in COMMANDS.values() for setting in (*verb.settings, *verb.one_of)
}
COMMON = {
    "--table",
    "--catalog",
    "--config",
    "--conf",
    "--dry-run",
    "--plan-out",
    "--policy",
    "--output",
    "--result-file",
    "--verbose",
    "--log-format",
    "--wide",
    "--columns",
    "--color",
    "--metrics-file",
    "--help",
    "--version",
}
OF_OTHERS = {
    "--py-files",
    "--archives",
    "--files",
    "--master",
    "--deploy-mode",
    "--num-executors",
    "--additional-python-modules",
    "--python-modules-installer-option",
    "--datalake-formats",
    "--no-index",
    "--no-deps",
    "--argument",
    "--build-arg",
}
"""Flags of spark-submit, pip, docker and AWS Glue, and one that stands for any."""

each_page = for_each("page", PAGES, ids=name_of)
each_of_users = for_each("page", OF_USERS, ids=name_of)


def refusal(line: str) -> str:
    """Why the command line does not take a line; empty if it does."""
    try:
        parsed(line)
    except (IcekeepError, ValueError, AssertionError) as error:
        return str(error)
    return ""


@each_page
def test_a_command_in_a_block_is_one_that_can_be_run(page: Path) -> None:
    assert {line: said for line in commands(page) if (said := refusal(line))} == {}


@each_page
def test_a_command_that_is_shown_to_fail_fails_so(page: Path) -> None:
    """As far as its words alone say it; others fail at a table that is not here."""
    shown = {line: complaint for line, complaint in told(page) if complaint is not None}
    assert {line: said for line in shown if not shown[line].startswith(said := refusal(line))} == {}


@each_page
def test_a_configuration_in_a_block_is_one_that_is_read(page: Path) -> None:
    for text in configurations(page):
        parse_config(text, name_of(page))


@each_page
def test_links_lead_to_what_there_is(page: Path) -> None:
    assert broken_links(page) == []


@each_page
def test_targets_of_make_exist(page: Path) -> None:
    shown = [line for block in blocks(page) for line in block.text.splitlines() if line.startswith("make ")]
    told = [span for span in spans(page) if span.startswith("make ")]
    made = {word for line in (*shown, *told) for word in re.findall(r"^make ([a-z][a-z-]*)", line)}
    assert made <= TARGETS


@each_of_users
def test_command_in_text_has_known_name_and_flags(page: Path) -> None:
    """In the text commands are cut short, so they may lack what must be given."""
    for span in spans(page):
        if span.startswith("icekeep "):
            words = span.split()[1:]
            known = {*JOBS, *COMMANDS, "config", *(name.split()[0] for name in COMMANDS)}
            names = {" ".join(words[:2]), words[0].replace("-", "_"), words[0]}
            assert names & known or words[0].isupper() or words[0] in {"--help", "--version"}, span
            assert {word.partition("=")[0] for word in words if word.startswith("--")} <= FLAGS | COMMON, span


@each_of_users
def test_a_flag_in_the_text_is_one_of_a_command(page: Path) -> None:
    classes = [resolve(job.options) for job in JOBS.values() if job.options is not None]
    for span in spans(page):
        flag, _, value = span.partition(" ")
        flag = flag.partition("=")[0]
        if re.fullmatch(r"--[a-z-]+", flag):
            assert flag in FLAGS | COMMON | OF_OTHERS, span
        option = value.partition("=")[0]
        if flag == "--option" and option.islower() and option != "key":
            assert any(option in cls.__struct_encode_fields__ for cls in classes), span


def test_readme_is_short_and_shows_how_to_begin() -> None:
    """Also so that a change of a page's form does not leave nothing to be looked at."""
    # Each job has a row, and no new one has to take a line from the rest.
    assert len([line for line in README.read_text().splitlines() if not JOB_ROW.match(line)]) <= 192
    names = [command.name for line in commands(README) if (command := parsed(line))]
    first = ["doctor", "report", "compact", "compact", "expire_snapshots", "restore"]
    assert names[: len(first)] == first
    assert {*names} >= {"maintain", "runs", "rollback"}
    assert len([*configurations(README)]) == 2
    assert {"make demo", "make test"} <= {
        " ".join(line.split()[:2]) for b in blocks(README) for line in b.text.splitlines()
    }


FROM_AN_INDEX = re.compile(r"pip3? install (?:-\S+ )*[\"']?icekeep\b")
"""What brings somebody else's package, or none: icekeep is installed from a clone, a wheel, or an index of one's own."""


def test_no_text_installs_icekeep_from_public_index() -> None:
    assert FROM_AN_INDEX.search("pip install 'icekeep[s3]'")
    assert FROM_AN_INDEX.search("pip install -U icekeep")
    # That page is about environments of Airflow, with an index of their own.
    pages = [page for page in PAGES if page.name != "airflow.md"]
    code = [path for folder in ("lib", "jobs", "conf", "airflow_dags") for path in (ROOT / folder).rglob("*.*")]
    texts = [path for path in (*pages, *code) if path.suffix in (".md", ".py", ".yaml", ".properties")]
    assert len(texts) > 500
    assert [str(path.relative_to(ROOT)) for path in texts if FROM_AN_INDEX.search(path.read_text())] == []


def test_readme_names_every_job_and_every_command() -> None:
    in_the_table = JOB_ROW.findall(README.read_text())
    assert [name for name, page in in_the_table if name == page] == [*JOBS]
    assert {*spans(README)} >= {name.split()[0] for name in COMMANDS} | {"config"}


def test_the_page_of_a_job_or_a_command_shows_it() -> None:
    """README's links say that each job has one."""
    own = [page for page in PAGES if page.parent.name in ("jobs", "commands") and page.stem != "index"]
    shown = {page.stem: {line.split()[1] for line in commands(page) if line.startswith("icekeep ")} for page in own}
    assert {name for name, words in shown.items() if name not in words} == set()


def test_readme_counts_as_the_pages_do_that_it_names() -> None:
    text = prose(README)
    states, mine = (
        re.search(r"\[([\d,]+) table states", text),
        re.search(r"^\| all \| ([\d,]+) \(([\d,]+)\)", judges(), re.MULTILINE),
    )
    assert states is not None
    assert mine is not None
    assert states[1] == f"{sum(int(number.replace(',', '')) for number in mine.groups()):,}"
    measured = (ROOT / "docs" / "conformance.md").read_text().partition("\n## With idempotency keys\n")[0]
    cases = re.findall(r"^\| `\w+/[\w-]+` \| (.*?) \|", measured, re.MULTILINE)
    assert f"[{len(cases)} cases" in " ".join(text.split())
    assert not [case for case in cases if "rows" in case]


def judges() -> str:
    return (ROOT / "docs" / "judges.md").read_text()


@for_each(
    "line",
    [
        "icekeep compactify --table db.t",
        "icekeep compact --table db.t --frobnicate",
        "icekeep compact --table db.t --option max-orphan-ratio=0.1",
        "icekeep plan_scan --table db.t --where 'id >='",
        "spark-submit jobs/compact.py --tabel db.t",
        "spark-submit --master yarn $(icekeep path jobs/compact.py) --tabel db.t  # a comment's quotes",
    ],
)
def test_a_command_that_there_is_not_would_be_seen(line: str) -> None:
    with pytest.raises(UsageError):
        parsed(line)


def test_commands_are_found_with_prompts_lines_and_pipes() -> None:
    block = Block(
        "", "$ icekeep report --output json | jq .\nicekeep: error\n  icekeep compact \\\n    --table db.t  # it\n"
    )
    assert told_of(block) == [
        ("icekeep report --output json | jq .", "error"),
        ("icekeep compact --table db.t  # it", None),
    ]
    assert commands_of(block) == ["icekeep report --output json | jq .", "icekeep compact --table db.t  # it"]
    assert [parsed(line).output for line in commands_of(block)] == ["json", "table"]  # type: ignore[union-attr]
    assert parsed("spark-submit --archives a.tar.gz#env ... jobs/compact.py ...") is None


def test_a_link_to_nothing_would_be_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kit.pages.ROOT", tmp_path)
    page, other = tmp_path / "page.md", tmp_path / "other.md"
    page.write_text(
        "[a](other.md) [b](other.md#what-s-it) [c](gone.md) [d](other.md#gone) [e](#here) `[f](g.md)`\n# Here\n"
    )
    other.write_text("## What `s` it?\n\n```\n[h](gone.md)\n# No heading\n```\n## Twice\n## Twice\n")
    assert broken_links(page) == ["gone.md", "other.md#gone"]
    assert anchors(other) == {"what-s-it", "twice", "twice-1"}


SAID_WHOLE = (
    "icekeep: --older-than is 1.0 hours ago, ",
    "icekeep: cannot read the filter at position 5, ",
    "icekeep: column 'id': 'x' cannot be compared with type long: ",
    "icekeep: there is no help on 'safty'; ",
    "icekeep: there is no shipped file ",
)
"""Quoted lines of errors that say it all, those of `usage`, `option` and `expression`."""


@for_each("page", PAGES, ids=name_of)
def test_a_quoted_line_of_an_error_ends_as_it_is_printed(page: Path) -> None:
    quoted = [
        line
        for block in blocks(page)
        for line in re.findall(r"^icekeep: (?:.+\n?)+?(?=^\S+: |^\$ |\Z)", block.text, re.M)
    ]
    wrong = [line for line in quoted if bool(ERROR_ENDING.search(line)) is line.startswith(SAID_WHOLE)]
    assert wrong == []
    assert {kind for line in quoted for kind in ERROR_ENDING.findall(line)} <= kinds().keys()


def test_errors_of_commands_without_a_table_are_quoted(
    capsys: pytest.CaptureFixture[str],
) -> None:
    quoted = [
        (line, complaint)
        for page in PAGES
        for line, complaint in told(page)
        if complaint is not None and line.split()[1] in ("help", "path", "schema")
    ]
    assert len(quoted) >= 3
    for line, complaint in quoted:
        assert cli.main(line.split()[1:]) == 2
        assert capsys.readouterr().err == f"icekeep: {complaint}\n"


WRAPPED = [
    *(ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")),
    *(path for path in sorted((ROOT / "docs").rglob("*.md")) if path.parent.name != "decisions"),
    *(ROOT / name for name in ("tests/README.md", "tests/conformance/README.md")),
]


@for_each("name", [str(path.relative_to(ROOT)) for path in WRAPPED])
def test_prose_is_wrapped_at_the_width_of_the_code(name):
    """If not: `python -m kit.prose ../FILE` in `tests/`."""
    text = (ROOT / name).read_text()
    assert wrapped(text).splitlines() == text.splitlines()


def test_wrapping_breaks_lines_between_words_and_leaves_all_else():
    long = "word " * 40 + "`a code span` [a link](http://x/a b) " + "more " * 20
    text = f"# Title {long}\n\n{long}\n* {long}\n  - {long}\n\n| a | {long} |\n\n```\n{long}\n```\n\n    {long}\n"
    done = wrapped(text)
    assert done.split() == text.split()
    assert wrapped(done) == done
    prose = [
        line for line in done.splitlines() if not line.startswith(("#", "|", "    word")) and long.strip() not in line
    ]
    assert len(prose) > 9
    assert max(map(len, prose)) <= WIDTH
    assert done.count("`a code span`") == 7
    assert f"\n    {long}\n" in done


def test_no_line_begins_with_what_would_be_a_list():
    text = "a" * 125 + " + b " + "c " * 60 + "- d 1. e"
    assert not any(line.startswith(("+", "-", "1.")) for line in wrapped(text).splitlines())


class Part(msgspec.Struct, frozen=True):
    name: str


class Whole(Rendered, frozen=True):
    snapshot_id: int
    parts: tuple[Part, ...]
    options: dict[int, object]


def test_a_result_as_a_dict_has_plain_values_alone():
    whole = Whole(2**62, (Part("a"), Part("b")), {1: ValueError("x")})
    assert whole.to_dict() == {
        "snapshot_id": 2**62,
        "parts": ({"name": "a"}, {"name": "b"}),
        "options": {"1": "x"},
    }


DOCS = ROOT / ".ci" / "docs"


@pytest.fixture
def hook(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module without mkdocs, which the environment of the tests does not have."""
    files = ModuleType("mkdocs.structure.files")
    files.File = object  # type: ignore[attr-defined]
    for name in ("mkdocs", "mkdocs.structure"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, "mkdocs.structure.files", files)
    monkeypatch.setattr(sys, "path", [*sys.path])
    spec = importlib.util.spec_from_file_location("site_pages", DOCS / "site_pages.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@for_each(
    ("uri", "is_found"),
    [
        ("design/decisions/006-unknown-is-an-outcome.md", False),
        ("design/decisions/README.md", False),
        ("performance/rivals.md", False),
        ("performance.md", True),
        ("design/README.md", True),
        ("commands/ref.md", True),
    ],
)
def test_the_search_has_no_page_for_authors(hook, uri, is_found):
    page = SimpleNamespace(file=SimpleNamespace(src_uri=uri), meta={})
    hook.on_page_markdown("text", page=page, config=None, files=None)
    assert (page.meta == {}) == is_found


def test_the_navigation_leaves_the_same_folders_out(hook):
    text = (DOCS / "mkdocs.yml").read_text()
    [left_out] = [part for part in text.split("\n\n") if "not_in_nav" in part]
    assert {line.strip().strip("/") + "/" for line in left_out.splitlines() if line.startswith("  ")} == {
        *hook.AUTHORS_FOLDERS
    }
    assert not any(folder in text.partition("\nnav:\n")[2] for folder in hook.AUTHORS_FOLDERS)


def test_the_navigation_has_every_page_in_its_order() -> None:
    nav = (DOCS / "mkdocs.yml").read_text().partition("\nnav:\n")[2]
    for folder, names in (("jobs", [*JOBS]), ("commands", {name.split()[0] for name in COMMANDS})):
        shown = re.findall(rf"^ +- ([\w-]+): {folder}/\1\.md$", nav, re.MULTILINE)
        assert (shown if folder == "jobs" else {*shown}) == names
    assert {*re.findall(r"catalogs/(\w+)\.md$", nav, re.MULTILINE)} == {
        path.stem for path in (ROOT / "docs" / "catalogs").glob("*.md")
    }


def test_the_pages_that_users_find_link_to_all_of_them(hook):
    for folder, start in (("performance", "performance.md"), ("design/decisions", "design/decisions/README.md")):
        text = (ROOT / "docs" / start).read_text()
        pages = [path for path in (ROOT / "docs" / folder).glob("*.md") if path.name != "README.md"]
        assert len(pages) > 5
        assert [path.name for path in pages if path.name not in text] == []
    built = (ROOT / "docs" / "design" / "README.md").read_text()
    assert "](decisions/README.md)" in built
    assert "](../performance.md)" in built


NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))


def test_there_is_a_notebook() -> None:
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


@for_each(
    ("word", "known", "meant"),
    [
        ("event", "events", True),
        ("eventss", "events", True),
        ("ebents", "events", True),
        ("evetns", "events", True),
        ("EVENTS", "events", True),
        ("small-files", "small_files", True),
        ("small_files", "delete_files", False),
        ("events", "events_old", False),
        ("event", "vents_", False),
        ("events_1", "events_2", False),
        ("events", "events2", False),
        ("ods", "dds", False),
        ("", "ab", False),
    ],
)
def test_only_one_slip_makes_a_name_that_may_be_meant(word, known, meant):
    assert with_one_typo(word, [known]) == ([known] if meant else [])


SAFETY = (ROOT / "docs" / "safety.md").read_text()
PAGE = (ROOT / "docs" / "limits.md").read_text()
PROMISES = [*re.findall(r"^## (.+)\n((?:(?!^## ).*\n)*)", SAFETY, re.MULTILINE)]
NOT_PROMISED = "What is not promised"


@pytest.mark.parametrize(("promise", "text"), PROMISES, ids=[name for name, _ in PROMISES])
def test_each_promise_names_tests_that_there_are(promise: str, text: str) -> None:
    named = re.findall(r"^\| \[([\w/.]+)\]\(\.\./tests/([\w/.]+)\) \| .+ \|$", text, re.MULTILINE)
    assert (len(named) >= 3) != (promise == NOT_PROMISED)
    for shown, address in named:
        assert shown == address
        holds_something(ROOT / "tests" / address)


def holds_something(path: Path) -> None:
    """A module of tests has some, a contract has methods that are; what is run by hand runs by itself."""
    text = path.read_text()
    assert re.search(r"^(    )?def test_|^if __name__|^MUTANTS\b", text, re.MULTILINE) or path.suffix == ".txt"


def test_the_page_counts_mutants_as_there_are() -> None:
    assert f"in {len(MUTANTS)} ways" in SAFETY


def shown(value: int, is_size: bool) -> str:
    if not is_size:
        return f"{value:,}"
    return f"{value // GIB} GiB" if value >= GIB else f"{value // MIB} MiB" if value >= MIB else f"{value // 1024} KiB"


def test_what_is_done_without_spark_is_as_the_code_has_it() -> None:
    told = {name.strip("`"): value for name, (value, _) in tables()[1].items()}
    assert told == {name: shown(getattr(LIMITS, name), name.endswith("bytes")) for name in LIMITS.__struct_fields__}


def tables() -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """The table of sizes, and that of what is done without Spark."""
    sizes, _, without_spark = PAGE.partition("\n## What is done without Spark")
    return _table(sizes.rpartition("\n| limit |")[2]), _table(without_spark.rpartition("\n| limit |")[2])


def _table(text: str) -> dict[str, list[str]]:
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in text.partition("\n\n")[0].splitlines()[2:]]
    return {name: rest for name, *rest in cells}


def test_sizes_are_as_the_code_has_them() -> None:
    assert [value for value, _ in tables()[0].values()] == [
        shown(MAX_METADATA_BYTES, True),
        f"{shown(_MAX_HEADER_BYTES, True)}; {shown(_MAX_BLOCK_BYTES, True)}",
        shown(PUFFIN_FOOTER_BYTES, True),
        shown(MAX_FOOTER_BYTES, True),
        shown(MAX_ROW_GROUPS, False),
        shown(THREAD_BYTES, True),
        shown(COMFORTABLE_BYTES, True),
        f"{shown(MAX_TEXT_LENGTH, True)}; {shown(MAX_LITERALS, False)}; {shown(MAX_DEPTH, False)}",
        shown(SORT_ORDER_LENGTH, True),
        shown(MAX_NESTING, False),
        shown(CALL_FILES, False),
        shown(deletes.REACHES, False),
        shown(row_ids.BRANCH_FILES, False),
        shown(row_ids.OVERLAPPING_FILES, False),
        shown(MAX_HEADS, False),
    ]


def test_what_is_said_to_be_refused_is() -> None:
    assert f"format version {SUPPORTED_FORMAT_VERSION + 1} and later" in PAGE
    for kind in ("dynamodb", "bigquery", "nessie"):
        assert f"`{kind}`" in PAGE
        with pytest.raises(UnsupportedError):
            open_catalog("c", {"type": kind})
