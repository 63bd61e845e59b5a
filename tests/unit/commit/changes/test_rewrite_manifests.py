"""Manifests that take the place of others: what is live stays what it is, whoever commits meanwhile."""

from collections import Counter
from contextlib import suppress

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from icekeep import __version__
from icekeep.commit.changes.deletes import RowDelta
from icekeep.commit.changes.files import AppendFiles, DeleteFiles, OverwriteFiles
from icekeep.commit.changes.rewrites import RewriteFiles, RewriteManifests
from icekeep.commit.changes.snapshots import SetCurrentSnapshot
from icekeep.commit.dangling import dangling_deletes_count
from icekeep.commit.live_files import add as added_files
from icekeep.commit.live_files import live_manifests, remove
from icekeep.commit.manifests import ManifestReader
from icekeep.commit.summary import SummaryBuilder
from icekeep.errors import ConflictError, IcekeepBug
from icekeep.spec.manifests.structs import FileContent, ManifestContent, ManifestEntry, Status
from icekeep.spec.reach import own_path
from icekeep.spec.updates import SetProperties, UpgradeFormatVersion
from kit.changes import Applying, run
from kit.deletes import (
    AddDeleteFile,
    SaidToHold,
    add_deletes,
    deletion_vector,
    equality_deletes,
    path_of,
    position_deletes,
)
from kit.memory_catalog import CONFLICTS, MemoryCatalog, after
from kit.rewritten_manifests import deleting, kept_as_staged, latest, live_in, names, run_beside, six, staged, stated
from kit.rewritten_manifests import rewrite_staged as rewrite
from kit.storage import HookedStorage, MemoryStorage
from kit.tables import (
    BY_KIND,
    EVENTS,
    RawEntry,
    add,
    data_file,
    entries_of,
    files,
    live,
    manifests_of,
    memory_table,
    orphans,
    raw_entries,
    raw_list,
    set_ref,
    staged_manifest,
    stored,
    swap,
)


@pytest.fixture
def catalog():
    return MemoryCatalog(HookedStorage(MemoryStorage()))


@pytest.fixture
def table(catalog):
    """Three commits of one manifest each."""
    return add(add(add(memory_table(catalog), "a"), "b"), "c")


def rewrite_all(table, name="optimized-m-1", **options):
    """A change that puts all live entries into one manifest, which is written already."""
    return RewriteManifests(
        replaced=tuple(manifests_of(table)), added=(staged_manifest(table, entries_of(table), name),), **options
    )


def test_the_same_files_are_in_other_manifests(table):
    done = run(table, rewrite_all(table)).table
    assert live(done) == live(table) == {"a": 1, "b": 1, "c": 1}
    (manifest,) = raw_list(done)
    assert manifest["manifest_path"].endswith("/optimized-m-1.avro")
    assert manifest["added_snapshot_id"] == done.metadata.current_snapshot_id
    assert (manifest["sequence_number"], manifest["min_sequence_number"]) == (4, 1)
    assert (manifest["added_files_count"], manifest["existing_files_count"], manifest["existing_rows_count"]) == (
        0,
        3,
        30,
    )


def test_every_file_keeps_its_snapshot_and_both_sequence_numbers(table):
    done = run(table, rewrite_all(table)).table
    snapshots = {s.sequence_number: s.snapshot_id for s in table.metadata.snapshots}
    assert sorted(raw_entries(done)) == [
        RawEntry(name, 0, snapshots[number], number, number) for number, name in enumerate("abc", start=1)
    ]
    assert {e.data_file for e in entries_of(done)} == {e.data_file for e in entries_of(table)}


def test_the_summary_counts_manifests_and_blanks_no_total(table):
    # seaweedfs PR #10420: a maintenance commit without totals makes every later one lose total-records.
    before = table.metadata.current_snapshot.summary
    summary = run(table, rewrite_all(table, summary={"job": "nightly"})).table.metadata.current_snapshot.summary
    assert summary["operation"] == "replace"
    assert {key: summary[key] for key in summary if key.startswith("total-")} == {
        key: before[key] for key in before if key.startswith("total-")
    }
    assert summary["total-records"] == "30"
    assert {key: summary[key] for key in summary if key.startswith(("manifests-", "entries-"))} == {
        "manifests-created": "1",
        "manifests-kept": "0",
        "manifests-replaced": "3",
        "entries-processed": "3",
    }
    assert summary["job"] == "nightly"
    assert not [key for key in summary if key.startswith(("added-", "deleted-", "changed-"))]


