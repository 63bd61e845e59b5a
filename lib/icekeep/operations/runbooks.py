"""Where to read on after an error: a page for each kind of error, and one for each situation that is no error of its own.

The pages are `docs/runbooks/NAME.md`. The package has them too, as `icekeep/runbooks/NAME.md` (a link in a checkout, copies in
the wheel and in the zip), so that `icekeep help NAME` answers on every machine that icekeep is on.
"""

import re
from collections.abc import Mapping
from importlib import resources

import msgspec

from icekeep.errors import IcekeepError

UNEXPECTED, UNDELIVERED, INTERRUPTED, PARTIAL = "unexpected", "undelivered", "interrupted", "partial"
_STATUSES_OF_OTHER_KINDS: Mapping[str, str] = {
    INTERRUPTED: "130, 143",
    PARTIAL: "3",
    UNDELIVERED: "1, 3",
    UNEXPECTED: "1",
}
"""Kinds that are no class of error, and a status, with the exit statuses of commands that end so."""

_SAY_IT_ALL = frozenset({"usage", "option", "expression"})
"""Mistakes in a command line: the line names the word, and says what to give."""

_ENDING = re.compile(r" \(icekeep help [a-z-]+\)$")
_INDEX = "index"


class Runbook(msgspec.Struct, frozen=True, kw_only=True):
    """One page.

    Attributes:
        name: of its file, and what `icekeep help` is given.
        title: what it is about, in one line.
        text: the whole page, in Markdown.
    """

    name: str
    title: str
    text: str


def address_of(kind: str) -> str:
    """The command that shows the page of a kind of error."""
    return f"icekeep help {kind}"


def ending_of(kind: str) -> str:
    """What the line of an error ends with: where to read on, or nothing where the line says it all."""
    return "" if kind in _SAY_IT_ALL else f" ({address_of(kind)})"


def without_ending(message: str) -> str:
    """The message of an error, from its line."""
    return _ENDING.sub("", message)


def kinds() -> Mapping[str, str]:
    """Each kind of error, and the exit statuses of commands that end with it."""
    found: dict[str, str] = {}
    left: list[type[IcekeepError]] = [IcekeepError]
    while left:
        one = left.pop(0)
        found.setdefault(one.kind, str(one.exit_status))
        left += one.__subclasses__()
    return {**found, **_STATUSES_OF_OTHER_KINDS}


def pages() -> Mapping[str, Runbook]:
    """All pages by name, kinds of errors and situations."""
    directory = resources.files("icekeep").joinpath("runbooks")
    names = sorted(entry.name.removesuffix(".md") for entry in directory.iterdir() if entry.name.endswith(".md"))
    return {name: page(name) for name in names if name != _INDEX}


def page(name: str) -> Runbook:
    """The page of a name that is known."""
    text = resources.files("icekeep").joinpath("runbooks", f"{name}.md").read_text(encoding="utf-8")
    return Runbook(name=name, title=_title(text), text=text)


def _title(text: str) -> str:
    r"""What the first heading says: behind the kind, where it begins with one.

    >>> _title("# `safety`: a check refused\n")
    'a check refused'
    """
    heading = text.partition("\n")[0].removeprefix("# ")
    return heading.partition("`: ")[2] or heading
