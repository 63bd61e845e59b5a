"""Which manifests are badly sized or overlap, and how many a filter on one partition opens."""

import math
import uuid
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icekeep.maintenance.manifests.ranges import (
    WELL_SIZED,
    ManifestInterval,
    Overlap,
    expected_manifests_count,
    intervals,
    overlap,
    worth_rewriting,
)
from icekeep.maintenance.manifests.survey import sampled
from icekeep.spec.filters.evaluators import manifest_may_match
from icekeep.spec.filters.expressions import BoundPredicate, Expression, Operation, conjunction
from icekeep.spec.manifests.structs import FieldSummary, ManifestFile, PartitionSummarizer
from icekeep.spec.types import DOUBLE, INT, STRING, UUID, VARIANT, NestedField, Type
from icekeep.spec.values import sort_key, value_to_bytes
from kit.cases import cases, for_each
from kit.filters import COLUMN_TYPES, Column, summary_of
from kit.strategies import values_of

MB = 1024 * 1024
TARGET = 8 * MB
OPEN = 512 * 1024


def fields(*types: Type) -> tuple[NestedField, ...]:
    return tuple(NestedField(field_id=1000 + i, name=f"p{i}", type=type_) for i, type_ in enumerate(types))


def summaries_of(types: list[Type], partitions: list[tuple[Any, ...]]) -> tuple[FieldSummary, ...]:
    summarizer = PartitionSummarizer(types)
    for partition in partitions:
        summarizer.add(partition)
    return summarizer.summaries()


def manifest(
    name: str, length: float = TARGET, summaries: tuple[FieldSummary, ...] | None = None, files_count: int = 100
) -> ManifestFile:
    return ManifestFile(
        manifest_path=name,
        manifest_length=int(length),
        partition_spec_id=0,
        added_snapshot_id=1,
        added_files_count=0,
        existing_files_count=files_count,
        partitions=summaries,
    )


def summarized(types: list[Type], *partitions: tuple[Any, ...]) -> ManifestFile:
    return manifest("m", summaries=summaries_of(types, list(partitions)))


def interval_of(types: list[Type], *partitions: tuple[Any, ...]) -> ManifestInterval | None:
    return intervals([summarized(types, *partitions)], fields(*types))[0]


def key(types: list[Type], *values: Any) -> bytes:
    return sort_key(types[: len(values)], values)


# Intervals


def test_the_first_field_with_several_values_ends_it():
    found = interval_of([INT, STRING], (7, "a"), (9, "b"))
    assert found is not None
    assert key([INT, STRING], 7, "zzz") < found.lower < key([INT], 8)
    assert key([INT], 8) < found.upper < key([INT, STRING], 9, None)


def test_the_next_field_refines_one_value_of_the_first():
    found = interval_of([INT, STRING, INT], (7, "a", 1), (7, "c", 1))
    assert found is not None
    assert key([INT, STRING, INT], 7, "a", 2**31 - 1) < found.lower < key([INT, STRING], 7, "b")
    assert key([INT, STRING], 7, "b") < found.upper < key([INT, STRING, INT], 7, "c", None)


def test_null_is_below_and_nan_above_all_values():
    nulls, nans = interval_of([DOUBLE], (None,), (1.0,)), interval_of([DOUBLE], (1.0,), (math.nan,))
    assert nulls is not None
    assert nans is not None
    assert nulls.lower < key([DOUBLE], -math.inf) < key([DOUBLE], 0.5) < nulls.upper < key([DOUBLE], 1.0) + b"\xff"
    assert key([DOUBLE], 1.0) < nans.lower < key([DOUBLE], math.inf) < nans.upper


@pytest.mark.parametrize("only", [None, math.nan])
def test_files_may_all_be_of_null_or_of_nan(only: float | None):
    assert interval_of([DOUBLE], (only,)) == ManifestInterval(key([DOUBLE], only), key([DOUBLE], only))


def test_without_bounds_all_values_are_nan():
    (found,) = intervals([manifest("m", summaries=(FieldSummary(contains_null=False),))], fields(DOUBLE))
    assert found == ManifestInterval(key([DOUBLE], math.nan), key([DOUBLE], math.nan))


ONE = value_to_bytes(INT, 1)


