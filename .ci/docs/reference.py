"""Writes into pages of docs/ what the code says of flags, options and results: `make reference`.

A page has pairs of marks, `<!-- begin: flags compact -->` and `<!-- end -->`; what stands between them is made, and nobody edits
it. With `--check` nothing is written, and the exit status is 1 where a page is behind the code.

    flags NAME      the flags of a job or command; `own NAME` and `common NAME` are two parts of it
    options NAME    what `--option` of a job takes
    result NAME     the fields of its result
    matched         those of a job with `--match`
    jobs, commands  all of them, each with its page
    settings        what a policy can say of each job
    owners          what a table's owner can say of it
    operators       those of Airflow
    statuses        what exit statuses mean

The stub by which editors know the operators of Airflow is made too.
"""

import argparse
import re
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
from markdown_tables import as_sentence, code, meanings_of, prose, table
from result_fields import matched_block, result_block

from icekeep.airflow.signatures import OFFERED, operator_name, stub
from icekeep.operations.arguments import command_parser, parser_of
from icekeep.operations.command_specs import COMMANDS, GROUP_SUMMARIES, HELP_GROUPS
from icekeep.operations.help_texts import EXIT_STATUSES
from icekeep.operations.jobs import JOBS, POLICY_JOBS, resolve
from icekeep.policies.table_properties import OWNERS_SETTINGS
from icekeep.settings import Setting
from icekeep.spec.types import GIB, MAX_INT, MAX_LONG, MIB

DOCS = Path(__file__).parents[2] / "docs"
STUB = DOCS.parent / "lib" / "icekeep" / "airflow" / "__init__.pyi"
"""What editors know of the operators of Airflow."""

_BLOCK = re.compile(r"^(<!-- begin: (\w+)(?: ([^>]+?))? -->\n).*?^(<!-- end -->)$", re.MULTILINE | re.DOTALL)
_DEFAULT = re.compile(r" ?\(default: ([^)]*)\)")
_OURS = frozenset({"stitch"})
_OF_ICEBERG = ("compact", "rewrite_position_deletes")
"""Jobs whose procedure has options; of all others the options are ours."""


def flags_block(name: str) -> str:
    """The flags of a job or command: its own, then those that others have too."""
    own, common = _actions(name)
    parts = [_flags(own, name), "And those that jobs and commands have in common:"] if own else []
    return "\n\n".join([*parts, _flags(common, name)])


def own_block(name: str) -> str:
    """Those flags alone that are its own."""
    return _flags(_actions(name)[0], name)


def common_block(name: str) -> str:
    """Those that it has in common with others."""
    return _flags(_actions(name)[1], name)


def options_block(name: str) -> str:
    """What `--option` of a job takes."""
    cls: Any = resolve(str(JOBS[name].options))
    said = meanings_of(cls)
    rows = [
        (
            code(one.encode_name),
            _value(one.default),
            "Iceberg's" if name in _OF_ICEBERG and one.encode_name not in _OURS else "icekeep's",
            prose(as_sentence(said[one.name])),
        )
        for one in msgspec.structs.fields(cls)
    ]
    return table(("option", "default", "whose", "meaning"), rows)


def jobs_block(_: str) -> str:
    """All jobs."""
    rows = [(f"[`{name}`]({name}.md)", prose(as_sentence(job.summary))) for name, job in JOBS.items()]
    return table(("job", "what it does"), rows)


def commands_block(_: str) -> str:
    """All commands beside the jobs, by what they are about."""
    parts = []
    summaries = {**{words: verb.summary for words, verb in COMMANDS.items()}, **GROUP_SUMMARIES}
    summaries["config"] = COMMANDS["config show"].summary
    for title, names in HELP_GROUPS.items():
        rows = [(f"[`{name}`]({name}.md)", prose(as_sentence(summaries[name]))) for name in names]
        parts.append(f"**{title.capitalize()}**\n\n{table(('command', 'what it does'), rows)}")
    return "\n\n".join(parts)


def settings_block(_: str) -> str:
    """What a policy can say of each job that it may ask for."""
    return _settings({name: {setting.name for setting in JOBS[name].settings} for name in POLICY_JOBS})


def owners_block(_: str) -> str:
    """What a table's owner can say of each of them."""
    return _settings(OWNERS_SETTINGS)


def operators_block(_: str) -> str:
    """The operators of Airflow, each with the page of its job."""
    rows = [(code(operator_name(job)), f"[`{job.name}`](jobs/{job.name}.md)") for job in OFFERED]
    return table(("operator", "job"), rows)