def test_appends_meanwhile_cost_nothing_and_stay_listed():
    storage = HookedStorage(MemoryStorage())
    catalog = MemoryCatalog(storage)
    table = add(add(memory_table(catalog), "a"), "b")
    opened, written = [], []
    change = Applying(rewrite_all(table))

    def note(what, at):
        if "-m" in at and "/snap-" not in at and what in ("read", "write"):
            (opened if what == "read" else written).append(at)

    def append_others():
        storage.before = lambda *_: None
        add(table, "theirs")
        storage.before = note

    storage.before = note
    catalog.follow(after(append_others), CONFLICTS)
    result = run(table, change)
    assert len(change.bases) == 3
    assert (opened, written) == ([], [])
    assert live(result.table) == {"a": 1, "b": 1, "theirs": 1}
    assert result.table.metadata.current_snapshot.summary["manifests-kept"] == "1"
    assert result.table.metadata.current_snapshot.summary["total-records"] == "30"
    assert orphans(catalog) == set()


def test_new_manifests_come_before_those_that_are_kept(table):
    first, second, third = manifests_of(table)
    merged = staged_manifest(table, [e for e in entries_of(table) if e.sequence_number < 3])
    change = RewriteManifests(replaced=(second, third), added=(merged,))
    done = run(add(table, "d"), change).table
    paths = [m["manifest_path"] for m in raw_list(done)]
    assert (len(paths), paths[0], paths[2]) == (3, merged.manifest_path, first.manifest_path)
    assert live(done) == {"a": 1, "b": 1, "c": 1, "d": 1}


def test_a_manifest_that_others_replaced_is_a_conflict(table):
    change = rewrite_all(table)

    def remove_b():
        run(table, RewriteFiles(removed=entries_of(table, "b"), added=files("b2"), schema_id=0))

    table.catalog.follow(after(remove_b))
    with pytest.raises(ConflictError, match=r"manifest 'memory.*' \(1 in all\) is no longer in the table") as raised:
        run(table, change)
    assert raised.value.exit_status == 75
    assert live(table.catalog.load(EVENTS)) == {"a": 1, "b2": 1, "c": 1}
    assert orphans(table.catalog) == {change.added[0].manifest_path}


def test_of_two_rewrites_at_the_same_time_one_wins(table):
    mine, theirs = rewrite_all(table), rewrite_all(table, "optimized-m-2")
    table.catalog.follow(after(lambda: run(table, theirs)))
    with pytest.raises(ConflictError, match=r"\(3 in all\)"):
        run(table, mine)
    assert live(table.catalog.load(EVENTS)) == {"a": 1, "b": 1, "c": 1}
    assert raw_list(table.catalog.load(EVENTS))[0]["manifest_path"].endswith("optimized-m-2.avro")


def test_a_staged_manifest_stays_good_over_attempts(table):
    table.catalog.follow(CONFLICTS, CONFLICTS)
    done = run(table, rewrite_all(table)).table
    (manifest,) = raw_list(done)
    assert (manifest["sequence_number"], manifest["added_snapshot_id"]) == (4, done.metadata.current_snapshot_id)
    assert live(done) == {"a": 1, "b": 1, "c": 1}


def staged_of(table, *entries):
    return staged_manifest(table, entries)


@pytest.mark.parametrize("fewer", [1, 2])
def test_manifests_that_hold_other_numbers_of_files_are_a_bug(table, fewer):
    change = RewriteManifests(
        replaced=tuple(manifests_of(table)), added=(staged_of(table, *entries_of(table)[fewer:]),)
    )
    with pytest.raises(IcekeepBug, match=f"hold {3 - fewer} live files, the replaced ones 3"):
        run(table, change)
    assert live(table.catalog.load(EVENTS)) == {"a": 1, "b": 1, "c": 1}


@pytest.mark.parametrize("kind", ["added_files_count", "deleted_files_count"])
def test_manifests_with_other_than_existing_entries_are_a_bug(table, kind):
    added = msgspec.structs.replace(staged_of(table, *entries_of(table)), **{kind: 1})
    with pytest.raises(IcekeepBug):
        run(table, RewriteManifests(replaced=tuple(manifests_of(table)), added=(added,)))


def test_manifests_that_list_nothing_live_can_be_left_out(catalog):
    table = add(memory_table(catalog), "a")
    table = run(table, RewriteFiles(removed=entries_of(table), added=files("b"), schema_id=0)).table
    dead = tuple(m for m in manifests_of(table) if not m.may_have_live_files)
    assert len(dead) == 1
    done = run(table, RewriteManifests(replaced=dead, added=())).table
    assert live(done) == {"b": 1}
    assert len(raw_list(done)) == 1


