"""Errors for a word or a command that does not exist, with what may be meant, by Iceberg's names too."""

from collections.abc import Mapping, Sequence

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
    "rewrite_table_path": "rewrite_table_path",
    "compute_table_stats": "compute_table_stats",
    "compute_partition_stats": "compute_partition_stats",
    "create_changelog_view": None,
}
"""Iceberg's procedures and the commands that do the same; `None` where there is none (docs/from-iceberg.md)."""

_STATEMENTS: Mapping[str, str] = {
    "optimize": "compact",
    "vacuum": "expire_snapshots",
    "unregister_table": "unregister",
}
"""What Trino, Athena and Databricks call the same in SQL."""


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
