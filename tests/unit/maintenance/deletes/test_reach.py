"""Which equality deletes reach a data file, said by two numbers, and what each task gets of them."""

from hypothesis import given

from icekeep.maintenance.deletes.equality import ShareWriter
from icekeep.maintenance.deletes.equality_plan import EqualityDelete, Reach
from icekeep.spec.manifests.structs import FileContent
from icekeep.spec.matched_deletes import reaches
from icekeep.spec.metadata import new_table_metadata
from icekeep.spec.types import STRING
from kit.columns import column, schema_of
from kit.reaching import CODECS, SPECS, columns_of, entry, equality, generated_tables, vector
from kit.storage import MemoryStorage


def bytes_of(entry):
    file = entry.data_file
    return CODECS[file.spec_id].encode(file.partition)


def reaching(deletes, data):
    reach = Reach.of([EqualityDelete(delete, bytes_of(delete)) for delete in deletes], SPECS)
    found = reach.of_file(data.data_file.spec_id, bytes_of(data), data.sequence_number)
    return [delete.file_path for scope, first in found for delete in reach.scopes[scope][first:]]


@given(generated_tables())
def test_the_deletes_of_a_data_file_are_those_that_reach_it(table):
    data, deletes = table
    some = [delete for delete in deletes if delete.data_file.content is FileContent.EQUALITY_DELETES]
    for one in data:
        expected = [delete.data_file.file_path for delete in some if reaches(delete, one, SPECS)]
        assert sorted(reaching(some, one)) == sorted(expected)


def test_a_delete_spares_its_own_commit_and_what_came_later():
    deletes = [equality(f"e{number}", number) for number in (5, 3, 4)]
    found = {number: reaching(deletes, entry("a", number)) for number in (2, 3, 4, 5)}
    assert found == {2: ["e3", "e4", "e5"], 3: ["e4", "e5"], 4: ["e5"], 5: []}


def test_deletes_of_unpartitioned_specs_are_for_every_partition():
    deletes = [equality("e", 5, spec_id=0, partition=()), equality("f", 4), equality("g", 5, partition=("y",))]
    assert reaching(deletes, entry("a", 3)) == ["e", "f"]
    assert reaching(deletes, entry("a", 3, spec_id=0, partition=())) == ["e"]


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
