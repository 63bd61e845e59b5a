"""TPC-H's lineitem as Iceberg tables of many small files, or of a few large ones, with and without row-level deletes.

`tpchgen-cli` makes the rows, Iceberg Java writes the data files (zstd), one of each part of the rows, or PyIceberg does. In a
table with deletes one row in ten is deleted by position, by a file for each data file, and one in a hundred by equality on its
key, by ten files; its data files are those of the table without.
"""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import ClassVar
from urllib.parse import urlparse

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from msgspec.structs import replace
from pyiceberg.catalog.memory import InMemoryCatalog

from bench.runner.rivals import OURS, RIVALS, ask, spark_settings
from bench.tables import copies
from bench.tables.kept import IDENTIFIER, NAMESPACE, Kept, made
from icekeep.catalog.base import Table
from icekeep.commit.changes.deletes import RowDelta
from icekeep.commit.retry import commit
from icekeep.formats.arrow.projection import cast_to_schema
from icekeep.formats.deletes.read import write_equality_deletes, write_position_deletes
from icekeep.spec.manifests.structs import DataFile
from icekeep.spec.properties import data_directory
from icekeep.spec.schema import Schema
from kit.deletes import data_files

KEY = ("l_orderkey", "l_linenumber")

_BY_POSITION, _BY_EQUALITY = 0.1, 0.01
_EQUALITY_FILES = 10
_LARGEST_ROW_GROUP = 1 << 30
_SEED = 20130101


class Lineitem(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A table of a scale factor in so many data files."""

    scale: str
    files: int
    has_deletes: bool = False
    by_pyiceberg: bool = False

    read: ClassVar[tuple[str, ...]] = ("*.parquet",)
    is_restored: ClassVar[bool] = False

    @property
    def name(self) -> str:
        writer = "-pyiceberg" if self.by_pyiceberg else ""
        return f"sf{self.scale}-{self.files}{writer}{'-deletes' if self.has_deletes else ''}"

    @property
    def small(self) -> "Lineitem":
        return replace(self, scale="0.01", files=20)

    @property
    def plain(self) -> "Lineitem":
        """The same data files without deletes."""
        return replace(self, has_deletes=False)


def make(table: Kept) -> dict[str, int]:
    """Make a table; how many data files it has."""
    shape = table.shape
    if shape.has_deletes:
        copies.clone(made(shape.plain, table.directory.parent).path, table.path)
        _delete_by_equality(_delete_by_position(table.load()))
    else:
        _write(table)
        _check(shape, table.load())
    return {"files": shape.files}


def _write(table: Kept) -> None:
    shape, rows = table.shape, table.directory / "rows"
    generator = [str(OURS / "tpchgen-cli"), "parquet", "--quiet", "--no-progress", "--tables=lineitem"]
    sizes = [f"--scale-factor={shape.scale}", f"--parts={shape.files}", f"--output-dir={rows}"]
    subprocess.run([*generator, *sizes, "--compression=ZSTD(1)"], check=True)
    write = _write_with_pyiceberg if shape.by_pyiceberg else _write_with_java
    write(rows / "lineitem", table)
    shutil.rmtree(rows)


def _write_with_pyiceberg(rows: Path, table: Kept) -> None:
    """One append a file, through a catalog that is forgotten; icekeep's own then takes the table as its HadoopCatalog would."""
    parts = sorted(rows.iterdir())
    with TemporaryDirectory() as forgotten:
        catalog = InMemoryCatalog("forgotten", warehouse=forgotten)
        catalog.create_namespace(NAMESPACE)
        written = catalog.create_table(IDENTIFIER, pq.read_schema(parts[0]), location=table.path.as_uri())
        for part in parts:
            written.append(pq.read_table(part))
    last = Path(urlparse(written.metadata_location).path)
    last.rename(last.with_name(f"v1{''.join(last.suffixes)}"))
    last.with_name("version-hint.text").write_text("1")


def _write_with_java(rows: Path, table: Kept) -> None:
    # One task a file of rows, and so one data file.
    one_a_file = {f"spark.sql.files.{name}": str(1 << 40) for name in ("maxPartitionBytes", "openCostInBytes")}
    ask(
        "java",
        "bench.jobs.with_java",
        "write_lineitem",
        spark=spark_settings(RIVALS["java"], "4g", {"bench": table.warehouse}) | one_a_file,
        table={"catalog": "bench", "name": table.name},
        rows=rows.as_uri(),
        row_group_bytes=_LARGEST_ROW_GROUP,
    )


def _check(shape: Lineitem, loaded: Table) -> None:
    files = data_files(loaded)
    if len(files) != shape.files or any(len(file.split_offsets or ()) != 1 for file in files):
        raise RuntimeError(f"{shape.name} has {len(files)} files; it should have {shape.files} of one row group each")


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
