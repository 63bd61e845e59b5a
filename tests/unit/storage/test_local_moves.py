"""Many files moved at once on this machine: what is flushed when, and what a crash or a broken disk leaves."""

import errno
import os
from contextlib import suppress

import pytest

from icekeep.storage.base import MoveStatus
from icekeep.storage.local.storage import LocalStorage


@pytest.fixture
def storage():
    return LocalStorage()


def files(directory):
    return sorted(
        os.path.relpath(os.path.join(path, name), directory) for path, _, names in os.walk(directory) for name in names
    )


def statuses(outcomes):
    return [outcome.status for outcome in outcomes]


class Watched(LocalStorage):
    """Notes each step; `stops_at` is the number of the step at which the process dies, `breaks_at` at which the disk does."""

    def __init__(self, stops_at=None, breaks_at=None):
        super().__init__()
        self.steps = []
        self.stops_at, self.breaks_at = stops_at, breaks_at

    def _flush(self, file_descriptor):
        self._step("flush", os.path.basename(os.readlink(f"/proc/self/fd/{file_descriptor}")))
        super()._flush(file_descriptor)

    def _link(self, source_path, target_path):
        self._step("link", os.path.basename(target_path))
        super()._link(source_path, target_path)

    def _step(self, kind, name):
        self.steps.append((kind, name))
        if len(self.steps) == self.stops_at:
            raise KeyboardInterrupt
        if len(self.steps) == self.breaks_at:
            raise OSError(errno.EIO, "Input/output error")


@pytest.fixture
def moves(tmp_path):
    """Six files of two directories, to be moved to two others, of which one exists."""
    (tmp_path / "trash" / "old").mkdir(parents=True)
    made = []
    for directory in ("a", "b"):
        (tmp_path / "t" / directory).mkdir(parents=True)
        for number in range(3):
            name = f"{directory}{number}"
            (tmp_path / "t" / directory / name).write_text(name)
            target = "old" if number < 2 else "new"
            made.append((f"file:{tmp_path}/t/{directory}/{name}", f"file:{tmp_path}/trash/{target}/{name}"))
    return made


MOVED = ["trash/new/a2", "trash/new/b2", "trash/old/a0", "trash/old/a1", "trash/old/b0", "trash/old/b1"]


def test_each_target_directory_is_flushed_once_after_links(tmp_path, moves):
    storage = Watched()
    assert statuses(storage.move_many(moves)) == [MoveStatus.MOVED] * 6
    kinds = [kind for kind, _ in storage.steps]
    assert sorted(name for kind, name in storage.steps if kind == "flush") == ["new", "old", "trash"]
    assert kinds[-2:] == ["flush", "flush"]
    assert kinds.count("link") == 6
    # A directory that is made is flushed into the one above it before a file gets a name in it.
    assert storage.steps.index(("flush", "trash")) < storage.steps.index(("link", "a2"))
    assert files(tmp_path) == MOVED


@pytest.mark.parametrize("stops_at", range(1, 10))
def test_crash_at_any_step_loses_no_file_and_moves_finish(tmp_path, moves, stops_at):
    with pytest.raises(KeyboardInterrupt):
        Watched(stops_at=stops_at).move_many(moves)
    assert {os.path.basename(name) for name in files(tmp_path)} == {os.path.basename(name) for name in MOVED}
    outcomes = LocalStorage().move_many(moves)
    assert set(statuses(outcomes)) <= {MoveStatus.MOVED, MoveStatus.MISSING}
    assert files(tmp_path) == MOVED
    assert all((tmp_path / name).read_text() == os.path.basename(name) for name in MOVED)


def test_a_crash_between_the_removals_of_old_names_is_finished(tmp_path, moves, monkeypatch, storage):
    unlink, removed = os.unlink, []

    def stop_at_third(path):
        if len(removed) == 2:
            raise KeyboardInterrupt
        removed.append(path)
        unlink(path)

    monkeypatch.setattr(os, "unlink", stop_at_third)
    with pytest.raises(KeyboardInterrupt):
        storage.move_many(moves)
    monkeypatch.undo()
    assert sorted(statuses(storage.move_many(moves)), key=str) == [MoveStatus.MISSING] * 2 + [MoveStatus.MOVED] * 4
    assert files(tmp_path) == MOVED


