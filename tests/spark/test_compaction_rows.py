"""Compaction leaves every row as it was: generated tables with deletes of every kind, compacted by every strategy.

A list of rows is the model. By turns rows are appended, in Parquet, ORC or Avro; deleted by position, by vector or by their
values; and a column or a partition field is changed. The model, `scan`, and a plain reader that knows no equality deletes,
so that none may be needed any more, must agree; in format version 3 also on the lineage of each row. PyIceberg reads what
it can.
"""

import random  # noqa: TID251 - seeded: the same tables in every run
import struct
from collections import Counter
from itertools import count
from typing import Any

import pytest
from msgspec.structs import replace
from pyiceberg.table import StaticTable
from pyspark.sql import SparkSession

from icekeep.catalog.base import Table
from icekeep.commit.changes.change_properties import ChangeProperties
from icekeep.commit.retry import commit
from icekeep.errors import UsageError
from icekeep.maintenance.compaction import compact
from icekeep.spec.evolution.partition_evolution import AddPartitionField, RemovePartitionField
from icekeep.spec.evolution.schema_changes import AddColumn, DropColumn, MoveFirst, RenameColumn, UpdateColumnType
from icekeep.spec.manifests.structs import DataFile, FileContent
from icekeep.spec.metadata_columns import FILE, LAST_UPDATED_SEQUENCE_NUMBER, POS, ROW_ID
from icekeep.spec.numbers import decimal_from_unscaled
from icekeep.spec.schema import Schema
from icekeep.spec.types import DATE, DOUBLE, FLOAT, INT, LONG, STRING, decimal
from icekeep.tables.append import append
from icekeep.tables.create import create_table
from icekeep.tables.refs import create_branch
from icekeep.tables.scan import scan
from icekeep.tables.update_schema import update_schema
from icekeep.tables.update_spec import update_spec
from kit.columns import column, schema_of, table_of
from kit.lake import Lake
from kit.naive_scan import live_entries, scan_rows, spec_rows
from kit.written_deletes import data_files, delete_by_vector, delete_equal, delete_positions

TABLES = 16
STRATEGIES = ("binpack", "sort", "zorder", "hilbert")
FORMATS = ("PARQUET", "ORC", "AVRO")
SPECS: tuple[tuple[tuple[str, str], ...], ...] = (
    (),
    (("kind", "identity"),),
    (("day", "month"),),
    (("id", "bucket[2]"),),
)
START = schema_of(
    column(1, "id", LONG, required=True),
    column(2, "kind", STRING),
    column(3, "number", INT),
    column(4, "score", DOUBLE),
    column(5, "day", DATE),
    column(6, "price", decimal(9, 2)),
    column(7, "ratio", FLOAT),
)
# Few values, so that deletes hit.
VALUES: dict[str, tuple[Any, ...]] = {
    "string": (None, "", "k1", "ä"),
    "int": (None, 0, 1, -7),
    "long": (None, 0, 1, 2**40),
    "float": (None, 0.5, float("nan"), float("-inf")),
    "double": (None, 0.0, -0.0, float("nan")),
    "date": (None, 0, 18_000, -1),
    "decimal": (None, *(decimal_from_unscaled(n, 2) for n in (0, 150, -1))),
}
PROMOTIONS = {INT: LONG, FLOAT: DOUBLE, decimal(9, 2): decimal(18, 2)}
KINDS = ("append", "append", "positions", "positions", "equality", "equality", "column", "spec")
Row = dict[int, Any]


