"""Trino 476 writes tables while every job of icekeep works on them, reads them, and has jobs of its own.

Each table has a model of its rows; icekeep's scan and Trino must agree with it after each job. `sound_tables` checks each table
at the end of its test.
"""

import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from icekeep.catalog.base import Catalog, Identifier, Table
from icekeep.catalog.open import open_catalog
from icekeep.events import Event
from icekeep.maintenance.check.job import check
from icekeep.maintenance.orphans.job import remove_orphan_files
from icekeep.maintenance.restore.job import restore
from icekeep.runtime import SYSTEM
from icekeep.spec.manifests.structs import FileContent
from icekeep.spec.types import DAY_MS
from icekeep.storage.locations import local_path
from kit.beside import COMMON, Beside, Work, sorting
from kit.java import JavaRestServer
from kit.judging.panel import texts
from kit.lake import Lake
from kit.naive_scan import live_entries
from kit.rows import scanned_rows
from kit.runtime import no_spark
from kit.trino import Trino

COLUMNS: Mapping[str, tuple[str, str]] = {
    "id": ("BIGINT NOT NULL", "id"),
    "kind": ("VARCHAR", "IF(id % 7 = 3, NULL, 'k/' || CAST(id % 3 AS VARCHAR))"),
    "number": ("INTEGER", "number"),
    "score": ("DOUBLE", "CASE id % 4 WHEN 0 THEN nan() WHEN 1 THEN DOUBLE '-0.0' WHEN 2 THEN NULL ELSE id / 3e0 END"),
    "amount": ("DECIMAL(20, 3)", "IF(number % 5 = 1, NULL, CAST(id * 1000 + number AS DECIMAL(20, 3)) / 8)"),
    "day": ("DATE", "date_add('day', id % 3 * 40, DATE '1969-12-01')"),
    "at": ("TIMESTAMP(6)", "date_add('hour', id, TIMESTAMP '1969-12-31 20:00:00')"),
    "seen": (
        "TIMESTAMP(6) WITH TIME ZONE",
        "IF(id % 6 = 2, NULL, date_add('day', id, TIMESTAMP '2020-02-28 23:59:59.000001 UTC'))",
    ),
    "uid": (
        "UUID",
        "IF(id % 5 = 4, NULL, '00000000-0000-0000-0000-' || substr(to_hex(to_big_endian_64(id)), 5))",
    ),
    "raw": ("VARBINARY", "to_big_endian_32(CAST(number AS INTEGER))"),
    "tags": ("ARRAY(VARCHAR)", "IF(id % 4 = 1, NULL, slice(ARRAY['a', NULL, 'b'], 1, CAST(id % 3 AS INTEGER)))"),
    "place": (
        "ROW(x REAL, flags ARRAY(BOOLEAN))",
        "IF(id % 6 = 2, NULL, CAST(ROW(number / 2e0, ARRAY[true, NULL]) AS ROW(x REAL, flags ARRAY(BOOLEAN))))",
    ),
    "counts": ("MAP(VARCHAR, INTEGER)", "IF(id % 5 = 3, NULL, map(ARRAY['k', 'l'], ARRAY[number, NULL]))"),
}
"""By name: the type, and what the value follows from."""
_NUMBERS = count(1)


