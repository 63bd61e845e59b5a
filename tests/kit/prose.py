"""Prose in Markdown wrapped at one width: `python -m kit.prose FILE...` in `tests/` wraps files anew, in place.

Code, tables, headings and pictures stay as they are. A line is never broken within a code span or the address of a link. Without
a file it writes docs/faults.md from the classes of faults.
"""

import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from icekeep.maintenance.check.faults import CLASSES, FaultClass

WIDTH = 130
"""As the code has it."""

_WORD = re.compile(r"(?:`[^`]*`|\]\([^)]*\)|\S)+")
_ITEM = re.compile(r"( *)([*-]|\d+\.) +(?=\S)")
_NO_PROSE = re.compile(r" *(?:[#|>]|!\[|<!--|</?[a-z])")
_MARK = re.compile(r"(?:[*+-]|\d+[.)]|[#>|].*)$")
"""A word that would begin something else at the beginning of a line."""


def wrapped(text: str) -> str:
    """A document with its paragraphs and list items wrapped."""
    return "".join(f"{line}\n" for line in _lines(text.splitlines()))


def _lines(lines: Sequence[str]) -> Iterator[str]:
    block: list[str] = []
    is_code = False
    for line in lines:
        is_fence = line.lstrip().startswith("```")
        is_apart = is_fence or is_code or not line.strip() or _NO_PROSE.match(line) or _is_indented(line, block)
        if block and (is_apart or _ITEM.match(line)):
            yield from _filled(block)
            block = []
        if is_fence:
            is_code = not is_code
        if is_apart:
            yield line
        else:
            block.append(line)
    if block:
        yield from _filled(block)


def _is_indented(line: str, block: Sequence[str]) -> bool:
    """Whether it is code by its indentation, which a line that goes on with a list item is not."""
    return line.startswith("    ") and not block and not _ITEM.match(line)


def _filled(block: Sequence[str]) -> Iterator[str]:
    item = _ITEM.match(block[0])
    first = item[0] if item else re.match(" *", block[0])[0]  # type: ignore[index]
    rest = " " * len(first)
    words = _WORD.findall(" ".join([block[0][len(first) :], *(line.strip() for line in block[1:])]))
    line = first + words[0]
    for number, word in enumerate(words[1:], 1):
        # The word before one that would be taken for a mark goes down with it.
        following = words[number + 1] if number + 1 < len(words) and _MARK.match(words[number + 1]) else None
        needed = len(word) + (1 + len(following) if following is not None else 0)
        if len(line) + 1 + needed > WIDTH and not _MARK.match(word):
            yield line
            line = rest + word
        else:
            line += f" {word}"
    yield line


PAGE = Path(__file__).resolve().parents[2] / "docs" / "faults.md"

_HEAD = """# What can be wrong with a table

`icekeep check --table NAMESPACE.NAME` holds a table against the Iceberg specification, and names what it finds by these
numbers. A number never changes its meaning. Faults make the job end with exit status 3 (`faulty`). A notice is
reported in addition to them: no reader gets a wrong row because of it. What could not be looked at is reported as
`not_checked`, and then the table is not called sound (`partial`, exit status 3 too).

The last column says what an operator can do about it.
"""

_COLUMNS = "| | what must hold | while it does not | what to do |\n|---|---|---|---|\n"

_LEVELS = {
    1: "Metadata files",
    2: "Manifest lists and manifests",
    3: "Files",
    4: "What files hold (with `--deep`)",
}


def fault_page() -> str:
    parts = [_HEAD]
    for level, title in _LEVELS.items():
        rows = [_row(one) for number, one in sorted(CLASSES.items()) if number // 100 == level]
        parts.append(f"## {title}\n\n{_COLUMNS}{''.join(rows)}")
    return wrapped("\n".join(parts))


def _row(one: FaultClass) -> str:
    notice = " (notice)" if one.is_notice else ""
    return f"| {one.number} `{one.name}`{notice} | {one.rule} | {one.readers} | {one.mend} |\n"


if __name__ == "__main__":
    for name in sys.argv[1:]:
        path = Path(name)
        path.write_text(wrapped(path.read_text()))
    if not sys.argv[1:]:
        PAGE.write_text(fault_page())
