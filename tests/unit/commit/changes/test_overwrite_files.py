import pytest
from msgspec.structs import replace

from icekeep.commit.changes.files import OverwriteFiles
from icekeep.commit.changes.rewrites import RewriteFiles
from icekeep.commit.conflicts import Isolation
from icekeep.errors import ConflictError, IcekeepBug, UnsupportedError, UsageError
from icekeep.spec.filters.parsing import parse_where
from icekeep.spec.updates import RemoveSnapshots
from kit.changes import Applying, meanwhile, refused, run
from kit.deletes import add_deletes, deletion_vector, equality_deletes, path_of, position_deletes
from kit.memory_catalog import MemoryCatalog
from kit.tables import BY_KIND, EVENTS, add, data_file, entries_of, live, memory_table, orphans, set_ref, swap

SNAPSHOT, SERIALIZABLE = Isolation.SNAPSHOT, Isolation.SERIALIZABLE


@pytest.fixture
def table(catalog):
    """`a` and `c` in partition x, `b` in y."""
    return add(add(memory_table(catalog, spec=BY_KIND), x("a"), y("b")), x("c"))


def x(name, records=10):
    return data_file(name, records, ("x",))


def y(name):
    return data_file(name, 10, ("y",))


def overwrite(table, *, where=None, removed=(), added=(), **options):
    """A change that was worked out on the table as it is now."""
    filters = {} if where is None else {"rows": parse_where(where)}
    named = entries_of(table, *removed) if removed else ()
    start = table.metadata.current_snapshot_id
    return OverwriteFiles(removed=named, added=added, **{"starting_snapshot_id": start, **filters, **options})


def replaced(table, old, new):
    latest = table.catalog.load(EVENTS)
    entries = entries_of(latest, old)
    new_file = replace(entries[0].data_file, file_path=path_of(new))
    return run(latest, RewriteFiles(removed=entries, added=(new_file,), schema_id=0)).table


def test_named_files_are_replaced(table):
    done = run(table, overwrite(table, removed=("a",), added=(x("a2", 8),)))
    assert live(done.table) == {"a2": 1, "b": 1, "c": 1}
    snapshot = done.table.metadata.current_snapshot
    assert snapshot.operation == "overwrite"
    expected = {"added-records": "8", "deleted-records": "10", "total-records": "28", "total-data-files": "3"}
    assert expected.items() <= snapshot.summary.items()
    assert entries_of(done.table, "a2")[0].sequence_number == 3


def test_a_filter_replaces_all_that_matches(table):
    done = run(table, overwrite(table, where="kind = 'x'", added=(x("n"),)))
    assert live(done.table) == {"b": 1, "n": 1}


@pytest.mark.parametrize(
    ("options", "operation"),
    [
        ({"where": "kind = 'x'"}, "delete"),
        ({"removed": ("a",)}, "delete"),
        ({"where": "kind = 'x'", "added": (x("n"),)}, "overwrite"),
        ({"where": "kind = 'z'", "added": (x("n"),)}, "append"),
        ({"added": (x("n"),)}, "append"),
    ],
)
def test_a_snapshot_says_what_was_done_not_what_was_asked(table, options, operation):
    assert run(table, overwrite(table, **options)).table.metadata.current_snapshot.operation == operation


def test_nothing_to_do_is_no_commit(table):
    assert run(table, overwrite(table)).changed is False
    assert run(table, overwrite(table, where="kind = 'z'")).changed is False


def test_a_file_of_which_only_some_rows_may_match_is_refused(table):
    refused(table, overwrite(table, where="id = 3", added=(x("n"),)), "rows that do not", UnsupportedError)
    # A file that is named goes, whatever the filter says of it; the others still are refused.
    refused(table, overwrite(table, where="id = 3", removed=("a",)), "/[bc]' may hold", UnsupportedError)
    named = overwrite(table, where="id = 3 AND kind = 'y'", removed=("b",))
    assert live(run(table, named).table) == {"a": 1, "c": 1}


def test_deletes_of_other_files_are_no_conflict_and_stay(table):
    meanwhile(table, lambda: add_deletes(table, position_deletes("d", "b", partition=("y",)), named=("b",)))
    done = run(table, overwrite(table, removed=("a",), added=(x("n"),), isolation=SNAPSHOT))
    assert live(done.table) == {"n": 1, "b": 1, "c": 1, "d": 1}


def test_deletes_that_were_read_are_no_conflict(table):
    table = add_deletes(table, position_deletes("d", "a", partition=("x",)), named=("a",))
    done = run(table, overwrite(table, removed=("a",), added=(x("n"),), isolation=SERIALIZABLE))
    assert live(done.table) == {"n": 1, "b": 1, "c": 1, "d": 1}


def test_removing_file_ignores_new_deletes_unless_isolated(table):
    """A whole file may go though rows of it were deleted since, unless an isolation level is asked for."""
    file = position_deletes("d", "a", partition=("x",))
    add_deletes(table, file, named=("a",))
    refused(table, overwrite(table, removed=("a",), isolation=SNAPSHOT), "/d' now reaches")
    assert "a" not in live(run(table, overwrite(table, removed=("a",))).table)


