"""Iceberg Java, PyIceberg and we append, delete and overwrite rows of one table at once, each rows of its own.

So the rows after any commit follow from whose commit it is: `Engine.steps` has the rows of an engine after each of its own.
`row_histories` has one writer at a time, and more that can happen.
"""

from collections.abc import Iterable, Sequence
from itertools import count
from threading import Barrier, Condition, Thread
from typing import NamedTuple, Self

from pyiceberg.catalog.sql import SqlCatalog as ForeignSqlCatalog
from pyiceberg.exceptions import CommitFailedException, ValidationException
from pyiceberg.expressions import In

from icekeep.catalog.base import Catalog, Identifier
from icekeep.commit.retry import commit
from icekeep.errors import ConflictError
from icekeep.events import Event
from kit.beside import rewrites_files
from kit.choices import Choices
from kit.java import IcebergJava, JavaError
from kit.snapshot_rows import KINDS, Row, Rows, as_table
from kit.updating import PATIENCE_S, RowWriter

JAVA_REFUSES = ("ValidationException", "CommitFailedException")


class Step(NamedTuple):
    """A snapshot that an engine made: its rows then, or, where it made several at once, those after the last of these."""

    rows: Rows
    is_whole: bool = True


class Engine:
    """A writer of rows whose ids no other has."""

    def __init__(self, identifier: Identifier, number: int, first_count: int) -> None:
        self.identifier = identifier
        self.lot = Choices(number)
        self._ids = count(number * 1_000_000)
        self.first = self._new(first_count)
        self.rows: dict[int, Row] = {row[0]: row for row in self.first}
        self.steps: list[Step] = []
        self.made: list[int] = []
        self.refused_count = 0

    def change(self, kind: str) -> None:
        """Append, delete or overwrite some rows, planned anew for as long as it is refused."""
        gone: list[int] = [] if kind == "append" else self.lot.sample(sorted(self.rows), 2)
        new: list[Row] = self._new(4) if kind == "append" else []
        if kind == "overwrite":
            new = [(id_, kind, number + 1, "again") for id_, kind, number, _ in map(self.rows.__getitem__, gone)]
        while not self._is_done(gone, new):
            self.refused_count += 1
        self.rows = {id_: row for id_, row in self.rows.items() if id_ not in gone} | {row[0]: row for row in new}

    def _landed(self, gone: Sequence[int], new: Iterable[Row], snapshots_count: int = 1) -> None:
        kept = [row for id_, row in self.rows.items() if id_ not in gone]
        rows = Rows([*kept, *new])
        self.steps += [*[Step(rows, is_whole=False)] * (snapshots_count - 1), Step(rows)]

    def _is_done(self, gone: Sequence[int], new: Sequence[Row]) -> bool:
        """Try once; false if the change was refused."""
        raise NotImplementedError

    def _new(self, number: int) -> list[Row]:
        return [(next(self._ids), self.lot.choice(KINDS), 0, None) for _ in range(number)]


class Ours(Engine):
    """Deletes by position: by position delete files, or by vectors."""

    def __init__(self, catalog: Catalog, identifier: Identifier, number: int, first_count: int) -> None:
        super().__init__(identifier, number, first_count)
        self._catalog = catalog
        self._writer: RowWriter | None = None

    def _is_done(self, gone: Sequence[int], new: Sequence[Row]) -> bool:
        if self._writer is None:
            self._writer = RowWriter(self._catalog.load(self.identifier), self.lot)
        seen = self._writer.look()
        change = self._writer.delta(seen, [place for place in seen.places if place.row[0] in gone], new)
        try:
            result = commit(self._writer.table, change)
        except ConflictError:
            return False
        assert result.snapshot_id is not None
        self.made.append(result.snapshot_id)
        self._landed(gone, new)
        return True


