"""Trials whose rivals each work on copies of a table, which Spark with Iceberg's own reader then reads whole."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.runner.figures import Fact, Figures, console
from bench.runner.processes import RivalFailedError
from bench.runner.rivals import RIVALS, Rival, ask, catalog_of, spark_settings
from bench.runner.trial import BENCH, SMALL, Trial, target
from bench.tables.kept import NAMESPACE

COPY = "copy"
_SCANS = 4
"""One scan each told apart what the machine did meanwhile, not the files."""


class CopiedTrial(Trial):
    """Copies must hold the rows of `reference`, a table in the catalog `bench`."""

    room = "compaction"
    reference = (NAMESPACE, "kept")

    def warehouses(self, *rivals: str) -> dict[str, Path]:
        own = {catalog_of(rival): self.directory / rival for rival in rivals}
        return {BENCH: self.table.warehouse, **own}

    def targets(self, rival: Rival) -> dict[str, Any]:
        sources = {"table": (self.table, COPY), "small": (self.small, SMALL)}
        found = {}
        for key, (source, name) in sources.items():
            copy = str(self.directory / rival.name / NAMESPACE / name)
            clone = ["clone", str(source.path), copy, *self.properties]
            found[key] = target(
                catalog_of(rival.name), f"{NAMESPACE}.{name}", clone, ["written", copy], path=Path(copy)
            )
        return found

    def asks(self, rival: Rival) -> Mapping[str, Any]:
        return {"arguments": {}, "options": self.options}

    @property
    def options(self) -> dict[str, str]:
        """Iceberg's, for all rivals."""
        raise NotImplementedError

    @property
    def properties(self) -> list[str]:
        """Of the copies, each as NAME=VALUE."""
        return []

    def places(self, figures: Sequence[Figures]) -> dict[str, tuple[str, str]]:
        """The catalog and the name of the copy that each rival left."""
        return {f.rival: (catalog_of(f.rival), f"{NAMESPACE}.{COPY}") for f in figures}

    def find(self, figures: Sequence[Figures]) -> Mapping[str, Mapping[str, Fact]]:
        places = self.places(figures)
        names = {rival: ".".join(place) for rival, place in places.items()}
        names[BENCH] = ".".join((BENCH, *self.reference))
        found = ask(
            "java",
            "bench.compaction.with_java",
            "scan",
            spark=spark_settings(RIVALS["java"], self.driver_memory(RIVALS["java"]), self.warehouses(*places)),
            tables=list(names.values()),
            repeat=max(_SCANS, self.case.runs - 1, self.case.rounds - 1),
        )
        self.sums = {rival: found[name]["sums"] for rival, name in names.items()}
        console.print(f"{names[BENCH]}: a scan takes {found[names[BENCH]]['seconds']:.2f} s")
        return {
            f.rival: {
                "files": f.runs[-1].left["files"],
                "MB written": f.runs[-1].left["bytes"] / 1e6,
                "scan s": found[names[f.rival]]["seconds"],
                "scan CPU s": found[names[f.rival]]["cpu_seconds"],
            }
            for f in figures
        }

    def check(self, figures: Sequence[Figures]) -> None:
        """Raise where a copy holds other rows than it must: their number, and the sum of hashes of each whole row."""
        wanted = self.sums[BENCH]
        if wrong := sorted(rival for rival, sums in self.sums.items() if sums != wanted):
            raise RivalFailedError(
                f"rows are not those of the table in the output of {' and '.join(wrong)}: {self.sums}"
            )
        console.print(f"all hold the same {wanted[0]:,} rows")
