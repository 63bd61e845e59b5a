"""A catalog of many small tables of which some are sick, in ten ways in turn."""

import os
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlparse

from icekeep.catalog.base import Catalog, Table
from icekeep.maintenance.compact.job import compact
from icekeep.tables.verbs import append, create_table
from kit.deletes import data_files, delete_by_vector, delete_equal, delete_positions
from kit.lake import SCHEMA, events
from kit.runtime import no_spark

COMMITS = 20
ROWS = 50
_OLD_DAYS = 10


def _appended(table: Table, count: int = COMMITS, month: int = 1) -> Table:
    for number in range(count):
        table = append(table, [events(number, ROWS, month=month)])
    return table


def _small_files(table: Table) -> Table:
    return _appended(table)


def _small_files_in_partitions(table: Table) -> Table:
    for number in range(COMMITS):
        table = append(table, [events(number, ROWS, month=1 + number % 3)])
    return table


def _snapshots(table: Table) -> Table:
    for number in range(COMMITS):
        table = append(table, [events(number, ROWS)])
        if number % 7 == 6:
            compact(table, no_spark, options={"rewrite-all": True})
            table = table.refresh()
    return table


def _position_deletes(table: Table) -> Table:
    table = append(table, [events(number, ROWS) for number in range(4)])
    for number in range(COMMITS):
        table = delete_positions(table, [(data_files(table)[number % 4].file_path, number)])
    return table


def _equality_deletes(table: Table) -> Table:
    table = append(table, [events(number, ROWS) for number in range(4)])
    for number in range(COMMITS):
        table = delete_equal(table, events(number % 4, ROWS).slice(number, 1), ["id"])
    return table


def _vectors(table: Table) -> Table:
    table = append(table, [events(number, ROWS) for number in range(4)])
    for file in data_files(table):
        table = delete_by_vector(table, file.file_path, range(0, ROWS, 2))
    return table


def _orphans(table: Table) -> Table:
    table = append(table, [events(number, ROWS) for number in range(4)])
    directory = Path(urlparse(table.metadata.location).path) / "data"
    # Fewer than the fifth of all files at which orphan removal refuses.
    for number in range(2):
        orphan = directory / f"left-{number}.parquet"
        orphan.write_bytes(b"PAR1" * 1000)
        then = orphan.stat().st_mtime - _OLD_DAYS * 86_400
        os.utime(orphan, (then, then))
    return table


def _metadata(table: Table) -> Table:
    return _appended(table)


def _broken(table: Table) -> Table:
    table = _appended(table, 5)
    Path(urlparse(table.metadata_location).path).write_text("{")
    return table


def _refused(table: Table) -> Table:
    return _appended(table)


WAYS: dict[str, Callable[[Table], Table]] = {
    "small-files": _small_files,
    "partitions": _small_files_in_partitions,
    "snapshots": _snapshots,
    "position-deletes": _position_deletes,
    "equality-deletes": _equality_deletes,
    "vectors": _vectors,
    "orphans": _orphans,
    "metadata": _metadata,
    "broken": _broken,
    "refused": _refused,
}
_PROPERTIES = {"metadata": {"write.metadata.previous-versions-max": "2"}, "refused": {"gc.enabled": "false"}}


def fill(catalog: Catalog, tables_count: int, sick_count: int) -> None:
    """Make the tables, in namespace `db`; those that are sick are named after what they have."""
    ways = [*WAYS]
    for number in range(tables_count):
        is_sick = number * sick_count // tables_count != (number + 1) * sick_count // tables_count
        way = ways[number * sick_count // tables_count % len(ways)] if is_sick else ""
        name = f"t{number:04d}_{(way or 'well').replace('-', '_')}"
        table = create_table(
            catalog,
            ("db", name),
            SCHEMA,
            format_version=3 if way == "vectors" else 2,
            partition_by=[("at", "month")] if way == "partitions" else [],
            properties=_PROPERTIES.get(way, {}),
        )
        if way:
            WAYS[way](table)
        else:
            append(table, [events(number, ROWS)])
