"""Data files between PyIceberg 0.12 and us. It writes Parquet only, reads ORC too, and reads no Avro."""

import os
from decimal import Decimal
from uuid import UUID as UUIDValue

import pytest
from hypothesis import given

from icekeep.formats.arrow.schema import arrow_schema
from icekeep.spec.properties import metrics_modes
from icekeep.spec.schema import assign_fresh_ids
from icekeep.spec.types import (
    BOOLEAN,
    DATE,
    DOUBLE,
    INT,
    LONG,
    STRING,
    TIMESTAMP,
    TIMESTAMPTZ,
    ListType,
    MapType,
    PrimitiveType,
    StructType,
    decimal,
)
from icekeep.storage.open import open_storage
from kit.cases import cases
from kit.columns import EVERY_TYPE, column, rows, schema_of, table_of
from kit.data_files import options_for, read_table, write_files
from kit.foreign_files import read_data_with_pyiceberg, write_data_with_pyiceberg

LISTS = {"numbers": [4], "points": [], "counts": [("a", 1)], "deep": []}
"""PyIceberg 0.12 reads and writes null lists as empty."""

ROWS = [
    {"key": 1, "c7_time": 5_000_001, "c11_uuid": UUIDValue(int=2**127 + 5), "c13_fixed": b"abcde", **LISTS},
    {"key": 2, "c8_timestamp": -1, "c9_timestamptz": 7, "c6_date": -3, "c12_binary": b"\xff\x00", **LISTS},
    {"key": 3, **LISTS, "deep": [(1, [{"id": UUIDValue(int=1), "n": None}])]},
]

ORC_SCHEMA = schema_of(
    column(1, "key", LONG, required=True),
    column(2, "b", BOOLEAN),
    column(3, "i", INT),
    column(4, "x", DOUBLE),
    column(5, "d", DATE),
    column(6, "ts", TIMESTAMP),
    column(7, "tz", TIMESTAMPTZ),
    column(8, "s", STRING),
    column(9, "n", decimal(20, 3)),
    column(10, "point", StructType((column(11, "y", DOUBLE), column(12, "label", STRING)))),
    column(13, "l", ListType(element_id=14, element=StructType((column(15, "z", INT),)))),
    column(16, "m", MapType(key_id=17, key=STRING, value_id=18, value=LONG)),
)
"""PyIceberg 0.12 reads times, UUIDs and fixed bytes of ORC as the numbers and bytes that they are stored as."""


NUMBERED = assign_fresh_ids(EVERY_TYPE)
"""With the ids that PyIceberg gives when it makes a table."""


def text(table):
    return [{name: str(value) for name, value in row.items()} for row in table.to_pylist()]


def test_pyiceberg_reads_our_parquet(tmp_path):
    table = table_of(EVERY_TYPE, ROWS)
    files = write_files(open_storage({}), EVERY_TYPE, [table], directory=tmp_path.as_uri())
    assert text(read_data_with_pyiceberg(files, EVERY_TYPE, tmp_path.as_uri())) == text(table)


def test_pyiceberg_reads_our_orc(tmp_path):
    data = [
        {
            "key": 1, "b": True, "i": -5, "x": 1.5, "d": -3, "ts": -1_000_000, "tz": 7, "s": "ü", "n": Decimal("1.250"),
            "l": [{"z": 1}], "m": [("a", 1)],
        },
        {"key": 2, "point": {"y": 2.5, "label": None}, "l": [], "m": []},
        {"key": 3, "point": None, "l": [{"z": None}], "m": [("b", None)]},
    ]  # fmt: skip
    table = table_of(ORC_SCHEMA, data)
    files = write_files(open_storage({}), ORC_SCHEMA, [table], options_for("ORC"), directory=tmp_path.as_uri())
    assert text(read_data_with_pyiceberg(files, ORC_SCHEMA, tmp_path.as_uri())) == text(table)


@pytest.mark.parametrize("file_format", ["PARQUET", "ORC"])
def test_pyiceberg_reads_our_files_in_a_later_schema(tmp_path, file_format):
    old = schema_of(column(1, "a", INT), column(2, "s", StructType((column(3, "x", INT),))))
    new = schema_of(
        column(4, "new", STRING),
        column(2, "renamed", StructType((column(5, "y", STRING), column(3, "xx", LONG)))),
        column(1, "a", LONG),
    )
    table = table_of(old, [{"a": 1, "s": {"x": 2}}, {"a": None, "s": {"x": None}}])
    storage = open_storage({})
    files = write_files(storage, old, [table], options_for(file_format), directory=tmp_path.as_uri())
    ours = read_table(storage, files[0].file_path, new)
    assert text(read_data_with_pyiceberg(files, new, tmp_path.as_uri())) == text(ours)
    assert ours.to_pylist() == [
        {"new": None, "renamed": {"y": None, "xx": 2}, "a": 1},
        {"new": None, "renamed": {"y": None, "xx": None}, "a": None},
    ]


@pytest.mark.slow
@cases(25)
@given(rows(NUMBERED))
def test_we_read_what_pyiceberg_writes(tmp_path_factory, data):
    directory = tmp_path_factory.mktemp("theirs")
    data = [{**row, **{name: row[name] or [] for name in LISTS}} for row in data]
    table = table_of(NUMBERED, data)
    file = write_data_with_pyiceberg(table, NUMBERED, directory.as_uri())
    found = read_table(open_storage({}), file.file_path, NUMBERED)
    assert found.schema.equals(arrow_schema(NUMBERED))
    assert str(found.to_pylist()) == str(table.to_pylist())
    os.remove(file.file_path.removeprefix("file://"))


@pytest.mark.parametrize("mode", ["none", "counts", "truncate(3)", "full"])
def test_pyiceberg_keeps_the_same_metrics_in_every_mode(tmp_path, mode):
    properties = {"write.metadata.metrics.default": mode}
    table = table_of(NUMBERED, [{**ROWS[0], "c10_string": "abcdefgh", "c12_binary": b"12345"}, ROWS[1]])
    theirs = write_data_with_pyiceberg(table, NUMBERED, tmp_path.as_uri(), **properties)
    options = options_for(metrics_modes=metrics_modes(properties, NUMBERED))
    (ours,) = write_files(open_storage({}), NUMBERED, [table], options, directory=f"{tmp_path.as_uri()}/ours")
    top = {f.field_id for f in NUMBERED.fields if isinstance(f.type, PrimitiveType)}
    for name in ("value_counts", "null_value_counts", "lower_bounds", "upper_bounds"):
        assert _of(getattr(ours, name), top) == _of(getattr(theirs, name), top), name


def _of(counts, ids):
    return {id_: count for id_, count in (counts or {}).items() if id_ in ids}
