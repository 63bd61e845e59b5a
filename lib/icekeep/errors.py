"""The errors of icekeep, sorted by what the one who catches them does next.

    IcekeepError                    1
    |- UsageError                   2   fix the command or the file
    |   |- ConfigError              2
    |   |- OptionError              2
    |   |- PropertyError            2   a table property, which the owner of the table sets right
    |   `- ExpressionError          2
    |- NotFoundError                2   the named catalog, table, ref, snapshot or column is not there
    |- InvalidTableError            1   the table breaks the spec
    |   `- MissingFileError         1   metadata names a file that is not there
    |- UnsupportedError             4   a feature of the format that we do not handle; nothing was touched
    |- SafetyError                  4   we will not: a check that guards data refused
    |- TryAgainError               75   nothing is broken, run it again
    |   |- ConflictError           75   another writer won
    |   |- ClaimedError            75   another run is at work on the same plan of deletion
    |   `- UnavailableError        75   a catalog, a store or Spark is out of reach
    |- JobFailedError               1   work failed before anything was committed; what it wrote is removed
    |- OutcomeUnknownError          5   a commit may or may not have landed; nothing was deleted
    `- IcekeepBug                   1   an invariant of ours is broken

A message is one line: what is wrong, where, what to do; lower-case start, no full stop, values quoted. The number is the
exit status of a job that ends with that error (`operations/process_run.py` is the only place that prints or exits).
"""

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

from icekeep.secrets import without_secrets
from icekeep.spelling import did_you_mean, near_words

_CAUSE = re.compile(r"^Caused by: (\S.*)$", re.MULTILINE)
_LINE_LENGTH_MAX = 500


_MARK = "\ue000"
"""Stands around what a command words in another way in a message that is raised, and in none that is read."""


def argument(name: str) -> str:
    """The name of an argument of a function, for the message of an error: a command shows its flag in that place."""
    return f"{_MARK}{name}{_MARK}"


def table_at(location: str) -> str:
    """A table by its location, for the message of an error: a command on that table names it."""
    return f"{_MARK}the table at {location!r}{_MARK}"


THIS_TABLE = argument("NAME")
"""In a command that the message of an error shows: the table that the error is about, where its name is not known."""

_CONFIGURATIONS: list[list[str]] = []
"""The words by which commands read the configurations that this process reads, the last one first asked for."""


@contextmanager
def commands_reading(words: Sequence[str]) -> Iterator[None]:
    """In all threads: commands that are shown meanwhile end with these words (`config_words`)."""
    own = [*words]
    _CONFIGURATIONS.append(own)
    try:
        yield
    finally:
        # Others may have begun meanwhile, in other threads.
        _CONFIGURATIONS[:] = [one for one in _CONFIGURATIONS if one is not own]


def shown_command(*words: str) -> str:
    """A command of icekeep that can be copied, and reads the configuration that this process reads.

    >>> shown_command("restore", "--table", "lake.db.events", "--run", "run 1")
    "icekeep restore --table lake.db.events --run 'run 1'"
    """
    shown = (
        word if word == THIS_TABLE else shlex.quote(word) for word in (*words, *next(reversed(_CONFIGURATIONS), ()))
    )
    return " ".join(["icekeep", *shown])


class IcekeepError(Exception):
    """Base of all errors that icekeep raises on purpose.

    Attributes:
        kind: a stable name of the error for machines; only ever added to.
        exit_status: what a job that ends with this error returns to the shell.
        facts: the values in the message, for machines.
    """

    kind = "error"
    exit_status = 1

    def __init__(self, message: str, **facts: Any) -> None:
        self.message = message.replace(_MARK, "")
        super().__init__(self.message)
        self.facts = facts
        self._marked = message

    def append(self, text: str) -> None:
        """Add what a caller knows to the message, behind a semicolon."""
        self._marked = f"{self._marked}; {text}"
        self.message = self._marked.replace(_MARK, "")
        self.args = (self.message,)

    def worded(self, words: Mapping[str, str]) -> str:
        """The message as a command has it: with a flag in the place of each argument that it names, and the table's name.

        All else that it says stays as it is.

        >>> UsageError(f"{argument('spec_id')} is 'spec_id'").worded({"spec_id": "--spec-id"})
        "--spec-id is 'spec_id'"
        """
        parts = self._marked.split(_MARK)
        parts[1::2] = (words.get(part.removeprefix("option "), part) for part in parts[1::2])
        return "".join(parts)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.message, self.facts), vars(self)


def _rebuild(cls: type[IcekeepError], message: str, facts: dict[str, Any]) -> IcekeepError:
    """Errors cross from executors to the driver, so each must survive pickling whatever its constructor takes."""
    error = cls.__new__(cls)
    IcekeepError.__init__(error, message, **facts)
    return error


