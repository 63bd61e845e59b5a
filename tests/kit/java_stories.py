"""Tables whose rows Iceberg Java deletes, by every kind of delete file: who is deleted how, and the ids of the rows left.

Iceberg's own writers make the files (`java_judge/RowDeletes.java`). What a row is follows from its id; all are chosen by hand, so
that each delete of a story hits rows with null, NaN or a zero.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any
from uuid import UUID as UUIDValue

import msgspec

from icekeep.spec.partitioning import PartitionSpec, build_spec
from icekeep.spec.schema import Schema, schema_from_json
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
    TIMESTAMPTZ,
    UUID,
    StructType,
    decimal,
    fixed,
)
from icekeep.spec.values import decimal_from_unscaled
from kit.columns import column, schema_of
from kit.java import IcebergJava
from kit.rows import row_texts, to_wire

Row = Mapping[str, Any]
Part = dict[str, Any]


class JavaTable:
    """A table that Java alone writes; `file_format` is of what it writes next, data and deletes."""

    def __init__(self, java: IcebergJava, name: str, file_format: str = "parquet") -> None:
        self.java = java
        self.name = name
        self.file_format = file_format

    def create(self, schema: Schema, spec: PartitionSpec | None = None, version: int = 2, **properties: str) -> None:
        """Make the table, empty; `__` in the names of properties stands for `.`, `_` for `-`."""
        named = {name.replace("__", ".").replace("_", "-"): value for name, value in properties.items()}
        settings = {"format-version": str(version), "write.format.default": self.file_format, **named}
        self.java.create_table(self.name, schema, spec, settings)

    @property
    def metadata(self) -> dict[str, Any]:
        return self.java.metadata(self.name)

    @property
    def schema(self) -> Schema:
        metadata = self.metadata
        return next(
            schema_from_json(schema)
            for schema in metadata["schemas"]
            if schema["schema-id"] == metadata["current-schema-id"]
        )

    def rows(self) -> Counter[str]:
        """The rows as Iceberg's own reader, which knows every type, has them."""
        return self.java.rows(self.name)

    def rows_of_spark(self) -> Counter[str]:
        """The rows as Java's Spark reads them, in the same form; it alone applies deletes by columns since dropped."""
        return row_texts(self.schema, self.sql("SELECT * FROM {t}"))

    def sql(self, text: str) -> list[dict[str, Any]]:
        """A statement in Java's Spark; `{t}` stands for the table."""
        return self.java.sql(text.format(t=self.name))

    def alter(self, change: str) -> None:
        self.sql(f"ALTER TABLE {{t}} {change}")

    def add_column(self, name: str, type_: str, default: Any) -> None:
        """Add a column with a default, for old rows and new ones; Spark's SQL cannot."""
        self.java.ask("Tables.addColumn", table=self.name.split("."), name=name, type=type_, default=default)

    def append(self, rows: Iterable[Row], files: int = 1) -> None:
        """Commit rows; columns that a row does not name are null."""
        self.java.append(self.name, self._wire(rows), files=files, file_format=self.file_format)

    def delta(self, *parts: Part) -> None:
        """Commit parts, made by the methods below, in one snapshot."""
        self.java.ask("RowDeletes.commit", table=self.name.split("."), parts=list(parts))

    def adding(self, rows: Iterable[Row]) -> Part:
        """Rows, in one file a partition."""
        return {"kind": "add", "rows": self._wire(rows), "format": self.file_format}

    def equality(
        self, columns: Sequence[str], *keys: Sequence[Any], spec_id: int | None = None, partition: Sequence[Any] = ()
    ) -> Part:
        """An equality delete file; a key has a value for each column. The file's columns are in the order of the schema."""
        schema = self.schema
        roots = [field.name for field in schema.fields]
        order = sorted(range(len(columns)), key=lambda n: roots.index(columns[n].split(".")[0]))
        return {
            "kind": "equality",
            "columns": list(columns),
            "rows": [[_key(schema, columns[n], key[n]) for n in order] for key in keys],
            "format": self.file_format,
            "spec_id": spec_id,
            "partition": list(partition),
        }

    def positions(self, *ids: int, scope: str = "file", referenced: bool = False) -> Part:
        """Position delete files of the rows with these ids: one a data `file`, or one a `partition`.

        Java keeps the bounds of the path only where all are of one data file.
        """
        return {
            "kind": "positions",
            "filter": ids_filter(ids),
            "scope": scope,
            "referenced": referenced,
            "format": self.file_format,
        }

    def positions_of_added(self, *numbers: int) -> Part:
        """A position delete file for the first data file that this very commit adds."""
        part = self.positions()
        return {**part, "kind": "positions_of_added", "numbers": list(numbers)}

    def vectors(self, *ids: int) -> Part:
        """Deletion vectors of the rows with these ids, which take over what was deleted by position before."""
        return {"kind": "vectors", "filter": ids_filter(ids)}

    def _wire(self, rows: Iterable[Row]) -> list[Any]:
        schema = self.schema
        struct = schema.as_struct()
        names = {field.name for field in schema.fields}
        rows = list(rows)
        assert all(row.keys() <= names for row in rows)
        return [to_wire(struct, {name: row.get(name) for name in names}) for row in rows]


