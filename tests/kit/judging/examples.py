"""Small sound tables, each the least that shows what some judge does not read: `EXAMPLES` has them by name."""

from collections.abc import Callable, Mapping
from datetime import date
from decimal import Decimal
from uuid import UUID

import pyarrow as pa

from icekeep.catalog.base import Catalog, Table
from icekeep.spec.evolution import (
    AddColumn,
    AddPartitionField,
    DropColumn,
    RemovePartitionField,
    RenameColumn,
    UpdateColumnType,
)
from kit.judging.example_rows import (
    FIVE,
    NAN,
    NESTED,
    NESTED_ROWS,
    POINT_ROWS,
    POINTS,
    REQUIRED,
    ROWS,
)
from kit.judging.example_tables import Builder
from kit.lake import Lake
from kit.our_histories import ByIcekeep
from kit.row_histories import SPECS, History, steps_of

HISTORY = "a history with deletes in two specs"
"""Not cut down further: it takes nulls in partitions too."""

Make = Callable[[Builder], Builder]

X = [{"word": "x"}]
ONE = [{"number": 1}]
ADDED = ((6, "x", 1, 0.5, "n"), (7, "y", 2, 1.5, "m"))


def _history(catalog: Catalog, number: int) -> Table:
    """What a generated history leaves in format version 2, in Parquet."""
    history = History(ByIcekeep(catalog), 2, SPECS[number % len(SPECS)], ("PARQUET",))
    return history.went_on(steps_of(number)).table


