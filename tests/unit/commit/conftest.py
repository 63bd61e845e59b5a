import pytest

from kit.memory_catalog import MemoryCatalog


@pytest.fixture
def catalog():
    return MemoryCatalog()
