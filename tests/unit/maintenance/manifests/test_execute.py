"""What a rewrite changes for readers, what a survey foretells, and which task gets which record."""

import pickle
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icekeep.errors import InvalidTableError
from icekeep.events import SILENT
from icekeep.maintenance.manifests import execute
from icekeep.maintenance.manifests import survey as survey_module
from icekeep.maintenance.manifests.candidates import expected_manifests
from icekeep.maintenance.manifests.execute import FilterGain, filter_gains, group_gain
from icekeep.maintenance.manifests.records import _even_parts as _parts
from icekeep.maintenance.manifests.records import _share, _Writing, range_numbers
from icekeep.maintenance.manifests.survey import Survey, Weight, cut_weights, survey
from icekeep.maintenance.rewrite.run import WrittenFiles
from icekeep.planning.entries import DecodedEntries, PruningStats, ReadBy
from icekeep.planning.transcode import PLACES_A_MANIFEST, RECORDS, BoundPart, RecordTarget
from icekeep.spec.manifests.structs import ManifestFile
from icekeep.spec.manifests.write import PartitionCodec
from icekeep.spec.types import INT, STRING, NestedField, StructType
from kit.cases import for_each
from kit.manifests import added, deleted
from kit.manifests import data_file as full_data_file
from kit.rewritten_manifests import ManifestStore, asked, chosen, target_of, writer_of
from kit.runtime import no_spark
from kit.storage import MemoryStorage
from kit.tables import BY_KIND, add, data_file, memory_table

KINDS = ("a", "b", "c", "d")


@pytest.fixture
def table() -> Any:
    """Eight manifests of which each reaches over all four kinds."""
    made = memory_table(spec=BY_KIND, commit__manifest_merge__enabled="false")
    for number in range(8):
        made = add(made, *(data_file(f"{number}-{kind}", partition=(kind,)) for kind in KINDS))
    return made


def test_partition_filter_opens_fewer_manifests_after_rewrite(table: Any):
    plan = chosen(table)
    [done] = execute.rewritten(table, plan, no_spark, "run", WrittenFiles(table, "run", SILENT))
    gain = group_gain(table, done)
    before_bytes = sum(m.manifest_length for m in plan.replaced)
    assert (gain.spec_id, gain.content, gain.entries_count) == (0, "data", 32)
    assert (gain.manifests_count, gain.added_manifests_count) == (8, 1)
    assert (gain.rewritten_bytes_count, gain.added_bytes_count) == (before_bytes, done.added[0].manifest_length)
    assert (gain.mean_opened_before_count, gain.mean_opened_after_count) == (8, 1)
    assert (gain.max_opened_before_count, gain.max_opened_after_count) == (8, 1)
    assert (gain.mean_opened_before_bytes, gain.mean_opened_after_bytes) == (
        before_bytes,
        done.added[0].manifest_length,
    )


def test_what_is_foreseen_gains_what_is_then_gained(table: Any):
    plan = chosen(table)
    [foreseen] = execute.rewritten(table, plan, no_spark)
    [done] = execute.rewritten(table, plan, no_spark, "run", WrittenFiles(table, "run", SILENT))
    assert group_gain(table, foreseen) == group_gain(table, done)
    assert [m.manifest_path for m in foreseen.added] == [""]


def test_manifests_that_stay_are_opened_as_before(table: Any):
    paths = [m.manifest_path for m in chosen(table).listed]
    plan = chosen(table, where=f"manifest_path NOT IN ('{paths[0]}', '{paths[5]}')")
    [done] = execute.rewritten(table, plan, no_spark)
    gain = group_gain(table, done)
    assert (gain.manifests_count, gain.mean_opened_before_count, gain.mean_opened_after_count) == (6, 8, 3)
    assert [m.manifest_path for m in done.listed] == ["", paths[0], paths[5]]


