"""A small part of `make lies`: one lie in the files of a table, a job over it, and no row is lost."""

from collections import Counter

import pytest

from kit.cases import scaled, seeds
from lies.judging import JOBS, judged

TABLES = 12


@pytest.mark.slow
def test_no_row_is_lost_for_one_lie():
    outcomes, jobs = Counter[str](), set[str]()
    for number in seeds(scaled(3_000)):
        verdict = judged(number, TABLES)
        if verdict is not None:
            assert verdict.outcome != "lost", (number, verdict)
            outcomes[verdict.outcome] += 1
            jobs.add(verdict.job)
    assert jobs == {*JOBS}
    # Where nothing is kept or nothing refused, nothing is tried.
    assert min(outcomes["kept"], outcomes["refused"]) > 10
