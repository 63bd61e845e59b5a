"""A page in Markdown as text for a terminal, wrapped: headings, paragraphs, lists, rows of tables, code; links say where to."""

import re
import textwrap
from collections.abc import Iterator

_WIDTH = 100
_FENCE = "```"
_LINK = re.compile(r"\[([^\]]+)\]\(([^)\s]+)\)")
_BOLD = re.compile(r"\*\*([^*]+)\*\*")
_HEAD_OF_TABLE = re.compile(r"^\|.*\|\n\|[-:| ]+\|\n", re.MULTILINE)
_COMMAND = re.compile(r"`icekeep [^`]+`")
_NO_BREAK = "\N{NO-BREAK SPACE}"
_ITEM = re.compile(r"(\s*(?:\*|\d+\.) )(.*)")


def plain_text(markdown: str) -> str:
    """A page as plain text, of lines of at most 100 characters but for code."""
    return (
        "\n".join(line for block in _blocks(_HEAD_OF_TABLE.sub("", markdown)) for line in _shown(block)).rstrip("\n")
        + "\n"
    )


def _blocks(markdown: str) -> Iterator[list[str]]:
    """Lines that belong together: a paragraph, an item of a list, a heading, a block of code, or an empty line."""
    block: list[str] = []
    is_code = False
    for line in markdown.splitlines():
        is_fence = line.startswith(_FENCE)
        if not is_code and block and (is_fence or not line.strip() or line.startswith(("#", "|")) or _ITEM.match(line)):
            yield block
            block = []
        block.append(line)
        if is_fence and is_code:
            yield block
            block = []
        is_code = is_code != is_fence
        if not is_code and (not line.strip() or line.startswith("#")) and block:
            yield block
            block = []
    if block:
        yield block


def _shown(block: list[str]) -> list[str]:
    first = block[0]
    if first.startswith(_FENCE):
        return [f"    {line}".rstrip() for line in block[1:-1]]
    if first.startswith("#"):
        heading = _plain(first.lstrip("# "))
        return [heading, ("=" if first.startswith("# ") else "-") * len(heading)]
    if first.startswith("|"):
        cells = [cell.strip() for cell in first.strip("|").split("|")]
        return _wrapped("* ", _plain(": ".join(filter(None, cells))))
    match = _ITEM.match(first)
    text = " ".join(line.strip() for line in block)
    return _wrapped(match[1], _plain(text[len(match[1].strip()) :].strip())) if match else _wrapped("", _plain(text))


def _wrapped(lead: str, text: str) -> list[str]:
    """Lines of a text; a command stays on one, so that it can be read and copied at once."""
    lines = textwrap.wrap(
        _COMMAND.sub(lambda command: command[0].replace(" ", _NO_BREAK), text),
        _WIDTH,
        initial_indent=lead,
        subsequent_indent=" " * len(lead),
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [line.replace(_NO_BREAK, " ") for line in lines] or [""]


def _plain(text: str) -> str:
    return _BOLD.sub(r"\1", _LINK.sub(_link, text))


def _link(match: re.Match[str]) -> str:
    """A link to a page beside this one, as the command that shows it; any other by the path or address that it has.

    >>> _LINK.sub(_link, "see [the page](safety.md#what) and [faults](../faults.md)")
    'see the page (`icekeep help safety`) and faults (docs/faults.md)'
    """
    text, target = match[1], match[2].partition("#")[0]
    name = target.removesuffix(".md")
    if not target:
        return text
    if target.endswith(".md") and "/" not in target:
        return f"`icekeep help {name}`" if text == name else f"{text} (`icekeep help {name}`)"
    return f"{text} ({target.replace('../', 'docs/', 1) if target.startswith('../') else target})"
