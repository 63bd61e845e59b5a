"""Replacing files in which others delete positions meanwhile: the deletes follow the rows into the new files."""

import msgspec
import pytest
from msgspec.structs import replace

from icekeep.commit.changes.deletes import RowDelta
from icekeep.commit.changes.rewrites import Carried
from icekeep.errors import ConflictError, IcekeepBug
from kit.changes import Applying, run
from kit.deletes import add_deletes, deletion_vector, equality_deletes, path_of, position_deletes
from kit.memory_catalog import CONFLICTS, MemoryCatalog, after
from kit.tables import RawEntry, add, entries_of, live, memory_table, orphans, raw_entries, stored
from unit.commit.changes.test_rewrite_files_with_deletes import rewrite


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
def catalog():
    return MemoryCatalog()


@pytest.fixture
def table(catalog):
    """Version 2: `a` and `b`, then `c`."""
    return add(add(memory_table(catalog), "a", "b"), "c")


@pytest.fixture
def newer(catalog):
    """Version 3: `a` and `b`, of which `a` has a vector."""
    return add_deletes(add(memory_table(catalog, format_version=3), "a", "b"), deletion_vector("v1", "a"))


def meanwhile(table, *acts):
    table.catalog.follow(*(after(act) for act in acts))


def only_asked(carrier):
    ((changed, _),) = carrier.asked
    return {path: replace(one, deletes=[d.data_file.file_path for d in one.deletes]) for path, one in changed.items()}


def deletes_of_a(table, name="p", **changes):
    return lambda: add_deletes(table, position_deletes(name, "a", **changes), named=("a",))


def test_positions_that_are_deleted_meanwhile_follow_into_the_new_file(table):
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


def test_a_delete_file_that_also_names_files_that_stay_is_left_as_it_is(table):
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


def test_each_attempt_asks_anew_and_only_what_the_last_named_stays(table):
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


def test_a_vector_that_takes_the_place_of_the_applied_one_must_hold_its_positions(newer):
    carrier = Carrier(newer.storage, vectors=True)
    change = rewrite(newer, carrier=carrier)
    old = entries_of(newer, "v1")
    meanwhile(newer, lambda: add_deletes(newer, deletion_vector("v2", "a"), removed_deletes=old))
    done = run(newer, change).table
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


def test_deletes_for_files_that_are_older_than_the_snapshot_are_never_committed(table):
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
