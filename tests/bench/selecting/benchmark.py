"""How long it takes to read the rows that a selective filter leaves: all columns of lineitem, sorted by ship date and order key.

Each rival plans and reads in its process, and has the rows as an Arrow table. A run is so many queries one after the other
that its processor time can be told.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from bench.runner.figures import Figures
from bench.runner.processes import RivalFailedError
from bench.runner.rivals import DUCKDB, Rival
from bench.runner.trial import BENCH, SMALL, Benchmark, Case, Trial, target
from bench.tables.sorted_lineitem import SortedLineitem

_QUERIES = {"one-order": 5, "half": 2}
_MANY_QUERIES = 20
_KEYS = "l_orderkey >= 1000000 and l_orderkey < 1100000"
_FILTERS = {
    "week": "l_shipdate >= '1995-03-01' and l_shipdate < '1995-03-08'",
    "day-and-keys": f"l_shipdate = '1995-03-01' and {_KEYS}",
    # In no order: each file may have it.
    "one-order": "l_orderkey = 1000001",
    "half": "l_quantity < 25",
}


class SelectingCase(Case, frozen=True, kw_only=True):
    """
    Attributes:
        where: the filter, as all rivals read it.
        queries: how often it is asked in a run.
    """

    where: str
    queries: int


class SelectingTrial(Trial):
    room = "selecting"

    def targets(self, rival: Rival) -> dict[str, Any]:
        return {
            "table": target(BENCH, self.table.name, path=self.table.path),
            "small": target(SMALL, self.small.name, path=self.small.path),
        }

    def asks(self, rival: Rival) -> Mapping[str, Any]:
        return {"spark": {}, "where": self.case.where, "queries": self.case.queries}

    def check(self, figures: Sequence[Figures]) -> None:
        found = {f.rival: [run.result for run in f.runs] for f in figures}
        results = [result for own in found.values() for result in own]
        if any(result != results[0] for result in results):
            raise RivalFailedError(f"the rivals read other rows: {found}")


SELECTING = Benchmark(
    about="the rows that a selective filter leaves of a sorted table",
    cases={
        name: SelectingCase(
            table=SortedLineitem(scale="1", files=60),
            work="select",
            runs=3,
            rounds=3,
            rivals=("icekeep", DUCKDB),
            where=where,
            queries=_QUERIES.get(name, _MANY_QUERIES),
        )
        for name, where in _FILTERS.items()
    },
    quick=("*",),
    trial=SelectingTrial,
)