@pytest.mark.parametrize(
    ("type_", "summaries"),
    [
        (INT, None),
        (INT, ()),
        (INT, (FieldSummary(contains_null=False),)),
        (INT, (FieldSummary(contains_null=True, lower_bound=ONE),)),
        (INT, (FieldSummary(contains_null=False, upper_bound=ONE),)),
        (INT, (FieldSummary(contains_null=False, lower_bound=b"123", upper_bound=ONE),)),
        (DOUBLE, (FieldSummary(contains_null=False, lower_bound=bytes(8), upper_bound=b"\xff" * 8),)),
        (VARIANT, (FieldSummary(contains_null=False, lower_bound=ONE, upper_bound=ONE),)),
        (
            UUID,
            (
                FieldSummary(
                    contains_null=False, lower_bound=uuid.UUID(int=1).bytes, upper_bound=uuid.UUID(int=1 << 127).bytes
                ),
            ),
        ),
    ],
    ids=[
        "none",
        "too few",
        "no values",
        "no upper",
        "no lower",
        "not bytes of it",
        "nan",
        "no order",
        "order of bytes",
    ],
)
def test_an_interval_is_unknown_where_summaries_do_not_tell_it(type_: Type, summaries: tuple[FieldSummary, ...] | None):
    assert intervals([manifest("m", summaries=summaries)], fields(type_)) == [None]


def test_fields_are_taken_in_the_order_of_sorting():
    rows = [summarized([INT, STRING], (7, "a"), (9, "a"))]
    (by_kind,) = intervals(rows, fields(INT, STRING), [1, 0])
    assert by_kind is not None
    assert by_kind.lower.startswith(key([STRING], "a") + key([INT], 7))
    (kind_alone,) = intervals(rows, fields(INT, STRING), [1])
    assert kind_alone == ManifestInterval(key([STRING], "a"), key([STRING], "a"))


def test_without_sort_fields_all_manifests_have_one_interval():
    first, second = intervals([manifest("a", summaries=None), manifest("b", summaries=())], ())
    assert first is not None
    assert first == second
    assert not first.overlaps(first)


TYPES = [INT, STRING, DOUBLE]


@st.composite
def sorted_and_cut(draw: st.DrawFn) -> tuple[list[Type], list[list[tuple[Any, ...]]]]:
    """Partition tuples of one to three fields, few values each, in order and in pieces."""
    types = draw(st.lists(st.sampled_from(TYPES), min_size=1, max_size=3))
    pools = [draw(st.lists(st.none() | values_of(type_), min_size=1, max_size=3)) for type_ in types]
    partitions = draw(st.lists(st.tuples(*map(st.sampled_from, pools)), min_size=1, max_size=14))
    partitions.sort(key=lambda partition: sort_key(types, partition))
    cuts = sorted(draw(st.sets(st.integers(1, len(partitions)), max_size=6)) | {0, len(partitions)})
    return types, [partitions[begin:end] for begin, end in pairwise(cuts)]


@given(sorted_and_cut())
@cases(100)
def test_manifests_that_were_sorted_and_cut_do_not_overlap(clustered: tuple[list[Type], list[list[tuple[Any, ...]]]]):
    types, pieces = clustered
    found = [interval_of(types, *piece) for piece in pieces]
    for position, interval in enumerate(found):
        assert interval is not None
        for later in found[position + 1 :]:
            assert later is not None
            assert not interval.overlaps(later)
            assert interval.upper <= later.lower


@given(sorted_and_cut())
@cases(100)
def test_an_interval_reaches_no_farther_than_the_partitions(clustered: tuple[list[Type], list[list[tuple[Any, ...]]]]):
    types, pieces = clustered
    for piece in pieces:
        interval = interval_of(types, *piece)
        keys = [sort_key(types, partition) for partition in piece]
        assert interval is not None
        assert min(keys) <= interval.lower <= interval.upper <= max(keys)


# What is worth it

Span = tuple[int, int] | None


def chosen(*spans: tuple[Span, float], target: int = TARGET) -> list[list[int]]:
    """Positions of the manifests of each run, of manifests by their interval and their size as a part of the target."""
    rows = [manifest(f"{position:04}", size * target) for position, (_, size) in enumerate(spans)]
    runs = worth_rewriting(rows, [None if span is None else ManifestInterval(*span) for span, _ in spans], target)
    return [[int(row.manifest_path) for row in run] for run in runs]


def clustered(count: int, size: float = 1.0) -> list[tuple[Span, float]]:
    return [((position, position + 1), size) for position in range(count)]


