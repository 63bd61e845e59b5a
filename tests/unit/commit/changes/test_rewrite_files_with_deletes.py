"""Replacing files in which others delete rows meanwhile: deletes are applied, follow the rows, or are a conflict."""

import re

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from icekeep.commit.changes.deletes import RowDelta
from icekeep.commit.changes.files import DeleteFiles
from icekeep.commit.changes.rewrites import Carried, RewriteFiles
from icekeep.commit.retry import commit
from icekeep.errors import ConflictError, IcekeepBug, InvalidTableError
from icekeep.spec.manifests.structs import FileContent, ManifestContent
from icekeep.spec.matched_deletes import reaching_deletes
from icekeep.spec.reach import applied_delete
from icekeep.spec.types import LONG, NestedField
from icekeep.spec.updates import AddPartitionSpec, AddSchema, SetCurrentSchema
from kit.changes import Applying, meanwhile, refused, run
from kit.deletes import (
    AddDeleteFile,
    SaidToHold,
    add_deletes,
    deletion_vector,
    equality_deletes,
    path_of,
    position_deletes,
)
from kit.memory_catalog import CONFLICTS, after
from kit.tables import (
    BY_KIND,
    COLUMNS,
    EVENTS,
    RawEntry,
    add,
    data_file,
    entries_of,
    live,
    manifests_of,
    memory_table,
    orphans,
    raw_entries,
    raw_list,
    set_ref,
    stored,
    swap,
)


@pytest.fixture
def table(catalog):
    """Version 2: `a` and `b`, then `c`."""
    return add(add(memory_table(catalog), "a", "b"), "c")


@pytest.fixture
def newer(catalog):
    """Version 3: `a` and `b`."""
    return add(memory_table(catalog, format_version=3), "a", "b")


def rewrite(table, removed=("a", "b"), name="new", *, at_start=True, **options):
    """What a rewrite makes of the table as it is now, with all the deletes that reach its files."""
    entries = entries_of(table, *removed)
    deletes = [e for e in entries_of(table) if e.data_file.content is not FileContent.DATA]
    reaching = reaching_deletes(entries, deletes, table.metadata.specs_by_id)
    new = replace(entries[0].data_file, file_path=path_of(name), record_count=5, first_row_id=None)
    start = table.metadata.current_snapshot.sequence_number
    options = {
        "added": (new,),
        "schema_id": 0,
        "applied_deletes": {path: frozenset(map(applied_delete, found)) for path, found in reaching.items()},
        "format_version": table.metadata.format_version,
        "starting_sequence_number": start,
        "data_sequence_number": start if at_start else None,
        **options,
    }
    return RewriteFiles(removed=entries, **options)


def test_files_whose_deletes_were_applied_are_replaced(table):
    table = add_deletes(table, position_deletes("p", "a"), equality_deletes("e"), named=("a",))
    done = run(table, rewrite(table)).table
    # Both still may reach `c`, for all that their entries tell.
    assert live(done) == {"new": 1, "c": 1, "p": 1, "e": 1}
    assert entries_of(done, "new")[0].sequence_number == 3
    summary = done.metadata.current_snapshot.summary
    assert (summary["operation"], summary["total-delete-files"], summary["deleted-records"]) == ("replace", "2", "20")


def test_proven_position_deletes_go_with_their_file(table):
    """A position delete whose bounds name a replaced file goes only once its rows were read."""
    for name, path in (("true", "a"), ("lies", "b"), ("other", "c")):
        table = run(table, AddDeleteFile(position_deletes(name, path))).table
    proof = SaidToHold("true", "other")
    done = run(table, rewrite(table, proof=proof))
    assert live(done.table) == {"new": 1, "c": 1, "lies": 1, "other": 1}
    assert sorted(proof.asked) == ["lies", "true"]
    assert done.summary["removed-position-delete-files"] == "1"


def test_delete_rows_are_read_once_for_dangling_removal(table):
    """Rows that prove what bounds say are read once, also where dangling deletes are removed."""
    for name, path in (("true", "a"), ("lies", "b"), ("other", "c")):
        table = run(table, AddDeleteFile(position_deletes(name, path))).table
    proof = SaidToHold("true", "other")
    done = run(table, rewrite(table, proof=proof, remove_dangling=True))
    assert live(done.table) == {"new": 1, "c": 1, "lies": 1, "other": 1}
    assert sorted(proof.asked) == ["lies", "true"]


