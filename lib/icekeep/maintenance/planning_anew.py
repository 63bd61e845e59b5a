"""What others changed is planned anew: the one loop around the plans of a job.

A commit follows what others do to the table, as far as its change can (`commit/retry.py`). Where they changed what it replaces
it is refused, and no attempt helps: the job plans again, on the table as it is by then. That a commit was refused proves that
nothing of it landed, so no plan can be committed twice; what an earlier commit of the job replaced is not there any more when
it plans again.
"""

import logging
from collections.abc import Callable
from itertools import count
from typing import TypeVar

import msgspec

from icekeep.catalog.base import Table
from icekeep.catalog.log_context import log_context
from icekeep.commit.retry import RetryPolicy, check_submitter, reloaded
from icekeep.errors import ConflictError, InvalidTableError
from icekeep.events import Listener, Warned
from icekeep.spec.metadata import TableMetadata

_LOG = logging.getLogger(__name__)

T = TypeVar("T")


def plan_till_done(
    table: Table,
    plan_and_commit: Callable[[Table, int], T],
    *,
    what: Callable[[], str],
    listener: Listener,
    only_once: bool = False,
) -> T:
    """Plan and commit, and again for as long as others change what a plan replaces.

    A job plans as often as a commit is tried: once, and `commit.retry.num-retries` times anew. It waits in between as a commit
    does (`commit.retry.min-wait-ms`, `max-wait-ms`). How long the plans take together is not limited, as nobody knows how long
    the work of one takes. Nothing but a conflict is a reason to plan anew, and not each of them: see
    `ConflictError.is_outpaced`.

    Args:
        table: what the first plan is made on; its properties say how often there is another.
        plan_and_commit: takes the table as it is, and the number of the plan, from 1. Where it raises nothing is left of what
            it has written and not committed, but for what it keeps for the next plan.
        what: it is that is planned anew, for messages, such as `6 data files`; asked after each refusal.
        only_once: the plan is one that was given: that, or nothing.

    Returns:
        What came of the plan that no conflict ended. A job of several commits adds up by itself what earlier ones did.

    Raises:
        ConflictError: another plan would not help, or the last one that is allowed was refused as well.
        InvalidTableError: two plans in a row were refused on a table that nobody else has changed, so that no plan would help;
            one alone may have met a file that was.
        SafetyError: the table was dropped and made again meanwhile, or moved: it is another table, which nobody asked for.
        NotFoundError, UnavailableError: the table cannot be loaded; or this process is abandoned (`Runtime.is_abandoned`), and
            may not commit what it would plan.
        Exception: whatever else `plan_and_commit` raises.
    """
    runtime, policy = table.runtime, RetryPolicy.of(table.metadata)
    was_alone = False
    for number in count(1):
        try:
            return plan_and_commit(table, number)
        except ConflictError as error:
            if error.is_outpaced or only_once:
                raise
            refusal = error
        check_submitter(runtime)
        before, was_alone = was_alone, _is_same(table.metadata, reloaded(table).metadata)
        if before and was_alone:
            raise InvalidTableError(
                f"cannot commit the plan for {what()} of {table.name!r}: {refusal.message}; nobody else has changed the table, "
                "so its metadata contradicts itself; run `icekeep check --table NAME --deep` to find where",
                location=table.metadata_location,
            ) from refusal
        if number > policy.num_retries:
            raise ConflictError(
                f"others kept changing {what()} of {table.name!r}: gave up after {number} plans ({refusal.message}); "
                "run it again",
                plans=number,
            ) from refusal
        listener.on(Warned(f"{what()} of {table.name!r} are planned again: {refusal.message}"))
        runtime.sleep_ms(policy.wait_ms(number, runtime))
        table = reloaded(table)
        _LOG.info(
            "%s: plan %d is made on %s", table.name, number + 1, table.metadata_location, extra=log_context(table)
        )
    raise AssertionError("count() does not end")


def _is_same(one: TableMetadata, other: TableMetadata) -> bool:
    """Whether two versions of a table say the same, but for tags, such as a job holds its start by."""
    return _without_tags(one) == _without_tags(other)


def _without_tags(metadata: TableMetadata) -> TableMetadata:
    branches = {name: ref for name, ref in metadata.refs.items() if ref.is_branch}
    return msgspec.structs.replace(metadata, refs=branches, metadata_log=(), last_updated_ms=0)
