"""What a change asks about single files goes by questions, which a reader puts to many manifests at once."""

import pytest

from icekeep.commit.changes.deletes import RowDelta
from icekeep.commit.changes.files import AppendFiles, CherryPick, OverwriteFiles
from icekeep.commit.retry import commit
from icekeep.errors import ConflictError, UsageError
from icekeep.planning import manifest_lists as list_columns
from icekeep.planning.commit_readers import SparkManifestReader
from icekeep.spec.collections import growing
from kit.cases import for_each
from kit.no_spark import no_spark
from kit.row_deletes import add_deletes, deletion_vector, equality_deletes, path_of, position_deletes
from kit.sharing import SharingReader
from kit.tables import add, data_file, entries_of, live, memory_table
from unit.commit.changes.test_cherry_pick import stage


class Elsewhere(SharingReader):
    """Fails where entries are read in this process, as every manifest was, one after the other; some may be."""

    def __init__(self, storage, *allowed):
        super().__init__(storage)
        self.allowed = {*allowed}

    def entries(self, manifest, metadata):
        assert manifest.added_snapshot_id in self.allowed, f"{manifest.manifest_path!r} is read by the driver"
        return super().entries(manifest, metadata)


def committed(table, change, *allowed):
    reader = Elsewhere(table.storage, *allowed)
    return commit(table, change, runtime=table.catalog.runtime, reader=reader).table


def test_whether_files_of_a_pick_are_live_is_asked_of_all_manifests_at_once():
    table = add(add(memory_table(), "a"), "b")
    table, picked = stage(table, AppendFiles(files=(data_file("p"),)))
    table, again = stage(add(table, "c"), AppendFiles(files=(data_file("p"), data_file("q"))))
    table = committed(add(table, "d"), CherryPick(picked.snapshot_id), picked.snapshot_id)
    assert live(table)["p"] == 1
    with pytest.raises(UsageError, match=r"its data file '.*/p' is in the table already"):
        committed(table, CherryPick(again.snapshot_id), again.snapshot_id)


def test_what_positions_are_deleted_of_and_the_vectors_that_are_there_are_asked_for():
    table = add(add(memory_table(format_version=3), "a", "b"), "c")
    table = add_deletes(table, deletion_vector("v", "a"))
    start = table.metadata.current_snapshot_id
    of_b = RowDelta(added_deletes=(deletion_vector("w", "b"),), starting_snapshot_id=start)
    of_a = RowDelta(added_deletes=(deletion_vector("w", "a"),), starting_snapshot_id=start)
    of_none = RowDelta(added_deletes=(deletion_vector("w", "d"),), starting_snapshot_id=start)
    assert live(committed(table, of_b))["w"] == 1
    with pytest.raises(ConflictError, match=r"has positions deleted by '.*/v'"):
        committed(table, of_a)
    with pytest.raises(ConflictError, match="is not live any more"):
        committed(table, of_none)


@for_each("deletes", [position_deletes("p", "a"), equality_deletes("e")])
@for_each("change", [OverwriteFiles, RowDelta])
def test_deletes_that_came_meanwhile_are_asked_for(change, deletes):
    table = add_deletes(add(memory_table(), "a", "b"), position_deletes("old", "a"), named=("a",))
    start = table.metadata.current_snapshot_id
    replaces = change(removed=entries_of(table, "a"), added=(data_file("a2"),), starting_snapshot_id=start)
    assert live(committed(table, replaces))["a2"] == 1
    newer = add_deletes(add(memory_table(), "a", "b"), position_deletes("old", "a"), named=("a",))
    start = newer.metadata.current_snapshot_id
    replaces = change(removed=entries_of(newer, "a"), added=(data_file("a2"),), starting_snapshot_id=start)
    newer = add_deletes(newer, deletes, named=("a",) if deletes.file_path == path_of("p") else ())
    with pytest.raises(ConflictError, match="now reaches data file"):
        committed(newer, replaces)


def test_a_file_that_the_first_manifests_have_is_not_looked_for_in_the_others():
    table = memory_table()
    for number in range(30):
        table = add(table, f"f{number}")
    asked = []

    class Counting(SharingReader):
        def gathered(self, manifests, work):
            asked.append(len(manifests))
            return super().gathered(manifests, work)

    newest = position_deletes("p", "f29", referenced_data_file=path_of("f29"))
    change = RowDelta(added_deletes=(newest,), starting_snapshot_id=table.metadata.current_snapshot_id)
    commit(table, change, runtime=table.catalog.runtime, reader=Counting(table.storage))
    assert asked == [1]
    assert [len(some) for some in growing(range(30))] == [1, 4, 16, 9]


def test_the_specs_of_many_snapshots_are_read_as_columns_and_few_rows_are_made(monkeypatch):
    """Each row of each manifest list was made a value: a million rows, of a thousand manifests."""
    table = memory_table()
    for number in range(40):
        table = add(table, f"f{number}")
    made = []
    whole = list_columns.StoredLists._decode

    def noted(*arguments):
        found = whole(*arguments)
        made.extend(found)
        return found

    monkeypatch.setattr(list_columns.StoredLists, "_decode", noted)
    reader = SparkManifestReader(no_spark, table.storage)
    assert reader.spec_ids(table.metadata.snapshots) == {0}
    assert sum(len(reader.manifests(snapshot)) for snapshot in table.metadata.snapshots) == 40 * 41 // 2
    assert len(made) == 40
