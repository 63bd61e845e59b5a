"""PyIceberg reads the rows that we appended, and each file holds the rows of its partition alone."""

import datetime
import decimal
import uuid

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.sql import SqlCatalog as ForeignSqlCatalog
from pyiceberg.expressions import EqualTo, IsNull

from icekeep.catalog.open import open_catalog
from icekeep.tables.verbs import append, create_table
from kit.tables import EVENTS

pytestmark = pytest.mark.slow

SIMPLE = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("kind", pa.string())])
COLUMNS = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("flag", pa.bool_()),
        pa.field("small", pa.int32()),
        pa.field("big", pa.int64()),
        pa.field("single", pa.float32()),
        pa.field("double", pa.float64()),
        pa.field("price", pa.decimal128(9, 2)),
        pa.field("day", pa.date32()),
        pa.field("clock", pa.time64("us")),
        pa.field("local", pa.timestamp("us")),
        pa.field("at", pa.timestamp("us", "UTC")),
        pa.field("text", pa.string()),
        pa.field("key", pa.uuid()),
        pa.field("raw", pa.binary(4)),
        pa.field("bytes", pa.binary()),
        pa.field("place", pa.struct([pa.field("code", pa.string()), pa.field("seen", pa.timestamp("us", "UTC"))])),
    ]
)
PRIMITIVES = [field.name for field in COLUMNS if field.name not in ("id", "place")]
HASHED = ["small", "big", "price", "day", "clock", "local", "at", "text", "key", "raw", "bytes"]
TRUNCATED = ["small", "big", "price", "text", "bytes"]


def row(number: int) -> dict:
    """Rows that differ in every column, from before and after 1970, with signs, umlauts and slashes."""
    when = datetime.datetime(1969, 12, 31, 22, 30) + datetime.timedelta(hours=53 * number, microseconds=number)
    utc = when.replace(tzinfo=datetime.UTC)
    return {
        "id": number,
        "flag": number % 2 == 0,
        "small": 7 * number - 20,
        "big": 10**12 * (number - 3),
        "single": number / 4 - 1,
        # PyIceberg 0.12 reads doubles in manifests as 32-bit floats, so these are exact in both.
        "double": -number * 2.0**40,
        "price": decimal.Decimal(number * 111 - 300) / 100,
        "day": when.date(),
        "clock": when.time(),
        "local": when,
        "at": utc,
        "text": ["", "a/b", "ä=ö", "Grüße 🎈 x", "null", "x" * 30][number % 6],
        "key": uuid.UUID(int=number * 2**100).bytes,
        "raw": bytes([number, 255 - number, 0, 7]),
        "bytes": bytes(range(number)),
        "place": None if number == 1 else {"code": f"c{number % 3}", "seen": None if number == 2 else utc},
    }


def rows(numbers=range(8), nulls: bool = True) -> pa.Table:
    """Some rows, and one that has nothing but its id."""
    data = [row(number) for number in numbers] + ([{"id": 99}] if nulls else [])
    plain = pa.schema([f.with_type(pa.binary(16)) if f.name == "key" else f for f in COLUMNS])
    return pa.Table.from_pylist(data, schema=plain).cast(COLUMNS)


EPOCH = datetime.datetime(1970, 1, 1)


def as_spec(value):
    """A value as PyIceberg's transforms take it."""
    match value:
        case datetime.datetime():
            return (value.replace(tzinfo=None) - EPOCH) // datetime.timedelta(microseconds=1)
        case datetime.date():
            return (value - EPOCH.date()).days
        case datetime.time():
            return ((value.hour * 60 + value.minute) * 60 + value.second) * 1_000_000 + value.microsecond
        case uuid.UUID():
            return value.bytes
    return value


def nested(values: dict, path: str):
    for name in path.split("."):
        values = None if values is None else values[name]
    return values


class Both:
    """One catalog in a directory, ours and PyIceberg's."""

    def __init__(self, directory):
        self.properties = {"uri": f"sqlite:///{directory}/catalog.db", "warehouse": f"file://{directory}/warehouse"}
        self.catalog = open_catalog("local", {"type": "sql", **self.properties})
        self.catalog.create_namespace(("db",))

    def foreign(self):
        return ForeignSqlCatalog("local", **self.properties).load_table("db.events")


