"""A small part of `make fuzz`, the same inputs at each run."""

import pytest

from fuzz.run import run
from fuzz.targets import TARGETS, Target
from kit.cases import for_each

INPUTS = 150


@pytest.mark.slow
@for_each("target", TARGETS, ids=lambda target: target.name)
def test_spoilt_input_is_refused_in_one_line_or_read_rightly(target: Target):
    taken = run(target, INPUTS, seed=0)
    # A target that takes nothing, or everything, tests nothing.
    assert 0 < taken < INPUTS
