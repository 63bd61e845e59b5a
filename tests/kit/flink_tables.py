"""Tables that a Flink job writes all the time, beside icekeep's jobs, with a plain model of their rows.

Every row that the job is given follows from a number. The model is a dictionary: the last row of each key.
"""

import datetime
from collections import Counter
from collections.abc import Iterable, Mapping
from decimal import Decimal
from itertools import count
from typing import Any

from icekeep.catalog.base import Identifier, Table
from icekeep.spec.schema import Schema
from icekeep.spec.types import BINARY, BOOLEAN, DATE, DOUBLE, INT, LONG, STRING, TIMESTAMP, TIMESTAMPTZ, decimal
from icekeep.tables.verbs import create_table
from kit.choices import Choices
from kit.columns import column
from kit.flink import Checkpoint, Flink, Job, quoted
from kit.lake import Lake
from kit.row_texts import row_texts, scanned_rows

COLUMNS = (
    column(1, "id", LONG, required=True),
    column(2, "kind", STRING, required=True),
    column(3, "number", INT),
    column(4, "score", DOUBLE),
    column(5, "amount", decimal(20, 3)),
    column(6, "day", DATE),
    column(7, "at", TIMESTAMP),
    column(8, "seen", TIMESTAMPTZ),
    column(9, "note", STRING),
    column(10, "raw", BINARY),
    column(11, "flag", BOOLEAN),
)
NAMES = [field.name for field in COLUMNS]
KINDS = ("a", "b", "ä/c")
PATIENT = {"commit.retry.num-retries": "20", "commit.retry.min-wait-ms": "1", "commit.retry.max-wait-ms": "20"}
_NUMBERS = count(1)

Row = tuple[Any, ...]


def row(id_: int, number: int) -> Row:
    """The row of a key after so many changes: its kind follows from the key, and never changes."""
    one = 3 * id_ + number
    start = datetime.datetime(2020, 1, 1) + datetime.timedelta(hours=one, microseconds=one)
    return (
        id_,
        KINDS[id_ % len(KINDS)],
        None if one % 5 == 4 else number,
        (float("nan"), -0.0, 0.5 * one, None)[one % 4],
        None if one % 7 == 3 else Decimal(one).scaleb(-3),
        start.date(),
        start,
        None if one % 6 == 2 else start,
        ("x" * (one % 9), None)[one % 2],
        bytes([one % 256, 0]),
        (True, False, None)[one % 3],
    )


class FlinkTable:
    """A table and the job that writes it.

    Attributes:
        rows: the model's, by key; those of a table without a key by a number of their own.
    """

    def __init__(
        self,
        flink: Flink,
        lake: Lake,
        *,
        has_key: bool = True,
        partition_by: Iterable[tuple[str, str]] = (),
        version: int = 2,
        file_format: str = "parquet",
        settings: Mapping[str, str] | None = None,
    ) -> None:
        """Args:
        has_key: rows are upserted by `id`, and by `kind` where the table is partitioned by that; or else appended.
        settings: of Flink's SQL for the job.
        """
        self.flink, self.lake, self._settings = flink, lake, settings
        self.identifier: Identifier = ("db", f"flink{next(_NUMBERS)}")
        partition_by = tuple(partition_by)
        key = (1, 2) if ("kind", "identity") in partition_by else (1,)
        properties = {**PATIENT, "write.format.default": file_format}
        create_table(
            lake.catalog,
            self.identifier,
            Schema(fields=COLUMNS, identifier_field_ids=key if has_key else ()),
            partition_by=partition_by,
            properties={**properties, "write.upsert.enabled": "true"} if has_key else properties,
            format_version=version,
        )
        self.has_key = has_key
        self.rows: dict[int, Row] = {}
        self._changes_count = 0
        self._lot = Choices(version)
        self.job = self.start()

    @property
    def name(self) -> str:
        """In Flink and Java."""
        return ".".join(("local", *self.identifier))

    @property
    def table(self) -> Table:
        """As it is now."""
        return self.lake.catalog.load(self.identifier)

    def start(self, start: Checkpoint | None = None) -> Job:
        """Start the job, from a checkpoint of the one before."""
        changes = "upsert" if self.has_key else "insert"
        self.job = self.flink.start(self.name, self.name, changes, start=start, settings=self._settings)
        return self.job

    def started(self, start: Checkpoint) -> Checkpoint:
        """Start the job from a checkpoint, and let it make the next: only then the later of the sinks has looked for the last."""
        self.start(start)
        return self.commit()

    def change(self) -> None:
        """Give the job rows, and note what they come to: new ones, later ones of old keys and of keys of the same commit, and
        deletes, also of what is there no more.
        """
        self._changes_count += 1
        number = self._changes_count
        new = range(1000 * number, 1000 * number + 6)
        if not self.has_key:
            self._note([("+I", row(id_, number)) for id_ in new])
            return
        old = self._some(5)
        told = [("+I", row(id_, number)) for id_ in (*new, *old)]
        again = self._lot.sample([*new, *old], 4)
        told += [("+U", row(id_, number + 50)) for id_ in again]
        gone = [*self._some(2), again[0], 999]
        self._note([*told, *(("-D", row(id_, number)) for id_ in gone)])
        # What was deleted a moment ago comes back.
        self._note([("+I", row(again[0], number + 70))])

    def commit(self) -> Checkpoint:
        """Change rows, and let the job commit them."""
        self.change()
        return self.job.checkpoint()

    def expected(self) -> Counter[str]:
        """The rows of the model, as texts."""
        return texts(self.rows.values())

    def by_us(self) -> Counter[str]:
        """The rows by icekeep's scan."""
        return scanned_rows(self.table)

    def by_flink(self) -> Counter[str]:
        """The rows by a batch query of Flink's."""
        return texts(self.flink.select(f"SELECT {', '.join(map(quoted, NAMES))} FROM {quoted(self.name)}"))

    def checked(self, when: str) -> None:
        """The rows are those of the model, for us and for Flink."""
        assert self.by_us() == self.expected(), when
        assert self.by_flink() == self.expected(), when

    def _some(self, number: int) -> list[int]:
        return self._lot.sample(sorted(self.rows), min(number, len(self.rows)))

    def _note(self, changes: Iterable[tuple[str, Row]]) -> None:
        changes = list(changes)
        self.job.feed((kind, *values) for kind, values in changes)
        for kind, values in changes:
            if kind == "-D":
                self.rows.pop(values[0], None)
            else:
                self.rows[values[0]] = values


def texts(rows: Iterable[Row]) -> Counter[str]:
    """Rows in the form of `row_texts`."""
    return row_texts(Schema(fields=COLUMNS), (dict(zip(NAMES, one, strict=True)) for one in rows))
