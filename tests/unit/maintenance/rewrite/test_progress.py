import pickle
import subprocess
import sys

import pytest

from icekeep.events import SILENT, StepAdvanced, StepUnderWay
from icekeep.maintenance.rewrite.groups import ByteProgress
from icekeep.storage.local.storage import LocalStorage
from kit.changes import Recorder

STEP = "rewriting"


def done(recorder):
    """What is known to be done, or under way where that is more."""
    assert all(event.step == STEP and event.done > 0 for event in recorder.events)
    finished = sum(event.done for event in recorder.events if isinstance(event, StepAdvanced))
    return max([finished, *(event.done for event in recorder.events if isinstance(event, StepUnderWay))])


def copy(storage, source, target):
    with storage.open(source) as read, storage.write(target) as written:
        written.write(read.read(600))
        written.write(read.read())


def test_bytes_of_a_group_count_while_they_are_read_and_written_and_all_once_it_is_finished(tmp_path):
    source, target = (tmp_path / "a").as_uri(), (tmp_path / "b").as_uri()
    (tmp_path / "a").write_bytes(bytes(1000))
    recorder = Recorder()
    progress = ByteProgress(recorder, STEP, 2000, are_workers_here=False)
    storage = progress.counting(LocalStorage())
    with storage.open(source) as stream:
        stream.read(600)
    progress.report()
    assert done(recorder) == 300
    copy(storage, source, target)
    progress.report()
    # More was read than once: what is under way is an estimate.
    assert 300 < done(recorder) < 2000
    progress.finish(1000, 500)
    assert done(recorder) >= 1000
    progress.finish(1000, 500)
    assert done(recorder) == 2000
    progress.report()
    assert done(recorder) == 2000


def test_what_is_under_way_is_never_shown_as_finished(tmp_path):
    (tmp_path / "a").write_bytes(bytes(1000))
    recorder = Recorder()
    progress = ByteProgress(recorder, STEP, 1000, are_workers_here=False)
    storage = progress.counting(LocalStorage())
    for number in range(5):
        copy(storage, (tmp_path / "a").as_uri(), (tmp_path / f"b{number}").as_uri())
    progress.report()
    assert done(recorder) == 990


@pytest.mark.process
def test_workers_of_this_machine_report_by_a_file_each_that_is_gone_in_the_end(tmp_path):
    (tmp_path / "a").write_bytes(bytes(1000))
    recorder = Recorder()
    with ByteProgress(recorder, STEP, 1000, are_workers_here=True) as progress:
        pickled = tmp_path / "storage"
        pickled.write_bytes(pickle.dumps(progress.counting(LocalStorage())))
        worker = (
            "import pickle, sys; from pathlib import Path; storage = pickle.loads(Path(sys.argv[1]).read_bytes())\n"
            "with storage.open(sys.argv[2]) as stream: stream.read()\n"
        )
        subprocess.run([sys.executable, "-c", worker, str(pickled), (tmp_path / "a").as_uri()], check=True)
        progress.report()
        assert done(recorder) == 500
        _, directory = progress.counting(LocalStorage()).__reduce__()[1]
        assert len([*directory.iterdir()]) == 1
    assert not directory.exists()
    # A task that Spark begins again later finds no place for its counts, and works without.
    assert isinstance(pickle.loads(pickled.read_bytes()), LocalStorage)


def test_nothing_is_counted_where_nobody_listens(tmp_path):
    storage = LocalStorage()
    with ByteProgress(SILENT, STEP, 1000, are_workers_here=True) as progress:
        assert progress.counting(storage) is storage
        progress.finish(1000, 500)
