"""Tables whose rows Iceberg Java deletes, by every kind of delete file; and their rows as Java reads them.

Iceberg's own writers make the files (`java_judge/RowDeletes.java`). `java_delete_stories` has the tables.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from icekeep.spec.partitioning import PartitionSpec
from icekeep.spec.schema import Schema, schema_from_json
from kit.java import IcebergJava
from kit.java_values import to_wire
from kit.row_texts import row_texts

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
        """The metadata's JSON, now."""
        return self.java.metadata(self.name)

    @property
    def schema(self) -> Schema:
        """The current schema."""
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
        """`ALTER TABLE`."""
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
