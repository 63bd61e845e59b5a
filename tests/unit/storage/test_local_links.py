"""Links that somebody made below a table's place, or in icekeep's own directory, lead no deletion and no move elsewhere."""

import errno
import io
import os

import pytest

from icekeep.errors import InvalidTableError, UnavailableError
from icekeep.storage.base import DeleteStatus, MoveStatus
from icekeep.storage.local import links as copying
from icekeep.storage.local.links import confined_to, copy_range, is_behind_link, real_location
from icekeep.storage.local.storage import LocalStorage
from kit.cases import for_each
from kit.storage import MemoryStorage


@pytest.fixture
def storage():
    return LocalStorage()


@pytest.fixture
def root(tmp_path):
    """A place `t` whose directory `linked` is one of `other`, as its `deep/linked` is; all have a file."""
    for name in ("t/deep", "other", "t/.icekeep"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("t/f", "t/deep/f", "other/f"):
        (tmp_path / name).write_text(name)
    for name in ("t/linked", "t/deep/linked", "t/.icekeep/runs"):
        (tmp_path / name).symlink_to(tmp_path / "other")
    (tmp_path / "way").symlink_to(tmp_path)
    return tmp_path


def there(root):
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file() and not path.is_symlink())


@for_each(
    ("place", "name", "goes"),
    [
        ("t", "t/f", True),
        ("t", "t/deep/f", True),
        ("t", "t/deep/../f", True),
        ("t", "t//deep/./f", True),
        ("t", "t/linked/f", False),
        ("t", "t/deep/linked/f", False),
        ("t", "t/linked/../other/f", False),
        ("t", "t/../other/f", False),
        ("t", "other/f", False),
        ("t2", "t/f", False),
        # How a place is reached is the operator's matter.
        ("way/t", "way/t/f", True),
        ("way/t", "way/t/linked/f", False),
        ("t/linked", "t/linked/f", True),
        ("t", "t/.icekeep/runs/f", False),
    ],
)
def test_only_files_in_place_and_not_behind_link_are_changed(root, storage, place, name, goes):
    before, target = there(root), root / "moved"
    location = f"file://{root}/{name}"
    with confined_to([f"file://{root}/{place}", f"file://{target}", "s3://bucket/t"]):
        [moved] = storage.move_many([(location, f"file://{target}/x/y")])
        assert (moved.status is MoveStatus.MOVED) == goes
        if goes:
            [back] = storage.move_many([(f"file://{target}/x/y", location)])
            assert back.status is MoveStatus.MOVED
        [deleted] = storage.delete_many([location])
    assert (deleted.status is DeleteStatus.DELETED) == goes, deleted.reason
    if goes:
        assert len(there(root)) == len(before) - 1
        (root / os.path.normpath(name)).write_text("again")
    assert there(root) == before


def test_nothing_is_moved_to_where_a_link_leads(root, storage):
    with confined_to([f"{root}/t"]):
        outcomes = storage.move_many(
            [(f"{root}/t/f", f"{root}/t/{name}") for name in ("linked/f2", "deep/linked/x/f2")]
        )
        assert [one.status for one in outcomes] == [MoveStatus.FAILED] * 2
        assert all("a symbolic link leads there" in one.reason for one in outcomes)
        with pytest.raises(InvalidTableError, match="a symbolic link leads there"):
            storage.move(f"{root}/t/f", f"{root}/t/linked/f2")
    assert there(root) == ["other/f", "t/deep/f", "t/f"]


def test_elsewhere_links_are_followed_as_ever(root, storage):
    assert [info.location for info in storage.list(f"{root}/t/linked")] == [f"{root}/t/linked/f"]
    assert storage.delete_many([f"{root}/t/linked/f"])[0].status is DeleteStatus.DELETED
    assert there(root) == ["t/deep/f", "t/f"]


@for_each("ask", ["list", "child_names", "shares", "create", "write", "delete_many"])
def test_no_link_is_followed_in_icekeeps_own_directory(root, storage, ask):
    at = f"{root}/t/.icekeep/runs"
    calls = {
        "list": lambda: [*storage.list(at)],
        "child_names": lambda: storage.child_names(at),
        "shares": lambda: storage.shares(at, 4),
        "create": lambda: storage.create(f"{at}/x/new", b""),
        "write": lambda: storage.write(f"{at}/x/new").__enter__(),
    }
    if ask == "delete_many":
        assert storage.delete_many([f"{at}/f"])[0].status is DeleteStatus.FAILED
    else:
        with pytest.raises(
            InvalidTableError, match=r"a symbolic link leads there, .*; replace the link with a directory"
        ):
            calls[ask]()
    assert there(root) == ["other/f", "t/deep/f", "t/f"]


def test_icekeeps_own_files_work_without_link(root, storage):
    os.unlink(root / "t/.icekeep/runs")
    at = f"{root}/way/t/.icekeep/runs/a"
    storage.create(f"{at}/x", b"data")
    with storage.write(f"{at}/b/y") as stream:
        stream.write(b"data")
    assert sorted(info.location for info in storage.list(at)) == [f"{at}/b/y", f"{at}/x"]
    assert [*storage.list(f"{at}/none")] == [*storage.list(f"{at}/x")] == []
    assert storage.child_names(f"{root}/way/t/.icekeep/runs") == ["a"]
    assert [one.status for one in storage.delete_many([f"{at}/x", f"{at}/x"])] == [
        DeleteStatus.DELETED,
        DeleteStatus.MISSING,
    ]