def test_each_filter_of_the_workload_is_told_what_it_opens(table: Any):
    filters = ["kind = 'a'", "kind > 'z'", "score > 3"]
    requested, plan = asked(table, workload=filters), chosen(table, workload=filters)
    done = execute.rewritten(table, plan, no_spark)
    assert filter_gains(table, requested, plan.listed, done, 0) == (
        FilterGain(filter="kind = 'a'", opened_before_count=8, opened_after_count=1),
        FilterGain(filter="kind > 'z'", opened_before_count=0, opened_after_count=0),
        FilterGain(filter="score > 3", opened_before_count=8, opened_after_count=1),
    )
    assert filter_gains(table, asked(table), plan.listed, done, 0) == ()


def filled(target_bytes: int, commits: int = 10, kinds: int = 20) -> Any:
    """Each commit has a file of every kind, and one of none."""
    table = memory_table(
        spec=BY_KIND, commit__manifest_merge__enabled="false", commit__manifest__target_size_bytes=str(target_bytes)
    )
    for number in range(commits):
        names = [None, *(f"kind{n:03}" for n in range(kinds))]
        table = add(table, *(data_file(f"{number}-{name}", partition=(name,)) for name in names))
    return table


def foretold(table: Any, expected_count: int | None = None) -> list[ManifestFile]:
    found = chosen(table)
    [group] = found.groups
    [run] = group.runs
    run = (
        run
        if expected_count is None
        else type(run)(manifests=run.manifests, target=run.target, expected_count=expected_count)
    )
    weights = survey(run.manifests, 0, run.target, table.storage, no_spark).weights()
    return expected_manifests(group, run, weights)


def outline(manifests: Any) -> list[Any]:
    """All but paths and lengths, and how many rows there are, which a survey does not look at."""
    return [
        (
            m.partition_spec_id,
            m.content,
            m.added_files_count,
            m.existing_files_count,
            m.deleted_files_count,
            m.partitions,
        )
        for m in manifests
    ]


@pytest.mark.slow
def test_predicted_manifest_counts_match_what_is_written():
    table = filled(8 << 20)
    [foreseen], [one] = execute.rewritten(table, chosen(table), no_spark), foretold(table)
    assert outline([one]) == outline(foreseen.added)
    assert (one.manifest_path, one.existing_files_count) == ("", 210)
    assert one.manifest_length == sum(m.manifest_length for m in chosen(table).replaced)


@pytest.mark.parametrize("count", [2, 3, 7])
def test_entries_are_cut_evenly_and_in_the_order_of_keys(count: int):
    table = filled(8 << 20)
    expected = foretold(table, count)
    counts = [m.existing_files_count or 0 for m in expected]
    assert (sum(counts), len(counts)) == (210, count)
    assert max(counts) - min(counts) <= 1
    # Nulls come first.
    assert [m.partitions[0].contains_null for m in expected if m.partitions] == [True] + [False] * (count - 1)
    ends = [(m.partitions[0].lower_bound, m.partitions[0].upper_bound) for m in expected if m.partitions]
    assert all(before[1] <= after[0] for before, after in pairwise(ends))
    whole = sum(m.manifest_length for m in chosen(table).replaced)
    assert whole - count <= sum(m.manifest_length for m in expected) <= whole


def test_many_entries_are_foretold_as_few_are_foreseen(monkeypatch: pytest.MonkeyPatch):
    """Where tasks would write them, a survey stands for what the driver would work out."""
    table = filled(8 << 20)
    plan = chosen(table)
    [few] = execute.rewritten(table, plan, no_spark)
    reading = execute.chosen_reading

    def many(*arguments: Any) -> Any:
        found = reading(*arguments)
        return type(found)(by=ReadBy.TASKS, decoder=found.decoder, reason="")

    monkeypatch.setattr(execute, "chosen_reading", many)
    [foreseen] = execute.rewritten(table, plan, no_spark)
    assert outline(foreseen.added) == outline(few.added)
    assert sorted(foreseen.partitions) == sorted(few.partitions)


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


