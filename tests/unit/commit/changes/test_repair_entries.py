import pytest
from msgspec.structs import replace

from icekeep.commit.changes.files import DeleteFiles
from icekeep.commit.changes.repair_entries import RepairedEntry, RepairEntries
from icekeep.commit.changes.rewrites import RewriteManifests
from icekeep.commit.manifests import ManifestReader
from icekeep.errors import ConflictError, IcekeepBug, InvalidTableError
from kit.cases import Choices
from kit.changes import Applying, run
from kit.damager import Damager
from kit.tables import (
    EVENTS,
    add,
    entries_of,
    live,
    manifests_of,
    memory_table,
    orphans,
    raw_entries,
    raw_list,
    staged_manifest,
)

VERSIONS = (1, 2, 3)


@pytest.fixture(params=VERSIONS)
def table(catalog, request):
    """Three files in the oldest manifest, of which one is gone, and one in a newer one."""
    made = add(memory_table(catalog, format_version=request.param), "a", "b", "gone")
    path = entries_of(made, "gone")[0].data_file.file_path
    return add(run(made, DeleteFiles(paths=frozenset({path}))).table, "c")


def damager(catalog):
    return Damager(catalog, EVENTS, Choices(1))


def all_entries(table):
    """By name of the file: its live entry, and where it is."""
    reader = ManifestReader(table.storage)
    return {
        entry.data_file.file_path.rsplit("/", 1)[-1]: (manifest.manifest_path, index, entry)
        for manifest in manifests_of(table)
        for index, entry in enumerate(reader.entries(manifest, table.metadata))
        if entry.is_live
    }


def mended(table, name, **changes):
    """An entry described otherwise; one that goes if nothing is changed."""
    manifest, index, entry = all_entries(table)[name]
    file = replace(entry.data_file, **changes) if changes else None
    return RepairedEntry(manifest=manifest, index=index, planned=entry, file=file)


def mend(table, *entries, **options):
    return RepairEntries(entries=entries, format_version=table.metadata.format_version, **options)


def totals(table):
    summary = table.metadata.current_snapshot.summary
    return {key: int(summary[key]) for key in summary if key.startswith("total-")}


@pytest.mark.parametrize("mended_name", ["a", "c"])
def test_only_the_description_changes(catalog, table, mended_name):
    before = {name: entry for name, (_, _, entry) in all_entries(table).items()}
    done = run(table, mend(table, mended(table, mended_name, file_size_in_bytes=70, split_offsets=(4,)))).table
    after = {name: entry for name, (_, _, entry) in all_entries(done).items()}
    wanted = replace(before[mended_name].data_file, file_size_in_bytes=70, split_offsets=(4,))
    numbers = ("snapshot_id", "sequence_number", "file_sequence_number")
    for name, entry in before.items():
        assert after[name].data_file == (wanted if name == mended_name else entry.data_file)
        assert [getattr(after[name], n) for n in numbers] == [getattr(entry, n) for n in numbers]
    # What was deleted before is dropped from the manifest that is written anew, and stays in the other.
    assert [e.name for e in raw_entries(done) if e.status == 2] == ([] if mended_name == "a" else ["gone"])
    assert {e.name: e.status for e in raw_entries(done)}[mended_name] == 0
    assert totals(done) == {**totals(table), "total-files-size": totals(table)["total-files-size"] - 30}
    summary = done.metadata.current_snapshot.summary
    assert summary["operation"] == "replace"
    assert not [key for key in summary if key.startswith(("added-", "removed-", "deleted-", "changed-"))]
    # The manifest of the other file stays the same file.
    assert {row["manifest_path"] for row in raw_list(done)} & {row["manifest_path"] for row in raw_list(table)}
    assert orphans(catalog) == set()


def test_an_entry_that_goes_is_marked_as_deleted(table):
    done = run(table, mend(table, mended(table, "a"))).table
    assert live(done) == {"b": 1, "c": 1}
    assert [(e.name, e.snapshot_id) for e in raw_entries(done) if e.status == 2] == [
        ("a", done.metadata.current_snapshot_id)
    ]
    summary = done.metadata.current_snapshot.summary
    assert (summary["operation"], summary["deleted-data-files"]) == ("delete", "1")
    assert totals(done)["total-records"] == totals(table)["total-records"] - 10


def test_a_doubled_entry_goes_without_a_mark(catalog, table):
    place = next(p for p in damager(catalog).entries() if p.file["file_path"].endswith("/a"))
    damager(catalog).edit_manifest(place.manifest, lambda entries: entries.append(dict(entries[place.index])))
    table = catalog.load(EVENTS)
    assert live(table)["a"] == 2
    done = run(table, mend(table, replace(mended(table, "a"), is_deleted=False), recounts_totals=True)).table
    assert live(done) == {"a": 1, "b": 1, "c": 1}
    assert [e.name for e in raw_entries(done) if e.status == 2] == []
    assert totals(done)["total-data-files"] == 3
    assert done.metadata.current_snapshot.summary["operation"] == "overwrite"