EXAMPLES: Mapping[str, Make] = {
    "plain": lambda b: b.filled(),
    "ORC": lambda b: b.filled(file_format="orc"),
    "Avro": lambda b: b.filled(file_format="avro"),
    "positions": lambda b: b.filled().positions(),
    "positions in ORC": lambda b: b.filled(file_format="orc").positions(),
    "positions in Avro": lambda b: b.filled(file_format="avro").positions(),
    "positions in Avro that is split": lambda b: b.split().positions(position=3),
    "positions in an ORC file": lambda b: b.filled().positions(file_format="ORC"),
    "positions in an Avro file": lambda b: b.filled().positions(file_format="AVRO"),
    "positions in two specs": lambda b: b.filled()
    .positions()
    .fields(AddPartitionField("word"))
    .append(ROWS)
    .positions(2),
    "positions of two files": lambda b: b.filled().append(ROWS).positions(0, 1),
    "a column renamed since": lambda b: b.filled().columns(RenameColumn("number", "count")),
    "a column added since": lambda b: b.filled().columns(AddColumn("new", "string")),
    "a column dropped since": lambda b: b.filled().columns(DropColumn("number")),
    "a column promoted since": lambda b: b.filled().columns(UpdateColumnType("number", "long")),
    "a column renamed before": lambda b: b.filled().columns(RenameColumn("number", "count")).append(ROWS),
    "a column dropped before": lambda b: b.filled().columns(DropColumn("number")).append([(8, "z", 1.5)]),
    "keys of a renamed column": lambda b: b.filled()
    .equal([{"number": 1}])
    .columns(RenameColumn("number", "count"))
    .append(ROWS),
    "keys of a column renamed before": lambda b: b.filled()
    .columns(RenameColumn("number", "count"))
    .equal([{"count": 1}]),
    "keys of a column dropped and added": lambda b: b.filled()
    .equal([{"number": 1}])
    .columns(DropColumn("number"))
    .columns(AddColumn("number", "int")),
    "keys without nulls, renamed": lambda b: b.filled()
    .equal([{"id": 1}])
    .columns(RenameColumn("id", "key"))
    .append(ROWS),
    "nested": lambda b: b.of(NESTED, *NESTED_ROWS),
    "nested, required": lambda b: b.of(REQUIRED, {"id": 1}, {"id": 2, "point": {"x": 0.5}}),
    "nested keys": lambda b: b.of(POINTS, *POINT_ROWS).equal_points([{"point": {"x": 0.5}}]),
    "nested keys in ORC": lambda b: b.of(POINTS, *POINT_ROWS, file_format="orc").equal_points([{"point": {"x": 0.5}}]),
    "bytes of fixed length in Avro": lambda b: b.of(FIVE, {"id": 1, "five": b"12345"}, file_format="avro"),
    "partitions of bytes of fixed length": lambda b: b.of(
        FIVE, {"id": 1, "five": b"12345"}, partition_by=[("five", "identity")]
    ),
    "keys of bytes in maps": lambda b: b.of(
        pa.schema([("id", pa.int64()), ("counts", pa.map_(pa.binary(), pa.int64()))]),
        {"id": 1, "counts": [(b"", 1), (b"\xff\x00" * 40, 2)]},
    ),
    "a name in Avro": lambda b: b.of(pa.schema([("id", pa.int64()), ("a b", pa.int64())]), {"id": 1}, file_format="avro"),
    "a partition's name in Avro": lambda b: b.of(
        pa.schema([("id", pa.int64()), ("a b", pa.int64())]), {"id": 1}, version=3, partition_by=[("a b", "identity")]
    ),
    "UUIDs in Avro": lambda b: b.of(
        pa.schema([("id", pa.int64()), ("uuid", pa.uuid())]), {"id": 1, "uuid": UUID(int=1)}, file_format="avro"
    ),
    "types in ORC": lambda b: b.of(
        pa.schema([("id", pa.int64()), ("uuid", pa.uuid())]), {"id": 1, "uuid": UUID(int=1)}, file_format="orc"
    ),
    "required UUIDs in ORC": lambda b: b.of(
        pa.schema([("id", pa.int64()), pa.field("uuid", pa.uuid(), nullable=False)]),
        {"id": 1, "uuid": UUID(int=1)},
        file_format="orc",
    ),
    "bytes split by streams": lambda b: b.imported(column_encoding=dict.fromkeys(("id", "five"), "BYTE_STREAM_SPLIT")),
    "outside": lambda b: b.imported(is_outside=True),
    "times in ORC": lambda b: b.of(pa.schema([("id", pa.int64()), ("clock", pa.time64("us"))]), {"id": 1}, file_format="orc"),
    "truncated decimals": lambda b: b.of(
        pa.schema([("id", pa.int64()), ("price", pa.decimal128(38, 10))]),
        {"id": 1, "price": Decimal("1.5")},
        partition_by=[("price", "truncate[7]")],
    ),
    "partitions of UUIDs": lambda b: b.of(
        pa.schema([("id", pa.int64()), ("uuid", pa.uuid())]),
        {"id": 1, "uuid": UUID(int=1)},
        partition_by=[("uuid", "identity")],
    ),
    "keys of one partition": lambda b: b.filled(partition_by=[("id", "bucket[2]")]).equal(
        [{"id": n} for n in range(1, 6)]
    ),
    "a partition's column dropped": lambda b: b.filled(partition_by=[("number", "identity")])
    .fields(RemovePartitionField("number"))
    .columns(DropColumn("number"))
    .append([(6, "x", 0.5)]),
    "partitions of two UUIDs": lambda b: b.of(
        pa.schema([("id", pa.int64()), ("one", pa.uuid()), ("two", pa.uuid())]),
        {"id": 1, "one": UUID(int=1), "two": UUID(int=2)},
        partition_by=[("one", "identity"), ("two", "identity")],
    ),
    "a name beyond ASCII": lambda b: b.of(
        pa.schema([("id", pa.int64()), ("é", pa.int64())]), {"id": 1}, partition_by=[("é", "identity")]
    ),
    "keys of all partitions": lambda b: b.filled()
    .fields(AddPartitionField("id", "bucket[2]"))
    .append(ROWS)
    .equal([{"id": 2}]),
    "a field added to a struct": lambda b: b.of(POINTS, {"id": 1, "point": {"x": 0.5}}).columns(
        AddColumn("y", "double", parent="point")
    ),
    "a field added to a struct, rows since": lambda b: b.of(POINTS, {"id": 1, "point": {"x": 0.5}})
    .columns(AddColumn("y", "double", parent="point"))
    .append([(2, {"x": 1.5, "y": 2.5})]),
    "no rows": lambda b: b.of(pa.schema([("ids", pa.list_(pa.uuid()))])),
    "keys too large for older files": lambda b: b.filled()
    .columns(UpdateColumnType("number", "long"))
    .equal([{"number": 2**40}]),
    "imported": lambda b: b.imported(),
    "zstd manifests": lambda b: b.filled(codec="zstd"),
    "raised since": lambda b: b.filled(version=1).raised(),
    "vector": lambda b: b.filled(version=3).vector(),
    "a vector given up": lambda b: b.filled(version=3).append(ROWS).vectors().given_up(),
    "a vector replaced": lambda b: b.filled(version=3).append(ROWS).vectors().vector(1),
    "a damaged vector given up": lambda b: b.filled(version=3).append(ROWS).vectors().given_up().damaged(),
    "keys of one column": lambda b: b.filled().equal(X),
    "null keys of one column": lambda b: b.filled().equal([{"word": None}]),
    "keys of two columns": lambda b: b.filled().equal([{"word": "x", "number": 1}]),
    "null keys of two columns": lambda b: b.filled().equal([{"word": "x", "number": None}]),
    "keys without nulls": lambda b: b.filled().equal([{"id": 1}]),
    "keys of NaN beside another": lambda b: b.filled().equal([{"score": NAN}, {"score": 7.0}]),
    "zero keys": lambda b: b.filled().equal([{"id": 1, "score": -0.0}]),
    "keys in an ORC file": lambda b: b.filled().equal([{"id": 1}], file_format="ORC"),
    "keys in an Avro file": lambda b: b.filled().equal([{"id": 1}], file_format="AVRO"),
    "keys in two partitions": lambda b: b.filled(partition_by=[("id", "bucket[2]")])
    .equal([{"id": 1}])
    .equal([{"id": 2}])
    .equal([{"id": 5}], place=1),
    "keys in a null partition": lambda b: b.filled(partition_by=[("number", "identity")]).equal(
        [{"id": 2}], place=-1
    ),
    "keys in two specs": lambda b: b.filled()
    .equal([{"id": 1}])
    .fields(AddPartitionField("id", "bucket[2]"))
    .append(ROWS)
    .equal([{"id": 2}], place=1),
    "keys of a partition column": lambda b: b.filled(partition_by=[("word", "identity")]).equal(X, place=-1),
    "keys of a young column": lambda b: b.filled()
    .columns(AddColumn("new", "string"))
    .append(ADDED)
    .equal([{"new": "n"}]),
    "keys of a default": lambda b: b.filled(version=3)
    .columns(AddColumn("new", "string", default="old"))
    .append(ADDED)
    .equal([{"new": "old"}]),
    "keys of a promoted column": lambda b: b.filled().columns(UpdateColumnType("number", "long")).equal(ONE),
    "keys promoted since": lambda b: b.filled().equal(ONE).columns(UpdateColumnType("number", "long")),
    "keys of a dropped column": lambda b: b.filled().equal(ONE).columns(DropColumn("number")),
    "keys of a dropped column, rows since": lambda b: b.filled()
    .equal(ONE)
    .columns(DropColumn("number"))
    .append([(8, "z", 1.5)]),
    "keys in many specs": lambda b: b.filled()
    .equal([{"id": 1}])
    .fields(AddPartitionField("id", "bucket[2]"))
    .append(ROWS)
    .equal([{"id": 2}], place=1)
    .fields(RemovePartitionField("id_bucket_2"))
    .append(ROWS)
    .equal([{"id": 3}], place=-1)
    .fields(AddPartitionField("id", "bucket[2]"))
    .append(ROWS)
    .equal([{"id": 4}], place=1),
    "keys in a promoted partition": lambda b: b.filled(partition_by=[("number", "identity")])
    .columns(UpdateColumnType("number", "long"))
    .append(ROWS)
    .equal([{"id": 1}], place=0)
    .equal([{"id": 3}], place=1),
    "positions in a promoted partition": lambda b: b.filled(partition_by=[("number", "identity")])
    .columns(UpdateColumnType("number", "long"))
    .positions(),
    "a default": lambda b: b.filled(version=3).columns(AddColumn("new", "string", default="old")).append(ADDED),
    "a default of a date": lambda b: b.filled(version=3)
    .columns(AddColumn("new", "date", default="2026-01-31"))
    .append([(*ADDED[0][:4], date(2026, 2, 1))]),
    "a default in a struct": lambda b: b.of(POINTS, {"id": 1, "point": {"x": 0.5}}, version=3).columns(
        AddColumn("y", "double", parent="point", default=1.5)
    )
    .append([(2, {"x": 1.5, "y": 2.5})]),
    "an escaped path": lambda b: b.filled(partition_by=[("word", "identity")]).append([(6, "ä", 1, 0.5)]),
    "a void field of a column's name": lambda b: b.filled(version=1, partition_by=[("id", "bucket[2]"), ("score", "identity")])
    .fields(RemovePartitionField("score"))
    .append(ROWS),
}  # fmt: skip


def example(lake: Lake, name: str) -> Table:
    """The table of that name in `EXAMPLES`, in the namespace `db`."""
    if name == HISTORY:
        return _history(lake.catalog, 106)
    letters = "".join(letter if letter.isalnum() else "_" for letter in name)
    return EXAMPLES[name](Builder(lake, letters)).table
