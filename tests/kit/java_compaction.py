"""A table before and after its compaction, as we, Iceberg Java and, where it can, PyIceberg read it."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

import msgspec
from pyiceberg.table import StaticTable
from pyspark.sql import SparkSession

from icekeep.catalog.base import Table
from icekeep.planning.scan.tasks import plan_tasks
from icekeep.spec.manifests.structs import DataFile, FileContent
from icekeep.spec.schema import LAST_UPDATED_SEQUENCE_NUMBER, ROW_ID, Schema
from icekeep.spec.snapshots import MAIN
from icekeep.spec.types import PrimitiveType, Type
from icekeep.tables.read import scan
from kit.java import IcebergJava
from kit.lake import Lake
from kit.naive_scan import live_entries
from kit.row_texts import row_texts

LINEAGE = (ROW_ID, LAST_UPDATED_SEQUENCE_NUMBER)


class Seen(msgspec.Struct, frozen=True):
    """The rows of a branch as each reader has them, which is null where it cannot or reads them wrongly.

    `ours` and `spark` (Java's Spark) have, in format version 3, the id of each row and the number of its last change beside
    its values; both lack columns that Spark has no type for.
    """

    ours: Counter[str]
    java: Counter[str] | None = None
    spark: Counter[str] | None = None
    pyiceberg: Counter[str] | None = None


class Judges(msgspec.Struct, frozen=True):
    """Those who look at one branch of a table in a lake."""

    lake: Lake
    java: IcebergJava
    spark: SparkSession
    name: str
    branch: str = MAIN

    @property
    def java_name(self) -> str:
        return f"local.db.{self.name}"

    def load(self) -> Table:
        return self.lake.catalog.load(("db", self.name))

    def look(self, readers: tuple[str, ...] = ("java", "spark")) -> Seen:
        """The rows now; Java reads those of `readers` that are named, PyIceberg whatever it can."""
        table = self.load()
        head = table.metadata.head(self.branch)
        assert head is not None
        schema = seen_schema(table)
        return Seen(
            ours=self._ours(table, schema),
            java=self.java.rows(self.java_name, head.snapshot_id) if "java" in readers else None,
            spark=self._spark(schema) if "spark" in readers else None,
            pyiceberg=self._pyiceberg(table, head.snapshot_id),
        )

    def _ours(self, table: Table, schema: Schema) -> Counter[str]:
        names = [field.name for field in schema.fields]
        rows = scan(table, self.spark, select=names, ref=self.branch).toArrow().to_pylist()
        return row_texts(schema, rows)

    def _spark(self, schema: Schema) -> Counter[str]:
        columns = ", ".join(f"`{field.name}`" for field in schema.fields)
        rows = self.java.sql(f"SELECT {columns} FROM {self.java_name} VERSION AS OF '{self.branch}'")
        return row_texts(schema, rows)

    def _pyiceberg(self, table: Table, snapshot_id: int) -> Counter[str] | None:
        """It applies no equality deletes, and position deletes in Parquet only; it reads no Avro."""
        if table.metadata.format_version > 2 or self.branch != MAIN:
            return None
        if not all(map(_is_read_by_pyiceberg, (entry.data_file for entry in live_entries(table)))):
            return None
        found = StaticTable.from_metadata(table.metadata_location).scan(snapshot_id=snapshot_id).to_arrow()
        return row_texts(table.metadata.schema, found.to_pylist())


def seen_schema(table: Table) -> Schema:
    """The columns whose types Spark has, and in format version 3 those of row lineage."""
    fields = tuple(f for f in table.metadata.schema.fields if getattr(f.type, "name", None) != "time")
    return Schema(fields=(*fields, *LINEAGE) if table.metadata.format_version >= 3 else fields)


def _is_read_by_pyiceberg(file: DataFile) -> bool:
    return file.file_format.upper() == "PARQUET" and file.content is not FileContent.EQUALITY_DELETES


def orders(schema: Schema, number: int) -> dict[str, Mapping[str, Any]]:
    """Arguments of `compact` by strategy, over columns of a schema that follow from a number; curves need two columns."""
    names = [field.name for field in schema.fields if _is_orderable(field.type) and field.name.isidentifier()]
    known: dict[str, Mapping[str, Any]] = {"binpack": {}}
    if names:
        first = names.pop(number % len(names))
        known["sort"] = _sorted(f"{first} DESC NULLS FIRST")
    if names:
        second = names[number // 7 % len(names)]
        known["sort"] = _sorted(f"{first} DESC NULLS FIRST, {second} ASC NULLS LAST")
        known["zorder"] = _sorted(f"zorder({first}, {second})")
        known["hilbert"] = _sorted(f"hilbert({first}, {second})")
    return known


def _sorted(order: str) -> Mapping[str, Any]:
    return {"strategy": "sort", "sort_order": order}


def _is_orderable(type_: Type) -> bool:
    return isinstance(type_, PrimitiveType) and type_.name in (
        "int", "long", "float", "double", "date", "time", "timestamp", "timestamptz", "string", "decimal", "binary",
    )  # fmt: skip


def deletes_that_reach(table: Table, spark: SparkSession, branch: str = MAIN) -> list[str]:
    """The delete files that a scan of a branch would apply, but for those whose positions are of a whole partition.

    A reader must look into these to see that they name no live file: they are as old as the new files, as in Java.
    """
    tasks = plan_tasks(table, spark, ref=branch).collect()
    deletes = [delete for task in tasks for delete in task["deletes"]]
    return [
        d["file_path"] for d in deletes if d["content"] != FileContent.POSITION_DELETES or d["referenced_data_file"]
    ]