@pytest.mark.parametrize("breaks_at", range(1, 10))
def test_disk_error_fails_its_moves_and_keeps_old_names(tmp_path, moves, breaks_at):
    outcomes = Watched(breaks_at=breaks_at).move_many(moves)
    failed = [o for o in outcomes if o.status is MoveStatus.FAILED]
    assert failed
    assert set(statuses(outcomes)) <= {MoveStatus.MOVED, MoveStatus.FAILED}
    assert all("input/output error" in outcome.reason for outcome in failed)
    assert all(os.path.exists(outcome.source.removeprefix("file:")) for outcome in failed)
    assert set(statuses(LocalStorage().move_many(moves))) <= {MoveStatus.MOVED, MoveStatus.MISSING}
    assert files(tmp_path) == MOVED


def test_source_unlinked_by_other_process_counts_as_moved(tmp_path, moves, monkeypatch, storage):
    flush = storage._flush_directory
    (tmp_path / "trash" / "new").mkdir()

    def other_moves(directory):
        for source, _ in moves[:2]:
            with suppress(FileNotFoundError):
                os.unlink(source.removeprefix("file:"))
        flush(directory)

    monkeypatch.setattr(storage, "_flush_directory", other_moves)
    assert statuses(storage.move_many(moves)) == [MoveStatus.MOVED] * 6
    assert files(tmp_path) == MOVED


def test_a_file_is_not_moved_to_itself_by_another_spelling(tmp_path, storage):
    """Its only name would be taken for a second one, and be removed."""
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "file").write_bytes(b"data")
    (tmp_path / "linked").symlink_to(tmp_path / "real")
    others = [f"{tmp_path}/linked/file", f"file://{tmp_path}/real/file", f"{tmp_path}/real/./file"]
    outcomes = [storage.move_many([(f"{tmp_path}/real/file", other)])[0] for other in others]
    assert statuses(outcomes) == [MoveStatus.TAKEN] * 3
    with pytest.raises(FileExistsError):
        storage.move(f"{tmp_path}/real/file", f"{tmp_path}/linked/file")
    assert (tmp_path / "real" / "file").read_bytes() == b"data"


def test_a_link_is_moved_and_what_it_points_at_stays(tmp_path, storage):
    (tmp_path / "file").write_bytes(b"data")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    assert statuses(storage.move_many([(f"{tmp_path}/link", f"{tmp_path}/moved")])) == [MoveStatus.MOVED]
    assert os.readlink(tmp_path / "moved") == str(tmp_path / "file")
    assert files(tmp_path) == ["file", "moved"]


def test_a_directory_is_not_moved(tmp_path, storage):
    (tmp_path / "dir").mkdir()
    (tmp_path / "dir" / "file").write_bytes(b"")
    (outcome,) = storage.move_many([(f"{tmp_path}/dir", f"{tmp_path}/moved")])
    assert (outcome.status, "\n" in outcome.reason) == (MoveStatus.FAILED, False)
    assert files(tmp_path) == ["dir/file"]


def test_target_below_file_fails_and_source_below_is_missing(tmp_path, storage):
    for name in ("a", "b"):
        (tmp_path / name).write_bytes(b"")
    outcomes = storage.move_many([(f"{tmp_path}/a", f"{tmp_path}/b/c"), (f"{tmp_path}/a/d", f"{tmp_path}/e")])
    assert statuses(outcomes) == [MoveStatus.FAILED, MoveStatus.MISSING]
    assert files(tmp_path) == ["a", "b"]


@pytest.mark.parametrize("number", [errno.EXDEV, errno.EPERM, errno.EOPNOTSUPP])
def test_between_two_mounts_no_move_is_possible(tmp_path, storage, monkeypatch, number):
    """To try again would not help."""
    (tmp_path / "a").write_bytes(b"data")

    def refuse(*names, **told):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "link", refuse)
    [outcome] = storage.move_many([(f"{tmp_path}/a", f"{tmp_path}/b")])
    assert (outcome.status, files(tmp_path)) == (MoveStatus.IMPOSSIBLE, ["a"])


def test_no_move_leads_to_another_store(tmp_path, storage):
    (tmp_path / "a").write_bytes(b"data")
    assert statuses(storage.move_many([(f"{tmp_path}/a", "s3://bucket/a")])) == [MoveStatus.IMPOSSIBLE]
    assert files(tmp_path) == ["a"]