def revived(name: str, message: str) -> IcekeepError:
    """The error of a class named `name`, from its message alone: as it arrives from another process as text."""
    known = {cls.__name__: cls for cls in _subclasses(IcekeepError)}
    return _rebuild(known.get(name, IcekeepError), message, {})


def first_line(error: BaseException) -> str:
    """The first line of an error's message that is not blank, to stand within a message of ours that says whose error it is."""
    text = error.message if isinstance(error, IcekeepError) else str(error)
    return next((line for line in text.splitlines() if line.strip()), "") or type(error).__name__


def brought_by(extra: str, what: str = "it") -> str:
    """How an error says which extra of icekeep brings what is not installed: the only place that knows how extras are installed.

    >>> brought_by("s3", "obstore")
    'icekeep[s3] brings obstore (how to install it: docs/install.md)'
    """
    return f"icekeep[{extra}] brings {what} (how to install it: docs/install.md)"


def require_package(module: str, extra: str, package: str = "") -> None:
    """Raise `UsageError` where a module cannot be found that an extra of icekeep brings; `package` has it under another name."""
    name = module.partition(".")[0]
    if find_spec(name) is None or find_spec(module) is None:
        raise UsageError(f"package {package or name!r} is not installed; {brought_by(extra)}", module=name)


def one_line(error: BaseException) -> str:
    """What an error says, in one line, to stand alone: our message, or its class and the innermost cause that Java names."""
    if isinstance(error, IcekeepError):
        return error.message
    text = without_secrets(str(error))
    causes = _CAUSE.findall(text)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    said = causes[-1] if causes else lines[0] if lines else ""
    name = type(error).__name__
    return f"{name}: {said}"[:_LINE_LENGTH_MAX] if said else name


def reason_of(error: BaseException) -> str:
    """Why something failed, to stand behind a colon: our message, or of what a system or a server said the innermost alone."""
    if isinstance(error, IcekeepError):
        return error.message
    *_, innermost = _reasons(error)
    if isinstance(innermost, OSError) and innermost.strerror:
        return innermost.strerror.lower()
    if isinstance(innermost, TimeoutError):
        return "no answer in time"
    # What is a system's error says it in words; of others the class says more than the words.
    text = without_secrets(str(innermost)) if isinstance(innermost, OSError) else ""
    return text or one_line(innermost)


def _reasons(error: BaseException) -> Iterator[BaseException]:
    """An error and those that it is made of, by the attributes of urllib and urllib3, or was raised from."""
    link: BaseException | None = error
    while link is not None:
        yield link
        first = link.args[0] if link.args else None
        inner = (getattr(link, "reason", None), link.__cause__, getattr(first, "reason", None), first)
        link = next((one for one in inner if isinstance(one, BaseException)), None)


def printable(text: str) -> str:
    """A text in which what moves a terminal's cursor, or turns a line around, is spelled out."""
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


def shortened(text: str, length: int) -> str:
    """A text of at most this many characters, for a list; what is left out is marked.

    >>> shortened("the catalog is out of reach", 16)
    'the catalog i...'
    """
    return text if len(text) <= length else f"{text[: length - 3].rstrip()}..."


def and_more(names: Sequence[object], shown_count: int = 1) -> str:
    """What follows the first of some names in a message that shows no more of them."""
    return f" and {len(names) - shown_count:,} more" if len(names) > shown_count else ""


def _subclasses(cls: type[IcekeepError]) -> list[type[IcekeepError]]:
    return [cls, *(below for child in cls.__subclasses__() for below in _subclasses(child))]


class UsageError(IcekeepError):
    """The command or a file that it names is wrong: fix it; trying again as it is does not help."""

    kind = "usage"
    exit_status = 2


class ConfigError(UsageError):
    """A configuration file is wrong at `key_path`.

    Attributes:
        place: the file and line, or the variable, where the key stands, if the message names it.
    """

    kind = "config"
    place: str = ""

    def __init__(self, key_path: str, problem: str, **facts: Any) -> None:
        super().__init__(f"configuration key {key_path!r}: {problem}", key_path=key_path, **facts)

    def at(self, place: str, hint: str = "") -> "ConfigError":
        """The same error, which says at its end what else may be meant, and where the key stands."""
        error = type(self).__new__(type(self))
        IcekeepError.__init__(error, f"{self.message}{hint} ({place})", **self.facts)
        error.place = place
        return error


