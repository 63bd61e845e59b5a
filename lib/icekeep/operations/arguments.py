"""The command line as argparse knows it, made from the settings of each job and of each command beside them.

A mistake is a `UsageError` with one line, never argparse's usage text; only flags that a job has are accepted.
"""

import argparse
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from itertools import takewhile
from typing import Any

import msgspec

from icekeep.errors import IcekeepBug, UsageError
from icekeep.names import is_quoted, written_parts
from icekeep.operations.command_specs import COMMANDS, GROUP_SUMMARIES, HELP_GROUPS, CommandScope, CommandSpec
from icekeep.operations.configuration.setting_values import parse_option, parse_setting
from icekeep.operations.console.looks import COLORS, DEFAULT_LOOK, FORMATS, OutputStyle
from icekeep.operations.help_texts import (
    EXIT_STATUSES,
    Parser,
    examples_text,
    foot_of_job,
    listing,
    option_names,
    sentence,
)
from icekeep.operations.jobs import JOBS
from icekeep.operations.misspelt import (
    unknown_action,
    unknown_command,
)
from icekeep.settings import CONFIG_PATH, CONFIG_VARIABLE, Job, Setting, SettingKind
from icekeep.spelling import did_you_mean, near_words, with_one_typo
from icekeep.version import ICEKEEP_VERSION

OUTPUTS = ("table", "json")
MAPPINGS = (SettingKind.OPTIONS, SettingKind.PAIRS)
"""Kinds whose flag may be given several times, once for each key."""

_TABLE = "the table; CATALOG.NS.NAME names both"


