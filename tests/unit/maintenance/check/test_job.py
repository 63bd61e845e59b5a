"""The job as a whole: which faults only older snapshots have, and who made them."""

from copy import deepcopy

import pytest

from icekeep.commit.changes.files import DeleteFiles
from icekeep.commit.retry import commit
from icekeep.errors import MissingFileError
from icekeep.maintenance.check import by_file
from icekeep.maintenance.check.faults import CLASSES, FaultId
from icekeep.maintenance.check.job import check
from icekeep.maintenance.manifests.job import rewrite_manifests
from kit.cases import Choices
from kit.checked_entries import put_files, remove_file
from kit.damage import DAMAGE, checked, found_in, spoil
from kit.damager import CannotDamageError, Damager
from kit.deletes import path_of
from kit.row_histories import History, in_memory
from kit.runtime import no_spark
from kit.tables import EVENTS, add, manifests_of, memory_table, set_ref

BELOW_METADATA = sorted(number for number in DAMAGE if number > 200)


def damager(table):
    return Damager(table.catalog, EVENTS, Choices(1))


def only_older(table, ref=None):
    """By number of a fault what is said."""
    result = check(table.refresh(), no_spark, ref=ref)
    return {one.fault_id: one.is_only_older for one in (*result.faults, *result.notices)}


@pytest.fixture
def table():
    """Two snapshots, each with a file in a manifest of its own; the second has both."""
    table = memory_table(commit__manifest_merge__enabled="false")
    return put_files(add(add(table, "a"), "b"))


@pytest.fixture(scope="module")
def histories():
    return [History.of(number, in_memory()).by for number in range(12)]


def keep_the_head(damager):
    head = damager.head()
    damager.edit_metadata(lambda document: document.update(snapshots=[head], refs={}))


@pytest.mark.parametrize(
    "number", sorted({*BELOW_METADATA} - {FaultId.FIRST_ROW_ID_LOST}), ids=lambda number: CLASSES[number].name
)
def test_a_table_of_one_snapshot_has_no_older_ones(histories, number):
    for seed, by in enumerate(histories * 3):
        catalog = deepcopy(by.catalog)
        keep_the_head(Damager(catalog, by.identifier, Choices(seed)))
        try:
            spoil(catalog, by.identifier, seed, number)
        except CannotDamageError:
            continue
        result = checked(catalog, by.identifier)
        assert number in found_in(result)
        assert [found.fault_id for found in (*result.faults, *result.notices) if found.is_only_older] == []
        return
    pytest.fail("none of the tables could be spoilt so")


def makers(table):
    """By number of a fault who is said to have made it, of all and of each example."""
    result = check(table.refresh(), no_spark)
    return {one.fault_id: {one.made_by, *(example.made_by for example in one.examples)} for one in result.faults}


def test_who_made_a_fault(table):
    row = damager(table).rows()[-1]
    damager(table).edit_row(row["manifest_path"], added_rows_count=77)
    [maker] = makers(table)[205]
    assert maker.startswith("icekeep")
    # The snapshot before the oldest one is expired: the manifest may have been in that.
    keep_the_head(damager(table))
    assert makers(table)[205] == {None}


def test_a_rewrite_makes_no_faults_of_files(table):
    place = damager(table).entry()
    damager(table).edit_file(place, split_offsets=[5, 3])
    assert makers(table)[230] != {None}
    rewrite_manifests(table.refresh(), no_spark)
    table = table.refresh()
    keep_from = table.metadata.current_snapshot_id
    damager(table).edit_metadata(
        lambda document: document.update(snapshots=[s for s in document["snapshots"] if s["snapshot-id"] == keep_from])
    )
    assert makers(table)[230] == {None}


def gone(damager, row):
    damager.remove(row["manifest_path"])


def cut(damager, row):
    damager.write(row["manifest_path"], damager.read(row["manifest_path"])[:-20])


def unknown_spec(damager, row):
    damager.edit_row(row["manifest_path"], partition_spec_id=77)


def no_location(damager, row):
    damager.edit_row(row["manifest_path"], manifest_path="")


