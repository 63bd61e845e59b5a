"""Each table of a playground is in the state that is said of it, as the library's own plans and measures see it."""

from pathlib import Path
from urllib.parse import urlparse

import pytest

from icekeep.catalog.base import Catalog, Table
from icekeep.health.job import table_health
from icekeep.health.values import TableHealth
from icekeep.maintenance.check.job import check
from icekeep.maintenance.compact.job import plan_compact
from icekeep.maintenance.deletes.job import plan_rewrite_position_deletes
from icekeep.maintenance.expire.job import plan_expire_snapshots
from icekeep.maintenance.manifests.job import plan_rewrite_manifests
from icekeep.maintenance.orphans.job import plan_remove_orphan_files
from icekeep.maintenance.repair.job import plan_repair
from icekeep.operations.loading import load_catalog
from icekeep.playground.job import CATALOG, NAMESPACE, new_playground
from icekeep.playground.place import CONFIG
from icekeep.playground.states import STATES
from kit.naive_scan import live_entries
from kit.runtime import START_MS, FakeRuntime, no_spark

pytestmark = pytest.mark.slow

PAGE = " ".join((Path(__file__).parents[3] / "docs" / "playground.md").read_text().split())


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> Catalog:
    """The catalog of a whole playground."""
    directory = tmp_path_factory.mktemp("playground")
    with new_playground(directory):
        return opened(directory)


def opened(directory: Path) -> Catalog:
    return load_catalog(CATALOG, conf=str(directory / CONFIG))


def named(catalog: Catalog, name: str) -> Table:
    return catalog.load((NAMESPACE, name))


def health_of(catalog: Catalog, name: str) -> TableHealth:
    return table_health(named(catalog, name), no_spark)


def jobs_of(health: TableHealth) -> set[str]:
    return {job.job for job in health.to_do}


def test_there_is_a_table_for_each_state_and_no_other(catalog: Catalog) -> None:
    assert len(STATES) == 12
    assert {name for _, name in catalog.list_tables((NAMESPACE,))} == {state.name for state in STATES}


def test_small_files(catalog: Catalog) -> None:
    health = health_of(catalog, "small_files")
    assert health.data.small_files_together_count == health.data.data_files_count == 48
    assert f"rollback --snapshot-id {health.snapshot_id} --table demo.db.small_files" in PAGE
    planned = plan_compact(named(catalog, "small_files"), no_spark)
    assert planned.rewritten_data_files_count == 48
    assert planned.added_data_files_count == health.partitions.partitions_count == 4


@pytest.mark.parametrize("hour", [0, 5, 13, 23])
def test_small_files_can_be_compacted_together_at_any_hour(tmp_path: Path, hour: int) -> None:
    day_ms, hour_ms = 86_400_000, 3_600_000
    now_ms = START_MS // day_ms * day_ms + hour * hour_ms + 59 * 60_000
    made = [state for state in STATES if state.name in ("small_files", "evolved")]
    with new_playground(tmp_path, made, runtime=FakeRuntime(now_ms=now_ms)):
        pass
    for state in made:
        health = health_of(opened(tmp_path), state.name)
        assert health.data.small_files_together_count == health.data.data_files_count


def test_delete_files(catalog: Catalog) -> None:
    health = health_of(catalog, "delete_files")
    assert health.deletes.position_delete_files_count == 48
    assert health.deletes.deleted_ratio == pytest.approx(0.4)
    assert health.deletes.mean_deletes == 8
    # Compaction rewrites all that these reach.
    assert "compact" in jobs_of(health)
    assert "rewrite_position_deletes" not in jobs_of(health)


def test_upserts(catalog: Catalog) -> None:
    health = health_of(catalog, "upserts")
    assert health.deletes.equality_delete_files_count == 30
    assert health.deletes.position_delete_files_count == 0
    assert plan_compact(named(catalog, "upserts"), no_spark).rewritten_data_files_count == 30


def test_wide_manifests(catalog: Catalog) -> None:
    health = health_of(catalog, "wide_manifests")
    assert health.metadata.manifests_count == 60
    assert health.metadata.mean_overlap is not None
    assert health.metadata.mean_overlap > 30
    assert health.data.small_files_together_count == 0
    planned = plan_rewrite_manifests(named(catalog, "wide_manifests"), no_spark)
    assert planned.rewritten_manifests_count == 60


