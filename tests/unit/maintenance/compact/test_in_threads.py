"""What a compaction does in threads of its own process: no more at once than there are turns, and nothing after an interrupt."""

import signal
import threading
from contextlib import contextmanager

import pytest

from icekeep.maintenance.compact.job import compact
from icekeep.maintenance.deletes.job import rewrite_position_deletes
from icekeep.planning.spark import workers as module
from icekeep.planning.spark.workers import Turns, thread_workers
from icekeep.storage.local.storage import LocalStorage
from icekeep.storage.wrappers import StoppingStorage
from icekeep.tables.read import read_table
from icekeep.tables.verbs import append
from kit.deletes import data_files, delete_positions
from kit.lake import Lake, events, multiset
from kit.runtime import no_spark

ALL = {"rewrite-all": "true"}


def rows(table):
    return multiset(read_table(table))


def parquet_files(lake):
    return {path for path in lake.files_on_disk() if path.suffix == ".parquet"}


@pytest.fixture
def lake(tmp_path):
    return Lake(tmp_path)


@pytest.fixture
def taken(monkeypatch):
    """What each task in threads took of the turns, and how many there were."""
    found = []

    class Heard(Turns):
        @contextmanager
        def taken(self, count, most):
            found.append((count, most))
            with super().taken(count, most):
                yield

    monkeypatch.setattr(module, "TURNS", Heard())
    return found


def test_each_group_of_a_binpack_waits_for_its_turn(lake, taken):
    compact(lake.filled(), no_spark, options=ALL)
    assert taken == [(1, thread_workers().slots)] * 3


def test_sort_takes_a_turn_for_each_concurrent_range(lake, taken, monkeypatch):
    monkeypatch.setattr("icekeep.planning.spark.workers.processors_count", lambda: 2)
    table = append(lake.create(partition_by=()), [events(n, 500) for n in range(8)])
    compact(table, no_spark, sort_order="id", options=ALL | {"target-file-size-bytes": "12000"})
    assert set(taken) == {(2, 2)}


def test_groups_of_position_deletes_wait_for_their_turns_too(lake, taken):
    table = lake.filled()
    for number in range(2):
        for file in data_files(table):
            delete_positions(table, [(file.file_path, number)])
    rewrite_position_deletes(lake.load(), no_spark, options=ALL)
    assert taken
    assert set(taken) == {(1, thread_workers().slots)}


@pytest.mark.parametrize("arguments", [{}, {"sort_order": "id"}], ids=["binpack", "sort"])
def test_interrupt_stops_writes_and_leaves_no_files(lake, monkeypatch, arguments):
    table = append(lake.create(partition_by=()), [events(n, 500) for n in range(8)])
    before, files = rows(table), parquet_files(lake)
    stopped, interrupting, written_late = threading.Event(), threading.Lock(), []
    stop, write = StoppingStorage.stop, LocalStorage.write

    @contextmanager
    def watched(storage, location):
        with write(storage, location) as stream:
            yield Watched(stream) if location.endswith(".parquet") else stream

    class Watched:
        """A stream whose first bytes are followed by Ctrl-C."""

        def __init__(self, stream):
            self._stream, self._late_count = stream, 0

        def write(self, data):
            if stopped.is_set():
                # One may be on its way just then.
                self._late_count += 1
                written_late.append(self._late_count)
            elif interrupting.acquire(blocking=False):
                signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
            # The main thread stops what is under way while this one is in the middle of its bytes.
            assert stopped.wait(30)
            return self._stream.write(data)

        def __getattr__(self, name):
            return getattr(self._stream, name)

    def stop_and_tell(storage):
        stop(storage)
        stopped.set()

    monkeypatch.setattr(StoppingStorage, "stop", stop_and_tell)
    monkeypatch.setattr(LocalStorage, "write", watched)
    with pytest.raises(KeyboardInterrupt):
        compact(table, no_spark, options=ALL, **arguments)
    assert all(late_count == 1 for late_count in written_late)
    assert parquet_files(lake) == files
    assert rows(lake.load()) == before
    assert lake.load().metadata.current_snapshot_id == table.metadata.current_snapshot_id
