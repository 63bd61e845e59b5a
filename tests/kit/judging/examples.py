"""Small sound tables, each the least that shows what some judge does not read: `EXAMPLES` has them by name."""

import hashlib
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq

from icekeep.catalog.base import Catalog, Table
from icekeep.commit.changes.deletes import RowDelta
from icekeep.commit.retry import commit
from icekeep.formats.arrow.schema import arrow_schema
from icekeep.formats.deletes.read import write_equality_deletes
from icekeep.formats.puffin import footer_of
from icekeep.spec.evolution import (
    AddColumn,
    AddPartitionField,
    DropColumn,
    RemovePartitionField,
    RenameColumn,
    UpdateColumnType,
)
from icekeep.spec.properties import data_directory
from icekeep.spec.schema import Schema
from icekeep.storage.locations import local_path
from icekeep.tables.verbs import append, create_table, update_schema, update_spec, upgrade_format_version
from kit.deletes import data_files, delete_by_vector, delete_equal, delete_positions, vector_files
from kit.lake import Lake
from kit.naive_scan import live_entries
from kit.row_histories import SPECS, ByIcekeep, History, steps_of

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("word", pa.string()),
        pa.field("number", pa.int32()),
        pa.field("score", pa.float64()),
    ]
)
NESTED = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("words", pa.list_(pa.string())),
        pa.field("counts", pa.map_(pa.string(), pa.int64())),
        pa.field("point", pa.struct([pa.field("x", pa.float64()), pa.field("names", pa.list_(pa.string()))])),
        pa.field("points", pa.list_(pa.struct([pa.field("y", pa.int32())]))),
        pa.field("uuid", pa.uuid()),
        pa.field("bytes", pa.binary()),
        pa.field("five", pa.binary(5)),
        pa.field("at", pa.timestamp("us")),
        pa.field("when", pa.timestamp("us", "UTC")),
        pa.field("clock", pa.time64("us")),
        pa.field("price", pa.decimal128(38, 10)),
        pa.field("yes", pa.bool_()),
    ]
)
NESTED_ROWS = (
    {"id": 1},
    {
        "id": 2,
        "words": ["a", None],
        "counts": [("k", None), ("l", 2)],
        "point": {"x": None, "names": None},
        "points": [{"y": 1}, None],
        "uuid": UUID(int=2**127 + 1),
        "bytes": b"\xff\x00",
        "five": b"12345",
        "at": datetime(1969, 12, 31, 23, 59, 59, 999999),
        "when": datetime(2262, 5, 1, 0, 0, 0, 1, UTC),
        "clock": time(23, 59, 59, 999999),
        "price": Decimal("-1.5"),
        "yes": True,
    },
    {"id": 3, "words": [], "counts": [], "point": {"x": 0.5, "names": []}, "points": [], "bytes": b"", "yes": False},
)
REQUIRED = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("point", pa.struct([pa.field("x", pa.float64(), nullable=False)])),
    ]
)
IMPORTED = pa.schema([("id", pa.int64()), ("five", pa.binary(5)), ("words", pa.list_(pa.string()))])
POINTS = pa.schema([pa.field("id", pa.int64(), nullable=False), ("point", pa.struct([("x", pa.float64())]))])
POINT_ROWS = ({"id": 1}, {"id": 2, "point": {"x": 0.5}}, {"id": 3, "point": {"x": 1.5}})
FIVE = pa.schema([("id", pa.int64()), ("five", pa.binary(5))])
NAN = float("nan")
ROWS: tuple[tuple[Any, ...], ...] = (
    (1, "x", 1, 0.0),
    (2, "x", None, -0.0),
    (3, None, 1, NAN),
    (4, None, None, None),
    (5, "y", 2, 1.0),
)

Keys = Iterable[Mapping[str, Any]]


BLOCK_BYTES = 65_536
"""More than a writer of Avro puts into one block."""