def ids_filter(ids: Iterable[int]) -> list[Any]:
    """`id IN (...)` as Java is told it."""
    return ["IN", "id", *({"long": str(number)} for number in ids)]


def _key(schema: Schema, column: str, value: Any) -> Any:
    """A value of a delete file's row; one of a field in structs lies in as many lists."""
    wire = to_wire(schema.field(column).type, value)
    for _ in range(column.count(".")):
        wire = [wire]
    return wire


PLACE = StructType((column(7, "lat", FLOAT), column(8, "zone", STRING)))
EVENTS = schema_of(
    column(1, "id", LONG, required=True),
    column(2, "kind", STRING),
    column(3, "score", DOUBLE),
    column(4, "day", DATE),
    column(5, "amount", decimal(9, 2)),
    column(6, "place", PLACE),
)
"""Ids as Java assigns them."""


# No two rows of one commit and one kind are the two zeros: Java's ORC reader takes those for one (a test shows it).
_SCORES = {0: math.nan, 2: 0.0, 3: None, 5: math.nan, 6: -0.0, 8: None}


def event(number: int) -> dict[str, Any]:
    """A row with nulls, NaN and both zeros among its values."""
    return {
        "id": number,
        "kind": None if number % 7 == 3 else f"k{number % 3}",
        "score": _SCORES.get(number % 10, number / 2),
        "day": 18_000 + number,
        "amount": None if number % 6 == 5 else decimal_from_unscaled(number * 25, 2),
        "place": None if number % 8 == 6 else {"lat": number / 4, "zone": f"z{number % 4}"},
    }


def events(numbers: Iterable[int]) -> list[dict[str, Any]]:
    return [event(number) for number in numbers]


def without(numbers: Iterable[int], *deleted: int) -> tuple[int, ...]:
    return tuple(number for number in numbers if number not in deleted)


NUMBERS = schema_of(
    column(1, "id", LONG, required=True),
    column(2, "n", INT),
    column(3, "ratio", FLOAT),
    column(4, "price", decimal(9, 2)),
    column(5, "name", STRING),
)


def narrow(number: int) -> dict[str, Any]:
    price = decimal_from_unscaled(number * 10, 2)
    return {"id": number, "n": number, "ratio": number / 8, "price": price, "name": f"n{number}"}


def wide(number: int) -> dict[str, Any]:
    price = decimal_from_unscaled(10**12 + number, 2)
    return {"id": number, "n": number + 2**40, "ratio": number / 8, "price": price, "title": f"n{number}"}


