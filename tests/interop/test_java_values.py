"""Single values, transforms, hashes and partition paths of generated values; judged by Iceberg Java 1.12.0 throughout."""

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given
from hypothesis import strategies as st

from icekeep.spec.filters.binding import bind
from icekeep.spec.filters.evaluators import (
    file_may_match,
    file_must_match,
    manifest_may_match,
    partition_matches,
    project_inclusive,
    project_strict,
    residual,
    row_matches,
)
from icekeep.spec.filters.expressions import ALWAYS_FALSE, ALWAYS_TRUE, And, Expression, Not, Or, Predicate
from icekeep.spec.manifests.structs import DataFile
from icekeep.spec.partitioning import PartitionField, PartitionSpec, partition_path, partition_type, spec_to_json
from icekeep.spec.schema import Schema, schema_to_json
from icekeep.spec.transforms import Bucket, Day, Hour, Identity, Month, Transform, Truncate, Year, parse_transform
from icekeep.spec.types import (
    BINARY,
    DOUBLE,
    FLOAT,
    INT,
    TIMESTAMP_NS,
    TIMESTAMPTZ_NS,
    UUID,
    NestedField,
    PrimitiveType,
)
from icekeep.spec.values import value_from_bytes, value_from_json, value_to_bytes, value_to_json
from kit.cases import cases
from kit.filters import (
    PREFIXES,
    Column,
    columns,
    filters,
    metrics_of,
    partition_of,
    partitioned_tables,
    rows,
    schema_of,
    summary_of,
    truth,
)
from kit.java import IcebergJava, JavaError
from kit.java_tables import comparable_text
from kit.rows import filter_tree, metrics_tree, summary_tree, to_wire
from kit.strategies import typed_values

VALUES_AT_ONCE = 50
GENERATED = cases(
    60,
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=[HealthCheck.data_too_large, HealthCheck.large_base_example],
)
# There are many NaNs, and which of them it is does not matter.
CASES = typed_values().map(lambda case: (case[0], math.nan) if case[1] != case[1] else case)
VALUES = st.lists(CASES, min_size=VALUES_AT_ONCE, max_size=VALUES_AT_ONCE)
WIDTHS = st.sampled_from([1, 2, 3, 10, 16, 1000, 2**31 - 1])
TRANSFORMS = st.one_of(
    st.sampled_from([parse_transform(text) for text in ("identity", "year", "month", "day", "hour", "void")]),
    st.builds(Bucket, WIDTHS),
    # Java's truncate of an int overflows where the value and the width add up to more than an int.
    st.builds(Truncate, WIDTHS.filter(lambda width: width < 2**30)),
)


@GENERATED
@given(values=VALUES)
def test_single_values_are_the_same_bytes(java: IcebergJava, tried, values: list[tuple[PrimitiveType, Any]]) -> None:
    """Judged by Iceberg Java (`Conversions`), in both directions."""
    requests = [{"type": str(type_), "value": to_wire(type_, value)} for type_, value in values]
    ours = [value_to_bytes(type_, value).hex() for type_, value in values]
    same(requests, ours, java.ask_each("Judge.toBytes", requests))
    back = [{"type": str(type_), "bytes": data} for (type_, _), data in zip(values, ours, strict=True)]
    same(back, [request["value"] for request in requests], java.ask_each("Judge.fromBytes", back))
    read = [value_from_bytes(type_, bytes.fromhex(data)) for (type_, _), data in zip(values, ours, strict=True)]
    same(back, [to_wire(type_, v) for (type_, _), v in zip(values, read, strict=True)], [r["value"] for r in requests])
    tried("single values as bytes", len(values))


