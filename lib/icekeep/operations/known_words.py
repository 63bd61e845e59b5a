"""Words that a command takes of a list that is known."""

import difflib
from collections.abc import Sequence

from icekeep.errors import NotFoundError, and_more

_NAMED = 5
_NEAR = 3

LISTED = "`icekeep --help` lists them"
"""Where names of jobs and commands are listed."""


def require_known(word: str, known: Sequence[str], what: str, listed: str) -> None:
    """Refuse a word that is not among those that are known.

    Args:
        what: it would be, as an error says: "job or command".
        listed: what tells them all, such as a command.

    Raises:
        NotFoundError: with what may be meant, the nearest word or those that hold this one, or the first few.
    """
    if word in known:
        return
    holding = [one for one in known if word.lower() in one.lower()]
    near = difflib.get_close_matches(word.lower(), known, n=1) or (holding if len(holding) <= _NEAR else [])
    some = f"there is {', '.join(known[:_NAMED])}{and_more(known, _NAMED)}"
    hint = some if len(known) <= _NAMED else f"{some}; {listed}"
    if near:
        hint = f"did you mean {' or '.join(map(repr, near))}?"
    raise NotFoundError(f"there is no {what} {word!r}; {hint}", given=word)