class TrinoTable:
    """A table that Trino made, in one of our catalogs, which Trino has open as `local`.

    Attributes:
        numbers: the model.
    """

    def __init__(
        self,
        trino: Trino,
        catalog: Catalog,
        *,
        file_format: str = "PARQUET",
        partitioning: Iterable[str] = (),
        namespace: str = "db",
    ) -> None:
        self.trino, self.catalog = trino, catalog
        self.identifier: Identifier = (namespace, f"trino{next(_NUMBERS)}")
        self.name = ".".join(("local", *self.identifier))
        self.numbers: dict[int, int] = {}
        self._statements = count()
        columns = ", ".join(f"{name} {type_}" for name, (type_, _) in COLUMNS.items())
        fields = ", ".join(f"'{field}'" for field in partitioning)
        trino.query(
            f"CREATE TABLE {self.name} ({columns}) "
            f"WITH (format = '{file_format}', format_version = 2, partitioning = ARRAY[{fields}])"
        )

    @property
    def table(self) -> Table:
        """As it is now."""
        return self.catalog.load(self.identifier)

    def insert(self) -> None:
        """Twelve rows."""
        first = 12 * next(self._statements)
        self._do("INSERT INTO {} " + selected(dict.fromkeys(range(first, first + 12), 0)))
        self.numbers |= dict.fromkeys(range(first, first + 12), 0)

    def delete(self) -> None:
        """Some rows, by position deletes."""
        digit = next(self._statements) % 11
        self._do(f"DELETE FROM {{}} WHERE id % 11 = {digit}")
        self.numbers = {id_: number for id_, number in self.numbers.items() if id_ % 11 != digit}

    def update(self) -> None:
        """Some rows: they are deleted where they are, and written anew."""
        digit = next(self._statements) % 5
        following = ", ".join(f"{name} = {_of_next(name)}" for name in ("number", "amount", "raw", "place", "counts"))
        self._do(f"UPDATE {{}} SET {following} WHERE id % 5 = {digit}")
        self.numbers = {id_: number + (id_ % 5 == digit) for id_, number in self.numbers.items()}

    def merge(self) -> None:
        """Some rows are deleted, some written anew, and some are new."""
        first = 12 * next(self._statements)
        known = sorted(self.numbers)[1::4]
        given = {**{id_: self.numbers[id_] + 10 for id_ in known}, **dict.fromkeys(range(first, first + 3), 1)}
        gone = set(known[::3])
        names = [*COLUMNS]
        self._do(
            f"MERGE INTO {{}} AS t USING ({selected(given)}) AS s ON t.id = s.id "
            f"WHEN MATCHED AND s.id IN ({', '.join(map(str, gone))}) THEN DELETE "
            f"WHEN MATCHED THEN UPDATE SET {', '.join(f'{name} = s.{name}' for name in names)} "
            f"WHEN NOT MATCHED THEN INSERT ({', '.join(names)}) VALUES ({', '.join(f's.{name}' for name in names)})"
        )
        self.numbers = {id_: number for id_, number in (self.numbers | given).items() if id_ not in gone}

    def change(self) -> None:
        """The next kind of change."""
        kinds: tuple[Callable[[], None], ...] = (self.insert, self.delete, self.update, self.merge)
        kinds[next(self._statements) % len(kinds)]()

    def expected(self) -> Counter[str]:
        """The rows of the model, as texts."""
        return texts(self.table.metadata.schema, self.trino.query(selected(self.numbers)))

    def by_trino(self, version: str = "") -> Counter[str]:
        """The rows as Trino reads them, of a version where one is named."""
        return texts(self.table.metadata.schema, self.trino.query(f"SELECT * FROM {self.name} {version}"))

    def checked(self, when: str) -> None:
        """The rows are those of the model, for us and for Trino."""
        expected = self.expected()
        assert scanned_rows(self.table) == expected, when
        assert self.by_trino() == expected, when

    def maintain(self, procedure: str) -> None:
        """Let Trino do one of its own jobs."""
        self.trino.query(f"ALTER TABLE {self.name} EXECUTE {procedure}")

    def _do(self, statement: str) -> None:
        self.trino.query(statement.format(self.name))


def selected(numbers: Mapping[int, int]) -> str:
    """A query whose rows are those of the model."""
    values = ", ".join(f"(BIGINT '{id_}', INTEGER '{number}')" for id_, number in numbers.items())
    told = ", ".join(
        f"CAST({value} AS {type_.removesuffix(' NOT NULL')}) AS {n}" for n, (type_, value) in COLUMNS.items()
    )
    return f"SELECT {told} FROM (VALUES {values}) AS model (id, number)"


def _of_next(name: str) -> str:
    """The value of a column of a row whose number is one more."""
    type_, value = COLUMNS[name]
    return f"CAST({value.replace('number', '(number + 1)')} AS {type_})"


pytestmark = pytest.mark.deep

JOBS: Mapping[str, Work] = {
    "rewrite_manifests": COMMON["rewrite_manifests"],
    "rewrite_position_deletes": COMMON["rewrite_position_deletes"],
    "compact after deletes": COMMON["compact after deletes"],
    "sort": sorting("day, id DESC"),
    "expire_snapshots": COMMON["expire_snapshots"],
    "zorder": sorting("zorder(id, at)"),
    "hilbert": sorting("hilbert(id, at)"),
    "compact everything": COMMON["compact everything"],
}


@pytest.fixture
def lake(trino: Trino, tmp_path: Path) -> Lake:
    """A SQL catalog, called `local` by us and by Trino."""
    lake = Lake(tmp_path)
    trino.open_catalog("local", lake.properties)
    return lake


@pytest.fixture(scope="module")
def spark(trino: Trino, spark_session: SparkSession) -> SparkSession:
    """Our own Spark."""
    return spark_session


def contents(written: TrinoTable) -> set[FileContent]:
    return {entry.data_file.content for entry in live_entries(written.table)}


