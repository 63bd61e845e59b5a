"""Whether this process may still work and commit, as far as whoever started it is concerned."""

import os

from icekeep.errors import OptionError, UnavailableError
from icekeep.runtime import SUBMITTER, SUBMITTERS, Runtime


def check_submitter(runtime: Runtime) -> None:
    """Ask before work and before each swap.

    Raises:
        UnavailableError: this process is abandoned (`Runtime.is_abandoned`).
        OptionError: the environment variable `ICEKEEP_SUBMITTER`, which says who decides that, has another value than it can.
    """
    told = os.environ.get(SUBMITTER, "")
    if told not in ("", *SUBMITTERS):
        raise OptionError(SUBMITTER, given=told, expected=" or ".join(map(repr, SUBMITTERS)))
    if runtime.is_abandoned():
        raise UnavailableError(
            "the process that started this one (spark-submit) is gone, so nothing more is committed; run it again, or set "
            f"the environment variable {SUBMITTER}=none where a wrapper starts Python and ends as it should"
        )
