"""Words that a command takes of a list that is known."""

from collections.abc import Sequence

from icekeep.errors import UsageError
from icekeep.spelling import did_you_mean, near_words

_NAMED = 5
"""Of no more words than these all are told."""

LISTED = "`icekeep --help` lists them"
"""Where names of jobs and commands are listed."""


def require_known(word: str, known: Sequence[str], what: str, listed: str) -> None:
    """Refuse a word that is not among those that are known; the arguments are those of `unknown_word`.

    Raises:
        UsageError: with what may be meant.
    """
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