class Told:
    """A table and the rows that it should have, by the ids of their columns; all choices are those of `lot`."""

    def __init__(self, lake: Lake, seed: int) -> None:
        self.lot = random.Random(seed)
        self.version = self.lot.choice((1, 2, 2, 3, 3))
        identifier = ("db", f"t{seed}")
        self.table = create_table(
            lake.catalog, identifier, START, partition_by=self.lot.choice(SPECS), format_version=self.version
        )
        self.rows: list[Row] = []
        self.numbers = count()
        self.append()
        for kind in self.lot.choices(KINDS, k=self.lot.randint(4, 8)):
            getattr(self, kind)()
        self.append()
        self.equality()

    @property
    def schema(self) -> Schema:
        return self.table.metadata.schema

    def append(self) -> None:
        """Some rows in one or two files a partition."""
        updates = {"write.format.default": self.lot.choice(FORMATS).lower()}
        self.table = commit(self.table, ChangeProperties(updates=updates)).table
        parts = [[self._row() for _ in range(self.lot.randint(1, 5))] for _ in range(2)]
        names = {field.field_id: field.name for field in self.schema.fields}
        tables = [
            table_of(self.schema, [{names[i]: value for i, value in row.items()} for row in part]) for part in parts
        ]
        self.table = append(self.table, tables)
        self.rows += [row for part in parts for row in part]

    def _row(self) -> Row:
        row = {field.field_id: self.lot.choice(VALUES[field.type.name]) for field in self.schema.fields}
        return {**row, 1: next(self.numbers)}

    def positions(self) -> None:
        """Some rows of files of one partition; in version 3 of a file without a vector."""
        if self.version == 1 or not self.rows:
            return
        files = {file.file_path: file for file in data_files(self.table)}
        found = scan_rows(self.table, FILE, POS).to_pylist()
        live = {row[1] for row in self.rows}
        places = [(row["_file"], row["_pos"], row["id"]) for row in found if row["id"] in live]
        path, _, _ = self.lot.choice(places)
        if self.version == 3:
            if path in {entry.data_file.referenced_data_file for entry in live_entries(self.table)}:
                return
            near = [place for place in places if place[0] == path]
        else:
            near = [place for place in places if _place(files[place[0]]) == _place(files[path])]
        chosen = sorted(self.lot.sample(near, min(len(near), self.lot.randint(1, 3))))
        if self.version == 3:
            self.table = delete_by_vector(self.table, path, [position for _, position, _ in chosen])
        else:
            pairs = [(file, position) for file, position, _ in chosen]
            self.table = delete_positions(self.table, pairs, self.lot.choice(FORMATS))
        self._forget({id_ for _, _, id_ in chosen})

    def equality(self) -> None:
        """Rows that equal some row in one or two columns, in one partition, or in all by an unpartitioned spec."""
        if self.version == 1 or not self.rows:
            return
        columns = self.lot.sample(self.schema.fields, self.lot.randint(1, 2))
        keys = Schema(fields=tuple(field for field in self.schema.fields if field in columns))
        chosen = self.lot.choices(self.rows, k=2)
        values = [{field.name: row.get(field.field_id) for field in keys.fields} for row in chosen]
        like = self.lot.choice(data_files(self.table))
        specs = self.table.metadata.specs_by_id
        unpartitioned = [spec_id for spec_id, spec in specs.items() if spec.is_unpartitioned]
        if unpartitioned and self.lot.random() < 0.5:
            like = replace(like, spec_id=unpartitioned[0], partition=(None,) * len(specs[unpartitioned[0]].fields))
        reached = self._ids_reached(like)
        gone = {_bits([row.get(field.field_id) for field in keys.fields]) for row in chosen}
        self.table = delete_equal(
            self.table,
            table_of(keys, values),
            [field.name for field in keys.fields],
            like=like,
            file_format=self.lot.choice(FORMATS),
        )
        self._forget(
            {
                row[1]
                for row in self.rows
                if row[1] in reached and _bits([row.get(field.field_id) for field in keys.fields]) in gone
            }
        )

    def _ids_reached(self, like: DataFile) -> set[int]:
        """Ids of the rows in files that an equality delete of a spec and partition is for."""
        files = {file.file_path: file for file in data_files(self.table)}
        is_global = self.table.metadata.specs_by_id[like.spec_id].is_unpartitioned
        found = scan_rows(self.table, FILE).to_pylist()
        return {row["id"] for row in found if is_global or _place(files[row["_file"]]) == _place(like)}

    def column(self) -> None:
        """One change, where the rules allow it; the rows there are have a new column's default, or null."""
        name = self.lot.choice([field.name for field in self.schema.fields if field.name != "id"])
        field = self.schema.field(name)
        new = f"new{next(self.numbers)}"
        default = "old" if self.version == 3 and self.lot.random() < 0.5 else None
        change = self.lot.choice(
            [
                AddColumn(new, STRING, default=default),
                DropColumn(name),
                RenameColumn(name, new),
                MoveFirst(name),
                UpdateColumnType(name, PROMOTIONS.get(field.type, field.type)),  # type: ignore[call-overload]
            ]
        )
        try:
            self.table = update_schema(self.table, [change])
        except UsageError:
            return
        if isinstance(change, AddColumn) and default is not None:
            added = self.schema.field(new).field_id
            for row in self.rows:
                row[added] = default

    def spec(self) -> None:
        """Add a partition field, or remove one, where the rules allow it."""
        fields = [field.name for field in self.table.metadata.spec.fields]
        name = self.lot.choice([field.name for field in self.schema.fields])
        transform = self.lot.choice(("identity", "bucket[2]", "truncate[1]", "day"))
        change = (
            RemovePartitionField(self.lot.choice(fields)) if len(fields) > 1 else AddPartitionField(name, transform)
        )
        try:
            self.table = update_spec(self.table, [change])
        except UsageError:
            return

    def _forget(self, ids: set[int]) -> None:
        self.rows = [row for row in self.rows if row[1] not in ids]

    def expected(self) -> Counter[Any]:
        """The rows in the columns of today."""
        return Counter(_bits([row.get(field.field_id) for field in self.schema.fields]) for row in self.rows)


