"""The evaluator against the one that it replaced, which was written apart for one file: a file pruned wrongly is a row lost."""

import pytest

from icekeep.planning.prune import columns_needed, files_that_may_match
from icekeep.spec.filters import evaluators
from kit import reference_evaluator as reference
from kit.pruning import batch_of, random_case

pytestmark = pytest.mark.slow

CASES = 1500


def assert_agrees(seed: int) -> None:
    case = random_case(seed)
    bound, fields = case.bound, case.schema.fields
    may = [reference.file_may_match(bound, file) for file in case.files]
    assert [evaluators.file_may_match(bound, file) for file in case.files] == may, seed
    assert files_that_may_match(bound, batch_of(case.files)).tolist() == may, seed
    assert files_that_may_match(bound, batch_of(case.files, columns_needed(bound))).tolist() == may, seed
    assert [evaluators.file_must_match(bound, file) for file in case.files] == [
        reference.file_must_match(bound, file) for file in case.files
    ], seed
    for summaries in case.summaries:
        expected = reference.manifest_may_match(bound, fields, summaries)
        assert evaluators.manifest_may_match(bound, fields, summaries) is expected, seed
    for row in case.rows:
        assert evaluators.row_matches(bound, row) is reference.row_matches(bound, row), seed
        values = tuple(row.values())
        assert evaluators.partition_matches(bound, fields, values) is reference.partition_matches(
            bound, fields, values
        ), seed


def test_the_evaluator_agrees_with_its_reference():
    for seed in range(CASES):
        assert_agrees(seed)
