"""A lake for each test, on each kind of catalog where that matters."""

from pathlib import Path

import pytest

from kit.lake import Lake


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """An empty catalog (SQLite) in a directory of the test's own."""
    return Lake(tmp_path)


@pytest.fixture(params=["sql", "filesystem"])
def any_lake(tmp_path: Path, request: pytest.FixtureRequest) -> Lake:
    """An empty catalog of each kind."""
    return Lake(tmp_path, request.param)
