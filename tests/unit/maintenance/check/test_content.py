"""Data files against what metadata says of them: sound ones of each format, and each class of fault."""

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings

from icekeep.catalog.base import Table
from icekeep.formats.arrow.schema import map_fields
from icekeep.maintenance.check import by_file, content
from icekeep.maintenance.check.content import check_data_files
from icekeep.maintenance.manifests.job import rewrite_manifests
from icekeep.spec.schema import Schema
from icekeep.spec.types import DOUBLE, LONG, STRING, TIMESTAMP, ListType, StructType
from icekeep.tables.verbs import append, create_table, update_sort_order
from kit.cases import Choices, for_each
from kit.checked_entries import all_faults, exchange_here, listed, subject_of
from kit.columns import EVERY_TYPE, column, parquet_bytes, rows, schema_of, table_of
from kit.damager import Damager
from kit.data_files import tables
from kit.lake import EVENTS, Lake
from kit.memory_catalog import MemoryCatalog
from kit.runtime import limited, no_spark

NAME = ("db", "t")
PLAIN = schema_of(column(1, "id", LONG, required=True), column(2, "kind", STRING), column(3, "score", DOUBLE))
ROWS = [{"id": n, "kind": "a", "score": None if n == 2 else float(n)} for n in range(6)]


def made(schema: Schema, data: pa.Table, file_format: str = "parquet", version: int = 2, **facts: Any) -> Damager:
    catalog = MemoryCatalog()
    catalog.create_namespace(("db",))
    properties = {"write.format.default": file_format, **facts.pop("properties", {})}
    append(create_table(catalog, NAME, schema, format_version=version, properties=properties, **facts), data)
    return damager(catalog)


def damager(catalog: MemoryCatalog) -> Damager:
    found = Damager(catalog, NAME, Choices(1))
    found.table = lambda: catalog.load(NAME)  # type: ignore[attr-defined]
    return found


def faults(damaged: Any) -> list[Any]:
    table: Table = damaged.table()
    subject = subject_of(table)
    check_data_files(subject, listed(table, subject.snapshots))
    assert subject.tally.gaps() == ()
    return all_faults(subject.tally)


def numbers(damaged: Any) -> list[int]:
    return [fault.number for fault in faults(damaged)]


def replace_rows(damaged: Damager, data: pa.Table, **options: Any) -> None:
    damaged.write(damaged.entry().file["file_path"], parquet_bytes(data, **options))


def plain(data: list[dict[str, Any]] = ROWS) -> pa.Table:
    return table_of(PLAIN, data)


@pytest.mark.parametrize("file_format", ["parquet", "orc", "avro"])
@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(drawn=tables())
def test_nothing_is_found_in_sound_files_of_any_schema(file_format, drawn):
    schema, data = drawn
    assert faults(made(schema, data, file_format, 3)) == []


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=rows(EVERY_TYPE))
def test_nothing_is_found_in_sound_files_of_all_types(data):
    assert faults(made(EVERY_TYPE, table_of(EVERY_TYPE, data))) == []


def _item(damaged: Damager, name: str, key: int, value: Any) -> None:
    place = damaged.entry()
    items = [{"key": i["key"], "value": value if i["key"] == key else i["value"]} for i in place.file[name]]
    damaged.edit_file(place, **{name: items})


@for_each("file_format", ["parquet", "orc", "avro"])
@for_each(
    ("number", "name", "key", "value"),
    [
        (405, "lower_bounds", 1, (1).to_bytes(8, "little")),
        (405, "upper_bounds", 2, b"A"),
        (406, "null_value_counts", 3, 0),
        (407, "value_counts", 1, 7),
        (408, "nan_value_counts", 3, 1),
    ],
)
def test_a_wrong_metric_is_found(file_format, number, name, key, value):
    damaged = made(PLAIN, plain(), file_format)
    _item(damaged, name, key, value)
    [fault] = faults(damaged)
    assert fault.number == number
    assert fault.facts["columns"] == [key]
    assert fault.where == fault.facts["file_path"] == damaged.entry().file["file_path"]
    assert fault.facts["manifest"] == damaged.entry().manifest


def test_a_data_file_of_another_format():
    damaged = made(PLAIN, plain())
    path = damaged.entry().file["file_path"]
    damaged.edit_file(damaged.entry(), file_format="ORC")
    assert numbers(damaged) == [401]
    damaged.remove(path)
    assert numbers(damaged) == []


def test_a_column_of_a_wrong_type_is_found():
    damaged = made(PLAIN, plain())
    data = plain()
    replace_rows(damaged, data.set_column(0, data.schema.field(0).with_type(pa.string()), data["id"].cast(pa.string())))
    [fault] = faults(damaged)
    assert (fault.number, fault.facts["columns"]) == (403, [1])


