"""Manifest lists that are gone, beside manifests that failed attempts of the same commit left: rows never change."""

import pytest

from icekeep.commit import retry
from icekeep.commit.changes.definitions import ChangeProperties
from icekeep.commit.changes.files import AppendFiles, DeleteFiles
from icekeep.commit.manifests import ManifestReader
from icekeep.commit.retry import commit
from icekeep.tables.verbs import append
from kit.cases import scaled, seeds
from kit.choices import Choices
from kit.lost_lists import Lost, mended_by, parent_of, some_rows, three_files
from kit.memory_catalog import after
from kit.naive_scan import live_entries
from kit.written_deletes import new_data_files

pytestmark = pytest.mark.slow

MERGES = {"commit.manifest-merge.enabled": "true", "commit.manifest.min-count-to-merge": "2"}


def other_file(entries):
    """Another file of as many rows and bytes."""
    for entry in entries:
        entry["data_file"]["file_path"] += ".other"


def of_nobody(entries):
    """Existing entries of files that nobody knows."""
    other_file(entries)
    for entry in entries:
        entry.update(status=0, snapshot_id=42, sequence_number=1, file_sequence_number=1)


def of_another_snapshot(entries):
    for entry in entries:
        entry.update(snapshot_id=42)


@pytest.mark.parametrize("version", [1, 2, 3])
def test_copies_of_manifests_that_a_failed_attempt_left_change_nothing(version):
    lost = Lost(version)
    lost.left_over()
    lost.left_over()
    lost.mended()
    lost.is_back()


@pytest.mark.parametrize("change", [of_nobody, of_another_snapshot])
def test_manifests_of_an_attempt_on_something_else_are_passed_over(change):
    lost = Lost()
    lost.left_over(change)
    lost.mended()
    lost.is_back()


def test_two_choices_that_differ_in_a_file_are_refused():
    lost = Lost()
    lost.left_over(other_file)
    lost.is_left(mended_by(lost.by.table), "2 choices of manifests")


@pytest.mark.parametrize("count", [1, 2])
def test_leftovers_that_keep_one_of_two_files_do_not_stand_for_both(count):
    by = three_files()
    append(by.table, [some_rows(by), some_rows(by)])
    two = ManifestReader(by.table.storage).manifests(by.table.metadata.head("main"))[0]
    known = {e.data_file.file_path: e for e in live_entries(by.table)}
    append(by.table, [some_rows(by)])
    lost = Lost(by=by)

    def one_kept(entries):
        entries.sort(key=lambda entry: entry["data_file"]["file_path"])
        del entries[1:]
        for entry in entries:
            old = known[entry["data_file"]["file_path"]]
            entry.update(status=0, snapshot_id=old.snapshot_id)
            entry.update(sequence_number=old.sequence_number, file_sequence_number=old.file_sequence_number)

    for _ in range(count):
        lost.left_over(one_kept, source=two.manifest_path)
    assert len(lost.damager.records(two.manifest_path)) == 2
    lost.mended()
    lost.is_back()


def test_a_leftover_that_adds_what_is_live_already_does_not_stand_for_what_is_lost():
    lost = Lost()
    known = ManifestReader(lost.table.storage).manifests(parent_of(lost.table))[0].manifest_path

    def added(entries):
        for entry in entries:
            entry.update(status=1, snapshot_id=lost.table.metadata.current_snapshot_id, sequence_number=None)

    lost.left_over(added, source=known)
    lost.damager.remove(lost.own)
    del lost.files[lost.own]
    lost.is_left(mended_by(lost.by.table), "no choice of the 1 manifests")


def test_a_choice_that_adds_other_rows_does_not_fit():
    lost = Lost()

    def more_rows(entries):
        other_file(entries)
        entries[0]["data_file"]["record_count"] += 1

    lost.left_over(more_rows)
    lost.mended()
    lost.is_back()


def test_two_manifests_that_take_away_different_files_of_one_size_are_refused():
    """A retried delete that found another file the second time."""
    by = three_files()
    live = {e.data_file.file_path: e for e in live_entries(by.table)}
    commit(by.table, DeleteFiles(paths=frozenset([min(live)])))
    lost = Lost(by=by)
    manifests = [m.manifest_path for m in ManifestReader(by.table.storage).manifests(parent_of(by.table))]
    other = next(m for m in manifests if lost.damager.records(m)[0]["data_file"]["file_path"] == max(live))

    def as_gone(entries):
        for entry in entries:
            known = live[entry["data_file"]["file_path"]]
            entry.update(
                status=2,
                snapshot_id=by.table.metadata.current_snapshot_id,
                sequence_number=known.sequence_number,
                file_sequence_number=known.file_sequence_number,
            )

    lost.left_over(as_gone, source=other)
    lost.is_left(mended_by(by.table), "2 choices of manifests")


