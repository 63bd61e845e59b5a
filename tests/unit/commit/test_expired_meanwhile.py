"""Commits whose snapshot, or somebody's in its place, has expired before anybody looked; upgrades between two attempts."""

import pytest

from icekeep.commit.changes.definitions import ChangeProperties
from icekeep.commit.changes.files import AppendFiles
from icekeep.commit.changes.rewrites import RewriteFiles, RewriteManifests
from icekeep.commit.retry import commit
from icekeep.errors import ConflictError, OutcomeUnknownError
from icekeep.spec.updates import RemoveSnapshots, UpgradeFormatVersion
from kit.changes import Applying
from kit.memory_catalog import LANDS_BUT_SAYS_CONFLICT, MemoryCatalog, after
from kit.tables import (
    EVENTS,
    add,
    data_file,
    entries_of,
    files,
    live,
    manifests_of,
    memory_table,
    staged_manifest,
    stored,
    swap,
)


def add_and_expire(catalog: MemoryCatalog, *names: str) -> None:
    """Another writer's commits, and then nothing but the last of all snapshots is left."""
    for name in names:
        add(catalog.load(EVENTS), name)
    table = catalog.load(EVENTS)
    swap(table, RemoveSnapshots(tuple(s.snapshot_id for s in table.metadata.snapshots[:-1])))


@pytest.mark.parametrize("version", [1, 2, 3])
def test_a_conflict_is_in_doubt_where_the_snapshot_in_our_place_has_expired(version: int):
    catalog = MemoryCatalog()
    table = add(memory_table(catalog, format_version=version), "a")
    late = Applying(AppendFiles(files=files("late")), attempt_1=lambda: add_and_expire(catalog, "b", "c"))
    with pytest.raises(OutcomeUnknownError, match="may have been this very commit, expired since"):
        commit(table, late, runtime=catalog.runtime)
    # Nobody knows whether the list of this attempt is named: it stays.
    assert any("snap-" in location for location in stored(catalog))


@pytest.mark.parametrize("version", [1, 2, 3])
def test_a_conflict_is_believed_where_the_snapshot_in_our_place_is_there(version: int):
    catalog = MemoryCatalog()
    table = add(memory_table(catalog, format_version=version), "a")
    late = Applying(AppendFiles(files=files("late")), attempt_1=lambda: add(catalog.load(EVENTS), "b"))
    assert live(commit(table, late, runtime=catalog.runtime).table) == {"a": 1, "b": 1, "late": 1}


def test_a_change_without_a_snapshot_is_tried_again_whatever_has_expired():
    catalog = MemoryCatalog()
    table = add(memory_table(catalog), "a")
    late = Applying(ChangeProperties(updates={"k": "v"}), attempt_1=lambda: add_and_expire(catalog, "b", "c"))
    assert commit(table, late, runtime=catalog.runtime).table.metadata.properties["k"] == "v"


def test_manifests_of_one_format_version_are_not_used_again_after_an_upgrade():
    catalog = MemoryCatalog()
    table = add(add(memory_table(catalog, format_version=1), "a", "b"), "c")
    change = RewriteFiles(removed=entries_of(table, "a"), added=(data_file("new"),), schema_id=0)
    upgrade = Applying(change, attempt_1=lambda: swap(catalog.load(EVENTS), UpgradeFormatVersion(2)))
    after_it = commit(table, upgrade, runtime=catalog.runtime).table
    assert live(after_it) == {"b": 1, "c": 1, "new": 1}
    assert {e.sequence_number for e in entries_of(after_it, "b", "c")} == {0}


def test_rewritten_manifests_that_were_given_row_ids_meanwhile_are_a_conflict():
    table = swap(add(add(memory_table(), "a"), "b"), UpgradeFormatVersion(3))
    change = RewriteManifests(
        replaced=tuple(manifests_of(table)), added=(staged_manifest(table, entries_of(table)),), format_version=3
    )
    add(table, "c")
    with pytest.raises(ConflictError, match="no longer in the table as it was read"):
        commit(table, change, runtime=table.catalog.runtime)


def test_a_kept_manifest_that_was_given_row_ids_meanwhile_is_marked_anew():
    catalog = MemoryCatalog()
    table = swap(add(memory_table(catalog), "a", "b"), UpgradeFormatVersion(3))
    entry = entries_of(table, "a")
    change = RewriteFiles(removed=entry, added=(data_file("new"),), schema_id=0, format_version=3)
    # The file that is replaced was read without a row id, and has one when the change is tried again.
    late = Applying(change, attempt_1=lambda: add(catalog.load(EVENTS), "c"))
    with pytest.raises(ConflictError, match="no longer live as it was read"):
        commit(table, late, runtime=catalog.runtime)


def test_our_own_commit_is_met_again_although_the_answer_was_a_conflict():
    catalog = MemoryCatalog()
    table = add(memory_table(catalog), "a")
    catalog.script.append(after(lambda: None, LANDS_BUT_SAYS_CONFLICT))
    assert live(commit(table, AppendFiles(files=files("b")), runtime=catalog.runtime).table) == {"a": 1, "b": 1}