@pytest.mark.parametrize("at_start", [True, False])
def test_deletes_that_were_not_applied_are_a_conflict(table, at_start):
    deleted = add_deletes(table, position_deletes("p", "a"), equality_deletes("e"), named=("a",))
    whole = rewrite(deleted, at_start=at_start)
    for path, applied in whole.applied_deletes.items():
        for one in applied:
            less = {**whole.applied_deletes, path: applied - {one}}
            refused(deleted, replace(whole, applied_deletes=less), f"'{one.file_path}' reaches data file '{path}'")
    assert "new" in live(run(deleted, whole).table)


def test_delete_manifests_that_are_too_old_are_written_once(catalog):
    """Beside writers that never stop, what each attempt writes anew decides who is faster."""
    table = add(memory_table(catalog), "a", "b")
    for name, path in (("p", "a"), ("q", "b")):
        table = add_deletes(table, position_deletes(name, path), named=(path,))
    change = rewrite(table, at_start=False)

    def without_x():
        latest = catalog.load(EVENTS)
        run(latest, DeleteFiles(paths=frozenset({path_of("x")})))

    # What is old depends on what lives: 5 beside `x`, the commit's own number once that is gone.
    meanwhile(table, lambda: add(catalog.load(EVENTS), "x"), without_x)
    done = run(table, change)
    assert live(done.table) == {"new": 1}
    deletes = [m for m in manifests_of(done.table) if m.content is ManifestContent.DELETES]
    numbers = [re.search(r"-m(\d+)", m.manifest_path) for m in deletes]
    assert max(int(found[1]) for found in numbers if found) < 4


def test_deletes_that_were_applied_and_are_gone_are_a_conflict(table):
    deleted = add_deletes(table, position_deletes("p", "a"), named=("a",))
    change = rewrite(deleted)
    gone = RowDelta(removed_deletes=entries_of(deleted, "p"))
    meanwhile(deleted, lambda: run(deleted, gone))
    # Its rows are back, but not in the new file.
    refused(deleted, change, "/p' no longer reaches data file .*/a'")


@pytest.mark.parametrize("changed", [{"content_offset": 8}, {"sequence_number": 2}, {"file_path": "other"}])
def test_applied_delete_is_identified_by_path_offset_number(newer, changed):
    deleted = add_deletes(newer, deletion_vector("v", "a", 4))
    change = rewrite(deleted, ("a",))
    ((path, (applied,)),) = change.applied_deletes.items()
    other = {"sequence_number": 1} if "sequence_number" in changed else changed
    refused(deleted, replace(change, applied_deletes={path: frozenset({replace(applied, **other)})}), "data file .*/a'")


def test_deletes_of_other_partitions_are_no_conflict(catalog):
    table = add(memory_table(catalog, spec=BY_KIND), *(data_file(k, partition=(k,)) for k in "xy"))
    change = rewrite(table, ("x",))
    y = {"partition": ("y",)}
    later = add_deletes(table, position_deletes("p", "y", **y), equality_deletes("e", **y), named=("y",))
    (before,) = [m for m in raw_list(later) if m["content"] == 1]
    done = run(later, change).table
    assert live(done) == {"new": 1, "y": 1, "p": 1, "e": 1}
    assert before in raw_list(done)


def test_position_deletes_with_other_bounds_are_no_conflict(table):
    change = rewrite(table, ("a", "b"))
    meanwhile(table, lambda: add_deletes(table, position_deletes("p", "c"), named=("c",)))
    assert live(run(table, change).table) == {"new": 1, "c": 1, "p": 1}


def test_a_vector_added_meanwhile_is_a_conflict(newer):
    change = rewrite(newer, ("a",))
    meanwhile(newer, lambda: add_deletes(newer, deletion_vector("v", "a")))
    refused(newer, change, "/v' reaches data file .*/a'")