@GENERATED
@given(values=VALUES)
def test_single_values_are_the_same_json(java: IcebergJava, tried, values: list[tuple[PrimitiveType, Any]]) -> None:
    """Judged by Iceberg Java (`SingleValueParser`), in both directions."""
    values = [(t, v) for t, v in values if not (isinstance(v, float) and not math.isfinite(v))]
    requests = [{"type": str(type_), "value": to_wire(type_, value)} for type_, value in values]
    ours = [value_to_json(type_, value) for type_, value in values]
    theirs = [json.loads(answer) for answer in java.ask_each("Judge.toJson", requests)]
    read = [to_wire(type_, value_from_json(type_, answer)) for (type_, _), answer in zip(values, theirs, strict=True)]
    same(requests, read, [request["value"] for request in requests])
    # Java writes bytes in upper case, where the spec's example has lower; fractions of seconds without zeros at their end;
    # and, before Java 19, floats with more digits than they need.
    exact = [type_.name in ("boolean", "int", "long", "decimal", "date", "string", "uuid") for type_, _ in values]
    same(requests, *([v if e else None for v, e in zip(side, exact, strict=True)] for side in (ours, theirs)))
    back = [{"type": str(type_), "json": json.dumps(text)} for (type_, _), text in zip(values, ours, strict=True)]
    same(back, [request["value"] for request in requests], java.ask_each("Judge.fromJson", back))
    tried("single values as JSON", len(values))


@GENERATED
@given(values=VALUES, transforms=st.lists(TRANSFORMS, min_size=VALUES_AT_ONCE, max_size=VALUES_AT_ONCE))
def test_transforms_give_the_same_values_types_and_texts(
    java: IcebergJava, tried, values: list[tuple[PrimitiveType, Any]], transforms: list[Transform]
) -> None:
    """Judged by Iceberg Java (`Transform`): what is taken, the result's type, the result and its text in paths."""
    cases = [(*case, transform) for case, transform in zip(values, transforms, strict=True)]
    answers = java.ask_each(
        "Judge.transform", [{"type": str(t), "value": to_wire(t, v), "transform": str(f)} for t, v, f in cases]
    )
    for (type_, value, transform), theirs in zip(cases, answers, strict=True):
        case = f"{transform} of {type_} {value!r}"
        assert transform.accepts(type_) is not isinstance(theirs, JavaError), f"{case}: {theirs}"
        if isinstance(theirs, JavaError):
            tried("transforms refused by both")
            continue
        result = transform.apply(type_, value)
        result_type = transform.result_type(type_)
        assert (str(result_type), to_wire(result_type, result)) == (theirs["type"], theirs["value"]), case
        text = transform.to_text(type_, result)
        assert comparable_text(result_type, text) == comparable_text(result_type, theirs["text"]), case
        tried("transformed values")


@GENERATED
@given(values=VALUES)
def test_hashes_are_the_same(java: IcebergJava, tried, values: list[tuple[PrimitiveType, Any]]) -> None:
    """Judged by Iceberg Java: a bucket of as many as there are shows the hash, all but its sign and one value."""
    bucket = Bucket(2**31 - 1)
    values = [(type_, value) for type_, value in values if bucket.accepts(type_)]
    requests = [{"type": str(t), "value": to_wire(t, v), "transform": str(bucket)} for t, v in values]
    theirs = [answer["value"] for answer in java.ask_each("Judge.transform", requests)]
    same(requests, [bucket.apply(type_, value) for type_, value in values], theirs)
    tried("hash values", len(values))