def test_manifest_ends_are_its_least_and_greatest_key():
    store = ManifestStore(BY_N)
    for values in ((5, -1, 3), (None,), (2, 9)):
        store.put_entries([added(full_data_file(partition=(v,))) for v in values])
    store.put_entries([deleted(full_data_file(partition=(1,)))])
    found = surveyed(store, target_of(BY_N))
    keys = dict(zip((None, -1, 2, 3, 5, 9), (weight.key for weight in found.weights()), strict=True))
    paths = [row.manifest_path for row in store.rows]
    assert found.ends == {
        paths[0]: (keys[-1], keys[5]),
        paths[1]: (keys[None], keys[None]),
        paths[2]: (keys[2], keys[9]),
    }


def test_entries_of_one_key_are_counted_per_partition():
    store = ManifestStore(BY_N_AND_TEXT)
    store.put_entries([added(full_data_file(partition=p)) for p in ((1, "a"), (1, "b"), (0, "c"), (1, "a"))])
    target = target_of(BY_N_AND_TEXT)
    codec = PartitionCodec(BY_N_AND_TEXT)
    by_n = target_of(BY_N_AND_TEXT, sort=target.sort[:1])
    weights = surveyed(store, by_n).weights()
    assert [(codec.decode(w.partition), w.count) for w in weights] == [((0, "c"), 1), ((1, "a"), 2), ((1, "b"), 1)]
    assert weights[1].key == weights[2].key


def test_keys_of_bounds_are_counted_too():
    store = ManifestStore(BY_N)
    bounds = [b"b", b"a", None, b"b"]
    files = [full_data_file(partition=(1,), lower_bounds=None if b is None else {3: b}) for b in bounds]
    store.put_entries([added(file) for file in files])
    found = surveyed(store, target_of(BY_N, sort=[BoundPart(3, STRING)]))
    assert [weight.count for weight in found.weights()] == [1, 1, 2]
    assert found.ends[store.rows[0].manifest_path] == (found.weights()[0].key, found.weights()[-1].key)


def test_a_manifest_that_is_not_whole_is_an_error():
    store = ManifestStore(BY_N)
    store.put_entries([added(full_data_file(partition=(1,)))])
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


_PLACES = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 9), st.integers(0, 3)), max_size=30)


