import math
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.manifest import MANIFEST_ENTRY_SCHEMAS, MANIFEST_LIST_FILE_SCHEMAS, PartitionFieldStats
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    IntegerType,
    LongType,
    PrimitiveType,
    StringType,
    TimestampType,
    UUIDType,
)

import icekeep.spec.manifests.structs
import icekeep.spec.values
import kit.manifests
from icekeep.spec.manifests.structs import (
    FieldSummary,
    ManifestEntry,
    ManifestFile,
    PartitionSummarizer,
    RowIdInheritance,
    Status,
    assign_row_ids,
    entry_type,
    manifest_file_type,
)
from icekeep.spec.types import (
    BINARY,
    BOOLEAN,
    DATE,
    DOUBLE,
    FLOAT,
    INT,
    LONG,
    STRING,
    TIMESTAMP,
    StructType,
    Type,
    decimal,
    fixed,
    walk,
)
from icekeep.spec.types import UUID as UUID_TYPE
from icekeep.spec.values import java_order, value_from_bytes
from kit.cases import for_each
from kit.examples import check_examples
from kit.manifests import UNPARTITIONED, added, data_file, deleted, existing
from kit.strategies import typed_values, values_of


def described(struct: StructType) -> dict[int, tuple[str, bool, str]]:
    """Every field at every depth by id: its name, whether it is required, its type if it is a plain one."""
    return {f.field_id: (f.name, f.required, str(f.type) if "<" not in str(f.type) else "") for f in walk(struct)}


def foreign(schema: Any) -> dict[int, tuple[str, bool, str]]:
    fields = schema._lazy_id_to_field.values()
    return {f.field_id: (f.name, f.required, "" if "<" in str(f.field_type) else str(f.field_type)) for f in fields}


@pytest.mark.parametrize("version", [1, 2, 3])
def test_manifest_lists_have_the_fields_that_pyiceberg_gives_them(version: int):
    assert described(manifest_file_type(version)) == foreign(MANIFEST_LIST_FILE_SCHEMAS[version])


@pytest.mark.parametrize("version", [1, 2, 3])
def test_manifests_have_the_fields_that_pyiceberg_gives_them(version: int):
    ours, theirs = described(entry_type(UNPARTITIONED, version)), foreign(MANIFEST_ENTRY_SCHEMAS[version])
    # The spec has it from version 2 on, PyIceberg from version 3 on.
    assert ours.pop(143, theirs.get(143)) == theirs.pop(
        143, ("referenced_data_file", False, "string") if version > 1 else None
    )
    # PyIceberg requires what version 1 does, and stores equality ids as long where the spec says int.
    ours.pop(1)
    theirs.pop(1)
    if version > 1:
        assert (ours.pop(136)[2], theirs.pop(136)[2]) == ("int", "long")
    assert ours == theirs


@pytest.mark.parametrize("version", [1, 2, 3])
def test_distinct_counts_and_old_fields_are_not_written(version: int):
    ids = described(entry_type(UNPARTITIONED, version)).keys()
    assert not ids & {106, 107, 111, 112, 123, 124}
    assert (105 in ids) is (version == 1)


@pytest.mark.parametrize(("entry", "live"), [(added(), True), (existing(), True), (deleted(), False)])
def test_an_entry_that_is_not_deleted_is_live(entry: ManifestEntry, live: bool):
    assert entry.is_live is live
    assert ManifestEntry(status=Status.DELETED, data_file=data_file()).is_live is False


@for_each(
    ("counts", "live", "may_have"),
    [
        ({"added_files_count": 2, "existing_files_count": 3, "deleted_files_count": 9}, 5, True),
        ({"added_files_count": 0, "existing_files_count": 0, "deleted_files_count": 9}, 0, False),
        ({"added_files_count": 0, "existing_files_count": 1, "deleted_files_count": 0}, 1, True),
        ({"added_files_count": 0}, None, True),
        ({"existing_files_count": 0}, None, True),
        ({}, None, True),
    ],
)
def test_counts_that_are_not_known_may_hide_live_files(counts: dict[str, int], live: int | None, may_have: bool):
    manifest = ManifestFile(manifest_path="m", manifest_length=1, partition_spec_id=0, added_snapshot_id=1, **counts)
    assert manifest.live_files_count == live
    assert manifest.may_have_live_files is may_have


def manifest(added: int, existing: int, first_row_id: int | None = None, **changes: object) -> ManifestFile:
    counts = {"added_rows_count": added, "existing_rows_count": existing, "first_row_id": first_row_id, **changes}
    return ManifestFile(
        manifest_path="m", manifest_length=1, partition_spec_id=0, added_snapshot_id=1, sequence_number=1, **counts
    )


def test_the_example_of_the_spec():
    existing, *added = assign_row_ids(
        [manifest(75, 0, 925), manifest(100, 25), manifest(0, 100), manifest(125, 25)], 1000
    )[0]
    assert existing.first_row_id == 925
    assert [m.first_row_id for m in added] == [1000, 1125, 1225]
    assert assign_row_ids(added[:1], 5)[1] == 5
    inherit = RowIdInheritance(added[0])
    data1 = inherit(Status.EXISTING, data_file("data1", record_count=25, first_row_id=800))
    data2 = inherit(Status.ADDED, data_file("data2", record_count=50))
    data3 = inherit(Status.ADDED, data_file("data3", record_count=50))
    assert [f.first_row_id for f in (data1, data2, data3)] == [800, 1000, 1050]


_FILES = st.lists(
    st.tuples(
        st.sampled_from([Status.ADDED, Status.EXISTING, Status.DELETED]),
        st.integers(0, 50),
        st.none() | st.integers(0, 99).map(lambda n: 100 * n),
    ),
    max_size=6,
)


