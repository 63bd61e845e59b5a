"""What `--verify` costs beside the rewrite that it proves, in a process without Spark: TPC-H's lineitem in its 16 columns.

All rows keep their order and are decoded and encoded, or pages are moved where they may be, or rows are sorted. The files go to
a directory of their own.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from bench.runner.figures import Figures
from bench.runner.processes import RivalFailedError
from bench.runner.rivals import Rival
from bench.runner.trial import SMALL, Benchmark, Case, Trial, target
from bench.tables.lineitem import Lineitem


class VerifyingTrial(Trial):
    room = "verifying"

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
