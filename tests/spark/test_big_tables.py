"""The tables that benchmarks plan, in small: PyIceberg and we read the same of them."""

import pytest
from pyiceberg.conversions import from_bytes, to_bytes
from pyiceberg.manifest import DataFile as ForeignFile
from pyiceberg.table import StaticTable
from pyspark.sql import SparkSession

from bench.tables.big_tables import FILTERS, FIRST_DAY, Shape, filters, make
from bench.tables.kept import Kept, kept, make_anew
from icekeep import plan_scan
from icekeep.spec.manifests.read import read_manifest, read_manifest_list
from icekeep.spec.manifests.structs import DataFile, FieldSummary, ManifestFile
from icekeep.spec.types import DATE
from icekeep.spec.values import value_to_bytes

pytestmark = pytest.mark.nightly

SHAPE = Shape(entries=2000, manifests=4, partitions=100)


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory, spark_session: SparkSession) -> Kept:
    made = kept(SHAPE, tmp_path_factory.mktemp("bench"))
    left_over = made.path / "metadata"
    left_over.mkdir(parents=True)
    (left_over / "v1.metadata.json").write_text("what an interrupted attempt left")
    make_anew(made, lambda table: make(table, spark_session))
    return made


def foreign_files(table: Kept, where: str) -> list[ForeignFile]:
    scan = StaticTable.from_metadata(table.load().metadata_location).scan(row_filter=where)
    return [task.file for task in scan.plan_files()]


def manifests(table: Kept) -> list[ManifestFile]:
    loaded = table.load()
    snapshot = loaded.metadata.current_snapshot
    assert snapshot is not None
    assert snapshot.manifest_list is not None
    return read_manifest_list(loaded.storage.read(snapshot.manifest_list), snapshot.manifest_list)


def our_files(table: Kept, manifest: ManifestFile) -> list[DataFile]:
    loaded = table.load()
    header_and_entries = read_manifest(
        loaded.storage.read(manifest.manifest_path), manifest, loaded.metadata.partition_type(0)
    )
    return [entry.data_file for entry in header_and_entries[1]]


@pytest.mark.nightly
def test_pyiceberg_and_we_read_the_same_files_and_statistics(table: Kept) -> None:
    ours = {file.file_path: file for manifest in manifests(table) for file in our_files(table, manifest)}
    theirs = foreign_files(table, "true")
    assert {file.file_path for file in theirs} == ours.keys()
    assert len(ours) == len(theirs) == SHAPE.entries
    for foreign in theirs:
        own = ours[foreign.file_path]
        assert (own.record_count, own.file_size_in_bytes) == (foreign.record_count, foreign.file_size_in_bytes)
        assert own.partition == (foreign.partition[0],)
        assert own.column_sizes == dict(foreign.column_sizes)
        assert own.value_counts == dict(foreign.value_counts)
        assert own.null_value_counts == dict(foreign.null_value_counts)
        assert own.nan_value_counts == dict(foreign.nan_value_counts)
        assert own.lower_bounds == dict(foreign.lower_bounds)
        assert own.upper_bounds == dict(foreign.upper_bounds)


def test_the_manifest_list_says_what_the_manifests_hold(table: Kept) -> None:
    listed = manifests(table)
    assert len(listed) == SHAPE.manifests
    for manifest in listed:
        files = our_files(table, manifest)
        days = [file.partition[0] for file in files]
        lower, upper = (value_to_bytes(DATE, day) for day in (min(days), max(days)))
        assert manifest.added_files_count == len(files) == SHAPE.entries // SHAPE.manifests
        assert manifest.added_rows_count == sum(file.record_count for file in files)
        assert manifest.partitions == (FieldSummary(contains_null=False, lower_bound=lower, upper_bound=upper),)


def test_bounds_are_ordered_and_within_the_partition(table: Kept) -> None:
    fields = StaticTable.from_metadata(table.load().metadata_location).schema().fields
    assert len(fields) == SHAPE.columns
    for file in foreign_files(table, "true"):
        for field in fields:
            bounds = [from_bytes(field.field_type, b[field.field_id]) for b in (file.lower_bounds, file.upper_bounds)]
            assert bounds[0] <= bounds[1], field.name
            fewest = [to_bytes(field.field_type, bound) for bound in bounds]
            assert fewest == [b[field.field_id] for b in (file.lower_bounds, file.upper_bounds)], field.name
            if field.name == "at":
                assert {at // 86_400_000_000 for at in bounds} == {file.partition[0]}
    first, last = FIRST_DAY, FIRST_DAY + SHAPE.partitions - 1
    assert {file.partition[0] for file in foreign_files(table, "true")} == {*range(first, last + 1)}


@pytest.mark.parametrize("name", FILTERS)
def test_a_filter_keeps_the_same_files_for_both(table: Kept, spark_session: SparkSession, name: str) -> None:
    where = filters(SHAPE)[name].where
    theirs = foreign_files(table, where)
    ours = plan_scan(table.load(), spark_session, where=where)
    assert (ours.data_files_count, ours.data_files_bytes) == (
        len(theirs),
        sum(file.file_size_in_bytes for file in theirs),
    )


def test_partition_filter_prunes_manifests_and_bounds_entries(table: Kept, spark_session: SparkSession) -> None:
    """The bounds filter opens every manifest and drops entries."""
    chosen = filters(SHAPE)
    by_partition = plan_scan(table.load(), spark_session, where=chosen["partition"].where)
    assert by_partition.data_files_count == SHAPE.entries // 10
    assert 0 < by_partition.opened_manifests_count < SHAPE.manifests
    assert by_partition.pruned_by_partition_count > 0
    by_bounds = plan_scan(table.load(), spark_session, where=chosen["bounds"].where)
    assert by_bounds.opened_manifests_count == SHAPE.manifests
    assert by_bounds.data_files_count == pytest.approx(SHAPE.entries * 0.09, rel=0.2)
