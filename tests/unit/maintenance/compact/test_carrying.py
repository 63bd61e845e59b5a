"""Others delete rows of files while these are rewritten: the deletes follow the rows, or the group is planned anew."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from pyroaring import BitMap64

from icekeep.commit.changes.deletes import RowDelta
from icekeep.errors import ConflictError
from icekeep.formats.deletes.read import read_position_deletes, write_position_deletes
from icekeep.formats.puffin import VectorTarget, read_deletion_vector, write_deletion_vectors
from icekeep.formats.rewrite.task import RewriteOutcome
from icekeep.formats.row_moves import MovedPiece, RowMoves
from icekeep.spec.manifests.structs import FileContent
from kit.changes import run
from kit.deletes import add_deletes, equality_deletes, path_of
from kit.memory_catalog import MemoryCatalog, after
from kit.tables import EVENTS, add, data_file, entries_of, live, memory_table, orphans, stored
from unit.maintenance.compact.test_commits import Run, new_files


@pytest.fixture
def catalog():
    return MemoryCatalog()


@pytest.fixture(params=[2, 3])
def table(catalog, request):
    """`a`, `b` and `c`, of ten rows each."""
    return add(memory_table(catalog, format_version=request.param, commit__retry__num_retries="6"), "a", "b", "c")


def piece(name, dropped=(), applied=None):
    return MovedPiece(
        location=path_of(name),
        first_position=0,
        row_count=10,
        dropped=bytes(BitMap64(dropped).serialize()) if dropped else b"",
        applied=None if applied is None else bytes(BitMap64(applied).serialize()),
    )


class Moved(Run):
    """A run whose one group is rewritten in order into files of some numbers of rows."""

    def __init__(self, table, names, records=(20,), dropped=None, applied=None):
        super().__init__(table, names)
        dropped, applied = dropped or {}, applied or {}
        pieces = tuple(piece(name, dropped.get(name, ()), applied.get(name)) for name in names)
        added = [replace(data_file(f"new-{n}"), record_count=count) for n, count in enumerate(records)]
        for file in added[1:]:
            with table.storage.write(file.file_path) as stream:
                stream.write(b"PAR1")
        outcome = RewriteOutcome(files=tuple(added), read_count=0, live_count=0, moves=RowMoves(pieces=pieces))
        self.finished = [replace(self.finished[0], outcomes=(outcome,))]


def delete_positions(catalog, positions, name="d"):
    """Another writer deletes positions: by one position delete file, or by vectors merged with those that are there."""
    table = catalog.load(EVENTS)
    if table.metadata.format_version == 2:
        rows = [(path_of(data), position) for data, some in positions.items() for position in some]
        file = write_position_deletes(table.storage, path_of(name), "PARQUET", rows, spec_id=0)
        return add_deletes(table, file, named=tuple(positions) if file.referenced_data_file is None else ())
    present = {
        e.data_file.referenced_data_file: e
        for e in entries_of(table)
        if e.data_file.content is FileContent.POSITION_DELETES
    }
    vectors, old = [], []
    for data, some in positions.items():
        bits = BitMap64(some)
        if (entry := present.get(path_of(data))) is not None:
            bits |= read_deletion_vector(table.storage, entry.data_file)
            old.append(entry)
        vectors.append((VectorTarget(location=path_of(data), spec_id=0), bits))
    made = write_deletion_vectors(table.storage, path_of(f"{name}.puffin"), vectors)
    return add_deletes(table, *made, removed_deletes=tuple(old))


def deleted_in(catalog):
    """The deleted positions of each live data file, by its name."""
    table = catalog.load(EVENTS)
    names = list(live(table))
    found = {}
    for entry in entries_of(table):
        file = entry.data_file
        if file.content is not FileContent.POSITION_DELETES:
            continue
        for name in names:
            if file.content_offset is not None:
                if file.referenced_data_file == path_of(name):
                    found.setdefault(name, set()).update(read_deletion_vector(table.storage, file))
            elif some := set(read_position_deletes(table.storage, file, path_of(name)).tolist()):
                found.setdefault(name, set()).update(some)
    return found


def test_deletes_that_come_meanwhile_follow_the_rows(table, catalog):
    """StarRocks #77709, nimtable/iceberg-compaction #163: rows stay deleted, and the compaction is not lost."""
    moved = Moved(table, "ab", records=(12, 6), dropped={"a": (3,), "b": (0,)})
    catalog.follow(after(lambda: delete_positions(catalog, {"a": (0, 4, 9), "b": (1, 9), "c": (5,)})))
    result = moved.commit()
    # a: 0 1 2 4 5 6 7 8 9 -> 0..8 of the first file; b: 1 2 3 -> 9..11 of it, 4 5 6 7 8 9 -> 0..5 of the second.
    assert deleted_in(catalog) == {"new-0": {0, 3, 8, 9}, "new-1": {5}, "c": {5}}
    assert (result.commits_count, result.carried_delete_files_count, result.planned_anew_files_count) == (1, 2, 0)
    carried = [
        e
        for e in entries_of(catalog.load(EVENTS))
        if e.data_file.referenced_data_file in map(path_of, new_files(catalog))
    ]
    assert {e.sequence_number for e in carried} == {catalog.load(EVENTS).metadata.last_sequence_number}
    assert not orphans(catalog)