def _settings(named: Mapping[str, Collection[str]]) -> str:
    """Some settings of jobs, in the order in which help lists them."""
    shown = {job: [setting.name for setting in JOBS[job].settings if setting.name in named[job]] for job in named}
    return table(("job", "settings"), [(code(job), ", ".join(map(code, names))) for job, names in shown.items()])


def statuses_block(_: str) -> str:
    """What exit statuses mean, as `--help` says it."""
    found = [re.fullmatch(r"  (\d+(?:, \d+)?) +(.+)", line) for line in EXIT_STATUSES.splitlines()[1:]]
    return table(("exit status", "means"), [(one[1], prose(as_sentence(one[2]))) for one in found if one])


BLOCKS: dict[str, Callable[[str], str]] = {
    "flags": flags_block,
    "own": own_block,
    "common": common_block,
    "options": options_block,
    "result": result_block,
    "matched": matched_block,
    "jobs": jobs_block,
    "commands": commands_block,
    "settings": settings_block,
    "owners": owners_block,
    "operators": operators_block,
    "statuses": statuses_block,
}


def written(text: str) -> str:
    """A page with all its blocks made anew."""
    return _BLOCK.sub(lambda m: f"{m[1]}\n{BLOCKS[m[2]](m[3] or '')}\n\n{m[4]}", text)


def blocks_of(text: str) -> Iterator[tuple[str, str]]:
    """The kind and the name of each block of a page."""
    return ((found[2], found[3] or "") for found in _BLOCK.finditer(text))


def pages() -> list[Path]:
    """All pages that have blocks."""
    return [path for path in sorted(DOCS.rglob("*.md")) if _BLOCK.search(path.read_text())]


def main(check: bool) -> int:
    made = {**{path: written(path.read_text()) for path in pages()}, STUB: stub()}
    behind = [path for path, text in made.items() if not path.exists() or text != path.read_text()]
    for path in behind:
        if check:
            print(f"{path.relative_to(DOCS.parent)} is behind the code: run `make reference`", file=sys.stderr)
        else:
            path.write_text(made[path])
    return int(check and bool(behind))


def _parser(name: str) -> argparse.ArgumentParser:
    """The parser of `icekeep NAME`, by which help goes too."""
    parser: Any = command_parser(0)
    if name in JOBS or name in COMMANDS:
        return parser_of(name, 0)
    for word in name.split():
        [words] = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
        parser = words.choices[word]
    return parser


def _actions(name: str) -> tuple[list[argparse.Action], list[argparse.Action]]:
    """The flags of a command line that are its own, and the others."""
    told = JOBS.get(name) or COMMANDS.get(name)
    own = set() if told is None else {setting.name for setting in (*told.settings, *_one_of(name))}
    actions = [action for action in _parser(name)._actions if action.dest != "help"]
    return [one for one in actions if one.dest in own], [one for one in actions if one.dest not in own]


def _one_of(name: str) -> tuple[Setting, ...]:
    return COMMANDS[name].one_of if name in COMMANDS else ()


def _flags(actions: list[argparse.Action], name: str) -> str:
    groups = _parser(name)._mutually_exclusive_groups
    alternatives = {one.dest for group in groups if group.required for one in group._group_actions}
    rows = []
    for action in actions:
        help_text = action.help or ""
        default = _DEFAULT.search(help_text)
        is_switch = action.nargs == 0
        if action.dest in alternatives:
            shown = "one of these must be given"
        elif action.required:
            shown = "must be given"
        elif default:
            shown = prose(default[1])
        else:
            shown = "off" if is_switch else code(str(action.default)) if action.default else ""
        names = ", ".join(map(code, action.option_strings)) or code(str(action.metavar))
        value = ", ".join(map(code, action.choices)) if action.choices else code(str(action.metavar or ""))
        meaning = prose(as_sentence(_DEFAULT.sub("", help_text)))
        rows.append((names, "" if is_switch or not action.option_strings else value, shown, meaning))
    return table(("flag", "value", "default", "meaning"), rows)


def _value(default: Any) -> str:
    """A default of an option; empty where the meaning tells it, or nothing is in force."""
    if default is None or default == "":
        return ""
    if default in (MAX_INT, MAX_LONG):
        return "no limit"
    if isinstance(default, bool):
        return code(str(default).lower())
    for size, unit in ((GIB, "GiB"), (MIB, "MiB")):
        if isinstance(default, int) and default >= size and not default % size:
            return f"{code(str(default))} ({default // size} {unit})"
    return code(str(default))


if __name__ == "__main__":
    sys.exit(main(check="--check" in sys.argv[1:]))