SMALL = [((position, position), 0.2) for position in (1, 2, 3, 11, 12, 13, 21, 22)]
NARROW: list[tuple[Span, float]] = [((position, position + 7), 0.06) for position in range(0, 54, 6)]


@for_each(
    ("spans", "runs"),
    {
        "nothing": ([], []),
        "clustered and a little small": (clustered(20, 0.75), []),
        "clustered and of the target": (clustered(20), []),
        "clustered and a little large": (clustered(20, 1.8), []),
        "small": (clustered(4, 0.1), [[0, 1, 2, 3]]),
        "one small": ([((0, 1), 0.01)], []),
        "one too large": ([*clustered(3), ((3, 4), 1.9)], [[3]]),
        "walls part the runs": ([((4, 10), 1.0), ((14, 20), 1.0), *SMALL], [[2, 3, 4], [5, 6, 7], [8, 9]]),
        "ends that touch": ([((1, 5), 1.0), ((5, 5), 1.0), ((5, 9), 1.0)], []),
        "ends that overlap": ([((1, 6), 1.0), ((5, 5), 1.0), ((5, 9), 1.0)], [[0, 1, 2]]),
        "scattered": ([((0, 9), 1.0)] * 5, [[0, 1, 2, 3, 4]]),
        "small ones where the others are not worth it": ([*clustered(60), ((0, 60), 0.01), ((3, 9), 0.01)], [[60, 61]]),
        "small ones that together would lie across all others": ([*clustered(60), *NARROW], []),
        "of one partition": ([((5, 5), 0.1), ((5, 5), 1.0), ((5, 5), 0.1), ((5, 5), 1.0)], [[0, 2]]),
        "unknown overlaps all": ([*clustered(3), (None, 1.0)], [[3, 0, 1, 2]]),
        "none known, badly sized": ([(None, size) for size in (1.0, 0.1, 1.0, 0.2, 1.9)], [[1, 3, 4]]),
        "none known, well sized": ([(None, 1.0)] * 9, []),
        "three late": ([*clustered(60), *[((0, 60), 0.01)] * 3], [[60, 61, 62]]),
    }.values(),
)
def test_what_is_worth_rewriting(spans: list[tuple[Span, float]], runs: list[list[int]]):
    assert [sorted(run) for run in chosen(*spans)] == [sorted(run) for run in runs]


@for_each(("late", "is_worth_it"), [(1, False), (4, True), (10, True)])
def test_few_small_wide_manifests_do_not_force_a_rewrite(late: int, is_worth_it: bool):
    runs = chosen(*clustered(60), *[((0, 60), 0.01)] * late)
    assert any(0 in run for run in runs) is is_worth_it