BREAKS = pytest.mark.parametrize(
    ("number", "harm"),
    [(202, gone), (202, cut), (210, unknown_spec), (202, no_location)],
    ids=["gone", "cut", "unknown-spec", "no-location"],
)


@BREAKS
def test_a_manifest_of_the_head(table, number, harm):
    newest = max(damager(table).rows(), key=lambda row: row["sequence_number"])
    harm(damager(table), newest)
    assert only_older(table)[number] is False
    assert only_older(table, ref="main")[number] is False


@BREAKS
def test_a_manifest_of_another_head(table, number, harm):
    branched = add(set_ref(table, "b", table.metadata.current_snapshot_id, "branch"), "c", branch="b")
    harm(damager(branched), {"manifest_path": own_manifest(branched, "b")})
    assert only_older(branched)[number] is False
    assert number not in only_older(branched, ref="main")


@BREAKS
def test_a_manifest_of_an_older_snapshot(table, number, harm):
    tagged = set_ref(table, "t", table.metadata.current_snapshot_id)
    harmed = next(row for row in damager(tagged).rows() if row["manifest_path"] == own_manifest(tagged))
    rewrite_manifests(tagged, no_spark)
    harm(damager(tagged), harmed)
    assert only_older(tagged)[number] is True


def own_manifest(table, ref="main"):
    """The manifest that the newest commit of a branch wrote."""
    head = table.metadata.head(ref)
    rows = damager(table).records(head.manifest_list)
    return next(row["manifest_path"] for row in rows if row["added_snapshot_id"] == head.snapshot_id)


def test_a_manifest_list_of_an_older_snapshot(table):
    first, second = table.metadata.snapshots
    damager(table).remove(first.manifest_list)
    assert only_older(table)[201] is True
    damager(table).remove(second.manifest_list)
    assert only_older(table)[201] is False


def test_a_file_of_both_heads(table):
    """Each in a manifest of its own."""
    before = {one.manifest_path for one in manifests_of(table)}
    rewrite_manifests(table, no_spark)
    assert before.isdisjoint(one.manifest_path for one in manifests_of(table.refresh()))
    remove_file(table, path_of("a"))
    assert only_older(table) == {301: False}


def test_a_missing_file_beside_an_unreadable_manifest(table):
    rewrite_manifests(table, no_spark)
    damager(table).remove(manifests_of(table.refresh())[0].manifest_path)
    remove_file(table, path_of("a"))
    assert only_older(table) == {202: False, 301: False}


def test_a_missing_file_beside_a_manifest_that_goes(table, monkeypatch):
    rewrite_manifests(table, no_spark)
    remove_file(table, path_of("a"))
    [of_head] = [manifest.manifest_path for manifest in manifests_of(table.refresh())]
    decoded = by_file.decode

    def decode(task):
        if of_head in [manifest.manifest_path for manifest in task.manifests]:
            raise MissingFileError(f"file {of_head!r} is not there")
        return decoded(task)

    monkeypatch.setattr(by_file, "decode", decode)
    assert only_older(table) == {301: False}


def test_a_missing_file_of_no_head(table):
    commit(table, DeleteFiles(paths=frozenset({path_of("a")})), runtime=table.runtime)
    remove_file(table, path_of("a"))
    assert only_older(table) == {301: True}


def test_a_head_with_an_older_list(table):
    location = table.metadata.snapshots[0].manifest_list
    damager(table).edit_metadata(lambda document: document["snapshots"][1].update({"manifest-list": location}))
    damager(table).edit_rows(lambda rows: rows[0].update(partition_spec_id=77))
    assert only_older(table)[210] is False


def test_a_manifest_spelled_in_another_way(table):
    """A fault tells the spelling of the list that has it, and a manifest is known by that of the oldest list."""

    older = min(damager(table).rows(), key=lambda row: row["sequence_number"])["manifest_path"]
    spelled = older.replace("/metadata/", "//metadata/")
    damager(table).edit_rows(
        lambda rows: [
            row.update(manifest_path=spelled, sequence_number=77) for row in rows if row["manifest_path"] == older
        ]
    )
    assert only_older(table)[208] is False
