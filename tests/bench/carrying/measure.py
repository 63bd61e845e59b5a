"""How long compaction takes to carry a million deletes over, which others committed while it worked: the carrying alone.

    .venv/bin/python tests/bench/carrying/measure.py --rounds 3
    .venv/bin/python tests/bench/carrying/measure.py --kinds vectors --strategies sort --rows 100000 --deletes 10000

A table has 100 files of 100,000 rows. In each 99 rows are deleted, so that what a binpack keeps of it are 100 runs of rows whose
places follow from each other: 10,000 runs in all. It is compacted into one file, and when the compaction has planned, others
delete one row in ten: 1,000,000 deletes, as a deletion vector for each file (format version 3) or as a position delete file for
each (version 2). What is timed is the call by which a commit has the deletes carried over: they are read, each position is looked
up, and the deletes of the new file are written. A sort scatters all rows, so that there are as many runs as rows.

In the end PyIceberg reads the table: the number of rows and the sum of their ids must be what they are without the deleted ones.

"Commutative Compaction" (FORMATS '26) says 0.34 to 0.45 s for 1,000,000 deletes over 10,000 runs as vectors, and 1.8 to 2.3 s as
position deletes, of bin-packed files alone. Its figures hold the requests to cloud stores, on four cores; these are of a local
disk.
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[3] / "lib"), str(Path(__file__).parents[2])]

import msgspec  # noqa: E402 - the path comes first
import numpy as np  # noqa: E402
import pyarrow as pa  # noqa: E402
import pyarrow.compute as pc  # noqa: E402
from pyiceberg.table import StaticTable  # noqa: E402
from pyroaring import BitMap64  # noqa: E402

from bench.rival.watching import Watch  # noqa: E402
from icekeep.catalog.base import Table  # noqa: E402
from icekeep.catalog.open import open_catalog  # noqa: E402
from icekeep.commit.changes.deletes import RowDelta  # noqa: E402
from icekeep.commit.retry import commit  # noqa: E402
from icekeep.events import Event, StepStarted  # noqa: E402
from icekeep.formats.deletes.read import read_position_deletes, write_position_deletes  # noqa: E402
from icekeep.formats.puffin import VectorTarget, read_deletion_vector, write_deletion_vectors  # noqa: E402
from icekeep.maintenance.compact import carrying  # noqa: E402
from icekeep.maintenance.compact.execute import STEP  # noqa: E402
from icekeep.maintenance.compact.job import compact  # noqa: E402
from icekeep.spec.manifests.structs import DataFile, FileContent  # noqa: E402
from icekeep.spec.properties import data_directory  # noqa: E402
from icekeep.tables.verbs import append, create_table  # noqa: E402
from kit.deletes import data_files  # noqa: E402
from kit.naive_scan import live_entries  # noqa: E402
from kit.runtime import no_spark  # noqa: E402

KINDS = {"vectors": 3, "positions": 2}
STRATEGIES: dict[str, dict[str, str]] = {"binpack": {}, "sort": {"strategy": "sort", "sort_order": "key"}}
_SEED = 20260526


class Size(msgspec.Struct, frozen=True):
    files: int = 100
    rows: int = 100_000
    runs: int = 10_000
    deletes: int = 1_000_000


class Figure(msgspec.Struct, frozen=True):
    """One compaction: what carrying took, and the whole of it; `memory_mb` of all processes, which the table and its deletes
    were made in before.
    """

    kind: str
    strategy: str
    carried: int
    seconds: float
    cpu_seconds: float
    compaction_seconds: float
    memory_mb: int


class Beside:
    """The listener of a compaction, which lets a commit of others land when it has planned."""

    def __init__(self, table: Table, change: RowDelta) -> None:
        self._table, self._change = table, change
        self.has_landed = False

    def on(self, event: Event) -> None:
        if isinstance(event, StepStarted) and event.step == STEP and not self.has_landed:
            commit(self._table, self._change)
            self.has_landed = True


class Timed:
    """Takes the place of the library's call for as long as the block lasts, and sums up what it takes."""

    def __enter__(self) -> "Timed":
        self.seconds = self.cpu_seconds = 0.0
        self.carried = 0
        self._real = real = carrying.CarriedDeletes.carried

        def carried(*given: Any) -> Any:
            began, used = time.perf_counter(), time.process_time()
            found = real(*given)
            self.seconds += time.perf_counter() - began
            self.cpu_seconds += time.process_time() - used
            self.carried += sum(file.record_count for file in found.deletes)
            return found

        carrying.CarriedDeletes.carried = carried  # type: ignore[method-assign]
        return self

    def __exit__(self, *_: object) -> None:
        carrying.CarriedDeletes.carried = self._real  # type: ignore[method-assign]


def measured(kind: str, strategy: str, size: Size) -> Figure:
    with tempfile.TemporaryDirectory(prefix="carrying-") as directory:
        table = made(Path(directory), KINDS[kind], size)
        others, live = deletes(table, size)
        beside = Beside(table, others)
        with Watch() as watch, Timed() as timed:
            compact(
                table,
                no_spark,
                listener=beside,
                options={"rewrite-all": "true", "target-file-size-bytes": str(1 << 40)},
                **STRATEGIES[strategy],
            )
        check(table, live)
        return Figure(
            kind,
            strategy,
            timed.carried,
            timed.seconds,
            timed.cpu_seconds,
            watch.seconds,
            watch.total_bytes // 1_000_000,
        )


