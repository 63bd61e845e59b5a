"""Files that tasks write, known by name from before they are made: what the driver never heard of goes, nothing else does."""

import pickle
from unittest import mock

import pytest

from icekeep.events import SILENT, Warned
from icekeep.maintenance.rewrite.run import WrittenFiles, discard_files
from icekeep.spec.properties import own_directory
from icekeep.storage.base import DeleteOutcome, DeleteStatus
from kit.lake import Lake


@pytest.fixture
def lake(tmp_path) -> Lake:
    return Lake(tmp_path)


@pytest.fixture
def table(lake: Lake):
    return lake.filled()


def data(table, name: str) -> str:
    """Where a run puts a file, whose name has the run's in it."""
    return f"{table.metadata.location}/data/run-{name}"


def names(table) -> list[str]:
    directory = own_directory(table.metadata, "runs/run/written")
    return sorted(file.location.rpartition("/")[2].removeprefix("run-") for file in table.storage.list(directory))


def write(storage, location: str) -> None:
    with storage.write(location) as stream:
        stream.write(b"rows")


def test_a_name_is_told_before_the_file_is_made_and_goes_with_it(table) -> None:
    written = WrittenFiles(table, "run", SILENT)
    # As it is sent to executors.
    storage = pickle.loads(pickle.dumps(written.naming(table.storage)))
    with storage.write(data(table, "a.parquet")) as stream:
        assert names(table) == ["a.parquet"]
        stream.write(b"rows")
    assert names(table) == ["a.parquet"]
    storage.delete_many([data(table, "a.parquet")])
    assert names(table) == []


def test_no_file_is_made_whose_name_cannot_be_told(table) -> None:
    written = WrittenFiles(table, "run", SILENT)
    storage = written.naming(table.storage)
    write(storage, data(table, "a.parquet"))
    table.storage.delete_many([data(table, "a.parquet")])
    # The name is taken: nobody would know of another file.
    with pytest.raises(FileExistsError):
        write(storage, data(table, "a.parquet"))
    assert table.storage.head(data(table, "a.parquet")) is None


def test_a_file_that_a_task_fails_to_write_leaves_no_name(table) -> None:
    storage = WrittenFiles(table, "run", SILENT).naming(table.storage)
    with pytest.raises(ZeroDivisionError), storage.write(data(table, "a.parquet")):
        _ = 1 // 0
    assert names(table) == []
    assert table.storage.head(data(table, "a.parquet")) is None


def test_what_lies_below_the_own_directory_is_not_told(table) -> None:
    storage = WrittenFiles(table, "run", SILENT).naming(table.storage)
    write(storage, own_directory(table.metadata, "runs/run/moves"))
    assert names(table) == []


def test_files_of_lost_attempts_are_removed(table) -> None:
    with WrittenFiles(table, "run", SILENT) as written:
        storage = written.naming(table.storage)
        for name in ("heard", "committed", "unheard"):
            write(storage, data(table, name))
        written.report([data(table, "heard"), data(table, "committed")])
        written.settle([data(table, "committed")])
        assert names(table) == ["heard", "unheard"]
    assert names(table) == ["heard"]
    assert table.storage.head(data(table, "unheard")) is None
    assert all(table.storage.head(data(table, name)) for name in ("heard", "committed"))


def test_an_error_of_the_run_removes_the_same(table) -> None:
    def interrupted() -> None:
        with WrittenFiles(table, "run", SILENT) as written:
            storage = written.naming(table.storage)
            write(storage, data(table, "heard"))
            write(storage, data(table, "unheard"))
            written.report([data(table, "heard")])
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert names(table) == ["heard"]
    assert table.storage.head(data(table, "heard")) is not None
    assert table.storage.head(data(table, "unheard")) is None


def test_the_name_of_a_file_that_may_still_be_made_stays(table) -> None:
    """A task that is cancelled ends some time later."""
    with WrittenFiles(table, "run", SILENT) as written:
        written.naming(table.storage)
        directory = own_directory(table.metadata, "runs/run/written")
        table.storage.create(f"{directory}/run-late", data(table, "late").encode())
    assert names(table) == ["late"]


def test_a_run_that_has_told_no_task_asks_the_store_nothing(table) -> None:
    with WrittenFiles(table, "run", SILENT) as written:
        written.report([data(table, "a")])
        with mock.patch.object(type(table.storage), "list", side_effect=AssertionError):
            written.settle([data(table, "a")])
            written.remove_unreported()


def test_what_is_discarded_is_gone_with_its_name(table) -> None:
    with WrittenFiles(table, "run", SILENT) as written:
        write(written.naming(table.storage), data(table, "a"))
        written.report([data(table, "a")])
        written.discard([data(table, "a")])
    assert names(table) == []
    assert table.storage.head(data(table, "a")) is None


def test_name_stays_if_deletion_does_not_tell_what_existed(table) -> None:
    """As object stores do, whose bulk deletion does not tell what was there."""
    deleted = lambda _, locations: [DeleteOutcome(location, DeleteStatus.DELETED) for location in locations]  # noqa: E731
    with WrittenFiles(table, "run", SILENT) as written:
        storage = written.naming(table.storage)
        write(storage, data(table, "there"))
        directory = own_directory(table.metadata, "runs/run/written")
        table.storage.create(f"{directory}/run-late", data(table, "late").encode())
        asked: list[str] = []
        with mock.patch.object(
            type(table.storage), "delete_many", lambda one, some: asked.extend(some) or deleted(one, some)
        ):
            written.remove_unreported()
    assert asked == [data(table, "there"), f"{directory}/run-there"]


def test_a_name_that_is_not_that_of_its_file_removes_nothing(table) -> None:
    with WrittenFiles(table, "run", SILENT) as written:
        [live, *_] = [file.location for file in table.storage.list(f"{table.metadata.location}/data")]
        write(written.naming(table.storage), data(table, "unheard"))
        directory = own_directory(table.metadata, "runs/run/written")
        table.storage.create(f"{directory}/other", live.encode())
        table.storage.create(f"{directory}/torn", b"\xff")
        # Whoever may write below the table's location can write the name of any file.
        strange = f"{table.metadata.location}-2/data/strange"
        table.storage.create(strange, b"rows of another table")
        table.storage.create(f"{directory}/strange", strange.encode())
    assert names(table) == ["other", "strange", "torn"]
    assert table.storage.head(live) is not None
    assert table.storage.head(strange) is not None
    assert table.storage.head(data(table, "unheard")) is None


class Storage:
    def __init__(self, denied):
        self.denied = denied

    def delete_many(self, locations):
        return [
            DeleteOutcome(one, DeleteStatus.FAILED, "the store denies access")
            if one in self.denied
            else DeleteOutcome(one, DeleteStatus.DELETED)
            for one in sorted(locations)
        ]


class Heard(list):
    on = list.append


def test_files_that_cannot_be_removed_are_warned_of():
    heard = Heard()
    discard_files(Storage({"s3://b/2", "s3://b/3"}), ["s3://b/1", "s3://b/2", "s3://b/3", "s3://b/3"], heard)
    (warning,) = heard
    assert isinstance(warning, Warned)
    assert warning.message.startswith("2 new files")
    assert "'s3://b/2'" in warning.message
    assert "the store denies access" in warning.message


def test_nothing_is_said_of_files_that_are_gone():
    heard = Heard()
    discard_files(Storage(set()), ["s3://b/1"], heard)
    assert heard == []
