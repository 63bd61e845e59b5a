"""What went wrong, as one of our errors where it is one, in one line where it is not.

An error that a task raised reaches the driver as text inside an exception of Spark's, under the traceback of the worker.
"""

import re
from typing import Any

from icekeep import errors
from icekeep.errors import IcekeepError, one_line, refused_threads
from icekeep.operations.runbooks import UNEXPECTED, address_of

_OURS = re.compile(r"icekeep\.errors\.([A-Za-z]+): (\S.*)")


def our_error(failure: BaseException) -> IcekeepError | None:
    """The error of ours that a failure is, comes to, or carries from an executor; `None` if there is none."""
    if isinstance(failure, IcekeepError):
        return failure
    if (refused := refused_threads(failure)) is not None:
        return refused
    for name, message in reversed(_OURS.findall(str(failure))):
        kind = getattr(errors, name, None)
        if isinstance(kind, type) and issubclass(kind, IcekeepError):
            # Each class has a constructor of its own; the text is the finished message.
            error = kind.__new__(kind)
            IcekeepError.__init__(error, message.strip())
            return error
    return None


def describe_error(failure: BaseException) -> dict[str, Any]:
    """A failure for machines: its kind, its message, where to read on and, where there are any, the values in the message."""
    ours = our_error(failure)
    if ours is None:
        return {"kind": UNEXPECTED, "message": one_line(failure), "help": address_of(UNEXPECTED)}
    told = {"kind": ours.kind, "message": ours.message, "help": address_of(ours.kind)}
    return {**told, **({"facts": ours.facts} if ours.facts else {})}
