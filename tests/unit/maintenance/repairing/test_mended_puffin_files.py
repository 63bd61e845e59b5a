"""Puffin files with bad footers: their vectors move to a new file, and no position changes; what is in doubt stays."""

from copy import deepcopy
from functools import cache

import pytest

from icekeep.commit.changes.deletes import RowDelta
from icekeep.commit.retry import commit
from icekeep.formats.puffin import BLOB_TYPE, PuffinWriter, read_deletion_vector, read_puffin_footer, read_range
from icekeep.maintenance.check.job import check
from icekeep.maintenance.repair.job import plan_repair, repair
from icekeep.spec.reach import is_deletion_vector
from icekeep.tables.verbs import append
from kit.cases import for_each
from kit.choices import Choices
from kit.columns import table_of
from kit.damager import DATA, POSITION_DELETES, Damager
from kit.entry_damage import ENTRY_DAMAGE
from kit.naive_scan import live_entries
from kit.no_spark import no_spark
from kit.our_histories import ByIcekeep, in_memory
from kit.row_histories import START, History
from kit.row_texts import scanned_rows
from kit.written_deletes import data_files, vector_files

pytestmark = pytest.mark.slow

FOOTER, COUNT, SORT_ORDER = 416, 415, 231
FOOTER_WORD = -4
"""Where the magic at the end of a Puffin file begins."""


@cache
def made() -> ByIcekeep:
    """Three data files, whose vectors are in one Puffin file, and a fourth without."""
    by = in_memory()
    by.create(START, (), 3)
    names = [field.name for field in START.fields]
    for number in range(4):
        rows = [dict.fromkeys(names) | {"id": 10 * number + n} for n in range(5)]
        append(by.table, [table_of(START, rows)])
    table = by.table
    positions = [(file, place) for file in data_files(table)[:3] for place in (1, 3)]
    commit(table, RowDelta(added_deletes=vector_files(table, positions, ())))
    return by


class Spoilt:
    """A copy of that table, to be spoilt."""

    def __init__(self) -> None:
        by = made()
        self.catalog, self.identifier = deepcopy(by.catalog), by.identifier
        self.before = self.table
        self.vectors = vectors(self.before)
        self.path = self.vectors[0].data_file.file_path
        self.damager = Damager(self.catalog, self.identifier, Choices(7))

    @property
    def table(self):
        return self.catalog.load(self.identifier)

    def change(self, act):
        self.damager.change_bytes(self.path, act)
        return self

    def rewritten(self, *targets, gap=b""):
        """With the same blobs, and a footer that can be read and says that they are for other data files."""
        storage = self.table.storage
        blobs = [
            read_range(storage, self.path, v.data_file.content_offset, v.data_file.content_size_in_bytes)
            for v in self.vectors
        ]
        other = f"{self.path}.other"
        with PuffinWriter(storage, other) as writer:
            if gap:
                writer.add(gap, "x")
            for blob, target in zip(blobs, targets, strict=True):
                writer.add(blob, BLOB_TYPE, properties={"referenced-data-file": target, "cardinality": "2"})
        self.damager.write(self.path, self.damager.read(other))
        size = len(self.damager.read(self.path))
        for place in [*self.damager.entries(POSITION_DELETES)]:
            self.damager.edit_file(place, file_size_in_bytes=size)
        return self

    def stays(self, *numbers, why=""):
        table = self.table
        result = mended_by(table, *(numbers or (FOOTER,)))
        assert [one for one in result.not_mended if one.fault_id == FOOTER and why in one.reason], result
        assert not [one for one in result.mended if one.fault_id == FOOTER]
        assert vectors(self.table) == vectors(table)


def mended_by(table, *numbers):
    """The result of a repair of some kinds of faults, by the hash of its plan."""
    wanted = [*(numbers or (FOOTER,))]
    plan = plan_repair(table, no_spark, fault=wanted)
    return repair(table, no_spark, fault=wanted, approve=plan.hash)


def vectors(table):
    found = [entry for entry in live_entries(table) if is_deletion_vector(entry.data_file)]
    return sorted(found, key=lambda entry: entry.data_file.referenced_data_file)


def positions(table):
    return {
        v.data_file.referenced_data_file: [*read_deletion_vector(table.storage, v.data_file)] for v in vectors(table)
    }


def flipped(data):
    data[FOOTER_WORD] ^= 0xFF