def test_each_attempt_carries_what_its_own_base_has(table, catalog):
    moved = Moved(table, "ab")
    written = stored(catalog)
    catalog.follow(
        after(lambda: delete_positions(catalog, {"a": (0,)}, "d1")),
        after(lambda: delete_positions(catalog, {"a": (1,), "b": (9,)}, "d2")),
        after(lambda: add(catalog.load(EVENTS), "other")),
    )
    moved.commit()
    assert deleted_in(catalog)["new-0"] == {0, 1, 19}
    assert not orphans(catalog)
    # Of what three attempts carried one delete file is left.
    named = {e.data_file.file_path for e in entries_of(catalog.load(EVENTS))}
    assert {at for at in stored(catalog) - written if "-deletes." in at} <= named


def test_revived_position_deletes_conflict_with_the_rewrite(table, catalog):
    """Rows deleted by the rewrite would be live again if a delete file it applied is gone."""
    deleted = delete_positions(catalog, {"a": (1, 2)}, "d1")
    held = [e for e in entries_of(deleted) if e.data_file.content is FileContent.POSITION_DELETES]
    moved = Moved(deleted, "ab", records=(18,), dropped={"a": (1, 2)})

    def revive():
        now = catalog.load(EVENTS)
        run(now, RowDelta(removed_deletes=tuple(held)))
        delete_positions(catalog, {"a": (2, 3)}, "d2")

    catalog.follow(after(revive))
    result = moved.commit()
    assert (result.commits_count, moved.deferred) == (0, moved.groups)
    assert "1 row of data file" in moved.conflict.message
    assert new_files(catalog) == set()
    assert not orphans(catalog)


def test_applied_delete_merged_elsewhere_is_no_conflict(table, catalog):
    """Its file was merged with another: the positions are what counts."""
    deleted = delete_positions(catalog, {"a": (1, 2)}, "d1")
    held = tuple(e for e in entries_of(deleted) if e.data_file.content is FileContent.POSITION_DELETES)
    moved = Moved(deleted, "ab", records=(18,), dropped={"a": (1, 2)})

    def merge():
        run(catalog.load(EVENTS), RowDelta(removed_deletes=held))
        delete_positions(catalog, {"a": (1, 2, 7)}, "d2")

    catalog.follow(after(merge))
    moved.commit()
    assert deleted_in(catalog) == {"new-0": {5}}


@pytest.mark.parametrize(("positions", "found"), [((1, 4, 6), {"new-0": {4}}), ((1, 4), {}), ((1, 6), None)])
def test_rows_of_a_removed_equality_delete_need_positions(table, catalog, positions, found):
    """It was converted to positions meanwhile, or its rows are back."""
    deleted = add_deletes(table, equality_deletes("e"))
    keys = entries_of(deleted, "e")
    moved = Moved(deleted, "a", records=(8,), dropped={"a": (1, 4)}, applied={"a": ()})

    def convert():
        run(delete_positions(catalog, {"a": positions}), RowDelta(removed_deletes=keys))

    catalog.follow(after(convert))
    moved.commit()
    assert moved.deferred == (moved.groups if found is None else ())
    if found is not None:
        assert deleted_in(catalog) == found


def test_a_group_whose_files_are_gone_does_not_hinder_the_others(table, catalog):
    both = Run(table, "a", "bc")
    run_of_another = Run(table, "a", added=["theirs"])
    catalog.follow(after(run_of_another.commit))
    result = both.commit()
    assert live(catalog.load(EVENTS)) == {"theirs": 1, "new-1": 1}
    assert both.deferred == both.groups[:1]
    assert (result.commits_count, result.rewritten_data_files_count, result.planned_anew_files_count) == (1, 2, 1)
    assert "new-0" not in new_files(catalog)
    assert both.conflict.data_files == {path_of("a")}


def test_a_conflict_of_no_files_in_particular_refuses_all(table, catalog):
    moved = Run(table, "a", "bc")
    catalog.follow(*[after(lambda: add(catalog.load(EVENTS), "x"))] * 9)
    with pytest.raises(ConflictError, match="gave up"):
        moved.commit()
    assert new_files(catalog) == set()


@pytest.mark.slow
@given(st.data())
def test_rows_are_deleted_as_if_nothing_had_been_rewritten(data):
    """Whatever is deleted before, between the attempts and after: a row is deleted where it is now if it was where it was."""
    catalog = MemoryCatalog()
    version = data.draw(st.sampled_from([2, 3]))
    table = add(memory_table(catalog, format_version=version, commit__retry__num_retries="6"), "a", "b", "c")
    positions = st.dictionaries(st.sampled_from("abc"), st.sets(st.integers(0, 9), min_size=1), min_size=1)
    before = data.draw(st.none() | positions)
    if before is not None:
        table = delete_positions(catalog, before, "d0")
    dropped = {name: set((before or {}).get(name, ())) for name in "ab"}
    left = [(name, n) for name in "ab" for n in range(10) if n not in dropped[name]]
    cut = data.draw(st.integers(0, len(left)))
    records = [count for count in (cut, len(left) - cut) if count]
    moved = Moved(table, "ab", records, dropped)
    meanwhile = data.draw(st.lists(positions, max_size=3))
    catalog.follow(
        *(after(lambda some=some, n=n: delete_positions(catalog, some, f"d{n}")) for n, some in enumerate(meanwhile, 1))
    )
    moved.commit()
    assert not moved.deferred
    expected = {
        row for some in [before or {}, *meanwhile] for name, which in some.items() for row in ((name, n) for n in which)
    }
    found = {("c", n) for n in deleted_in(catalog).get("c", ())}
    starts = np.cumsum([0, *records])
    for number, start in enumerate(starts[:-1]):
        found |= {left[start + n] for n in deleted_in(catalog).get(f"new-{number}", ())}
    found |= {(name, n) for name in "ab" for n in dropped[name]}
    assert found == expected
