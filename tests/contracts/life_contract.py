"""The whole life of a table in a catalog and a store that others wrote, as an operator and other writers lead it."""

import json
import os
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urlsplit

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog as ForeignCatalog
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import CommitFailedException, ValidationException
from pyiceberg.table import Table as ForeignTable

from icekeep.catalog.base import Table
from icekeep.catalog.open import open_catalog
from icekeep.runtime import SYSTEM
from icekeep.spec.properties import OWN_DIRECTORY
from icekeep.storage.base import Storage
from icekeep.storage.locations import join
from kit.deletes import data_files, delete_positions
from kit.lake import multiset
from kit.servers.process import ServerProcess
from kit.shell import Finished, run_here

NAME = "events"
SCHEMA = pa.schema([pa.field("id", pa.int64()), pa.field("kind", pa.string()), pa.field("amount", pa.float64())])
APPENDS = 30
JOBS: Mapping[str, tuple[str, ...]] = {
    "check": ("--deep",),
    "plan_scan": ("--where", "id < 100"),
    "compact": ("--option", "rewrite-all=true", "--option", "remove-dangling-deletes=true"),
    "rewrite_position_deletes": ("--option", "rewrite-all=true"),
    "rewrite_manifests": (),
    "expire_snapshots": ("--retain-last", "1", "--older-than", "2999-01-01T00:00:00Z", "--option", "grace=0s"),
    "remove_orphan_files": (),
}
CHANGING = ("compact", "rewrite_manifests", "expire_snapshots")
TRY_AGAIN = 75
_NUMBERS = count()


