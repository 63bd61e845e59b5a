import pickle

import pytest

from icekeep.errors import UnsupportedError
from icekeep.storage.base import DeleteStatus
from icekeep.storage.open import open_storage
from unit.contracts.directories_contract import DirectoriesContract
from unit.contracts.storage_contract import StorageContract


class TestRoutedStorage(StorageContract, DirectoriesContract):
    @pytest.fixture
    def storage(self):
        return open_storage({})

    @pytest.fixture
    def root(self, tmp_path):
        return f"file:{tmp_path}"


def test_a_scheme_that_is_not_served_is_named(tmp_path):
    storage = open_storage({})
    with pytest.raises(
        UnsupportedError, match=r"cannot reach 's3://b/k': storage 's3:' is not supported yet, only file:"
    ):
        storage.read("s3://b/k")


def test_deleting_in_a_store_that_is_not_served_fails_for_that_key_only(tmp_path):
    storage = open_storage({})
    storage.create(f"{tmp_path}/a", b"")
    outcomes = storage.delete_many(["s3://b/k", f"{tmp_path}/a", "s3://b/l"])
    assert [o.status for o in outcomes] == [DeleteStatus.FAILED, DeleteStatus.DELETED, DeleteStatus.FAILED]


def test_neither_its_text_nor_its_errors_show_properties():
    storage = open_storage({"s3.secret-access-key": "hunter2"})
    assert "hunter2" not in repr(storage)
    with pytest.raises(UnsupportedError) as raised:
        storage.read("s3://b/k")
    assert "hunter2" not in f"{raised.value} {raised.value.facts}"


def test_backends_that_were_made_stay_behind_when_it_travels(tmp_path):
    storage = open_storage({"a": "b"})
    before = len(pickle.dumps(storage))
    storage.create(f"{tmp_path}/a", b"")
    assert len(pickle.dumps(storage)) == before