EVERY_TYPE = schema_of(
    column(1, "id", LONG, required=True),
    column(2, "flag", BOOLEAN),
    column(3, "int", INT),
    column(4, "long", LONG),
    column(5, "float", FLOAT),
    column(6, "double", DOUBLE),
    column(7, "date", DATE),
    column(8, "time", TIME),
    column(9, "local", TIMESTAMP),
    column(10, "moment", TIMESTAMPTZ),
    column(11, "text", STRING),
    column(12, "uuid", UUID),
    column(13, "bytes", BINARY),
    column(14, "fixed", fixed(3)),
    column(15, "small", decimal(9, 2)),
    column(16, "middle", decimal(18, 3)),
    column(17, "large", decimal(38, 10)),
)
TYPED_COLUMNS = tuple(field.name for field in EVERY_TYPE.fields if field.name not in ("id", "flag"))


def typed(number: int) -> dict[str, Any]:
    """A value of every type that no other row has, but for the flag."""
    return {
        "id": number,
        "flag": number % 2 == 0,
        "int": number * 7,
        "long": number * 2**33,
        "float": number / 4,
        "double": number / 3,
        "date": number * 100,
        "time": number * 100_000_001,
        "local": number * 3_000_000_000_007,
        "moment": number * 5_000_000_000_011,
        "text": f"ä{number}",
        "uuid": UUIDValue(int=number << 100 | number),
        "bytes": bytes([number, 0, 255]),
        "fixed": bytes([255, number, 0]),
        "small": decimal_from_unscaled(number * 101, 2),
        "middle": decimal_from_unscaled(number * 10**14 + 1, 3),
        "large": decimal_from_unscaled(number * 10**33 + 3, 10),
    }


class Story(msgspec.Struct, frozen=True):
    """`tell` makes the table; `left` are the ids of the rows it ends with, one for each row.

    `reader` is the one of Java's that reads it rightly: `generic`, its own, which knows every type, `spark` or `none`. For
    Spark the column `renaming` must have another name first. `formats` are those that it may be told in.
    """

    tell: Callable[[JavaTable], None]
    left: tuple[int, ...]
    reader: str = "generic"
    renaming: str | None = None
    formats: tuple[str, ...] = ("parquet", "orc", "avro")


def partitioned_by(*fields: tuple[str, str], schema: Schema = EVENTS) -> Any:
    return build_spec(schema, [(name, transform, None) for name, transform in fields])


def _three_files(table: JavaTable, *fields: tuple[str, str], version: int = 2, **properties: str) -> None:
    """Rows 0 to 29 of `event`, committed by tens."""
    table.create(EVENTS, partitioned_by(*fields), version, **properties)
    for start in (0, 10, 20):
        table.append(events(range(start, start + 10)))


def positions_by_path(table: JavaTable) -> None:
    """Java leaves the bounds of the path, which name one file."""
    _three_files(table)
    table.delta(table.positions(1, 5, 11), table.positions(5, 6))
    table.delta(table.positions(12, 29))


def positions_by_reference(table: JavaTable) -> None:
    _three_files(table)
    table.delta(table.positions(1, 5, 11, referenced=True))
    table.delta(table.positions(12, 29, referenced=True))


def positions_by_partition(table: JavaTable) -> None:
    """One delete file for all files of a partition, null among them."""
    _three_files(table, ("kind", "identity"))
    table.delta(table.positions(1, 4, 10, 11, 13, 16, 24, 29, scope="partition"))
    table.delta(table.positions(2, 3, 22, scope="partition"))


def positions_of_all_rows(table: JavaTable) -> None:
    """A file whose every row is deleted stays live."""
    _three_files(table)
    table.delta(table.positions(*range(10, 20)))


def upserts(table: JavaTable) -> None:
    """As streams write: an equality delete spares what its own commit adds; a position delete does not."""
    _three_files(table)
    table.delta(table.equality(["id"], (1,), (2,), (12,)))
    table.append([{**event(1), "kind": "new"}])
    table.delta(
        table.adding({**event(number), "kind": "newer"} for number in (5, 6, 7)),
        table.equality(["id"], (1,), (5,), (6,)),
        table.positions_of_added(0),
    )
    table.append(events([12]))


