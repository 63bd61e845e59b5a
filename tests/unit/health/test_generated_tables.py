"""The health of random tables against a naive look at every entry, and what jobs would do against their own plans."""

import math
from collections import Counter, defaultdict
from functools import cache

import pytest
from msgspec.structs import replace

from icekeep.commit.manifests import StorageManifestReader
from icekeep.health.job import table_health
from icekeep.maintenance.compaction.job import plan_compact
from icekeep.maintenance.manifests.job import plan_rewrite_manifests
from icekeep.maintenance.position_deletes.job import plan_rewrite_position_deletes
from icekeep.spec.applicability import is_deletion_vector, partition_key, reaching_deletes
from icekeep.spec.manifests.structs import FileContent
from icekeep.tables.refs import create_branch, create_tag
from kit.cases import scaled
from kit.choices import Choices
from kit.naive_scan import live_entries
from kit.no_spark import no_spark
from kit.our_histories import in_memory
from kit.row_histories import History

pytestmark = pytest.mark.slow

SEEDS = range(scaled(25, least=8))
MIB = 1 << 20


@cache
def table_of(seed):
    """A random table, with a tag and a branch at random snapshots."""
    table = History.of(seed, in_memory()).by.table
    chosen = Choices(seed)
    ids = [snapshot.snapshot_id for snapshot in table.metadata.snapshots]
    table = create_tag(table, "kept", chosen.choice(ids))
    return create_branch(table, "aside", chosen.choice(ids))


@cache
def health_of(seed):
    return table_health(table_of(seed), no_spark)


def data_of(table):
    return [entry for entry in live_entries(table) if entry.data_file.content is FileContent.DATA]


def deletes_of(table):
    return [entry for entry in live_entries(table) if entry.data_file.content is not FileContent.DATA]


@pytest.mark.parametrize("seed", SEEDS)
def test_data_files_are_those_of_the_entries(seed):
    files = [entry.data_file for entry in data_of(table_of(seed))]
    found = health_of(seed).data
    sizes = [file.file_size_in_bytes for file in files]
    assert (found.data_files_count, found.data_files_bytes) == (len(files), sum(sizes))
    assert found.record_count == sum(file.record_count for file in files)
    assert (found.small_files_count, found.small_files_bytes, found.large_files_count) == (len(files), sum(sizes), 0)
    assert (found.smallest_file_bytes, found.largest_file_bytes) == (min(sizes, default=None), max(sizes, default=None))
    buckets = Counter(1 << (size.bit_length() - 1) for size in sizes)
    assert {one.least_bytes: one.files_count for one in found.histogram} == buckets
    assert sum(one.bytes for one in found.histogram) == sum(sizes)


@pytest.mark.parametrize("seed", SEEDS)
def test_delete_debt_is_what_reaches_the_data_files(seed):
    table, found = table_of(seed), health_of(seed).deletes
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


@pytest.mark.parametrize("seed", SEEDS)
def test_partitions_are_those_of_the_entries(seed):
    sizes = Counter()
    for entry in data_of(table_of(seed)):
        sizes[partition_key(entry.data_file)] += entry.data_file.file_size_in_bytes
    found = health_of(seed).partitions
    assert found.partitions_count == len(sizes)
    assert found.largest_partition_bytes == max(sizes.values(), default=None)
    if sizes:
        median = sorted(sizes.values())[(len(sizes) - 1) // 2]
        assert math.isclose(found.median_partition_bytes, median, rel_tol=0.01)


@pytest.mark.parametrize("seed", SEEDS)
def test_references_keep_what_is_live_at_their_heads(seed):
    table = table_of(seed)
    files = {
        ref: {
            (e.data_file.file_path, e.data_file.content_offset): e.data_file.own_bytes for e in live_entries(table, ref)
        }
        for ref in table.metadata.refs
    }
    found = {one.ref: one for one in health_of(seed).refs}
    assert found.keys() == files.keys()
    for name, own in files.items():
        others = {file for other, some in files.items() if other != name for file in some}
        only = {file: size for file, size in own.items() if file not in others}
        assert (found[name].files_count, found[name].bytes) == (len(own), sum(own.values()))
        assert (found[name].only_files_count, found[name].only_bytes) == (len(only), sum(only.values()))


@pytest.mark.parametrize("seed", SEEDS)
def test_what_jobs_would_do_is_what_their_plans_say(seed):
    table = table_of(seed)
    jobs = {one.job: one for one in health_of(seed).jobs}
    compact = plan_compact(table, no_spark)
    found = jobs["compact"]
    assert (found.files_count, found.written_bytes) == (
        compact.rewritten_data_files_count,
        compact.rewritten_bytes_count,
    )
    assert found.is_due is (compact.rewritten_data_files_count > 0)
    deletes = plan_rewrite_position_deletes(table, no_spark)
    found = jobs["rewrite_position_deletes"]
    moved, dangling = deletes.rewritten_delete_files_count, deletes.removed_dangling_delete_files_count
    assert (found.files_count, found.is_due) == (moved + dangling, bool(moved + dangling))
    manifests = plan_rewrite_manifests(table, no_spark)
    found = jobs["rewrite_manifests"]
    assert found.files_count == manifests.rewritten_manifests_count
    assert found.read_bytes == manifests.rewritten_bytes_count


@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_is_wrong_with_what_our_own_writers_wrote(seed):
    found = health_of(seed)
    assert (found.faults, found.not_measured) == ((), ())
    assert 0 <= found.score <= 100


@pytest.mark.parametrize("seed", [*SEEDS][:8])
def test_what_is_read_is_lists_manifests_and_metadata_once_each(seed):
    table = table_of(seed)
    reads = Counter()

    class Counting:
        def read(self, location, length_bytes=None):
            reads[location] += 1
            return table.storage.read(location, length_bytes)

        def open(self, location):
            reads[location] += 1
            return table.storage.open(location)

        def __getattr__(self, name):
            assert name in ("head",), name
            return getattr(table.storage, name)

    found = table_health(replace(table, storage=Counting()), no_spark)
    reader = StorageManifestReader(table.storage)
    heads = {ref.snapshot_id for ref in table.metadata.refs.values()}
    manifests = {m.manifest_path for one in heads for m in reader.manifests(table.metadata.snapshot(one))}
    lists = {snapshot.manifest_list for snapshot in table.metadata.snapshots}
    assert reads.keys() <= {table.metadata_location, *lists, *manifests}
    assert reads.keys() >= {table.metadata_location, *lists}
    assert max(reads.values()) == 1
    assert found.requests_count == len(reads)
