"""Curves: against a slow reading of the same rules, bit by bit, and against what a curve is."""

import math
from decimal import Decimal
from itertools import pairwise, product
from uuid import UUID as UUIDValue

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icekeep.errors import UnsupportedError
from icekeep.formats.sort.encode import Curve, curve_bytes, curve_values, hilbert_axes, interleaved
from icekeep.spec.types import (
    BINARY,
    BOOLEAN,
    DATE,
    DOUBLE,
    FLOAT,
    INT,
    LONG,
    STRING,
    TIME,
    TIMESTAMP,
    UNKNOWN,
    UUID,
    VARIANT,
    decimal,
    fixed,
)
from icekeep.spec.values import sort_key
from kit.cases import cases, for_each
from kit.columns import PRIMITIVES, column, schema_of, table_of, values

ZORDER = Curve(kind="zorder", column_ids=(1, 2))
HILBERT = Curve(kind="hilbert", column_ids=(1, 2))


def bytes_of(type_, value, curve=ZORDER) -> bytes:
    array = table_of(schema_of(column(1, "a", type_)), [{"a": value}]).column(0).combine_chunks()
    array = array.storage if isinstance(array, pa.ExtensionArray) else array
    return curve_bytes(array, type_, curve).tobytes()


def byte_rows(rows: list[bytes]) -> np.ndarray:
    return np.frombuffer(b"".join(rows), dtype=np.uint8).reshape(len(rows), -1)


def interleaved_slowly(columns: list[bytes]) -> bytes:
    """The first bits of all columns, then the second ones, and so on, as text of zeros and ones."""
    texts = ["".join(f"{byte:08b}" for byte in column) for column in columns]
    longest = max(len(text) for text in texts)
    bits = "".join(text[n] for n in range(longest) for text in texts if n < len(text))
    return bytes(int(bits[n : n + 8], 2) for n in range(0, len(bits), 8))


def hilbert_slowly(axes: list[int], bits: int) -> list[int]:
    """Skilling's algorithm, one point at a time."""
    axes = list(axes)
    for bit in range(bits - 1, 0, -1):
        low = (1 << bit) - 1
        for number in range(len(axes)):
            if axes[number] & 1 << bit:
                axes[0] ^= low
            else:
                swapped = (axes[0] ^ axes[number]) & low
                axes[0] ^= swapped
                axes[number] ^= swapped
    for number in range(1, len(axes)):
        axes[number] ^= axes[number - 1]
    turned = 0
    for bit in range(bits - 1, 0, -1):
        if axes[-1] & 1 << bit:
            turned ^= (1 << bit) - 1
    return [axis ^ turned for axis in axes]


# What a column gives.


@for_each(
    ("type_", "value", "expected"),
    [
        (INT, 1, "8000000000000001"),
        (INT, -1, "7fffffffffffffff"),
        (LONG, -(2**63), "0000000000000000"),
        (DATE, 19_000, "8000000000004a38"),
        (TIME, 1, "8000000000000001"),
        (TIMESTAMP, 1_000_000, "80000000000f4240"),
        (BOOLEAN, True, "8100000000000000"),
        (BOOLEAN, False, "0000000000000000"),
        (FLOAT, 1.0, "bff0000000000000"),
        (DOUBLE, 1.0, "bff0000000000000"),
        (DOUBLE, -1.0, "400fffffffffffff"),
        (DOUBLE, -0.0, "7fffffffffffffff"),
        (DOUBLE, 0.0, "8000000000000000"),
        (DOUBLE, math.nan, "fff8000000000000"),
        (STRING, "iceberg table", "6963656265726720"),
        (STRING, "ice", "6963650000000000"),
        (STRING, "aaaaaaa\u00e9", "61616161616161c3"),
        (BINARY, b"\1\2", "0102000000000000"),
        (fixed(3), b"\1\2\3", "0102030000000000"),
        (UUID, UUIDValue(int=0x0102030405060708090A0B0C0D0E0F10), "0102030405060708"),
        (decimal(9, 2), Decimal("-0.01"), "7fffffffffffffff"),
        (decimal(38, 2), Decimal("0.02"), "8000000000000002"),
        (decimal(38, 0), Decimal(10**37), "ffffffffffffffff"),
        (decimal(38, 0), Decimal(-(10**37)), "0000000000000000"),
    ],
    ids=str,
)
def test_a_column_gives_eight_bytes_as_in_java(type_, value, expected):
    for curve in (ZORDER, HILBERT):
        assert bytes_of(type_, value, curve).hex() == expected


