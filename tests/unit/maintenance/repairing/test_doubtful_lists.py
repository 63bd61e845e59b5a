"""Manifest lists that are gone: put together where every number that is said fits, else left, and why is told."""

import pytest

from icekeep.commit.manifests import ManifestReader
from icekeep.errors import ConflictError
from icekeep.maintenance.manifests.job import rewrite_manifests
from icekeep.maintenance.repair.lists import rebuilt_list, write_list
from icekeep.maintenance.repair.plan import NewList
from icekeep.spec.avro import read_header
from icekeep.tables.refs import create_branch
from icekeep.tables.verbs import append, upgrade_format_version
from kit.cases import for_each
from kit.choices import Choices
from kit.damager import Damager
from kit.lost_lists import Before, Lost, files_in, mended_by, parent_of, some_rows, three_files, without_list
from kit.no_spark import no_spark
from kit.our_histories import in_memory
from kit.row_histories import START
from kit.row_texts import scanned_rows

pytestmark = pytest.mark.slow


def test_the_first_snapshot_has_no_parent():
    by = in_memory()
    by.create(START, (("kind", "identity"),), 3)
    append(by.table, [some_rows(by)])
    before = Before(by)
    without_list(by)
    assert mended_by(by.table).mended
    before.is_back()


@pytest.mark.parametrize("name", ["total-data-files", "total-delete-files", "total-records"])
def test_a_total_that_is_not_said_is_refused(name):
    lost = Lost()
    lost.summary(lambda summary: summary.pop(name))
    lost.is_left(mended_by(lost.by.table), f"does not say {name}")


def test_row_ids_that_are_not_as_many_as_were_given_are_refused():
    lost = Lost(3)

    def edit(document):
        head = next(s for s in document["snapshots"] if s["snapshot-id"] == document["current-snapshot-id"])
        head["added-rows"] += 1
        document["next-row-id"] += 1

    lost.damager.edit_metadata(edit)
    lost.files[lost.damager.location] = lost.damager.read(lost.damager.location)
    lost.is_left(mended_by(lost.by.table), "comes to what its summary says")


@for_each(
    "name",
    [
        "total-data-files", "total-delete-files", "total-records", "total-files-size", "total-position-deletes",
        "added-data-files", "added-records", "added-files-size",
    ],
)  # fmt: skip
def test_a_number_that_does_not_fit_is_refused(name):
    lost = Lost()
    lost.summary(lambda summary: summary.update({name: str(int(summary.get(name, "0")) + 1)}))
    lost.is_left(mended_by(lost.by.table), "comes to what its summary says")


@pytest.mark.parametrize("name", ["removed-delete-files", "deleted-records", "manifests-created"])
def test_a_number_of_something_else_that_was_done_is_refused(name):
    lost = Lost()
    lost.summary(lambda summary: summary.update({name: "2"}))
    lost.is_left(mended_by(lost.by.table), "comes to what its summary says")


@pytest.mark.parametrize("version", [2, 3])
def test_rewritten_manifests_of_other_names_are_those_of_the_parent_if_all_bytes_are_the_same(version):
    by = three_files(version)
    rewrite_manifests(by.table, no_spark)
    lost = Lost(by=by)
    size = lost.table.metadata.head("main").summary["total-files-size"]
    lost.summary(lambda summary: summary.pop("total-files-size"))
    lost.is_left(mended_by(by.table), "no choice of the 0 manifests")
    lost.summary(lambda summary: summary.update({"total-files-size": size}))
    lost.mended()
    lost.is_back()


def test_wrong_totals_of_the_parent_are_refused():
    lost = Lost()
    lost.summary(lambda summary: summary.update({"total-records": "1"}), "parent")
    lost.is_left(mended_by(lost.by.table), "has a wrong total-records")


def test_a_parent_that_is_gone_is_refused():
    lost = Lost()
    parent = parent_of(lost.table).snapshot_id

    def forget(document):
        document["snapshots"] = [s for s in document["snapshots"] if s["snapshot-id"] != parent]
        document["snapshot-log"] = [s for s in document["snapshot-log"] if s["snapshot-id"] != parent]

    lost.damager.edit_metadata(forget)
    lost.files[lost.damager.location] = lost.damager.read(lost.damager.location)
    lost.is_left(mended_by(lost.by.table), "no longer in the metadata")


def test_a_parent_whose_list_is_gone_too_is_refused():
    lost = Lost()
    location = parent_of(lost.table).manifest_list
    lost.damager.remove(location)
    del lost.files[location]
    lost.is_left(mended_by(lost.by.table), "on which it was built, cannot be read")


def test_a_parent_that_has_a_manifest_twice_is_refused():
    lost = Lost()
    location = str(parent_of(lost.table).manifest_list)
    lost.damager.edit_avro(location, lambda rows: rows.append(rows[0]))
    lost.files[location] = lost.damager.read(location)
    lost.is_left(mended_by(lost.by.table), "are doubled in snapshot")


def test_a_list_without_its_own_manifest_is_refused():
    lost = Lost()
    own = lost.own
    lost.damager.remove(own)
    del lost.files[own]
    lost.is_left(mended_by(lost.by.table), "no choice of the 0 manifests")


