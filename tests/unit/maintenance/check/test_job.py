"""The job as a whole: generated damage is named and nothing else, who made a fault, and how faults are counted and kept."""

import pickle
from copy import deepcopy
from functools import cache

import pytest

from icekeep.catalog.base import Catalog
from icekeep.commit.changes.files import DeleteFiles
from icekeep.commit.retry import commit
from icekeep.errors import MissingFileError, UsageError
from icekeep.maintenance.check import by_file
from icekeep.maintenance.check.faults import CLASSES, MAX_EXAMPLES, MAX_GAPS, Fault, FaultId, Gap, Tally
from icekeep.maintenance.check.job import check
from icekeep.maintenance.manifests.job import rewrite_manifests
from kit.cases import Choices, for_each, scaled, seeds
from kit.checked_entries import put_files, remove_file
from kit.damage import DAMAGE, IMPLIED, checked, found_in, spoil
from kit.damager import CannotDamageError, Damager
from kit.deletes import path_of
from kit.prose import PAGE, fault_page
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


TABLES = 40


@cache
def _history(number: int) -> History:
    return History.of(number, in_memory())


def table_of(number: int) -> tuple[Catalog, tuple[str, ...]]:
    """A copy of the table that follows from a number, which may be spoilt."""
    by = _history(number % TABLES).by
    return deepcopy(by.catalog), by.identifier


@cache
def found_before(number: int) -> frozenset[int]:
    """What is found in the table of a number while it is sound."""
    return frozenset(found_in(checked(*table_of(number))))


def damaged(number: int, seed: int, *damage: int) -> tuple[Catalog, tuple[str, ...]] | None:
    """The table of a seed, spoilt in each way; `None` where it has nothing that could be."""
    catalog, identifier = table_of(seed)
    try:
        spoil(catalog, identifier, seed, number, *damage)
    except CannotDamageError:
        return None
    return catalog, identifier


@for_each("seed", seeds(min(TABLES, scaled(100))))
def test_nothing_is_found_in_a_sound_table(seed):
    result = checked(*table_of(seed))
    assert result.faults == ()
    assert result.not_checked == ()
    assert found_in(result) <= {214}
    assert result.status == "sound"


def test_earlier_metadata_is_named():
    catalog, identifier = table_of(1)
    before = catalog.load(identifier)
    spoil(catalog, identifier, 1, 101)
    found = checked(catalog, identifier).sound_metadata
    logged = [entry.metadata_file for entry in before.metadata.metadata_log]
    assert [one.metadata_location for one in found] == logged[: -len(found) - 1 : -1]
    assert found


def test_of_a_kind_that_is_asked_for_every_fault_is_told():
    catalog, identifier = table_of(3)
    table = catalog.load(identifier)
    paths = {place.file["file_path"] for place in Damager(catalog, identifier, Choices(1)).entries(0)}
    assert len(paths) > 1
    table.storage.delete_many(paths)
    [found] = check(table, no_spark, all_of=[301]).faults
    assert {one.where for one in found.examples} >= paths
    with pytest.raises(
        UsageError, match=r"^there is no kind of faults 7; give numbers such as 301, `icekeep check` prints"
    ):
        check(table, no_spark, all_of=[301, 7])


@for_each("number", sorted(DAMAGE), ids=lambda number: CLASSES[number].name)
def test_what_was_spoilt_is_found_and_named(number):
    wanted, spoilt = scaled(10), 0
    for seed in seeds(2 * TABLES):
        if spoilt == wanted:
            break
        if (table := damaged(number, seed)) is None:
            continue
        result = checked(*table)
        found = found_in(result) - (found_before(seed % TABLES) - {number})
        assert number in found, (seed, found, result.not_checked)
        assert found - {number} <= IMPLIED.get(number, set()), (seed, result)
        assert CLASSES[number].is_notice or result.status == "faulty"
        spoilt += 1
    assert spoilt >= min(2, wanted)


def fault(number, where):
    return Fault(number=number, where=where, detail="wrong")


def test_the_first_faults_by_place_are_kept():
    tally = Tally()
    places = [f"{n:05}" for n in range(1000)]
    for place in reversed(places):
        tally.add(fault(301, place))
    assert tally.counts == {301: 1000}
    assert [one.where for one in tally.faults(301)][:MAX_EXAMPLES] == places[:MAX_EXAMPLES]
    assert len(tally.faults(301)) <= 10 * MAX_EXAMPLES
    assert tally.faults(302) == ()


def test_what_tasks_found_is_taken_in():
    driver, task = Tally(), Tally()
    driver.add(fault(301, "a"))
    driver.gap("x", "why")
    task.add(fault(301, "b"))
    task.add(fault(302, "c"))
    task.gap("x", "why")
    task.gap("y", "why")
    driver.merge(pickle.loads(pickle.dumps(task)))
    assert driver.counts == {301: 2, 302: 1}
    assert [one.where for one in driver.faults(301)] == ["a", "b"]
    assert driver.gaps() == (Gap(what="x", why="why"), Gap(what="y", why="why"))
    assert driver.gaps_count == 2


def test_of_very_many_gaps_the_first_are_kept():
    tally = Tally()
    for n in range(2 * MAX_GAPS):
        tally.gap(f"{n:05}", "why")
    assert tally.gaps_count == 2 * MAX_GAPS
    assert len(tally.gaps()) == MAX_GAPS


@for_each("one", CLASSES.values(), ids=lambda one: one.name)
def test_a_class_has_all_its_texts(one):
    for text in (one.rule, one.readers, one.mend):
        assert text
        assert not text.endswith(".")
        assert "|" not in text


def test_the_page_says_what_the_classes_say():
    """`python -m kit.prose` in `tests/` rewrites it."""
    assert PAGE.read_text() == fault_page()
