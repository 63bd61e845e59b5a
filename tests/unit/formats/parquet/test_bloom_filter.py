"""Bloom filters of Parquet files, and the hash that they are made of."""

import io

import numpy as np
import pyarrow as pa
import pytest

from icekeep.formats.parquet.reader import ParquetReader, hashes_of, read_bloom_filter
from icekeep.formats.parquet.thrift import Damaged
from kit.cases import for_each
from kit.columns import parquet_bytes

KNOWN = {
    b"": 0xEF46DB3751D8E999,
    b"a": 0xD24EC4F1A98C6E5B,
    b"abc": 0x44BC2CF5AD770999,
    b"Nobody inspects the spammish repetition": 0xFBCEA83C8A378BF1,
}


@for_each("data", KNOWN)
def test_hashes_are_those_of_xxh64(data):
    assert hashes_of(pa.array([data, None, data]), "BYTE_ARRAY", 0).tolist() == [KNOWN[data]]
    if data:
        stored = pa.array([data], pa.binary(len(data)))
        assert hashes_of(stored, "FIXED_LEN_BYTE_ARRAY", len(data)).tolist() == [KNOWN[data]]


def _filter(values):
    data = parquet_bytes(pa.table({"c": values}), bloom_filter_options={"c": {"ndv": 1000, "fpp": 0.001}})
    (place,) = ParquetReader(io.BytesIO(data)).bloom_filters(0, [0]).values()
    return data, place


@for_each(
    ("values", "others"),
    [
        (pa.array(range(1000)), pa.array(range(1000, 2000))),
        (pa.array(range(1000), pa.int32()), pa.array(range(1000, 2000), pa.int32())),
        (pa.array(map(float, range(1000))), pa.array(map(float, range(1000, 2000)))),
        (pa.array(str(n) * (n % 30) for n in range(1000)), pa.array(f"x{n}" for n in range(1000))),
    ],
)
def test_values_are_there_and_others_mostly_not(values, others):
    data, place = _filter(values)
    found = read_bloom_filter(io.BytesIO(data), place.offset, place.length)
    assert found.may_hold(hashes_of(values, place.physical_type, place.width)).all()
    assert np.mean(found.may_hold(hashes_of(others, place.physical_type, place.width))) < 0.05
    assert (read_bloom_filter(io.BytesIO(data), place.offset, None).blocks == found.blocks).all()


def test_a_damaged_filter_is_refused():
    data, place = _filter(pa.array([1, 2, 3]))
    with pytest.raises(Damaged):
        read_bloom_filter(io.BytesIO(data), place.offset, place.length + 1)
    with pytest.raises(Damaged):
        read_bloom_filter(io.BytesIO(data[: place.offset + 40]), place.offset, None)