def two_columns(table: JavaTable) -> None:
    """Null equals null, NaN equals NaN, and -0.0 is not 0.0; both columns must be equal."""
    _three_files(table)
    table.delta(
        table.equality(["kind", "score"], (None, math.nan), (None, 0.0), ("k0", math.nan), ("k1", None), ("k2", 7.0)),
        table.equality(["score", "kind"], (0.0, "k2"), (1.0, "k9"), (-0.0, "k1")),
    )


def zeros(table: JavaTable) -> None:
    """Only the rows of 0.0 and of NaN go."""
    _three_files(table)
    table.delta(table.equality(["score"], (0.0,), (math.nan,)))


def negative_zeros(table: JavaTable) -> None:
    """Only the rows of -0.0 and those without a score go."""
    _three_files(table)
    table.delta(table.equality(["score"], (-0.0,), (None,)))


def zeros_alone(table: JavaTable) -> None:
    """In ORC Java reads the rows as two of -0.0, and the deletes of both as two of 0.0."""
    table.create(EVENTS)
    table.append([{**event(1), "score": -0.0}, {**event(2), "score": 0.0}])
    table.append([event(4)])
    table.delta(table.equality(["score"], (0.0,)))


def equality_by_partition(table: JavaTable) -> None:
    """The same key in another partition, or in another file format, is not spared or hit by chance."""
    _three_files(table, ("kind", "identity"))
    table.delta(
        table.equality(["id"], (1,), (4,), (2,), (11,), partition=["k1"]),
        table.equality(["id"], (3,), (10,), (0,), partition=[None]),
    )
    table.append(events([1, 3]))


def equality_before_partitioning(table: JavaTable) -> None:
    """Deletes of the unpartitioned spec reach every file, also those of the spec that came later."""
    table.create(EVENTS)
    table.append(events(range(10)))
    table.alter("ADD PARTITION FIELD kind")
    table.append(events(range(10, 20)))
    table.delta(table.equality(["id"], (2,), (12,), (15,), spec_id=0))
    table.delta(table.equality(["id"], (18,), (6,), partition=["k0"]))
    table.append(events([2, 15, 21]))


def three_specs(table: JavaTable) -> None:
    """Each delete file reaches the files of its own spec and partition only."""
    table.create(EVENTS, partitioned_by(("kind", "identity")))
    table.append(events(range(10)))
    table.alter("ADD PARTITION FIELD bucket(2, id)")
    table.append(events(range(10, 20)))
    table.alter("DROP PARTITION FIELD kind")
    table.append(events(range(20, 30)))
    table.delta(table.positions(1, 4, 10, 11, 14, 21, 22, 23, scope="partition"))
    table.delta(
        table.equality(["id"], (0,), (12,), (24,), spec_id=0, partition=["k0"]),
        *(table.equality(["id"], (0,), (12,), (24,), spec_id=1, partition=["k0", n]) for n in (0, 1)),
        *(table.equality(["id"], (25,), (13,), (5,), partition=[n]) for n in (0, 1)),
    )


def void_spec(table: JavaTable) -> None:
    """A spec whose every field is void is unpartitioned: its equality deletes are for all files."""
    table.create(EVENTS, partitioned_by(("kind", "identity")), version=1)
    table.append(events(range(10)))
    table.alter("DROP PARTITION FIELD kind")
    table.append(events(range(10, 20)))
    table.alter("SET TBLPROPERTIES ('format-version' = '2')")
    table.delta(table.equality(["id"], (1,), (3,), (12,), partition=[None]))
    table.delta(table.positions(2, 13, 14, scope="partition"))