def test_concurrent_equality_deletes_reach_new_files(table):
    """apache/iceberg #10312, trino #25584: neither a conflict nor lost, however many came, though no other file is as old."""
    every = rewrite(table, ("a", "b", "c"))

    def delete_thrice():
        for name in ("e1", "e2", "e3"):
            add_deletes(table, equality_deletes(name))

    meanwhile(table, delete_thrice)
    done = run(table, every).table
    assert live(done) == {"new": 1, "e1": 1, "e2": 1, "e3": 1}
    deletes = entries_of(done, "e1", "e2", "e3")
    found = reaching_deletes(entries_of(done, "new"), deletes, done.metadata.specs_by_id)
    assert len(found[path_of("new")]) == 3


def test_equality_delete_conflicts_without_starting_number(table):
    """Without the starting sequence number, a new equality delete would not reach the new file."""
    change = rewrite(table, at_start=False)
    meanwhile(table, lambda: add_deletes(table, equality_deletes("e")))
    refused(table, change, "/e' reaches data file .*/a', whose rewrite did not apply it")


def test_unapplied_equality_delete_is_a_conflict(table):
    deleted = add_deletes(table, equality_deletes("e"))
    for number in (3, 4):
        change = rewrite(deleted, data_sequence_number=number, applied_deletes={})
        refused(deleted, change, "/e' reaches data file .*/a'")
    assert "new" in live(run(deleted, rewrite(deleted, data_sequence_number=2, applied_deletes={})).table)


def in_two_specs(catalog, *added):
    """A table that was partitioned by kind (spec 0) and is not any more (spec 1)."""
    table = swap(memory_table(catalog, spec=BY_KIND), AddPartitionSpec(replace(BY_KIND, spec_id=1, fields=())))
    return add(table, *added)


@pytest.mark.slow
@pytest.mark.parametrize("at_start", [True, False])
@pytest.mark.parametrize("where", [{"partition": ("x",)}, {"partition": ("y",)}, {"spec_id": 1}])
@pytest.mark.parametrize(("spec_id", "partition"), [(0, ("x",)), (1, ())])
def test_move_to_other_spec_conflicts_with_equality_delete(catalog, at_start, where, spec_id, partition):
    """Where they were it may delete rows or spare them, where they are put it may do the other (found by the simulation)."""
    old = [data_file(name, partition=partition, spec_id=spec_id) for name in "ab"]
    table = in_two_specs(catalog, *old)
    there = data_file("moved", 5, spec_id=1) if spec_id == 0 else data_file("moved", 5, ("x",))
    moving = rewrite(table, ("a",), added=(there,), at_start=at_start)
    staying = rewrite(table, ("b",), name="stays")
    meanwhile(table, lambda: add_deletes(table, equality_deletes("e", **where)))
    refused(table, moving, "/e' came while rows were moved to files of another partition spec")
    # The same delete hinders no rewrite within a spec: it still reaches what it reached.
    assert live(run(table, staying).table) == {"a": 1, "stays": 1, "e": 1}


def test_move_to_other_spec_allows_older_equality_deletes(catalog):
    table = in_two_specs(catalog, data_file("a", partition=("x",)))
    table = add_deletes(table, equality_deletes("e", partition=("x",)), equality_deletes("other", partition=("y",)))
    done = run(table, rewrite(table, ("a",), added=(data_file("moved", 5, spec_id=1),))).table
    assert live(done)["moved"] == 1
    assert reaching_deletes(entries_of(done, "moved"), entries_of(done)[1:], done.metadata.specs_by_id) == {
        path_of("moved"): ()
    }


def test_a_rewrite_may_say_which_specs_its_rows_leave(catalog):
    """Rows of spec 1 move to spec 0 while those of spec 0 stay: deletes that came meanwhile matter to the former alone."""
    table = in_two_specs(catalog, data_file("a", 5, ("x",)), data_file("b", 5, ("x",)), data_file("c", 5, spec_id=1))
    staying = rewrite(table, ("a",))
    also = data_file("c2", 5, spec_id=1)
    both = rewrite(table, ("b", "c"), added=(data_file("b2", 5, ("x",)), also), moved_spec_ids=frozenset())
    unsaid = replace(both, moved_spec_ids=None)
    meanwhile(table, lambda: add_deletes(table, equality_deletes("e", partition=("x",))))
    assert live(run(table, staying).table)["e"] == 1
    refused(table, unsaid, "/e' came while rows were moved")
    refused(table, replace(both, moved_spec_ids=frozenset({1})), "/e' came while rows were moved")
    assert live(run(table, both).table) == {"new": 1, "b2": 1, "c2": 1, "e": 1}


