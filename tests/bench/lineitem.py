"""TPC-H's lineitem as Iceberg tables of many small files, or of a few large ones, with and without row-level deletes.

    .venv/bin/python tests/bench/lineitem.py --table sf1-200-deletes --out .bench

`tpchgen-cli` makes the rows, Iceberg Java writes the data files (zstd), one of each part of the rows; PyIceberg does in a
table named `sf1-200-pyiceberg`. In a table with deletes one row in ten is deleted by position, by a file for each data file,
and one in a hundred by equality on its key, by ten files. A table that was made before is used again.
"""

import argparse
import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import urlparse

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog.memory import InMemoryCatalog

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench import clones, engines
from bench.engines import JAVAS, OURS, ROOT
from bench.processes import run
from icekeep.catalog.base import Catalog, Table
from icekeep.catalog.open import open_catalog
from icekeep.commit.changes.row_delta import RowDelta
from icekeep.commit.retry import commit
from icekeep.formats.arrow.projection import cast_to_schema
from icekeep.formats.deletes.files import write_equality_deletes, write_position_deletes
from icekeep.spec.layout import data_directory
from icekeep.spec.manifests.structs import DataFile
from icekeep.spec.schema import Schema
from kit.written_deletes import data_files

HERE = Path(__file__).resolve().parent
CACHE = ROOT / ".bench"
CATALOG = "bench"
NAMESPACE = "db"
KEY = ("l_orderkey", "l_linenumber")

_NAME = re.compile(r"sf(?P<scale>[0-9.]+)-(?P<files>[0-9]+)(?P<pyiceberg>-pyiceberg)?(?P<deletes>-deletes)?")
_BY_POSITION, _BY_EQUALITY = 0.1, 0.01
_EQUALITY_FILES = 10
_LARGEST_ROW_GROUP = 1 << 30
_SEED = 20130101


class Lineitem(msgspec.Struct, frozen=True):
    """A table of a scale factor in so many data files."""

    scale: str
    files: int
    has_deletes: bool
    by_pyiceberg: bool = False

    @property
    def name(self) -> str:
        writer = "-pyiceberg" if self.by_pyiceberg else ""
        return f"sf{self.scale}-{self.files}{writer}{'-deletes' if self.has_deletes else ''}"

    @property
    def table_name(self) -> str:
        """Its name in the catalog."""
        return self.name.replace("-", "_").replace(".", "_")

    @property
    def is_large(self) -> bool:
        """Whether its files are large enough already for their row groups to be copied."""
        return float(self.scale) >= 10

    @property
    def plain(self) -> "Lineitem":
        """The same data files without deletes."""
        return msgspec.structs.replace(self, has_deletes=False)


def parse_name(text: str) -> Lineitem:
    """A table by its name, such as `sf1-200-deletes`."""
    match = _NAME.fullmatch(text)
    if match is None:
        raise argparse.ArgumentTypeError(f"there is no table {text!r}; give one such as sf1-200 or sf1-200-deletes")
    return Lineitem(match["scale"], int(match["files"]), match["deletes"] is not None, match["pyiceberg"] is not None)


class Lake(msgspec.Struct, frozen=True):
    """Where the tables are kept: one catalog in the layout of Iceberg's HadoopCatalog."""

    directory: Path

    @property
    def warehouse(self) -> Path:
        return self.directory / "warehouse"

    @property
    def catalog(self) -> Catalog:
        return open_catalog(CATALOG, {"type": "hadoop", "warehouse": self.warehouse.as_uri()})

    def path(self, table: Lineitem) -> Path:
        return self.warehouse / NAMESPACE / table.table_name

    def load(self, table: Lineitem) -> Table:
        return self.catalog.load((NAMESPACE, table.table_name))

    def mark(self, table: Lineitem) -> Path:
        """A file that is there when the table is whole."""
        return self.directory / f"{table.name}.made"


def lineitem_lake(cache: Path) -> Lake:
    """The lake in a directory for what benchmarks keep."""
    return Lake((cache / "lineitem").absolute())


def made(table: Lineitem, cache: Path) -> Table:
    """The table, made if it is not there yet, and its files in the page cache."""
    lake = lineitem_lake(cache)
    for wanted in dict.fromkeys((table.plain, table)):
        if not lake.mark(wanted).exists():
            # In a process of its own: the memory that it takes is nobody's here.
            command = [sys.executable, __file__, "--table", wanted.name, "--out", str(cache)]
            subprocess.run(command, check=True)
    loaded = lake.load(table)
    for file in (lake.path(table.plain), lake.path(table)):
        for path in file.rglob("*.parquet"):
            path.read_bytes()
    return loaded


def make(table: Lineitem, lake: Lake) -> None:
    """Make a table anew, whatever is there of an earlier attempt."""
    shutil.rmtree(lake.path(table), ignore_errors=True)
    if table.has_deletes:
        clones.clone(lake.path(table.plain), lake.path(table))
        _delete_by_equality(_delete_by_position(lake.load(table)))
    else:
        _write(table, lake)
        _check(table, lake.load(table))
    lake.mark(table).touch()


