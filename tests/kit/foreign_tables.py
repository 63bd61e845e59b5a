"""Sound tables of three engines on the local disk: each is made once, spoilt as often as a test likes, and put back."""

import shutil
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from icekeep.catalog.base import Table
from icekeep.maintenance.manifests.job import rewrite_manifests
from icekeep.storage.locations import local_path
from kit.java import IcebergJava, JavaError
from kit.java_histories import ByJava
from kit.java_row_deletes import JavaTable
from kit.judging.judge import JudgeError
from kit.judging.panel import Panel
from kit.lake import Lake
from kit.no_spark import no_spark
from kit.our_histories import ByIcekeep
from kit.pyiceberg_histories import ByPyIceberg
from kit.row_histories import KINDS, SPECS, History, steps_of

PLAIN = tuple(kind for kind in KINDS if kind not in ("equality", "upsert"))
"""What may happen where no rows are deleted by their values, which not all judges read rightly."""


class Origin(NamedTuple):
    """Whose table it is, in which format version and files; all else follows from the seed."""

    engine: str
    version: int
    file_format: str
    seed: int
    is_plain: bool = True

    def __str__(self) -> str:
        return f"{self.engine}-v{self.version}-{self.file_format}-{'plain' if self.is_plain else 'all'}-{self.seed}"


def origins() -> list[Origin]:
    """Of each engine all that it can write: some without and some with equality deletes."""
    found = [
        Origin(engine, version, file_format, 0, is_plain)
        for engine in ("java", "icekeep")
        for version in (1, 2, 3)
        for file_format in ("parquet", "orc", "avro")
        for is_plain in (True, False)
    ]
    found += [Origin("pyiceberg", version, "parquet", 0) for version in (1, 2, 1, 2, 1, 2)]
    return [origin._replace(seed=100 + number) for number, origin in enumerate(found)]


def made(origin: Origin, lake: Lake, java: IcebergJava) -> History:
    """The table, with manifests that were rewritten half way, and entries that were there before."""
    by = {
        "java": lambda: ByJava(lake, java),
        "icekeep": lambda: _ForJava(lake.catalog),
        "pyiceberg": lambda: ByPyIceberg(lake),
    }[origin.engine]()
    history = History(by, origin.version, SPECS[origin.seed % len(SPECS)], (origin.file_format.upper(),))
    kinds = PLAIN if origin.is_plain else KINDS
    if origin.engine == "pyiceberg":
        # It writes no rows where two partition fields are of one column.
        kinds = tuple(kind for kind in kinds if kind != "spec")
    steps = [step for step in steps_of(origin.seed, kinds) if step[0] in kinds]
    half = len(steps) // 2
    history.went_on(steps[:half])
    if origin.engine == "java":
        java.call("local", "rewrite_manifests", table=f"db.{by.name}")
    elif origin.engine == "icekeep":
        rewrite_manifests(history.table, no_spark)
    return history.went_on(steps[half:]).went_on([("positions", origin.seed)])


class _ForJava(ByIcekeep):
    """Writes only what Java reads rightly."""

    holds = ByJava.holds
    deletes = ByJava.deletes


class Spoilable:
    """A sound table on the local disk of a SQL catalog, with a copy of its files from which it is put back."""

    def __init__(self, history: History, lake: Lake, copies: Path) -> None:
        table = history.table
        self.history, self.lake, self.identifier = history, lake, table.identifier
        self._metadata_location = table.metadata_location
        self._home = Path(local_path(table.metadata.location))
        self._copy = copies / table.identifier[-1]
        shutil.copytree(self._home, self._copy)

    def load(self) -> Table:
        """As the catalog has it now."""
        return self.lake.catalog.load(self.identifier)

    def files(self) -> Mapping[Path, bytes]:
        """All its files, with what is in them."""
        return {path: path.read_bytes() for path in self._home.rglob("*") if path.is_file()}

    def put_back(self) -> None:
        """Make it what it was, whatever was done to its files."""
        shutil.rmtree(self._home)
        shutil.copytree(self._copy, self._home)
        self.lake.catalog.drop(self.identifier)
        self.lake.catalog.register_table(self.identifier, self._metadata_location)


Judge = Callable[[Table], Counter[str]]


def judges_of(spoilable: Spoilable, java: IcebergJava, panel: Panel) -> Mapping[str, Judge]:
    """The engines that read the sound table as it is, each as its reader. What one cannot read, it does not judge."""
    table, expected = spoilable.load(), spoilable.history.expected()
    theirs = JavaTable(java, f"local.{table.name}")
    all_: dict[str, Judge] = {
        "Iceberg Java": lambda _: theirs.rows(),
        "Iceberg Java's Spark": lambda _: theirs.rows_of_spark(),
        # polars keeps manifests by their names for as long as it lives, and here they change under their names.
        **{judge.name: judge.rows for judge in panel.judges if judge.name != "polars"},
    }
    found = {name: judge for name, judge in all_.items() if _reads(judge, table, expected)}
    if "Iceberg Java" in found:
        # Its Spark alone applies deletes by columns that are no longer there.
        found.pop("Iceberg Java's Spark", None)
    return found


def _reads(judge: Judge, table: Table, expected: Counter[str]) -> bool:
    try:
        return judge(table) == expected
    except (JavaError, JudgeError):
        return False
