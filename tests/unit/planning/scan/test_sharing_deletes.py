"""The rows of a task that share a list of what is applied to them."""

from hypothesis import given
from hypothesis import strategies as st

from icekeep.planning.scan.tasks import sharing_deletes
from icekeep.spec.collections import PositionSet, is_stretch, unpacked_positions
from icekeep.spec.manifests.structs import FileContent


def delete(number, content=FileContent.EQUALITY_DELETES, partition=b"p", path=None, offset=None, only=None):
    return {
        "content": int(content),
        "file_path": path or f"d{number}",
        "spec_id": 1,
        "partition": partition,
        "sequence_number": number,
        "content_offset": offset,
        "referenced_data_file": only,
    }


DELETES = [
    *(delete(number) for number in range(5)),
    *(delete(number, partition=b"q", path=f"q{number}") for number in range(3)),
    *(
        delete(1, FileContent.POSITION_DELETES, path="v.puffin", offset=offset, only=only)
        for offset, only in [(4, "a"), (9, "b"), (9, "c")]
    ),
    delete(7, FileContent.POSITION_DELETES, path="pos"),
]


def read_back(task):
    """What each row of a task has."""
    together = [one for row in task for one in row["deletes"]]
    return [(row["start"], [together[n] for n in unpacked_positions(PositionSet, row["reached_by"])]) for row in task]


@given(st.lists(st.lists(st.sampled_from(DELETES), unique_by=repr, max_size=6), min_size=1, max_size=6))
def test_each_row_has_what_it_had(rows):
    task = [{"start": start, "deletes": deletes} for start, deletes in enumerate(rows)]
    shared = sharing_deletes(task)
    # In whatever order the rows come.
    for some in (shared, shared[::-1]):
        found = dict(read_back(some))
        for start, deletes in enumerate(rows):
            assert sorted(map(repr, found[start])) == sorted(map(repr, deletes))
    assert sum(len(row["deletes"]) for row in shared) == len({repr(one) for deletes in rows for one in deletes})


def test_those_of_equality_come_first_and_what_is_newer_than_a_file_is_a_stretch():
    equality = DELETES[:5]
    task = [{"start": n, "deletes": [DELETES[-1], *equality[n:]]} for n in range(5)]
    first, *_ = shared = sharing_deletes(task)
    assert [one["file_path"] for one in first["deletes"]] == ["d0", "d1", "d2", "d3", "d4", "pos"]
    assert all(is_stretch(unpacked_positions(PositionSet, row["reached_by"])) for row in shared)
    assert [row["deletes"] for row in shared[1:]] == [[]] * 4