@given(st.lists(_FILES, max_size=4), st.integers(10_000, 20_000))
def test_no_two_rows_get_one_id_and_the_next_row_id_is_above_them_all(contents, next_row_id: int):
    rows = []
    for files in contents:
        counts = {s: sum(n for status, n, _ in files if status is s) for s in Status}
        rows.append(manifest(counts[Status.ADDED], counts[Status.EXISTING]))
    numbered, after = assign_row_ids(rows, next_row_id)
    given_ids: list[int] = []
    for row, files in zip(numbered, contents, strict=True):
        inherit = RowIdInheritance(row)
        for status, records, first in files:
            read = inherit(status, data_file(record_count=records, first_row_id=first))
            if status is not Status.DELETED and first is None:
                given_ids += range(read.first_row_id, read.first_row_id + records)
    assert len(set(given_ids)) == len(given_ids)
    assert all(next_row_id <= row_id < after for row_id in given_ids)
    # Numbered once, always numbered: another commit leaves them as they are.
    assert assign_row_ids(numbered, after) == (numbered, after)


FOREIGN: list[tuple[Any, PrimitiveType]] = [
    (BOOLEAN, BooleanType()),
    (INT, IntegerType()),
    (LONG, LongType()),
    (DATE, DateType()),
    (TIMESTAMP, TimestampType()),
    (STRING, StringType()),
    (BINARY, BinaryType()),
    (UUID_TYPE, UUIDType()),
    (fixed(3), FixedType(3)),
    (decimal(9, 2), DecimalType(9, 2)),
    (DOUBLE, DoubleType()),
]


def summary(type_: Type, *values: Any) -> FieldSummary:
    summarizer = PartitionSummarizer([type_])
    for value in values:
        summarizer.add((value,))
    return summarizer.summaries()[0]


def bounds(type_: Type, *values: Any) -> tuple[Any, Any]:
    found = summary(type_, *values)
    assert found.lower_bound is not None
    assert found.upper_bound is not None
    return value_from_bytes(type_, found.lower_bound), value_from_bytes(type_, found.upper_bound)


@for_each(
    ("type_", "values", "least", "greatest"),
    [
        (INT, (3, -7, 5), -7, 5),
        (INT, (9,), 9, 9),
        (STRING, ("b", "a", "ab"), "a", "b"),
        (STRING, ("\U0001f600", "\uffee"), "\uffee", "\U0001f600"),
        (BINARY, (b"\x80", b"\x7f"), b"\x7f", b"\x80"),
        (BOOLEAN, (True, False), False, True),
        # In Java's order, as two signed longs.
        (UUID_TYPE, (UUID(int=1 << 127), UUID(int=1)), UUID(int=1 << 127), UUID(int=1)),
        (decimal(9, 2), (Decimal("1.10"), Decimal("-2.00")), Decimal("-2.00"), Decimal("1.10")),
        (DOUBLE, (math.inf, -math.inf, 0.5), -math.inf, math.inf),
    ],
)
def test_bounds_are_the_least_and_the_greatest_value(type_: Type, values: Any, least: Any, greatest: Any):
    assert bounds(type_, *values) == (least, greatest)
    assert bounds(type_, *reversed(values)) == (least, greatest)


@pytest.mark.parametrize("values", [(0.0, -0.0), (-0.0, 0.0), (-0.0, 0.0, -0.0)])
def test_a_lower_bound_does_not_hide_minus_zero_nor_an_upper_bound_zero(values: tuple[float, ...]):
    least, greatest = bounds(FLOAT, *values)
    assert math.copysign(1, least) == -1
    assert math.copysign(1, greatest) == 1


def test_each_field_has_its_own_summary():
    summarizer = PartitionSummarizer([INT, STRING])
    summarizer.add((1, None))
    summarizer.add((2, "x"))
    assert summarizer.summaries() == (
        FieldSummary(contains_null=False, lower_bound=b"\x01\0\0\0", upper_bound=b"\x02\0\0\0"),
        FieldSummary(contains_null=True, lower_bound=b"x", upper_bound=b"x"),
    )
    assert PartitionSummarizer([]).summaries() == ()


def lists_of(type_: Type) -> st.SearchStrategy[list[Any]]:
    return st.lists(st.none() | values_of(type_), max_size=6)


@given(typed_values(st.sampled_from(FOREIGN), lambda pair: lists_of(pair[0])))
def test_summaries_are_those_of_pyiceberg(drawn: Any):
    (type_, foreign_type), values = drawn
    foreign = PartitionFieldStats(foreign_type)
    for value in values:
        foreign.update(value)
    theirs, ours = foreign.to_summary(), summary(type_, *values)
    # Theirs takes -0.0 and 0.0 for the same and says of every type whether it contains NaN.
    assert (ours.contains_null, ours.contains_nan or False) == (theirs.contains_null, theirs.contains_nan)
    if type_ == UUID_TYPE:
        # Theirs bounds by bytes; ours by Java's order, so that Java's readers skip no file.
        known = [value for value in values if value is not None]
        bounds = (min(known, key=java_order).bytes, max(known, key=java_order).bytes) if known else (None, None)
        assert (ours.lower_bound, ours.upper_bound) == bounds
    elif not any(value == 0 for value in values if type_ == DOUBLE):
        assert (ours.lower_bound, ours.upper_bound) == (theirs.lower_bound, theirs.upper_bound)


def test_examples():
    check_examples(
        "spec/manifests/structs.txt", icekeep.spec.manifests.structs, icekeep.spec.values, kit.manifests, globals()
    )
