"""Bounds of file_path that leave out a data file of which deletes are (421)."""

import pytest
from msgspec.structs import replace

from icekeep.spec.manifests.structs import FileContent
from icekeep.spec.schema import DELETE_FILE_PATH
from kit.checked_deletes import POSITIONS, checked, made, one_fault, with_files, written
from kit.written_deletes import data_files

LOW, MIDDLE, HIGH = (f"memory://lake/data/{letter}.parquet" for letter in "bdf")


def with_bounds(paths, lower, upper):
    table = made(2)
    file = written(table, POSITIONS, [{"file_path": path, "pos": 0} for path in paths])
    bounds = [None if one is None else {DELETE_FILE_PATH.field_id: one} for one in (lower, upper)]
    kind = {"content": FileContent.POSITION_DELETES, "sort_order_id": None}
    return with_files(table, deletes=[replace(file, **kind, lower_bounds=bounds[0], upper_bounds=bounds[1])])


@pytest.mark.parametrize(
    ("lower", "upper", "recorded", "said"),
    [
        (MIDDLE.encode(), HIGH.encode(), MIDDLE, LOW),
        (MIDDLE.encode(), None, MIDDLE, LOW),
        (LOW.encode(), MIDDLE.encode(), MIDDLE, HIGH),
        (None, MIDDLE[:-4].encode(), MIDDLE[:-4], HIGH),
    ],
    ids=["lower", "lower-only", "upper", "upper-cut"],
)
def test_a_path_outside_of_the_bounds(lower, upper, recorded, said):
    fault = one_fault(with_bounds([LOW, HIGH], lower, upper))
    assert (fault.number, fault.facts["recorded"], fault.facts["found"]) == (421, recorded, None)
    assert repr(said) in fault.detail


def test_the_path_of_a_file_with_one_is_found():
    assert one_fault(with_bounds([LOW], MIDDLE.encode(), HIGH.encode())).facts["found"] == LOW


@pytest.mark.parametrize(
    ("lower", "upper"),
    [
        (LOW.encode(), HIGH.encode()),
        (b"m", b"n"),
        (b"memory://lake/data/b", b"memory://lake/data/f"),
        (b"a", b"memory://lake/data/f.parq\xc3"),
        (None, None),
    ],
    ids=["exact", "cut", "cut-and-not-raised", "cut-in-a-character", "none"],
)
def test_bounds_that_hold_all_paths(lower, upper):
    assert checked(with_bounds([LOW, MIDDLE, HIGH], lower, upper))[0] == []


def test_the_order_of_java_is_one_too():
    high, low = "memory://lake/\U0001f600", "memory://lake/\uffee"
    for lower, upper in ((high, low), (low, high)):
        assert checked(with_bounds([low, high], lower.encode(), upper.encode()))[0] == []


def test_the_data_files_of_the_table_are_named_rightly():
    table = made(2)
    paths = sorted(file.file_path for file in data_files(table))
    assert checked(with_bounds(paths, paths[0].encode(), paths[-1].encode()))[0] == []
