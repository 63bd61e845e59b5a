"""Small real tables on the local disk: a catalog in a directory, rows that are easy to tell apart, readers to compare by."""

import datetime
import decimal
import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog as ForeignSqlCatalog
from pyiceberg.table import StaticTable

from icekeep.catalog.base import Catalog, Table
from icekeep.catalog.open import open_catalog
from icekeep.tables.verbs import append, create_table

EVENTS = ("db", "events")
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("kind", pa.string()),
        pa.field("at", pa.timestamp("us", "UTC")),
        pa.field("amount", pa.decimal128(9, 2)),
        pa.field("tags", pa.list_(pa.string())),
    ]
)


class Lake:
    """One catalog in one directory, seen by us and by PyIceberg."""

    def __init__(self, directory: Path, kind: str = "sql") -> None:
        self.directory = directory
        self.properties = {"type": kind, "warehouse": (directory / "warehouse").as_uri()}
        if kind == "sql":
            self.properties["uri"] = f"sqlite:///{directory}/catalog.db"
        self.catalog: Catalog = open_catalog("local", self.properties)
        self.catalog.create_namespace(("db",), exists_ok=True)

    def create(
        self,
        partition_by: Iterable[tuple[str, str]] = (("at", "month"),),
        *,
        format_version: int = 2,
        **properties: str,
    ) -> Table:
        """An empty table of `SCHEMA`; `__` in the names of properties stands for `.`, `_` for `-`."""
        named = {name.replace("__", ".").replace("_", "-"): value for name, value in properties.items()}
        return create_table(
            self.catalog, EVENTS, SCHEMA, partition_by=partition_by, properties=named, format_version=format_version
        )

    def filled(
        self, commits: int = 6, files: int = 3, rows: int = 20, *, format_version: int = 2, **properties: str
    ) -> Table:
        """A table of `commits` snapshots with `files` files each, over three months in turn."""
        table = self.create(format_version=format_version, **properties)
        for number in range(commits):
            table = append(table, [events(number * files + n, rows, month=1 + number % 3) for n in range(files)])
        return table

    def location(self) -> str:
        return self.catalog.default_location(EVENTS)

    def load(self) -> Table:
        return self.catalog.load(EVENTS)

    def foreign(self) -> Any:
        """The table as PyIceberg sees it."""
        if self.properties["type"] == "sql":
            return self.foreign_catalog().load_table(EVENTS)
        return StaticTable.from_metadata(self.load().metadata_location)

    def foreign_catalog(self) -> ForeignSqlCatalog:
        """PyIceberg's catalog on the same database."""
        return ForeignSqlCatalog("local", uri=self.properties["uri"], warehouse=self.properties["warehouse"])

    def edit_metadata(self, **keys: Any) -> None:
        """Change the current metadata file by hand, as only another writer could; `_` in the names of keys stands for `-`."""
        path = Path(urlparse(self.load().metadata_location).path)
        document = {**json.loads(path.read_bytes()), **{name.replace("_", "-"): value for name, value in keys.items()}}
        path.write_text(json.dumps(document))

    def rows(self) -> Counter[str]:
        return multiset(self.foreign().scan().to_arrow())

    def files_on_disk(self) -> set[Path]:
        return {path for path in (self.directory / "warehouse").rglob("*") if path.is_file()}

    def content_on_disk(self) -> set[Path]:
        """The same but for table metadata, of which every commit makes a file: of a tag that is made and dropped too."""
        return {path for path in self.files_on_disk() if not path.name.endswith(".metadata.json")}


def events(number: int, rows: int = 20, month: int = 1) -> pa.Table:
    """Rows of one file: ids that no other number has, all in one month of 2013, with nulls among them."""
    start = datetime.datetime(2013, month, 1, tzinfo=datetime.UTC)
    return pa.table(
        {
            "id": [number * 1_000_000 + n for n in range(rows)],
            "kind": [None if n % 7 == 3 else f"kind-{n % 5}" for n in range(rows)],
            "at": [start + datetime.timedelta(hours=n % 600) for n in range(rows)],
            "amount": [None if n % 11 == 5 else decimal.Decimal(n) for n in range(rows)],
            "tags": [None if n % 4 == 1 else [f"t{n % 3}", None][: n % 3] for n in range(rows)],
        },
        schema=SCHEMA,
    )


def multiset(table: pa.Table) -> Counter[str]:
    """Rows as text with their numbers; equal for tables that hold the same rows in any order."""
    return Counter(repr(row) for row in table.select(sorted(table.column_names)).to_pylist())