def test_totals_are_counted_anew_from_all_live_files(catalog, table):
    damager(catalog).edit_metadata(
        lambda document: [
            s["summary"].update({"total-records": "777", "total-data-files": "lots"}) for s in document["snapshots"]
        ]
    )
    wrong = catalog.load(EVENTS)
    done = run(wrong, mend(wrong, recounts_totals=True)).table
    assert totals(done) == totals(table)
    assert raw_list(done) == raw_list(wrong)
    both = run(wrong, mend(wrong, mended(wrong, "a", record_count=4), recounts_totals=True)).table
    assert totals(both)["total-records"] == 24


@pytest.mark.parametrize("wrong", ["manifest_length", "added_rows_count", "existing", "min_sequence_number"])
def test_manifest_with_wrong_list_row_is_rewritten(catalog, table, wrong):
    """A manifest that its list misdescribes is rewritten with the entries that it really holds."""
    first = raw_list(table)[-1]
    if wrong == "existing":
        wrong = next(name for name in ("existing_files_count", "existing_data_files_count") if name in first)
    if wrong not in first:
        assert table.metadata.format_version == 1
        return
    before = {name: entry for name, (_, _, entry) in all_entries(table).items()}
    damager(catalog).edit_row(first["manifest_path"], **{wrong: first[wrong] + 3})
    spoilt = catalog.load(EVENTS)
    done = run(spoilt, mend(spoilt, rows=frozenset({first["manifest_path"]}))).table
    after = {name: entry for name, (_, _, entry) in all_entries(done).items()}
    assert {n: replace(e, status=0) for n, e in after.items() if n != "c"} == {
        n: replace(e, status=0) for n, e in before.items() if n != "c"
    }
    assert live(done) == live(table)


def test_a_manifest_that_may_be_cut_off_is_not_written_anew(catalog, table):
    row = raw_list(table)[-1]
    files = next(name for name in ("added_files_count", "added_data_files_count") if name in row)
    path = row["manifest_path"]
    damager(catalog).edit_row(path, manifest_length=row["manifest_length"] + 9, **{files: row[files] + 1})
    spoilt = catalog.load(EVENTS)
    with pytest.raises(InvalidTableError, match=r"holds . added entries"):
        run(spoilt, mend(spoilt, rows=frozenset({path})))
    assert catalog.load(EVENTS).metadata_location == spoilt.metadata_location
    assert orphans(catalog) == set()


def test_a_manifest_that_is_listed_twice_is_listed_once(catalog, table):
    damager(catalog).edit_rows(lambda rows: rows.append(dict(rows[0])))
    spoilt = catalog.load(EVENTS)
    assert live(spoilt)["c"] == 2
    path = raw_list(spoilt)[0]["manifest_path"]
    with pytest.raises(InvalidTableError, match=r"is listed twice; fix that first$"):
        run(spoilt, mend(spoilt, rows=frozenset({path})))
    done = run(spoilt, mend(spoilt, once=frozenset({path}), recounts_totals=True)).table
    assert live(done) == {"a": 1, "b": 1, "c": 1}
    assert totals(done) == totals(table)


def test_what_others_append_meanwhile_stays(catalog, table):
    change = Applying(mend(table, mended(table, "a", file_size_in_bytes=70)), attempt_1=lambda: add(table, "theirs"))
    done = run(table, change).table
    assert len(change.bases) == 2
    assert live(done) == {"a": 1, "b": 1, "c": 1, "theirs": 1}
    assert totals(done)["total-records"] == 40
    assert orphans(catalog) == set()


def _rewritten(table):
    run(
        table, RewriteManifests(replaced=tuple(manifests_of(table)), added=(staged_manifest(table, entries_of(table)),))
    )


def _deleted(table):
    run(table, DeleteFiles(paths=frozenset({entries_of(table, "a")[0].data_file.file_path})))


@pytest.mark.parametrize("others", [_rewritten, _deleted], ids=["rewritten", "deleted"])
def test_repair_conflicts_with_rewritten_or_removed_entry(catalog, table, others):
    change = mend(table, mended(table, "a", file_size_in_bytes=70))
    others(table)
    now = catalog.load(EVENTS)
    with pytest.raises(ConflictError, match="no longer in the table"):
        run(table, change)
    assert catalog.load(EVENTS).metadata_location == now.metadata_location


def test_repair_conflicts_with_entry_that_differs_from_plan(table):
    one = mended(table, "a", file_size_in_bytes=70)
    planned = replace(one.planned, data_file=replace(one.planned.data_file, record_count=11))
    with pytest.raises(ConflictError, match="is not live any more as it was read"):
        run(table, mend(table, replace(one, planned=planned)))
    gone = replace(one, index=99)
    with pytest.raises(ConflictError, match="is not live any more as it was read"):
        run(table, mend(table, gone))


def test_an_entry_never_becomes_that_of_another_file(table):
    with pytest.raises(IcekeepBug, match="would be one of another file"):
        run(table, mend(table, mended(table, "a", file_path="memory://lake/other")))


def test_nothing_to_mend_commits_nothing(table):
    assert not run(table, mend(table)).changed