def test_a_rewrite_that_moves_rows_must_say_what_it_read(catalog):
    table = in_two_specs(catalog, data_file("a", partition=("x",)))
    moving = rewrite(table, ("a",), added=(data_file("moved", 5, spec_id=1),), at_start=False)
    with pytest.raises(IcekeepBug, match="does not say what snapshot it read"):
        run(table, replace(moving, starting_sequence_number=None))


@pytest.mark.parametrize("at_start", [True, False])
def test_files_of_which_no_row_is_left_go_and_nothing_comes(table, at_start):
    deleted = add_deletes(table, equality_deletes("e"))
    done = run(deleted, rewrite(deleted, ("a", "b"), added=(), at_start=at_start)).table
    assert live(done) == {"c": 1, "e": 1}
    snapshot = done.metadata.current_snapshot
    assert (snapshot.operation, snapshot.summary["deleted-records"], snapshot.summary["total-records"]) == (
        "replace",
        "20",
        "10",
    )
    assert "added-records" not in snapshot.summary
    emptied = run(done, rewrite(done, ("c",), added=(), at_start=at_start)).table
    # With the last data file the delete that was for it goes too.
    assert live(emptied) == {}
    assert emptied.metadata.current_snapshot.summary["total-records"] == "0"


def test_deletes_of_last_files_go_when_nothing_is_added(table):
    deleted = add_deletes(table, position_deletes("p", "a"), named=("a",))
    # Its number is that of the start, which no file has.
    assert live(run(deleted, rewrite(deleted, ("a", "b", "c"), added=())).table) == {}


def test_concurrent_positions_conflict_even_without_output(table):
    """Positions deleted since planning are a conflict also where the rewrite keeps no row."""
    deleted = add_deletes(table, equality_deletes("e"))
    change = rewrite(deleted, ("a", "b"), added=())
    meanwhile(deleted, lambda: add_deletes(deleted, position_deletes("p", "a"), named=("a",)))
    refused(deleted, change, "/p' reaches data file .*/a'")


def test_new_files_need_columns_of_equality_deletes(table):
    extra = NestedField(field_id=4, name="extra", type=LONG)
    wider = replace(COLUMNS, fields=(*COLUMNS.fields, extra), schema_id=1)
    table = add_deletes_by_new_column(table, wider)
    before = rewrite(table, applied_deletes={}, schema_id=0, data_sequence_number=2)
    refused(table, before, "/e' reaches data file .*/a'")
    done = run(table, replace(before, schema_id=1)).table
    assert live(done) == {"new": 1, "c": 1, "e": 1}


def add_deletes_by_new_column(table, wider):
    """The table with a fourth column, and rows deleted by it."""
    table = swap(table, AddSchema(wider), SetCurrentSchema(1))
    return add_deletes(table, equality_deletes("e", 1, 4))


def test_applied_vectors_go_and_others_of_their_puffin_file_stay(newer):
    table = add_deletes(newer, deletion_vector("v", "a", 4), deletion_vector("v", "b", 44))
    done = run(table, rewrite(table, ("a",))).table
    assert live(done) == {"new": 1, "b": 1, "v": 1}
    (left,) = entries_of(done, "v")
    assert (left.data_file.referenced_data_file, left.data_file.content_offset) == (path_of("b"), 44)
    summary = done.metadata.current_snapshot.summary
    assert (summary["removed-dvs"], summary["total-delete-files"], summary["total-position-deletes"]) == ("1", "1", "1")
    gone = [e for e in raw_entries(done) if e.name == "v" and e.status == 2]
    assert gone == [RawEntry("v", 2, done.metadata.current_snapshot_id, 2, 2)]


