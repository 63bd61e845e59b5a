"""Single values, transforms, hashes and partition paths of generated values; judged by Iceberg Java 1.12.0 throughout."""

import json
import math
from collections.abc import Sequence
from typing import Any

from hypothesis import HealthCheck, Phase, given
from hypothesis import strategies as st

from icekeep.spec.partitioning import PartitionField, PartitionSpec, partition_path, spec_to_json
from icekeep.spec.schema import Schema, schema_to_json
from icekeep.spec.transforms import Bucket, Identity, Transform, Truncate, parse_transform
from icekeep.spec.types import INT, NestedField, PrimitiveType
from icekeep.spec.values import value_from_bytes, value_from_json, value_to_bytes, value_to_json
from kit.cases import cases
from kit.java import IcebergJava, JavaError
from kit.java_tables import comparable_text
from kit.rows import to_wire
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
