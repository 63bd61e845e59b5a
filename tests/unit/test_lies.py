"""A small part of `make lies`: one lie in the files of a table, a job over it, and no row is lost."""

from collections import Counter

import pytest

from kit.cases import scaled, seeds
from lies.broken import MUTANTS, NUMBERS_MAX
from lies.judging import JOBS, judged
from lies.run import TABLES as TABLES_AT_LENGTH

TABLES = 12
FOUND = (5000239, 5000557, 5000559, 5000891, 8003834, 8011833, 8016030, 8017750)
"""Lies of long runs that lost rows, or ended a job with an error that is none of icekeep's."""


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


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_a_library_that_believes_more_is_shown_by_a_lie(mutant):
    hunt = MUTANTS[mutant]
    for number in range(hunt.at, hunt.at + NUMBERS_MAX):
        with mutant():
            verdict = judged(number, TABLES_AT_LENGTH, hunt.job, hunt.kind)
        if verdict is not None and verdict.outcome == "lost":
            break
    else:
        pytest.fail(f"{NUMBERS_MAX} lies of kind {hunt.kind} lost nothing")
    kept = judged(number, TABLES_AT_LENGTH, hunt.job, hunt.kind)
    assert kept is not None
    assert kept.outcome != "lost"


@pytest.mark.slow
def test_what_was_found_once_is_not_found_again():
    verdicts = {number: judged(number, TABLES_AT_LENGTH) for number in FOUND}
    assert {
        number: verdict for number, verdict in verdicts.items() if verdict is None or verdict.outcome == "lost"
    } == {}