def test_a_manifest_that_describes_a_file_anew_is_refused():
    by = three_files()
    entry = next(e for e in live_entries(by.table) if e.snapshot_id != by.table.metadata.current_snapshot_id)
    lost = Lost(by=by)
    source = next(m.manifest_path for m in ManifestReader(lost.table.storage).manifests(parent_of(lost.table)))

    def described(entries):
        entries[0].update(
            status=0,
            snapshot_id=entry.snapshot_id,
            sequence_number=entry.sequence_number,
            file_sequence_number=entry.file_sequence_number,
        )
        entries[0]["data_file"]["file_path"] = entry.data_file.file_path
        entries[0]["data_file"]["sort_order_id"] = 5

    lost.left_over(described, source=source)
    lost.is_left(mended_by(lost.by.table), "describes file")


def test_more_manifests_than_can_be_tried_are_refused():
    lost = Lost()
    for _ in range(13):
        lost.left_over()
    lost.is_left(mended_by(lost.by.table), "12 are tried at most")


def test_leftovers_where_another_manifest_is_gone_are_refused():
    lost = Lost()
    lost.left_over(of_nobody, gap=1)
    lost.is_left(mended_by(lost.by.table), "others are gone")


@pytest.mark.parametrize("version", [1, 2, 3])
def test_manifests_that_a_conflict_left_change_nothing(version, monkeypatch):
    """Two attempts of an append that merges, each on another base, of which nothing was cleaned up."""
    monkeypatch.setattr(retry, "remove_unused", lambda files, snapshot: None)
    by = three_files(version)
    table = commit(by.table, ChangeProperties(updates=MERGES)).table
    files = new_data_files(table, some_rows(by))
    theirs = new_data_files(table, some_rows(by))
    by.catalog.follow(after(lambda: commit(by.table, AppendFiles(files=theirs, merges_manifests=False))))
    commit(table, AppendFiles(files=files))
    assert not by.catalog.script
    lost = Lost(by=by)
    assert len([path for path in lost.files if f"/{lost.uuid}-m" in path]) > 2
    lost.mended()
    lost.is_back()


def by_lot(chosen: Choices, live, snapshot_id: int):
    """A change of entries into some that are new, kept and gone."""

    def change(entries):
        entries[:] = chosen.sample(entries, chosen.randint(1, len(entries)))
        for entry in entries:
            file = entry["data_file"]
            old = live.get(file["file_path"])
            status = chosen.choice((0, 0, 1, 2)) if old else 1
            entry.update(status=status, snapshot_id=old.snapshot_id if status == 0 else snapshot_id)
            if status != 1 and "sequence_number" in entry:
                entry.update(sequence_number=old.sequence_number, file_sequence_number=old.file_sequence_number)
            if status == 0 and "first_row_id" in file:
                file["first_row_id"] = old.data_file.first_row_id
            if status == 1 and chosen.random() < 0.3:
                file["file_path"] += ".other"

    return change


def doubtful(seed: int) -> bool:
    """Whether a list is mended beside copies of manifests, in part, whose entries are others by lot; if so it is right."""
    chosen = Choices(seed)
    by = three_files(chosen.choice((1, 2, 3)))
    append(by.table, [some_rows(by), some_rows(by)])
    live = {e.data_file.file_path: e for e in live_entries(by.table)}
    sources = [m.manifest_path for m in ManifestReader(by.table.storage).manifests(by.table.metadata.head("main"))]
    if chosen.random() < 0.5:
        append(by.table, [some_rows(by), some_rows(by)])
    else:
        commit(by.table, DeleteFiles(paths=frozenset(chosen.sample(sorted(live), 2))))
    lost = Lost(by=by)
    change = by_lot(chosen, live, by.table.metadata.current_snapshot_id)
    for _ in range(chosen.randint(1, 4)):
        lost.left_over(change, source=chosen.choice([*sources, lost.own]))
    result = mended_by(by.table)
    if result.mended:
        lost.is_back()
    else:
        lost.is_left(result)
    return bool(result.mended)


def test_leftovers_of_any_kind_never_change_a_row():
    """What is live is live again, or the list is left."""
    mended = [doubtful(seed) for seed in seeds(scaled(40, least=10))]
    assert 0 < sum(mended) < len(mended)