@GENERATED
@given(values=VALUES, names=st.lists(st.text(min_size=1, max_size=6), min_size=VALUES_AT_ONCE, max_size=VALUES_AT_ONCE))
def test_partition_paths_are_the_same(
    java: IcebergJava, tried, values: list[tuple[PrimitiveType, Any]], names: list[str]
) -> None:
    """Judged by Iceberg Java (`PartitionSpec.partitionToPath`): texts, and what is escaped in names and values."""
    requests, ours = [], []
    for (type_, value), name in zip(values, names, strict=True):
        if type_.name in ("float", "double"):
            continue
        schema = Schema(
            fields=(
                NestedField(field_id=1, name="a column", type=type_),
                NestedField(field_id=2, name="another column", type=INT),
            )
        )
        fields = (
            PartitionField(source_id=1, field_id=1000, name=name, transform=Identity()),
            PartitionField(source_id=2, field_id=1001, name="nothing", transform=Identity()),
        )
        spec = PartitionSpec(spec_id=0, fields=fields)
        requests.append(
            {
                "schema": schema_to_json(schema),
                "spec": spec_to_json(spec),
                "partition": [to_wire(type_, value), None],
            }
        )
        ours.append(partition_path(spec, schema, (value, None)))
    same(requests, ours, java.ask_each("Judge.partitionPath", requests))
    tried("partition paths", len(ours))


def same(requests: Sequence[Any], ours: Sequence[Any], theirs: Sequence[Any]) -> None:
    """Fail with the first case of a batch where the answers differ."""
    assert len(ours) == len(theirs) == len(requests)
    for request, our, their in zip(requests, ours, theirs, strict=True):
        assert our == their, f"{request}: we say {our!r}, Java {their!r}"


CASES_AT_ONCE = 10
GENERATED_FILTERS = cases(
    50,
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=[HealthCheck.data_too_large, HealthCheck.large_base_example],
)
Tried = Callable[..., None]
Row = Mapping[int, Any]


class Peculiarity(Enum):
    """Why we may say something else than Java; each is meant."""

    NULL = "null: Java has it below every value and unequal to each, we as SQL has it"
    NULL_COUNT = "no null count of the column, but of others: Java takes it for none, even where it may hold nulls"
    INFINITY = "an infinite literal and a float column: Java has it beyond the range, though the column may hold it"
    COUNT = "no value count of the column: Java knows nothing of its nulls, we know the rows"
    NAN = "NaN: Java has it above every value when it looks at rows, and skips files that have it"
    UUID = "uuid: Java orders by signed halves, we by bytes, and files may be written by either"
    NANOS = "nanoseconds: Java lets partitions of times before 1970 be one too late, which writers of microseconds once made"
    NANOS_AS_MICROS = (
        "identity of nanoseconds: Java projects a value and reads it again as microseconds, or fails at that"
    )
    PREFIX = "prefix of binary: Java has it for text only"
    PREFIX_OF_NULL = "prefix of null: Java's residuals end in a NullPointerException, we as SQL has it"
    PREFIX_OF_HALF = (
        "prefix, and a summary with one bound of two: Java's manifests end in a NullPointerException, we read them"
    )
    WHOLE_PREFIX = "text or bytes shorter than their prefix: we know the value by it, Java asks the row"

    @property
    def fails(self) -> bool:
        """Whether Java may throw at it."""
        return self in (
            Peculiarity.PREFIX,
            Peculiarity.PREFIX_OF_NULL,
            Peculiarity.PREFIX_OF_HALF,
            Peculiarity.NANOS_AS_MICROS,
        )


def used(expression: Expression) -> Iterable[Predicate]:
    match expression:
        case And(left=left, right=right) | Or(left=left, right=right):
            return [*used(left), *used(right)]
        case Not(child=child):
            return used(child)
        case Predicate():
            return [expression]
    raise AssertionError(expression)


def peculiarities(expression: Expression, table: Sequence[Column], data: Sequence[Row]) -> set[Peculiarity]:
    """What lies in the filter and in rows."""
    found = set()
    for predicate in used(expression):
        column = next(column for column in table if column.field.name == predicate.column)
        values = [row[column.field.field_id] for row in data]
        if column.type == UUID:
            found.add(Peculiarity.UUID)
        if column.type == FLOAT and any(
            isinstance(literal, float) and math.isinf(literal) for literal in predicate.literals
        ):
            found.add(Peculiarity.INFINITY)
        if column.type == BINARY and predicate.operation in PREFIXES:
            found.add(Peculiarity.PREFIX)
        if None in values:
            found.add(Peculiarity.NULL)
            if predicate.operation in PREFIXES:
                found.add(Peculiarity.PREFIX_OF_NULL)
        if any(isinstance(value, float) and math.isnan(value) for value in values):
            found.add(Peculiarity.NAN)
    return found


