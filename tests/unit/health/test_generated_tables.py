"""The health of random tables against a naive look at every entry, and what jobs would do against their own plans."""

from collections import Counter
from functools import cache

import pytest
from msgspec.structs import replace

from icekeep.commit.manifests import ManifestReader
from icekeep.health.job import table_health
from icekeep.tables.refs import create_branch, create_tag
from kit.cases import Choices, for_each, scaled, seeds
from kit.naive_scan import check_data, check_deletes, check_jobs, check_partitions, check_references
from kit.row_histories import History, in_memory
from kit.runtime import no_spark

pytestmark = pytest.mark.slow

SEEDS = seeds(scaled(25, least=8))


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


@for_each("seed", SEEDS)
def test_data_files_are_those_of_the_entries(seed):
    check_data(health_of(seed), table_of(seed))


@for_each("seed", SEEDS)
def test_delete_debt_is_what_reaches_the_data_files(seed):
    check_deletes(health_of(seed), table_of(seed))


@for_each("seed", SEEDS)
def test_partitions_are_those_of_the_entries(seed):
    check_partitions(health_of(seed), table_of(seed))


@for_each("seed", SEEDS)
def test_references_keep_what_is_live_at_their_heads(seed):
    check_references(health_of(seed), table_of(seed))


@for_each("seed", SEEDS)
def test_what_jobs_would_do_is_what_their_plans_say(seed):
    check_jobs(health_of(seed), table_of(seed))


@for_each("seed", SEEDS)
def test_nothing_is_wrong_with_what_our_own_writers_wrote(seed):
    found = health_of(seed)
    assert (found.faults, found.not_measured) == ((), ())
    assert 0 <= found.score <= 100


@for_each("seed", [*SEEDS][:8])
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
    reader = ManifestReader(table.storage)
    heads = {ref.snapshot_id for ref in table.metadata.refs.values()}
    manifests = {m.manifest_path for one in heads for m in reader.manifests(table.metadata.snapshot(one))}
    lists = {snapshot.manifest_list for snapshot in table.metadata.snapshots}
    assert reads.keys() <= {table.metadata_location, *lists, *manifests}
    assert reads.keys() >= {table.metadata_location, *lists}
    assert max(reads.values()) == 1
    assert found.requests_count == len(reads)
