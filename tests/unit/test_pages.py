"""What README and the pages of docs/ tell people to run, write and open is there, and is what the code takes."""

import re
from pathlib import Path

import pytest

from icekeep import cli
from icekeep.errors import IcekeepError, UsageError
from icekeep.operations.command_specs import COMMANDS
from icekeep.operations.configuration.file import parse_config
from icekeep.operations.jobs import JOBS, resolve
from icekeep.operations.runbooks import kinds
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
from kit.shell import ROOT

ERROR_ENDING = re.compile(r"\(icekeep help ([a-z-]+)\)\s*\Z")
README = ROOT / "README.md"
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
def test_a_command_in_the_text_has_a_name_and_flags_that_there_are(page: Path) -> None:
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
    assert len(README.read_text().splitlines()) <= 200
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


def test_nothing_says_to_install_from_an_index_that_has_no_icekeep() -> None:
    assert FROM_AN_INDEX.search("pip install 'icekeep[s3]'")
    assert FROM_AN_INDEX.search("pip install -U icekeep")
    # That page is about environments of Airflow, with an index of their own.
    pages = [page for page in PAGES if page.name != "airflow.md"]
    code = [path for folder in ("lib", "jobs", "conf", "airflow_dags") for path in (ROOT / folder).rglob("*.*")]
    texts = [path for path in (*pages, *code) if path.suffix in (".md", ".py", ".yaml", ".properties")]
    assert len(texts) > 500
    assert [str(path.relative_to(ROOT)) for path in texts if FROM_AN_INDEX.search(path.read_text())] == []


def test_readme_names_every_job_and_every_command() -> None:
    in_the_table = re.findall(r"^\| \[`(\w+)`\]\(docs/jobs/(\w+)\.md\) \|", README.read_text(), re.MULTILINE)
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


def test_commands_are_found_with_prompts_in_several_lines_and_before_pipes() -> None:
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


def test_an_error_of_a_command_that_reads_no_table_is_quoted_as_it_is_printed(
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
