"""Scan planning: tables of `big_tables.py` and some filters. All rivals must find the same files.

What is timed is a plan of a table that was just loaded, or a whole command from spark-submit to the answer.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from bench.runner.figures import Fact, Figures
from bench.runner.rivals import Rival, RivalFailedError, submit
from bench.runner.trial import BENCH, Benchmark, Case, Trial
from bench.tables.big_tables import FILTERS, Shape, filters

PATIENCE_S = 20
"""A rival whose first plan takes longer is not asked again: what a second one saves does not matter then."""


class PlanCase(Case, frozen=True, kw_only=True):
    """`remembers` says that icekeep has a memory that lives as long as its process; no rival's is switched on."""

    filter: str
    remembers: bool = False
    work: str = "plan"
    runs: int = 4
    driver_memory: str = "2g"
    rivals: tuple[str, ...] = ("icekeep", "java", "java-distributed", "java-files", "pyiceberg")


class PlanTrial(Trial):
    """Plans must have the same files from run to run, and for all rivals."""

    room = "jobs"

    def asks(self, rival: Rival) -> Mapping[str, Any]:
        chosen = msgspec.structs.asdict(filters(self.case.table)[self.case.filter])
        chosen["remembers"] = self.case.remembers
        return {**chosen, "metadata_location": self.table.load().metadata_location, "patience_s": PATIENCE_S}

    def command(self, rival: Rival, request: Mapping[str, Any]) -> list[str]:
        where = ["--conf", request["conf"], "--catalog", BENCH, "--table", self.table.name]
        filtered = [] if request["where"] == "true" else ["--where", request["where"]]
        job = rival.lib.parent / "jobs/plan_scan.py"
        return submit(rival, request["spark"], job, *where, *filtered, "--output", "json")

    def find(self, figures: Sequence[Figures]) -> Mapping[str, Mapping[str, Fact]]:
        plans = {f.rival: f.runs[-1].result for f in figures}
        return {
            rival: {"files": plan["data_files_count"], "GB": plan["data_files_bytes"] / 1e9}
            for rival, plan in plans.items()
        }

    def check(self, figures: Sequence[Figures]) -> None:
        check_files(figures)


def check_files(figures: Sequence[Figures]) -> None:
    """Raise where plans have not as many files with as many bytes, from run to run and from rival to rival."""
    names = ("data_files_count", "data_files_bytes")
    found = {f.rival: {tuple(run.result[name] for name in names) for run in f.runs} for f in figures}
    if len(set().union(*found.values())) > 1:
        raise RivalFailedError(f"plans have different files, as their number and bytes: {found}")


def _cases() -> Iterator[tuple[str, PlanCase]]:
    for entries, manifests in ((e, m) for e in (100_000, 1_000_000) for m in (20, 2000)):
        table = Shape(entries=entries, manifests=manifests)
        for name in FILTERS:
            yield f"{entries}-in-{manifests}-{name}", PlanCase(table=table, filter=name)
            process = PlanCase(table=table, filter=name, runs=2, is_process=True, rivals=("icekeep", "java"))
            yield f"{entries}-in-{manifests}-{name}-process", process
            again = PlanCase(table=table, filter=name, remembers=True, rivals=("icekeep", "java"))
            yield f"again-{entries}-in-{manifests}-{name}", again
    huge = Shape(entries=10_000_000, manifests=200)
    for name in FILTERS:
        yield f"10000000-in-200-{name}", PlanCase(table=huge, filter=name, rounds=1, rivals=("icekeep",))
        process = PlanCase(table=huge, filter=name, rounds=1, is_process=True, rivals=("icekeep",))
        yield f"10000000-in-200-{name}-process", process


PLANNING = Benchmark(
    about="plans of scans: tables of so many entries in so many manifests, with a filter",
    cases=dict(_cases()),
    quick=("100000-in-20-bounds", "100000-in-20-none-process"),
    trial=PlanTrial,
)
