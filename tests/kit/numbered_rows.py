"""A small table whose rows are deleted by value: rows 0 to 9, each with its number as id, so that a test can say what is left.

Generated tables with a model are those of `row_histories`.
"""

from collections.abc import Callable
from typing import Any

from icekeep.catalog.base import Table
from icekeep.commit.manifests import ManifestReader
from icekeep.events import Event, StepStarted, Warned
from icekeep.maintenance.deletes import equality as equality_deletes
from icekeep.spec.manifests.structs import DataFile, FileContent
from icekeep.spec.schema import FILE, POS
from icekeep.spec.types import LONG, STRING
from icekeep.tables.read import read_table
from icekeep.tables.verbs import append, create_table
from kit.columns import column, schema_of, table_of
from kit.deletes import delete_equal
from kit.lake import Lake
from kit.naive_scan import live_entries, scan_rows

SCHEMA = schema_of(column(1, "id", LONG, required=True), column(2, "kind", STRING))
KEYS = schema_of(column(1, "id", LONG, required=True))


def made(lake: Lake, *fields: tuple[str, str], version: int = 2, name: str = "t", **properties: str) -> Table:
    """Rows 0 to 9 of kinds `a` and `b`, committed in two times; `__` in the names of properties stands for `.`."""
    named = {key.replace("__", ".").replace("_", "-"): value for key, value in properties.items()}
    table = create_table(
        lake.catalog, ("db", name), SCHEMA, partition_by=fields, format_version=version, properties=named
    )
    return added(added(table, range(5)), range(5, 10))


def added(table: Table, ids: Any, **where: Any) -> Table:
    return append(table, table_of(SCHEMA, [{"id": n, "kind": "ab"[n % 2]} for n in ids]), **where)


def gone(table: Table, *ids: int, like: DataFile | None = None) -> Table:
    return delete_equal(table, table_of(KEYS, [{"id": n} for n in ids]), ["id"], like=like)


def ids_of(table: Table, branch: str = "main") -> list[int]:
    return sorted(read_table(table, ref=branch).column("id").to_pylist())


def deletes_of(table: Table, content: FileContent = FileContent.EQUALITY_DELETES) -> list[DataFile]:
    files = [entry.data_file for entry in live_entries(table)]
    return sorted((f for f in files if f.content is content), key=lambda f: (f.file_path, f.content_offset or 0))


def places(table: Table) -> list[dict[str, Any]]:
    return scan_rows(table, FILE, POS).to_pylist()


def every_file(table: Table) -> list[DataFile]:
    """The data and delete files of every snapshot."""
    reader = ManifestReader(table.storage)
    return [
        entry.data_file
        for snapshot in table.metadata.snapshots
        for manifest in reader.manifests(snapshot)
        for entry in reader.entries(manifest, table.metadata)
    ]


def on_disk(lake: Lake, table: Table) -> set[str]:
    """The names of data and delete files, whether or not a snapshot has them."""
    directory = lake.directory / "warehouse" / "db" / table.identifier[-1] / "data"
    return {path.name for path in directory.rglob("*") if path.suffix in (".parquet", ".puffin", ".orc", ".avro")}


class Intruder:
    """A listener who changes the table when a round begins, once for each of some changes."""

    def __init__(self, table: Table, *changes: Callable[[Table], object]) -> None:
        self.table, self.changes, self.warnings = table, list(changes), list[str]()

    def on(self, event: Event) -> None:
        if isinstance(event, Warned):
            self.warnings.append(event.message)
        if isinstance(event, StepStarted) and event.step == equality_deletes.STEP and self.changes:
            self.changes.pop(0)(self.table.catalog.load(self.table.identifier))