def test_directory_replaced_by_link_during_call_is_not_followed(root, storage, monkeypatch):
    """What was opened is what counts, and not what has the name by then."""
    unlink = os.unlink

    def swapped(name, **told):
        os.rename(root / "t/deep", root / "away")
        (root / "t/deep").symlink_to(root / "other")
        unlink(name, **told)

    monkeypatch.setattr(os, "unlink", swapped)
    with confined_to([f"{root}/t"]):
        assert storage.delete_many([f"{root}/t/deep/f"])[0].status is DeleteStatus.DELETED
    assert there(root) == ["other/f", "t/f"]


def test_directory_is_behind_link_only_below_its_place(root):
    place = [f"file://{root}/t"]
    found = {
        name: is_behind_link(f"file://{root}/t/{name}", place) for name in ("deep", "linked", "deep/linked/x", "none")
    }
    assert found == {"deep": False, "linked": True, "deep/linked/x": True, "none": False}
    assert not is_behind_link(f"{root}/t/linked", [*place, f"{root}/t/linked"])
    assert not is_behind_link("s3://bucket/x", place)


def test_where_a_location_really_is(root):
    assert real_location(f"{root}/way/t/linked/f") == f"file://{os.path.realpath(root)}/other/f"
    assert real_location("s3://bucket/a/../b") == "s3://bucket/a/../b"


DATA = bytes(range(256)) * 40


def copied(from_storage, from_location, to_storage, to_location, start, length):
    """A file with `head`, the copied range and `tail`."""
    with from_storage.open(from_location) as source, to_storage.write(to_location) as target:
        target.write(b"head")
        copy_range(source, from_location, target, to_location, start, length)
        assert target.tell() == 4 + length
        target.write(b"tail")
    return to_storage.read(to_location)


@pytest.fixture
def local(tmp_path):
    (tmp_path / "source").write_bytes(DATA)
    return LocalStorage(), str(tmp_path / "source"), str(tmp_path / "target")


@pytest.mark.parametrize(("start", "length"), [(0, len(DATA)), (100, 5000), (0, 0), (len(DATA), 0), (len(DATA) - 1, 1)])
def test_range_is_appended_between_other_writes(local, start, length):
    storage, source, target = local
    assert copied(storage, source, storage, target, start, length) == b"head" + DATA[start : start + length] + b"tail"


@pytest.mark.parametrize("answer", [errno.EXDEV, errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP])
def test_what_the_system_does_not_copy_goes_through_this_process(local, answer, monkeypatch):
    storage, source, target = local

    def refuse(*_):
        raise OSError(answer, "refused")

    monkeypatch.setattr(os, "copy_file_range", refuse, raising=False)
    monkeypatch.setattr(copying, "PIECE_BYTES", 1000)
    assert copied(storage, source, storage, target, 7, 9001) == b"head" + DATA[7:9008] + b"tail"


def test_a_system_that_copies_a_part_is_helped_out(local, monkeypatch):
    storage, source, target = local
    real, calls = os.copy_file_range, []

    def once(from_descriptor, to_descriptor, count, offset):
        calls.append(count)
        if len(calls) > 2:
            return 0
        return real(from_descriptor, to_descriptor, min(count, 1000), offset)

    monkeypatch.setattr(os, "copy_file_range", once)
    assert copied(storage, source, storage, target, 10, 9000) == b"head" + DATA[10:9010] + b"tail"
    assert calls == [9000, 8000, 7000]


def test_other_stores_are_copied_from_and_to(local):
    storage, source, target = local
    memory = MemoryStorage()
    assert copied(storage, source, memory, "memory:/t", 5, 6000) == b"head" + DATA[5:6005] + b"tail"
    memory.create("memory:/s", DATA)
    assert copied(memory, "memory:/s", storage, target, 5, 6000) == b"head" + DATA[5:6005] + b"tail"


@pytest.mark.parametrize("in_memory", [False, True])
def test_source_that_ends_early_is_error_and_leaves_nothing(local, in_memory):
    storage, source, target = local
    if in_memory:
        storage, source, target = MemoryStorage(), "memory:/s", "memory:/t"
        storage.create(source, DATA)
    with pytest.raises(InvalidTableError, match=f"ends at byte {len(DATA)}, before byte {len(DATA) + 1}"):
        copied(storage, source, storage, target, 10, len(DATA) - 9)
    assert storage.head(target) is None


def test_a_full_disk_is_told_and_leaves_nothing(local, monkeypatch):
    storage, source, target = local

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "copy_file_range", full, raising=False)
    with pytest.raises(UnavailableError, match="no space left") as error:
        copied(storage, source, storage, target, 0, 100)
    assert target in error.value.message
    assert storage.head(target) is None


def test_a_stream_without_a_number_is_no_file_of_this_machine():
    target = io.BytesIO()
    copy_range(io.BytesIO(DATA), "memory:/s", target, "memory:/t", 0, 10)
    assert target.getvalue() == DATA[:10]
