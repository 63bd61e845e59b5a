"""How long Spark takes to give many data files their delete files. `--against` measures the joins of another checkout beside
ours; both must find the same.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from bench.runner.figures import Figures
from bench.runner.processes import RivalFailedError
from bench.runner.rivals import Rival
from bench.runner.trial import BENCH, Benchmark, Case, Trial, target
from bench.tables.delete_entries import DeleteEntries


class ReachingTrial(Trial):
    room = "reaching"

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
