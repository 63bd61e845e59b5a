from pathlib import Path

import pytest

from kit.shell import Operator


@pytest.fixture
def operator(tmp_path: Path) -> Operator:
    """Somebody with an empty lake."""
    return Operator(tmp_path)
