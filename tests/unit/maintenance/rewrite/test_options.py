"""Examples of Iceberg's TestSizeBasedFileRewritePlanner, and its rules."""

from operator import attrgetter
from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st

from icekeep.maintenance.compact.options import RewriteDataFilesOptions
from icekeep.maintenance.rewrite.options import (
    FileSizes,
    expected_output_files,
    file_sizes,
    in_job_order,
    input_split_bytes,
)
from kit.cases import for_each

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


def test_a_rest_is_not_spread_beyond_what_a_writer_puts_into_one_file():
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
def test_a_task_takes_what_makes_a_file_and_no_less_than_the_target(input_bytes, split_bytes):
    sizes = FileSizes(target_bytes=50 * MIB, min_bytes=5 * MIB, max_bytes=100 * MIB)
    assert input_split_bytes(input_bytes, sizes) == split_bytes


def test_a_group_a_little_above_the_target_makes_two_files_by_tasks_of_the_target():
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
def test_expected_files_are_never_too_large_and_only_by_a_little_above_the_target(sizes, input_bytes):
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
