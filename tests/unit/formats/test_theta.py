"""Theta sketches: hashes of columns as of single values, unions, and bytes there and back."""

import math
import struct
from typing import Any
from uuid import UUID as UUIDValue

import mmh3
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icekeep.errors import InvalidTableError, UnsupportedError
from icekeep.formats.theta import (
    NOMINAL,
    SEED,
    SketchBuilder,
    ThetaSketch,
    has_sketches,
    hashes_of,
    sketch_from_bytes,
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
    UUID,
    ListType,
    Type,
    decimal,
    fixed,
)
from icekeep.spec.values import value_to_bytes
from kit.cases import cases

VALUES: list[tuple[Type, pa.DataType, st.SearchStrategy[Any]]] = [
    (INT, pa.int32(), st.integers(-(2**31), 2**31 - 1)),
    (LONG, pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    (FLOAT, pa.float32(), st.floats(width=32)),
    (DOUBLE, pa.float64(), st.floats()),
    (DATE, pa.date32(), st.integers(-(2**31), 2**31 - 1)),
    (TIMESTAMP, pa.timestamp("us"), st.integers(-(2**60), 2**60)),
    (BOOLEAN, pa.bool_(), st.booleans()),
    (STRING, pa.string(), st.text()),
    (BINARY, pa.binary(), st.binary()),
    (fixed(3), pa.binary(), st.binary(min_size=3, max_size=3)),
    (decimal(9, 2), pa.decimal128(9, 2), st.decimals(-9999999, 9999999, places=2)),
]


def built(*parts: Any) -> ThetaSketch:
    builder = SketchBuilder()
    for part in parts:
        if isinstance(part, ThetaSketch):
            builder.add(part)
        else:
            builder.add_hashes(part)
    return builder.sketch()


def numbers(start: int, stop: int) -> np.ndarray:
    return hashes_of(pa.array(range(start, stop), pa.int64()), LONG)


@given(st.data(), st.sampled_from(VALUES))
@cases(150)
def test_hashes_are_those_of_single_values(data: Any, of_type: Any) -> None:
    """Of the bytes of their single-value serialization; null has none, nor what has no byte."""
    type_, arrow, strategy = of_type
    values = data.draw(st.lists(st.none() | strategy, max_size=8))
    plain = pa.array(
        values, pa.int32() if arrow == pa.date32() else pa.int64() if arrow == pa.timestamp("us") else arrow
    )
    serialized = {
        value_to_bytes(type_, math.nan if isinstance(value, float) and math.isnan(value) else value)
        for value in values
        if value is not None
    }
    expected = {mmh3.hash64(one, SEED, x64arch=True, signed=False)[0] >> 1 for one in serialized if one}
    assert set(hashes_of(plain.cast(arrow), type_).tolist()) == expected


def test_uuids_are_hashed_by_their_bytes() -> None:
    value = UUIDValue("f79c3e09-677c-4bbd-a479-3f349cb785e7")
    expected = mmh3.hash64(value.bytes, SEED, x64arch=True, signed=False)[0] >> 1
    stored = pa.ExtensionArray.from_storage(pa.uuid(), pa.array([value.bytes], pa.binary(16)))
    assert hashes_of(pa.array([str(value)]), UUID).tolist() == hashes_of(stored, UUID).tolist() == [expected]


def test_bytes_of_datasketches() -> None:
    """What version 5.2 of the Apache library for Python made of the numbers 0, 1 and 2, but for Java's sampling rate of 1."""
    made = bytes.fromhex("02030300001acc93030000000000000015f97dcbbd86a105c397fc1281709d1ee56b61eec8804420")
    assert sketch_from_bytes(made).hashes.tolist() == built(numbers(0, 3)).hashes.tolist()
    assert built(numbers(0, 3)).to_bytes() == made[:12] + struct.pack("<f", 1.0) + made[16:]


@pytest.mark.parametrize("count", [0, 1, 2, NOMINAL - 1, NOMINAL, NOMINAL + 1, 100_000])
def test_a_sketch_comes_back_from_its_bytes(count: int) -> None:
    sketch = built(numbers(0, count))
    again = sketch_from_bytes(sketch.to_bytes())
    assert (again.theta, again.hashes.tolist()) == (sketch.theta, sketch.hashes.tolist())
    assert len(sketch.hashes) == min(count, NOMINAL)
    assert abs(sketch.estimate - count) <= (0 if count <= NOMINAL else 0.06 * count)


@given(st.lists(st.tuples(st.integers(0, 30_000), st.integers(0, 12_000)), min_size=1, max_size=5))
@cases(30)
def test_the_union_of_parts_is_the_sketch_of_the_whole(spans: list[tuple[int, int]]) -> None:
    parts = [built(numbers(start, start + length)) for start, length in spans]
    whole = built(*(numbers(start, start + length) for start, length in spans))
    union = built(*parts)
    assert (union.theta, union.hashes.tolist()) == (whole.theta, whole.hashes.tolist())


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"", InvalidTableError),
        (built(numbers(0, 9)).to_bytes()[:-1], InvalidTableError),
        (b"\x01\x03\x03\x00\x00\x3a\xff\xff" + bytes(8), InvalidTableError),
        (b"\x01\x04\x03\x00\x00\x3a\xcc\x93" + bytes(8), UnsupportedError),
        (b"\x01\x03\x03\x00\x00\x3a\xcc\x93" + b"\xff" * 8, InvalidTableError),
    ],
)
def test_damaged_and_foreign_sketches_are_refused(data: bytes, error: type[Exception]) -> None:
    with pytest.raises(error, match="theta sketch"):
        sketch_from_bytes(data)


def test_lists_have_no_sketches() -> None:
    assert has_sketches(decimal(9, 2))
    assert has_sketches(fixed(2))
    assert not has_sketches(ListType(element_id=3, element=LONG, element_required=False))
