import pickle
import subprocess
import sys

import pytest

from contracts.directories_contract import DirectoriesContract
from contracts.storage_contract import StorageContract
from icekeep.errors import UnsupportedError
from icekeep.storage.base import DeleteStatus
from icekeep.storage.open import open_storage
from kit.cases import for_each
from kit.storage import MemoryStorage


class TestRoutedStorage(StorageContract, DirectoriesContract):
    @pytest.fixture
    def storage(self):
        return open_storage({})

    @pytest.fixture
    def root(self, tmp_path):
        return f"file:{tmp_path}"


def test_a_scheme_that_is_not_served_is_named():
    with pytest.raises(UnsupportedError, match=r"cannot reach 'ftp://b/k': storage 'ftp:' is not supported yet, only "):
        open_storage({}).read("ftp://b/k")


def test_delete_in_unsupported_store_fails_for_that_key_only(tmp_path):
    storage = open_storage({})
    storage.create(f"{tmp_path}/a", b"")
    outcomes = storage.delete_many(["ftp://b/k", f"{tmp_path}/a", "ftp://b/l"])
    assert [o.status for o in outcomes] == [DeleteStatus.FAILED, DeleteStatus.DELETED, DeleteStatus.FAILED]


@pytest.mark.parametrize("location", ["ftp://b/k", "s3://b/a/../k"])
def test_neither_its_text_nor_its_errors_show_properties(location):
    storage = open_storage({"s3.access-key-id": "me", "s3.secret-access-key": "hunter2"})
    with pytest.raises(UnsupportedError) as raised:
        storage.read(location)
    assert "hunter2" not in f"{storage!r} {raised.value} {raised.value.facts}"


@for_each("scheme", ["s3", "s3a", "s3n", "gs", "gcs", "abfs", "abfss", "wasb", "wasbs", "az"])
def test_object_stores_are_reached_by_their_schemes(scheme):
    with pytest.raises(UnsupportedError, match="cannot be used in an object store"):
        open_storage({}).read(f"{scheme}://bucket/a/./b")


NOT_INSTALLED = """
import sys
sys.modules.update(obstore=None, hdfs_native=None)
from icekeep.errors import UsageError
from icekeep.storage.open import open_storage
for location in ("s3a://b/k", "gs://b/k", "abfss://f@a.dfs.core.windows.net/k", "hdfs://n/k"):
    try:
        open_storage({}).read(location)
    except UsageError as error:
        print(error)
"""


@pytest.mark.process
def test_missing_client_is_named_with_its_extra():
    done = subprocess.run([sys.executable, "-c", NOT_INSTALLED], capture_output=True, text=True, check=True)
    said = "the client of this storage is not installed: icekeep[{}] brings {} (how to install it: docs/install.md)"
    brought = [("s3", "obstore"), ("gcs", "obstore"), ("azure", "obstore"), ("hdfs", "hdfs_native")]
    assert done.stdout.splitlines() == [said.format(extra, module) for extra, module in brought]


def test_backends_that_were_made_stay_behind_when_it_travels(tmp_path):
    storage = open_storage({"a": "b"})
    before = len(pickle.dumps(storage))
    storage.create(f"{tmp_path}/a", b"")
    assert len(pickle.dumps(storage)) == before


class TestMemoryStorage(StorageContract, DirectoriesContract):
    @pytest.fixture
    def storage(self):
        return MemoryStorage()

    @pytest.fixture
    def root(self):
        return "memory://store/root"