def test_new_files_count_when_old_deletes_are_dropped(table):
    """Deletes too old for every file go, and a new file counts by its sequence number."""
    deleted = add_deletes(table, position_deletes("p", "a"), equality_deletes("e"), named=("a",))
    # With number 3 the new file is as old as the deletes: a position delete might be for it, an equality delete is not.
    at_start = run(deleted, rewrite(deleted, ("a", "b", "c"))).table
    assert live(at_start) == {"new": 1, "p": 1}
    again = run(at_start, rewrite(at_start, ("new",), "newest", at_start=False)).table
    assert live(again) == {"newest": 1}
    assert again.metadata.current_snapshot.summary["total-delete-files"] == "0"


def test_a_rollback_under_our_feet_is_a_conflict(table):
    deleted = add_deletes(table, position_deletes("p", "a"), named=("a",))
    change = rewrite(deleted)
    meanwhile(deleted, lambda: set_ref(deleted, "main", table.metadata.current_snapshot_id, "branch"))
    refused(deleted, change, "/p' no longer reaches")


_ACTS = (
    "append",
    "positions of a",
    "positions of c",
    "equality",
    "vector of a",
    "vector of c",
    "compact c",
    "rollback",
)


def _act(what, n, table):
    """Another writer's commit, on the table as it is then; what it cannot do, it leaves."""
    latest = table.catalog.load(EVENTS)
    newest = latest.metadata.format_version == 3
    kind, _, name = what.partition(" of ")
    try:
        if what == "append":
            add(latest, f"t{n}")
        elif kind == "positions" and not newest:
            add_deletes(latest, position_deletes(f"d{n}", name), named=(name,))
        elif kind == "vector" and newest:
            add_deletes(latest, deletion_vector(f"d{n}", name))
        elif what == "equality":
            add_deletes(latest, equality_deletes(f"d{n}"))
        elif what == "compact c":
            run(latest, rewrite(latest, ("c",), f"c{n}"))
        elif what == "rollback":
            parent = latest.metadata.current_snapshot.parent_snapshot_id
            set_ref(latest, "main", parent or latest.metadata.current_snapshot_id, "branch")
    except (ConflictError, AssertionError):
        return


@pytest.mark.slow
@given(
    st.sampled_from([2, 3]), st.lists(st.sampled_from(_ACTS), max_size=3), st.lists(st.sampled_from(_ACTS), max_size=3)
)
def test_no_unapplied_delete_is_lost_and_no_applied_revived(version, before, during):
    """Under any concurrent changes, each delete was either applied or still reaches the new file."""
    start = add(memory_table(format_version=version), "a", "b", "c")
    for n, what in enumerate(before):
        _act("append" if what == "rollback" else what, f"-{n}", start)
    read = start.catalog.load(EVENTS)
    change = rewrite(read, ("a", "b"))
    meanwhile(read, *(lambda what=what, n=n: _act(what, n, read) for n, what in enumerate(during)))
    try:
        result = run(read, change)
    except ConflictError:
        return

    def reaching(table, *names):
        deletes = [e for e in entries_of(table) if e.data_file.content is not FileContent.DATA]
        found = reaching_deletes(entries_of(table, *names), deletes, table.metadata.specs_by_id)
        return {applied_delete(d) for found_for_one in found.values() for d in found_for_one}

    applied = frozenset().union(*change.applied_deletes.values())
    # Whatever deletes rows of the old files in the base was applied, or deletes those of the new one now.
    assert reaching(result.base, "a", "b") - applied <= reaching(result.table, "new")
    assert applied <= reaching(result.base, "a", "b")
    for entry in entries_of(result.base):
        name = entry.data_file.file_path.rsplit("/", 1)[-1]
        if entry.data_file.content is FileContent.DATA and name not in "ab":
            assert reaching(result.table, name) == reaching(result.base, name)


def test_vector_in_wrong_partition_stops_rewrite(catalog):
    """apache/iceberg #16957: such a table breaks the spec, and nobody can say what is deleted."""
    table = memory_table(catalog, spec=BY_KIND, format_version=3)
    table = add(table, data_file("a", 3, ("x",)), data_file("b", 3, ("x",)))
    change = rewrite(table)
    strange = AddDeleteFile(deletion_vector("v", "a", partition=("y",)))
    broken = commit(table, strange, runtime=catalog.runtime).table
    with pytest.raises(InvalidTableError, match=f"{path_of('a')}'?, which has another partition"):
        run(broken, change)
    assert live(broken) == live(catalog.load(EVENTS))


