import pytest
from msgspec.structs import replace

from icekeep.commit.filtering import DataFilesOf, DeleteFilesOf, Matching
from icekeep.errors import UnsupportedError
from icekeep.spec.filters.binding import bind
from icekeep.spec.filters.parsing import parse_where
from icekeep.spec.manifests.structs import ManifestEntry, Status
from icekeep.spec.types import LONG
from icekeep.spec.values import value_to_bytes
from kit.row_deletes import equality_deletes, position_deletes
from kit.tables import BY_KIND, add, data_file, manifests_of, memory_table


def ids(name, low, high, kind="x", **changes):
    bounds = {"lower_bounds": {1: value_to_bytes(LONG, low)}, "upper_bounds": {1: value_to_bytes(LONG, high)}}
    counts = {"value_counts": {1: 10}, "null_value_counts": {1: 0}}
    return replace(data_file(name, 10, (kind,)), **{**counts, **bounds, **changes})


@pytest.fixture
def table():
    return add(memory_table(spec=BY_KIND), ids("a", 1, 10))


def rows(table, where):
    return bind(parse_where(where), table.metadata.schema)


def entry(file):
    return ManifestEntry(status=Status.EXISTING, data_file=file, sequence_number=1)


@pytest.mark.parametrize(
    ("where", "file", "manifest"),
    [
        ("TRUE", True, True),
        ("kind = 'x'", True, True),
        ("kind = 'y'", False, False),
        ("id = 3", True, True),
        ("id = 30", False, True),
        ("kind = 'y' OR id > 3", True, True),
        ("kind = 'x' AND id > 30", False, True),
    ],
)
def test_a_file_matches_unless_its_partition_or_its_bounds_rule_that_out(table, where, file, manifest):
    matching = Matching(table.metadata, rows(table, where))
    assert matching.entry(entry(ids("a", 1, 10))) is file
    (row,) = manifests_of(table)
    assert matching.manifest(row) is manifest
    # Without summaries nothing is ruled out.
    assert matching.manifest(replace(row, partitions=None))


@pytest.mark.parametrize("where", ["kind = 'x'", "id < 11", "kind = 'y' OR id >= 1", "TRUE"])
def test_data_files_are_selected_where_partition_and_bounds_together_say_that_all_rows_match(table, where):
    assert DataFilesOf(rows(table, where), table.metadata).entry(entry(ids("a", 1, 10)))


@pytest.mark.parametrize("where", ["id < 10", "score > 1", "kind = 'x' AND id > 1"])
def test_a_data_file_that_may_match_in_part_is_refused(table, where):
    selection = DataFilesOf(rows(table, where), table.metadata)
    with pytest.raises(UnsupportedError, match="/a' may hold rows that match"):
        selection.entry(entry(ids("a", 1, 10)))
    assert not selection.entry(
        entry(ids("b", 20, 30, "y", null_value_counts={1: 0, 3: 10}, value_counts={1: 10, 3: 10}))
    )


@pytest.mark.parametrize(("where", "selected"), [("kind = 'x'", True), ("id < 11", False), ("TRUE", True)])
def test_delete_files_are_selected_by_partition_alone(table, where, selected):
    selection = DeleteFilesOf(rows(table, where), table.metadata)
    deletes = [position_deletes("p", "a", partition=("x",)), equality_deletes("e", partition=("x",))]
    with_bounds = replace(ids("e", 1, 10), content=deletes[1].content, equality_ids=(1,))
    assert [selection.entry(entry(f)) for f in (*deletes, with_bounds)] == [selected] * 3