def mended(spoilt):
    table = spoilt.table
    result = mended_by(table)
    assert [one.fault_id for one in result.mended] == [FOOTER], result
    assert not result.not_mended
    now = spoilt.table
    assert scanned_rows(now) == scanned_rows(spoilt.before)
    assert positions(now) == positions(spoilt.before)
    old, new = spoilt.vectors, vectors(now)
    assert [e.sequence_number for e in new] == [e.sequence_number for e in old]
    assert [(e.data_file.spec_id, e.data_file.partition) for e in new] == [
        (e.data_file.spec_id, e.data_file.partition) for e in old
    ]
    (path,) = {e.data_file.file_path for e in new}
    assert path != spoilt.path
    assert spoilt.damager.read(spoilt.path)
    assert len(read_puffin_footer(now.storage, path).blobs) == len(old)
    assert check(now, no_spark, deep=True, ref="main").status == "sound"
    return now


@pytest.mark.parametrize(
    "act",
    [
        flipped,
        lambda data: data.__setitem__(0, data[0] ^ 0xFF),
        lambda data: data.__delitem__(slice(-20, None)),
        lambda data: data.__setitem__(-30, 0),
    ],
    ids=["last magic", "first magic", "cut off", "json"],
)
def test_the_vectors_move_to_a_new_file_as_they_are(act):
    now = mended(Spoilt().change(act))
    head = now.metadata.head("main")
    assert head.operation == "replace"
    assert {k: head.summary[k] for k in head.summary if k.startswith("total-") and k != "total-files-size"} == {
        k: v
        for k, v in made().table.metadata.head("main").summary.items()
        if k.startswith("total-") and k != "total-files-size"
    }


def test_a_footer_that_says_a_wrong_cardinality_or_nothing_of_a_vector_is_mended():
    spoilt = Spoilt()
    targets = [v.data_file.referenced_data_file for v in spoilt.vectors]
    where = spoilt.damager.read(spoilt.path).index(b'"cardinality":"2"')
    spoilt.change(lambda data: data.__setitem__(where + len(b'"cardinality":"'), ord("7")))
    assert targets
    mended(spoilt)


def test_two_faults_of_one_file_are_mended_by_one_new_file():
    spoilt = Spoilt()
    wrong = b'"cardinality":"2"'
    first = spoilt.damager.read(spoilt.path).index(wrong)
    second = spoilt.damager.read(spoilt.path).index(wrong, first + 1)
    for where in (first, second):
        spoilt.change(lambda data, where=where: data.__setitem__(where + len(wrong) - 2, ord("7")))
    result = mended_by(spoilt.table)
    assert [one.fault_id for one in result.mended] == [FOOTER, FOOTER]
    assert positions(spoilt.table) == positions(spoilt.before)
    assert len({v.data_file.file_path for v in vectors(spoilt.table)}) == 1
    assert check(spoilt.table, no_spark, deep=True, ref="main").status == "sound"


def test_one_vector_that_is_not_sound_keeps_the_whole_file():
    spoilt = Spoilt().change(flipped)
    at = spoilt.vectors[1].data_file.content_offset + 9
    spoilt.change(lambda data: data.__setitem__(at, data[at] ^ 1))
    spoilt.before = None
    result = mended_by(spoilt.table)
    assert not result.mended
    assert "not every vector in it is sound" in result.not_mended[0].reason


def test_a_vector_of_another_count_than_its_entry_says_keeps_the_whole_file():
    spoilt = Spoilt().change(flipped)
    place = spoilt.damager.vector()
    spoilt.damager.edit_file(place, record_count=3)
    result = mended_by(spoilt.table)
    assert not result.mended
    assert "deletes 2 rows, but its manifest says 3" in result.not_mended[0].reason
    # Its count is mended first; in the same run the entry cannot also go.
    result = mended_by(spoilt.table, FOOTER, COUNT)
    assert [one.fault_id for one in result.mended] == [COUNT], result
    assert len(result.not_mended) == 1
    mended_now = mended_by(spoilt.table)
    assert [one.fault_id for one in mended_now.mended] == [FOOTER]
    assert scanned_rows(spoilt.table) == scanned_rows(made().table)


def test_a_footer_that_says_another_data_file_leaves_both_as_they_are():
    spoilt = Spoilt()
    targets = [v.data_file.referenced_data_file for v in spoilt.vectors]
    spoilt.rewritten(targets[1], targets[0], targets[2]).stays(why="not known which one is right")