def test_manifests_that_list_nothing_live_may_be_gone(catalog):
    table = add(memory_table(catalog), "a")
    table = run(table, RewriteFiles(removed=entries_of(table), added=files("b"), schema_id=0)).table
    change = rewrite_all(table)
    assert [m.live_files_count for m in change.replaced] == [1, 0]
    catalog.follow(after(lambda: add(table, "c")))
    done = run(table, change).table
    assert (live(done), len(raw_list(done))) == ({"b": 1, "c": 1}, 2)
    assert done.metadata.current_snapshot.summary["manifests-replaced"] == "1"


def test_row_ids_are_set_aside_as_iceberg_does_it(catalog):
    """All new data manifests are given a first row id and room for all their rows, though their files have ids of their own.

    The spec leaves it to writers who know that they have (row lineage, "Example"); Iceberg sets it aside whatever they have.
    """
    table = add(add(memory_table(catalog, format_version=3), "a"), "b")
    ids = {e.data_file.file_path: e.data_file.first_row_id for e in entries_of(table)}
    assert (sorted(ids.values()), table.metadata.next_row_id) == ([0, 10], 20)
    done = run(table, rewrite_all(table)).table
    assert {e.data_file.file_path: e.data_file.first_row_id for e in entries_of(done)} == ids
    assert [row["first_row_id"] for row in raw_list(done)] == [20]
    assert (done.metadata.current_snapshot.first_row_id, done.metadata.current_snapshot.added_rows) == (20, 20)
    assert done.metadata.next_row_id == 40


def test_nothing_to_replace_is_no_commit(table):
    swaps, before = len(table.catalog.swaps), stored(table.catalog)
    assert run(table, RewriteManifests(replaced=(), added=())).changed is False
    assert (len(table.catalog.swaps), stored(table.catalog)) == (swaps, before)


def test_on_an_empty_table_no_manifest_is_there_any_more(catalog):
    table = memory_table(catalog)
    gone = ManifestEntry(
        status=Status.EXISTING, data_file=data_file("a"), snapshot_id=1, sequence_number=1, file_sequence_number=1
    )
    manifest = staged_of(table, gone)
    with pytest.raises(ConflictError):
        run(table, RewriteManifests(replaced=(manifest,), added=(manifest,)))


def test_empty_manifest_of_v1_snapshot_is_dropped(catalog):
    """Nothing tells which snapshot added it, so that no manifest list can name it."""
    table = add(add(memory_table(catalog, format_version=1), "a"), "b")
    one, other = manifests_of(table)
    empty = staged_manifest(table, (), "empty")
    snapshot = msgspec.structs.replace(
        table.metadata.current_snapshot,
        manifest_list=None,
        manifests=(one.manifest_path, other.manifest_path, empty.manifest_path),
    )
    metadata = msgspec.structs.replace(table.metadata, snapshots=(*table.metadata.snapshots[:-1], snapshot))
    catalog._locations[table.identifier] = catalog._write(metadata, 99)
    table = catalog.load(table.identifier)
    assert None in [m.added_snapshot_id for m in manifests_of(table)]
    change = RewriteManifests(replaced=(one,), added=(staged_manifest(table, entries_of_one(table, one), "new"),))
    done = run(table, change).table
    assert live(done).keys() == {"a", "b"}
    assert len(raw_list(done)) == 2


def entries_of_one(table, manifest):
    return [e for e in ManifestReader(table.storage).entries(manifest, table.metadata) if e.is_live]


MERGING = {"commit__manifest__min_count_to_merge": "2"}

_NAMES = [f"{kind}{n}" for kind in "xy" for n in range(4)]
_ACTS = st.lists(
    st.tuples(
        st.sampled_from(["append", "delete", "compact", "overwrite", "deletes", "undelete", "manifests", "rollback"]),
        st.integers(0, 1000),
    ),
    max_size=3,
)


