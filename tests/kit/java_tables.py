"""Generated tables for Iceberg Java and us, and what each of us, and where it can PyIceberg, says that a table consists of."""

import json
import struct
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
from hypothesis import strategies as st
from pyiceberg.table import StaticTable
from pyspark.sql import SparkSession

from icekeep.catalog.base import Table
from icekeep.commit.manifests import ManifestReader
from icekeep.planning.scan.tasks import plan_tasks
from icekeep.spec.manifests.structs import DataFile, FileContent, ManifestFile
from icekeep.spec.partitioning import partition_path, spec_to_json
from icekeep.spec.schema import LAST_UPDATED_SEQUENCE_NUMBER, ROW_ID, Schema, schema_to_json
from icekeep.spec.snapshots import MAIN
from icekeep.spec.transforms import Transform, parse_transform
from icekeep.spec.types import (
    DATE,
    LONG,
    TIMESTAMP,
    TIMESTAMPTZ,
    DecimalType,
    ListType,
    MapType,
    NestedField,
    PrimitiveType,
    StructType,
    Type,
    decimal,
    fixed,
)
from icekeep.spec.values import unscaled, value_from_bytes
from icekeep.tables.read import scan
from kit.columns import PRIMITIVES, field_values
from kit.java import IcebergJava
from kit.lake import Lake
from kit.naive_scan import live_entries
from kit.rows import row_texts, to_wire

TRANSFORMS = (
    "identity",
    "bucket[3]",
    "bucket[1000]",
    "truncate[1]",
    "truncate[7]",
    "year",
    "month",
    "day",
    "hour",
    "void",
)
NAMES = ("id", "a b", "é", "x-y", "1st", "Ünï/cøde", "quote'd", "k=v", "UPPER", "c%2F", "_", "point")
_PRIMITIVES = (*PRIMITIVES, decimal(4, 4), decimal(20, 0), fixed(1), LONG, DATE, TIMESTAMP, TIMESTAMPTZ)
_MAPS = ("column_sizes", "value_counts", "null_value_counts", "nan_value_counts", "lower_bounds", "upper_bounds")


class GeneratedTable(msgspec.Struct, frozen=True):
    """A schema with ids from 1, partition fields as `create_table` takes them, and rows as `kit.columns` has them."""

    schema: Schema
    partition_by: tuple[tuple[str, str, str], ...]
    batches: tuple[tuple[dict[str, Any], ...], ...]

    @property
    def rows(self) -> list[dict[str, Any]]:
        return [row for batch in self.batches for row in batch]

    def wire_rows(self) -> list[Any]:
        return [to_wire(self.schema.as_struct(), row) for row in self.rows]


@st.composite
def generated_tables(draw: st.DrawFn, file_format: str = "parquet") -> GeneratedTable:
    """Two to six columns of any type of format version 2, up to three partition fields, up to three batches of rows.

    What the file format cannot hold for both of us is left out.
    """
    names = draw(st.lists(st.sampled_from(NAMES), min_size=2, max_size=6, unique=True))
    # What ORC does to times before 1970 has a test of its own.
    plain = [type_ for type_ in _PRIMITIVES if file_format != "orc" or type_ not in (TIMESTAMP, TIMESTAMPTZ)]
    ids = iter(range(1, 1000))
    fields = tuple(
        NestedField(field_id=next(ids), name=name, type=draw(_types(ids, plain)), required=draw(st.integers(0, 3)) == 0)
        for name in names
    )
    schema = Schema(fields=fields)
    row = st.fixed_dictionaries({field.name: field_values(field) for field in fields})
    batches = draw(st.lists(st.lists(row, min_size=1, max_size=12), min_size=1, max_size=3))
    partition_by = draw(_partition_fields(fields))
    if file_format != "avro":
        # Where all fields of a struct come from the partition Java's ORC reader fails, and that of Parquet knows no null one.
        known = {name for name, text, _ in partition_by if text == "identity"}
        whole = {f"{f.name}." for f in fields if isinstance(f.type, StructType) and _paths(f) <= known}
        partition_by = [
            field for field in partition_by if field[1] != "identity" or not field[0].startswith(tuple(whole))
        ]
    rows = [row for batch in batches for row in batch]
    partition_by = [field for field in partition_by if not _goes_out_of_range(schema, field, rows)]
    return GeneratedTable(schema, tuple(partition_by), tuple(tuple(batch) for batch in batches))


@st.composite
def _types(draw: st.DrawFn, ids: Iterator[int], plain: Sequence[PrimitiveType]) -> Type:
    primitive = st.sampled_from(plain)
    match draw(st.integers(0, 9)):
        case 0:
            return ListType(element_id=next(ids), element=draw(primitive), element_required=draw(st.booleans()))
        case 1:
            children = draw(st.lists(primitive, min_size=1, max_size=3))
            return StructType(
                tuple(NestedField(field_id=next(ids), name=f"f{n}", type=t) for n, t in enumerate(children))
            )
        case 2:
            # Floats as keys would be one key for Java and two for Python where they are 0.0 and -0.0.
            key = draw(primitive.filter(lambda type_: type_.name not in ("float", "double")))
            return MapType(
                key_id=next(ids), key=key, value_id=next(ids), value=draw(primitive), value_required=draw(st.booleans())
            )
    return draw(primitive)