def made(directory: Path, version: int, size: Size) -> Table:
    """The table, in which some rows are deleted already, as far apart as there are to be runs."""
    catalog = open_catalog("bench", {"type": "filesystem", "warehouse": directory.as_uri()})
    catalog.create_namespace(("db",))
    numbers = np.random.default_rng(_SEED)
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("key", pa.int64())])
    table = create_table(catalog, ("db", "t"), schema, format_version=version)
    parts = [
        pa.table({"id": np.arange(n * size.rows, (n + 1) * size.rows), "key": numbers.integers(0, 1 << 40, size.rows)})
        for n in range(size.files)
    ]
    table = append(table, [part.cast(schema) for part in parts])
    a_file = size.runs // size.files
    step = size.rows // a_file
    bits = BitMap64(range(step - 1, size.rows - 1, step))
    return commit(table, _change(table, {file.file_path: bits for file in data_files(table)})).table


def deletes(table: Table, size: Size) -> tuple[RowDelta, tuple[int, int]]:
    """What others delete, not committed; and how many rows are live after it, with the sum of their ids."""
    numbers = np.random.default_rng(_SEED + 1)
    old = _deleted(table)
    new: dict[str, BitMap64] = {}
    count = total = 0
    for file in data_files(table):
        free = np.setdiff1d(np.arange(size.rows), np.fromiter(old[file.file_path], np.int64))
        chosen = numbers.choice(free, size.deletes // size.files, replace=False)
        new[file.file_path] = BitMap64(np.sort(chosen).tolist())
        first = int.from_bytes((file.lower_bounds or {})[1], "little")
        left = np.setdiff1d(free, chosen)
        count, total = count + len(left), total + int(left.sum()) + first * len(left)
    return _change(table, new), (count, total)


def _deleted(table: Table) -> dict[str, BitMap64]:
    found = {}
    for entry in live_entries(table):
        file = entry.data_file
        if file.content is FileContent.POSITION_DELETES:
            path = str(file.referenced_data_file)
            is_vector = file.content_offset is not None
            found[path] = (
                read_deletion_vector(table.storage, file)
                if is_vector
                else BitMap64(read_position_deletes(table.storage, file, path))
            )
    return found


def _change(table: Table, positions: dict[str, BitMap64]) -> RowDelta:
    """Deletes of positions in files of their own, or vectors with what the present ones hold."""
    files = {file.file_path: file for file in data_files(table)}
    place = f"{data_directory(table.metadata)}/deletes-{time.time_ns()}"
    if table.metadata.format_version < 3:
        written = [
            _position_file(table, f"{place}-{n}.parquet", files[path], bits)
            for n, (path, bits) in enumerate(positions.items())
        ]
        return RowDelta(added_deletes=tuple(written), named=frozenset(positions))
    old = [entry for entry in live_entries(table) if entry.data_file.content is FileContent.POSITION_DELETES]
    before = _deleted(table)
    targets = [
        (
            VectorTarget(location=path, spec_id=files[path].spec_id, partition=files[path].partition),
            bits | before.get(path, BitMap64()),
        )
        for path, bits in positions.items()
    ]
    vectors = write_deletion_vectors(table.storage, f"{place}.puffin", targets)
    return RowDelta(added_deletes=tuple(vectors), removed_deletes=tuple(old))


def _position_file(table: Table, location: str, file: DataFile, bits: BitMap64) -> DataFile:
    rows = pa.table({"file_path": pa.array([file.file_path] * len(bits)), "pos": pa.array(bits.to_array(), pa.int64())})
    return write_position_deletes(
        table.storage, location, "PARQUET", rows, spec_id=file.spec_id, partition=file.partition
    )


def check(table: Table, live: tuple[int, int]) -> None:
    """Raise where PyIceberg finds other rows than are live."""
    location = table.catalog.load(table.identifier).metadata_location
    ids = StaticTable.from_metadata(location).scan(selected_fields=("id",)).to_arrow().column("id")
    found = len(ids), pc.sum(ids).as_py()
    if found != live:
        raise SystemExit(f"PyIceberg finds {found} as rows and sum of ids, not {live}")


def main() -> None:
    given = _parser().parse_args()
    size = Size(given.files, given.rows, given.runs, given.deletes)
    figures: list[Figure] = []
    for _ in range(given.rounds):
        for kind in given.kinds:
            figures += [measured(kind, strategy, size) for strategy in given.strategies]
    print(
        f"{size.deletes:,} deletes over {size.runs:,} runs of {size.files * size.rows:,} rows, {os.cpu_count()} cores"
    )
    print("| deletes | compaction | carried | s, median (all) | processor s | whole compaction s | all processes MB |")
    print("|---|---|---|---|---|---|---|")
    for kind in given.kinds:
        for strategy in given.strategies:
            print(_line([f for f in figures if (f.kind, f.strategy) == (kind, strategy)]))
    if given.save is not None:
        given.save.write_bytes(msgspec.json.format(msgspec.json.encode({"size": size, "figures": figures})))


def _line(figures: Sequence[Figure]) -> str:
    seconds = [f.seconds for f in figures]
    return (
        f"| {figures[0].kind} | {figures[0].strategy} | {figures[0].carried:,} "
        f"| {statistics.median(seconds):.2f} ({', '.join(f'{one:.2f}' for one in seconds)}) "
        f"| {statistics.median(f.cpu_seconds for f in figures):.2f} "
        f"| {statistics.median(f.compaction_seconds for f in figures):.1f} | {max(f.memory_mb for f in figures):,} |"
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser()
    default = Size()
    for name in ("files", "rows", "runs", "deletes"):
        parser.add_argument(f"--{name}", type=int, default=getattr(default, name))
    parser.add_argument("--kinds", type=lambda text: text.split(","), default=[*KINDS])
    parser.add_argument("--strategies", type=lambda text: text.split(","), default=[*STRATEGIES])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--save", type=Path)
    return parser


if __name__ == "__main__":
    main()
