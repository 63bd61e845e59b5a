"""Files and deletes are rewritten in partitions of every type and by every transform that is known."""

import gzip
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest

from icekeep.catalog.base import Table
from icekeep.catalog.open import open_catalog
from icekeep.commit.changes.deletes import RowDelta
from icekeep.commit.retry import commit
from icekeep.errors import UnsupportedError
from icekeep.maintenance.compact.job import compact
from icekeep.maintenance.deletes.job import rewrite_position_deletes
from icekeep.spec.manifests.structs import FileContent
from icekeep.spec.schema import Schema
from icekeep.spec.transforms import known_transform
from icekeep.spec.types import INT, STRING, TIMESTAMP, DecimalType, FixedType, StructType, Type
from icekeep.spec.values import decimal_from_unscaled
from icekeep.tables.verbs import append, create_table
from kit.cases import for_each
from kit.columns import PRIMITIVES, column, schema_of, table_of
from kit.deletes import data_files, position_delete_files
from kit.lake import multiset
from kit.memory_catalog import MemoryCatalog
from kit.naive_scan import live_entries, scan_rows
from kit.runtime import no_spark

VALUES: dict[str, tuple[Any, Any]] = {
    "boolean": (False, True),
    "int": (-7, 5),
    "long": (-7, 2**40),
    "float": (-0.5, float("inf")),
    "double": (-0.5, float("nan")),
    "date": (-1, 20_000),
    "time": (1, 86_399_000_000),
    "timestamp": (-1, 1_700_000_000_000_000),
    "timestamptz": (-1, 1_700_000_000_000_000),
    "string": ("", "ä/=b c.d%20"),
    "uuid": (UUID(int=1), UUID(int=2**127)),
    "binary": (b"", b"\x00\xff/="),
}
STRUCTS = schema_of(
    column(1, "id", INT),
    column(2, "a", StructType((column(3, "same", STRING), column(4, "b", StructType((column(5, "same", INT),)))))),
    column(6, "c", StructType((column(7, "same", STRING), column(8, "at", TIMESTAMP)))),
    column(9, "x.y", STRING),
)
IN_STRUCTS = [
    {"a": {"same": "1", "b": {"same": 1}}, "c": {"same": "1", "at": 0}, "x.y": "1"},
    {"a": {"same": "2", "b": {"same": None}}, "c": {"same": None, "at": 1}, "x.y": "2"},
    {"a": {"same": None, "b": None}, "c": None, "x.y": None},
    {"a": None, "c": {"same": "1", "at": None}, "x.y": "1"},
]


def values_of(type_: Type) -> tuple[Any, Any]:
    if isinstance(type_, DecimalType):
        return decimal_from_unscaled(-150, type_.scale), decimal_from_unscaled(10**9 - 1, type_.scale)
    if isinstance(type_, FixedType):
        return b"\x00" * type_.length, b"\xff" * type_.length
    return VALUES[type_.name]


def by(*transforms: str) -> tuple[Schema, list[tuple[str, str]], list[dict[str, Any]]]:
    """For each transform a column of every type that it takes, a partition field of each, and rows of three partitions."""
    taken = [(text, type_) for text in transforms for type_ in PRIMITIVES if known_transform(text).accepts(type_)]
    named = [(f"p{number}", text, type_) for number, (text, type_) in enumerate(taken)]
    fields = (column(number, name, type_) for number, (name, _, type_) in enumerate(named, start=2))
    rows: list[dict[str, Any]] = [{name: values_of(type_)[n] for name, _, type_ in named} for n in range(2)]
    return schema_of(column(1, "id", INT), *fields), [(name, text) for name, text, _ in named], [*rows, {}]


TABLES = (
    by("identity"),
    by("bucket[4]", "truncate[2]", "year", "month", "day", "hour", "void"),
    (
        STRUCTS,
        [
            ("a.same", "identity"),
            ("a.b.same", "bucket[4]"),
            ("c.same", "identity"),
            ("c.at", "day"),
            ("x.y", "identity"),
        ],
        IN_STRUCTS,
    ),
)