def of_partition(
    expression: Expression, table: Sequence[Column], spec: PartitionSpec, data: Sequence[Row]
) -> set[Peculiarity]:
    """What lies in a filter, a spec and rows."""
    found = peculiarities(expression, table, data)
    names = {predicate.column for predicate in used(expression)}
    for column in table:
        widths = [
            part.transform.width
            for part in spec.fields
            if part.source_id == column.field.field_id and isinstance(part.transform, Truncate)
        ]
        values = [row[column.field.field_id] for row in data]
        if any(isinstance(value, str | bytes) and len(value) < width for value in values for width in widths):
            found.add(Peculiarity.WHOLE_PREFIX)
        if column.type not in (TIMESTAMP_NS, TIMESTAMPTZ_NS) or column.field.name not in names:
            continue
        transforms = [part.transform for part in spec.fields if part.source_id == column.field.field_id]
        if any(isinstance(transform, Year | Month | Day | Hour) for transform in transforms):
            found.add(Peculiarity.NANOS)
        if any(isinstance(transform, Identity) for transform in transforms):
            found.add(Peculiarity.NANOS_AS_MICROS)
    return found


def of_metrics(expression: Expression, table: Sequence[Column], metrics: DataFile) -> set[Peculiarity]:
    """What lies in a filter and in what is said of a file."""
    found = peculiarities(expression, table, [])
    for predicate in used(expression):
        column = next(column for column in table if column.field.name == predicate.column)
        field_id = column.field.field_id
        nulls, nans = (metrics.null_value_counts or {}).get(field_id), (metrics.nan_value_counts or {}).get(field_id)
        if nulls:
            found.add(Peculiarity.NULL)
        if nulls is None:
            found.add(Peculiarity.NULL_COUNT)
        if field_id not in (metrics.value_counts or {}):
            found.add(Peculiarity.COUNT)
        if column.type in (FLOAT, DOUBLE) and nans != 0:
            found.add(Peculiarity.NAN)
    return found


def judge(tried: Tried, what: str, case: Any, ours: Any, theirs: Any, excuses: set[Peculiarity]) -> None:
    """Compare two answers, and count what was compared."""
    tried(f"{what}, compared with Java" + (": where both must agree" if not excuses else ""))
    if isinstance(theirs, JavaError):
        assert any(excuse.fails for excuse in excuses), f"{what}: {case}: {theirs}"
    elif ours != theirs:
        assert excuses, f"{what}: we say {ours}, Java {theirs}: {case}"
        for excuse in excuses:
            tried(f"  {what}, answered otherwise, with {excuse.name}")


@st.composite
def file_cases(draw: st.DrawFn) -> tuple[tuple[Column, ...], Expression, list[Row], DataFile]:
    table = draw(columns(with_ends=False))
    expression, data = draw(filters(table)), draw(st.lists(rows(table), max_size=4))
    return table, expression, data, draw(metrics_of(table, data))


@pytest.mark.deep
@GENERATED_FILTERS
@given(cases=st.lists(file_cases(), min_size=CASES_AT_ONCE, max_size=CASES_AT_ONCE))
def test_filters_match_the_same_rows(java: IcebergJava, tried: Tried, cases: Sequence[Any]) -> None:
    """Judged by Iceberg Java (`Evaluator`)."""
    requests = [
        {
            **request_of(expression, schema_of(table)),
            "rows": [to_wire(schema_of(table).as_struct(), row) for row in data],
        }
        for table, expression, data, _ in cases
    ]
    answers = java.ask_each("Evaluations.rows", requests)
    for (table, expression, data, _), request, theirs in zip(cases, requests, answers, strict=True):
        bound = bind(expression, schema_of(table))
        for position, row in enumerate(data):
            ours = row_matches(bound, row)
            assert ours is (truth(expression, table, row) is True)
            their = theirs if isinstance(theirs, JavaError) else theirs[position]
            judge(tried, "filters on rows", (request, row), ours, their, peculiarities(expression, table, [row]))


