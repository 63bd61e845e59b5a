"""Tables of Markdown, and the words of docstrings in them."""

import inspect
import re
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

_ENTRY = re.compile(r"( +)(\w+(?:, \w+)*): (.+)")


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; of cells that are made already."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(line)} |".replace("|  |", "| |") for line in lines)


def code(text: str) -> str:
    """Text as it is typed, in a cell."""
    return f"`{text}`".replace("|", "\\|") if text else ""


def prose(text: str) -> str:
    """A text of help or of a docstring as a cell: nothing outside its code spans is a mark of Markdown."""
    parts = re.split(r"(`[^`]*`)", " ".join(text.split()))
    return "".join(
        part.replace("|", "\\|") if part.startswith("`") else re.sub(r"([*<|])", r"\\\1", part) for part in parts
    )


def as_sentence(text: str) -> str:
    """A text that begins in lower case and has no full stop as one sentence of a table."""
    text = text.strip().removeprefix("... ").rstrip(".")
    return f"{text[:1].upper()}{text[1:]}." if text else ""


@cache
def meanings_of(cls: type[Any]) -> dict[str, str]:
    """What the docstrings of a class and of those that it inherits from say of each field, under `Attributes:`."""
    found: dict[str, str] = {}
    for one in reversed(cls.__mro__):
        lines = inspect.cleandoc(one.__dict__.get("__doc__") or "").splitlines()
        section = lines[lines.index("Attributes:") + 1 :] if "Attributes:" in lines else []
        names: list[str] = []
        for line in section:
            entry = _ENTRY.fullmatch(line)
            if entry and len(entry[1]) == 4:
                names = entry[2].split(", ")
                found.update(dict.fromkeys(names, entry[3]))
            elif line.startswith("     "):
                found.update({name: f"{found[name]} {line.strip()}" for name in names})
            else:
                break
    return found
