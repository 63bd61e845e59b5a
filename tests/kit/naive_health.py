"""What health says of a table, held against a naive look at every entry, and against the plans of jobs."""

import math
from collections import Counter, defaultdict

from icekeep.catalog.base import Table
from icekeep.health.values import TableHealth
from icekeep.maintenance.compact.job import plan_compact
from icekeep.maintenance.deletes.job import plan_rewrite_position_deletes
from icekeep.maintenance.manifests.job import plan_rewrite_manifests
from icekeep.spec.manifests.structs import FileContent, ManifestEntry
from icekeep.spec.matched_deletes import reaching_deletes
from icekeep.spec.reach import is_deletion_vector, partition_key
from kit.naive_scan import live_entries
from kit.no_spark import no_spark


def data_of(table: Table) -> list[ManifestEntry]:
    return [entry for entry in live_entries(table) if entry.data_file.content is FileContent.DATA]


def deletes_of(table: Table) -> list[ManifestEntry]:
    return [entry for entry in live_entries(table) if entry.data_file.content is not FileContent.DATA]


def check_data(health: TableHealth, table: Table) -> None:
    files = [entry.data_file for entry in data_of(table)]
    found = health.data
    sizes = [file.file_size_in_bytes for file in files]
    assert (found.data_files_count, found.data_files_bytes) == (len(files), sum(sizes))
    assert found.record_count == sum(file.record_count for file in files)
    assert (found.small_files_count, found.small_files_bytes, found.large_files_count) == (len(files), sum(sizes), 0)
    assert (found.smallest_file_bytes, found.largest_file_bytes) == (min(sizes, default=None), max(sizes, default=None))
    buckets = Counter(1 << (size.bit_length() - 1) for size in sizes)
    assert {one.least_bytes: one.files_count for one in found.histogram} == buckets
    assert sum(one.bytes for one in found.histogram) == sum(sizes)


def check_deletes(health: TableHealth, table: Table) -> None:
    found = health.deletes
    data, deletes = data_of(table), deletes_of(table)
    kinds = defaultdict(list)
    for entry in deletes:
        kind = "equality" if entry.data_file.content is FileContent.EQUALITY_DELETES else "position"
        kinds["vector" if is_deletion_vector(entry.data_file) else kind].append(entry.data_file)
    for kind, prefix in (
        ("equality", "equality_delete_files"),
        ("position", "position_delete_files"),
        ("vector", "deletion_vectors"),
    ):
        files = kinds[kind]
        assert getattr(found, f"{prefix}_count") == len(files)
        assert getattr(found, f"{prefix}_bytes") == sum(file.own_bytes for file in files)
        assert getattr(found, f"{prefix}_record_count") == sum(file.record_count for file in files)
    reached = reaching_deletes(data, deletes, table.metadata.specs_by_id)
    pairs = [delete.data_file for some in reached.values() for delete in some]
    assert found.scan_read_bytes == sum(file.own_bytes for file in pairs)
    assert found.data_files_with_deletes_count == sum(bool(some) for some in reached.values())
    assert found.mean_deletes == (round(len(pairs) / len(data), 4) if data else 0)
    used = {(file.file_path, file.content_offset) for file in pairs}
    idle = [e.data_file for e in deletes if (e.data_file.file_path, e.data_file.content_offset) not in used]
    assert (found.dangling_count, found.dangling_bytes) == (len(idle), sum(file.own_bytes for file in idle))
    deleted = sum(file.record_count for file in (*kinds["position"], *kinds["vector"]))
    rows = sum(entry.data_file.record_count for entry in data)
    assert found.deleted_ratio == (round(deleted / rows, 4) if rows else 0)


def check_partitions(health: TableHealth, table: Table) -> None:
    sizes = Counter()
    for entry in data_of(table):
        sizes[partition_key(entry.data_file)] += entry.data_file.file_size_in_bytes
    found = health.partitions
    assert found.partitions_count == len(sizes)
    assert found.largest_partition_bytes == max(sizes.values(), default=None)
    if sizes:
        median = sorted(sizes.values())[(len(sizes) - 1) // 2]
        assert math.isclose(found.median_partition_bytes, median, rel_tol=0.01)


def check_references(health: TableHealth, table: Table) -> None:
    files = {
        ref: {
            (e.data_file.file_path, e.data_file.content_offset): e.data_file.own_bytes for e in live_entries(table, ref)
        }
        for ref in table.metadata.refs
    }
    found = {one.ref: one for one in health.refs}
    assert found.keys() == files.keys()
    for name, own in files.items():
        others = {file for other, some in files.items() if other != name for file in some}
        only = {file: size for file, size in own.items() if file not in others}
        assert (found[name].files_count, found[name].bytes) == (len(own), sum(own.values()))
        assert (found[name].only_files_count, found[name].only_bytes) == (len(only), sum(only.values()))


def check_jobs(health: TableHealth, table: Table) -> None:
    jobs = {one.job: one for one in health.jobs}
    compact = plan_compact(table, no_spark)
    found = jobs["compact"]
    assert (found.files_count, found.written_bytes) == (
        compact.rewritten_data_files_count,
        compact.rewritten_bytes_count,
    )
    assert found.has_work is (compact.rewritten_data_files_count > 0)
    deletes = plan_rewrite_position_deletes(table, no_spark)
    found = jobs["rewrite_position_deletes"]
    moved, dangling = deletes.rewritten_delete_files_count, deletes.removed_dangling_delete_files_count
    assert (found.files_count, found.has_work) == (moved + dangling, bool(moved + dangling))
    manifests = plan_rewrite_manifests(table, no_spark)
    found = jobs["rewrite_manifests"]
    assert found.files_count == manifests.rewritten_manifests_count
    assert found.read_bytes == manifests.rewritten_bytes_count
