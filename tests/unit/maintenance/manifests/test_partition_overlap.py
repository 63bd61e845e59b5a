"""How many manifests a filter on one partition opens, beside what the planner's own evaluator opens."""

import math
import uuid
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icekeep.maintenance.manifests.ranges import Overlap, overlap
from icekeep.maintenance.manifests.survey import sampled
from icekeep.spec.filters.evaluators import manifest_may_match
from icekeep.spec.filters.expressions import BoundPredicate, Expression, Operation, conjunction
from icekeep.spec.manifests.structs import FieldSummary, ManifestFile
from icekeep.spec.types import DOUBLE, INT, STRING, UUID, NestedField, Type
from icekeep.spec.values import value_to_bytes
from kit.cases import cases, for_each
from kit.filters import COLUMN_TYPES, Column, summary_of


def field(type_: Type, position: int = 0) -> NestedField:
    return NestedField(field_id=1000 + position, name=f"p{position}", type=type_)


def manifest(*summaries: FieldSummary, length: int = 100, listed: bool = True) -> ManifestFile:
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
    return overlap([manifest(summary)], [(value,)], [field(type_)]).max_manifests == 1


def test_each_partition_is_looked_for_in_each_manifest():
    manifests = [manifest(between(INT, low, low + 2), length=length) for low, length in ((1, 10), (2, 20), (3, 40))]
    found = overlap(manifests, [(1,), (3,), (9,), (5,)], [field(INT)])
    assert found == Overlap(partitions_count=4, mean_manifests=(1 + 3 + 0 + 1) / 4, max_manifests=3, mean_bytes=30)


def test_a_manifest_is_opened_where_every_field_admits_the_partition():
    fields = [field(INT), field(STRING, 1)]
    manifests = [manifest(between(INT, 1, 2), between(STRING, "a", "c"))]
    found = [overlap(manifests, [p], fields).max_manifests for p in ((1, "b"), (1, "d"), (3, "b"), (1, None))]
    assert found == [1, 0, 0, 0]


def test_without_partitions_to_look_for_nothing_is_opened():
    assert overlap([manifest()], [], []) == Overlap(0, 0.0, 0, 0)


def test_without_manifests_nothing_is_opened():
    assert overlap([], [(1,)], [field(INT)]) == Overlap(1, 0.0, 0, 0)


def test_a_table_without_partitions_has_one_that_opens_all():
    assert overlap([manifest(), manifest(listed=False)], [()], []) == Overlap(1, 2.0, 2, 200)


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


def test_what_the_list_does_not_say_admits_all():
    fields = [field(INT), field(INT, 1)]
    assert overlap([manifest(listed=False), manifest(between(INT, 1, 2))], [(1, 9)], fields).max_manifests == 2
    assert overlap([manifest(listed=False), manifest(between(INT, 1, 2))], [(3, 9)], fields).max_manifests == 1


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
        manifests.append(manifest(*summaries[:told], length=10**number, listed=draw(st.booleans()) or told > 0))
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
    manifests = [manifest(between(INT, low, low + 3), length=1 + low) for low in range(9)]
    partitions = [(value,) for value in range(12)]
    at_once = overlap(manifests, partitions, [field(INT)])
    monkeypatch.setattr("icekeep.maintenance.manifests.ranges._MAX_CELLS", 20)
    assert overlap(manifests, partitions, [field(INT)]) == at_once
    assert at_once.max_manifests == 4


KEYS = [number.to_bytes(2, "big") for number in range(5000)]


def test_all_keys_are_the_sample_where_there_are_few():
    assert sorted(sampled(KEYS[:10] * 2)) == KEYS[:10]
    assert sampled([]) == []


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