@for_each("type_", [FLOAT, DOUBLE])
@for_each("curve", [ZORDER, HILBERT])
def test_floats_follow_the_spec_order(type_, curve):
    """Negative numbers downwards from zero, the two zeros apart, and NaN above everything, whatever its sign."""
    smallest = 1e-45 if type_ is FLOAT else 5e-324
    rising = [-math.inf, -2.0, -1.5, -1.0, -smallest, -0.0, 0.0, smallest, 1.0, 1.5, 2.0, math.inf, math.nan]
    found = [bytes_of(type_, value, curve) for value in rising]
    assert found == sorted(set(found))
    assert bytes_of(type_, math.copysign(math.nan, -1.0), curve) == found[-1]


def test_var_length_contribution_applies_to_zorder_only():
    short = Curve(kind="zorder", column_ids=(1, 2), var_length_contribution=3)
    long = Curve(kind="hilbert", column_ids=(1, 2), var_length_contribution=3)
    assert bytes_of(STRING, "iceberg", short) == b"ice"
    assert bytes_of(BINARY, b"i", short) == b"i\0\0"
    assert bytes_of(STRING, "iceberg", long) == b"iceberg\0"
    assert len(bytes_of(LONG, 1, short)) == 8


@pytest.mark.slow
@pytest.mark.parametrize("type_", PRIMITIVES, ids=str)
@cases(30)
@given(data=st.data())
def test_what_a_column_gives_rises_with_its_values(type_, data):
    found = data.draw(st.lists(values(type_), min_size=2, max_size=6))
    in_order = sorted(found, key=lambda value: sort_key([type_], [value]))
    given_bytes = [bytes_of(type_, value) for value in in_order]
    assert given_bytes == sorted(given_bytes)
    if type_ in (INT, LONG, DOUBLE, DATE, BOOLEAN, decimal(18, 3)):
        # Nothing is cut off: what differs stays different.
        same = [sort_key([type_], [a]) == sort_key([type_], [b]) for a, b in pairwise(in_order)]
        assert [a == b for a, b in pairwise(given_bytes)] == same


def test_a_type_without_an_order_cannot_be_on_a_curve():
    with pytest.raises(UnsupportedError, match="type 'variant' cannot be on a curve"):
        curve_bytes(pa.array([b""]), VARIANT, ZORDER)
    assert not curve_bytes(pa.nulls(2), UNKNOWN, ZORDER).any()


# Z-order.


@cases(100)
@given(
    st.lists(st.integers(0, 12), min_size=1, max_size=11).filter(any),
    st.integers(1, 4),
    st.integers(1, 150),
    st.randoms(use_true_random=False),
)
def test_interleaving_skips_exhausted_columns(widths, count, limit, random):
    rows = [[random.randbytes(width) for width in widths] for _ in range(count)]
    columns = [byte_rows([row[n] for row in rows]).reshape(count, width) for n, width in enumerate(widths)]
    expected = [interleaved_slowly(row)[:limit] for row in rows]
    assert [row.tobytes() for row in interleaved(columns, limit)] == expected


def test_interleaving_of_unequal_widths():
    full = [byte_rows([b"\xff" * width]) if width else np.zeros((1, 0), np.uint8) for width in (2, 1, 0, 3)]
    assert interleaved(full, 100).tobytes() == b"\xff" * 6
    mixed = [byte_rows([bytes.fromhex(text)]) for text in ("01f000", "80", "00ff", "01")]
    # 0100 0000 ... of four first bytes, then what is left of two, then of one.
    assert interleaved(mixed, 100).tobytes().hex() == "40000009" + "ff55" + "00"


def test_interleaving_is_seamless_across_batches():
    count = 50_001
    numbers = np.arange(count, dtype=np.uint64)
    columns = [n.astype(">u8").view(np.uint8).reshape(count, 8) for n in (numbers, numbers[::-1].copy())]
    found = interleaved(columns, 16)
    for row in (0, 1, 16_383, 16_384, 32_768, count - 1):
        expected = interleaved_slowly([row.to_bytes(8, "big"), (count - 1 - row).to_bytes(8, "big")])
        assert found[row].tobytes() == expected


def test_zorder_value_is_cut_to_max_output_bytes():
    columns = [byte_rows([bytes(range(n, n + 8))]) for n in (0, 100, 200)]
    whole = curve_values(columns, ZORDER).tobytes()
    assert len(whole) == 24
    for size in (1, 2, 7, 23, 24, 25):
        curve = Curve(kind="zorder", column_ids=(1, 2, 3), max_output_bytes=size)
        assert curve_values(columns, curve).tobytes() == whole[:size]


# Hilbert.


