"""All judges side by side: each reads a table as it is, and has the rows that icekeep has, or fails as it is known to."""

from collections import Counter
from pathlib import Path

import pyarrow as pa

from icekeep.catalog.base import Table
from icekeep.errors import IcekeepError, UnsupportedError
from icekeep.tables.read import read_table
from kit.judging.answers import answer_texts
from kit.judging.faults import explained, faults_of
from kit.judging.judge import Judge, JudgeError
from kit.judging.judges import all_judges
from kit.judging.kinds import Kind
from kit.judging.states import states_below
from kit.judging.tally import ALL, LEFT_OUT, READ, ROWS, Count
from kit.naive_scan import scan_rows
from kit.trino import Trino

JUDGED: Counter[Count] = Counter()
"""What all panels of this process have counted."""


class Panel:
    """The judges, and what they have read so far.

    Attributes:
        counts: by judge and by what is told of a table: tables that it read rightly, their rows, and known faults.
    """

    def __init__(self, trino: Trino) -> None:
        self.judges = all_judges(trino)
        self.counts = JUDGED
        self._seen: set[str] = set()

    def judge(self, name: str) -> Judge:
        """The one of that name."""
        return next(judge for judge in self.judges if judge.name == name)

    def close(self) -> None:
        """End all that run."""
        for judge in self.judges:
            judge.close()

    def judged_below(self, directory: Path) -> list[str]:
        """The `disagreements` over all tables below a directory, now and before, that were not judged yet."""
        return [told for table in states_below(directory, self._seen) for told in self.disagreements(table)]

    def disagreements(self, table: Table) -> list[str]:
        """What judges have otherwise than icekeep's own scan, where that is no fault of theirs that is known.

        Nobody is asked about a table that icekeep does not read: tests spoil some.
        """
        try:
            kind, ours = Kind(table), our_rows(table)
        except (IcekeepError, OSError):
            self.counts[LEFT_OUT] += 1
            return []
        schema = table.metadata.schema
        both = {one: answer_texts(schema, ours, has_null_lists=one) for one in (False, True)}
        labels = [ALL, *kind.labels()]
        found = []
        for judge in self.judges:
            expected, error, wrong = both[judge.has_null_lists], "", ""
            try:
                rows = judge.rows(table)
                wrong = "" if rows == expected else _difference(rows, expected)
            except JudgeError as told:
                error = wrong = str(told)
            fault = explained(faults_of(judge.name, kind), error) if wrong else None
            if wrong and fault is None:
                found.append(f"{judge.name} {judge.version}, {', '.join(labels[1:])}: {wrong}")
                continue
            for label in labels:
                self.counts[judge.name, label, fault.what if fault else READ] += 1
                self.counts[judge.name, label, ROWS] += 0 if fault else expected.total()
        return found


def our_rows(table: Table) -> pa.Table:
    """By icekeep's own scan; by the plain reader where Spark, which the scan may run on, has no type for a column.

    Raises:
        UnsupportedError: neither reads it.
    """
    kind = Kind(table)
    if not kind.data_files:
        return pa.table({field.name: pa.chunked_array([], pa.null()) for field in table.metadata.schema.fields})
    try:
        return read_table(table)
    except UnsupportedError:
        if kind.equality_deletes:
            raise
        return scan_rows(table)


def _difference(rows: Counter[str], expected: Counter[str]) -> str:
    missing, added = expected - rows, rows - expected
    return (
        f"{rows.total()} rows, icekeep has {expected.total()}; "
        f"missing {missing.total()}: {[*missing][:3]}; added {added.total()}: {[*added][:3]}"
    )