def test_timestamps_adjusted_to_utc():
    schema = schema_of(
        column(1, "id", LONG), column(2, "at", TIMESTAMP), column(3, "s", ListType(element_id=4, element=TIMESTAMP))
    )
    data = table_of(schema, [{"id": 1, "at": 0, "s": [0]}])
    damaged = made(schema, data)
    utc = pa.timestamp("us", "UTC")
    marked = map_fields(
        data.schema, lambda field, _: field.metadata, leaf_type=lambda t: utc if pa.types.is_timestamp(t) else t
    )
    replace_rows(damaged, data.cast(marked))
    [fault] = faults(damaged)
    assert (fault.number, fault.facts["columns"]) == (403, [2, 4])
    assert fault.detail == "it marks columns 'at', 's.element' as adjusted to UTC, where the table has no time zone"


def test_a_required_column_that_is_empty():
    damaged = made(PLAIN, plain())
    replace_rows(damaged, plain().drop_columns(["id"]))
    assert numbers(damaged) == [404]
    field = PLAIN.fields[0]
    optional = schema_of(column(1, "id", field.type), *PLAIN.fields[1:])
    replace_rows(damaged, table_of(optional, [{**ROWS[0], "id": None}, *ROWS[1:]]))
    assert 404 in numbers(damaged)


def test_rows_out_of_the_order_that_is_claimed_are_found():
    damaged: Any = made(PLAIN, plain())
    update_sort_order(damaged.table(), ["id"])
    damaged.location = damaged.table().metadata_location
    damaged.edit_file(damaged.entry(), sort_order_id=1)
    assert numbers(damaged) == []
    replace_rows(damaged, plain([*ROWS[:3], ROWS[4], ROWS[3], ROWS[5]]))
    [fault] = faults(damaged)
    assert (fault.number, fault.facts["found"]) == (409, 4)


@pytest.mark.parametrize("transform", ["identity", "bucket[4]", "truncate[1]"])
def test_rows_of_another_partition_are_found(transform):
    damaged = made(PLAIN, plain(), partition_by=[("kind", transform)])
    assert numbers(damaged) == []
    replace_rows(
        damaged,
        plain([*({**row, "kind": kind} for row, kind in zip(ROWS, ("a", "b", "c", "d", "e", "f"), strict=True))]),
    )
    assert 410 in numbers(damaged)


def test_columns_without_ids_are_found():
    damaged = made(PLAIN, plain())
    bare = pa.schema([pa.field(field.name, field.type) for field in plain().schema])
    replace_rows(damaged, plain().cast(bare))
    assert numbers(damaged) == [423]


NESTED = schema_of(
    column(1, "id", LONG, required=True),
    column(2, "place", StructType((column(4, "lat", LONG), column(5, "lon", LONG, required=True)))),
    column(3, "tags", ListType(element_id=6, element=LONG)),
)
NESTED_MAPPING = """[{"field-id": 1, "names": ["id"]}, {"field-id": 2, "names": ["place"],
    "fields": [{"field-id": 4, "names": ["lat"]}, {"field-id": 5, "names": ["lon"]}]},
    {"field-id": 3, "names": ["tags"], "fields": [{"field-id": 6, "names": ["element"]}]}]"""


@for_each(
    ("with_ids", "lost", "said"),
    [
        ({"id"}, [2, 3], "columns 'place', 'tags'"),
        ({"id", "place", "tags"}, [4, 5, 6], "columns 'place.lat', 'place.lon', 'tags.element'"),
        ({"place", "lat", "lon", "tags", "element"}, [1], "column 'id'"),
    ],
)
def test_columns_without_ids_beside_others(with_ids, lost, said):
    data = table_of(NESTED, [{"id": 1, "place": {"lat": 2, "lon": 3}, "tags": [4]}])
    columns = map_fields(data.schema, lambda field, path: (field.metadata or {}) if path[-1] in with_ids else {})
    for mapping in ({}, {"schema.name-mapping.default": NESTED_MAPPING}):
        damaged = made(NESTED, data, properties=mapping)
        replace_rows(damaged, data.cast(columns))
        found = [(fault.number, fault.facts["columns"], fault.detail) for fault in faults(damaged)]
        detail = f"it has values of {said} without a field id, and the table's name mapping has no id for the name"
        assert found == ([] if mapping else [(423, lost, detail)])


def test_tasks_find_what_threads_find(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    lake.filled(commits=3, files=2)
    rewrite_manifests(lake.load(), no_spark)
    damaged = Damager(lake.catalog, EVENTS, Choices(1))
    path = damaged.entry().file["file_path"]
    damaged.write(path, bytes(50))
    exchange_here(monkeypatch, by_file, content)
    told = []
    for spark in (no_spark, limited(no_spark, footers_count=0)):
        subject = subject_of(lake.load(), spark)
        check_data_files(subject, listed(lake.load(), subject.snapshots))
        told.append(all_faults(subject.tally))
    assert told[0] == told[1]
    [fault] = told[0]
    assert (fault.number, fault.where) == (401, path)
    assert len(fault.facts["manifests"]) == 2