@st.composite
def _partition_fields(draw: st.DrawFn, fields: Sequence[NestedField]) -> list[tuple[str, str, str]]:
    sources = [(field.name, field.type) for field in fields] + [
        (f"{field.name}.{child.name}", child.type)
        for field in fields
        if isinstance(field.type, StructType)
        for child in field.type.fields
    ]
    usable = [
        (name, text)
        for name, type_ in sources
        for text in TRANSFORMS
        if isinstance(type_, PrimitiveType)
        and parse_transform(text).accepts(type_)
        # Java's manifests with such partitions are no Avro: a test of its own shows it.
        and not (text == "identity" and type_.name == "fixed")
    ]
    chosen = draw(st.lists(st.sampled_from(usable), max_size=3, unique_by=_kind)) if usable else []
    return [(name, text, f"p{n}/{text[:2]} é") for n, (name, text) in enumerate(chosen)]


def _paths(field: NestedField) -> set[str]:
    """The full names of a struct's fields."""
    assert isinstance(field.type, StructType)
    return {f"{field.name}.{child.name}" for child in field.type.fields}


def _goes_out_of_range(schema: Schema, field: tuple[str, str, str], rows: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a value is truncated to less than its type holds: we refuse that, Java's numbers wrap."""
    name, text, _ = field
    type_ = schema.field(name).type
    lowest = {"int": -(2**31), "long": -(2**63)}.get(type_.name)
    if isinstance(type_, DecimalType):
        lowest = -(10**type_.precision) + 1
    if lowest is None or not text.startswith("truncate"):
        return False
    values = [_at(row, name.split(".")) for row in rows]
    numbers = [unscaled(v, type_.scale) if isinstance(type_, DecimalType) else v for v in values if v is not None]
    return any(number - number % parse_transform(text).width < lowest for number in numbers)


def _kind(field: tuple[str, str]) -> tuple[str, str]:
    # Two time transforms, or two of one kind, on one column are redundant.
    name, text = field
    return name, "time" if text in ("year", "month", "day", "hour") else text.partition("[")[0]


def our_entries(table: Table) -> Counter[str]:
    """All entries of a table's current snapshot, as text."""
    reader = ManifestReader(table.storage)
    assert table.metadata.current_snapshot is not None
    return Counter(
        repr(
            (
                int(entry.status),
                entry.snapshot_id,
                entry.sequence_number,
                entry.file_sequence_number,
                _our_file(entry.data_file, table),
            )
        )
        for manifest in reader.manifests(table.metadata.current_snapshot)
        for entry in reader.entries(manifest, table.metadata)
    )


def java_entries(java: IcebergJava, name: str) -> Counter[str]:
    """All entries of a table's current snapshot as Java's metadata table has them, as text."""
    return Counter(
        repr(
            (
                entry["status"],
                entry["snapshot_id"],
                entry["sequence_number"],
                entry["file_sequence_number"],
                _java_file(entry["data_file"]),
            )
        )
        for entry in java.inspect(name, "entries")
    )


def _our_file(file: DataFile, table: Table) -> dict[str, Any]:
    fields = table.metadata.partition_type(file.spec_id).fields
    partition = {field.name: value for field, value in zip(fields, file.partition, strict=True) if value is not None}
    return {
        **{name: getattr(file, name) for name in _PLAIN},
        "content": int(file.content),
        "file_format": file.file_format.upper(),
        "partition": partition,
        **{name: _map(getattr(file, name)) for name in _MAPS},
    }


def _java_file(file: Mapping[str, Any]) -> dict[str, Any]:
    partition = file.get("partition") or {}
    return {
        **{name: file.get(name) for name in _PLAIN},
        "content": file["content"],
        "file_format": file["file_format"],
        "partition": {name: value for name, value in partition.items() if value is not None},
        **{name: _map(file[name]) for name in _MAPS},
    }


_PLAIN = (
    "file_path", "spec_id", "record_count", "file_size_in_bytes", "key_metadata", "split_offsets", "equality_ids",
    "sort_order_id", "referenced_data_file", "content_offset", "content_size_in_bytes", "first_row_id",
)  # fmt: skip


def _map(value: Any) -> dict[int, Any] | None:
    return None if value is None else dict(sorted(dict(value).items()))


def our_manifests(table: Table) -> list[dict[str, Any]]:
    """The manifest list of the current snapshot, as Java's metadata table `manifests` tells it."""
    assert table.metadata.current_snapshot is not None
    return sorted(
        (
            {
                "content": int(manifest.content),
                "path": manifest.manifest_path,
                "length": manifest.manifest_length,
                "partition_spec_id": manifest.partition_spec_id,
                "added_snapshot_id": manifest.added_snapshot_id,
                **_counts(manifest),
                "partition_summaries": tuple(
                    {
                        "contains_null": summary.contains_null,
                        "contains_nan": summary.contains_nan,
                        "lower_bound": _bound(source_type, transform, summary.lower_bound),
                        "upper_bound": _bound(source_type, transform, summary.upper_bound),
                    }
                    for (source_type, transform), summary in zip(
                        _sources(table, manifest.partition_spec_id), manifest.partitions or (), strict=True
                    )
                ),
            }
            for manifest in ManifestReader(table.storage).manifests(table.metadata.current_snapshot)
        ),
        key=lambda manifest: str(manifest["path"]),
    )


def _counts(manifest: ManifestFile) -> dict[str, int | None]:
    """The counts of files, which Java has in columns of their own for data files and delete files."""
    counts = {
        "added": manifest.added_files_count,
        "existing": manifest.existing_files_count,
        "deleted": manifest.deleted_files_count,
    }
    return {
        f"{status}_{kind}_files_count": number if manifest.content.name == content else 0
        for status, number in counts.items()
        for kind, content in (("data", "DATA"), ("delete", "DELETES"))
    }


def java_manifests(java: IcebergJava, name: str, table: Table) -> list[dict[str, Any]]:
    """The manifest list of the current snapshot as Java has it; `table` tells the types of bounds."""
    rows = [{k: v for k, v in row.items() if k != "key_metadata"} for row in java.inspect(name, "manifests")]
    for row in rows:
        sources = _sources(table, row["partition_spec_id"])
        row["partition_summaries"] = tuple(
            {
                **summary,
                "lower_bound": comparable_text(transform.result_type(source_type), summary["lower_bound"]),
                "upper_bound": comparable_text(transform.result_type(source_type), summary["upper_bound"]),
            }
            for (source_type, transform), summary in zip(sources, row["partition_summaries"], strict=True)
        )
    return sorted(rows, key=lambda manifest: str(manifest["path"]))


def comparable_text(type_: Type, text: str) -> str:
    """The text of a value, but for floats what it says: before Java 19 some have more digits than they need.

    We write what newer Javas do (JDK-4511638).
    """
    if text == "null" or type_.name not in ("float", "double"):
        return text
    return repr(struct.unpack("<f", struct.pack("<f", float(text)))[0] if type_.name == "float" else float(text))


def _sources(table: Table, spec_id: int) -> list[tuple[Type, Transform]]:
    columns = table.metadata.schema.fields_by_id
    return [(columns[field.source_id].type, field.transform) for field in table.metadata.specs_by_id[spec_id].fields]


def _bound(source_type: Type, transform: Transform, bound: bytes | None) -> str:
    result_type = transform.result_type(source_type)
    value = None if bound is None else value_from_bytes(result_type, bound)
    return comparable_text(result_type, transform.to_text(source_type, value))


def check_partitions(java: IcebergJava, name: str, table: Table, rows: Sequence[Mapping[str, Any]]) -> None:
    """The files' partition tuples are those that Java makes of the rows, and each lies where Java would put it."""
    metadata = table.metadata
    fields = metadata.partition_type(metadata.default_spec_id).fields
    if not fields:
        return
    files = java.inspect(name, "files")
    tuples = [[to_wire(field.type, file["partition"][field.name]) for field in fields] for file in files]
    held: Counter[str] = Counter()
    for file, values in zip(files, tuples, strict=True):
        held[json.dumps(values)] += file["record_count"]
    assert held == _partitions_of(java, table, rows)
    request = {"schema": schema_to_json(metadata.schema), "spec": spec_to_json(metadata.spec)}
    theirs = java.ask_each("Judge.partitionPath", [{**request, "partition": values} for values in tuples])
    for file, their_path in zip(files, theirs, strict=True):
        values = [file["partition"][field.name] for field in fields]
        our_path = partition_path(metadata.spec, metadata.schema, values)
        assert _directories(fields, our_path) == _directories(fields, their_path)
        assert file["file_path"].partition("/data/")[2].rpartition("/")[0] in (our_path, their_path)


def _partitions_of(java: IcebergJava, table: Table, rows: Sequence[Mapping[str, Any]]) -> Counter[str]:
    """The partition tuples that Java makes of rows."""
    schema, columns = table.metadata.schema, []
    for field in table.metadata.spec.fields:
        names, type_ = schema.names_by_id[field.source_id].split("."), schema.fields_by_id[field.source_id].type
        requests = [
            {"type": str(type_), "transform": str(field.transform), "value": to_wire(type_, _at(row, names))}
            for row in rows
        ]
        columns.append([answer["value"] for answer in java.ask_each("Judge.transform", requests)])
    return Counter(json.dumps(list(values)) for values in zip(*columns, strict=True))


def _at(row: Any, names: Sequence[str]) -> Any:
    for name in names:
        row = None if row is None else row[name]
    return row


def _directories(fields: Sequence[NestedField], path: str) -> list[tuple[str, str]]:
    """The parts of a path; names hold no `=`, since it is escaped."""
    parts = [directory.partition("=") for directory in path.split("/")]
    return [(name, comparable_text(field.type, value)) for field, (name, _, value) in zip(fields, parts, strict=True)]


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