class Others:
    """What others do, as far as the table allows it at that moment."""

    def __init__(self, table):
        self.table, self.count = table, 0

    def new(self, kind):
        self.count += 1
        return data_file(f"{kind}-new{self.count}", partition=(kind,))

    def act_all(self, acts):
        for what, at in acts:
            # Theirs may be refused.
            with suppress(ConflictError):
                self.act(what, at)

    def act(self, what, at):
        self.count += 1
        table = latest(self.table)
        entries = entries_of(table) if table.metadata.current_snapshot else ()
        data = [e for e in entries if e.data_file.content is FileContent.DATA]
        deletes = [e for e in entries if e.data_file.content is not FileContent.DATA]
        one = data[at % len(data)] if data else None
        kind = "x" if one is None else one.data_file.partition[0]
        version = table.metadata.format_version
        if what == "append":
            run(table, AppendFiles(files=(self.new(kind),)))
        elif what == "delete" and one:
            run(table, DeleteFiles(paths=frozenset({one.data_file.file_path})))
        elif what == "compact" and one and not deletes:
            some = tuple(e for e in data if e.data_file.partition == (kind,))[: 1 + at % 3]
            number = min(e.sequence_number for e in some)
            added = replace(self.new(kind), record_count=10 * len(some))
            run(table, RewriteFiles(removed=some, added=(added,), schema_id=0, data_sequence_number=number))
        elif what == "overwrite" and one:
            run(table, OverwriteFiles(removed=(one,), added=(self.new(kind),)))
        elif what == "deletes" and one and version > 1:
            name = one.data_file.file_path.rsplit("/", 1)[-1]
            where = {"partition": (kind,)}
            new = deletion_vector if version > 2 and at % 2 else None
            if new is None:
                add_deletes(table, equality_deletes(f"e{self.count}", **where))
            else:
                add_deletes(table, deletion_vector(f"v{self.count}", name, **where))
        elif what == "undelete" and deletes:
            run(table, RowDelta(removed_deletes=(deletes[at % len(deletes)],)))
        elif what == "manifests" and entries:
            change = rewrite(
                table,
                each=1 + at % 4,
                prefix=f"theirs-{self.count}",
                chosen=lambda m: at % 3 or m.content is ManifestContent.DATA,
            )
            run(table, change)
        elif what == "rollback":
            snapshots = [s.snapshot_id for s in table.metadata.snapshots]
            now = table.metadata.current_snapshot_id
            run(table, SetCurrentSnapshot(snapshot_id=snapshots[at % len(snapshots)], expected_id=now))


@pytest.mark.slow
@given(st.sampled_from([1, 2, 3]), st.booleans(), _ACTS, _ACTS, _ACTS, st.integers(1, 5), st.booleans(), st.booleans())
def test_only_manifests_that_others_replaced_are_refused(
    version, merges, before, first, second, each, drops, takes_all
):
    table = memory_table(MemoryCatalog(), spec=BY_KIND, format_version=version, **(MERGING if merges else {}))
    for one, other in batched_pairs(_NAMES):
        table = add(table, *(data_file(name, partition=(name[0],)) for name in (one, other)))
    others = Others(table)
    others.act_all(before)
    table, left = latest(table), []

    def acting(acts):
        def do():
            others.act_all(acts)
            left.append(stated(latest(table)))

        return do

    change = rewrite(
        table,
        each=each,
        chosen=lambda m: takes_all or len(m.manifest_path + str(m.manifest_length)) % 2,
        format_version=version,
        drop_dangling_deletes=drops,
    )
    table.catalog.follow(after(acting(first)), after(acting(second)))
    left.append(stated(table))
    try:
        result = run(table, change)
    except ConflictError:
        assert {m.manifest_path for m in change.replaced} - {row["manifest_path"] for row in raw_list(latest(table))}
        assert stated(latest(table)) == left[-1]
        assert orphans(table.catalog) <= {m.manifest_path for m in change.added}
        return
    found = stated(result.table)
    if drops:
        gone = Counter(left[-1]) - Counter(found)
        assert not any("FileContent.DATA" in said for said in gone)
        assert gone.total() == int(result.summary.get("removed-delete-files", 0))
        found = sorted([*found, *gone.elements()])
        reader = ManifestReader(result.table.storage)
        assert dangling_deletes_count(result.table.metadata, "main", reader) == 0
    assert found == left[-1]
    assert orphans(table.catalog) == set()


def batched_pairs(names):
    return zip(names[::2], names[1::2], strict=True)


X, Y, Z = {"partition": ("x",)}, {"partition": ("y",)}, {"partition": ("z",)}


def parted(catalog, version=2):
    """A file in `x` and `y` each, equality deletes in both, and two in `z`, where they reach nothing."""
    table = memory_table(catalog, spec=BY_KIND, format_version=version)
    for kind in "xy":
        table = add(table, data_file(f"{kind}1", partition=(kind,)))
    table = add_deletes(table, equality_deletes("ex", **X), equality_deletes("ez", **Z))
    return add_deletes(table, equality_deletes("ey", **Y), equality_deletes("ez2", **Z))


def count(table, branch="main"):
    return dangling_deletes_count(table.metadata, branch, ManifestReader(table.storage))


DROP = RewriteManifests(replaced=(), added=(), drop_dangling_deletes=True)