@pytest.mark.parametrize(
    ("file_format", "partitioning"),
    [
        ("PARQUET", ["kind"]),
        ("ORC", ["bucket(id, 2)"]),
        *(
            pytest.param(*case, marks=pytest.mark.nightly)
            for case in (
                ("AVRO", []),
                ("PARQUET", []),
                ("PARQUET", ["month(at)", "truncate(kind, 2)"]),
                ("ORC", ["day", "kind"]),
                ("AVRO", ["year(seen)", "bucket(uid, 3)"]),
            )
        ),
    ],
)
def test_every_job_works_beside_trino(
    trino: Trino, lake: Lake, spark: SparkSession, file_format: str, partitioning: list[str]
) -> None:
    """Trino inserts, deletes, updates and merges whenever a job rewrote files, and before it swaps the metadata."""
    written = TrinoTable(trino, lake.catalog, file_format=file_format, partitioning=partitioning)
    for change in (written.insert, written.insert, written.update, written.merge):
        change()
    assert contents(written) == {FileContent.DATA, FileContent.POSITION_DELETES}
    written.checked("before all")
    for name, job in JOBS.items():
        beside = Beside(written.table, written.change)
        job(beside.table, spark, listener=beside)
        assert beside.landed_count, name
        written.checked(name)


def test_trinos_own_jobs_and_ours_after_one_another(trino: Trino, lake: Lake, spark: SparkSession) -> None:
    written = TrinoTable(trino, lake.catalog, partitioning=["kind"])
    for change in (written.insert, written.delete, written.insert, written.update):
        change()
    for ours, theirs in (
        ("compact after deletes", "optimize"),
        ("rewrite_manifests", "optimize_manifests"),
        ("rewrite_position_deletes", "expire_snapshots(retention_threshold => '0s')"),
        ("sort", "remove_orphan_files(retention_threshold => '0s')"),
    ):
        written.merge()
        JOBS[ours](written.table, spark)
        written.checked(ours)
        written.maintain(theirs)
        assert check(written.table, no_spark, deep=True).faults == (), theirs
        written.checked(theirs)
    trino.query(f"ANALYZE {written.name}")
    trino.query(f"ALTER TABLE {written.name} DROP COLUMN counts")
    assert check(written.table, no_spark, deep=True).faults == ()


def test_expired_snapshots_return_after_trino_removes_orphans(trino: Trino, lake: Lake) -> None:
    """icekeep keeps deleted files beside the table's; for Trino they are in no directory of it that it cleans."""
    written = TrinoTable(trino, lake.catalog)
    versions = []
    for _ in range(3):
        written.insert()
        versions.append((written.table.metadata.current_snapshot_id, written.expected()))
    written.delete()
    trino.query(f"DELETE FROM {written.name}")
    JOBS["expire_snapshots"](written.table, no_spark)
    assert len(written.table.metadata.snapshots) == 1
    trino.query(f"ALTER TABLE {written.name} EXECUTE remove_orphan_files(retention_threshold => '0s')")
    restore(written.table)
    for snapshot_id, rows in versions:
        assert written.by_trino(f"FOR VERSION AS OF {snapshot_id}") == rows


def test_only_orphans_go_while_trino_commits(trino: Trino, lake: Lake) -> None:
    written = TrinoTable(trino, lake.catalog, partitioning=["kind"])
    written.insert()
    written.update()
    files = {Path(local_path(entry.data_file.file_path)) for entry in live_entries(written.table)}
    orphan = sorted(files)[0].with_name("orphan.parquet")
    orphan.write_bytes(b"PAR1")
    for file in (orphan, *files):
        os.utime(file, (0, 0))
    told: list[Event] = []

    class Merging:
        def on(self, event: Event) -> None:
            if not told:
                written.merge()
            told.append(event)

    result = remove_orphan_files(written.table, older_than=SYSTEM.now_ms() - 2 * DAY_MS, listener=Merging())
    assert told
    assert result.deleted_files_count == 1
    assert not orphan.exists()
    written.merge()
    written.checked("without orphans")


def test_in_postgresql(trino: Trino, postgres: Any, spark: SparkSession, tmp_path: Path) -> None:
    properties = {"type": "sql", "uri": postgres.new_database(), "warehouse": (tmp_path / "warehouse").as_uri()}
    catalog = open_catalog("local", properties)
    catalog.create_namespace(("db",))
    trino.open_catalog("local", properties)
    maintained(TrinoTable(trino, catalog), spark)


def test_by_a_rest_catalog(trino: Trino, spark: SparkSession, tmp_path: Path) -> None:
    """Of Iceberg Java."""
    server = JavaRestServer(tmp_path)
    try:
        catalog = open_catalog("local", server.properties)
        catalog.create_namespace(("db",))
        trino.open_catalog("local", server.properties)
        maintained(TrinoTable(trino, catalog), spark)
    finally:
        trino.query("DROP CATALOG local")
        server.close()


def maintained(written: TrinoTable, spark: SparkSession) -> None:
    """Trino and two of our jobs get in each other's way."""
    for change in (written.insert, written.insert, written.update):
        change()
    for name in ("rewrite_position_deletes", "sort"):
        beside = Beside(written.table, written.merge)
        JOBS[name](beside.table, spark, listener=beside)
        assert beside.landed_count, name
        written.checked(name)
