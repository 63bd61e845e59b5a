"""How data files are shared out to tasks, and what each task is told."""

from hypothesis import given
from hypothesis import strategies as st

from icekeep.maintenance.equality_deletes.execute import ShareWriter, shares
from icekeep.maintenance.equality_deletes.reach import EqualityDelete, Reach
from icekeep.spec.metadata import new_table_metadata
from icekeep.spec.types import STRING
from kit.columns import column, schema_of
from kit.reaching import CODECS, SPECS, columns_of, entry, equality, vector
from kit.storage import MemoryStorage

MIB = 2**20


@given(st.lists(st.integers(0, 2**30), min_size=1, max_size=60), st.integers(1, 12))
def test_neighbours_stay_together_and_every_file_is_in_one_share(sizes, most):
    rows = [{"number": n, "file_size_in_bytes": size} for n, size in enumerate(sizes)]
    found = shares(rows, most)
    assert [row for share in found for row in share] == rows
    assert all(found)
    assert len(found) <= most


@given(st.integers(1, 200), st.integers(1, 12))
def test_files_of_one_size_are_dealt_out_evenly(count, most):
    counts = [len(share) for share in shares([{"file_size_in_bytes": 5 * MIB}] * count, most)]
    assert max(counts) - min(counts) <= 1
    assert len(counts) == min(count, most)


def test_a_large_file_does_not_drag_others_along():
    rows = [{"file_size_in_bytes": size * MIB} for size in (1, 1, 1000, 1, 1)]
    assert [len(share) for share in shares(rows, 3)] == [2, 1, 2]


def writer(*deletes):
    schema = schema_of(column(1, "id", STRING), column(2, "kind", STRING))
    metadata = new_table_metadata(schema=schema, spec=SPECS[0], location="memory:/t", table_uuid="u", now_ms=0)
    known = [EqualityDelete(one, CODECS[one.data_file.spec_id].encode(one.data_file.partition)) for one in deletes]
    return ShareWriter(
        metadata=metadata,
        reach=Reach.of(known, SPECS),
        delete_format="PARQUET",
        granularity="file",
        operation_id="run",
        storage=MemoryStorage(),
    )


def test_a_task_has_the_deletes_of_its_data_files_and_no_others():
    where = {"spec_id": 0, "partition": ()}
    old, new = equality("old", 2, **where), equality("new", 4, **where)
    elsewhere = equality("elsewhere", 9, partition=("y",))
    v = vector(3, "a", **where)
    rows = [{**columns_of(entry(path, n, **where)), "deletes": []} for n, path in enumerate("abc", start=1)]
    rows[0]["deletes"] = rows[1]["deletes"] = [columns_of(v)]
    task = writer(elsewhere, new, old).task(rows, 7)
    assert [[file.file_path for file in scope] for scope in task.equality_deletes] == [["old", "new"]]
    assert [file.reach for file in task.files] == [((0, 0),), ((0, 1),), ((0, 1),)]
    assert [file.position_deletes for file in task.files] == [(0,), (0,), ()]
    assert [one.data_file.content_offset for one in task.position_deletes] == [4]
    assert task.partition_id == 7
