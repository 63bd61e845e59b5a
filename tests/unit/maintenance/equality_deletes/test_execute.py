"""What each task is told."""

from icekeep.maintenance.deletes.equality import ShareWriter
from icekeep.maintenance.deletes.equality_plan import EqualityDelete, Reach
from icekeep.spec.metadata import new_table_metadata
from icekeep.spec.types import STRING
from kit.columns import column, schema_of
from kit.reaching import CODECS, SPECS, columns_of, entry, equality, vector
from kit.storage import MemoryStorage


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
