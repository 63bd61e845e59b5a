"""README's commands are those that there are: each is parsed as the command line parses it, and its options by their job."""

import re
import shlex
from pathlib import Path

import pytest

from icekeep.errors import UsageError
from icekeep.maintenance.options import parse_options
from icekeep.operations.arguments import Command, parse_command
from icekeep.operations.jobs import JOBS, resolve
from icekeep.operations.verbs import VERBS
from icekeep.settings import Kind
from icekeep.spec.filters.parsing import parse_where

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
NOW_MS = 1_700_000_000_000

BLOCKS = re.findall(r"^```\w*\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
PROSE = re.sub(r"^```\w*\n.*?^```$", "", README, flags=re.MULTILINE | re.DOTALL)
SPANS = re.findall(r"`([^`\n]+)`", PROSE)
SHOWN = [line for block in BLOCKS for line in block.splitlines()]
COMMANDS = [line for line in SHOWN if line.startswith(("icekeep ", "spark-submit ", "bin/icekeep "))]
TARGETS = {*re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE)}
MADE = {
    *(line.split()[1] for line in SHOWN if line.startswith("make ")),
    *re.findall(r"\bmake ([a-z][a-z-]*)", " ".join(f"{span}\n" for span in SPANS if span.startswith("make "))),
}
FLAGS = {setting.flag for job in JOBS.values() for setting in job.settings} | {
    setting.flag for verb in VERBS.values() for setting in (*verb.settings, *verb.one_of)
}
COMMON = {
    "--table",
    "--catalog",
    "--conf",
    "--dry-run",
    "--plan-out",
    "--output",
    "--result-file",
    "--verbose",
    "--log-format",
    "--metrics-file",
    "--help",
    "--version",
}
OF_SPARK_SUBMIT = {"--py-files", "--archives"}


def parsed(line: str) -> Command:
    """The command of a line, with its filter and its options read as well."""
    words = shlex.split(line, comments=True)
    job = None
    if words[0] == "spark-submit":
        [script] = [word for word in words if word.startswith("jobs/")]
        assert (ROOT / script).is_file()
        job = Path(script).stem
        words = words[words.index(script) :]
    command = parse_command(words[1:], job, NOW_MS, "1")
    if command.name in JOBS:
        kinds = {setting.kind for setting in JOBS[command.name].settings}
        if Kind.FILTER in kinds and "where" in command.arguments:
            parse_where(command.arguments["where"], NOW_MS)
        options = JOBS[command.name].options
        if options is not None:
            parse_options(resolve(options), command.arguments.get("options", {}))
    return command


@pytest.mark.parametrize("line", COMMANDS)
def test_a_command_in_a_block_is_one_that_can_be_run(line: str) -> None:
    parsed(line)


@pytest.mark.slow
def test_blocks_show_most_commands_and_are_found() -> None:
    """So that a change of README's form does not leave nothing to be parsed."""
    assert len(COMMANDS) >= 20
    assert {parsed(line).name for line in COMMANDS} >= {*JOBS.keys() - {"drop"}, "restore", "rollback"}
    assert len(MADE) >= 5


@pytest.mark.parametrize("target", sorted(MADE))
def test_a_target_of_make_exists(target: str) -> None:
    assert target in TARGETS


@pytest.mark.parametrize("span", [span for span in SPANS if span.startswith("icekeep ")])
def test_a_command_in_the_text_has_a_name_and_flags_that_there_are(span: str) -> None:
    """In the text commands are cut short, so they may lack what must be given."""
    words = span.split()[1:]
    name = next((name for name in (" ".join(words[:2]), words[0]) if name in {*JOBS, *VERBS, "config show"}), None)
    assert name is not None or words[0] in {*(name.split()[0] for name in VERBS), "NAME"}
    assert {word for word in words if word.startswith("--")} <= FLAGS | COMMON


@pytest.mark.parametrize("span", sorted({span for span in SPANS if span.startswith("--")}))
def test_a_flag_in_the_text_is_one_of_a_command(span: str) -> None:
    flag, _, value = span.partition(" ")
    assert flag in FLAGS | COMMON | OF_SPARK_SUBMIT
    if flag == "--option":
        classes = [resolve(job.options) for job in JOBS.values() if job.options is not None]
        assert any(value.partition("=")[0] in cls.__struct_encode_fields__ for cls in classes)


@pytest.mark.parametrize(
    "line",
    [
        "icekeep compactify --table db.t",
        "icekeep compact --table db.t --frobnicate",
        "icekeep compact --table db.t --option max-orphan-ratio=0.1",
        "icekeep plan_scan --table db.t --where 'id >='",
        "spark-submit jobs/compact.py --tabel db.t",
    ],
)
def test_a_command_that_there_is_not_would_be_seen(line: str) -> None:
    with pytest.raises(UsageError):
        parsed(line)
