"""Tables in a store beside a cluster, every job with work for it, and what must be true of the tables after each."""

from collections import Counter
from collections.abc import Callable, Mapping
from datetime import timedelta
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
from kit.deletes import data_files, delete_by_vector, delete_equal, delete_positions
from kit.java import IcebergJava, JavaRestServer
from kit.lake import SCHEMA, events
from kit.naive_scan import live_entries
from kit.object_store import ObjectStore
from kit.rows import row_texts, scanned_rows
from kit.shell import Finished

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


OLD = timedelta(days=4)
"""Files of this age are removed by a removal of orphans that is told nothing."""


class JobCase(NamedTuple):
    """A job as it is submitted.

    Attributes:
        worked: whether its result says so.
        operations: of the snapshots that it adds, one choice or another.
        status: that it ends with.
    """

    job: str
    arguments: tuple[str, ...]
    worked: Callable[[dict[str, Any]], object]
    operations: tuple[tuple[str, ...], ...] = ((),)
    status: str = "done"


_ALL = ("--option", "rewrite-all=true")
_AT_ONCE = ("--trash", "0", "--option", "grace=0s")

JOBS = {
    "compact": JobCase(
        "compact",
        _ALL,
        lambda r: (r["rewritten_data_files_count"], r["added_data_files_count"]) == (12, 3),
        (("replace",),),
    ),
    "compact-sorted": JobCase(
        "compact",
        ("--strategy", "sort", "--sort-order", "kind, id", *_ALL),
        lambda r: (r["rewritten_data_files_count"], r["added_data_files_count"]) == (12, 3),
        (("replace",),),
    ),
    "position-deletes": JobCase(
        "rewrite_position_deletes", _ALL, lambda r: r["rewritten_delete_files_count"] == 6, (("replace",),)
    ),
    "equality-deletes": JobCase(
        "rewrite_position_deletes",
        ("--convert-equality-deletes", *_ALL),
        lambda r: r["conversion"]["converted_equality_delete_files_count"] == 1,
        (("delete",), ("delete", "replace")),
    ),
    "manifests": JobCase(
        "rewrite_manifests",
        ("--spec-id", "all"),
        lambda r: r["rewritten_manifests_count"] > r["added_manifests_count"],
        (("replace",),),
    ),
    "expire": JobCase(
        "expire_snapshots",
        ("--older-than", "0s", "--retain-last", "1", *_AT_ONCE),
        lambda r: (
            r["expired_snapshots_count"] == r["deleted_manifest_lists_count"] > 0 and r["deleted_data_files_count"] >= 1
        ),
    ),
    "orphans": JobCase(
        "remove_orphan_files",
        _AT_ONCE,
        lambda r: r["orphan_files_count"] == r["deleted_files_count"] == 1,
    ),
    "plan": JobCase(
        "plan_scan", (), lambda r: r["data_files_count"] == 12 and r["deletes"]["equality_delete_files_count"]
    ),
    "check": JobCase("check", ("--deep",), lambda r: r["entries_count"] and not r["not_checked"], status="sound"),
    "purge": JobCase("drop", ("--purge",), lambda r: r["is_purged"] and r["deleted_files_count"] > 20),
}
"""By a short name."""


def add_orphan(table: ClusterTable) -> None:
    """A file that nobody names; it is removed when it is `OLD`."""
    now = table.table
    now.storage.create(f"{now.metadata.location}/data/nobody.parquet", b"x")


def make_older(store: ObjectStore, table: ClusterTable) -> None:
    """All files of a table on S3 were written days ago."""
    store.make_older(table.table.metadata.location.removeprefix("s3://").partition("/")[0], OLD)


def prepared(name: str, table: ClusterTable, age: Callable[[ClusterTable], object]) -> tuple[JobCase, list[str]]:
    """Give a job its work: what it is, and the operations of the snapshots before it.

    Args:
        age: makes all files of a table days old.
    """
    if name == "orphans":
        add_orphan(table)
        age(table)
    return JOBS[name], table.operations()


def check_done(case: JobCase, done: Finished, table: ClusterTable, before: list[str]) -> None:
    """The job has ended well, has done its work, has committed it once, and no row is another.

    Args:
        before: the operations of the table's snapshots before the run.
    """
    assert done.status == 0, done.out[-2000:] + done.err[-4000:]
    check_result(case, done.json, table, before)


def check_result(case: JobCase, document: dict[str, Any], table: ClusterTable, before: list[str]) -> None:
    """The same of a document that the job has printed elsewhere."""
    assert document["status"] == case.status, document
    assert case.worked(document["result"]), document["result"]
    check_table(case, table, before)


def check_table(case: JobCase, table: ClusterTable, before: list[str]) -> None:
    """What the job does has been committed, once, and no row is another."""
    if case.job == "drop":
        assert not table.is_there
        return
    operations = table.operations()
    if case.job == "expire_snapshots":
        assert len(operations) == 1
    else:
        assert operations in [[*before, *some] for some in case.operations]
    table.check()
