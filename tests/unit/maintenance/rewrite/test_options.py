"""Sizes, as in Iceberg's TestSizeBasedFileRewritePlanner, and the progress of groups."""

import pickle
import subprocess
import sys
from operator import attrgetter
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icekeep.events import StepAdvanced, StepUnderWay
from icekeep.maintenance.compact.options import RewriteDataFilesOptions
from icekeep.maintenance.rewrite.groups import ByteProgress
from icekeep.maintenance.rewrite.options import (
    FileSizes,
    expected_output_files,
    file_sizes,
    in_job_order,
    input_split_bytes,
)
from icekeep.storage.local.storage import LocalStorage
from kit.cases import for_each
from kit.changes import Recorder

MIB = 1 << 20
SIZES = FileSizes(target_bytes=1000, min_bytes=750, max_bytes=1800)


@for_each(
    ("input_bytes", "files"),
    [
        (0, 1),
        (1, 1),
        (600, 1),
        (751, 1),
        (999, 1),
        (1000, 1),
        # A rest that is less than a tenth of each file is spread over them.
        (1099, 1),
        (1100, 2),
        (2199, 2),
        (2200, 3),
        (3000, 3),
        (10_750, 10),
        # A rest of a good size is a file of its own, however little it would add to the others.
        (10_751, 11),
        (1751, 2),
        (100_750, 100),
        (100_751, 101),
    ],
)
def test_the_number_of_files_is_that_of_icebergs_planner(input_bytes, files):
    assert expected_output_files(input_bytes, SIZES) == files


def test_remainder_does_not_exceed_the_write_limit_of_a_file():
    narrow = FileSizes(target_bytes=1000, min_bytes=750, max_bytes=1050)
    assert narrow.write_max_bytes == 1025
    assert expected_output_files(1024, narrow) == 1
    assert expected_output_files(1025, narrow) == 2


@for_each(
    ("input_bytes", "split_bytes"),
    [
        (0, 50 * MIB),
        (10 * MIB, 50 * MIB),
        (50 * MIB, 50 * MIB + 5 * 1024),
        (54 * MIB, 54 * MIB + 5 * 1024),
        (145 * MIB, 50 * MIB),
        (104 * MIB, 52 * MIB + 5 * 1024),
    ],
)
def test_task_takes_at_least_the_target_size(input_bytes, split_bytes):
    sizes = FileSizes(target_bytes=50 * MIB, min_bytes=5 * MIB, max_bytes=100 * MIB)
    assert input_split_bytes(input_bytes, sizes) == split_bytes


def test_a_group_a_little_above_the_target():
    # TestSizeBasedFileRewritePlanner.testInputSplitSizeLowerBound: four files of 145 MB, a rest of more than a tenth.
    sizes = FileSizes(target_bytes=512 * MIB, min_bytes=256 * MIB, max_bytes=768 * MIB)
    assert expected_output_files(580 * MIB, sizes) == 2
    assert input_split_bytes(580 * MIB, sizes) == 512 * MIB


def test_a_task_takes_no_more_than_a_writer_puts_into_one_file():
    sizes = FileSizes(target_bytes=1000, min_bytes=750, max_bytes=1800)
    assert input_split_bytes(1090, sizes) == sizes.write_max_bytes == 1400


@st.composite
def file_size_options(draw):
    target = draw(st.integers(10, 10**6))
    least = draw(st.none() | st.integers(0, target - 1))
    most = draw(st.none() | st.integers(target + 1, 3 * target))
    return file_sizes(
        RewriteDataFilesOptions(target_file_size_bytes=target, min_file_size_bytes=least, max_file_size_bytes=most), 1
    )


@given(file_size_options(), st.integers(0, 10**8))
def test_expected_files_are_never_too_large(sizes, input_bytes):
    files = expected_output_files(input_bytes, sizes)
    assert files >= 1
    average = input_bytes / files
    assert average <= max(sizes.target_bytes, min(1.1 * sizes.target_bytes, sizes.write_max_bytes))
    assert (files - 1) * sizes.target_bytes < max(input_bytes, 1)
    assert sizes.target_bytes <= input_split_bytes(input_bytes, sizes) <= sizes.write_max_bytes


def test_a_factor_scales_what_is_written():
    assert expected_output_files(4000, SIZES, 0.5) == 2
    assert expected_output_files(4000, SIZES, 2.0) == 8
    assert expected_output_files(10, SIZES, 0.001) == 1


def test_equal_groups_stay_in_the_order_of_planning():
    groups = [SimpleNamespace(number=n, bytes=b, files=f) for n, (b, f) in enumerate([(5, 1), (9, 1), (5, 3)])]
    measures = attrgetter("bytes"), attrgetter("files")
    orders = ("none", "bytes-asc", "bytes-desc", "files-asc", "files-desc")
    numbers = {order: [one.number for one in in_job_order(groups, order, *measures)] for order in orders}
    assert numbers == {
        "none": [0, 1, 2],
        "bytes-asc": [0, 2, 1],
        "bytes-desc": [1, 0, 2],
        "files-asc": [0, 1, 2],
        "files-desc": [2, 0, 1],
    }


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


def test_bytes_in_progress_are_estimates_until_finished(tmp_path):
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
def test_workers_report_by_a_file_each(tmp_path):
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
