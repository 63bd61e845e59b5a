"""All judges side by side: each reads a table as it is, and has the rows that icekeep has, or fails as it is known to."""

from collections import Counter

from icekeep.catalog.base import Table
from icekeep.tables.scan import read_table
from kit.judging.answers import answer_texts
from kit.judging.faults import explained, faults_of
from kit.judging.judge import Judge, JudgeError
from kit.judging.judges import all_judges
from kit.judging.kinds import Kind

ALL, READ, ROWS = "all", "tables", "rows"

Count = tuple[str, str, str]
"""Of what is counted: a judge, a label of a table or `ALL`, and `READ`, `ROWS`, or what a known fault is."""


class Panel:
    """The judges, and what they have read so far.

    Attributes:
        counts: by judge and by what is told of a table: tables that it read rightly, their rows, and known faults.
    """

    def __init__(self) -> None:
        self.judges = all_judges()
        self.counts: Counter[Count] = Counter()

    def judge(self, name: str) -> Judge:
        """The one of that name."""
        return next(judge for judge in self.judges if judge.name == name)

    def close(self) -> None:
        """End all that run."""
        for judge in self.judges:
            judge.close()

    def disagreements(self, table: Table) -> list[str]:
        """What judges have otherwise than icekeep's own scan, where that is no fault of theirs that is known."""
        kind, expected = Kind(table), answer_texts(table.metadata.schema, read_table(table))
        labels = [ALL, *kind.labels()]
        found = []
        for judge in self.judges:
            error, wrong = "", ""
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


def _difference(rows: Counter[str], expected: Counter[str]) -> str:
    missing, added = expected - rows, rows - expected
    return (
        f"{rows.total()} rows, icekeep has {expected.total()}; "
        f"missing {missing.total()}: {[*missing][:3]}; added {added.total()}: {[*added][:3]}"
    )
