"""Errors for a word, a command or a flag that does not exist, with what may be meant, by Iceberg's names too."""

import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import takewhile

from icekeep.errors import UsageError
from icekeep.spelling import did_you_mean, near_words, with_one_typo

_NAMED = 5
"""Of no more words than these all are told."""

LISTED = "`icekeep --help` lists them"
"""Where names of jobs and commands are listed."""


def validate_choice(word: str, known: Sequence[str], what: str, listed: str) -> None:
    """Refuse a word that is not among those that are known; the arguments are those of `unknown_word`."""
    if word not in known:
        raise unknown_word(word, known, what, listed)


def unknown_word(word: str, known: Sequence[str], what: str, listed: str) -> UsageError:
    """The error for a word that is not known: with what may be meant, else with all that are known, or what lists them.

    Args:
        what: it would be, as an error says: "job or command".
        listed: what tells them all, such as a command.
    """
    near = near_words(word, known)
    hint = f"there is {', '.join(known)}" if len(known) <= _NAMED else listed
    return UsageError(f"there is no {what} {word!r}; {did_you_mean(near) if near else hint}", given=word)


PROCEDURES: Mapping[str, str | None] = {
    "rewrite_data_files": "compact",
    "rewrite_position_delete_files": "rewrite_position_deletes",
    "rewrite_manifests": "rewrite_manifests",
    "expire_snapshots": "expire_snapshots",
    "remove_orphan_files": "remove_orphan_files",
    "rollback_to_snapshot": "rollback --snapshot-id",
    "rollback_to_timestamp": "rollback --timestamp",
    "set_current_snapshot": "rollback --set-current",
    "cherrypick_snapshot": "ref publish --snapshot-id",
    "publish_changes": "ref publish --wap-id",
    "fast_forward": "ref fast-forward",
    "ancestors_of": "history",
    "register_table": "register",
    "snapshot": None,
    "migrate": None,
    "add_files": None,
    "rewrite_table_path": None,
    "compute_table_stats": None,
    "compute_partition_stats": None,
    "create_changelog_view": None,
}
"""Iceberg's procedures and the commands that do the same; `None` where there is none (docs/from-iceberg.md)."""

_STATEMENTS: Mapping[str, str] = {"optimize": "compact", "vacuum": "expire_snapshots"}
"""What Trino, Athena and Databricks call the same in SQL."""


_SHORTEST_FLAG = 3
"""Shorter words that begin with a dash are numbers, or flags of one letter."""


def unknown_command(
    word: str, commands: Sequence[str], what: str = "command", listed: str = LISTED, *, for_help: bool = False
) -> UsageError:
    """The error for a word that is no command; arguments as of `unknown_word`.

    Args:
        for_help: the user asked for help, and is told how to get that of the command that does what a procedure does.
    """
    procedures = with_one_typo(word, (*PROCEDURES, *_STATEMENTS))
    near = near_words(word, dict.fromkeys((*commands, *procedures)))
    if not near or near[0] in commands:
        return unknown_word(word, commands, what, listed)
    is_statement = near[0] in _STATEMENTS
    same = f"what {near[0].upper()} does in SQL" if is_statement else f"what Iceberg's procedure {near[0]!r} does"
    command = _STATEMENTS[near[0]] if is_statement else PROCEDURES[near[0]]
    if command is None:
        return UsageError(f"there is no {what} {word!r}, and no command does {same}; {listed}", given=word)
    if for_help:
        shown = command.partition(" --")[0]
        hint = f"`icekeep help {shown}` is that of the command that does {same}"
    else:
        hint = f"`icekeep {command}` does {same}"
    return UsageError(f"there is no {what} {word!r}; {hint}", given=word)


def unknown_action(group: str, word: str, actions: Sequence[str]) -> UsageError:
    """The error for a second word, perhaps missing or a flag, that no command has which begins with a group's name."""
    if not word or word.startswith("-"):
        named = ", ".join(f"`icekeep {group} {one}`" for one in actions)
        return UsageError(f"say what `icekeep {group}` is to do: {named}")
    near = near_words(word, actions)
    hint = did_you_mean(f"{group} {one}" for one in near) if near else f"`icekeep {group} --help` lists them"
    return UsageError(f"there is no command {f'{group} {word}'!r}; {hint}", given=word)


def flag_before_command(
    word: str,
    own: Collection[str],
    elsewhere: Callable[[], Collection[str]],
    command: str | None,
    flags_of: Callable[[str], Collection[str]],
) -> UsageError | None:
    """The error for a flag with which a command line begins; `None` if the word is none, or one of those that may stand there.

    Args:
        own: the flags that may stand before a command.
        elsewhere: those that any command has.
        command: the one that stands behind it.
        flags_of: those of a command.
    """
    flag = word.partition("=")[0]
    if not flag.startswith("-") or len(flag) < _SHORTEST_FLAG or word in own:
        return None
    if command is not None and flag in elsewhere() and flag not in flags_of(command):
        return UsageError(
            f"{command} has no flag {flag!r}; `icekeep {command} --help` lists those that it has", given=flag
        )
    if flag in elsewhere():
        shown = f"`icekeep {command or 'COMMAND'} {flag} ...`"
        return UsageError(f"flag {flag!r} stands before the command; write {shown}", given=flag)
    near = near_words(flag.lstrip("-"), [one.removeprefix("--") for one in own])
    hint = did_you_mean(f"--{one}" for one in near) if near else "see icekeep --help"
    return UsageError(f"there is no flag {flag!r} before the command; {hint}", given=flag)


def misspelt_flag(
    words: Sequence[str],
    command: str,
    own: Collection[str],
    elsewhere: Callable[[], Collection[str]],
    options: Callable[[], Collection[str]],
) -> UsageError | None:
    """The error for the first flag that a command has not, where it is known what is meant; `None` if there is none.

    That is another flag of the command, or an option. A flag that another command has is only taken for one with a typo.

    Args:
        words: of the command line.
        own: the flags that the command has.
        elsewhere: those that any command has.
        options: the names that the command's `--option` takes.
    """
    names = [flag.removeprefix("--") for flag in own]
    for word in takewhile(lambda one: one != "--", words):
        flag = word.partition("=")[0]
        is_flag = flag.startswith("-") and len(flag) >= _SHORTEST_FLAG and " " not in flag
        if not is_flag or flag in own:
            continue
        name = flag.lstrip("-")
        is_anothers = flag in elsewhere()
        near = with_one_typo(name, names) if is_anothers else near_words(name, names)
        if name in options():
            return UsageError(f"{command} has no flag {flag!r}; write `--option {name}=...`", given=flag)
        options_near = near_words(name, options()) if not near and not is_anothers else []
        if options_near:
            hint = did_you_mean(f"--option {one}" for one in options_near)
            return UsageError(f"there is no flag {flag!r}; {hint}", given=flag)
        if near:
            problem = f"{command} has no flag {flag!r}" if is_anothers else f"there is no flag {flag!r}"
            return UsageError(f"{problem}; {did_you_mean(f'--{one}' for one in near)}", given=flag)
    return None


def table_without_flag(words: Sequence[str], command: str, own: Collection[str]) -> UsageError | None:
    """The error for a table that is given without `--table`; `None` if the words do not begin so."""
    first = words[0] if words else "-"
    if first.startswith("-") or "--table" not in own or any(one.partition("=")[0] == "--table" for one in words):
        return None
    flag = "--match" if "*" in first and "--match" in own else "--table"
    shown = shlex.join(["icekeep", *command.split(), flag, *words])
    return UsageError(f"{first!r} stands without a flag; write `{shown}`", given=first)
