"""What went wrong, as one of our errors where it is one, in one line where it is not.

An error that a task raised reaches the driver as text inside an exception of Spark's, under the traceback of the worker.
"""

import re
from typing import Any

from icekeep import errors
from icekeep.errors import IcekeepError

_OURS = re.compile(r"icekeep\.errors\.([A-Za-z]+): (\S.*)")
_CAUSE = re.compile(r"^Caused by: (\S.*)$", re.MULTILINE)
_MAX_LENGTH = 500


def our_error(failure: BaseException) -> IcekeepError | None:
    """The error of ours that a failure is, or carries from an executor; null if there is none."""
    if isinstance(failure, IcekeepError):
        return failure
    for name, message in reversed(_OURS.findall(str(failure))):
        kind = getattr(errors, name, None)
        if isinstance(kind, type) and issubclass(kind, IcekeepError):
            # Each class has a constructor of its own; the text is the finished message.
            error = kind.__new__(kind)
            IcekeepError.__init__(error, message.strip())
            return error
    return None


def describe_error(failure: BaseException) -> dict[str, Any]:
    """A failure for machines: its kind, its message and, where there are any, the values in the message."""
    ours = our_error(failure)
    if ours is None:
        return {"kind": "unexpected", "message": one_line(failure)}
    return {"kind": ours.kind, "message": ours.message, **({"facts": ours.facts} if ours.facts else {})}


def one_line(failure: BaseException) -> str:
    """What an exception says that helps: the innermost cause that Java names, otherwise its first line."""
    if isinstance(failure, IcekeepError):
        return failure.message
    text = str(failure)
    causes = _CAUSE.findall(text)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    said = causes[-1] if causes else lines[0] if lines else ""
    name = type(failure).__name__
    return f"{name}: {said}"[:_MAX_LENGTH] if said else name
