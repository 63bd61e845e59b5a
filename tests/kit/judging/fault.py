"""One thing that a judge is known not to read, or to read wrongly."""

import re
from collections.abc import Callable
from typing import NamedTuple

from kit.judging.kinds import Kind


class Fault(NamedTuple):
    """One thing that a judge does not do.

    Attributes:
        what: it does instead, for people.
        concerns: whether a table is of the kind where it may happen.
        example: the name of a table in `examples` at which it happens.
        says: a pattern of the error that it ends in; empty where it gives wrong rows and no error.
        missing, added: the numbers of the example's rows that it does not give, and that it should not.
        issue: where its makers, or those of a library that it reads by, know of it: a repository on GitHub and a number.
    """

    judge: str
    what: str
    concerns: Callable[[Kind], bool]
    example: str
    says: str = ""
    missing: tuple[int, ...] = ()
    added: tuple[int, ...] = ()
    issue: str = ""

    def explains(self, error: str) -> bool:
        """Whether an error is this one; empty where there was none, but wrong rows."""
        return bool(re.search(self.says, error)) if self.says else not error