@pytest.mark.parametrize("version", [2, 3])
def test_they_leave_new_manifests_and_those_that_are_kept(catalog, version):
    table = parted(catalog, version)
    change = rewrite(table, chosen=lambda m: m.sequence_number != 3, each=3, drop_dangling_deletes=True)
    before = stated(table)
    assert count(table) == 2
    done = run(table, change)
    assert live(done.table) == {"x1": 1, "y1": 1, "ex": 1, "ey": 1}
    assert [said for said in before if "data/ez" not in said] == stated(done.table)
    # The data's as it was staged; both of the deletes were written again, and hold what this snapshot has deleted.
    assert kept_as_staged(done.table) == [0]
    assert [row["deleted_files_count"] for row in raw_list(done.table)] == [0, 1, 1]
    assert orphans(catalog) == set()
    assert count(done.table) == 0


def test_the_summary_counts_them(catalog):
    table = parted(catalog)
    summary = run(table, rewrite(table, drop_dangling_deletes=True)).summary
    assert {key: summary[key] for key in summary if not key.startswith("total-")} == {
        "operation": "replace",
        "icekeep.commit-id": summary["icekeep.commit-id"],
        "engine-name": "icekeep",
        "engine-version": __version__,
        "manifests-created": "3",
        "manifests-kept": "0",
        "manifests-replaced": "4",
        "entries-processed": "4",
        "removed-delete-files": "2",
        "removed-equality-delete-files": "2",
        "removed-equality-deletes": "2",
        "removed-files-size": "20",
        "changed-partition-count": "1",
    }
    assert (summary["total-delete-files"], summary["total-data-files"]) == ("2", "2")


def test_what_is_not_asked_for_stays(catalog):
    table = parted(catalog)
    assert live(run(table, rewrite(table)).table) == live(table)


def test_dropping_dangling_deletes_alone_is_a_commit(catalog):
    table = add_deletes(parted(catalog), equality_deletes("ey2", **Y))
    done = run(table, DROP)
    assert live(done.table) == {"x1": 1, "y1": 1, "ex": 1, "ey": 1, "ey2": 1}
    assert [done.summary[f"manifests-{what}"] for what in ("created", "kept", "replaced")] == ["2", "3", "2"]
    rows, now = raw_list(done.table), done.table.metadata.current_snapshot_id
    assert [row["added_snapshot_id"] == now for row in rows] == [True, True, False, False, False]
    again = run(done.table, DROP)
    assert not again.changed


def test_nothing_that_dangles_is_no_commit(catalog):
    table = memory_table(catalog)
    assert count(table) == 0
    assert not run(table, DROP).changed
    table = add(table, "a")
    swaps = len(catalog.swaps)
    assert (count(table), run(table, DROP).changed) == (0, False)
    table = add_deletes(table, equality_deletes("e"))
    assert (count(table), run(table, DROP).changed, len(catalog.swaps)) == (0, False, swaps + 1)


def test_vectors_of_a_file_that_is_gone(catalog):
    table = add(memory_table(catalog, format_version=3), "a", "b", "c")
    table = add_deletes(table, deletion_vector("v", "a", 4), deletion_vector("v", "b", 44))
    table = run(table, DropsDataFile("b")).table
    assert (live(table)["v"], count(table)) == (2, 1)
    done = run(table, rewrite(table, drop_dangling_deletes=True)).table
    assert [e.data_file.referenced_data_file for e in entries_of(done, "v")] == [path_of("a")]
    summary = done.metadata.current_snapshot.summary
    assert (summary["removed-dvs"], summary["removed-position-deletes"]) == ("1", "1")


def test_proven_position_deletes_of_removed_file_are_dropped(catalog):
    """As Iceberg Java writes them in version 2: an older file beside keeps the sequence numbers of the partition low."""
    table = add(memory_table(catalog), "old", "a", "b", "cut-1")
    for name, path in (("true", "a"), ("lies", "a"), ("live", "b"), ("cut", "cut")):
        change = AddDeleteFile(position_deletes(name, path))
        table = run(table, change).table
    table = run(table, DropsDataFile("a")).table
    proof = SaidToHold("true", "live")
    reader = ManifestReader(table.storage)
    assert count(table) == 0
    assert dangling_deletes_count(table.metadata, "main", reader, proof) == 1
    assert not run(table, DROP).changed
    proof.asked.clear()
    done = run(table, replace(DROP, proof=proof)).table
    assert live(done) == {"old": 1, "b": 1, "cut-1": 1, "lies": 1, "live": 1, "cut": 1}
    assert sorted(proof.asked) == ["cut", "lies", "true"]


def test_proven_position_deletes_skip_newer_file_at_path(catalog):
    """Position deletes whose bounds name one file do not reach a newer file at the same path."""
    table = run(add(memory_table(catalog), "old", "a"), AddDeleteFile(position_deletes("p", "a"))).table
    change = replace(DROP, proof=SaidToHold("p"))
    assert not run(table, change).changed
    table = add(run(table, DropsDataFile("a")).table, "a")
    assert live(run(table, change).table) == {"old": 1, "a": 1}


