"""The help of commands: flags, examples, and what exit statuses mean."""

import argparse
import re
import shutil
import textwrap
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NoReturn

import msgspec

from icekeep.errors import UsageError
from icekeep.operations.jobs import resolve
from icekeep.settings import Job
from icekeep.spec.types import MAX_INT, MAX_LONG

_MOST_WIDTH = 100
EXIT_STATUSES = """exit statuses:
  0    done, also where there was nothing to do
  1    failed, and nothing was committed
  2    wrong usage or configuration, or something that is named does not exist
  3    part of it is committed, part is not; or faults were found, or stay; or a table could not be read
  4    a safety check refused, or a plan does not hold any more, or the table uses what icekeep does not support
  5    a commit may or may not have landed: look before you run it again
  75   try again later: another writer or run is at work, or a catalog, a store or Spark is out of reach
  130, 143  interrupted"""
_NO_LIMIT = (MAX_INT, MAX_LONG)


_TABLE_LINE = re.compile(r"( +\S+(?: \S+)* {2,})\S")
"""A name or a number, and what it means behind some blanks."""


def _width() -> int:
    return min(_MOST_WIDTH, shutil.get_terminal_size((_MOST_WIDTH, 0)).columns)


class _Help(argparse.RawDescriptionHelpFormatter):
    """Flags and what they mean on one line each, lists of commands as they are made; all within the terminal's width."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=30, width=_width())

    def _format_usage(self, *args: Any) -> str:
        # argparse breaks no group of flags of which one is to be given.
        return "\n".join(_fitted(line, self._width) for line in super()._format_usage(*args).split("\n"))

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "\n".join(indent + _fitted(line, width) for line in text.splitlines())


def _fitted(line: str, width: int) -> str:
    """A line in as many as it takes; a command can be copied, and what stands behind a name stays behind it."""
    if len(line) <= width:
        return line
    lead = re.match(" *", line)[0]  # type: ignore[index]
    if line.startswith(f"{lead}icekeep "):
        lines = textwrap.wrap(
            line, width - 2, subsequent_indent=f"{lead}    ", break_long_words=False, break_on_hyphens=False
        )
        return " \\\n".join(lines)
    in_table = _TABLE_LINE.match(line)
    below = " " * len(in_table[1]) if in_table else lead
    return textwrap.fill(line, width, subsequent_indent=below, break_long_words=False, break_on_hyphens=False)


class _Once(argparse.Action):
    """A value that is given once: argparse would take the last one, and forget the others."""

    _is_given = False

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        if self._is_given:
            several = "; several values go after one flag, with commas between" if "," in str(self.metavar) else ""
            raise argparse.ArgumentError(self, f"is given twice; give it once{several}")
        self._is_given = True
        setattr(namespace, self.dest, values)


class Parser(argparse.ArgumentParser):
    """Parser of one command line; what `foot` makes, when help is asked for, stands below the flags.

    A flag that has one value is refused where it is given twice, but for `takes_last`.
    """

    def __init__(self, *, takes_last: bool = False, **arguments: Any) -> None:
        super().__init__(formatter_class=_Help, **arguments)
        self.foot: Callable[[], str] | None = None
        if not takes_last:
            self.register("action", None, _Once)
            self.register("action", "store", _Once)
        # A value as -1d, too, of which what it is for says what is wrong; no flag begins with a digit.
        self._negative_number_matcher = re.compile(r"-\.?\d")

    def format_help(self) -> str:
        if self.foot is not None:
            self.epilog = self.foot()
        return super().format_help()

    def flags(self) -> list[str]:
        return [flag for flag in self._option_string_actions if flag.startswith("--")]

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; see {self.prog} --help")


def listing(title: str, summaries: Mapping[str, str]) -> str:
    column = max([18, *map(len, summaries)]) + 2
    lines = [
        textwrap.fill(summary, _width(), initial_indent=f"  {name:<{column}}", subsequent_indent=" " * (column + 2))
        for name, summary in summaries.items()
    ]
    return "\n".join([f"{title}:", *lines, "", ""])


def option_names(job: Job) -> tuple[str, ...]:
    if job.options is None:
        return ()
    cls: Any = resolve(job.options)
    return tuple(one.encode_name for one in msgspec.structs.fields(cls))


def foot_of_job(job: Job) -> str:
    """Examples, the names and defaults that `--option` takes, and what exit statuses mean."""
    parts = [examples_text(job.name, job.examples)]
    if job.options is not None:
        cls: Any = resolve(job.options)
        shown = [f"{one.encode_name}{_default(one.default)}" for one in msgspec.structs.fields(cls)]
        title = (
            "options of --option; one without a default here goes by the table or by other options, or sets no limit:"
        )
        listed = textwrap.fill(
            ", ".join(shown), _width(), initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False
        )
        parts.append(f"{title}\n{listed}")
    return "\n\n".join([*parts, EXIT_STATUSES])


def examples_text(name: str, examples: Iterable[str]) -> str:
    return "examples:\n" + "\n".join(f"  icekeep {name} {example}".rstrip() for example in examples)


def _default(value: Any) -> str:
    if value is None or value == "":
        return ""
    if isinstance(value, bool):
        return f"={str(value).lower()}"
    return "" if value in _NO_LIMIT else f"={value}"


def sentence(summary: str) -> str:
    return summary[:1].upper() + summary[1:] + "."