def promoted_and_renamed(table: JavaTable) -> None:
    """Deletes of narrower columns reach the wider, and those of the wider reach files of the narrower."""
    table.create(NUMBERS)
    table.append(map(narrow, range(10)))
    before = narrow(1), narrow(2), narrow(3), narrow(4)
    for name, row in zip(("n", "ratio", "price", "name"), before, strict=True):
        table.delta(table.equality([name], (row[name],)))
    for change in ("n TYPE BIGINT", "ratio TYPE DOUBLE", "price TYPE DECIMAL(18, 2)"):
        table.alter(f"ALTER COLUMN {change}")
    table.alter("RENAME COLUMN name TO title")
    table.append(map(wide, range(10, 20)))
    table.delta(
        table.equality(["n"], (5,), (11 + 2**40,)),
        table.equality(["ratio"], (6 / 8,), (12 / 8,)),
        table.equality(["price"], (decimal_from_unscaled(70, 2),), (decimal_from_unscaled(10**12 + 13, 2),)),
        table.equality(["n", "title"], (8, "n8"), (14 + 2**40, "n14")),
    )


def added_column(table: JavaTable) -> None:
    """Rows of before a column was added have null there, and null equals null."""
    table.create(EVENTS)
    table.append(events(range(10)))
    table.alter("ADD COLUMN extra STRING")
    table.append({**event(n), "extra": None if n % 2 else f"x{n}"} for n in range(10, 20))
    table.delta(table.equality(["id", "extra"], (1, None), (2, "x2"), (12, "x12"), (13, None), (14, None)))
    table.append({**event(n), "extra": None} for n in (1, 13))


def added_column_alone(table: JavaTable) -> None:
    """A delete of null takes every row of before the column."""
    table.create(EVENTS)
    table.append(events(range(10)))
    table.alter("ADD COLUMN extra STRING")
    table.append({**event(n), "extra": None if n % 2 else f"x{n}"} for n in range(10, 20))
    table.delta(table.equality(["extra"], (None,), ("x16",)))


def column_with_a_default(table: JavaTable) -> None:
    """Rows of before the column have its default there, not null."""
    table.create(EVENTS, version=3)
    table.append(events(range(10)))
    table.add_column("extra", "string", "old")
    table.append({**event(n), "extra": None if n % 2 else f"x{n}"} for n in range(10, 20))
    table.delta(
        table.equality(["extra"], (None,), ("x16",)),
        table.equality(["id", "extra"], (1, "old"), (2, None), (3, "x3"), (12, "old")),
        table.vectors(4, 18),
    )


def dropped_column(table: JavaTable) -> None:
    """A column by which rows were deleted is no longer in the schema; its deletes hold."""
    table.create(EVENTS)
    table.append(events(range(10)))
    table.delta(table.equality(["kind"], ("k1",), (None,)), table.equality(["id", "kind"], (2, "k2"), (5, "k1")))
    table.alter("DROP COLUMN kind")
    table.append({k: v for k, v in event(n).items() if k != "kind"} for n in range(10, 15))


def dropped_and_added_again(table: JavaTable) -> None:
    """A new column of the old name is another column: old deletes do not reach it."""
    dropped_column(table)
    table.alter("ADD COLUMN kind STRING")
    table.append(events(range(20, 25)))
    table.delta(table.equality(["kind"], ("k2",)))


def nested_column(table: JavaTable) -> None:
    """A field in a struct may be one of the equality columns."""
    _three_files(table)
    table.delta(table.equality(["place.zone"], ("z1",)), table.equality(["id", "place.zone"], (2, "z2"), (7, "z1")))


def null_struct(table: JavaTable) -> None:
    """Where a struct is null, so is a field in it: the spec says so, and Java spares those rows (6, 14 and 22)."""
    _three_files(table)
    table.append([{**event(30), "place": {"lat": 1.0, "zone": None}}])
    table.delta(table.equality(["place.zone"], (None,), ("z3",)))


def every_type(table: JavaTable) -> None:
    """For each type, the row with its number there and the row with null are deleted, by a delete file of its own."""
    table.create(EVERY_TYPE)
    table.append(map(typed, range(20)))
    table.append({**typed(100 + n), name: None} for n, name in enumerate(TYPED_COLUMNS))
    table.delta(
        table.equality(["id", "flag"], (18, True), (19, True)),
        *(table.equality([name], (typed(n)[name],), (None,)) for n, name in enumerate(TYPED_COLUMNS)),
    )


