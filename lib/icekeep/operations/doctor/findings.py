"""What was looked at and what was found: whatever a look raises is a finding, and never an error of the whole."""

from collections.abc import Callable

import msgspec

from icekeep.errors import TryAgainError, UnavailableError, one_line
from icekeep.operations.failures import our_error
from icekeep.rendered import Rendered

OK, WRONG, UNAVAILABLE, NOT_TRIED = "ok", "wrong", "unavailable", "not-tried"

_OUT_OF_REACH = "; see whether it runs, whether its address is right, and whether this machine may connect to it"


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that was looked at.

    Attributes:
        about: what it belongs to: `driver`, `executors`, `catalog NAME`, `store LOCATION`.
        check: what was looked at.
        status: `ok`; `wrong` for what must be fixed; `unavailable` for what is out of reach; `not-tried`.
        message: what was found and, where that is not well, what to do.
    """

    about: str
    check: str
    status: str
    message: str


class DoctorResult(Rendered, frozen=True, kw_only=True):
    """All findings; `status` is `wrong` if one of them is, else `unavailable` if one of them is, else `ok`."""

    status: str
    findings: tuple[Finding, ...] = ()
    elapsed_ms: int = 0


class NotTried(Exception):
    """Raised by a look that does not take place, with the reason."""


class Notes:
    """The findings as they are made."""

    def __init__(self) -> None:
        self._findings: list[Finding] = []

    def look(self, about: str, check: str, look: Callable[[], str]) -> bool:
        """Look at something: what it says is well, what it raises is not. Returns whether it is well."""
        try:
            status, message = OK, look()
        except NotTried as reason:
            status, message = NOT_TRIED, str(reason)
        except Exception as failure:  # noqa: BLE001 - whatever is raised is what was to be found out
            ours = our_error(failure)
            status = UNAVAILABLE if isinstance(ours, TryAgainError) else WRONG
            message = one_line(ours or failure) + (_OUT_OF_REACH if isinstance(ours, UnavailableError) else "")
        self.tell(about, check, status, message)
        return status == OK

    def tell(self, about: str, check: str, status: str, message: str) -> None:
        """Take note of what is known already."""
        self._findings.append(Finding(about=about, check=check, status=status, message=message))

    def result(self, elapsed_ms: int) -> DoctorResult:
        """What was found in all."""
        found = {finding.status for finding in self._findings}
        status = next((one for one in (WRONG, UNAVAILABLE) if one in found), OK)
        return DoctorResult(status=status, findings=tuple(self._findings), elapsed_ms=elapsed_ms)
