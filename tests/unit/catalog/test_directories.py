import pytest

from icekeep.catalog.directories import (
    child_directories,
    child_names,
    directory_exists,
    make_directory,
    remove_directory,
)
from icekeep.errors import IcekeepError, InvalidTableError, UnavailableError, UnsupportedError


def test_a_directory_is_made_with_those_above_it_and_removed_alone(tmp_path):
    location = f"file://{tmp_path}/a/b"
    for _ in range(2):
        make_directory(location)
    assert directory_exists(location)
    remove_directory(location)
    assert not directory_exists(location)
    assert directory_exists(f"file://{tmp_path}/a")


def test_only_an_empty_directory_is_removed(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "file").write_bytes(b"")
    with pytest.raises(UnavailableError, match=r"cannot remove directory '.*/a': directory not empty"):
        remove_directory(f"file://{tmp_path}/a")


def test_children_are_plain_directories_that_do_not_hide(tmp_path):
    for name in ("b", "a", ".hidden", "_a"):
        (tmp_path / name).mkdir()
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "link").symlink_to(tmp_path / "a")
    assert child_directories(str(tmp_path)) == ["_a", "a", "b"]
    assert child_names(str(tmp_path)) == [".hidden", "_a", "a", "b", "file", "link"]
    assert child_names(f"{tmp_path}/none") == child_names(f"{tmp_path}/file") == []


def test_a_directory_below_a_file_cannot_be_made(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(IcekeepError, match="cannot make directory") as raised:
        make_directory(f"{tmp_path}/file/below")
    assert isinstance(raised.value, InvalidTableError)


def test_directories_of_other_stores_are_refused():
    for use in (directory_exists, make_directory, child_names, child_directories, remove_directory):
        with pytest.raises(UnsupportedError, match="s3://b/k"):
            use("s3://b/k")