class TableLife:
    """Inherit and define the fixtures `server` and `properties`.

    Attributes:
        wrong: properties that nobody is let in with, and what the one line on them says; a class whose server lets anyone in
            leaves that test out.
        deletes: whether files may be deleted there; a catalog with a garbage collector of its own refuses.
        is_on_disk: whether the files are on this machine's disk.
        location: of the table, made of `{namespace}`, `{name}` and the catalog's properties; `None`: the catalog chooses.
    """

    wrong: ClassVar[tuple[Mapping[str, str], str]]
    deletes = True
    is_on_disk = True
    location: ClassVar[str | None] = None

    @pytest.fixture
    def server(self) -> ServerProcess:
        """A server, which is killed and started again."""
        raise NotImplementedError

    @pytest.fixture
    def properties(self, server: Any, tmp_path: Path) -> Mapping[str, str]:
        """Those of a catalog in which there is nothing yet."""
        raise NotImplementedError

    @pytest.fixture
    def foreign(self, properties: Mapping[str, str]) -> Iterator[ForeignCatalog]:
        """PyIceberg's client of the same catalog."""
        catalog = load_catalog("real", **properties)
        yield catalog
        catalog.close()

    @pytest.fixture
    def life(self, properties: Mapping[str, str], foreign: ForeignCatalog, tmp_path: Path) -> "Life":
        """A table of thirty appends and three deletes."""
        return Life(properties, foreign, tmp_path, self.location)

    def test_every_job_keeps_the_rows_and_a_dry_run_changes_nothing(self, life: "Life") -> None:
        for job, options in JOBS.items():
            if not self.deletes and job in ("expire_snapshots", "remove_orphan_files"):
                continue
            before = life.table().metadata_location
            if job not in ("check", "plan_scan"):
                life.run(job, *options, "--dry-run")
                assert life.table().metadata_location == before, job
                life.assert_rows(job)
            life.run(job, *options)
            life.assert_rows(job)
        life.run("check", "--deep")
        assert len(data_files(life.table())) == 1

    def make_old(self, server: Any, location: str) -> bool:
        """Give a file a time of years ago; false where none but the store can."""
        if self.is_on_disk:
            os.utime(urlsplit(location).path, (0, 0))
        return self.is_on_disk

    def test_what_is_deleted_is_garbage_and_can_come_back(self, life: "Life", server: Any) -> None:
        life.run("compact", *JOBS["compact"])
        stored = life.files()
        if not self.deletes:
            for job in ("expire_snapshots", "remove_orphan_files"):
                assert life.status(job, *JOBS[job]) == 4, job
            assert life.files() == stored
            return
        gone = life.run("expire_snapshots", *JOBS["expire_snapshots"], "--trash", "1d")
        assert gone["deleted_data_files_count"] >= APPENDS
        assert len(life.files()) < len(stored)
        life.assert_rows("expired")
        restored = life.run("restore")
        assert restored["restored_files_count"] >= APPENDS
        life.assert_rows("restored")
        storage, location = life.table().storage, life.table().metadata.location
        orphans = {join(location, "data", f"left behind {number}.parquet") for number in range(3)}
        for orphan in orphans:
            with storage.write(orphan) as stream:
                stream.write(b"nobody's")
        kept = life.run("remove_orphan_files", "--option", "grace=0s")
        assert orphans <= life.files(), f"young files went: {kept}"
        if all(self.make_old(server, orphan) for orphan in orphans):
            life.run("remove_orphan_files")
            assert not orphans & life.files()
            life.assert_rows("orphans")
        life.run("check", "--deep")

    def test_dropped_table_can_be_registered_and_purged(self, life: "Life") -> None:
        location = life.run("drop")["metadata_location"]
        assert life.status("check") == 2
        life.run("register", "--metadata-location", location)
        life.assert_rows("registered")
        if not self.deletes:
            assert life.status("drop", "--purge") == 4
            life.assert_rows("refused")
            return
        table = life.table()
        life.run("drop", "--purge")
        assert [*files_below(table.storage, table.metadata.location)] == []

    def test_jobs_win_beside_two_writers(self, life: "Life") -> None:
        with life.appending(writers=2):
            for job in CHANGING:
                if self.deletes or job != "expire_snapshots":
                    life.run(job, *JOBS[job])
        life.assert_rows("beside writers")
        life.run("check", "--deep")

    def test_wrong_credentials_are_one_line_and_no_outage(
        self, life: "Life", properties: Mapping[str, str], tmp_path: Path
    ) -> None:
        given, says = self.wrong
        stranger = Life.known(life, {**properties, **given}, tmp_path / "stranger.yaml")
        for job in ("check", "compact", "expire_snapshots"):
            refused = stranger.told(job)
            assert refused.status == 2, refused
            assert says in refused.err
            assert len(refused.err.splitlines()) == 1
            assert not any(
                secret in refused.err for key, secret in given.items() if "secret" in key or "credential" in key
            )
        life.assert_rows("refused")

    def test_a_server_that_is_killed_and_comes_back_costs_no_row(self, life: "Life", server: ServerProcess) -> None:
        """Each job begins while the server is away."""
        for job in CHANGING:
            if not self.deletes and job == "expire_snapshots":
                continue
            back = threading.Timer(2, server.start)
            server.kill()
            back.start()
            status = life.status(job, *JOBS[job])
            back.join()
            assert status in (0, TRY_AGAIN), job
            life.assert_rows(f"killed below {job}")
            life.run(job, *JOBS[job])
            life.assert_rows(f"back below {job}")
        life.run("check", "--deep")

    def test_names_that_addresses_must_quote_are_names_like_others(self, life: "Life") -> None:
        table = life.table()
        for name in self.odd_names:
            life.foreign.create_table((life.namespace, name), schema=SCHEMA).append(rows_of(1))
            loaded = life.catalog.load((life.namespace, name))
            assert loaded.metadata.head() is not None
            assert (life.namespace, name) in life.catalog.list_tables((life.namespace,))
            life.run("rewrite_manifests", name=f"`{name}`")
        assert life.table().metadata_location == table.metadata_location

    odd_names: ClassVar[tuple[str, ...]] = ("with blank", "50%", "a#b", "übung")


