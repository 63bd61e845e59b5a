"""How entries lie, told without their records; and cutting by it."""

import pickle
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icekeep.errors import InvalidTableError
from icekeep.maintenance.manifests import survey as survey_module
from icekeep.maintenance.manifests.survey import Survey, Weight, cut_weights, survey
from icekeep.planning.entries import DecodedEntries, PruningStats
from icekeep.planning.transcode import BoundPart, RecordTarget
from icekeep.spec.manifests.write import PartitionCodec
from icekeep.spec.types import INT, STRING, NestedField, StructType
from kit.manifests import added, data_file, deleted, existing
from kit.rewritten_manifests import ManifestStore, target_of
from kit.runtime import no_spark

BY_N = StructType((NestedField(field_id=1000, name="n", type=INT),))
BY_N_AND_TEXT = StructType((*BY_N.fields, NestedField(field_id=1001, name="text", type=STRING)))
CODEC = PartitionCodec(BY_N)


def surveyed(store: ManifestStore, target: RecordTarget) -> Survey:
    return survey(store.rows, 0, target, store, no_spark)


def decoded(pairs: Sequence[tuple[int | None, str]]) -> DecodedEntries:
    """Entries of partitions of `BY_N`, each of a manifest."""
    rows = pa.record_batch(
        {
            "manifest_path": pa.array([path for _, path in pairs], pa.string()),
            "partition": pa.array([CODEC.encode((value,)) for value, _ in pairs], pa.binary()),
        }
    )
    return DecodedEntries(rows, PruningStats())


def told(found: Survey) -> list[tuple[Any, int]]:
    """Values and counts in the order of keys."""
    return [(CODEC.decode(weight.partition)[0], weight.count) for weight in found.weights()]


# What a survey finds.


def test_live_entries_are_counted_by_partition_in_the_order_of_keys():
    store = ManifestStore(BY_N)
    store.put_entries([added(data_file(partition=(v,))) for v in (5, -1, 5)])
    store.put_entries([existing(data_file(partition=(None,))), deleted(data_file(partition=(7,)))])
    store.put_entries([existing(data_file(partition=(5,)))])
    found = surveyed(store, target_of(BY_N))
    assert told(found) == [(None, 1), (-1, 1), (5, 3)]
    assert {CODEC.decode(key) for key in found.partitions} == {(None,), (-1,), (5,)}


def test_the_ends_of_each_manifest_are_its_least_and_greatest_key():
    store = ManifestStore(BY_N)
    for values in ((5, -1, 3), (None,), (2, 9)):
        store.put_entries([added(data_file(partition=(v,))) for v in values])
    store.put_entries([deleted(data_file(partition=(1,)))])
    found = surveyed(store, target_of(BY_N))
    keys = dict(zip((None, -1, 2, 3, 5, 9), (weight.key for weight in found.weights()), strict=True))
    paths = [row.manifest_path for row in store.rows]
    assert found.ends == {
        paths[0]: (keys[-1], keys[5]),
        paths[1]: (keys[None], keys[None]),
        paths[2]: (keys[2], keys[9]),
    }


def test_entries_of_one_key_and_several_partitions_are_counted_apart():
    store = ManifestStore(BY_N_AND_TEXT)
    store.put_entries([added(data_file(partition=p)) for p in ((1, "a"), (1, "b"), (0, "c"), (1, "a"))])
    target = target_of(BY_N_AND_TEXT)
    codec = PartitionCodec(BY_N_AND_TEXT)
    by_n = target_of(BY_N_AND_TEXT, sort=target.sort[:1])
    weights = surveyed(store, by_n).weights()
    assert [(codec.decode(w.partition), w.count) for w in weights] == [((0, "c"), 1), ((1, "a"), 2), ((1, "b"), 1)]
    assert weights[1].key == weights[2].key


def test_keys_of_bounds_are_counted_too():
    store = ManifestStore(BY_N)
    bounds = [b"b", b"a", None, b"b"]
    files = [data_file(partition=(1,), lower_bounds=None if b is None else {3: b}) for b in bounds]
    store.put_entries([added(file) for file in files])
    found = surveyed(store, target_of(BY_N, sort=[BoundPart(3, STRING)]))
    assert [weight.count for weight in found.weights()] == [1, 1, 2]
    assert found.ends[store.rows[0].manifest_path] == (found.weights()[0].key, found.weights()[-1].key)


