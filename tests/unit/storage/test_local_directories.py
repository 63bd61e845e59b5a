import pytest

from icekeep.errors import IcekeepError, InvalidTableError, UnsupportedError
from icekeep.storage.local.storage import LocalStorage
from kit.cases import for_each


def test_links_are_neither_children_nor_followed(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "a")
    assert list(LocalStorage().child_directories(str(tmp_path))) == ["a"]
    assert list(LocalStorage().child_names(str(tmp_path))) == ["a", "link"]


def test_a_directory_below_a_file_cannot_be_made(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(IcekeepError, match="cannot make directory") as raised:
        LocalStorage().make_directory(f"{tmp_path}/file/below")
    assert isinstance(raised.value, InvalidTableError)


@for_each("use", ["directory_exists", "make_directory", "child_names", "child_directories", "remove_directory"])
def test_directories_of_other_stores_are_refused(use):
    with pytest.raises(UnsupportedError, match="s3://b/k"):
        getattr(LocalStorage(), use)("s3://b/k")
