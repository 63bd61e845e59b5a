"""Many processes write their runs into one file at once."""

import pytest

from kit.postgres import assert_all_are_there

pytestmark = [pytest.mark.process, pytest.mark.slow]


def test_none_is_lost_in_a_sqlite_file(tmp_path):
    assert_all_are_there(f"sqlite:///{tmp_path}/runs.db")