class Carrier:
    """Writes one delete file a changed file, for the new file, and remembers what it was asked."""

    def __init__(self, storage, *, vectors=False, refusals=None, of="new"):
        self.asked = []
        self._storage, self._vectors, self._refusals, self._of = storage, vectors, refusals or {}, of

    def carried(self, changed, base, noted):
        self.asked.append((changed, base))
        if refusals := {path: self._refusals[path] for path in changed if path in self._refusals}:
            return Carried(refusals=refusals)
        made = deletion_vector if self._vectors else position_deletes
        name = f"carried-{len(self.asked)}"
        noted(path_of(name))
        with self._storage.write(path_of(name)) as stream:
            stream.write(b"deletes")
        return Carried((replace(made(name, self._of), referenced_data_file=path_of(self._of)),))


@pytest.fixture
def with_vector(catalog):
    """Version 3: `a` and `b`, of which `a` has a vector."""
    return add_deletes(add(memory_table(catalog, format_version=3), "a", "b"), deletion_vector("v1", "a"))


def only_asked(carrier):
    ((changed, _),) = carrier.asked
    return {path: replace(one, deletes=[d.data_file.file_path for d in one.deletes]) for path, one in changed.items()}


def deletes_of_a(table, name="p", **changes):
    return lambda: add_deletes(table, position_deletes(name, "a", **changes), named=("a",))


def test_concurrent_position_deletes_are_carried_over(table):
    """StarRocks #77709, nimtable/iceberg-compaction #163: neither lost nor a conflict."""
    carrier = Carrier(table.storage)
    change = rewrite(table, carrier=carrier)
    meanwhile(table, deletes_of_a(table, referenced_data_file=path_of("a")))
    done = run(table, change).table
    # The delete file that is for the removed file alone goes with it.
    assert live(done) == {"new": 1, "c": 1, "carried-1": 1}
    asked = only_asked(carrier)[path_of("a")]
    assert (asked.deletes, asked.lacks_positions, asked.lacks_keys) == ([path_of("p")], False, False)
    (mine,) = [e for e in raw_entries(done) if e.name == "carried-1"]
    # No number of its own: it inherits the snapshot's, and the new data file keeps the start's.
    assert mine == RawEntry("carried-1", 1, None, None, None)
    (entry,) = entries_of(done, "carried-1")
    assert entry.sequence_number == done.metadata.current_snapshot.sequence_number
    assert entries_of(done, "new")[0].sequence_number == 2
    summary = done.metadata.current_snapshot.summary
    assert (summary["operation"], summary["added-delete-files"], summary["total-delete-files"]) == ("replace", "1", "1")


def test_delete_file_naming_kept_files_stays(table):
    """A delete file that also names files that stay is left as it is; its positions are carried over."""
    carrier = Carrier(table.storage)
    change = rewrite(table, carrier=carrier)
    meanwhile(table, lambda: add_deletes(table, position_deletes("p", "a", "c"), named=("a", "c")))
    assert live(run(table, change).table) == {"new": 1, "c": 1, "p": 1, "carried-1": 1}


def test_nobody_is_asked_where_nothing_has_changed(table):
    deleted = add_deletes(table, position_deletes("p", "a"), equality_deletes("e"), named=("a",))
    carrier = Carrier(table.storage)
    change = rewrite(deleted, carrier=carrier)
    meanwhile(deleted, lambda: add_deletes(deleted, equality_deletes("e2"), position_deletes("q", "c"), named=("c",)))
    run(deleted, change)
    assert carrier.asked == []


def test_each_attempt_carries_deletes_afresh(table):
    """Each attempt carries the deletes of its own base, and files of earlier attempts are removed."""
    carrier = Carrier(table.storage)
    change = Applying(rewrite(table, carrier=carrier))
    before = stored(table.catalog)
    meanwhile(table, deletes_of_a(table, "p1"), deletes_of_a(table, "p2"), lambda: add(table, "d"))
    done = run(table, change).table
    # The last conflict brought no delete: what the check has found is kept, and the carrier asked all the same.
    one, both = {path_of("p1")}, {path_of("p1"), path_of("p2")}
    asked = [{d.data_file.file_path for d in changed[path_of("a")].deletes} for changed, _ in carrier.asked]
    assert asked == [one, both, both]
    named = {name for name in live(done) if name.startswith("carried")}
    left = {at for at in stored(table.catalog) - before if "carried" in at}
    assert left == set(map(path_of, named))
    assert len(named) == 1


