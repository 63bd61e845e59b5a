"""The commands `help`, for pages on errors and situations, and `path`, for files that are installed with the package."""

import msgspec

from icekeep.errors import UsageError
from icekeep.operations.command_specs import COMMANDS
from icekeep.operations.console.plain_text import plain_text
from icekeep.operations.help_texts import listing
from icekeep.operations.jobs import JOBS
from icekeep.operations.misspelt import LISTED, unknown_command, validate_choice
from icekeep.operations.runbooks import kinds, page, pages
from icekeep.shipped import shipped_file, shipped_files


class Topic(msgspec.Struct, frozen=True, kw_only=True):
    """What there is a page on.

    Attributes:
        name: what `icekeep help` is given.
        title: what the page is about.
        exit_statuses: the exit statuses of commands that end with this kind of error; `None` for a situation, which is no error
            of its own.
    """

    name: str
    title: str
    exit_statuses: str | None


class HelpShown(msgspec.Struct, frozen=True, kw_only=True):
    """The topics that there are, or the page on one.

    Attributes:
        topics: all topics that there are, or the one that was asked for.
        text: the page, in Markdown; `None` where all topics are listed.
    """

    topics: tuple[Topic, ...]
    text: str | None = None


def help_on(*, topic: str | None = None) -> HelpShown:
    """The page on a kind of error or a situation; with none, all that there are pages on."""
    exit_statuses = kinds()
    if topic is None:
        known = pages()
        order = [name for name in exit_statuses if name in known] + [
            name for name in known if name not in exit_statuses
        ]
        return HelpShown(
            topics=tuple(
                Topic(name=name, title=known[name].title, exit_statuses=exit_statuses.get(name)) for name in order
            )
        )
    name = topic.strip().lower()
    names = [*pages()]
    if name not in names:
        raise unknown_command(
            topic, [*names, *JOBS, *COMMANDS], "help on", "`icekeep help` lists the topics", for_help=True
        )
    found = page(name)
    return HelpShown(
        topics=(Topic(name=name, title=found.title, exit_statuses=exit_statuses.get(name)),), text=found.text
    )


def help_text(shown: HelpShown) -> str:
    if shown.text is not None:
        return plain_text(shown.text)
    errors = {f"{one.name} ({one.exit_statuses})": one.title for one in shown.topics if one.exit_statuses is not None}
    situations = {one.name: one.title for one in shown.topics if one.exit_statuses is None}
    return (
        listing("kinds of errors (exit statuses); `icekeep help KIND` says what to do", errors)
        + listing("situations; `icekeep help NAME`", situations)
        + f"commands: {LISTED}, and `icekeep help COMMAND` shows the help of one\n"
    )


_LISTED = "`icekeep path` lists them"


class ShippedFiles(msgspec.Struct, frozen=True, kw_only=True):
    """The names that can be asked for."""

    files: tuple[str, ...]


class ShippedPath(msgspec.Struct, frozen=True, kw_only=True):
    """The absolute path of the file that was asked for."""

    path: str


def path(*, name: str | None = None) -> ShippedFiles | ShippedPath:
    """Where the file of this name is, or the names of all."""
    files = shipped_files()
    if not files:
        raise UsageError(
            "this icekeep has no files beside its modules, as it was imported from a zip; take them from a checkout or a wheel"
        )
    if name is None:
        return ShippedFiles(files=files)
    validate_choice(name, files, "shipped file", _LISTED)
    return ShippedPath(path=str(shipped_file(name)))


def path_text(shown: ShippedFiles | ShippedPath) -> str:
    """The path alone, which a shell can put into a command, or a name a line."""
    lines = [shown.path] if isinstance(shown, ShippedPath) else shown.files
    return "".join(f"{line}\n" for line in lines)
