"""What others did to replaced manifests and a rewrite cannot follow, or will not: it is planned again, nothing is lost."""

import pytest
from msgspec.structs import replace

from icekeep.commit import following
from icekeep.commit.changes.rewrite_manifests import RewriteManifests
from icekeep.commit.changes.row_delta import RowDelta
from icekeep.commit.live_files import live_entries, live_manifests
from icekeep.commit.manifests import StorageManifestReader
from icekeep.commit.summary import SummaryBuilder
from icekeep.errors import ConflictError, IcekeepBug, InvalidTableError
from icekeep.spec.definition_updates import AddPartitionSpec, UpgradeFormatVersion
from icekeep.spec.manifests.structs import ManifestContent, Status
from icekeep.spec.updates import RemovePartitionSpecs, RemoveSnapshots
from kit.changes import run
from kit.memory_catalog import MemoryCatalog, after
from kit.row_deletes import add_deletes, equality_deletes, path_of
from kit.staged_manifests import deleting, kept_as_staged, latest, rewrite, run_beside, six, staged
from kit.tables import BY_KIND, add, data_file, entries_of, live, memory_table, orphans, raw_list, swap


@pytest.fixture
def catalog():
    return MemoryCatalog()


def test_without_the_snapshot_that_was_read_it_is_a_conflict(catalog):
    table = six(catalog)
    change = rewrite(table, snapshot_id=None)
    catalog.follow(after(deleting(table, "c")))
    with pytest.raises(ConflictError, match=r"\(1 in all\) is no longer in the table as it was read; plan again"):
        run(table, change)
    assert orphans(catalog) == {m.manifest_path for m in change.added}


def test_a_snapshot_that_has_expired_is_a_conflict(catalog):
    table = six(catalog)
    change = rewrite(table)

    def others():
        deleting(table, "c")()
        swap(latest(table), RemoveSnapshots(tuple(s.snapshot_id for s in table.metadata.snapshots)))

    catalog.follow(after(others))
    with pytest.raises(ConflictError, match="plan again"):
        run(table, change)
    assert live(latest(table)) == dict.fromkeys("abdef", 1)


@pytest.mark.parametrize("what", ["manifest", "list"])
def test_a_manifest_or_list_that_was_collected_is_a_conflict(catalog, what):
    table = six(catalog)
    change = rewrite(table)

    def others():
        deleting(table, "c")()
        gone = {m.manifest_path for m in change.replaced} - {row["manifest_path"] for row in raw_list(latest(table))}
        lists = {table.metadata.current_snapshot.manifest_list}
        table.storage.delete_many(sorted(gone if what == "manifest" else lists))

    catalog.follow(after(others))
    with pytest.raises(ConflictError, match=r"what was read has expired since .*; plan again") as raised:
        run(table, change)
    assert raised.value.exit_status == 75


class WritesAgain:
    """Another engine that writes the entries of the branch again, each changed by a function, and so many times."""

    def __init__(self, changed, times=1):
        self.changed, self.times = changed, times

    def apply(self, base, attempt):
        manifests = live_manifests(base, "main", attempt)
        entries = [*live_entries(manifests.data, base, attempt)]
        new = [replace(self.changed(e), status=Status.EXISTING) for e in entries]
        rows = [row for time in range(self.times) for row in attempt.write_manifests(time, new, 0)]
        return attempt.snapshot_updates("replace", [*rows, *manifests.deletes], SummaryBuilder())


@pytest.mark.parametrize(
    "changed",
    [
        lambda e: replace(e, data_file=replace(e.data_file, record_count=9)),
        lambda e: replace(e, data_file=replace(e.data_file, lower_bounds={1: b"12345678"})),
        lambda e: replace(e, data_file=replace(e.data_file, sort_order_id=0)),
        lambda e: replace(e, sequence_number=1),
        lambda e: replace(e, file_sequence_number=1),
        lambda e: replace(e, snapshot_id=1),
    ],
)
def test_files_of_which_others_say_something_else_are_a_conflict(catalog, changed):
    table = six(catalog)
    change = rewrite(table)
    catalog.follow(after(lambda: run(latest(table), WritesAgain(changed))))
    with pytest.raises(ConflictError, match="does not say the same of files as was read of them; plan again"):
        run(table, change)