def _place(file: DataFile) -> tuple[int, Any]:
    return file.spec_id, _bits(file.partition)


def _bits(values: Any) -> tuple[Any, ...]:
    """Values that are equal where equality deletes say so: NaN equals NaN, and -0.0 is not 0.0."""
    return tuple(
        ("float", b"nan" if value != value else struct.pack(">d", value)) if isinstance(value, float) else value
        for value in values
    )


def by_our_scan(table: Table, spark: SparkSession, branch: str) -> Counter[Any]:
    rows = scan(table, spark, ref=branch).toArrow()
    return _rows(spec_rows(rows, table.metadata.schema))


def _rows(rows: list[dict[str, Any]]) -> Counter[Any]:
    return Counter(_bits(row.values()) for row in rows)


def lineage(table: Table, ids: set[int]) -> dict[int, tuple[int, int]]:
    """Of each of these rows its id in the table, and the number of its last change."""
    rows = scan_rows(table, ROW_ID, LAST_UPDATED_SEQUENCE_NUMBER).to_pylist()
    return {row["id"]: (row["_row_id"], row["_last_updated_sequence_number"]) for row in rows if row["id"] in ids}


def arguments(told: Told, strategy: str) -> dict[str, Any]:
    """Of `compact`: a sort order over two columns, where the strategy has one."""
    names = [field.name for field in told.schema.fields]
    first, second = told.lot.sample(names, 2)
    order = {
        "binpack": None,
        "sort": f"{first} DESC NULLS FIRST, {second}",
        "zorder": f"zorder({first}, {second})",
        "hilbert": f"hilbert({first}, {second})",
    }[strategy]
    return {} if order is None else {"strategy": "sort", "sort_order": order}


@pytest.mark.parametrize("seed", range(TABLES))
def test_no_row_is_lost_and_none_comes_back(lake: Lake, spark_session: SparkSession, seed: int) -> None:
    """nimtable/iceberg-compaction PR #163, apache/iceberg #10312; and #6669: the second run does nothing."""
    told, strategy = Told(lake, seed), STRATEGIES[seed % len(STRATEGIES)]
    branch = told.lot.choice(("main", "main", "audit"))
    table = told.table if branch == "main" else create_branch(told.table, branch)
    ids = {row[1] for row in told.rows}
    assert by_our_scan(table, spark_session, branch) == told.expected()
    before = lineage(table, ids) if told.version == 3 else {}
    options = {
        "rewrite-all": "true",
        "remove-dangling-deletes": told.lot.choice(("true", "false")),
        "partial-progress.enabled": told.lot.choice(("true", "false")),
    }
    if told.lot.random() < 0.3:
        options["output-spec-id"] = str(told.lot.choice(sorted(table.metadata.specs_by_id)))
    asked = {**arguments(told, strategy), "branch": branch}
    result = compact(table, spark_session, options=options, **asked)
    assert result.rewritten_data_files_count == len(data_files(table))
    after = lake.catalog.load(table.identifier)
    assert by_our_scan(after, spark_session, branch) == told.expected()
    if branch != "main":
        assert after.metadata.current_snapshot_id == table.metadata.current_snapshot_id
        return
    assert _rows(spec_rows(scan_rows(after), after.metadata.schema)) == told.expected()
    if told.version == 3:
        assert lineage(after, ids) == before
    else:
        check_by_pyiceberg(after, told)
    again = {**options, "rewrite-all": "false", "delete-file-threshold": "1"}
    assert compact(after, spark_session, options=again, **asked).rewritten_data_files_count == 0


def check_by_pyiceberg(table: Table, told: Told) -> None:
    """It reads Parquet, and refuses equality deletes even where they reach nothing."""
    files = [entry.data_file for entry in live_entries(table)]
    if all(f.file_format.upper() == "PARQUET" and f.content is not FileContent.EQUALITY_DELETES for f in files):
        rows = StaticTable.from_metadata(table.metadata_location).scan().to_arrow()
        assert Counter(rows.column("id").to_pylist()) == Counter(row[1] for row in told.rows)


def test_the_tables_above_have_what_they_are_to_have(lake: Lake) -> None:
    """Versions, delete files of every kind, formats, specs, and rows that are deleted and left."""
    told = [Told(lake, seed) for seed in range(TABLES)]
    files = [entry.data_file for one in told for entry in live_entries(one.table)]
    assert {one.version for one in told} == {1, 2, 3}
    assert {file.content for file in files} == set(FileContent)
    assert {file.file_format.upper() for file in files} == {*FORMATS, "PUFFIN"}
    assert sum(len(one.table.metadata.specs_by_id) > 1 for one in told) >= 4
    assert sum(len(one.table.metadata.schemas) > 1 for one in told) >= 4
    assert sum(len(one.rows) for one in told) > 150
    assert sum(next(one.numbers) - len(one.rows) for one in told) > 40