def batch_of(rows: Sequence[tuple[bytes, int]], record: bytes = b"r") -> pa.RecordBatch:
    """Records of these keys and places."""
    keys, places = ([row[n] for row in rows] for n in (0, 1))
    same: list[Any] = [b""] * len(rows), [1] * len(rows), [1] * len(rows), [record] * len(rows)
    arrays = [pa.array(v, f.type) for v, f in zip((keys, places, *same), RECORDS, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=RECORDS)


def numbers(rows: Sequence[tuple[bytes, int]], points: Sequence[bytes], manifests_count: int) -> list[int]:
    return range_numbers(batch_of(rows), points, manifests_count).tolist()


# Ranges.


@given(_PLACES, st.lists(st.integers(0, 6).map(lambda n: bytes([n])), max_size=8).map(sorted))
def test_each_record_is_in_one_range_in_key_order(drawn: list[tuple[int, int, int]], points: list[bytes]):
    rows = [(bytes([key]), number * PLACES_A_MANIFEST + place) for key, number, place in drawn]
    found = numbers(rows, points, 10)
    assert len(found) == len(rows)
    assert all(0 <= number <= len(points) for number in found)
    for (row, number), (other_row, other_number) in pairwise(sorted(zip(rows, found, strict=True))):
        assert row <= other_row
        assert number <= other_number
    # Which range a record falls into depends on nothing but itself.
    assert [numbers([row], points, 10)[0] for row in rows] == found


@given(st.lists(st.integers(1, 40), min_size=1, max_size=8), st.integers(1, 12))
def test_points_of_a_survey_give_every_range_some_records(counts: list[int], ranges_count: int):
    weights = [Weight(bytes([n]), b"", count) for n, count in enumerate(counts)]
    parts = cut_weights(weights, ranges_count)
    points = [part[0].key for part in parts[1:]]
    manifests_count = 1000
    rows = [
        (bytes([key]), (place * manifests_count // count) * PLACES_A_MANIFEST)
        for key, count in enumerate(counts)
        for place in range(count)
    ]
    found = numbers(rows, points, manifests_count)
    assert found == sorted(found)
    assert {*found} <= {*range(len(parts))}


def test_a_key_that_fills_several_ranges():
    points = [b"b", b"b", b"b", b"c"]
    rows = [(b"b", number * PLACES_A_MANIFEST + 5) for number in range(8)]
    assert numbers(rows, points, 8) == [0, 0, 1, 1, 2, 2, 3, 3]
    assert numbers([(b"a", 7 * PLACES_A_MANIFEST), (b"bb", 0), (b"c", 0), (b"d", 0)], points, 8) == [0, 3, 3, 4]
    assert numbers([(b"c", 7 * PLACES_A_MANIFEST)], points, 8) == [4]


def test_share_of_manifests_has_only_its_own_numbers():
    store = ManifestStore()
    for _ in range(5):
        store.put_entries([added()])
    share = _share(store.task(target_of()), [store.rows[4], store.rows[1]])
    assert [m.manifest_path for m in share.manifests] == [store.rows[4].manifest_path, store.rows[1].manifest_path]
    assert share.numbers == {store.rows[4].manifest_path: 4, store.rows[1].manifest_path: 1}


# Cutting what a task gets.


def cut(batch_rows: Sequence[int], entries_count: int, target_bytes: int, record_bytes: int = 100) -> list[pa.Table]:
    """Records that do not pack, in batches of so many rows, as manifests of a target size."""
    writer = writer_of(target_of(), MemoryStorage(), target_bytes, codec="uncompressed")
    batches, begin = [], 0
    for count in batch_rows:
        batches.append(batch_of([(b"k", place) for place in range(begin, begin + count)], b"r" * record_bytes))
        begin += count
    parts = [*_parts(_Writing(writer, entries_count), batches)]
    assert [place for part in parts for place in part["place"].to_pylist()] == [*range(begin)]
    assert all(part.schema == RECORDS for part in parts)
    return parts


@for_each("batch_rows", [[100] * 10, [1000], [1] * 1000, [7, 993], [999, 1], [334, 333, 333]])
def test_records_are_cut_evenly_whatever_batches_they_come_in(batch_rows: list[int]):
    assert [len(part) for part in cut(batch_rows, 1000, 20_000)] == [200] * 5


@for_each(
    ("rows", "sizes"),
    [
        (1000, [200] * 5),
        (1040, [200, 200, 200, 200, 240]),
        (1160, [*[200] * 5, 160]),
        (930, [*[200] * 4, 130]),
        (70, [70]),
    ],
)
def test_a_rest_of_less_than_half_a_manifest_goes_with_the_last(rows: int, sizes: list[int]):
    found = [len(part) for part in cut([rows], 1000, 20_000)]
    assert found == sizes


@given(st.lists(st.integers(1, 300), min_size=1, max_size=10), st.integers(1, 2000), st.integers(100, 50_000))
def test_no_manifest_is_more_than_one_and_a_half(batch_rows: list[int], entries_count: int, target_bytes: int):
    sizes = [len(part) for part in cut(batch_rows, entries_count, target_bytes)]
    assert sum(sizes) == sum(batch_rows)
    room = max(2, -(-entries_count // max(1, round(100 * entries_count / target_bytes))))
    assert all(size == room for size in sizes[:-1])
    assert sizes[-1] < room + max(1, room // 2) or sizes[-1] <= room
    assert Counter(size > 0 for size in sizes) == {True: len(sizes)}