def test_replacement_vector_must_hold_applied_positions(with_vector):
    carrier = Carrier(with_vector.storage, vectors=True)
    change = rewrite(with_vector, carrier=carrier)
    old = entries_of(with_vector, "v1")
    meanwhile(with_vector, lambda: add_deletes(with_vector, deletion_vector("v2", "a"), removed_deletes=old))
    done = run(with_vector, change).table
    # The vectors of replaced files go in the same commit.
    assert live(done) == {"new": 1, "carried-1": 1}
    asked = only_asked(carrier)[path_of("a")]
    assert (asked.deletes, asked.lacks_positions, asked.lacks_keys) == ([path_of("v2")], True, False)


def test_deletes_that_are_gone_are_the_carriers_to_judge(table):
    deleted = add_deletes(table, position_deletes("p", "a"), equality_deletes("e"), named=("a",))
    carrier = Carrier(table.storage, refusals={path_of("a"): "rows of it are back", path_of("b"): "and of it"})
    change = rewrite(deleted, carrier=carrier)
    gone = RowDelta(removed_deletes=entries_of(deleted, "p", "e"))
    meanwhile(deleted, lambda: run(deleted, gone))
    with pytest.raises(ConflictError, match="rows of it are back") as raised:
        run(deleted, change)
    assert raised.value.data_files == {path_of("a"), path_of("b")}
    assert only_asked(carrier) == {
        path_of("a"): msgspec.structs.replace(carrier.asked[0][0][path_of("a")], deletes=[]),
        path_of("b"): msgspec.structs.replace(carrier.asked[0][0][path_of("b")], deletes=[]),
    }
    of_a, of_b = (carrier.asked[0][0][path_of(name)] for name in "ab")
    # The bounds of `p` say that it names `a` alone.
    assert (of_a.lacks_positions, of_a.lacks_keys) == (True, True)
    assert (of_b.lacks_positions, of_b.lacks_keys) == (False, True)


@pytest.mark.parametrize("at_start", [True, False])
def test_a_newer_equality_delete_is_no_business_of_the_carrier(table, at_start):
    carrier = Carrier(table.storage)
    change = rewrite(table, at_start=at_start, carrier=carrier)
    meanwhile(table, lambda: add_deletes(table, equality_deletes("e")))
    if at_start:
        # It reaches the new file, too.
        assert live(run(table, change).table) == {"new": 1, "c": 1, "e": 1}
    else:
        with pytest.raises(ConflictError, match=r"reaches data file .*, whose rewrite did not apply it") as raised:
            run(table, change)
        assert raised.value.data_files == {path_of("a"), path_of("b")}
    assert carrier.asked == []


def test_files_that_are_gone_are_named(table):
    carrier = Carrier(table.storage)
    change = rewrite(table, ("a", "b", "c"), carrier=carrier)
    meanwhile(table, lambda: run(table, rewrite(table, ("a", "c"), "theirs")))
    with pytest.raises(ConflictError, match=r"2 in all.* no longer live") as raised:
        run(table, change)
    assert raised.value.data_files == {path_of("a"), path_of("c")}


def test_carried_deletes_for_untouched_files_are_a_bug(table):
    carrier = Carrier(table.storage, of="c")
    change = rewrite(table, carrier=carrier)
    meanwhile(table, deletes_of_a(table))
    with pytest.raises(IcekeepBug, match="another file than one that it adds"):
        run(table, change)
    assert not {at for at in stored(table.catalog) if "carried" in at}


def test_what_was_carried_is_removed_where_the_commit_fails(table):
    carrier = Carrier(table.storage)
    change = rewrite(table, carrier=carrier)
    table.catalog.follow(after(deletes_of_a(table)), *[CONFLICTS] * 9)
    with pytest.raises(ConflictError, match="gave up"):
        run(table, change)
    assert carrier.asked
    assert not {at for at in stored(table.catalog) if "carried" in at}
    assert not orphans(table.catalog)
