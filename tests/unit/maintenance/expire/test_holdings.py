"""What references keep alive, against sets of paths worked out one snapshot at a time."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from icekeep.commit.changes.rewrites import RewriteFiles
from icekeep.commit.manifests import ManifestReader
from icekeep.commit.retry import commit
from icekeep.errors import SafetyError
from icekeep.maintenance.expire.holdings import ref_holdings
from kit.storage import HookedStorage, Meeting
from kit.tables import add, entries_of, files, memory_table, set_ref

pytestmark = pytest.mark.slow


def no_spark():
    raise AssertionError("Spark has no part in this")


def sets(table):
    """The live files of the snapshots that each reference leads to, as paths with sizes."""
    metadata, reader = table.metadata, ManifestReader(table.storage)
    live = {
        s.snapshot_id: {
            (e.data_file.file_path, e.data_file.file_size_in_bytes)
            for m in reader.manifests(s)
            for e in reader.entries(m, metadata)
            if e.is_live
        }
        for s in metadata.snapshots
    }
    held, known = {}, set()
    for name, ref in metadata.refs.items():
        chain = [s.snapshot_id for s in metadata.ancestors(ref.snapshot_id)]
        ids = chain if ref.is_branch else chain[:1]
        known.update(ids)
        held[name] = set().union(*(live[i] for i in ids))
    young = [live[i] for i in live if i not in known]
    if young:
        held[None] = set().union(*young)
    return held


def check(table):
    held = sets(table)
    found = {one.ref: one for one in ref_holdings(table.metadata, table.storage, no_spark)}
    assert found.keys() == held.keys()
    for name, own in held.items():
        others = set().union(*(other for key, other in held.items() if key != name))
        one = found[name]
        assert (one.files_count, one.bytes) == (len(own), sum(size for _, size in own))
        assert (one.only_files_count, one.only_bytes) == (len(own - others), sum(size for _, size in own - others))
    return found


def history():
    table = memory_table()
    for name in "abc":
        table = add(table, name)
    table = set_ref(table, "t1", table.metadata.snapshots[0].snapshot_id)
    table = set_ref(table, "side", table.metadata.snapshots[1].snapshot_id, "branch")
    table = add(table, "s", branch="side")
    return commit(table, RewriteFiles(removed=entries_of(table, "a"), added=files("a2"), schema_id=0)).table


def test_a_file_is_held_by_all_that_lead_to_it_and_would_go_with_the_only_one():
    found = check(history())
    assert (found["t1"].files_count, found["t1"].only_files_count) == (1, 0)
    assert (found["side"].snapshots_count, found["side"].only_files_count) == (3, 1)
    assert found["main"].snapshots_count == 4


def test_snapshots_that_nothing_leads_to_are_told_apart():
    table = history()
    metadata = table.metadata
    left = {name: ref for name, ref in metadata.refs.items() if name != "side"}
    found = check(replace(table, metadata=replace(metadata, refs=left)))
    assert (found[None].snapshots_count, found[None].only_files_count) == (1, 1)


def test_the_one_that_holds_most_comes_first():
    table = history()
    assert next(one.ref for one in ref_holdings(table.metadata, table.storage, no_spark)) == "main"


def test_more_references_than_a_word_has_bits_are_told_apart():
    table = memory_table()
    for number in range(70):
        table = add(table, f"f{number}")
    for number, snapshot in enumerate(table.metadata.snapshots):
        table = set_ref(table, f"t{number}", snapshot.snapshot_id)
    found = check(table)
    assert found["t69"].files_count == 70


@given(st.randoms(use_true_random=False))
def test_generated_references_hold_what_sets_say(chance):
    table = memory_table()
    branches = ["main"]
    for number in range(chance.randint(3, 12)):
        table = add(table, f"f{number}", branch=chance.choice(branches))
        snapshot_id = chance.choice(table.metadata.snapshots).snapshot_id
        kind = chance.choice(["tag", "branch", None])
        if kind:
            table = set_ref(table, f"r{number}", snapshot_id, kind)
        if kind == "branch":
            branches.append(f"r{number}")
    check(table)


def test_a_manifest_that_cannot_be_read_is_an_error():
    table = history()
    manifest = ManifestReader(table.storage).manifests(table.metadata.snapshots[0])[0]
    table.storage.delete_many([manifest.manifest_path])
    with pytest.raises(SafetyError, match="what references keep alive cannot be determined"):
        ref_holdings(table.metadata, table.storage, no_spark)


def test_the_lists_of_many_tags_are_read_at_the_same_time():
    table = history()
    for number, snapshot in enumerate(table.metadata.snapshots):
        table = set_ref(table, f"tag{number}", snapshot.snapshot_id)
    meeting = Meeting(2)
    read = replace(table, storage=HookedStorage(table.storage, before=meeting.at("snap-")))
    assert ref_holdings(read.metadata, read.storage, no_spark) == ref_holdings(table.metadata, table.storage, no_spark)
    assert meeting.took_place
