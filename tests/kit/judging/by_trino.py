"""Trino as a judge: its own readers of files; which files they are it has from Iceberg Java's library."""

import shutil
import sqlite3
import tempfile
from collections import Counter
from itertools import count
from pathlib import Path

from icekeep.catalog.base import Table
from icekeep.spec.schema import Schema
from kit.judging.judge import Judge, JudgeError
from kit.lake import Lake
from kit.row_texts import row_texts
from kit.trino import Answer, Trino, TrinoError
from kit.trino_values import from_trino

CATALOG = "judged"
_REGISTER = """
    INSERT INTO iceberg_tables (catalog_name, table_namespace, table_name, metadata_location, iceberg_type)
    VALUES ('local', 'db', ?, ?, 'TABLE')
"""


class TrinoJudge(Judge):
    """Gives the rows of tables by their metadata files, each under a name of its own in a catalog of its own."""

    def __init__(self, trino: Trino) -> None:
        super().__init__("Trino", ())
        self.trino = trino
        self._names = count(1)
        self._lake: Lake | None = None

    @property
    def version(self) -> str:
        return self.trino.version

    def close(self) -> None:
        """Remove what it left; the server goes on, which others may ask too."""
        if self._lake is not None:
            shutil.rmtree(self._lake.directory, ignore_errors=True)
            self._lake = None

    def rows(self, table: Table) -> Counter[str]:
        try:
            return texts(table.metadata.schema, self.trino.query(f"SELECT * FROM {self._registered(table)}"))
        except (TrinoError, ValueError) as error:
            raise JudgeError(str(error)) from error

    def files_read(self, table: Table, where: str) -> int:
        try:
            return self.trino.splits_read(f"SELECT * FROM {self._registered(table)} WHERE {where}")
        except TrinoError as error:
            raise JudgeError(str(error)) from error

    def _registered(self, table: Table) -> str:
        if self._lake is None:
            self._lake = Lake(Path(tempfile.mkdtemp(prefix="judge-")))
            self.trino.open_catalog(CATALOG, self._lake.properties)
        name = f"t{next(self._names)}"
        with sqlite3.connect(self._lake.directory / "catalog.db") as database:
            database.execute(_REGISTER, (name, table.metadata_location))
        return f"{CATALOG}.db.{name}"


def texts(schema: Schema, answer: Answer) -> Counter[str]:
    """The rows of a whole table in the form of `row_texts`; raises `ValueError` where its columns are not the table's."""
    names = [field.name.lower() for field in schema.fields]
    if list(answer.columns) != names:
        raise ValueError(f"the table has the columns {names}, the answer {list(answer.columns)}")
    struct = schema.as_struct()
    return row_texts(schema, (from_trino(struct, row) for row in answer.rows))
