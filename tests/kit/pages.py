"""Pages of Markdown as their readers take them: commands to copy, files to write, links to follow."""

import io
import re
import shlex
from collections.abc import Iterator, Mapping
from contextlib import redirect_stdout
from functools import cache
from itertools import pairwise
from pathlib import Path
from urllib.parse import unquote

import msgspec
import yaml

from icekeep.maintenance.options import parse_options
from icekeep.operations.arguments import Command, parse_command
from icekeep.operations.configuration.shape import ConfigurationKeys
from icekeep.operations.jobs import JOBS, resolve
from icekeep.settings import SettingKind
from icekeep.spec.filters.parsing import parse_where
from kit.shell import ROOT

NOW_MS = 1_700_000_000_000
PROGRAMS = ("icekeep ", "spark-submit ", "python -m icekeep ")
COMPLAINT = "icekeep: "
"""What a line on stderr begins with that says why a command failed."""
LEFT_OUT = "..."
"""Stands where a page does not say all."""

_FENCE = re.compile(r"^( *)```(\w*)[^\n`]*\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[(?:[^\[\]]|\[[^\[\]]*\])*\]\(([^()\s]+)\)")
_HEADING = re.compile(r"^#+ +(.+?) *#*$", re.MULTILINE)
_SHELL = {"|", ">", ">>", "<", "&&", "||", ";", "&", "2>"}
_OF_PACKAGE = re.compile(r'"?\$\(icekeep path ([^)]+)\)"?')
_SCRIPT = re.compile(r"(?:.*/)?jobs/(\w+)\.py$")


class Block(msgspec.Struct, frozen=True):
    """A block of code between two fences; `language` is empty where the page says none."""

    language: str
    text: str


def all_pages() -> list[Path]:
    """README and all pages below docs/."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def name_of(page: Path) -> str:
    """A page's path in the checkout."""
    return str(page.relative_to(ROOT))


@cache
def blocks(page: Path) -> tuple[Block, ...]:
    return tuple(
        Block(language, re.sub(f"^{indent}", "", text, flags=re.MULTILINE))
        for indent, language, text in _FENCE.findall(page.read_text("utf-8"))
    )


@cache
def prose(page: Path) -> str:
    """A page without its blocks."""
    return _FENCE.sub("", page.read_text("utf-8"))


def spans(page: Path) -> list[str]:
    """The spans of code in a page's text."""
    return re.findall(r"`([^`\n]+)`", prose(page))


def told_of(block: Block) -> list[tuple[str, str | None]]:
    """The command lines of icekeep in a block, without a prompt, each in one line; with the error that follows, if one does."""
    lines = re.sub(r" *\\\n\s*", " ", block.text).splitlines()
    told = [re.sub(r"^\s*(?:\$ )?", "", line) for line in lines]
    return [
        (line, after.removeprefix(COMPLAINT) if after.startswith(COMPLAINT) else None)
        for line, after in pairwise([*told, ""])
        if line.startswith(PROGRAMS)
    ]


def commands_of(block: Block) -> list[str]:
    """The command lines of icekeep in a block."""
    return [line for line, _ in told_of(block)]


def told(page: Path) -> list[tuple[str, str | None]]:
    """The command lines of icekeep in the blocks of a page, those that are set in by four spaces among them."""
    set_in = Block("", "\n".join(line for line in prose(page).splitlines() if line.startswith("    ")))
    return [one for block in (*blocks(page), set_in) for one in told_of(block)]


def commands(page: Path) -> list[str]:
    """The command lines of icekeep on a page that are to succeed."""
    return [line for line, complaint in told(page) if complaint is None]


def parsed(line: str) -> Command | None:
    """What a command line asks for, with its filter and its options read too.

    `None` where the page leaves something out, shows how a command is used in general, or asks for help.

    Raises:
        UsageError, ExpressionError, OptionError: it would be refused.
    """
    words = _words(line)
    job, given = None, words[1:]
    if words[0] == "spark-submit":
        scripts = [number for number, word in enumerate(words) if _SCRIPT.match(word)]
        if not scripts and LEFT_OUT in words:
            return None
        [place] = scripts
        job = _SCRIPT.sub(r"\1", words[place])
        assert (ROOT / "jobs" / f"{job}.py").is_file(), job
        given = words[place + 1 :]
    elif words[0] == "python":
        given = words[3:]
    if LEFT_OUT in given or any(word.startswith("[") for word in given):
        return None
    try:
        with redirect_stdout(io.StringIO()):
            command = parse_command(given, job, NOW_MS)
    except SystemExit:
        return None
    _read_texts(command)
    return command


def _read_texts(command: Command) -> None:
    if command.name not in JOBS:
        return
    kinds = {setting.kind for setting in JOBS[command.name].settings}
    if SettingKind.FILTER in kinds and "where" in command.arguments:
        parse_where(command.arguments["where"], NOW_MS)
    options = JOBS[command.name].options
    if options is not None:
        parse_options(resolve(options), command.arguments.get("options", {}))


def _words(line: str) -> list[str]:
    """The words of the first command of a line, as a shell takes them; `$(icekeep path FILE)` is that file."""
    without_comment = re.sub(r"\s#\s.*", "", line)
    lexer = shlex.shlex(re.sub(_OF_PACKAGE, r"\1", without_comment), posix=True, punctuation_chars="|<>;&")
    lexer.whitespace_split = True
    lexer.commenters = ""
    words: list[str] = []
    for word in lexer:
        if word in _SHELL:
            break
        words.append(word)
    return words


def configurations(page: Path) -> Iterator[str]:
    """The blocks of YAML that are a configuration of icekeep, or the beginning of one."""
    for block in blocks(page):
        if block.language in ("yaml", "yml"):
            read = yaml.safe_load(block.text)
            if isinstance(read, Mapping) and {*read} & {*ConfigurationKeys.__struct_encode_fields__}:
                yield block.text


def links(page: Path) -> list[str]:
    """The addresses of a page's links and pictures that lead to files of the checkout, or to places in the page."""
    text = re.sub(r"`[^`\n]*`", "", prose(page))
    return [address for address in _LINK.findall(text) if not re.match(r"[a-z]+:", address)]


def broken_links(page: Path) -> list[str]:
    """Those of a page's links that lead nowhere: there is no such file, or it has no such heading."""
    return [address for address in links(page) if not _is_there(page, address)]


def _is_there(page: Path, address: str) -> bool:
    place, _, anchor = unquote(address).partition("#")
    target = (page.parent / place).resolve() if place else page
    if not target.exists() or not target.is_relative_to(ROOT):
        return False
    if not anchor:
        return True
    return target.suffix == ".md" and anchor in anchors(target)


@cache
def anchors(page: Path) -> frozenset[str]:
    """What links can name in a page: its headings, as GitHub and the site write them, and anchors of its own."""
    text = prose(page)
    found: dict[str, int] = {}
    names = set(re.findall(r'<a (?:id|name)="([^"]+)"', text))
    for heading in _HEADING.findall(text):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").strip().lower()
        name = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
        names.add(f"{name}-{found[name]}" if name in found else name)
        found[name] = found.get(name, 0) + 1
    return frozenset(names)
