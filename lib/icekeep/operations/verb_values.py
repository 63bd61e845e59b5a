"""What a command beside the jobs is: values alone, of which `verbs.py` has one for each."""

from collections.abc import Mapping
from enum import Enum
from typing import Any

import msgspec

from icekeep.settings import Setting


class About(Enum):
    """What a command is about, and so what its function takes first.

    A table; the catalog and the name that a table is to have; a function that gives the configured catalogs, the name of one
    or `None`, and a source of a Spark session; the configuration, its catalogs, what opens one of them, and the name of one or
    `None`; the command and its surroundings, of one that runs jobs on many tables, or one that carries out the plan of a file; or
    nothing. A command about catalogs, a fleet or a plan may start Spark, and so has a script in `jobs/` too.
    """

    NOTHING = "nothing"
    TABLE = "table"
    NEW_TABLE = "new table"
    CATALOGS = "catalogs"
    POLICIES = "policies"
    FLEET = "fleet"
    PLAN = "plan"


class Text(msgspec.Struct, frozen=True, kw_only=True):
    """A text that stdout can have in the place of a table.

    Attributes:
        make: where the function is, as "module:function", that makes it of the result.
        arguments: what the command's own function is told beside, so that the result has what the text needs.
        check: where the function is, as "module:function", that raises `UsageError` before the work if it could not be made.
        needs: what must be installed for it, as help says.
    """

    make: str
    arguments: Mapping[str, Any] = {}
    check: str | None = None
    needs: str = ""


class Verb(msgspec.Struct, frozen=True, kw_only=True):
    """A command beside the jobs.

    Attributes:
        run: where its function is, as "module:function".
        one_of: settings of which exactly one must be given.
        changes: whether all that it does is one commit; then it has `--dry-run`, and its function returns the table after it.
            The others return what is shown; the status is that of what they return, if it has one.
        also_changes: whether a command that is not one commit changes tables all the same, and so is written down; where it is
            told to list (`lists`) it does not.
        takes_listener: whether its function takes a `listener`.
        about: what it is about.
        takes_spark: whether the function of a command about a table takes what starts a session, `spark`, for where there is much
            to do.
        for_people: where the function is, as "module:function", that makes of the result what is printed for people; `None`: the
            result itself. Machines get the result in any case.
        returns: where the function is, as "module:function", that returns the result, where `run` returns the whole outcome.
        texts: what `--output` can be beside `table` and `json`.
        examples: command lines that help shows, without the name of the command; the exit statuses stand below them.
    """

    summary: str
    run: str
    settings: tuple[Setting, ...] = ()
    one_of: tuple[Setting, ...] = ()
    changes: bool = True
    also_changes: bool = False
    takes_listener: bool = False
    about: About = About.TABLE
    takes_spark: bool = False
    for_people: str | None = None
    returns: str | None = None
    texts: Mapping[str, Text] = {}
    examples: tuple[str, ...] = ()

    @property
    def may_start_spark(self) -> bool:
        """Whether its function may do so much that it takes Spark."""
        return self.takes_spark or self.about in (About.CATALOGS, About.FLEET)


def tells_of_runs(verb: Verb) -> bool:
    """Whether a command is told of as a run, to Prometheus and to others: where it changes tables."""
    return verb.changes or verb.also_changes