def test_proof_of_one_delete_entry_does_not_cover_others(catalog):
    """A delete file listed twice is proven for each entry on its own."""
    table = add(memory_table(catalog), "old", "a")
    for path in ("a", "gone"):
        table = run(table, AddDeleteFile(position_deletes("p", path))).table
    table = run(table, DropsDataFile("a")).table
    assert live(run(table, replace(DROP, proof=hold_paths_of_a)).table) == {"old": 1, "p": 1}


def hold_paths_of_a(storage, files):
    return [file for file in files if own_path(file) == path_of("a").encode()]


class DropsDataFile:
    """Another engine's commit that removes a data file and leaves what is for it."""

    def __init__(self, name):
        self.name = name

    def apply(self, base, attempt):
        manifests = live_manifests(attempt, "main")
        entries = (e for m in manifests.data for e in attempt.reader.entries(m, base) if e.is_live)
        gone = [entry for entry in entries if entry.data_file.file_path == path_of(self.name)]
        kept = remove(manifests.data, attempt, as_read=tuple(gone))
        return attempt.snapshot_updates("delete", [*kept.manifests, *manifests.deletes], kept.summary)


def test_it_is_decided_by_what_the_branch_holds(catalog):
    table = add(memory_table(catalog, spec=BY_KIND), data_file("x1", **X))
    table = set_ref(table, "other", table.metadata.current_snapshot_id, "branch")
    table = add_deletes(table, equality_deletes("ex", **X), branch="other")
    table = add_deletes(table, equality_deletes("ez", **Z), branch="other")
    table = add_deletes(table, equality_deletes("ez", **Z))
    assert (count(table), count(table, "other")) == (1, 1)
    done = run(table, rewrite(table, branch="other", drop_dangling_deletes=True)).table
    assert live(done, "other") == {"x1": 1, "ex": 1}
    assert live(done)["ez"] == 1


def test_dangling_deletes_are_decided_on_committed_base(catalog):
    """nimtable/iceberg-compaction #163: the removal is decided on the base that it is committed to."""
    table = add(parted(catalog), data_file("x2", **X))
    change = rewrite(table, chosen=lambda m: m.content is ManifestContent.DELETES, drop_dangling_deletes=True)

    def second():
        now = latest(table)
        x1, start = entries_of(now, "x1"), now.metadata.current_snapshot_id
        run(now, OverwriteFiles(removed=x1, added=(data_file("x3", **X),), starting_snapshot_id=start))

    swaps = len(catalog.swaps)
    catalog.follow(after(lambda: run(latest(table), BringsOld("z1"))), after(second))
    done = run(table, change)
    assert len(catalog.swaps) == swaps + 5
    # `z1` is old enough for `ez` and `ez2`; all in `x` is newer than `ex` by now.
    assert live(done.table) == {"y1": 1, "z1": 1, "x2": 1, "x3": 1, "ey": 1, "ez": 1, "ez2": 1}
    assert orphans(catalog) == set()


class BringsOld:
    """Another engine's commit of a data file of partition `z` with an old sequence number."""

    def __init__(self, name):
        self.name = name

    def apply(self, base, attempt):
        manifests = live_manifests(attempt, "main")
        summary = SummaryBuilder()
        added = added_files((data_file(self.name, **Z),), attempt, summary, sequence_number=1)
        return attempt.snapshot_updates("append", [*added, *manifests.data, *manifests.deletes], summary)


def test_position_deletes_older_than_partition_are_dropped(catalog):
    table = add(memory_table(catalog), "a")
    table = add_deletes(table, position_deletes("p", "a"), named=("a",))
    table = run(table, DropsDataFile("a")).table
    table = add(table, "b")
    change = rewrite(table, drop_dangling_deletes=True)
    assert live(run(table, change).table) == {"b": 1}
    assert len(names(latest(table))) == 2


def test_a_second_attempt_asks_only_what_is_new(catalog):
    table = parted(catalog)
    change = rewrite(table, drop_dangling_deletes=True)
    opened, new = [], []

    def others():
        new.append(manifests_of(add(latest(table), data_file("x9", **X)))[0].manifest_path)
        catalog.storage.before = lambda what, at: opened.append(at) if what == "read" and "-m" in at else None

    catalog.follow(after(others))
    done = run(table, change).table
    # What the list says of the new one is no proof that it has no data file for the delete files that go.
    assert opened == new
    assert live(done) == {"x1": 1, "x9": 1, "y1": 1, "ex": 1, "ey": 1}