def other_formats(table: JavaTable) -> None:
    """Delete files in other formats than the data files, and both kinds for one data file."""
    _three_files(table)
    for number, file_format in enumerate(("parquet", "orc", "avro")):
        table.file_format = file_format
        table.delta(
            table.equality(["kind", "day"], (event(number)["kind"], 18_000 + number), ("k9", None)),
            table.positions(number + 10, number + 20),
        )


def vectors(table: JavaTable) -> None:
    """The second vector of a file takes the place of the first."""
    _three_files(table, version=3)
    table.delta(table.vectors(1, 2, 11, 29))
    table.delta(table.vectors(3, 12))


def vectors_by_partition(table: JavaTable) -> None:
    _three_files(table, ("kind", "identity"), ("day", "month"), version=3)
    table.delta(table.vectors(1, 2, 3, 11, 17, 29))
    table.delta(table.vectors(4, 10, 12))


def vectors_over_position_deletes(table: JavaTable) -> None:
    """A vector takes over what position delete files held of its file; those still serve files without one."""
    _three_files(table)
    table.delta(table.positions(1))
    table.delta(table.positions(2, 12, 22, scope="partition"))
    table.alter("SET TBLPROPERTIES ('format-version' = '3')")
    table.delta(table.vectors(3, 23))
    table.delta(table.equality(["id"], (4,), (14,)))


def splits(table: JavaTable) -> None:
    """Many row groups, stripes and blocks, read in many splits: positions count from the start of the file."""
    small = "4096"
    table.create(
        EVENTS,
        write__parquet__row_group_size_bytes=small,
        write__parquet__page_size_bytes="1024",
        write__parquet__row_group_check_min_record_count="100",
        write__parquet__row_group_check_max_record_count="100",
        write__orc__stripe_size_bytes=small,
        orc__rows__between__memory__checks="100",
        read__split__target_size=small,
        read__split__open_file_cost="0",
    )
    table.append(events(range(3000)))
    table.delta(table.positions(*range(0, 3000, 7)))
    table.delta(table.equality(["id"], *((n,) for n in range(0, 3000, 11))))


def by_sql(table: JavaTable) -> None:
    """`DELETE`, `UPDATE` and `MERGE` of Spark, merge-on-read."""
    _by_sql(table, 2)


def by_sql_in_version_3(table: JavaTable) -> None:
    _by_sql(table, 3)


def _by_sql(table: JavaTable, version: int) -> None:
    modes = {f"write__{verb}__mode": "merge-on-read" for verb in ("delete", "update", "merge")}
    _three_files(table, ("kind", "identity"), version=version, **modes)
    table.sql("DELETE FROM {t} WHERE id IN (1, 5, 14) OR score = 14.5")
    table.sql("UPDATE {t} SET kind = 'new' WHERE id BETWEEN 10 AND 12")
    table.sql("DELETE FROM {t} WHERE id IN (2, 11)")


def by_sql_to_a_partition(table: JavaTable) -> None:
    """Spark writes one delete file a partition where it is told to."""
    mode = {"write__delete__mode": "merge-on-read", "write__delete__granularity": "partition"}
    _three_files(table, ("day", "year"), **mode)
    table.sql("DELETE FROM {t} WHERE id % 4 = 1")


def by_sql_in_a_branch(table: JavaTable) -> None:
    """The branch `audit` lost rows that `main` has."""
    _three_files(table, write__delete__mode="merge-on-read")
    table.delta(table.positions(1))
    table.alter("CREATE BRANCH audit")
    table.sql("DELETE FROM {t}.branch_audit WHERE id IN (2, 12)")
    table.delta(table.positions(3))


def compacted(table: JavaTable) -> None:
    """After Java's compaction, delete files that reach nothing are still listed."""
    _three_files(table)
    table.delta(table.positions(1, 12, scope="partition"), table.equality(["id"], (2,), (22,)))
    catalog, _, name = table.name.partition(".")
    options = {"rewrite-all": "true"}
    table.java.call(catalog, "rewrite_data_files", table=name, options=options)
    table.delta(table.positions(3), table.equality(["id"], (4,)))
    table.append(events([1, 2]))


