"""What to say of a command or a flag that there is not: what may be meant, also by those who know Iceberg's procedures."""

from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import takewhile

from icekeep.errors import UsageError, did_you_mean, near_words
from icekeep.operations.known_words import LISTED, unknown_word

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


_SHORTEST_FLAG = 3
"""Shorter words that begin with a dash are numbers, or flags of one letter."""


def unknown_command(
    word: str, commands: Sequence[str], what: str = "command", listed: str = LISTED, *, for_help: bool = False
) -> UsageError:
    """The error for a word that is no command; arguments as of `unknown_word`.

    Args:
        for_help: the user asked for help, and is told how to get that of the command that does what a procedure does.
    """
    near = near_words(word, dict.fromkeys((*commands, *PROCEDURES)))
    if not near or near[0] in commands:
        return unknown_word(word, commands, what, listed)
    same = f"what Iceberg's procedure {near[0]!r} does"
    command = PROCEDURES[near[0]]
    if command is None:
        return UsageError(f"there is no {what} {word!r}, and no command does {same}; {listed}", given=word)
    if for_help:
        told = command.partition(" --")[0]
        hint = f"`icekeep help {told}` is that of the command that does {same}"
    else:
        hint = f"`icekeep {command}` does {same}"
    return UsageError(f"there is no {what} {word!r}; {hint}", given=word)


def unknown_action(group: str, word: str, actions: Sequence[str]) -> UsageError:
    """The error for a second word that none of the commands has that begin with a group's name."""
    near = near_words(word, actions)
    hint = did_you_mean(f"{group} {one}" for one in near) if near else f"`icekeep {group} --help` lists them"
    return UsageError(f"there is no command {f'{group} {word}'!r}; {hint}", given=word)


def flag_before_command(word: str, own: Collection[str], elsewhere: Callable[[], Collection[str]]) -> UsageError | None:
    """The error for a flag with which a command line begins; `None` if the word is none, or one of those that may stand there.

    Args:
        own: the flags that may stand before a command.
        elsewhere: those that any command has.
    """
    flag = word.partition("=")[0]
    if not flag.startswith("-") or len(flag) < _SHORTEST_FLAG or word in own:
        return None
    if flag in elsewhere():
        return UsageError(f"flag {flag!r} stands before the command; write `icekeep COMMAND {flag} ...`", given=flag)
    near = near_words(flag.lstrip("-"), [one.removeprefix("--") for one in own])
    hint = did_you_mean(f"--{one}" for one in near) if near else "see icekeep --help"
    return UsageError(f"there is no flag {flag!r} before the command; {hint}", given=flag)


def misspelt_flag(
    words: Sequence[str], own: Collection[str], elsewhere: Callable[[], Collection[str]]
) -> UsageError | None:
    """The error for the first flag that no command has and that is near to one of this command; `None` if there is none.

    Args:
        words: of the command line.
        own: the flags that the command has.
        elsewhere: those that any command has.
    """
    names = [flag.removeprefix("--") for flag in own]
    for word in takewhile(lambda one: one != "--", words):
        flag = word.partition("=")[0]
        is_flag = flag.startswith("-") and len(flag) >= _SHORTEST_FLAG and " " not in flag
        near = near_words(flag.lstrip("-"), names) if is_flag and flag not in own else []
        if near and flag not in elsewhere():
            return UsageError(f"there is no flag {flag!r}; {did_you_mean(f'--{one}' for one in near)}", given=flag)
    return None