def test_manifests_of_deletes_alone_are_filtered(catalog):
    table = parted(catalog)
    change = rewrite(table, chosen=lambda m: m.content is ManifestContent.DELETES, drop_dangling_deletes=True)
    data = {r["manifest_path"] for r in raw_list(table) if not r["content"]}
    done = run(table, change).table
    assert data < {r["manifest_path"] for r in raw_list(done)}


@pytest.fixture(params=[1, 2, 3])
def version(request):
    return request.param


# What others do to a replaced manifest


def merging(table):
    swap(latest(table), SetProperties({"commit.manifest.min-count-to-merge": "1"}))
    add(latest(table), "new")
    assert len(raw_list(latest(table))) == 1


def compacting(table):
    entries = entries_of(table, "a", "c")
    number = min(e.sequence_number for e in entries)
    run(latest(table), RewriteFiles(removed=entries, added=files("ac"), schema_id=0, data_sequence_number=number))


ACTS = {
    # Iceberg's `testManifestReplacementConcurrentConflictingDelete`.
    "delete": lambda table: run(latest(table), DeleteFiles(paths=frozenset({path_of("c")}))),
    "delete all": lambda table: run(latest(table), DeleteFiles(paths=frozenset(map(path_of, "abcdef")))),
    "overwrite": lambda table: run(
        latest(table), OverwriteFiles(removed=entries_of(table, "a", "c"), added=files("ac"))
    ),
    # Iceberg's `testManifestReplacementCombinedWithRewriteConcurrentDelete`.
    "compact": compacting,
    # Iceberg's `testRewriteManifestDuringAppend`, where the append merges manifests.
    "merge": merging,
    # Iceberg's `testConcurrentRewriteManifest`.
    "rewrite": lambda table: run(latest(table), rewrite(table, each=6, prefix="theirs")),
}


@pytest.mark.parametrize("act", ACTS)
def test_a_replaced_manifest_that_is_gone_is_a_conflict(catalog, version, act):
    table = six(catalog, version)
    change, left = rewrite(table), []
    catalog.follow(after(lambda: (ACTS[act](table), left.append(stated(latest(table))))))
    with pytest.raises(ConflictError, match=r"\(\d in all\) is no longer in the table as it was read") as raised:
        run(table, change)
    assert (raised.value.is_outpaced, raised.value.exit_status) == (False, 75)
    assert stated(latest(table)) == left[0]
    assert orphans(catalog) == {m.manifest_path for m in change.added}


def test_what_a_rollback_takes_out_is_a_conflict(catalog):
    table = six(catalog)
    before = table.metadata.current_snapshot_id
    table = run(table, DeleteFiles(paths=frozenset({path_of("c")}))).table
    change, now = rewrite(table), table.metadata.current_snapshot_id
    catalog.follow(after(lambda: run(latest(table), SetCurrentSnapshot(snapshot_id=before, expected_id=now))))
    with pytest.raises(ConflictError, match="is no longer in the table as it was read"):
        run(table, change)
    assert live(latest(table)) == dict.fromkeys("abcdef", 1)


def test_another_format_version_is_a_conflict(catalog):
    table = six(catalog)
    change = rewrite(table, format_version=2)
    catalog.follow(CONFLICTS, after(lambda: swap(latest(table), UpgradeFormatVersion(3))))
    with pytest.raises(ConflictError, match="the table has format version 3 now"):
        run(table, change)
    assert orphans(catalog) == {m.manifest_path for m in change.added}


def test_a_refusal_leaves_nothing_that_an_earlier_attempt_wrote(catalog):
    """It wrote a manifest without the delete file that reaches nothing, and lost its swap."""
    table = add(memory_table(catalog, spec=BY_KIND), data_file("a", partition=("x",)))
    table = add_deletes(table, *(equality_deletes(f"e{kind}", partition=(kind,)) for kind in "xy"))
    change, written = rewrite(table, each=9, drop_dangling_deletes=True), []
    catalog.storage.before = lambda what, at: written.append(at) if what == "write" and "/snap-" not in at else None
    catalog.follow(CONFLICTS, after(deleting(table, "a")))
    with pytest.raises(ConflictError, match="is no longer in the table as it was read"):
        run(table, change)
    assert [at for at in written if at.endswith(".avro")]
    assert orphans(catalog) <= {m.manifest_path for m in change.added}


