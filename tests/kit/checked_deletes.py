"""Small tables whose delete files are checked, and delete files with rows that no writer would write."""

from collections.abc import Iterable, Sequence
from itertools import count
from typing import Any

from icekeep.catalog.base import Table
from icekeep.commit.retry import commit
from icekeep.formats.options import write_options
from icekeep.formats.writer import DataFileWriter
from icekeep.maintenance.check.deletes import check_delete_content
from icekeep.maintenance.check.faults import Fault, Tally
from icekeep.planning.spark.session import SparkSource
from icekeep.spec.manifests.structs import DataFile
from icekeep.spec.properties import data_directory
from icekeep.spec.schema import DELETE_FILE_PATH, DELETE_FILE_POS, Schema
from icekeep.spec.types import LONG, STRING
from icekeep.tables.verbs import append, create_table
from kit.checked_entries import AddBlindly, all_faults, listed, subject_of
from kit.choices import Choices
from kit.columns import column, schema_of, table_of
from kit.damager import Damager
from kit.memory_catalog import MemoryCatalog
from kit.no_spark import no_spark
from kit.storage import MemoryStorage

NAME = ("db", "t")
SCHEMA = schema_of(column(1, "id", LONG, required=True), column(2, "kind", STRING))
POSITIONS = Schema(fields=(DELETE_FILE_PATH, DELETE_FILE_POS))

_NUMBERS = count()


def made(version: int, *ids: Sequence[int], **properties: str) -> Table:
    """A table in memory with a data file for each range of ids; `__` in the names of properties stands for `.`."""
    catalog = MemoryCatalog(MemoryStorage())
    catalog.create_namespace(("db",))
    named = {key.replace("__", "."): value for key, value in properties.items()}
    table = create_table(catalog, NAME, SCHEMA, format_version=version, properties=named)
    for some in ids or (range(5), range(5, 10)):
        table = append(table, rows(some))
    return table


def rows(ids: Iterable[int]) -> Any:
    return table_of(SCHEMA, [{"id": n, "kind": "ab"[n % 2]} for n in ids])


def damager(table: Table) -> Damager:
    return Damager(table.catalog, NAME, Choices(1))


def checked(table: Table, spark: SparkSource = no_spark) -> tuple[list[Fault], Tally]:
    """The faults of what delete files hold, and the tally."""
    table = table.catalog.load(NAME)
    subject = subject_of(table, spark)
    check_delete_content(subject, listed(table, subject.snapshots))
    return all_faults(subject.tally), subject.tally


def one_fault(table: Table) -> Fault:
    """The only fault; nothing was left unchecked but row ids of rows that cannot be read by what is wrong."""
    [fault], tally = checked(table)
    assert [gap for gap in tally.gaps() if not gap.what.startswith("row ids of")] == []
    return fault


def written(table: Table, schema: Schema, values: Sequence[dict[str, Any]], file_format: str = "PARQUET") -> DataFile:
    """A file with rows in the order in which they are given."""
    location = f"{data_directory(table.metadata)}/by-hand-{next(_NUMBERS)}.{file_format.lower()}"
    options = write_options({"write.format.default": file_format.lower()}, schema)
    with DataFileWriter(table.storage, schema, options, lambda: location, spec_id=0) as writer:
        writer.write(table_of(schema, list(values)))
        (file,) = writer.close()
    return file


def with_files(table: Table, *data: DataFile, deletes: Sequence[DataFile] = ()) -> Table:
    """The table after a commit that asks nothing of the files."""
    return commit(table, AddBlindly(data=data, deletes=tuple(deletes)), runtime=table.runtime).table