def _write(table: Lineitem, lake: Lake) -> None:
    rows = lake.directory / "rows"
    shutil.rmtree(rows, ignore_errors=True)
    generator = [str(OURS / "tpchgen-cli"), "parquet", "--quiet", "--no-progress", "--tables=lineitem"]
    shape = [f"--scale-factor={table.scale}", f"--parts={table.files}", f"--output-dir={rows}"]
    subprocess.run([*generator, *shape, "--compression=ZSTD(1)"], check=True)
    if table.by_pyiceberg:
        _write_with_pyiceberg(rows / "lineitem", table, lake)
    else:
        _write_with_java(rows / "lineitem", table, lake)
    shutil.rmtree(rows)


def _write_with_pyiceberg(rows: Path, table: Lineitem, lake: Lake) -> None:
    """One append a file, through a catalog that is forgotten; icekeep's own then takes the table as its HadoopCatalog would."""
    parts = sorted(rows.iterdir())
    with TemporaryDirectory() as forgotten:
        catalog = InMemoryCatalog(CATALOG, warehouse=forgotten)
        catalog.create_namespace(NAMESPACE)
        written = catalog.create_table(
            (NAMESPACE, table.table_name), pq.read_schema(parts[0]), location=lake.path(table).as_uri()
        )
        for part in parts:
            written.append(pq.read_table(part))
    last = Path(urlparse(written.metadata_location).path)
    last.rename(last.with_name(f"v1{''.join(last.suffixes)}"))
    last.with_name("version-hint.text").write_text("1")


def _write_with_java(rows: Path, table: Lineitem, lake: Lake) -> None:
    spark = {
        **engines.spark_settings("4g"),
        **engines.java_catalog(CATALOG, lake.warehouse.as_uri()),
        "spark.driver.extraClassPath": ":".join(engines.jars()),
        # One task a file of rows, and so one data file.
        "spark.sql.files.maxPartitionBytes": str(1 << 40),
        "spark.sql.files.openCostInBytes": str(1 << 40),
    }
    request = {
        "spark": spark,
        "table": f"{CATALOG}.{NAMESPACE}.{table.table_name}",
        "rows": rows.as_uri(),
        "row_group_bytes": _LARGEST_ROW_GROUP,
    }
    script = str(HERE / "write_lineitem_with_java.py")
    run([str(JAVAS / "python"), script, json.dumps(request)], script)


def _check(table: Lineitem, loaded: Table) -> None:
    files = data_files(loaded)
    if len(files) != table.files or any(len(file.split_offsets or ()) != 1 for file in files):
        raise RuntimeError(f"{table.name} has {len(files)} files; it should have {table.files} of one row group each")


def _delete_by_position(table: Table) -> Table:
    """One row in ten of each data file."""
    numbers = np.random.default_rng(_SEED)
    files = data_files(table)
    deletes = []
    for number, file in enumerate(files):
        positions = np.flatnonzero(numbers.random(file.record_count) < _BY_POSITION)
        paths = pa.DictionaryArray.from_arrays(np.zeros(len(positions), np.int32), [file.file_path]).cast(pa.string())
        deletes.append(
            write_position_deletes(
                table.storage,
                f"{data_directory(table.metadata)}/positions-{number:05}.parquet",
                "PARQUET",
                pa.table({"file_path": paths, "pos": pa.array(positions, pa.int64())}),
                spec_id=file.spec_id,
            )
        )
    return commit(
        table, RowDelta(added_deletes=tuple(deletes), named=frozenset(file.file_path for file in files))
    ).table


def _delete_by_equality(table: Table) -> Table:
    """One row in a hundred of the table, whose keys are spread over the delete files."""
    schema = Schema(fields=tuple(field for field in table.metadata.schema.fields if field.name in KEY))
    keys = pa.concat_tables(_keys(data_files(table)))
    keys = keys.take(np.random.default_rng(_SEED).permutation(keys.num_rows))
    share = -(-keys.num_rows // _EQUALITY_FILES)
    deletes = [
        write_equality_deletes(
            table.storage,
            f"{data_directory(table.metadata)}/keys-{number:05}.parquet",
            "PARQUET",
            cast_to_schema(keys.slice(number * share, share), schema),
            [field.field_id for field in schema.fields],
            schema,
            spec_id=0,
        )
        for number in range(_EQUALITY_FILES)
    ]
    return commit(table, RowDelta(added_deletes=tuple(deletes))).table


def _keys(files: list[DataFile]) -> Iterator[pa.Table]:
    numbers = np.random.default_rng(_SEED + 1)
    for file in files:
        keys = pq.read_table(urlparse(file.file_path).path, columns=list(KEY))
        yield keys.take(np.flatnonzero(numbers.random(keys.num_rows) < _BY_EQUALITY))


def main() -> None:
    parser = argparse.ArgumentParser(description="Make a table of TPC-H's lineitem.")
    parser.add_argument("--table", type=parse_name, required=True, help="such as sf1-200 or sf1-200-deletes")
    parser.add_argument("--out", type=Path, default=CACHE, help="where tables are kept (default: %(default)s)")
    given = parser.parse_args()
    lake = lineitem_lake(given.out)
    lake.directory.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    make(given.table, lake)
    print(f"{given.table.name} made in {time.monotonic() - began:.1f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