def test_a_manifest_that_adds_a_file_which_is_gone_is_refused():
    lost = Lost()
    path = lost.damager.records(lost.own)[0]["data_file"]["file_path"]
    lost.damager.remove(path)
    del lost.files[path]
    lost.is_left(mended_by(lost.by.table), "which it would add, is not there")


def test_an_own_manifest_that_was_cut_off_is_refused():
    lost = Lost()
    own = lost.own
    lost.damager.change_bytes(own, lambda data: data.__delitem__(slice(-9, None)))
    lost.files[own] = lost.damager.read(own)
    lost.is_left(mended_by(lost.by.table), "of its commit cannot be read")


def test_a_list_that_is_there_and_cannot_be_read_is_left():
    lost = Lost()
    lost.damager.write(lost.list, lost.bytes[:100])
    result = mended_by(lost.by.table)
    assert "is there and cannot be read" in result.not_mended[0].reason
    assert lost.damager.read(lost.list) == lost.bytes[:100]


@pytest.mark.parametrize("name", ["list.avro", "snap-42-1-{}.avro"])
def test_a_name_that_does_not_say_the_commit_is_refused(name):
    lost = Lost()

    def renamed(document):
        head = next(s for s in document["snapshots"] if s["snapshot-id"] == document["current-snapshot-id"])
        head["manifest-list"] = f"{lost.directory}/{name.format(lost.uuid)}"

    lost.damager.edit_metadata(renamed)
    result = mended_by(lost.by.table)
    assert "does not say which commit wrote it" in result.not_mended[0].reason


def test_a_list_whose_checksum_hadoop_has_kept_is_refused():
    lost = Lost()
    lost.damager.write(f"{lost.directory}/.{lost.list.rpartition('/')[2]}.crc", b"crc")
    lost.is_left(mended_by(lost.by.table), "is the checksum of the lost list")


def test_a_list_that_two_branches_begin_with_is_written_once():
    by = three_files()
    create_branch(by.table, "audit")
    lost = Lost(by=by)
    result = lost.mended()
    assert sorted(one.branch for one in result.mended) == ["audit", "main"]
    assert scanned_rows(by.table, "audit") == lost.rows
    lost.is_back()


def test_the_list_of_a_branch_of_its_own():
    by = three_files()
    create_branch(by.table, "audit")
    append(by.table, [some_rows(by)], branch="audit")
    rows = scanned_rows(by.table, "audit")
    damager = Damager(by.catalog, by.identifier, Choices(0))
    damager.remove(str(by.table.metadata.head("audit").manifest_list))
    result = mended_by(by.table)
    assert [one.branch for one in result.mended] == ["audit"]
    assert scanned_rows(by.table, "audit") == rows


def test_only_heads_are_mended():
    lost = Lost()
    lost.damager.write(lost.list, lost.bytes)
    lost.damager.remove(parent_of(lost.table).manifest_list)
    result = mended_by(lost.by.table)
    assert not result.mended
    assert "no branch has it at its head" in result.not_mended[0].reason


def test_a_list_that_is_there_by_now_stays_as_it_is():
    lost = Lost()
    reader = ManifestReader(lost.table.storage)
    planned = rebuilt_list(lost.table, lost.table.metadata.head("main"), reader).new
    lost.damager.write(lost.list, b"of somebody else")
    with pytest.raises(ConflictError, match="is there by now"):
        write_list(lost.table, planned, reader)
    assert lost.damager.read(lost.list) == b"of somebody else"


def test_a_list_that_would_be_another_one_now_is_not_written():
    lost = Lost()
    reader = ManifestReader(lost.table.storage)
    planned = rebuilt_list(lost.table, lost.table.metadata.head("main"), reader).new
    with pytest.raises(ConflictError, match="another one"):
        write_list(lost.table, NewList(location=planned.location, data=planned.data + b" "), reader)
    lost.damager.remove(lost.own)
    with pytest.raises(ConflictError, match="cannot be put together any more"):
        write_list(lost.table, planned, reader)
    assert lost.table.storage.head(lost.list) is None


@pytest.mark.parametrize("version", [1, 2, 3])
def test_what_is_put_together_has_the_rows_and_the_header_that_the_list_had(version):
    lost = Lost(version)
    lost.mended()

    def told() -> tuple[object, object]:
        rows = sorted(lost.damager.records(lost.list), key=lambda row: row["manifest_path"])
        header = read_header(lost.damager.read(lost.list), lost.list).metadata
        return rows, header

    now = told()
    lost.damager.write(lost.list, lost.bytes)
    assert now == told()


@pytest.mark.parametrize("version", [2, 3])
def test_a_list_from_before_an_upgrade(version):
    lost = Lost(version - 1)
    upgrade_format_version(lost.by.table, version)
    lost.table = lost.by.table
    lost.files |= files_in(lost.table)
    lost.mended()
    lost.is_back()


def test_rows_that_several_manifests_number_are_refused_after_an_upgrade():
    lost = Lost(2)
    lost.damager.write(lost.list, lost.bytes)
    upgrade_format_version(lost.by.table, 3)
    append(lost.by.table, [some_rows(lost.by)])
    before = Before(lost.by)
    without_list(lost.by)
    before.is_left(mended_by(lost.by.table), "the order of these is not known")
