"""Tables in a store beside a cluster, with work for every job, and what must be true of them after each."""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlparse

import pyarrow as pa
from pyarrow.fs import FileSystem, LocalFileSystem, SubTreeFileSystem
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.table import StaticTable

from icekeep.catalog.base import Identifier, Table
from icekeep.catalog.open import open_catalog
from icekeep.commit.changes.files import DeleteFiles
from icekeep.commit.retry import commit
from icekeep.runtime import SYSTEM
from icekeep.spec.manifests.structs import DataFile
from icekeep.tables.verbs import append, create_table
from kit.java import IcebergJava
from kit.java_rest import JavaRestServer
from kit.lake import SCHEMA, events
from kit.naive_scan import live_entries
from kit.object_store import ObjectStore
from kit.row_texts import row_texts, scanned_rows
from kit.written_deletes import data_files, delete_by_vector, delete_equal, delete_positions

ROWS_A_FILE = 20
MONTHS = 3
_DIRECTORY = "copies"


class Site(NamedTuple):
    """A store with a catalog, and how the judges read what lies there.

    Attributes:
        properties: of the catalog.
        java_catalog: its name for Iceberg Java, which has opened it.
        files: the properties of PyIceberg's reader of files.
        copies: where copies of all files are made before anybody judges: PyIceberg has no client of HDFS, our Java none of S3.
    """

    properties: Mapping[str, str]
    java: IcebergJava
    java_catalog: str
    files: Mapping[str, str]
    copies: Path


class ClusterTable:
    """A table that is partitioned by month: small files, position deletes or vectors, an equality delete, several snapshots, one
    of which has a file that the others have not.

    Attributes:
        expected: its rows.
        name: as jobs take it.
    """

    def __init__(self, site: Site, name: str, *, format_version: int = 2, commits: int = 4) -> None:
        self.site = site
        self._catalog = open_catalog("lake", site.properties)
        self._catalog.create_namespace(("db",), exists_ok=True)
        self.identifier: Identifier = ("db", name)
        self.name = f"db.{name}"
        rows = self._fill(format_version, commits)
        self.expected: Counter[str] = row_texts(self.table.metadata.schema, rows)

    @property
    def table(self) -> Table:
        """As it is now."""
        return self._catalog.load(self.identifier)

    @property
    def is_there(self) -> bool:
        return self.identifier in self._catalog.list_tables(("db",))

    def files(self) -> set[str]:
        """All that lies below its location."""
        table = self.table
        return {info.location for info in table.storage.list(f"{table.metadata.location}/")}

    def left_files(self) -> set[str]:
        """What nobody names; icekeep's own directory is not looked at."""
        there, named = {file for file in self.files() if "/.icekeep/" not in file}, self._named_files()
        assert named <= there
        return there - named

    def check(self) -> None:
        """The rows are those that there should be: read by us and by Iceberg Java; and by PyIceberg where it can read them."""
        table = self.table
        assert scanned_rows(table) == self.expected
        self._copy()
        assert self.site.java.rows(f"{self.site.java_catalog}.{self.name}") == self.expected
        if not any(entry.data_file.equality_ids for entry in live_entries(table)):
            rows = self._foreign().scan().to_arrow().to_pylist()
            assert row_texts(table.metadata.schema, rows) == self.expected

    def operations(self) -> list[str]:
        """Of the snapshots that there are, oldest first."""
        return [str((snapshot.summary or {})["operation"]) for snapshot in self.table.metadata.snapshots]

    def _foreign(self) -> StaticTable:
        return StaticTable.from_metadata(self.table.metadata_location, dict(self.site.files))

    def _named_files(self) -> set[str]:
        """All that the metadata leads to, in all of its versions, as PyIceberg reads it."""
        self._copy()
        table = self._foreign()
        named = {table.metadata_location, *(entry.metadata_file for entry in table.metadata.metadata_log)}
        for snapshot in table.snapshots():
            named.add(snapshot.manifest_list)
            for manifest in snapshot.manifests(table.io):
                named.add(manifest.manifest_path)
                entries = manifest.fetch_manifest_entry(table.io, discard_deleted=True)
                named.update(entry.data_file.file_path for entry in entries)
        return named

    def _copy(self) -> None:
        storage = self.table.storage
        for location in self.files():
            path = self.site.copies / _place_of_copy(location)
            if not path.exists():
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(storage.read(location))

    def _fill(self, format_version: int, commits: int) -> list[dict[str, Any]]:
        table = create_table(
            self._catalog,
            self.identifier,
            SCHEMA,
            partition_by=[("at", "month")],
            properties={"write.delete.granularity": "partition"},
            format_version=format_version,
        )
        table = append(table, [events(commits * MONTHS, ROWS_A_FILE, month=1)])
        gone_file = DeleteFiles(paths=frozenset(file.file_path for file in data_files(table)))
        table = commit(table, gone_file, runtime=SYSTEM).table
        rows: dict[int, dict[str, Any]] = {}
        for number in range(commits):
            new = [events(number * MONTHS + n, ROWS_A_FILE, month=1 + n) for n in range(MONTHS)]
            rows |= {row["id"]: row for part in new for row in part.to_pylist()}
            table = append(table, new)
        files = data_files(table)
        for file in files[::2]:
            table = (
                delete_by_vector(table, file.file_path, [1])
                if format_version == 3
                else delete_positions(table, [(file.file_path, 1)])
            )
            del rows[_first_id(file) + 1]
        gone = _first_id(files[-1]) + 5
        del rows[gone]
        delete_equal(table, pa.table({"id": pa.array([gone], pa.int64())}), ["id"], like=files[-1])
        return list(rows.values())


def _first_id(file: DataFile) -> int:
    assert file.lower_bounds is not None
    return int.from_bytes(file.lower_bounds[1], "little")


def _place_of_copy(location: str) -> str:
    """Below the bucket's name on an object store; clusters of HDFS have no names."""
    parsed = urlparse(location)
    return f"{parsed.netloc}{parsed.path}" if parsed.scheme == "s3" else parsed.path.lstrip("/")


class CopiedFiles(PyArrowFileIO):
    """PyIceberg's reader of files, on the copies."""

    def _initialize_fs(self, scheme: str, netloc: str | None = None) -> FileSystem:
        return SubTreeFileSystem(self.properties[_DIRECTORY], LocalFileSystem())


def site_on_s3(store: ObjectStore, database: str, java: IcebergJava, directory: Path) -> Site:
    """A new bucket, its catalog in a database; Hadoop mounts the copies for Java in the place of the objects."""
    bucket, copies = store.new_bucket(), directory / "copies"
    catalog = {"type": "sql", "uri": database, "warehouse": f"s3://{bucket}/warehouse"}
    mounted = {
        "hadoop.fs.s3.impl": "org.apache.hadoop.fs.viewfs.ViewFileSystemOverloadScheme",
        f"hadoop.fs.viewfs.mounttable.{bucket}.linkFallback": (copies / bucket).as_uri(),
    }
    java.open_catalog("lake", {**catalog, **mounted})
    return Site({**catalog, **store.properties()}, java, "lake", store.properties(), copies)


def site_on_hdfs(server: JavaRestServer, java: IcebergJava, directory: Path) -> Site:
    """What a REST server has on HDFS; PyIceberg reads the copies."""
    copies = directory / "copies"
    java.open_catalog("rest", server.properties)
    reading_copies = {"py-io-impl": f"{__name__}.CopiedFiles", _DIRECTORY: str(copies)}
    return Site(server.properties, java, "rest", reading_copies, copies)
