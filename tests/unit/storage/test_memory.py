import pytest

from kit.storage import MemoryStorage
from unit.contracts.directories_contract import DirectoriesContract
from unit.contracts.storage_contract import StorageContract


class TestMemoryStorage(StorageContract, DirectoriesContract):
    @pytest.fixture
    def storage(self):
        return MemoryStorage()

    @pytest.fixture
    def root(self):
        return "memory://store/root"