STORIES: dict[str, Story] = {
    "positions by path": Story(positions_by_path, without(range(30), 1, 5, 6, 11, 12, 29)),
    "positions by reference": Story(positions_by_reference, without(range(30), 1, 5, 11, 12, 29)),
    "positions by partition": Story(positions_by_partition, without(range(30), 1, 4, 10, 11, 13, 16, 24, 29, 2, 3, 22)),
    "positions of all rows": Story(positions_of_all_rows, without(range(30), *range(10, 20))),
    "upserts": Story(upserts, (0, 3, 4, *range(6, 30), 7)),
    "two columns": Story(two_columns, without(range(30), 0, 2, 10, 13, 14, 15, 16, 28)),
    "zeros": Story(zeros, tuple(n for n in range(30) if n % 10 not in (0, 2, 5))),
    "negative zeros": Story(negative_zeros, tuple(n for n in range(30) if n % 10 not in (3, 6, 8))),
    "zeros alone": Story(zeros_alone, (1, 4), reader="none"),
    "equality by partition": Story(equality_by_partition, without(range(30), 4, 10)),
    "equality before partitioning": Story(equality_before_partitioning, (*without(range(20), 12, 18), 21)),
    "three specs": Story(three_specs, without(range(30), 1, 4, 10, 11, 14, 21, 22, 23, 0, 12, 25)),
    "void spec": Story(void_spec, without(range(20), 1, 2, 3, 12, 13, 14)),
    "promoted and renamed": Story(promoted_and_renamed, without(range(20), 1, 2, 3, 4, 5, 6, 7, 8, 11, 12, 13, 14)),
    "added column": Story(added_column, without(range(20), 12)),
    "added column alone": Story(added_column_alone, (10, 12, 14, 18)),
    # Java does not read defaults where ORC files lack a column.
    "column with a default": Story(
        column_with_a_default, (*without(range(10), 1, 4), 10, 12, 14), formats=("parquet", "avro")
    ),
    "dropped column": Story(dropped_column, without(range(15), 1, 2, 3, 4, 7), reader="spark"),
    "dropped and added again": Story(
        dropped_and_added_again,
        (*without(range(15), 1, 2, 3, 4, 7), 21, 22, 24),
        reader="spark",
        renaming="kind",
    ),
    "nested column": Story(nested_column, without(range(30), 1, 2, *range(5, 30, 4))),
    "null struct": Story(null_struct, without(range(30), *range(3, 30, 4), 6, 14, 22), reader="none"),
    "every type": Story(every_type, without(range(19 + 1), *range(len(TYPED_COLUMNS)), 18)),
    "other formats": Story(other_formats, without(range(30), 0, 1, 2, 10, 11, 12, 20, 21, 22)),
    "vectors": Story(vectors, without(range(30), 1, 2, 3, 11, 12, 29)),
    "vectors by partition": Story(vectors_by_partition, without(range(30), 1, 2, 3, 4, 10, 11, 12, 17, 29)),
    "vectors over position deletes": Story(
        vectors_over_position_deletes, without(range(30), 1, 2, 3, 4, 12, 14, 22, 23)
    ),
    "splits": Story(splits, tuple(n for n in range(3000) if n % 7 and n % 11)),
    "by sql": Story(by_sql, without(range(30), 1, 2, 5, 11, 14, 29)),
    "by sql in version 3": Story(by_sql_in_version_3, without(range(30), 1, 2, 5, 11, 14, 29)),
    "by sql to a partition": Story(by_sql_to_a_partition, tuple(n for n in range(30) if n % 4 != 1)),
    "by sql in a branch": Story(by_sql_in_a_branch, without(range(30), 1, 3)),
    "compacted": Story(compacted, without(range(30), 3, 4, 12, 22)),
}
