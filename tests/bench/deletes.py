"""A table with very many delete files, as a CDC writer leaves it (`changes.py`): a scan of it is planned, it is compacted with
all deletes applied and dangling ones removed, or its position deletes are merged. Copies must hold the live rows, as whoever
made the table knows them.

Memory is for all processes of a rival together, 4 GB: the JVM's heap is what of that is left beside Python, whose workers read
and write in icekeep. The most that icekeep's processes had at one glance must be within that.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

from bench.compaction import COPY, CopiedTrial
from bench.planning import PlanTrial
from bench.runner.figures import Fact, Figures, console
from bench.runner.rivals import ICEKEEP, Rival, RivalFailedError
from bench.runner.trial import BENCH, Benchmark, Case, Trial
from bench.tables.changes import LIVE, Changes
from bench.tables.kept import NAMESPACE, hadoop_catalog
from icekeep.catalog.base import Table
from icekeep.spec.manifests.structs import FileContent
from kit.naive_scan import live_entries

HEAPS = {"icekeep": "1500m", "java": "3200m", "pyiceberg": "1g"}


class DeletesCase(Case, frozen=True, kw_only=True):
    """`driver_memory` takes the place of what is left for each rival's heap."""

    table: Changes = Changes()
    options: dict[str, str] = {}
    target_mb: int | None = None
    limit_mb: int = 4000
    filter: str = "none"
    runs: int = 1
    driver_memory: str = ""


class WithinMemory(Trial):
    def driver_memory(self, rival: Rival) -> str:
        return self.case.driver_memory or HEAPS[rival.engine]


class DeletesPlanTrial(WithinMemory, PlanTrial):
    pass


class DeletesTrial(WithinMemory, CopiedTrial):
    reference = LIVE

    @property
    def options(self) -> dict[str, str]:
        target = self.case.target_mb
        sizes = {} if target is None else {"target-file-size-bytes": str(target << 20)}
        return {**self.case.options, **sizes}

    def find(self, figures: Sequence[Figures]) -> Mapping[str, Mapping[str, Fact]]:
        found, limit = super().find(figures), self.case.limit_mb
        console.print(f"{BENCH}.{self.table.name}: {_kinds(self.table.load())}")
        return {
            f.rival: {
                **found[f.rival],
                "left": _kinds(hadoop_catalog(self.directory / f.rival).load((NAMESPACE, COPY))),
                f"within {limit:,} MB": "yes" if f.most("total_bytes") <= limit * 1_000_000 else "no",
            }
            for f in figures
        }

    def check(self, figures: Sequence[Figures]) -> None:
        rows, counted = self.table.facts["rows"], self.sums[BENCH][0]
        if rows != counted:
            raise RivalFailedError(f"the table of live rows has {counted:,}, not {rows:,}")
        super().check(figures)
        for f in figures:
            if f.rival == ICEKEEP and f.most("total_bytes") > self.case.limit_mb * 1_000_000:
                raise RivalFailedError(f"icekeep took more than {self.case.limit_mb:,} MB")


def _kinds(table: Table) -> str:
    """How many live files of each kind."""
    kinds = Counter(FileContent(entry.data_file.content) for entry in live_entries(table))
    return ", ".join(f"{count:,} {kind.name.lower().replace('_', ' ')}" for kind, count in sorted(kinds.items()))


def trial(case: DeletesCase, *given: object) -> Trial:
    return (DeletesPlanTrial if case.work == "plan" else DeletesTrial)(case, *given)


DELETES = Benchmark(
    about="a table with 20,000 position and 2,000 equality delete files, within 4 GB",
    cases={
        "plan": DeletesCase(work="plan", runs=2),
        "compact": DeletesCase(work="rewrite_data_files", options={"remove-dangling-deletes": "true"}, target_mb=16),
        "merge": DeletesCase(work="rewrite_position_delete_files"),
    },
    quick=("*",),
    trial=trial,
    compared=("MB written", "scan s", "scan CPU s"),
)