def test_neither_one_file_nor_a_header_can_be_split():
    row = manifest("m", 3 * TARGET, files_count=1)
    assert worth_rewriting([row], [ManifestInterval(1, 1)], TARGET) == []
    row, interval = manifest("m", 1.7 * TARGET + TARGET / 2), ManifestInterval(1, 2)
    assert worth_rewriting([row], [interval], TARGET) == [[row]]
    assert worth_rewriting([row], [interval], TARGET, header_bytes=TARGET // 2) == []


def test_manifests_that_are_mostly_header_are_merged():
    rows = [manifest(name, 0.7 * TARGET) for name in "abc"]
    known = [ManifestInterval(place, place + 1) for place in range(3)]
    assert worth_rewriting(rows, known, TARGET) == []
    assert worth_rewriting(rows, known, TARGET, header_bytes=int(0.5 * TARGET)) == [rows]


# Properties: the rules once more, in plain sums over pairs


def overlap_of(one: ManifestInterval | None, other: ManifestInterval | None) -> bool:
    return one is None or other is None or one.overlaps(other)


Rows = list[tuple[ManifestFile, ManifestInterval | None]]


def slow_runs(rows: Rows) -> list[Rows]:
    """Runs between walls, compared pair by pair; some interval is known."""
    rows = sorted(rows, key=lambda row: row[0].manifest_path)
    least, most = (part * TARGET for part in WELL_SIZED)

    def is_wall(row: tuple[ManifestFile, ManifestInterval | None]) -> bool:
        others = [other for other in rows if other is not row]
        return least <= row[0].manifest_length <= most and not any(overlap_of(row[1], o[1]) for o in others)

    walls = sorted((row[1].lower, row[1].upper) for row in rows if row[1] is not None and is_wall(row))
    runs: dict[int, Rows] = {}
    for row in rows:
        if not is_wall(row):
            below = [
                wall for wall in walls if row[1] is not None and wall[1] <= row[1].lower and wall[0] <= row[1].lower
            ]
            runs.setdefault(len(below), []).append(row)
    return [runs[place] for place in sorted(runs)]


def slow_cost(rows: Rows) -> float:
    total = sum(row.manifest_length for row, _ in rows)
    weighted = 0
    for number, (row, interval) in enumerate(rows):
        met = [o.manifest_length + OPEN for n, (o, i) in enumerate(rows) if n == number or overlap_of(interval, i)]
        weighted += row.manifest_length * sum(met)
    return weighted / total


def slow_is_worth_it(rows: Rows) -> bool:
    total = sum(row.manifest_length for row, _ in rows)
    fewer = max(1, math.ceil(total / TARGET))
    if any(row.manifest_length > WELL_SIZED[1] * TARGET for row, _ in rows):
        return True
    if fewer < len(rows) and fewer <= 0.85 * len(rows):
        return True
    return total / max(1, round(total / TARGET)) + OPEN <= 0.8 * slow_cost(rows)


SIZES = st.sampled_from([0.01, 0.1, 0.3, 0.6, 0.74, 0.75, 0.9, 1.0, 1.4, 1.8, 1.81, 2.5])
POINTS = st.integers(0, 12)
SPANS = st.tuples(POINTS, POINTS).map(lambda pair: (min(pair), max(pair)))


@st.composite
def listed(draw: st.DrawFn, unknown: bool = True) -> Rows:
    spans = draw(st.lists(st.tuples(SPANS | st.none() if unknown else SPANS, SIZES), min_size=1, max_size=12))
    return [
        (manifest(f"{position:04}", size * TARGET), None if span is None else ManifestInterval(*span))
        for position, (span, size) in enumerate(spans)
    ]


def paths(runs: list[list[ManifestFile]]) -> list[list[str]]:
    return [[row.manifest_path for row in run] for run in runs]


@given(listed())
@cases(150)
def test_runs_that_are_worth_it_are_chosen_whole(rows: Rows):
    if all(interval is None for _, interval in rows):
        rows = [(row, ManifestInterval(0, 0)) for row, _ in rows]
    found = {frozenset(run) for run in paths(worth_rewriting([row for row, _ in rows], [i for _, i in rows], TARGET))}
    runs = slow_runs(rows)
    for run in runs:
        whole = frozenset(row.manifest_path for row, _ in run)
        assert (whole in found) == slow_is_worth_it(run)
    # What else is chosen is a part of a run.
    wholes = [frozenset(row.manifest_path for row, _ in run) for run in runs]
    assert all(any(some <= whole for whole in wholes) for some in found)


@given(listed(), st.randoms(use_true_random=False))
def test_the_order_of_manifests_does_not_matter(rows: Rows, random: Any):
    shuffled = list(rows)
    random.shuffle(shuffled)
    first, second = (
        paths(worth_rewriting([row for row, _ in some], [interval for _, interval in some], TARGET))
        for some in (rows, shuffled)
    )
    assert first == second


class Stored(list[tuple[Any, ...]]):
    """Partitions of the files of one manifest, and its bytes."""

    length: int


def stored(partitions: list[tuple[Any, ...]], length: int) -> Stored:
    made = Stored(partitions)
    made.length = length
    return made


def chosen_of(table: dict[str, Stored], types: list[Type]) -> list[list[str]]:
    rows = [
        manifest(name, one.length, summaries_of(types, one), files_count=max(2, len(one)))
        for name, one in table.items()
    ]
    return paths(worth_rewriting(rows, intervals(rows, fields(*types)), TARGET))


def rewritten(table: dict[str, Stored], types: list[Type], runs: list[list[str]], mark: str) -> dict[str, Stored]:
    """The table with each run sorted and cut evenly."""
    after = dict(table)
    for number, run in enumerate(runs):
        taken = [after.pop(name) for name in run]
        partitions = sorted((p for one in taken for p in one), key=lambda partition: sort_key(types, partition))
        total = sum(one.length for one in taken)
        count = expected_manifests_count(total, TARGET)
        for piece in range(count):
            begin, end = (len(partitions) * place // count for place in (piece, piece + 1))
            after[f"{mark}-{number}-{piece:03}"] = stored(partitions[begin:end], total // count)
    return after


@st.composite
def tables(draw: st.DrawFn, fields_count: int) -> dict[str, Stored]:
    """Manifests of six files each or more, of up to 2.5 targets; or clustered ones and few small ones that came late."""
    if draw(st.booleans()):
        sizes, late = [draw(SIZES) for _ in range(draw(st.integers(1, 14)))], 0
        starts = [draw(st.integers(0, 30)) for _ in sizes]
    else:
        sizes, late = [draw(st.sampled_from([1.0, 1.1])) for _ in range(draw(st.integers(8, 12)))], 3
        starts = [3 * position for position in range(len(sizes))]
    table = {}
    for number, (start, size) in enumerate(zip(starts, sizes, strict=True)):
        firsts = st.integers(start, start + draw(st.integers(0, 3)))
        table[f"m-{number:03}"] = stored(draw(_files(firsts, fields_count)), int(size * TARGET))
    for number in range(draw(st.integers(0, late))):
        table[f"n-{number:03}"] = stored(draw(_files(st.integers(0, 30), fields_count)), int(0.01 * TARGET))
    return table


def _files(firsts: st.SearchStrategy[int], fields_count: int) -> st.SearchStrategy[list[tuple[int, ...]]]:
    return st.lists(st.tuples(firsts, *[st.integers(0, 3)] * (fields_count - 1)), min_size=6, max_size=8)


@given(tables(1))
@cases(100)
def test_what_was_rewritten_is_not_worth_it_again(table: dict[str, Stored]):
    """apache/iceberg #6669 and #9833: a rewrite that never converges."""
    after = rewritten(table, [INT], chosen_of(table, [INT]), "again")
    assert chosen_of(after, [INT]) == []


@pytest.mark.slow
@given(tables(2))
@cases(100)
def test_of_several_fields_what_sorting_reveals_comes_to_an_end(table: dict[str, Stored]):
    types: list[Type] = [INT, INT]
    for round_number in range(4):
        table = rewritten(table, types, chosen_of(table, types), f"round-{round_number}")
    assert chosen_of(table, types) == []


def field(type_: Type, position: int = 0) -> NestedField:
    return NestedField(field_id=1000 + position, name=f"p{position}", type=type_)


def listed_with(*summaries: FieldSummary, length: int = 100, listed: bool = True) -> ManifestFile:
    return ManifestFile(
        manifest_path="m",
        manifest_length=length,
        partition_spec_id=0,
        added_snapshot_id=1,
        partitions=summaries if listed else None,
    )


def between(type_: Type, lower: Any, upper: Any, *, null: bool = False, nan: bool | None = None) -> FieldSummary:
    return FieldSummary(
        contains_null=null,
        contains_nan=nan,
        lower_bound=value_to_bytes(type_, lower),
        upper_bound=value_to_bytes(type_, upper),
    )


def opened(summary: FieldSummary, type_: Type, value: Any) -> bool:
    return overlap([listed_with(summary)], [(value,)], [field(type_)]).max_manifests == 1


def test_a_table_without_partitions_has_one_that_opens_all():
    assert overlap([listed_with(), listed_with(listed=False)], [()], []) == Overlap(1, 2.0, 2, 200)


@for_each(
    ("summary", "type_", "value", "is_opened"),
    [
        (between(INT, 1, 5, null=True), INT, None, True),
        (between(INT, 1, 5), INT, None, False),
        (FieldSummary(contains_null=True), INT, 3, False),
        (FieldSummary(contains_null=False), INT, 3, True),
        (between(DOUBLE, 1.0, 5.0, nan=True), DOUBLE, math.nan, True),
        (between(DOUBLE, 1.0, 5.0, nan=False), DOUBLE, math.nan, False),
        (between(DOUBLE, 1.0, 5.0), DOUBLE, math.nan, True),
        (FieldSummary(contains_null=False, contains_nan=True), DOUBLE, 1.0, False),
        (between(DOUBLE, math.nan, 5.0, nan=False), DOUBLE, 9.0, True),
        (between(DOUBLE, 0.0, 5.0), DOUBLE, -0.0, True),
        (between(DOUBLE, -5.0, -0.0), DOUBLE, 0.0, True),
        (FieldSummary(contains_null=False, lower_bound=b"12345", upper_bound=b"1"), INT, 7, True),
        (FieldSummary(contains_null=False, lower_bound=value_to_bytes(INT, 7)), INT, 6, False),
        (FieldSummary(contains_null=False, lower_bound=value_to_bytes(INT, 7)), INT, 8, True),
        (between(UUID, uuid.UUID(int=1 << 127), uuid.UUID(int=5)), UUID, uuid.UUID(int=3), True),
        (between(UUID, uuid.UUID(int=1 << 127), uuid.UUID(int=5)), UUID, uuid.UUID(int=6), False),
    ],
)
def test_a_summary_admits_what_it_does_not_exclude(summary: FieldSummary, type_: Type, value: Any, is_opened: bool):
    assert opened(summary, type_, value) is is_opened


def is_the_partition(fields: list[NestedField], partition: tuple[Any, ...]) -> Expression:
    def question(of_field: NestedField, value: Any) -> BoundPredicate:
        if value is None:
            return BoundPredicate(Operation.IS_NULL, of_field)
        if value != value:
            return BoundPredicate(Operation.IS_NAN, of_field)
        return BoundPredicate(Operation.EQ, of_field, (value,))

    return conjunction(question(*pair) for pair in zip(fields, partition, strict=True))


@st.composite
def listed_tables(draw: st.DrawFn) -> tuple[list[NestedField], list[ManifestFile], list[tuple[Any, ...]]]:
    fields = [field(draw(st.sampled_from(COLUMN_TYPES)), position) for position in range(draw(st.integers(1, 2)))]
    values = [Column(of_field).values() for of_field in fields]
    manifests = []
    for number in range(draw(st.integers(0, 5))):
        summaries = [
            summary_of(draw, of_field.type, draw(st.lists(of_values, min_size=1, max_size=3)))
            for of_field, of_values in zip(fields, values, strict=True)
        ]
        told = draw(st.sampled_from([len(fields), len(fields), len(fields), 0]))
        manifests.append(listed_with(*summaries[:told], length=10**number, listed=draw(st.booleans()) or told > 0))
    return fields, manifests, draw(st.lists(st.tuples(*values), min_size=1, max_size=6))


@given(listed_tables())
@cases(150)
def test_the_manifests_are_those_that_the_planner_opens(
    table: tuple[list[NestedField], list[ManifestFile], list[tuple[Any, ...]]],
):
    fields, manifests, partitions = table
    for partition in partitions:
        question = is_the_partition(fields, partition)
        expected = [m for m in manifests if manifest_may_match(question, fields, m.partitions)]
        found = overlap(manifests, [partition], fields)
        assert found == Overlap(1, len(expected), len(expected), sum(m.manifest_length for m in expected))
    together = overlap(manifests, partitions, fields)
    each = [overlap(manifests, [partition], fields) for partition in partitions]
    assert together.max_manifests == max(one.max_manifests for one in each)
    assert math.isclose(together.mean_manifests, sum(one.mean_manifests for one in each) / len(each))


def test_many_partitions_are_looked_for_in_parts(monkeypatch: pytest.MonkeyPatch):
    manifests = [listed_with(between(INT, low, low + 3), length=1 + low) for low in range(9)]
    partitions = [(value,) for value in range(12)]
    at_once = overlap(manifests, partitions, [field(INT)])
    monkeypatch.setattr("icekeep.maintenance.manifests.ranges._MAX_CELLS", 20)
    assert overlap(manifests, partitions, [field(INT)]) == at_once
    assert at_once.max_manifests == 4


KEYS = [number.to_bytes(2, "big") for number in range(5000)]


def test_a_sample_has_so_many_distinct_keys_from_everywhere():
    found = sampled(KEYS * 2, 100)
    assert len(set(found)) == len(found) == 100
    assert set(found) <= set(KEYS)
    assert 25 < sum(key < KEYS[2500] for key in found) < 75


@given(st.lists(st.binary(max_size=2), max_size=60), st.integers(0, 60), st.integers(1, 8), st.randoms())
def test_a_sample_does_not_depend_on_order_or_parts(keys: list[bytes], cut: int, count: int, random: Any):
    shuffled = list(keys)
    random.shuffle(shuffled)
    whole = sampled(keys, count)
    assert sampled(shuffled, count) == whole
    assert sampled([*sampled(keys[:cut], count), *sampled(keys[cut:], count)], count) == whole
    assert len(whole) == min(count, len(set(keys)))