class Builder:
    """Makes one table, step by step, by the library's own writers."""

    def __init__(self, lake: Lake, name: str) -> None:
        self._lake, self._catalog, self._identifier = lake, lake.catalog, ("db", name)

    @property
    def table(self) -> Table:
        return self._catalog.load(self._identifier)

    def filled(
        self,
        *,
        version: int = 2,
        partition_by: Sequence[tuple[str, str]] = (),
        file_format: str = "parquet",
        codec: str = "gzip",
    ) -> "Builder":
        """A new table with all rows, whose data files are in one format, and whose manifests have a codec."""
        properties = {"write.format.default": file_format, "write.manifest.compression-codec": codec}
        create_table(
            self._catalog,
            self._identifier,
            SCHEMA,
            partition_by=partition_by,
            properties=properties,
            format_version=version,
        )
        return self.append(ROWS)

    def of(
        self,
        schema: pa.Schema,
        *rows: Mapping[str, Any],
        version: int = 2,
        partition_by: Sequence[tuple[str, str]] = (),
        file_format: str = "parquet",
    ) -> "Builder":
        """A new table of other columns, with these rows."""
        create_table(
            self._catalog,
            self._identifier,
            schema,
            partition_by=partition_by,
            properties={"write.format.default": file_format},
            format_version=version,
        )
        if rows:
            append(self.table, pa.Table.from_pylist(list(rows), schema=schema))
        return self

    def split(self) -> "Builder":
        """A new table of one Avro file, of a block a row, which engines read in as many splits."""
        properties = {
            "write.format.default": "avro",
            "read.split.target-size": str(BLOCK_BYTES),
            "read.split.open-file-cost": "0",
        }
        create_table(self._catalog, self._identifier, SCHEMA, properties=properties)
        words = [hashlib.shake_128(bytes([n])).hexdigest(BLOCK_BYTES) for n in range(1, 7)]
        return self.append([(n, word, n, float(n)) for n, word in enumerate(words, 1)])

    def imported(self, *, is_outside: bool = False, **options: Any) -> "Builder":
        """A new table of a file that no writer of Iceberg made: it has no field ids.

        Args:
            is_outside: that the file is not below the table's location.
            options: of PyArrow's writer.
        """
        table = create_table(self._catalog, self._identifier, IMPORTED)
        path = (self._lake.directory if is_outside else Path(local_path(table.metadata.location))) / "imported.parquet"
        rows = pa.table({"id": [1, 2], "five": [b"12345", None], "words": [["a", None], None]}, schema=IMPORTED)
        pq.write_table(rows, path, use_dictionary=not options, **options)
        self._lake.foreign_catalog().load_table(self._identifier).add_files(
            # So Iceberg Java names a file that it is given by its path.
            [f"file:{path}" if is_outside else path.as_uri()]
        )
        return self

    def append(self, rows: Sequence[tuple[Any, ...]]) -> "Builder":
        """Rows of the first columns of the table."""
        schema = arrow_schema(self.table.metadata.schema)
        names = schema.names[: len(rows[0])]
        told = [dict(zip(names, row, strict=True)) for row in rows]
        append(self.table, pa.Table.from_pylist(told, schema=pa.schema([schema.field(name) for name in names])))
        return self

    def equal(self, keys: Keys, *, place: int = 0, file_format: str = "PARQUET") -> "Builder":
        """Rows that equal one of these are deleted, in the partition of the data file at a place."""
        told = list(keys)
        schema = arrow_schema(self.table.metadata.schema)
        rows = pa.Table.from_pylist(told, schema=pa.schema([schema.field(name) for name in told[0]]))
        delete_equal(self.table, rows, list(told[0]), like=data_files(self.table)[place], file_format=file_format)
        return self

    def equal_points(self, rows: Keys) -> "Builder":
        """Rows whose `x` in the struct `point` equals that of one of these are deleted."""
        table = self.table
        point = table.metadata.schema.field("point")
        columns = Schema(fields=(point,))
        file = write_equality_deletes(
            table.storage,
            f"{data_directory(table.metadata)}/points.parquet",
            "PARQUET",
            pa.Table.from_pylist(list(rows), schema=arrow_schema(columns)),
            [point.type.fields[0].field_id],
            columns,
            spec_id=0,
            partition=(),
        )
        commit(table, RowDelta(added_deletes=(file,)))
        return self

    def positions(self, *places: int, position: int = 0, file_format: str = "PARQUET") -> "Builder":
        """A row of the data files at some places, or of the first, is deleted by one file of position deletes."""
        files = data_files(self.table)
        delete_positions(self.table, [(files[place].file_path, position) for place in places or (0,)], file_format)
        return self

    def vector(self, position: int = 0) -> "Builder":
        """A row of the first data file is deleted by a deletion vector."""
        delete_by_vector(self.table, data_files(self.table)[0].file_path, [position])
        return self

    def vectors(self) -> "Builder":
        """The first row of each data file is deleted by a vector; all are in one Puffin file."""
        files = vector_files(self.table, [(file, 0) for file in data_files(self.table)], [])
        commit(self.table, RowDelta(added_deletes=files))
        return self

    def given_up(self) -> "Builder":
        """The table gives up one of its vectors."""
        gone = next(entry for entry in live_entries(self.table) if entry.data_file.content_offset is not None)
        commit(self.table, RowDelta(removed_deletes=(gone,)))
        return self

    def damaged(self) -> "Builder":
        """The vectors of a Puffin file that the table has no more are spoilt."""
        live = [entry.data_file for entry in live_entries(self.table) if entry.data_file.content_offset is not None]
        path = Path(local_path(live[0].file_path))
        data = bytearray(path.read_bytes())
        for blob in footer_of(io.BytesIO(data), str(path)).blobs:
            if blob.offset not in {file.content_offset for file in live}:
                # How many bitmaps it has, behind its length and the magic number.
                data[blob.offset + 9] ^= 0xFF
        path.write_bytes(data)
        return self

    def raised(self) -> "Builder":
        """The format version is raised to 2, and nothing else."""
        upgrade_format_version(self.table, 2)
        return self

    def columns(self, *changes: Any) -> "Builder":
        """The schema is changed."""
        update_schema(self.table, changes)
        return self

    def fields(self, *changes: Any) -> "Builder":
        """The partition spec is changed."""
        update_spec(self.table, changes)
        return self


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
