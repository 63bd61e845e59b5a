"""The order of keys as bytes, whatever their lengths."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icekeep.formats.sort.keys import key_order
from kit.cases import cases, for_each


@cases(200)
@given(st.integers(0, 40).flatmap(lambda n: st.lists(st.binary(min_size=n, max_size=n), max_size=30)), st.data())
def test_the_order_of_keys_of_one_width_is_that_of_their_bytes_and_stable(keys, data):
    if keys:
        keys += data.draw(st.lists(st.sampled_from(keys), max_size=10))
    width = len(keys[0]) if keys else 3
    expected = sorted(range(len(keys)), key=keys.__getitem__)
    assert key_order(pa.array(keys, pa.binary(width))).tolist() == expected
    assert key_order(pa.array([b"\xff" * width, *keys], pa.binary(width)).slice(1)).tolist() == expected


@cases(200)
@given(
    st.lists(st.binary(max_size=50) | st.text(alphabet="\0\1ab", max_size=34).map(str.encode), max_size=30), st.data()
)
def test_the_order_of_keys_of_any_length_is_that_of_their_bytes_and_stable(keys, data):
    if keys:
        keys += data.draw(st.lists(st.sampled_from(keys), max_size=10))
    expected = sorted(range(len(keys)), key=keys.__getitem__)
    assert key_order(pa.array(keys, pa.large_binary())).tolist() == expected
    assert key_order(pa.array([b"x" * 9, *keys, b"y" * 40], pa.large_binary()).slice(1, len(keys))).tolist() == expected


@pytest.mark.slow
@for_each("width", [3, 8, 11, 16, 31])
def test_many_keys_with_few_bytes_in_which_they_differ_are_ordered(width):
    random_numbers = np.random.default_rng(7)
    rows_of_bytes = np.full((60_000, width), 0x80, dtype=np.uint8)
    for place in {0, width // 2, width - 1}:
        rows_of_bytes[:, place] = random_numbers.integers(0, 40, 60_000)
    keys = [row.tobytes() for row in rows_of_bytes]
    assert key_order(pa.array(keys, pa.binary(width))).tolist() == sorted(range(len(keys)), key=keys.__getitem__)