@pytest.mark.parametrize("first", [{"referenced-data-file": "memory://lake/x", "cardinality": "2"}, {}])
def test_a_footer_that_says_another_place_leaves_both_as_they_are(first):
    spoilt = Spoilt()
    targets = [v.data_file.referenced_data_file for v in spoilt.vectors]
    storage = spoilt.table.storage
    old = [v.data_file for v in spoilt.vectors]
    blobs = [read_range(storage, spoilt.path, f.content_offset, f.content_size_in_bytes) for f in old]
    # The bytes where the entry looks are a sound vector, and its data file's is behind them.
    with PuffinWriter(storage, f"{spoilt.path}.other") as writer:
        writer.add(blobs[0], BLOB_TYPE, properties=first)
        for blob, target in zip(blobs[1:], targets[1:], strict=True):
            writer.add(blob, BLOB_TYPE, properties={"referenced-data-file": target, "cardinality": "2"})
        writer.add(blobs[0], BLOB_TYPE, properties={"referenced-data-file": targets[0], "cardinality": "2"})
    spoilt.damager.write(spoilt.path, spoilt.damager.read(f"{spoilt.path}.other"))
    for place in [*spoilt.damager.entries(POSITION_DELETES)]:
        spoilt.damager.edit_file(place, file_size_in_bytes=len(spoilt.damager.read(spoilt.path)))
    spoilt.stays(why="not known which one is right")


def test_a_file_that_is_longer_than_its_entries_say_may_be_another_one():
    Spoilt().change(flipped).change(lambda data: data.extend(b"more")).stays(why="may be another one")


def test_two_entries_of_the_same_bytes_stay():
    spoilt = Spoilt().change(flipped)
    first, second, *_ = spoilt.damager.entries(POSITION_DELETES)
    spoilt.damager.edit_file(
        second,
        content_offset=first.file["content_offset"],
        content_size_in_bytes=first.file["content_size_in_bytes"],
        record_count=first.file["record_count"],
    )
    spoilt.stays(why="the same bytes")


def test_an_entry_that_is_described_anew_in_the_same_run_does_not_go_as_well():
    spoilt = Spoilt().change(flipped)
    spoilt.damager.edit_file(spoilt.damager.vector(), sort_order_id=77)
    result = mended_by(spoilt.table, FOOTER, SORT_ORDER)
    assert [one.fault_id for one in result.mended] == [SORT_ORDER], result
    assert "described anew in the same run" in result.not_mended[0].reason
    assert [one.fault_id for one in mended_by(spoilt.table).mended] == [FOOTER]
    assert positions(spoilt.table) == positions(spoilt.before)


def two_vectors(spoilt):
    ENTRY_DAMAGE[213](spoilt.damager)


def doubled_data_file(spoilt):
    target = spoilt.vectors[1].data_file.referenced_data_file
    place = spoilt.damager.entry(DATA, lambda file: file["file_path"] == target)
    spoilt.damager.edit_manifest(place.manifest, lambda entries: entries.append(deepcopy(entries[place.index])))


@pytest.mark.parametrize(
    ("damage", "why"), [(two_vectors, "mend fault 213 first"), (doubled_data_file, "mend fault 212 first")]
)
def test_doubled_vectors_and_data_files_come_first(damage, why):
    spoilt = Spoilt()
    damage(spoilt)
    for path in {place.file["file_path"] for place in spoilt.damager.entries(POSITION_DELETES)}:
        spoilt.damager.change_bytes(path, flipped)
    before = vectors(spoilt.table)
    result = mended_by(spoilt.table)
    assert not result.mended, result
    assert all(why in one.reason for one in result.not_mended), result
    assert vectors(spoilt.table) == before


def test_a_sound_file_is_left_as_it_is():
    spoilt = Spoilt()
    result = mended_by(spoilt.table)
    assert not result.mended
    assert not result.not_mended
    assert spoilt.table.metadata_location == spoilt.before.metadata_location


@for_each("seed", range(6))
def test_vectors_of_generated_histories_move(seed):
    history = History.of(seed, in_memory(), versions=(3,), kinds=("append", "positions", "positions", "spec", "column"))
    by = history.by
    files = {v.data_file.file_path for v in vectors(by.table)}
    if not files:
        return
    damager = Damager(by.catalog, by.identifier, Choices(seed))
    before = positions(by.table)
    for path in sorted(files):
        damager.change_bytes(path, flipped)
    result = mended_by(by.table)
    assert len(result.mended) == len(files)
    assert not result.not_mended
    assert positions(by.table) == before
    assert scanned_rows(by.table) == history.expected()
    assert not files & {v.data_file.file_path for v in vectors(by.table)}
