"""Parts of icekeep alone: the task of a compaction that proves its rows or not, and which deletes reach a table's files.

All rows keep their order and are decoded and encoded, or pages are moved where they may be, or rows are sorted. The files go to
a directory of their own.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from bench.runner.figures import Figures
from bench.runner.rivals import Rival, RivalFailedError
from bench.runner.trial import BENCH, SMALL, Benchmark, Case, Trial, target
from bench.tables.delete_entries import DeleteEntries
from bench.tables.lineitem import Lineitem


class VerifyingTrial(Trial):
    room = "parts"

    def targets(self, rival: Rival) -> dict[str, Any]:
        return {**super().targets(rival), "small": target(SMALL, self.small.name)}

    def asks(self, rival: Rival) -> Mapping[str, Any]:
        return {"spark": {}}

    def check(self, figures: Sequence[Figures]) -> None:
        counts = {run.result["records_count"] for f in figures for run in f.runs}
        if len(counts) > 1:
            raise RivalFailedError(f"there are {counts} records in the output")


VERIFYING = Benchmark(
    about="what --verify costs beside the rewrite that it proves",
    cases={
        name: Case(table=Lineitem(scale="1", files=200), work=name, rivals=("icekeep", "verify"))
        for name in ("binpack", "moved", "sort")
    },
    quick=("*",),
    trial=VerifyingTrial,
)


class ReachingTrial(Trial):
    room = "parts"

    def targets(self, rival: Rival) -> dict[str, Any]:
        return {"table": target(BENCH, str(self.table.directory))}

    def asks(self, rival: Rival) -> Mapping[str, Any]:
        return {"deletes_count": self.case.table.deletes}

    def check(self, figures: Sequence[Figures]) -> None:
        found = {f.rival: [run.result for run in f.runs] for f in figures}
        results = [result for own in found.values() for result in own]
        if any(result != results[0] for result in results):
            raise RivalFailedError(f"deletes reach other files: {found}")


def _case(kind: str, files: int, partitions: int, deletes: int) -> Case:
    table = DeleteEntries(kind=kind, files=files, partitions=partitions, deletes=deletes)
    # The first run warms up.
    return Case(table=table, work="reach", runs=4, rivals=("icekeep",))


REACHING = Benchmark(
    about="delete files given to data files in Spark; for --against",
    cases={
        "vectors": _case("vectors", 200_000, 100, 200_000),
        "of-partitions": _case("partitions", 200_000, 1_000, 20_000),
        "many-of-partitions": _case("partitions", 200_000, 1_000, 40_000),
        "path-bounds": _case("bounds", 500_000, 1, 2_000),
    },
    quick=("*",),
    trial=ReachingTrial,
)
