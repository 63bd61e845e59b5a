"""What every storage must do with directories, which a catalog in a directory takes for namespaces."""

import pytest

from icekeep.errors import UnavailableError
from icekeep.storage.base import Storage


class DirectoriesContract:
    """Inherit beside `StorageContract`; it takes the same two fixtures."""

    @pytest.fixture
    def storage(self) -> Storage:
        raise NotImplementedError

    @pytest.fixture
    def root(self) -> str:
        raise NotImplementedError

    def test_directory_is_made_with_parents_and_removed_alone(self, storage, root):
        for _ in range(2):
            storage.make_directory(f"{root}/a/b")
        assert storage.directory_exists(f"{root}/a/b")
        assert storage.directory_exists(f"{root}/a")
        storage.remove_directory(f"{root}/a/b")
        assert not storage.directory_exists(f"{root}/a/b")
        assert storage.directory_exists(f"{root}/a")

    def test_an_empty_directory_has_nothing_in_it(self, storage, root):
        storage.make_directory(f"{root}/a")
        assert list(storage.list(root)) == []
        assert list(storage.child_names(f"{root}/a")) == list(storage.child_directories(f"{root}/a")) == []

    def test_a_file_makes_the_directories_above_it(self, storage, root):
        storage.create(f"{root}/a/b/file", b"x")
        assert storage.directory_exists(f"{root}/a")
        assert storage.directory_exists(f"{root}/a/b/")
        assert not storage.directory_exists(f"{root}/a/b/file")
        assert not storage.directory_exists(f"{root}/a/other")

    def test_only_an_empty_directory_is_removed(self, storage, root):
        storage.create(f"{root}/a/file", b"x")
        with pytest.raises(UnavailableError, match=r"cannot remove directory '.*/a': .*not empty"):
            storage.remove_directory(f"{root}/a")
        assert storage.read(f"{root}/a/file") == b"x"

    def test_children_are_sorted_and_the_hidden_ones_are_names_only(self, storage, root):
        for name in ("b", "a", ".hidden", "_a", "a2"):
            storage.make_directory(f"{root}/{name}")
        storage.create(f"{root}/file", b"")
        storage.create(f"{root}/a/below/file", b"")
        assert list(storage.child_directories(root)) == ["_a", "a", "a2", "b"]
        assert list(storage.child_names(root)) == [".hidden", "_a", "a", "a2", "b", "file"]
        assert list(storage.child_directories(f"{root}/a")) == ["below"]

    def test_what_is_not_there_has_no_children(self, storage, root):
        storage.create(f"{root}/file", b"")
        for location in (f"{root}/none", f"{root}/file"):
            assert list(storage.child_names(location)) == list(storage.child_directories(location)) == []