class PyIceberg(Engine):
    """Deletes by writing files anew."""

    def __init__(self, properties: dict[str, str], identifier: Identifier, number: int, first_count: int) -> None:
        super().__init__(identifier, number, first_count)
        self._properties = properties

    def _is_done(self, gone: Sequence[int], new: Sequence[Row]) -> bool:
        catalog = ForeignSqlCatalog("local", uri=self._properties["uri"], warehouse=self._properties["warehouse"])
        table = catalog.load_table(self.identifier)
        # It does not see all deletes that came since it read (its check begins at the head), so it may not try twice.
        table.metadata.properties.update({"commit.retry.num-retries": "0", "write.delete.mode": "copy-on-write"})
        begun = table.metadata.current_snapshot_id
        try:
            if not gone:
                table.append(as_table(new))
            elif new:
                table.overwrite(as_table(new), In("id", set(gone)))
            else:
                table.delete(In("id", set(gone)))
        except (CommitFailedException, ValidationException):
            return False
        made: list[int] = []
        snapshot = table.current_snapshot()
        while snapshot is not None and snapshot.snapshot_id != begun:
            made.insert(0, snapshot.snapshot_id)
            snapshot = table.snapshot_by_id(snapshot.parent_snapshot_id)
        self.made += made
        self._landed(gone, new, len(made))
        return True


class Java(Engine):
    """Spark with Iceberg Java: deletes by position or vector, overwrites as `write.update.mode` says."""

    def __init__(self, java: IcebergJava, identifier: Identifier, number: int, first_count: int) -> None:
        super().__init__(identifier, number, first_count)
        self._java = java

    def _is_done(self, gone: Sequence[int], new: Sequence[Row]) -> bool:
        name = ".".join(("local", *self.identifier))
        ids = ", ".join(map(str, gone))
        values = ", ".join(f"({id_}, '{kind}', {number}, NULL)" for id_, kind, number, _ in new)
        text = f"DELETE FROM {name} WHERE id IN ({ids})"
        if not gone:
            text = f"INSERT INTO {name} VALUES {values}"
        elif new:
            text = f"UPDATE {name} SET number = number + 1, note = 'again' WHERE id IN ({ids})"
        try:
            self._java.sql(text)
        except JavaError as error:
            if any(kind in f"{error.kind} {error.message}" for kind in JAVA_REFUSES):
                return False
            raise
        self._landed(gone, new)
        return True


class Together:
    """Engines that change a table in threads, each change at the same time, and the listener of compactions beside them.

    Whenever files were rewritten, some change lands.
    """

    def __init__(self, engines: Sequence[Engine], kinds: Sequence[str]) -> None:
        """Args:
        kinds: of the changes of each engine, in an order of its own.
        """
        self._engines, self._kinds = engines, kinds
        self._barrier = Barrier(len(engines))
        self._condition = Condition()
        self._landed_count = 0
        self._failures: list[BaseException] = []
        self._threads = [Thread(target=self._run, args=(engine,)) for engine in engines]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:
            self._barrier.abort()
        for thread in self._threads:
            thread.join(PATIENCE_S)
            assert not thread.is_alive()
        if self._failures:
            raise self._failures[0]

    @property
    def goes_on(self) -> bool:
        """Whether any engine has something left to do."""
        return not self._failures and any(thread.is_alive() for thread in self._threads)

    def on(self, event: Event) -> None:
        if rewrites_files(event):
            with self._condition:
                wanted = min(self._landed_count + 1, len(self._engines) * len(self._kinds))
                assert self._condition.wait_for(lambda: self._landed_count >= wanted or self._failures, PATIENCE_S), (
                    "nobody changes anything"
                )

    def _run(self, engine: Engine) -> None:
        try:
            for kind in engine.lot.sample(self._kinds, len(self._kinds)):
                self._barrier.wait(PATIENCE_S)
                engine.change(kind)
                with self._condition:
                    self._landed_count += 1
                    self._condition.notify_all()
        except BaseException as error:  # noqa: BLE001 - raised where they are waited for
            self._barrier.abort()
            with self._condition:
                self._failures.append(error)
                self._condition.notify_all()