def test_a_manifest_that_is_not_whole_is_an_error():
    store = ManifestStore(BY_N)
    store.put_entries([added(data_file(partition=(1,)))])
    store.rows[0] = type(store.rows[0])(
        manifest_path=store.rows[0].manifest_path,
        manifest_length=store.rows[0].manifest_length,
        partition_spec_id=0,
        added_snapshot_id=7,
        sequence_number=5,
        added_files_count=2,
        existing_files_count=0,
        deleted_files_count=0,
    )
    with pytest.raises(InvalidTableError, match="its manifest list says 2"):
        surveyed(store, target_of(BY_N))


_PAIRS = st.lists(st.tuples(st.none() | st.integers(-5, 5), st.sampled_from(["a", "b", "c"])), max_size=12)


@given(st.lists(_PAIRS, max_size=4), st.randoms(use_true_random=False))
def test_the_order_in_which_parts_come_does_not_matter(parts: list[Any], random: Any):
    whole = Survey(target_of(BY_N))
    for part in parts:
        whole.add(decoded(part))
    order = [*parts]
    random.shuffle(order)
    merged = Survey(target_of(BY_N))
    for part in order:
        one = Survey(target_of(BY_N))
        one.add(decoded(part))
        merged.merge(pickle.loads(pickle.dumps(one)))
    assert merged.weights() == whole.weights()
    assert merged.ends == whole.ends
    assert sorted(merged.partitions) == sorted(whole.partitions)
    counts = Counter(value for part in parts for value, _ in part)
    assert dict(told(merged)) == counts


@given(_PAIRS, st.integers(2, 6))
def test_thinning_keeps_the_sum_and_both_ends(pairs: Any, most: int):
    with pytest.MonkeyPatch.context() as patch:
        full = Survey(target_of(BY_N))
        full.add(decoded(pairs))
        patch.setattr(survey_module, "_MAX_WEIGHTS", most)
        thin = Survey(target_of(BY_N))
        for start in range(0, len(pairs), 2):
            thin.add(decoded(pairs[start : start + 2]))
    before, after = full.weights(), thin.weights()
    assert sum(w.count for w in after) == sum(w.count for w in before) == len(pairs)
    assert {(w.key, w.partition) for w in after} <= {(w.key, w.partition) for w in before}
    assert len(after) <= most
    assert thin.ends == full.ends
    assert [w.key for w in (*after[:1], *after[-1:])] == [w.key for w in (*before[:1], *before[-1:])]


# Cutting.


def weights_of(counts: Sequence[int]) -> list[Weight]:
    return [Weight(bytes([n]), bytes([n, n]), count) for n, count in enumerate(counts)]


@given(st.lists(st.integers(1, 50), max_size=12), st.integers(1, 20))
def test_parts_have_equal_counts_and_are_everything_together(counts: list[int], count: int):
    weights = weights_of(counts)
    parts = cut_weights(weights, count)
    total = sum(counts)
    sizes = [sum(w.count for w in part) for part in parts]
    assert sum(sizes) == total
    assert len(parts) == min(count, total)
    assert all(abs(size - total / count) < 1 or total < count for size in sizes)
    assert all(w.count > 0 for part in parts for w in part)
    together: Counter[bytes] = Counter()
    for part in parts:
        for weight in part:
            together[weight.key] += weight.count
    assert together == Counter({w.key: w.count for w in weights})
    keys = [w.key for part in parts for w in part]
    assert keys == sorted(keys)
    assert all(part[0].partition == part[0].key * 2 for part in parts)


def test_a_key_that_is_more_than_a_part_is_cut_too():
    parts = cut_weights(weights_of([1, 8, 1]), 5)
    assert [[(w.key[0], w.count) for w in part] for part in parts] == [
        [(0, 1), (1, 1)], [(1, 2)], [(1, 2)], [(1, 2)], [(1, 1), (2, 1)],
    ]  # fmt: skip


def test_nothing_is_cut_into_nothing():
    assert cut_weights([], 3) == []
