"""Manifests of delete files are followed as those of data files are, and beside them."""

import pytest
from msgspec.structs import replace

from icekeep.commit.changes.row_delta import RowDelta
from icekeep.spec.definition_updates import AddPartitionSpec
from icekeep.spec.manifests.structs import FileContent, ManifestContent
from kit.changes import run
from kit.memory_catalog import MemoryCatalog
from kit.row_deletes import add_deletes, deletion_vector, equality_deletes, path_of, position_deletes
from kit.staged_manifests import kept_as_staged, latest, names, rewrite, run_beside, six
from kit.storage import HookedStorage, MemoryStorage
from kit.tables import BY_KIND, add, data_file, entries_of, live, memory_table, swap


@pytest.fixture
def catalog():
    return MemoryCatalog(HookedStorage(MemoryStorage()))


def with_deletes(catalog, version):
    table = six(catalog, version)
    if version == 3:
        for offset, name in enumerate("abcd"):
            table = add_deletes(table, deletion_vector("v", name, 4 + 40 * offset))
    else:
        for name in "abcd":
            table = add_deletes(table, position_deletes(f"p{name}", name), named=(name,))
    return add_deletes(add_deletes(table, equality_deletes("q1")), equality_deletes("q2"))


def delete_entries(table, *wanted):
    return tuple(
        e
        for e in entries_of(table)
        if e.data_file.content is not FileContent.DATA
        and (e.data_file.file_path.rsplit("/", 1)[-1] in wanted or e.data_file.referenced_data_file in wanted)
    )


@pytest.mark.parametrize("version", [2, 3])
def test_manifests_of_deletes_are_followed_as_those_of_data(catalog, version):
    """Iceberg's `testDeleteManifestReplacementConflictingDeleteFileRemoval` fails here."""
    table = with_deletes(catalog, version)
    gone = delete_entries(table, "pb", path_of("b"), "q1")
    assert len(gone) == 2
    done = run_beside(table, lambda: run(latest(table), RowDelta(removed_deletes=gone))).table
    assert len(delete_entries(done, "q1", "q2")) == 1
    # Data in 0 to 2; the deletes in 3 to 5, of which two have lost one.
    assert [number for number in (0, 1, 2) if number in kept_as_staged(done)] == [0, 1, 2]
    assert len(kept_as_staged(done)) == 4


@pytest.mark.parametrize("version", [2, 3])
def test_only_manifests_of_deletes_are_replaced(catalog, version):
    """Iceberg's `testReplaceDeleteManifestsOnly`, and `testDeleteManifestReplacementConcurrentAppend`."""
    table = with_deletes(catalog, version)
    change = rewrite(table, chosen=lambda m: m.content is ManifestContent.DELETES)

    def others():
        add(latest(table), "z")
        run(latest(table), RowDelta(removed_deletes=delete_entries(table, "q1")))

    done = run_beside(table, others, change=change).table
    assert live(done)["z"] == 1
    assert len(kept_as_staged(done)) == 2


def test_of_vectors_in_one_puffin_file_the_one_that_is_replaced_goes(catalog):
    table = with_deletes(catalog, 3)
    new = deletion_vector("w", "b", 4, record_count=2)
    old = delete_entries(table, path_of("b"))
    done = run_beside(table, lambda: add_deletes(latest(table), new, removed_deletes=old)).table
    of_b = [e.data_file.file_path for e in entries_of(done) if e.data_file.referenced_data_file == path_of("b")]
    assert of_b == [path_of("w")]
    assert live(done)["v"] == 3


def test_kinds_are_followed_side_by_side(catalog):
    """Several specs, data and deletes at once; Iceberg's `testReplaceDataAndDeleteManifests`."""
    table = memory_table(catalog, spec=BY_KIND)
    table = swap(table, AddPartitionSpec(replace(BY_KIND, spec_id=1, fields=())))
    for kind in "xy":
        table = add(table, *(data_file(f"{kind}{n}", partition=(kind,)) for n in range(3)))
        table = add(table, *(data_file(f"{kind}-{n}", spec_id=1) for n in range(3)))
        table = add_deletes(
            table, equality_deletes(f"e{kind}", partition=(kind,)), equality_deletes(f"g{kind}", spec_id=1)
        )

    def others():
        run(
            latest(table),
            RowDelta(removed_deletes=delete_entries(table, "ex", "gy"), removed=entries_of(table, "x0", "x-1")),
        )

    done = run_beside(table, others, each=1).table
    assert len(names(done)) == len(kept_as_staged(done)) == 12
    assert not {"x0", "x-1", "ex", "gy"} & live(done).keys()
