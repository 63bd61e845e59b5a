"""What grows with a table: plans and jobs over 1, 3 and 10 million data files with 100,000 delete files (`scale_shapes.py`).

A standalone Spark cluster of two small executors does it, with a driver whose memory, JVM and Python together, must stay below
2 GB. Data files are not there. No job reads them, and the listing of orphan removal is made up (`listing.py`).

Each process does a small table first, all of it in Spark, so that what counts is warm. The last table of the run says how much
more a larger table takes: processor time, bytes and the driver's memory should grow no faster than the table.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from bench.runner.figures import Fact, Figures
from bench.runner.in_place import InPlaceTrial, days_ago_ms
from bench.runner.processes import RivalFailedError
from bench.runner.rivals import OURS, TESTS, Rival
from bench.runner.trial import BENCH, SMALL, Benchmark, Case
from bench.scale.growth import print_growth, taken
from bench.tables.scale_shapes import Scale
from kit.killing import processes
from kit.submitting import Standalone

MILLION = 1_000_000
_CLUSTER = "org.apache.spark.deploy."


class ScaleCase(Case, frozen=True, kw_only=True):
    """
    Attributes:
        driver_memory, executor_memory: of JVMs; Python has its own.
        limit_mb: what the driver may have, JVM and Python together.
        says: what the answer must have, by the field of the shape that it must be equal to.
    """

    table: Scale
    executors: int = 2
    executor_memory: str = "1g"
    driver_memory: str = "1g"
    limit_mb: int = 2000
    says: dict[str, str] = {}
    runs: int = 1
    rounds: int = 1
    rivals: tuple[str, ...] = ("icekeep",)


class ScaleTrial(InPlaceTrial):
    room = "scale"

    def __init__(self, case: ScaleCase, cache: Path, directory: Path) -> None:
        super().__init__(case, cache, directory)
        self._events = directory / "events"
        self._events.mkdir()
        self._cluster = Standalone(OURS / "python", workers=case.executors, cores=1, memory=case.executor_memory)

    def spark(self, rival: Rival) -> dict[str, str]:
        return {
            **super().spark(rival),
            "spark.master": self._cluster.master,
            "spark.executor.memory": self.case.executor_memory,
            "spark.executorEnv.PYTHONPATH": f"{rival.lib}:{TESTS}",
            "spark.eventLog.enabled": "true",
            "spark.eventLog.dir": self._events.as_uri(),
            "spark.eventLog.compress": "false",
            "spark.eventLog.rolling.enabled": "false",
        }

    def targets(self, rival: Rival) -> dict[str, Any]:
        found = super().targets(rival)
        return {name: {**table, "is_small": name == "small"} for name, table in found.items()}

    def asks(self, rival: Rival) -> Mapping[str, Any]:
        shapes = {BENCH: self.table.shape, SMALL: self.small.shape}
        cluster = [pid for pid, parent, words in processes() if parent == os.getpid() and _CLUSTER in words]
        return {"older_than_ms": days_ago_ms(0), "cluster": cluster, "shapes": msgspec.to_builtins(shapes)}

    def find(self, figures: Sequence[Figures]) -> Mapping[str, Mapping[str, Fact]]:
        return {f.rival: taken(f, self.case.table.files) for f in figures}

    def check(self, figures: Sequence[Figures]) -> None:
        for f in figures:
            for key, field in self.case.says.items():
                wanted, said = self.table.facts[field], f.runs[-1].result[key]
                if said != wanted:
                    raise RivalFailedError(f"{f.rival} says {said:,} as {key}, not {wanted:,}")
            if f.most("driver_total_bytes") > self.case.limit_mb * MILLION:
                raise RivalFailedError(f"the driver took more than {self.case.limit_mb:,} MB")

    def close(self) -> None:
        self._cluster.close()
        super().close()


def _cases() -> Iterator[tuple[str, ScaleCase]]:
    for millions in (1, 3, 10):
        for work, says in _SAID.items():
            table = Scale(files=millions * MILLION)
            yield f"{work.replace('_', '-')}-{millions}m", ScaleCase(table=table, work=work, says=says)


_SAID = {
    "plan_scan": {"data_files_count": "files"},
    "plan_binpack": {"candidate_files_count": "small"},
    "plan_sort": {"rewritten_data_files_count": "files"},
    "plan_position_deletes": {"candidate_files_count": "position_deletes"},
    "plan_expiration": {"expired_snapshots_count": "expired"},
    "expire_snapshots": {"expired_snapshots_count": "expired", "missing_files_count": "garbage"},
    "plan_orphans": {"orphan_files_count": "orphans"},
    "rewrite_manifests": {"entries_count": "entries"},
    "check": {"faults_count": "faults"},
    "table_health": {},
}
"""What is done; and what each answer must have, by the fact of the table (`scale_tables.make`) that it must be equal to."""

SCALE = Benchmark(
    about="plans and jobs over 1, 3 and 10 million files with 100,000 delete files, on a cluster with a driver of 2 GB",
    cases=dict(_cases()),
    quick=("*-1m",),
    trial=ScaleTrial,
    summary=print_growth,
)