class Life:
    """A table, those who write to it, and the command line.

    Attributes:
        namespace: that of the table, which no other life has: servers outlive them.
    """

    def __init__(
        self, properties: Mapping[str, str], foreign: ForeignCatalog, directory: Path, location: str | None
    ) -> None:
        self.foreign = foreign
        self.conf = directory / "life.yaml"
        self._configure(properties)
        self.namespace = f"life_{next(_NUMBERS)}"
        foreign.create_namespace((self.namespace,))
        place = None if location is None else location.format(**properties, namespace=self.namespace, name=NAME)
        created = foreign.create_table((self.namespace, NAME), schema=SCHEMA, location=place)
        self._expected = Counter[str]()
        for number in range(APPENDS):
            created.append(rows_of(number))
        created.delete("id >= 100 and id < 105")
        table = self.table()
        files = [file.file_path for file in data_files(table)]
        delete_positions(table, [(files[0], 0), (files[1], 3)])
        delete_positions(self.table(), [(files[2], 1)], names_file=False)
        self._expected = self.rows()

    @classmethod
    def known(cls, other: "Life", properties: Mapping[str, str], conf: Path) -> "Life":
        """The same table for somebody with other properties."""
        life = cls.__new__(cls)
        life.foreign, life.namespace, life.conf, life._expected = other.foreign, other.namespace, conf, other._expected
        life._configure(properties)
        return life

    def _configure(self, properties: Mapping[str, str]) -> None:
        self._properties = properties
        self.catalog = open_catalog("real", properties)
        lines = "".join(f"    {key}: {json.dumps(value)}\n" for key, value in properties.items())
        self.conf.write_text(f"catalogs:\n  real:\n{lines}")

    def table(self) -> Table:
        return self.catalog.load((self.namespace, NAME))

    def rows(self) -> Counter[str]:
        """As PyIceberg reads them."""
        return multiset(self.foreign.load_table((self.namespace, NAME)).scan().to_arrow())

    def assert_rows(self, after: str) -> None:
        assert self.rows() == self._expected, after

    def files(self) -> set[str]:
        """Those of the table, without the trash and plans."""
        table = self.table()
        return {*files_below(table.storage, table.metadata.location)} - {
            *files_below(table.storage, join(table.metadata.location, OWN_DIRECTORY))
        }

    def told(self, job: str, *arguments: str, name: str = NAME) -> Finished:
        """What became of a command."""
        return run_here(self.conf, job, *arguments, table=f"{self.namespace}.{name}", catalog="real")

    def status(self, job: str, *arguments: str) -> int:
        return self.told(job, *arguments).status

    def run(self, job: str, *arguments: str, name: str = NAME) -> Any:
        """The result of a command, which must be done."""
        done = self.told(job, *arguments, "--output", "json", name=name)
        assert done.status == 0, (job, done)
        return done.json["result"]

    @contextmanager
    def appending(self, writers: int) -> Iterator[None]:
        """Others append until the block ends, each a commit after the other; what they wrote is among the rows."""
        stop, failed = threading.Event(), list[BaseException]()
        written = list[pa.Table]()

        def append(writer: int) -> None:
            number = 1_000 * (writer + 1)
            # The connection of a client of PyIceberg's is for one thread.
            mine = load_catalog("real", **self._properties)
            try:
                while not stop.is_set():
                    number += 1
                    _append_once(mine.load_table((self.namespace, NAME)), rows_of(number))
                    written.append(rows_of(number))
                    SYSTEM.sleep_ms(100)
            except Exception as error:  # noqa: BLE001 - the test fails with it
                failed.append(error)

        threads = [threading.Thread(target=append, args=(writer,)) for writer in range(writers)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        assert not failed, failed
        for rows in written:
            self._expected += multiset(rows)


def rows_of(number: int) -> pa.Table:
    """Ten rows of an append, whose ids no other has."""
    ids = range(10 * number, 10 * number + 10)
    return pa.table({"id": ids, "kind": [f"kind-{n % 3}" for n in ids], "amount": [n / 4 for n in ids]}, schema=SCHEMA)


def files_below(storage: Storage, location: str) -> Iterator[str]:
    """All files below a location, those of the trash and of plans too."""
    for file in storage.list(location):
        yield file.location


def _append_once(table: ForeignTable, rows: pa.Table) -> None:
    """PyIceberg gives up after few conflicts, and where the snapshot that it began with is expired; writers in earnest do not."""
    for number in count(1):
        try:
            table.append(rows)
        except (CommitFailedException, ValidationException):
            assert number < 50, "fifty appends in a row were refused"
            SYSTEM.sleep_ms(50 * number)
            table.refresh()
        else:
            return
