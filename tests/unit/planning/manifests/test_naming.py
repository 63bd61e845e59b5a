import pyarrow as pa
import pytest

from icekeep.planning import manifest_lists as naming
from icekeep.planning.decoder import ManifestDecoder
from icekeep.planning.manifest_lists import snapshots_naming
from icekeep.planning.spark.session import Engine, Limits
from icekeep.storage.location_keys import location_keys
from kit.no_spark import no_spark
from kit.tables import add, manifests_of, memory_table


@pytest.fixture(scope="module")
def tables():
    """The same table after each of four commits, each with a manifest of its own."""
    table, found = memory_table(commit__manifest_merge__enabled="false"), []
    for name in "abcd":
        found.append(table := add(table, name))
    return found


@pytest.mark.parametrize("decoder", ManifestDecoder)
def test_a_manifest_is_named_by_the_snapshot_that_added_it_and_all_after_it(tables, decoder, monkeypatch):
    monkeypatch.setattr(naming, "chosen_decoder", lambda: (decoder, ""))
    last = tables[-1]
    ids = [table.metadata.current_snapshot_id for table in tables]
    paths = [manifests_of(table)[0].manifest_path for table in tables]
    asked = [paths[3], paths[1], "memory://lake/none.avro"]
    keys = location_keys(pa.array(asked)).tolist()
    found = snapshots_naming(last.storage, no_spark, last.metadata.snapshots, asked)
    assert found == {keys[0]: {ids[3]}, keys[1]: {*ids[1:]}}
    assert snapshots_naming(last.storage, no_spark, last.metadata.snapshots, []) == {}


def test_a_list_that_cannot_be_read_is_passed_over_and_the_others_are_not(tables):
    last = tables[-1]
    broken, missing, *_ = last.metadata.snapshots
    files = dict(last.storage.files)
    last.storage.files[broken.manifest_list] = (b"broken", 0)
    del last.storage.files[missing.manifest_list]
    path = manifests_of(tables[-1])[-1].manifest_path
    (ids,) = snapshots_naming(last.storage, no_spark, last.metadata.snapshots, [path]).values()
    last.storage.files |= files
    assert ids == {s.snapshot_id for s in last.metadata.snapshots[2:]}


def test_many_lists_are_read_in_tasks(tables, monkeypatch):
    monkeypatch.setattr(naming, "_BUNDLE_LISTS", 1)
    last = tables[-1]
    engine = Engine(spark=no_spark, limits=Limits(list_rows_count=99))
    with pytest.raises(AssertionError, match="Spark was started"):
        snapshots_naming(last.storage, engine, last.metadata.snapshots, ["memory://lake/none.avro"])
