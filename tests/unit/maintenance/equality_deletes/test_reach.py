"""Which deletes reach a data file, said by two numbers, is what the rule says of each pair."""

from hypothesis import given

from icekeep.maintenance.deletes.equality_plan import EqualityDelete, Reach
from icekeep.spec.manifests.structs import FileContent
from icekeep.spec.matched_deletes import reaches
from kit.reaching import CODECS, SPECS, entry, equality, generated_tables


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