@pytest.mark.deep
@GENERATED_FILTERS
@given(cases=st.lists(file_cases(), min_size=CASES_AT_ONCE, max_size=CASES_AT_ONCE))
def test_filters_keep_and_take_whole_the_same_files(java: IcebergJava, tried: Tried, cases: Sequence[Any]) -> None:
    """Judged by Iceberg Java (`InclusiveMetricsEvaluator`, `StrictMetricsEvaluator`)."""
    requests = [
        {**request_of(expression, schema_of(table)), "metrics": metrics_tree(metrics)}
        for table, expression, _, metrics in cases
    ]
    answers = java.ask_each("Evaluations.metrics", requests)
    for (table, expression, data, metrics), request, theirs in zip(cases, requests, answers, strict=True):
        bound = bind(expression, schema_of(table))
        may, must = file_may_match(bound, metrics), file_must_match(bound, metrics)
        truths = [truth(expression, table, row) is True for row in data]
        assert may or not any(truths)
        assert not must or all(truths)
        excuses = of_metrics(expression, table, metrics)
        their_may = theirs if isinstance(theirs, JavaError) else theirs["may_match"]
        their_must = theirs if isinstance(theirs, JavaError) else theirs["must_match"]
        judge(tried, "filters that a file may match", request, may, their_may, excuses)
        judge(tried, "filters that all of a file must match", request, must, their_must, excuses)


@st.composite
def partition_cases(draw: st.DrawFn) -> tuple[tuple[Column, ...], PartitionSpec, Expression, list[Row], list[Any]]:
    table, spec = draw(partitioned_tables(with_ends=False))
    data = draw(st.lists(rows(table), min_size=1, max_size=4))
    tuples = [partition_of(table, spec, row) for row in data]
    types = [field.type for field in partition_type(spec, schema_of(table)).fields]
    summaries = [summary_of(draw, type_, [t[n] for t in tuples]) for n, type_ in enumerate(types)]
    return table, spec, draw(filters(table)), data, summaries


@pytest.mark.deep
@GENERATED_FILTERS
@given(cases=st.lists(partition_cases(), min_size=CASES_AT_ONCE, max_size=CASES_AT_ONCE))
def test_projections_match_the_same_partitions(java: IcebergJava, tried: Tried, cases: Sequence[Any]) -> None:
    """Judged by Iceberg Java (`Projections.inclusive` and `strict`), on the partitions of the rows."""
    requests = [
        {
            **request_of(expression, schema_of(table), spec),
            "partitions": [partition_to_wire(table, spec, row) for row in data],
        }
        for table, spec, expression, data, _ in cases
    ]
    answers = java.ask_each("Evaluations.project", requests)
    for (table, spec, expression, data, _), request, theirs in zip(cases, requests, answers, strict=True):
        schema = schema_of(table)
        bound, fields = bind(expression, schema), partition_type(spec, schema).fields
        inclusive, strict = project_inclusive(bound, spec, schema), project_strict(bound, spec, schema)
        for position, row in enumerate(data):
            values = partition_of(table, spec, row)
            may, must = partition_matches(inclusive, fields, values), partition_matches(strict, fields, values)
            assert may or truth(expression, table, row) is not True
            assert not must or truth(expression, table, row) is True
            excuses = of_partition(expression, table, spec, [row])
            case = (request, values, theirs)
            their_may = theirs if isinstance(theirs, JavaError) else theirs["inclusive"][position]
            their_must = theirs if isinstance(theirs, JavaError) else theirs["strict"][position]
            judge(tried, "inclusive projections", case, may, their_may, excuses)
            judge(tried, "strict projections", case, must, their_must, excuses)


