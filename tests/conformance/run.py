"""Play what may happen beside a maintenance tool, and print what becomes of the rows. See README.md beside this file.

    .venv/bin/python tests/conformance/run.py --tool icekeep,java,iceberg-compaction,iceberg-zamboni
    .venv/bin/python tests/conformance/run.py --tool icekeep --cases 'compact/*' --output json
    .venv/bin/python tests/conformance/run.py --command 'mine=mytool {operation} --catalog {uri} {table} --max-age {max_age_s}s'
    .venv/bin/python tests/conformance/run.py --list

Status 0: every tool kept all rows. Status 1: rows were lost or came back, or a reference went without a word.
"""

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from fnmatch import fnmatchcase
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[2] / "lib"), str(Path(__file__).parents[1])]

import msgspec  # noqa: E402 - the path comes first
from rich.console import Console  # noqa: E402

from conformance.play import CASES, Case, Outcome, Report, markdown, play, print_report, report  # noqa: E402
from conformance.tools.known import TOOLS  # noqa: E402
from conformance.tools.tool import CommandTool, Tool  # noqa: E402


def main() -> int:
    given = parser().parse_args()
    if given.list:
        for case in CASES.values():
            print(f"{case.name:<40} format {case.version}: {case.says}")
        return 0
    cases = [case for case in CASES.values() if any(fnmatchcase(case.name, one) for one in given.cases)]
    if not cases:
        parser().error(f"there is no case {','.join(given.cases)!r}; --list prints all")
    makers = [TOOLS[name] for name in given.tool or ([] if given.command else ["icekeep"])]
    makers += [lambda name=name, command=command: CommandTool(name, command) for name, command in given.command]
    with opened(makers) as tools:
        told = report(tools, list(played(cases, tools, given.key_lifetime)))
    _print(told, given.output)
    if given.save is not None:
        given.save.write_bytes(msgspec.json.format(msgspec.json.encode(told)))
    return 0 if all(one.is_right for one in told.outcomes) else 1


@contextmanager
def opened(makers: list[Callable[[], Tool]]) -> Iterator[list[Tool]]:
    """Tools that are ready, and end with the block."""
    with ExitStack() as stack:
        tools = []
        for make in makers:
            tools.append(make())
            stack.callback(tools[-1].close)
        yield tools


def played(cases: list[Case], tools: list[Tool], key_lifetime: str | None) -> Iterator[Outcome]:
    """Each case with each tool, one at a time."""
    for case in cases:
        for tool in tools:
            print(f"{case.name}: {tool.name}", file=sys.stderr)
            yield play(case, tool, key_lifetime)


def _print(told: Report, output: str) -> None:
    if output == "json":
        print(msgspec.json.format(msgspec.json.encode(told)).decode())
    elif output == "markdown":
        print(markdown(told), end="")
    else:
        print_report(told, Console(width=200, soft_wrap=True))


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(prog="run.py", description="Play what may happen beside a maintenance tool.")
    add = found.add_argument
    add("--tool", type=_tools, metavar="NAMES", help=f"between commas, among {', '.join(TOOLS)} (default: icekeep)")
    add(
        "--command",
        type=_command,
        action="append",
        default=[],
        metavar="NAME=COMMAND",
        help="another tool, by its command line: {operation}, {uri}, {table} and {max_age_s} stand for what is asked",
    )
    add("--cases", type=lambda text: text.split(","), default=["*"], metavar="NAMES", help="with * for any text")
    add("--key-lifetime", metavar="SPAN", help="the catalog keeps idempotency keys for that long, such as PT30M")
    add("--list", action="store_true", help="print the cases")
    add("--output", choices=("table", "markdown", "json"), default="table")
    add("--save", type=Path, metavar="FILE", help="write everything as JSON as well")
    return found


def _tools(text: str) -> list[str]:
    names: Mapping[str, object] = TOOLS
    if unknown := [name for name in text.split(",") if name not in names]:
        raise argparse.ArgumentTypeError(f"there is no tool {unknown[0]!r}; there is {', '.join(names)}")
    return text.split(",")


def _command(text: str) -> tuple[str, str]:
    name, is_given, command = text.partition("=")
    if not (name and is_given and command):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=COMMAND")
    return name, command


if __name__ == "__main__":
    sys.exit(main())