def test_many_snapshots(catalog: Catalog) -> None:
    health = health_of(catalog, "many_snapshots")
    assert health.snapshots.snapshots_count == 2001
    planned = plan_expire_snapshots(named(catalog, "many_snapshots"), no_spark)
    assert planned.expired_snapshots_count >= 1999
    assert jobs_of(health) == {"expire_snapshots"}


def test_orphans(catalog: Catalog) -> None:
    planned = plan_remove_orphan_files(named(catalog, "orphans"), no_spark)
    names = [one.rpartition("/")[2] for one in planned.orphan_file_locations]
    assert sum("failed-write" in name for name in names) == 12
    assert sum(name.endswith(".metadata.json") for name in names) == 28
    assert len(names) == 40
    [job] = [job for job in health_of(catalog, "orphans").to_do if job.job == "remove_orphan_files"]
    assert job.reason.startswith("up to 28 metadata files left the log")
    assert "shows 28 old metadata files" in PAGE
    assert "12 data files that failed writes have left" in PAGE
    assert "names all 40" in PAGE


def test_skewed_is_what_no_job_mends(catalog: Catalog) -> None:
    health = health_of(catalog, "skewed")
    assert health.partitions.skew is not None
    assert health.partitions.skew > 50
    assert health.partitions.partitions_count == 5
    assert not health.to_do


def test_evolved(catalog: Catalog) -> None:
    table = named(catalog, "evolved")
    assert {entry.data_file.spec_id for entry in live_entries(table)} == {0, 1, 2} == set(table.metadata.specs_by_id)
    files_count = len(live_entries(table))
    assert plan_compact(table, no_spark).rewritten_data_files_count == files_count > 20


def test_branches(catalog: Catalog) -> None:
    table = named(catalog, "branches")
    assert set(table.metadata.refs) == {"main", "experiment", "audit", "quarter", "forgotten"}
    planned = plan_expire_snapshots(table, no_spark)
    assert planned.expired_ref_names == ("forgotten",)
    alone = {ref.ref: ref.only_bytes for ref in health_of(catalog, "branches").refs}
    assert alone["audit"]
    assert alone["quarter"]
    assert alone["experiment"]


def test_stream(catalog: Catalog) -> None:
    health = health_of(catalog, "stream")
    [stream] = health.streams
    assert stream.writer.startswith("Flink job")
    assert stream.snapshots_count == 90
    assert {"compact", "rewrite_manifests"} <= jobs_of(health)


def test_vectors(catalog: Catalog) -> None:
    health = health_of(catalog, "vectors")
    assert health.format == "v3"
    assert health.deletes.position_delete_files_count == 16
    assert health.deletes.deletion_vectors_count == 1
    assert "compact" not in jobs_of(health)
    planned = plan_rewrite_position_deletes(named(catalog, "vectors"), no_spark)
    assert planned.rewritten_delete_files_count == 16


def test_broken_is_mended_with_no_loss(catalog: Catalog) -> None:
    table = named(catalog, "broken")
    assert {fault.fault_id for fault in check(table, no_spark).faults} == {108, 301}
    planned = plan_repair(table, no_spark, fault=[108, 301])
    assert {mend.fault_id for mend in planned.mends} == {108, 301}
    assert not planned.not_mended
    assert planned.lost_records_count == 0


@pytest.mark.parametrize("name", [state.name for state in STATES if state.name != "broken"])
def test_a_table_has_no_fault_but_what_its_state_says(catalog: Catalog, name: str) -> None:
    result = check(named(catalog, name), no_spark, deep=True)
    assert result.status == "sound", result.faults


def test_files_are_as_old_as_the_table_says(catalog: Catalog) -> None:
    table = named(catalog, "orphans")
    head = table.metadata.last_updated_ms
    for path in Path(urlparse(table.metadata.location).path).rglob("*.parquet"):
        assert abs(path.stat().st_mtime * 1000 - head) < 1000