@pytest.mark.deep
@GENERATED_FILTERS
@given(cases=st.lists(partition_cases(), min_size=CASES_AT_ONCE, max_size=CASES_AT_ONCE))
def test_filters_keep_the_same_manifests(java: IcebergJava, tried: Tried, cases: Sequence[Any]) -> None:
    """Judged by Iceberg Java (`ManifestEvaluator`)."""
    requests = [
        {
            **request_of(expression, schema_of(table), spec),
            "summaries": [summary_tree(summary) for summary in summaries],
        }
        for table, spec, expression, _, summaries in cases
    ]
    answers = java.ask_each("Evaluations.manifest", requests)
    for (table, spec, expression, data, summaries), request, theirs in zip(cases, requests, answers, strict=True):
        schema = schema_of(table)
        projected = project_inclusive(bind(expression, schema), spec, schema)
        ours = manifest_may_match(projected, partition_type(spec, schema).fields, summaries)
        assert ours or not any(truth(expression, table, row) is True for row in data)
        excuses = of_partition(expression, table, spec, data)
        is_half = any((summary.lower_bound is None) is not (summary.upper_bound is None) for summary in summaries)
        if is_half and any(predicate.operation in PREFIXES for predicate in used(expression)):
            excuses.add(Peculiarity.PREFIX_OF_HALF)
        judge(tried, "filters on manifests", request, ours, theirs, excuses)


@pytest.mark.deep
@GENERATED_FILTERS
@given(cases=st.lists(partition_cases(), min_size=CASES_AT_ONCE, max_size=CASES_AT_ONCE))
def test_residuals_are_decided_in_the_same_partitions(java: IcebergJava, tried: Tried, cases: Sequence[Any]) -> None:
    """Judged by Iceberg Java (`ResidualEvaluator`): where nothing is left to ask, and what is left matches the same row."""
    requests = [
        {
            **request_of(expression, schema_of(table), spec),
            "partition": partition_to_wire(table, spec, data[0]),
            "rows": [to_wire(schema_of(table).as_struct(), data[0])],
        }
        for table, spec, expression, data, _ in cases
    ]
    answers = java.ask_each("Evaluations.residual", requests)
    for (table, spec, expression, data, _), request, theirs in zip(cases, requests, answers, strict=True):
        schema, row = schema_of(table), data[0]
        left = residual(bind(expression, schema), spec, schema, partition_of(table, spec, row))
        assert row_matches(left, row) is (truth(expression, table, row) is True)
        decided = "true" if left is ALWAYS_TRUE else "false" if left is ALWAYS_FALSE else "open"
        excuses = of_partition(expression, table, spec, [row])
        their_text = theirs if isinstance(theirs, JavaError) else theirs["text"]
        their_row = theirs if isinstance(theirs, JavaError) else theirs["rows"][0]
        if isinstance(their_text, str) and their_text not in ("true", "false"):
            their_text = "open"
        judge(tried, "residuals on a row", request, row_matches(left, row), their_row, excuses)
        judge(tried, "residuals", (request, theirs, left), decided, their_text, excuses)


def request_of(expression: Expression, schema: Schema, spec: PartitionSpec | None = None) -> dict[str, Any]:
    request = {"schema": schema_to_json(schema), "filter": filter_tree(expression, schema)}
    return request if spec is None else {**request, "spec": spec_to_json(spec)}


def partition_to_wire(table: Sequence[Column], spec: PartitionSpec, row: Row) -> list[Any]:
    fields = partition_type(spec, schema_of(table)).fields
    return [to_wire(f.type, v) for f, v in zip(fields, partition_of(table, spec, row), strict=True)]