@pytest.fixture
def both(tmp_path):
    return Both(tmp_path)


def sorted_rows(table: pa.Table) -> list[dict]:
    plain = [f.with_type(pa.binary(16)) if f.type == pa.uuid() else f for f in table.schema]
    return sorted(table.cast(pa.schema(plain)).to_pylist(), key=lambda r: r["id"])


@pytest.mark.parametrize(
    "partition_by",
    [
        [],
        [(name, "identity") for name in PRIMITIVES],
        [(name, "bucket[3]") for name in HASHED],
        [(name, "truncate[3]") for name in TRUNCATED],
        [("day", "year"), ("local", "year"), ("at", "year")],
        [("day", "month"), ("local", "month"), ("at", "month")],
        [("day", "day"), ("local", "day"), ("at", "day")],
        [("local", "hour"), ("at", "hour")],
        [("text", "void"), ("small", "identity"), ("place.code", "void")],
        [("place.code", "identity"), ("place.seen", "month"), ("place.code", "bucket[2]")],
    ],
    ids=lambda fields: " ".join(sorted({transform for _, transform in fields})) or "unpartitioned",
)
def test_pyiceberg_reads_appended_rows_and_partitions(both, partition_by):
    table = create_table(both.catalog, "db.events", COLUMNS, partition_by=partition_by)
    data = rows()
    append(table, data)
    foreign = both.foreign()
    assert sorted_rows(foreign.scan().to_arrow()) == sorted_rows(data)
    spec, schema = foreign.spec(), foreign.schema()
    files = [task.file for task in foreign.scan().plan_files()]
    partitions = [tuple(file.partition[i] for i in range(len(spec.fields))) for file in files]
    assert len(set(partitions)) == len(partitions)
    assert sum(file.record_count for file in files) == data.num_rows
    for file, partition in zip(files, partitions, strict=True):
        for values in sorted_rows(pq.read_table(file.file_path.removeprefix("file://"))):
            expected = [
                field.transform.transform(schema.find_type(field.source_id))(
                    as_spec(nested(values, schema.find_column_name(field.source_id)))
                )
                for field in spec.fields
            ]
            assert [as_spec(value) for value in partition] == [as_spec(value) for value in expected]


@pytest.mark.parametrize(
    ("transform", "column", "value"),
    [
        ("identity", "text", "Grüße 🎈 x"),
        ("bucket[5]", "text", "a/b"),
        ("truncate[2]", "text", "ä=ö"),
        ("month", "at", "1970-01-03T03:30:01+00:00"),
        ("identity", "small", -6),
    ],
)
def test_pyiceberg_finds_rows_by_the_partitions_that_we_wrote(both, transform, column, value):
    table = create_table(both.catalog, "db.events", COLUMNS, partition_by=[(column, transform)])
    append(table, rows())
    wanted = datetime.datetime.fromisoformat(value) if column == "at" else value
    expected = [r["id"] for r in rows().to_pylist() if r[column] == wanted]
    found = both.foreign().scan(row_filter=EqualTo(column, value)).to_arrow()
    assert sorted(found["id"].to_pylist()) == sorted(expected)
    assert sorted(both.foreign().scan(row_filter=IsNull(column)).to_arrow()["id"].to_pylist()) == [99]


def test_appends_alternate_with_pyiceberg(both):
    table = create_table(both.catalog, "db.events", SIMPLE, partition_by=[("kind", "identity")])
    append(table, pa.table({"id": [1, 2], "kind": ["a", None]}, schema=SIMPLE))
    both.foreign().append(pa.table({"id": [3], "kind": ["a"]}, schema=SIMPLE))
    append(both.catalog.load(EVENTS), pa.table({"id": [4], "kind": ["b"]}, schema=SIMPLE))
    assert sorted(both.foreign().scan().to_arrow()["id"].to_pylist()) == [1, 2, 3, 4]
    assert [s.summary["total-records"] for s in both.foreign().metadata.snapshots] == ["2", "3", "4"]
