import pytest

from contracts.directories_contract import DirectoriesContract
from contracts.storage_contract import StorageContract
from kit.storage import MemoryStorage


class TestMemoryStorage(StorageContract, DirectoriesContract):
    @pytest.fixture
    def storage(self):
        return MemoryStorage()

    @pytest.fixture
    def root(self):
        return "memory://store/root"