def add_table(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--table", metavar="NS.NAME", required=True, help=_TABLE)
    add_catalog(parser)


def add_tables(parser: argparse.ArgumentParser) -> None:
    """What names one table, or several by a pattern: `--table` or `--match`, and `--catalog`, `--config`."""
    one_of = parser.add_mutually_exclusive_group(required=True)
    one_of.add_argument("--table", metavar="NS.NAME", help=_TABLE)
    one_of.add_argument(
        "--match",
        metavar="PATTERN",
        help="instead of one table each of a pattern, one after the other: * within a part of the name, ** over parts, e.g. "
        "'db.*' or 'CATALOG.db.*'",
    )
    add_catalog(parser)


def add_catalog(parser: argparse.ArgumentParser, default: str = "") -> None:
    """`--catalog` and `--config`; `default` is what the help says of a catalog that is not named."""
    parser.add_argument("--catalog", metavar="NAME", help=f"the catalog, as the configuration calls it{default}")
    add_conf(parser)


def add_conf(parser: argparse.ArgumentParser) -> None:
    """`--config`, and `--conf`, its earlier name."""
    parser.add_argument(
        "--config",
        "--conf",
        dest="conf",
        metavar="FILE",
        type=_argument(_configuration),
        help=f"the configuration (default: ${CONFIG_VARIABLE}, {CONFIG_PATH}, or ~/.config/icekeep/icekeep.yaml)",
    )


def _configuration(text: str) -> str:
    if text.startswith("spark.") and "=" in text:
        raise UsageError(
            f"{text!r} is a setting of Spark, and this flag names icekeep's configuration; give it to spark-submit"
        )
    return text


def add_setting(parser: argparse._ActionsContainer, setting: Setting, now_ms: int) -> None:
    """The flag or word of a setting; times in it are read as seen from `now_ms`, epoch milliseconds."""
    if setting.kind is SettingKind.SWITCH:
        parser.add_argument(setting.flag, dest=setting.name, action="store_const", const=True, help=setting.help)
        return
    parse: Callable[[str], Any] = parse_option
    if setting.kind not in MAPPINGS:
        parse = lambda text: parse_setting(setting, text, now_ms)  # noqa: E731
    if setting.is_positional:
        parser.add_argument(
            setting.name,
            metavar=setting.shown or setting.kind.value,
            type=_argument(parse),
            nargs=None if setting.is_required else "?",
            choices=setting.choices or None,
            help=setting.help,
        )
        return
    parser.add_argument(
        setting.flag,
        dest=setting.name,
        metavar=setting.shown or setting.kind.value,
        type=_argument(parse),
        action="append" if setting.kind in MAPPINGS else "store",
        required=setting.is_required,
        choices=setting.choices or None,
        help=setting.help,
    )


def _argument(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """The flag's name is added by argparse, but only to an error of its own kind."""

    def parse_argument(text: str) -> Any:
        try:
            return parse(text)
        except UsageError as error:
            raise argparse.ArgumentTypeError(error.message) from error

    return parse_argument


def add_output(
    parser: argparse.ArgumentParser,
    outputs: Sequence[str] = OUTPUTS,
    log_formats: Sequence[str] | None = FORMATS,
    needs: str = "",
) -> None:
    """`--output` and what else says how an answer is given; `needs` says which forms need more packages."""
    parser.add_argument("--output", choices=outputs, default="table", help=f"how stdout shows the result{needs}")
    parser.add_argument(
        "--wide", action="store_true", help="leave out, cut and wrap nothing for the width of the terminal"
    )
    parser.add_argument(
        "--columns", metavar="A,B", help="of tables on a terminal these columns, by their names in JSON or their labels"
    )
    parser.add_argument(
        "--color", choices=COLORS, default="auto", help="colours; auto: on a terminal, unless NO_COLOR is set"
    )
    also = "; for any other form send stdout to one" if {*outputs} - {*OUTPUTS} else ""
    parser.add_argument("--result-file", metavar="PATH", help=f"also write the result to a file, always as JSON{also}")
    parser.add_argument(
        "--verbose", action="store_true", help="log lines of all that happens, with times, and tracebacks of errors"
    )
    parser.add_argument(
        "--log-format",
        choices=log_formats,
        help="format of stderr: text, or json with one object per line (default: text)",
    )


def add_metrics(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--metrics-file", metavar="PATH", help="keep metrics of runs in a file, for node_exporter's textfile collector"
    )


SIGNS = frozenset("*?[")
"""What a name has only in quotes, and a pattern without."""

_SHORTEST_FLAG = 3
"""Shorter words that begin with a dash are numbers, or flags of one letter."""

_HELP = "help"
_FIRST_WORDS = frozenset({*JOBS, *COMMANDS, *GROUP_SUMMARIES})
"""What a command line can begin with."""

_HELP_FLAGS = ("-h", "--help")
_FIRST_FLAGS = ("--help", "--version")
"""What can stand in the place of a command."""

_POLICY = Setting(
    "policy",
    SettingKind.NAME,
    "for schedulers: apply the current settings of this policy, and do nothing if it disables the job; snapshots and the record "
    "of runs name the policy",
)


class Command(msgspec.Struct, frozen=True, kw_only=True):
    """What the user asked for; `arguments` holds the settings that were given, by the function's keywords.

    A job with a `match`, a pattern, has no `table`. A `plan_out`, the file of a plan, implies `dry_run`. `log_format` and
    `metrics_file` are `None` where the configuration says it.
    """

    name: str
    conf: str | None = None
    output: str = "table"
    result_file: str | None = None
    verbose: bool = False
    log_format: str | None = None
    metrics_file: str | None = None
    catalog: str | None = None
    table: str = ""
    match: str | None = None
    dry_run: bool = False
    plan_out: str | None = None
    policy: str | None = None
    arguments: dict[str, Any] = {}


class OutputOptions(msgspec.Struct, frozen=True):
    """How an answer is wanted, also if the rest of the command line is wrong."""

    format: str
    result_file: str | None
    verbose: bool
    log_format: str | None = None
    conf: str | None = None
    look: OutputStyle = DEFAULT_LOOK


def parse_command(argv: Sequence[str], job: str | None, now_ms: int) -> Command:
    """Read a command line.

    Args:
        job: the job or command whose own script this is; `None` for the `icekeep` command, where the first word names it.
    """
    words, name = (_words(argv), None) if job is None else (list(argv), job)
    if name is None:
        if not words:
            command_parser(now_ms).print_help(sys.stderr)
            raise SystemExit(UsageError.exit_status)
        _require_command(words, now_ms)
        name = named_command(words)
        if name is None:
            # Help or the version is asked for, else argparse says what is wrong.
            command_parser(now_ms).parse_args(words)
            raise IcekeepBug(f"a command line that names no command was accepted: {words}")
        words = words[len(name.split()) :]
    prog = f"{job}.py" if job is not None else f"icekeep {name}"
    try:
        known, unknown = parser_of(name, now_ms, prog).parse_known_args(words)
    except UsageError as error:
        # A flag that is misspelt is missing too.
        raise _misspelt_flag(words, name, now_ms) or _stray_word(words, name, now_ms) or error from None
    given = vars(known)
    if unknown:
        unrecognized = UsageError(f"unrecognized arguments: {' '.join(unknown)}; see {prog} --help")
        raise _misspelt_flag(words, name, now_ms) or unrecognized
    settings = _settings(name)
    values = {setting.argument: given[setting.name] for setting in settings if given[setting.name] is not None}
    for setting in settings:
        if setting.kind in MAPPINGS and setting.argument in values:
            values[setting.argument] = _distinct(setting, values[setting.argument])
    is_job = name in JOBS
    if is_job and JOBS[name].rank is not None:
        _refuse_wrong_choice(given)
    return Command(
        name=name,
        conf=given.get("conf"),
        output=given["output"],
        result_file=given["result_file"],
        verbose=given["verbose"],
        log_format=given["log_format"],
        metrics_file=given.get("metrics_file"),
        catalog=given.get("catalog"),
        table=given.get("table") or "",
        match=given.get("match") if is_job else None,
        dry_run=bool(given.get("dry_run") or given.get("plan_out")),
        plan_out=given.get("plan_out"),
        policy=given.get(_POLICY.name) if is_job else None,
        arguments=values,
    )


def _refuse_wrong_choice(given: Mapping[str, Any]) -> None:
    """Refuse a pattern in the place of a table, and what is of one table beside a pattern."""
    table, match = given["table"], given["match"]
    signs = {*"".join(part for part in written_parts(table or "") if not is_quoted(part))}
    if not signs.isdisjoint(SIGNS):
        shown = shlex.join(["--match", table])
        raise UsageError(f"argument --table: {table!r} names no table; `{shown}` takes patterns")
    if match is None:
        return
    if given.get("plan_out") is not None:
        raise UsageError(
            "--plan-out writes the plan of one table to a file; give --table, or --dry-run, which shows the plans of all"
        )
    if given[_POLICY.name] is not None:
        shown = shlex.join(["icekeep", "maintain", "--policy", given[_POLICY.name], "--match", match])
        raise UsageError(f"--policy is for a job on one table; give --table, or run `{shown}`")


def _require_command(words: Sequence[str], now_ms: int) -> None:
    """Refuse a command that there is not, with the one that may be meant, where argparse would list them all.

    So are flags before it refused that stand behind it, or that no command has: argparse would tell of what it misses first.
    """
    first, second = [*words, "", ""][:2]
    if first.startswith("-"):
        if len(first.partition("=")[0]) >= _SHORTEST_FLAG and first not in _FIRST_FLAGS:
            raise _flag_before_command(first.partition("=")[0], words, now_ms)
    elif first and first not in _FIRST_WORDS:
        raise unknown_command(first, sorted({*_FIRST_WORDS, *COMMANDS}))
    known = [words.removeprefix(f"{first} ") for words in COMMANDS if words.startswith(f"{first} ")]
    if first in GROUP_SUMMARIES and second not in (*known, *_HELP_FLAGS):
        raise unknown_action(first, second, known)


def _flag_before_command(flag: str, words: Sequence[str], now_ms: int) -> UsageError:
    """The error for a flag with which a command line begins."""
    command = next(filter(None, (named_command(words[n:]) for n in range(1, len(words)))), None)
    if flag not in _all_flags(now_ms):
        near = near_words(flag.lstrip("-"), [one.removeprefix("--") for one in _FIRST_FLAGS])
        hint = did_you_mean(f"--{one}" for one in near) if near else "see icekeep --help"
        return UsageError(f"there is no flag {flag!r} before the command; {hint}", given=flag)
    if command is not None and flag not in parser_of(command, now_ms).flags():
        return UsageError(
            f"{command} has no flag {flag!r}; `icekeep {command} --help` lists those that it has", given=flag
        )
    shown = f"`icekeep {command or 'COMMAND'} {flag} ...`"
    return UsageError(f"flag {flag!r} stands before the command; write {shown}", given=flag)


def _misspelt_flag(words: Sequence[str], command: str, now_ms: int) -> UsageError | None:
    """The error for the first flag that a command has not, where it is known what is meant; `None` if there is none.

    That is another flag of the command, or an option. A flag that another command has is only taken for one with a typo.
    """
    own = parser_of(command, now_ms).flags()
    names = [flag.removeprefix("--") for flag in own]
    for word in takewhile(lambda one: one != "--", words):
        flag = word.partition("=")[0]
        is_flag = flag.startswith("-") and len(flag) >= _SHORTEST_FLAG and " " not in flag
        if not is_flag or flag in own:
            continue
        if flag == "--match" and "--table" in own:
            return UsageError(f"{command} works on one table and has no flag '--match'; give --table", given=flag)
        if flag == "--json":
            return UsageError("there is no flag '--json'; write `--output json`", given=flag)
        name = flag.lstrip("-")
        is_anothers = flag in _all_flags(now_ms)
        near = with_one_typo(name, names) if is_anothers else near_words(name, names)
        options = option_names(JOBS[command]) if command in JOBS else ()
        if name in options:
            return UsageError(f"{command} has no flag {flag!r}; write `--option {name}=...`", given=flag)
        options_near = near_words(name, options) if not near and not is_anothers else []
        if options_near:
            hint = did_you_mean(f"--option {one}" for one in options_near)
            return UsageError(f"there is no flag {flag!r}; {hint}", given=flag)
        if near:
            problem = f"{command} has no flag {flag!r}" if is_anothers else f"there is no flag {flag!r}"
            return UsageError(f"{problem}; {did_you_mean(f'--{one}' for one in near)}", given=flag)
    return None


def _stray_word(words: Sequence[str], command: str, now_ms: int) -> UsageError | None:
    """The error for a table that is given without `--table`; `None` if the words do not begin so."""
    first, own = words[0] if words else "-", parser_of(command, now_ms).flags()
    if any(setting.is_positional for setting in _settings(command)) or first.startswith("-") or "--table" not in own:
        return None
    if any(one.partition("=")[0] == "--table" for one in words):
        return None
    flag = "--match" if "*" in first and "--match" in own else "--table"
    shown = shlex.join(["icekeep", *command.split(), flag, *words])
    return UsageError(f"{first!r} stands without a flag; write `{shown}`", given=first)


def _all_flags(now_ms: int) -> set[str]:
    return {flag for command in (*JOBS, *COMMANDS) for flag in parser_of(command, now_ms).flags()}


def named_command(argv: Sequence[str]) -> str | None:
    """The job or command that a command line begins with, also if the rest of it is wrong; `None` if with none."""
    words = _words(argv)
    spelled = (" ".join(words[:2]), " ".join(words[:1]))
    return next((name for name in spelled if name in JOBS or name in COMMANDS), None)


def output_options(argv: Sequence[str]) -> OutputOptions:
    """What can be told of the wanted output from a command line that may be wrong."""
    parser = Parser(takes_last=True, add_help=False, allow_abbrev=False)
    texts = (name for verb in COMMANDS.values() for name in verb.texts)
    # What is wrong with the rest is told when the whole is read, in the form that is wanted.
    add_output(parser, tuple(dict.fromkeys((*OUTPUTS, *texts))), log_formats=None)
    parser.add_argument("--config", "--conf", dest="conf")
    try:
        given, _ = parser.parse_known_args(list(argv))
    except UsageError:
        return OutputOptions("table", None, "--verbose" in argv)
    log_format = given.log_format if given.log_format in FORMATS else None
    columns = tuple(name for part in (given.columns or "").split(",") if (name := part.strip()))
    look = OutputStyle(is_wide=given.wide, columns=columns, color=given.color)
    return OutputOptions(given.output, given.result_file, given.verbose, log_format, given.conf, look)


def parser_of(name: str, now_ms: int, prog: str = "") -> Parser:
    """The parser of a job, or of a command beside the jobs; `prog` is what runs it, by default its script in `jobs/`."""
    summary = JOBS[name].summary if name in JOBS else COMMANDS[name].summary
    parser = Parser(prog=prog or f"{name}.py", description=sentence(summary), allow_abbrev=False)
    if name in JOBS:
        _add_job(parser, JOBS[name], now_ms)
    else:
        _add_verb(parser, name, COMMANDS[name], now_ms)
    return parser


def command_parser(now_ms: int) -> argparse.ArgumentParser:
    """The parser of the `icekeep` command: a sub-command for each job and each command beside them."""
    summaries = {**{words: verb.summary for words, verb in COMMANDS.items()}, **GROUP_SUMMARIES}
    parser = Parser(
        prog="icekeep",
        usage="icekeep [-h] [--version] COMMAND ...",
        description="Table maintenance for Apache Iceberg. `icekeep COMMAND --help` says more.",
        epilog=listing("jobs", {job.name: job.summary for job in JOBS.values()})
        + "".join(listing(title, {name: summaries[name] for name in names}) for title, names in HELP_GROUPS.items()),
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"icekeep {ICEKEEP_VERSION}")
    commands = _add_words(parser, "command", "icekeep")
    for job in JOBS.values():
        _add_job(commands.add_parser(job.name, description=sentence(job.summary), allow_abbrev=False), job, now_ms)
    groups = {name: _add_group(commands, name) for name in GROUP_SUMMARIES}
    for words, verb in COMMANDS.items():
        group, _, action = words.rpartition(" ")
        parent = groups[group] if group else commands
        added = parent.add_parser(action, description=sentence(verb.summary), allow_abbrev=False)
        _add_verb(added, words, verb, now_ms)
    return parser


def _words(argv: Sequence[str]) -> list[str]:
    """A command line with the job's name as Iceberg's procedure has it; `rewrite-manifests` is accepted too.

    `help COMMAND` is `COMMAND --help`, but where a kind of error has the same name: its line sends readers to that.
    """
    first, *rest = argv or [""]
    if first == _HELP and rest:
        from icekeep.operations.runbooks import kinds

        asked = _words(rest)
        if asked[0] in _FIRST_WORDS and not (len(rest) == 1 and rest[0] in kinds()):
            return [*asked, "--help"]
    name = first.replace("-", "_")
    return [name, *rest] if name in JOBS else list(argv)


def _settings(name: str) -> tuple[Setting, ...]:
    if name in COMMANDS:
        return COMMANDS[name].settings + COMMANDS[name].one_of
    return JOBS[name].settings if name in JOBS else ()


def _add_group(commands: Any, group: str) -> Any:
    verbs = {
        words.removeprefix(f"{group} "): v.summary for words, v in COMMANDS.items() if words.startswith(f"{group} ")
    }
    parser = commands.add_parser(
        group,
        usage=f"icekeep {group} [-h] ACTION ...",
        description=f"{sentence(GROUP_SUMMARIES[group])} `icekeep {group} ACTION --help` says more.",
        epilog=listing("actions", verbs),
        allow_abbrev=False,
    )
    return _add_words(parser, "action", f"icekeep {group}")


def _add_words(parser: argparse.ArgumentParser, destination: str, prog: str) -> Any:
    """Where parsers of a next word are added; the help text has a list of its own of them."""
    return parser.add_subparsers(
        prog=prog, dest=destination, metavar=destination.upper(), required=True, help=argparse.SUPPRESS
    )


def _add_verb(parser: Parser, name: str, verb: CommandSpec, now_ms: int) -> None:
    _add_scope(parser, verb)
    for setting in verb.settings:
        add_setting(parser, setting, now_ms)
    if verb.one_of:
        one_of = parser.add_argument_group("one of").add_mutually_exclusive_group(required=True)
        for setting in verb.one_of:
            add_setting(one_of, setting, now_ms)
    if verb.changes:
        parser.add_argument("--dry-run", action="store_true", help="try it with all its checks and change nothing")
    needed = ", ".join(f"{form} needs {text.needs}" for form, text in verb.texts.items() if text.needs)
    add_output(parser, tuple(dict.fromkeys((*OUTPUTS, *verb.texts))), needs=f"; {needed}" if needed else "")
    if verb.changes_tables:
        add_metrics(parser)
    if verb.examples:
        parser.foot = lambda: "\n\n".join((examples_text(name, verb.examples), EXIT_STATUSES))


def _add_scope(parser: Parser, verb: CommandSpec) -> None:
    match verb.scope:
        case CommandScope.TABLE | CommandScope.NEW_TABLE:
            add_table(parser)
        case CommandScope.PLAN:
            add_catalog(parser, " (default: the one that the plan names)")
        case CommandScope.CATALOGS | CommandScope.POLICIES | CommandScope.FLEET:
            names_table = any(setting.name == "table" for setting in verb.settings)
            add_catalog(parser, "" if names_table else " (default: each that is configured)")
        case CommandScope.CONFIGURATION:
            add_conf(parser)


def _add_job(parser: Parser, job: Job, now_ms: int) -> None:
    if job.rank is None:
        add_table(parser)
    else:
        add_tables(parser)
    for setting in job.settings:
        add_setting(parser, setting, now_ms)
    preview = (
        "show the plan and change nothing" if job.plan is not None else "the same as without it: nothing is changed"
    )
    parser.add_argument("--dry-run", action="store_true", help=preview)
    if job.exact is not None:
        parser.add_argument(
            "--plan-out",
            metavar="FILE",
            help="change nothing, and write the plan with all its files to a new file, which `icekeep apply` carries out",
        )
    if job.rank is not None:
        add_setting(parser, _POLICY, now_ms)
    add_output(parser)
    add_metrics(parser)
    parser.foot = lambda: foot_of_job(job)


def _distinct(setting: Setting, pairs: Sequence[tuple[str, str]]) -> dict[str, str]:
    values = dict(pairs)
    if len(values) != len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise UsageError(f"argument {setting.flag}: {twice!r} is given twice; give it once")
    return values


def flags_by_argument(name: str) -> dict[str, str]:
    return {setting.argument: setting.flag for setting in _settings(name) if not setting.is_positional}