def test_maps_in_another_order_say_the_same(catalog):
    table = memory_table(catalog)
    bounds = {1: b"12345678", 2: b"x"}
    table = add(table, replace(data_file("a"), lower_bounds=bounds), data_file("b"))

    def changed(entry):
        if entry.data_file.lower_bounds is None:
            return entry
        return replace(entry, data_file=replace(entry.data_file, lower_bounds=dict(reversed(bounds.items()))))

    change = rewrite(table)
    catalog.follow(after(lambda: run(latest(table), WritesAgain(changed))))
    assert kept_as_staged(run(table, change).table) == [0]


def test_row_ids_that_were_given_meanwhile_are_a_conflict(catalog):
    """Read after an upgrade to version 3 and before its first commit, files have no ids."""
    table = six(catalog)
    table = swap(table, UpgradeFormatVersion(3))
    change = rewrite(table)
    catalog.follow(after(lambda: add(latest(table), "z")))
    with pytest.raises(ConflictError, match="were given row ids since they were read; plan again"):
        run(table, change)


def test_row_ids_stay_with_their_files_through_an_upgrade(catalog):
    table = swap(six(catalog), UpgradeFormatVersion(3))
    table = add(table, "g")
    ids = {e.data_file.file_path: e.data_file.first_row_id for e in entries_of(table)}
    assert None not in ids.values()
    done = run_beside(table, deleting(table, "c")).table
    assert {e.data_file.file_path: e.data_file.first_row_id for e in entries_of(done)} == {
        path: number for path, number in ids.items() if path != path_of("c")
    }


@pytest.mark.parametrize(("most", "count"), [(2, 3), (5, 6), (6, None)])
def test_more_files_than_are_followed_are_a_conflict(catalog, monkeypatch, most, count):
    # Two in the manifest that is gone and one in that which came for it; then all six, any of which may be the one.
    table = six(catalog)
    change = rewrite(table)
    monkeypatch.setattr(following, "_READ_MAX_COUNT", most)
    catalog.follow(after(deleting(table, "c")))
    if count is None:
        assert kept_as_staged(run(table, change).table) == [0, 2]
        return
    with pytest.raises(ConflictError, match=f"{count} files would have to be read to follow .*; plan again"):
        run(table, change)


def test_manifests_of_other_kinds_do_not_count(catalog, monkeypatch):
    table = add_deletes(six(catalog), *(equality_deletes(f"e{n}") for n in range(20)))
    change = rewrite(table, chosen=lambda m: m.content is ManifestContent.DATA)
    monkeypatch.setattr(following, "_READ_MAX_COUNT", 6)

    def others():
        run(latest(table), RowDelta(removed_deletes=entries_of(table, "e7")))
        deleting(table, "c")()

    catalog.follow(after(others))
    assert kept_as_staged(run(table, change).table) == [0, 2]


def test_a_partition_spec_that_is_gone_is_a_conflict(catalog):
    table = memory_table(catalog, spec=BY_KIND)
    table = swap(table, AddPartitionSpec(replace(BY_KIND, spec_id=1, fields=())))
    table = add(add(table, data_file("a", spec_id=1)), data_file("x", partition=("x",)))
    change = rewrite(table)

    def others():
        deleting(table, "a")()
        run(latest(table), RewriteManifests(replaced=tuple(m for m in dead(latest(table))), added=()))
        swap(latest(table), RemovePartitionSpecs((1,)))

    catalog.follow(after(others))
    with pytest.raises(ConflictError, match="partition spec 1 of replaced manifests is no longer there; plan again"):
        run(table, change)


def dead(table):
    reader = StorageManifestReader(table.storage)
    return [m for m in reader.manifests(table.metadata.current_snapshot) if not m.may_have_live_files]


def test_new_manifests_that_lack_a_file_are_a_bug(catalog):
    """The job left one out and put another in twice: that is seen where the one is looked for."""
    table = six(catalog)
    added = staged(table, "wrong-1", entries_of(table, *"abd")), staged(table, "wrong-2", entries_of(table, *"aef"))
    change = replace(rewrite(table), added=added)
    catalog.follow(after(deleting(table, "c")))
    with pytest.raises(IcekeepBug, match="hold 6 live files, the replaced ones 5"):
        run(table, change)
    assert live(latest(table)) == dict.fromkeys("abdef", 1)


@pytest.mark.parametrize("times", [1, 2])
def test_a_file_in_two_manifests_is_refused(catalog, times):
    table = six(catalog) if times == 2 else add(six(catalog), "a")
    change = rewrite(table)
    catalog.follow(after(lambda: run(latest(table), WritesAgain(lambda e: e, times))))
    with pytest.raises(InvalidTableError, match="a file is live in two manifests of the table"):
        run(table, change)