@pytest.mark.parametrize(
    ("isolation", "act", "match"),
    [
        (SERIALIZABLE, lambda table: add(table, x("t")), "/t'.* was added meanwhile"),
        (
            SNAPSHOT,
            lambda table: add_deletes(table, equality_deletes("d", partition=("x",))),
            "/d'.* was added meanwhile",
        ),
        (SNAPSHOT, lambda table: run(table, overwrite(table, removed=("c",))), "/c'.* was removed meanwhile"),
        (SNAPSHOT, lambda table: replaced(table, "c", "c2"), "/c'.* was removed meanwhile"),
    ],
)
def test_isolation_level_decides_on_concurrent_changes(table, isolation, act, match):
    """Each isolation level refuses the concurrent changes to the filtered rows that it must, and no others."""

    def change(isolation):
        return overwrite(table, where="kind = 'x'", added=(x("n"),), isolation=isolation)

    forbidding, lax = change(isolation), change({SERIALIZABLE: SNAPSHOT, SNAPSHOT: None}[isolation])
    wanting_y = overwrite(table, where="kind = 'y'", added=(y("n"),), isolation=isolation)
    meanwhile(table, lambda: act(table))
    refused(table, forbidding, match)
    # The same is no conflict for other rows, nor with the isolation below.
    once = run(table, wanting_y).table
    assert once.metadata.current_snapshot.operation == "overwrite"
    assert live(run(table, lax).table) == {"n": 2}


def test_the_conflict_filter_may_be_wider_than_what_is_removed(table):
    change = overwrite(table, where="kind = 'x'", conflict_rows=parse_where("TRUE"), isolation=SERIALIZABLE)
    meanwhile(table, lambda: add(table, y("t")))
    refused(table, change, "/t'.* was added")


def test_serializable_overwrite_of_files_forbids_new_data(table):
    """Named files may depend on any row, so serializable isolation forbids all data that was added."""
    change = overwrite(table, removed=("a",), added=(x("n"),), isolation=SERIALIZABLE)
    narrow = overwrite(
        table, removed=("a",), added=(x("n"),), isolation=SERIALIZABLE, conflict_rows=parse_where("kind = 'x'")
    )
    filtered = overwrite(table, removed=("a",), where="kind = 'x'", added=(x("n"),), isolation=SERIALIZABLE)
    meanwhile(table, lambda: add(table, y("t")))
    refused(table, change, "/t'.* was added")
    refused(table, filtered, "/t'.* was added")
    assert live(run(table, narrow).table) == {"n": 1, "b": 1, "c": 1, "t": 1}


def test_expired_history_is_a_conflict_under_isolation(table):
    strict = overwrite(table, where="kind = 'x'", added=(x("n"),), isolation=SNAPSHOT)
    lax = overwrite(table, where="kind = 'x'", added=(x("n"),))
    middle = add(table, y("t"))
    later = add(middle, y("u"))
    swap(later, RemoveSnapshots((middle.metadata.current_snapshot_id,)))
    refused(table, strict, "snapshots expired")
    assert live(run(table, lax).table) == {"b": 1, "t": 1, "u": 1, "n": 1}


def test_rollback_is_a_conflict_for_rewritten_rows(table):
    start = add_deletes(table, position_deletes("d", "a", partition=("x",)), named=("a",))
    change = overwrite(start, removed=("a",), added=(x("n", 9),))
    meanwhile(table, lambda: set_ref(table, "main", table.metadata.current_snapshot_id, "branch"))
    refused(table, change, "the branch was moved")


def test_added_files_must_match_filter_if_required(table):
    change = overwrite(table, where="kind = 'x'", added=(x("n"), y("m")), added_match_rows=True)
    refused(table, change, "/m' may hold rows that do not match", UsageError)
    fine = overwrite(table, where="kind = 'x'", added=(x("n"),), added_match_rows=True)
    assert live(run(table, fine).table) == {"b": 1, "n": 1}


def test_vectors_go_with_their_files(catalog):
    table = add(memory_table(catalog, format_version=3), "a", "b")
    table = add_deletes(table, deletion_vector("v", "a", 4), deletion_vector("v", "b", 44))
    done = run(table, overwrite(table, removed=("a",), added=(data_file("n", 9),)))
    assert live(done.table) == {"n": 1, "b": 1, "v": 1}
    (left,) = [e.data_file for e in entries_of(done.table, "v")]
    assert left.referenced_data_file == path_of("b")


def test_delete_files_cannot_be_added_as_data(table):
    refused(
        table,
        overwrite(table, added=(equality_deletes("e", partition=("x",)),)),
        "is added to manifests of data, and holds equality_deletes",
        IcekeepBug,
    )


def test_what_a_first_attempt_wrote_is_used_again(table):
    change = Applying(overwrite(table, where="kind = 'x'", added=(x("n"),)))
    meanwhile(table, lambda: add(table, y("t")), lambda: add(table, y("u")))
    assert live(run(table, change).table) == {"b": 1, "t": 1, "u": 1, "n": 1}
    assert len(change.bases) == 3
    assert orphans(table.catalog) == set()


@pytest.mark.parametrize("version", [1, 2, 3])
def test_every_format_version_is_overwritten(catalog, version):
    table = add(memory_table(catalog, format_version=version), "a", "b")
    done = run(table, overwrite(table, removed=("a",), added=(data_file("n"),), isolation=SERIALIZABLE))
    assert live(done.table) == {"n": 1, "b": 1}


def test_a_branch_is_overwritten_alone(table):
    branched = set_ref(table, "audit", table.metadata.current_snapshot_id, "branch")
    done = run(branched, overwrite(branched, where="kind = 'x'", branch="audit", isolation=SERIALIZABLE)).table
    assert live(done, "audit") == {"b": 1}
    assert live(done) == {"a": 1, "b": 1, "c": 1}


def test_files_of_a_partition_spec_that_is_gone_are_a_conflict():
    table = add(memory_table(MemoryCatalog()), "a")
    change = OverwriteFiles(
        rows=parse_where("id = 1"), added=(data_file("new", 1, (1,), spec_id=7),), added_match_rows=True
    )
    with pytest.raises(ConflictError, match="partition spec 7, which the new files were written with, is no longer"):
        run(table, change)