class OptionError(UsageError):
    """An option has a value that it cannot take, or does not exist."""

    kind = "option"

    def __init__(self, option: str, *, given: object, expected: str) -> None:
        super().__init__(
            f"{argument(f'option {option}')} is {given!r}; give {expected}",
            option=option,
            given=str(given),
            expected=expected,
        )

    @classmethod
    def unknown(cls, option: str, *, given: object, known: Sequence[str]) -> "OptionError":
        """The error for an option that is not there, with the one that may be meant."""
        near = near_words(option, known)
        hint = did_you_mean(near) if near else f"give one of {', '.join(sorted(known))}"
        error = cls.__new__(cls)
        expected = f"one of {', '.join(sorted(known))}"
        IcekeepError.__init__(
            error, f"there is no option {option!r}; {hint}", option=option, given=str(given), expected=expected
        )
        return error


class PropertyError(UsageError):
    """A table property has a value that it cannot take: set it right on the table; every commit to it fails until then."""

    kind = "property"


class ExpressionError(UsageError):
    """A `where` text cannot be parsed, or cannot be bound to the table's schema."""

    kind = "expression"


class NotFoundError(IcekeepError, LookupError):
    """The user named a catalog, table, ref, snapshot or column that is not there."""

    kind = "not-found"
    exit_status = 2


class InvalidTableError(IcekeepError):
    """The table breaks the Iceberg spec: metadata, a manifest or a file is not what it must be."""

    kind = "invalid-table"


class MissingFileError(InvalidTableError):
    """The table's metadata names a file that storage does not have."""

    kind = "missing-file"


class UnsupportedError(IcekeepError):
    """The table uses a feature of the format that we do not handle here: refused before anything was touched."""

    kind = "unsupported"
    exit_status = 4


class SafetyError(IcekeepError):
    """A check that guards data refused; nothing was deleted."""

    kind = "safety"
    exit_status = 4


class TryAgainError(IcekeepError):
    """Nothing is broken and nothing was changed: the same command may succeed later."""

    kind = "try-again"
    exit_status = 75


class ConflictError(TryAgainError):
    """Another writer changed the table so that this change no longer applies: plan again.

    Attributes:
        data_files: paths of those that stand in the way, where the change applies but for them; empty where it does not.
    """

    kind = "conflict"
    data_files: frozenset[str] = frozenset()

    def __init__(self, message: str, *, data_files: frozenset[str] = frozenset(), **facts: Any) -> None:
        super().__init__(message, **facts)
        self.data_files = data_files

    @property
    def is_outpaced(self) -> bool:
        """Whether the change applied to each version of the table, and others were faster each time: no other plan would be."""
        return "attempts" in self.facts


class ClaimedError(TryAgainError):
    """Another run is at work on a plan of deletion, or has taken it over."""

    kind = "claimed"


class UnavailableError(TryAgainError):
    """A catalog, a store or Spark is out of reach, or refuses for now.

    Attributes:
        was_sent: whether a server answered so to a request for a change: one that arrived twice may be at work still.
    """

    kind = "unavailable"
    was_sent: bool = False


class JobFailedError(IcekeepError):
    """Work failed before anything was committed; the table is as it was and what the job wrote is removed."""

    kind = "job-failed"


class OutcomeUnknownError(IcekeepError):
    """A commit may or may not have landed; nothing was deleted, and nobody may clean up or retry blindly."""

    kind = "outcome-unknown"
    exit_status = 5


class IcekeepBug(IcekeepError):
    """An invariant of ours is broken; please report it."""

    kind = "bug"


def job_failed(text: str, cause: BaseException | None) -> IcekeepError:
    """The error of a job that failed before anything was committed: `UnsupportedError` if that is its cause."""
    return UnsupportedError(text) if isinstance(cause, UnsupportedError) else JobFailedError(text)


def refused_threads(failure: BaseException) -> JobFailedError | None:
    """The error for a thread that the system did not start, if a failure is that: what limits threads, and what to raise."""
    if not isinstance(failure, RuntimeError) or str(failure) != "can't start new thread":
        return None
    refused = JobFailedError(
        "the system starts no more threads for this process; raise what limits it: its address space (`ulimit -v`), the threads "
        "of its user (`ulimit -u`), or the processes of its container"
    )
    refused.__cause__ = failure
    return refused


def says_why(failure: BaseException | None) -> bool:
    """Whether an error names what is wrong: a damaged file, rows that are not right, a full disk.

    A call that fails while a group of files is rewritten, such as to a JVM that is gone, comes as a failed job. It names no more
    than the error that caused it.
    """
    if not isinstance(failure, JobFailedError):
        return isinstance(failure, IcekeepError)
    cause = failure.__cause__
    return "cause" in failure.facts or (says_why(cause) and not isinstance(cause, TryAgainError))