@pytest.mark.parametrize("version", [2, 3])
def test_manifests_of_deletes_are_as_those_of_data(catalog, version):
    """Iceberg's `testDeleteManifestReplacementConflictingDeleteFileRemoval`."""
    deletes = equality_deletes("q") if version == 2 else deletion_vector("v", "a", 4)
    table = add_deletes(six(catalog, version), deletes)
    gone = tuple(e for e in entries_of(table) if e.data_file.file_path == deletes.file_path)
    change = rewrite(table, chosen=lambda m: m.content is ManifestContent.DELETES)
    catalog.follow(after(lambda: run(latest(table), RowDelta(removed_deletes=gone))))
    with pytest.raises(ConflictError, match="is no longer in the table as it was read"):
        run(table, change)


# What others do elsewhere


def test_deletion_in_kept_manifest_needs_no_rewrite(catalog, version):
    """Iceberg's `testManifestReplacementConcurrentDelete`."""
    table = add(six(catalog, version), "z1", "z2")
    change = rewrite(table, chosen=lambda m: live_in(table, m)[0].data_file.file_path < path_of("z"))
    done = run_beside(table, deleting(table, "z1"), change=change).table
    assert kept_as_staged(done) == [0, 1, 2]
    assert live(done) == dict.fromkeys([*"abcdef", "z2"], 1)


def test_appends_are_not_even_read(catalog):
    """Iceberg's `testManifestReplacementConcurrentAppend` and `testAppendDuringRewriteManifest`."""
    table, opened, new = six(catalog), [], []

    def others():
        add(latest(table), "z")
        new.append(raw_list(latest(table))[0]["manifest_path"])
        catalog.storage.before = lambda what, at: opened.append(at) if what == "read" else None

    result = run_beside(table, others, lambda: None)
    catalog.storage.before = lambda *_: None
    assert opened
    assert new[0] not in opened
    assert names(result.table)[new[0].rsplit("/", 1)[-1]] == {"z"}
    assert kept_as_staged(result.table) == [0, 1, 2]


@pytest.mark.parametrize("version", [2, 3])
def test_only_manifests_of_deletes_are_replaced(catalog, version):
    """Iceberg's `testReplaceDeleteManifestsOnly`, and `testDeleteManifestReplacementConcurrentAppend`."""
    table = add_deletes(six(catalog, version), equality_deletes("q1"))
    table = add_deletes(table, equality_deletes("q2"))
    change = rewrite(table, chosen=lambda m: m.content is ManifestContent.DELETES)

    def others():
        add(latest(table), "z")
        deleting(table, "c")()

    done = run_beside(table, others, change=change).table
    assert (live(done)["z"], live(done)["q1"], kept_as_staged(done)) == (1, 1, [0])


def test_the_summary_counts_what_is_listed_in_the_end(catalog):
    table = six(catalog)
    summary = run_beside(table, lambda: add(latest(table), "z")).table.metadata.current_snapshot.summary
    assert {key: int(summary[key]) for key in summary if key.startswith(("manifests-", "entries-"))} == {
        "manifests-created": 3,
        "manifests-kept": 1,
        "manifests-replaced": 3,
        "entries-processed": 6,
    }
    assert (summary["total-data-files"], summary["total-records"]) == ("7", "70")
    assert not [key for key in summary if key.startswith(("added-", "deleted-", "changed-"))]


def test_what_happens_on_other_branches_costs_nothing(catalog, version):
    table = six(catalog, version)
    table = set_ref(table, "other", table.metadata.current_snapshot_id, "branch")
    main = stated(table)
    done = run_beside(table, deleting(table, "c"), branch="other").table
    assert live(done, "other") == dict.fromkeys("abcdef", 1)
    assert kept_as_staged(done) == []
    assert stated(done) != main
    change = rewrite(done, prefix="again")
    done.catalog.follow(after(deleting(done, "f", branch="other")))
    last = run(done, change).table
    assert {row["manifest_path"] for row in raw_list(last)} == {m.manifest_path for m in change.added}
    assert live(last, "other") == dict.fromkeys("abcde", 1)


def test_each_attempt_begins_with_what_was_planned(catalog, version):
    table = add(six(catalog, version), "y")
    change = rewrite(table, chosen=lambda m: len(live_in(table, m)) == 2)
    acts = deleting(table, "y"), lambda: add(latest(table), "z"), deleting(table, "z")
    done = run_beside(table, *acts, change=change).table
    assert live(done) == dict.fromkeys("abcdef", 1)
    assert kept_as_staged(done) == [0, 1, 2]


# What a job did wrong


def test_new_manifests_that_lack_a_file_are_a_bug(catalog):
    table = six(catalog)
    change = replace(rewrite(table), added=(staged(table, "wrong", entries_of(table, *"abdef")),))
    with pytest.raises(IcekeepBug, match="hold 5 live files, the replaced ones 6"):
        run(table, change)
    assert live(latest(table)) == dict.fromkeys("abcdef", 1)