def filled(schema: Schema, partition_by: Sequence[tuple[str, str]], rows: Sequence[Mapping[str, Any]]) -> Table:
    """Two data files and two position delete files in each partition."""
    catalog = MemoryCatalog()
    catalog.create_namespace(("db",))
    whole = {"write.delete.granularity": "partition"}
    table = create_table(catalog, ("db", "t"), schema, partition_by=partition_by, properties=whole)
    for start in (0, 3):
        table = append(
            table, table_of(table.schema, [{**row, "id": number} for row in rows for number in range(start, start + 3)])
        )
    for position in (0, 1):
        files = data_files(table)
        deletes = position_delete_files(table, [(file, position) for file in files])
        table = commit(table, RowDelta(added_deletes=deletes, named=frozenset(f.file_path for f in files))).table
    return table


def partitions(table: Table, content: FileContent) -> Counter[str]:
    """How many files of a kind each partition has."""
    files = (entry.data_file for entry in live_entries(table))
    return Counter(repr((file.spec_id, file.partition)) for file in files if file.content is content)


@pytest.mark.slow
@for_each("made", TABLES, ids=lambda made: made[1])
def test_each_partition_is_rewritten_to_one_file(made):
    before = filled(*made)
    kept, rows = partitions(before, FileContent.DATA), multiset(scan_rows(before))
    assert partitions(before, FileContent.POSITION_DELETES) == kept == dict.fromkeys(kept, 2)
    assert sum(rows.values()) == 6 * len(made[2]) - 4 * len(kept)

    rewrite_position_deletes(before, no_spark, options={"rewrite-all": "true"})
    table = before.refresh()
    assert partitions(table, FileContent.POSITION_DELETES) == dict.fromkeys(kept, 1)
    assert partitions(table, FileContent.DATA) == kept
    assert multiset(scan_rows(table)) == rows

    compact(table, no_spark, options={"rewrite-all": "true"})
    table = before.refresh()
    assert partitions(table, FileContent.DATA) == dict.fromkeys(kept, 1)
    assert multiset(scan_rows(table)) == rows


def test_a_filter_on_a_field_in_a_struct_chooses_its_partitions():
    table = filled(STRUCTS, [("a.b.same", "identity"), ("x.y", "identity")], IN_STRUCTS)
    for where, count in (("a.b.same = 1", 2), ("a.b.same is null and \"x.y\" = '2'", 2), ("`x.y` is null", 2)):
        result = compact(table.refresh(), no_spark, where=where, options={"rewrite-all": "true"})
        assert (result.rewritten_data_files_count, result.added_data_files_count) == (count, 1)


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """A table with two files of one partition, whose metadata calls the transform of its spec by an unknown name."""
    catalog = open_catalog("local", {"type": "hadoop", "warehouse": str(tmp_path)})
    catalog.create_namespace(("db",))
    schema = pa.schema([("id", pa.int64()), ("kind", pa.string())])
    table = create_table(catalog, "db.t", schema, partition_by=[("kind", "identity")])
    for number in range(2):
        table = append(table, pa.table({"id": [number], "kind": ["a"]}, schema=schema))
    path = Path(table.metadata_location.removeprefix("file://"))
    data = path.read_bytes()
    text = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
    path.write_bytes(text.replace(b'"identity"', b'"zorder[3]"'))
    return catalog.load("db.t")


def test_a_compaction_refuses_before_any_work(table: Table) -> None:
    before = sorted(info.location for info in table.storage.list(table.metadata.location) if "/data/" in info.location)
    with pytest.raises(UnsupportedError, match=r"partition spec 0 has a transform that is not known \(zorder\[3\]\)"):
        compact(table, no_spark, options={"rewrite-all": "true"})
    after = table.catalog.load("db.t")
    assert sorted(i.location for i in after.storage.list(table.metadata.location) if "/data/" in i.location) == before
    assert after.metadata.current_snapshot_id == table.metadata.current_snapshot_id
