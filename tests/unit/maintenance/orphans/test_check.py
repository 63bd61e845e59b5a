"""What can be wrong with the arguments of `remove_orphan_files` is refused before anything is listed or written."""

import pytest

from icekeep.errors import OptionError, SafetyError, UnsupportedError, UsageError
from icekeep.maintenance.orphans.job import check_arguments

ROOT = "memory://lake/wh/db/events"


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"location": "data"}, UsageError),
        ({"location": f"{ROOT}/.icekeep/trash"}, SafetyError),
        ({"prefix_mismatch_mode": "DELETE"}, UnsupportedError),
        ({"prefix_mismatch_mode": "GUESS"}, OptionError),
        ({"equal_schemes": {"s3a": ""}}, OptionError),
        ({"accept_unreadable": ["events"]}, OptionError),
        ({"max_concurrent_deletes": 0}, OptionError),
        ({"trash": "soon"}, UsageError),
        ({"options": {"max-orphan-ratio": "2"}}, OptionError),
        ({"options": {"reclaim.roots": "memory://lake"}}, OptionError),
    ],
)
def test_a_wrong_argument_is_refused_as_by_the_job_which_reads_and_writes_nothing(world, arguments, error):
    table = world.table
    with pytest.raises(error) as refused:
        check_arguments(table.metadata, **arguments)
    world.storage.before = lambda what, at: pytest.fail(f"{what} {at}")
    for ask in (world.run, world.plan):
        with pytest.raises(error) as raised:
            ask(table, **arguments)
        assert str(raised.value) == str(refused.value)


def test_what_holds_is_let_through(world):
    check_arguments(world.table.metadata)
    check_arguments(
        world.table.metadata,
        older_than="5d",
        location=f"{ROOT}/data",
        equal_schemes={"s3a,s3n": "s3"},
        prefix_mismatch_mode="ignore",
        accept_unreadable=["db.others"],
        trash="3d",
        options={"reclaim.roots": "memory://lake/elsewhere"},
    )
