"""Makes the tables of the examples, step by step."""

import hashlib
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from icekeep.catalog.base import Table
from icekeep.commit.changes.deletes import RowDelta
from icekeep.commit.retry import commit
from icekeep.formats.arrow.schema import arrow_schema
from icekeep.formats.deletes.read import write_equality_deletes
from icekeep.formats.puffin import footer_of
from icekeep.spec.properties import data_directory
from icekeep.spec.schema import Schema
from icekeep.storage.locations import local_path
from icekeep.tables.verbs import append, create_table, update_schema, update_spec, upgrade_format_version
from kit.judging.example_rows import (
    IMPORTED,
    ROWS,
    SCHEMA,
    Keys,
)
from kit.lake import Lake
from kit.naive_scan import live_entries
from kit.written_deletes import data_files, delete_by_vector, delete_equal, delete_positions, vector_files

BLOCK_BYTES = 65_536
"""More than a writer of Avro puts into one block."""


class Builder:
    """Makes one table, step by step, by the library's own writers."""

    def __init__(self, lake: Lake, name: str) -> None:
        self._lake, self._catalog, self._identifier = lake, lake.catalog, ("db", name)

    @property
    def table(self) -> Table:
        return self._catalog.load(self._identifier)

    def filled(
        self,
        *,
        version: int = 2,
        partition_by: Sequence[tuple[str, str]] = (),
        file_format: str = "parquet",
        codec: str = "gzip",
    ) -> "Builder":
        """A new table with all rows, whose data files are in one format, and whose manifests have a codec."""
        properties = {"write.format.default": file_format, "write.manifest.compression-codec": codec}
        create_table(
            self._catalog,
            self._identifier,
            SCHEMA,
            partition_by=partition_by,
            properties=properties,
            format_version=version,
        )
        return self.append(ROWS)

    def of(
        self,
        schema: pa.Schema,
        *rows: Mapping[str, Any],
        version: int = 2,
        partition_by: Sequence[tuple[str, str]] = (),
        file_format: str = "parquet",
    ) -> "Builder":
        """A new table of other columns, with these rows."""
        create_table(
            self._catalog,
            self._identifier,
            schema,
            partition_by=partition_by,
            properties={"write.format.default": file_format},
            format_version=version,
        )
        if rows:
            append(self.table, pa.Table.from_pylist(list(rows), schema=schema))
        return self

    def split(self) -> "Builder":
        """A new table of one Avro file, of a block a row, which engines read in as many splits."""
        properties = {
            "write.format.default": "avro",
            "read.split.target-size": str(BLOCK_BYTES),
            "read.split.open-file-cost": "0",
        }
        create_table(self._catalog, self._identifier, SCHEMA, properties=properties)
        words = [hashlib.shake_128(bytes([n])).hexdigest(BLOCK_BYTES) for n in range(1, 7)]
        return self.append([(n, word, n, float(n)) for n, word in enumerate(words, 1)])

    def imported(self, *, is_outside: bool = False, **options: Any) -> "Builder":
        """A new table of a file that no writer of Iceberg made: it has no field ids.

        Args:
            is_outside: that the file is not below the table's location.
            options: of PyArrow's writer.
        """
        table = create_table(self._catalog, self._identifier, IMPORTED)
        path = (self._lake.directory if is_outside else Path(local_path(table.metadata.location))) / "imported.parquet"
        rows = pa.table({"id": [1, 2], "five": [b"12345", None], "words": [["a", None], None]}, schema=IMPORTED)
        pq.write_table(rows, path, use_dictionary=not options, **options)
        self._lake.foreign_catalog().load_table(self._identifier).add_files(
            # So Iceberg Java names a file that it is given by its path.
            [f"file:{path}" if is_outside else path.as_uri()]
        )
        return self

    def append(self, rows: Sequence[tuple[Any, ...]]) -> "Builder":
        """Rows of the first columns of the table."""
        schema = arrow_schema(self.table.metadata.schema)
        names = schema.names[: len(rows[0])]
        told = [dict(zip(names, row, strict=True)) for row in rows]
        append(self.table, pa.Table.from_pylist(told, schema=pa.schema([schema.field(name) for name in names])))
        return self

    def equal(self, keys: Keys, *, place: int = 0, file_format: str = "PARQUET") -> "Builder":
        """Rows that equal one of these are deleted, in the partition of the data file at a place."""
        told = list(keys)
        schema = arrow_schema(self.table.metadata.schema)
        rows = pa.Table.from_pylist(told, schema=pa.schema([schema.field(name) for name in told[0]]))
        delete_equal(self.table, rows, list(told[0]), like=data_files(self.table)[place], file_format=file_format)
        return self

    def equal_points(self, rows: Keys) -> "Builder":
        """Rows whose `x` in the struct `point` equals that of one of these are deleted."""
        table = self.table
        point = table.metadata.schema.field("point")
        columns = Schema(fields=(point,))
        file = write_equality_deletes(
            table.storage,
            f"{data_directory(table.metadata)}/points.parquet",
            "PARQUET",
            pa.Table.from_pylist(list(rows), schema=arrow_schema(columns)),
            [point.type.fields[0].field_id],
            columns,
            spec_id=0,
            partition=(),
        )
        commit(table, RowDelta(added_deletes=(file,)))
        return self

    def positions(self, *places: int, position: int = 0, file_format: str = "PARQUET") -> "Builder":
        """A row of the data files at some places, or of the first, is deleted by one file of position deletes."""
        files = data_files(self.table)
        delete_positions(self.table, [(files[place].file_path, position) for place in places or (0,)], file_format)
        return self

    def vector(self, position: int = 0) -> "Builder":
        """A row of the first data file is deleted by a deletion vector."""
        delete_by_vector(self.table, data_files(self.table)[0].file_path, [position])
        return self

    def vectors(self) -> "Builder":
        """The first row of each data file is deleted by a vector; all are in one Puffin file."""
        files = vector_files(self.table, [(file, 0) for file in data_files(self.table)], [])
        commit(self.table, RowDelta(added_deletes=files))
        return self

    def given_up(self) -> "Builder":
        """The table gives up one of its vectors."""
        gone = next(entry for entry in live_entries(self.table) if entry.data_file.content_offset is not None)
        commit(self.table, RowDelta(removed_deletes=(gone,)))
        return self

    def damaged(self) -> "Builder":
        """The vectors of a Puffin file that the table has no more are spoilt."""
        live = [entry.data_file for entry in live_entries(self.table) if entry.data_file.content_offset is not None]
        path = Path(local_path(live[0].file_path))
        data = bytearray(path.read_bytes())
        for blob in footer_of(io.BytesIO(data), str(path)).blobs:
            if blob.offset not in {file.content_offset for file in live}:
                # How many bitmaps it has, behind its length and the magic number.
                data[blob.offset + 9] ^= 0xFF
        path.write_bytes(data)
        return self

    def raised(self) -> "Builder":
        """The format version is raised to 2, and nothing else."""
        upgrade_format_version(self.table, 2)
        return self

    def columns(self, *changes: Any) -> "Builder":
        """The schema is changed."""
        update_schema(self.table, changes)
        return self

    def fields(self, *changes: Any) -> "Builder":
        """The partition spec is changed."""
        update_spec(self.table, changes)
        return self
