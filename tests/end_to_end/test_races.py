"""Four processes append to one table at once: no commit is lost, none doubled, none leaves anything behind.

Ten commits each; eight processes race in `tests/interop`, also on PostgreSQL.
"""

import pytest

from kit.catalogs import check_race, conflicts_of, names, racing_table, start_appending
from kit.lake import Lake

WRITERS, COMMITS = 4, 10


@pytest.mark.parametrize("kind", ["sql", pytest.param("filesystem", marks=pytest.mark.nightly)])
def test_four_processes_lose_no_commit_and_double_none(tmp_path, kind):
    lake = Lake(tmp_path, kind)
    racing_table(lake.properties)
    start_appending(lake.properties, writers=WRITERS, commits=COMMITS).finish()
    check_race(lake.load(), lake.foreign(), dict.fromkeys(names(WRITERS), COMMITS))
    # Writers that never met would have shown nothing.
    assert conflicts_of(lake.load()) >= WRITERS * COMMITS * 0.3
