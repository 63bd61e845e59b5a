"""The command line as argparse knows it, made from the settings of each job.

A mistake is a `UsageError` with one line, never argparse's usage text; only flags that a job has are accepted.
"""

import argparse
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import msgspec

from icekeep.errors import UsageError
from icekeep.operations.config import DEFAULT_PATH
from icekeep.operations.settings import JOB_SETTINGS, JOB_SUMMARIES, Kind, Setting, parse_option, parse_setting

OUTPUTS = ("table", "json")
CONFIG_SHOW = "config show"


class Command(msgspec.Struct, frozen=True, kw_only=True):
    """What the user asked for; `arguments` holds the settings that were given, by name."""

    name: str
    conf: str | None
    output: str
    result_file: str | None
    verbose: bool
    catalog: str | None = None
    table: str = ""
    dry_run: bool = False
    arguments: dict[str, Any] = {}


class OutputWish(msgspec.Struct, frozen=True):
    """How an answer is wanted, also if the rest of the command line is wrong."""

    output: str
    result_file: str | None
    verbose: bool


def parse_command(argv: Sequence[str], job: str | None, now_ms: int, version: str) -> Command:
    """Read a command line.

    Args:
        job: the job whose own script this is; null for the `icekeep` command, where the first word names it.

    Raises:
        UsageError: a flag is unknown, missing, or has a value that it cannot take.
        SystemExit: help or the version was asked for, and printed.
    """
    parser = job_parser(job, now_ms) if job is not None else command_parser(now_ms, version)
    given = vars(parser.parse_args(list(argv)))
    name = job or given["command"]
    if name == "config":
        name = CONFIG_SHOW
    settings = JOB_SETTINGS.get(name, ())
    values = {setting.name: given[setting.name] for setting in settings if given[setting.name] is not None}
    if "options" in values:
        values["options"] = _distinct(values["options"])
    return Command(
        name=name,
        conf=given["conf"],
        output=given["output"],
        result_file=given["result_file"],
        verbose=given["verbose"],
        catalog=given.get("catalog"),
        table=given.get("table", ""),
        dry_run=given.get("dry_run", False),
        arguments=values,
    )


def output_wish(argv: Sequence[str]) -> OutputWish:
    """What can be told of the wanted output from a command line that may be wrong."""
    parser = _Parser(add_help=False, allow_abbrev=False)
    _add_output(parser)
    try:
        given, _ = parser.parse_known_args(list(argv))
    except UsageError:
        return OutputWish("table", None, "--verbose" in argv)
    return OutputWish(given.output, given.result_file, given.verbose)


def job_parser(job: str, now_ms: int) -> argparse.ArgumentParser:
    """The parser of one job's script, `jobs/NAME.py`."""
    parser = _Parser(prog=f"{job}.py", description=_sentence(JOB_SUMMARIES[job]), allow_abbrev=False)
    _add_job(parser, job, now_ms)
    return parser


def command_parser(now_ms: int, version: str) -> argparse.ArgumentParser:
    """The parser of the `icekeep` command: a sub-command for each job, and `config show`."""
    parser = _Parser(prog="icekeep", description="Table maintenance for Apache Iceberg.", allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"icekeep {version}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for job, summary in JOB_SUMMARIES.items():
        below = commands.add_parser(job, help=summary, description=_sentence(summary), allow_abbrev=False)
        _add_job(below, job, now_ms)
    config = commands.add_parser("config", help="look at the configuration", allow_abbrev=False)
    actions = config.add_subparsers(dest="action", metavar="ACTION", required=True)
    summary = "show each catalog's properties and where they come from"
    show = actions.add_parser("show", help=summary, description=_sentence(summary), allow_abbrev=False)
    _add_conf(show)
    _add_output(show)
    return parser


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; see {self.prog} --help")


def _add_job(parser: argparse.ArgumentParser, job: str, now_ms: int) -> None:
    parser.add_argument("--table", metavar="NS.NAME", required=True, help="the table; CATALOG.NS.NAME names both")
    parser.add_argument("--catalog", metavar="NAME", help="the catalog, as the configuration calls it")
    _add_conf(parser)
    for setting in JOB_SETTINGS[job]:
        _add_setting(parser, setting, now_ms)
    parser.add_argument("--dry-run", action="store_true", help="show the plan and change nothing")
    _add_output(parser)


def _add_setting(parser: argparse.ArgumentParser, setting: Setting, now_ms: int) -> None:
    if setting.kind is Kind.SWITCH:
        parser.add_argument(setting.flag, dest=setting.name, action="store_const", const=True, help=setting.help)
        return
    parse: Callable[[str], Any] = parse_option
    if setting.kind is not Kind.OPTIONS:
        parse = lambda text: parse_setting(setting, text, now_ms)  # noqa: E731
    parser.add_argument(
        setting.flag,
        dest=setting.name,
        metavar=setting.kind.value,
        type=_argument(parse),
        action="append" if setting.kind is Kind.OPTIONS else "store",
        help=setting.help,
    )


def _add_conf(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--conf", metavar="FILE", help=f"the configuration (default: {DEFAULT_PATH}, if it is there)")


def _add_output(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--output", choices=OUTPUTS, default="table", help="how stdout shows the result")
    parser.add_argument("--result-file", metavar="PATH", help="also write the result, as JSON, to a file")
    parser.add_argument("--verbose", action="store_true", help="more log lines, and tracebacks of errors")


def _argument(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """The flag's name is added by argparse, but only to an error of its own kind."""

    def parse_argument(text: str) -> Any:
        try:
            return parse(text)
        except UsageError as error:
            raise argparse.ArgumentTypeError(error.message) from error

    return parse_argument


def _distinct(pairs: Sequence[tuple[str, str]]) -> dict[str, str]:
    options = dict(pairs)
    if len(options) != len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise UsageError(f"option {twice!r} is given twice")
    return options


def _sentence(summary: str) -> str:
    return summary[:1].upper() + summary[1:] + "."