@for_each(("dimensions", "bits"), [(2, 1), (2, 2), (2, 5), (3, 1), (3, 3), (4, 2)])
def test_one_step_on_hilberts_curve_is_one_step_in_one_column(dimensions, bits):
    points = list(product(range(2**bits), repeat=dimensions))
    axes = [np.array([point[n] for point in points], dtype=np.uint64) for n in range(dimensions)]
    turned = hilbert_axes(axes, bits)
    places = [_place([int(axis[row]) for axis in turned], bits) for row in range(len(points))]
    assert sorted(places) == list(range(2 ** (bits * dimensions)))
    along = [point for _, point in sorted(zip(places, points, strict=True))]
    assert along[0] == (0,) * dimensions
    for a, b in pairwise(along):
        assert sorted(abs(x - y) for x, y in zip(a, b, strict=True)) == [0] * (dimensions - 1) + [1]


def _place(axes: list[int], bits: int) -> int:
    text = "".join(str(axis >> bit & 1) for bit in range(bits - 1, -1, -1) for axis in axes)
    return int(text, 2)


WORDS = st.one_of(
    st.integers(0, 2**64 - 1),
    st.integers(2**63 - 300, 2**63 + 300),
    st.integers(2**63, 2**63 + 2**40),
    st.sampled_from([0, 1, 2**64 - 1, 2**63, 2**63 - 1]),
)


@cases(150)
@given(st.integers(1, 5).flatmap(lambda n: st.lists(st.tuples(*[WORDS] * n), min_size=1, max_size=6)))
def test_hilbert_places_agree_with_scalar_algorithm(points):
    axes = [np.array(axis, dtype=np.uint64) for axis in zip(*points, strict=True)]
    before = [axis.copy() for axis in axes]
    turned = hilbert_axes(axes)
    assert [tuple(int(axis[row]) for axis in turned) for row in range(len(points))] == [
        tuple(hilbert_slowly(list(point), 64)) for point in points
    ]
    assert all((a == b).all() for a, b in zip(axes, before, strict=True))


@cases(50)
@given(
    st.lists(st.tuples(st.integers(-500, 500), st.integers(0, 2**20)), min_size=1, max_size=6),
    st.lists(st.tuples(WORDS, WORDS), min_size=1, max_size=6),
)
def test_a_rows_place_does_not_depend_on_the_other_rows(points, others):
    def places(rows: list[tuple[int, int]]) -> list[bytes]:
        columns = [byte_rows([row[n].to_bytes(8, "big") for row in rows]) for n in range(2)]
        return [row.tobytes() for row in curve_values(columns, HILBERT)]

    near = [(2**63 + a, 2**63 + b) for a, b in points]
    assert places([*near, *others]) == places(near) + places(others)


def test_places_are_those_of_java():
    # What HilbertByteUtils and ZOrderByteUtils of Iceberg 1.12.0 give.
    points = np.array([(5, -7, 2**40), (-1, 0, 3), (-(2**63), 2**63 - 1, 12_345_678_901)])
    words = points.view(np.uint64) ^ np.uint64(2**63)
    columns = [byte_rows([int(word).to_bytes(8, "big") for word in words[:, n]]) for n in range(3)]
    assert [row.tobytes().hex() for row in curve_values(columns, HILBERT)] == [
        "cedb6db6db6db6db6ab6db6db6db6db6db6db6db6db6dbf4",
        "5fffffffffffffffffffffffffffffffffffffffffffffc0",
        "4edb6db6db6db6db6db6db554aa4924aa4adb6a4adb52aaa",
    ]
    assert [row.tobytes().hex() for row in curve_values(columns, ZORDER)] == [
        "a92492492492492493492492492492492492492492492506",
        "72492492492492492492492492492492492492492492492d",
        "69249249249249249249249a6d36db6d36d24936d249b4d3",
    ]


def test_hilbert_places_across_batches_match_java():
    size = 40_000
    numbers = np.arange(size, dtype=np.uint64) + np.uint64(2**63)
    columns = [n.astype(">u8").view(np.uint8).reshape(size, 8) for n in (numbers, numbers[::-1].copy())]
    found = curve_values(columns, HILBERT)
    for row, expected in JAVA_PLACES.items():
        assert found[row].tobytes().hex() == expected


JAVA_PLACES = {
    0: "800000000000000000000000ebf00fff",
    1: "800000000000000000000000ebf00ffd",
    16383: "8000000000000000000000001c054fff",
    16384: "80000000000000000000000023faafff",
    25000: "80000000000000000000000033ed8dd5",
    39999: "80000000000000000000000041500555",
}
