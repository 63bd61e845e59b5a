"""Tables as a CDC writer such as Flink's leaves them: small data files, and delete files of both kinds in every commit.

Orders are inserted, updated and deleted by key. The table is partitioned by buckets of the key, for a CDC writer needs the
key's columns to partition by; with one partition it is unpartitioned, where equality deletes are for all files. Each
checkpoint is one commit that adds to each partition some data files, a position delete file for each (what the checkpoint
inserted and updated again), and one equality delete file (keys of earlier checkpoints that were updated or deleted). In
format version 3 positions are deleted by vectors, one Puffin file a partition.

What is live is known without any delete file: the last row of each key that was not deleted. A second table holds just that.
"""

from collections.abc import Iterator
from typing import ClassVar
from urllib.parse import urlparse

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from msgspec.structs import replace
from numpy.typing import NDArray
from pyroaring import BitMap64

from bench.tables.kept import IDENTIFIER, NAMESPACE, Kept
from icekeep.catalog.base import Table
from icekeep.commit.changes.deletes import RowDelta
from icekeep.commit.retry import commit
from icekeep.formats.arrow.projection import cast_to_schema
from icekeep.formats.deletes.read import write_equality_deletes, write_position_deletes
from icekeep.formats.options import write_options
from icekeep.formats.puffin import VectorTarget, write_deletion_vectors
from icekeep.formats.sort.keys import transformed
from icekeep.formats.writer import DataFileWriter
from icekeep.spec.manifests.structs import DataFile
from icekeep.spec.properties import data_directory
from icekeep.spec.schema import Schema
from icekeep.spec.transforms import parse_transform
from icekeep.spec.types import LONG
from icekeep.tables.verbs import append, create_table

LIVE = (NAMESPACE, "live")
"""The table that holds the live rows and no deletes, in the same warehouse."""

_KEY = "o_orderkey"
_UPDATED, _GONE, _AGAIN = 0.08, 0.02, 0.05
"""Shares of a checkpoint's rows: updates of earlier rows; as many more earlier rows are deleted; rows that it updates again."""

_SEED = 20130101
_FIRST_MOMENT_US = 1_700_000_000_000_000
_STATUSES, _PRIORITIES = ("F", "O", "P"), ("1-URGENT", "2-HIGH", "3-MEDIUM", "4-NOT SPECIFIED", "5-LOW")
_WORDS = ("carefully", "final", "deposits", "sleep", "ironic", "requests", "above", "blithe", "packages", "haggle")

_Keys = NDArray[np.int64]


class Changes(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """How many files a table has; each checkpoint adds one equality delete file to each partition.

    Attributes:
        position_deletes: files, or deletion vectors where `format_version` is 3.
        partitions: with one the table is unpartitioned.
    """

    data_files: int = 20_000
    position_deletes: int = 20_000
    equality_deletes: int = 2_000
    partitions: int = 20
    rows_a_file: int = 500
    format_version: int = 2

    read: ClassVar[tuple[str, ...]] = ("*.*",)
    is_restored: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.equality_deletes % self.partitions:
            raise ValueError(
                f"{self.equality_deletes} equality deletes cannot be dealt out to {self.partitions} partitions"
            )
        if self.data_files % self.equality_deletes or self.position_deletes % self.equality_deletes:
            raise ValueError(f"files cannot be dealt out evenly to {self.equality_deletes} equality deletes")
        if self.position_deletes > self.data_files:
            raise ValueError("there is at most one position delete file a data file")

    @property
    def checkpoints(self) -> int:
        return self.equality_deletes // self.partitions

    @property
    def files_at_once(self) -> int:
        """Data files that a checkpoint adds to a partition."""
        return self.data_files // self.equality_deletes

    @property
    def deletes_at_once(self) -> int:
        """Position delete files that a checkpoint adds to a partition."""
        return self.position_deletes // self.equality_deletes

    @property
    def name(self) -> str:
        counts = f"{self.data_files}-{self.position_deletes}-{self.equality_deletes}"
        return f"changes-{counts}-in-{self.partitions}-of-{self.rows_a_file}-v{self.format_version}"

    @property
    def small(self) -> "Changes":
        few = {"data_files": 40, "position_deletes": 40, "equality_deletes": 4}
        return replace(self, **few, partitions=min(2, self.partitions))


def make(table: Kept) -> dict[str, int]:
    """Make a table and one of its live rows; how many these are."""
    catalog, shape = table.catalog, table.shape
    catalog.create_namespace((NAMESPACE,), exists_ok=True)
    current = create_table(
        catalog,
        IDENTIFIER,
        _ORDERS,
        partition_by=[(_KEY, f"bucket[{shape.partitions}]")] if shape.partitions > 1 else (),
        properties={"write.parquet.compression-codec": "zstd", "write.delete.parquet.compression-codec": "zstd"},
        format_version=shape.format_version,
    )
    writers = [_PartitionWriter(current, shape, bucket, keys) for bucket, keys in enumerate(_keys(shape))]
    for checkpoint in range(shape.checkpoints):
        added: list[DataFile] = []
        deletes: list[DataFile] = []
        for writer in writers:
            data, deletes_of_data = writer.write(checkpoint)
            added += data
            deletes += deletes_of_data
        change = RowDelta(
            added=tuple(added),
            added_deletes=tuple(deletes),
            summary={"flink.max-committed-checkpoint-id": str(checkpoint + 1)},
        )
        current = commit(current, change).table
    # One file for each partition of the other table.
    append(create_table(catalog, LIVE, _ORDERS), (writer.live_rows() for writer in writers))
    return {"rows": sum(len(writer.live) for writer in writers)}


_ORDERS = pa.schema(
    [
        pa.field(_KEY, pa.int64(), nullable=False),
        ("o_custkey", pa.int64()),
        ("o_orderstatus", pa.string()),
        ("o_totalprice", pa.decimal128(12, 2)),
        ("o_orderdate", pa.date32()),
        ("o_orderpriority", pa.string()),
        ("o_comment", pa.string()),
        ("updated_at", pa.timestamp("us", "UTC")),
    ]
)


class _PartitionWriter:
    """Writes what each checkpoint adds to one partition.

    Attributes:
        live: keys that have a row now, each one.
    """

    def __init__(self, table: Table, changes: Changes, bucket: int, keys: _Keys) -> None:
        self.live: _Keys = np.empty(0, np.int64)
        self._table, self._changes = table, changes
        self._bucket = bucket
        self._partition = (bucket,) if changes.partitions > 1 else ()
        self._unused = keys
        self._written: list[str] = []
        self._numbers = np.random.default_rng((_SEED, bucket))
        metadata = table.metadata
        self._options = write_options(metadata.properties, metadata.schema)
        self._key_schema = Schema(fields=metadata.schema.fields[:1])
        self._comments = pa.array([" ".join(self._numbers.choice(_WORDS, 6)) for _ in range(1000)])

    def write(self, checkpoint: int) -> tuple[list[DataFile], list[DataFile]]:
        """The data files and the delete files of a checkpoint."""
        shape, prefix = self._changes, f"{data_directory(self._table.metadata)}/{self._bucket:03}/{checkpoint:05}"
        rows_count = shape.files_at_once * shape.rows_a_file
        updated, gone = self._earlier(int(rows_count * _UPDATED), int(rows_count * _GONE))
        again = max(1, int(shape.rows_a_file * _AGAIN))
        with_deletes = shape.deletes_at_once
        new_count = rows_count - len(updated) - with_deletes * again
        new, self._unused = self._unused[:new_count], self._unused[new_count:]
        keys = self._numbers.permutation(np.concatenate([updated, new]))
        files, positions, begin = [], [], 0
        for number in range(shape.files_at_once):
            again_count = again if number < with_deletes else 0
            own = keys[begin : begin + shape.rows_a_file - again_count]
            begin += len(own)
            # The last rows of the file update some of those before them.
            old = np.sort(self._numbers.choice(len(own), again_count, replace=False))
            table = self._rows(np.concatenate([own, own[old]]), checkpoint)
            files.append(self._data_file(table, f"{prefix}-{number:03}.parquet"))
            positions.append(old)
        self._written += [urlparse(file.file_path).path for file in files]
        deletes = [*self._position_deletes(files, positions, prefix)]
        deleted = np.concatenate([updated, gone])
        # The first checkpoint has nothing to delete; a key that nobody has keeps the number of files.
        deletes.append(self._equality_deletes(deleted if len(deleted) else np.array([-1]), prefix))
        kept = np.setdiff1d(self.live, deleted, assume_unique=True)
        self.live = np.concatenate([kept, keys])
        return files, deletes

    def live_rows(self) -> pa.Table:
        """The last row of each live key, of all that was written."""
        rows = pq.read_table(self._written)
        keys = rows[_KEY].to_numpy()
        # Of a key that is there twice the first place in reverse order.
        found, from_the_end = np.unique(keys[::-1], return_index=True)
        last = (len(keys) - 1 - from_the_end)[np.isin(found, self.live, assume_unique=True)]
        return rows.take(pa.array(np.sort(last)))

    def _earlier(self, updated_count: int, gone_count: int) -> tuple[_Keys, _Keys]:
        """Keys of earlier checkpoints to update and to delete, none twice."""
        count = min(len(self.live), updated_count + gone_count)
        chosen = self._numbers.choice(self.live, count, replace=False)
        return chosen[:updated_count], chosen[updated_count:]

    def _rows(self, keys: _Keys, checkpoint: int) -> pa.Table:
        numbers, count = self._numbers, len(keys)
        cents = numbers.integers(100_000, 50_000_000, count)
        moments = _FIRST_MOMENT_US + checkpoint * 60_000_000 + np.sort(numbers.integers(0, 60_000_000, count))
        columns = [
            pa.array(keys),
            pa.array(numbers.integers(1, 150_000, count)),
            pa.array(_STATUSES).take(pa.array(numbers.integers(0, len(_STATUSES), count))),
            _decimals(cents),
            pa.array(numbers.integers(8_035, 10_440, count).astype(np.int32)).cast(pa.date32()),
            pa.array(_PRIORITIES).take(pa.array(numbers.integers(0, len(_PRIORITIES), count))),
            self._comments.take(pa.array(numbers.integers(0, len(self._comments), count))),
            pa.array(moments).cast(pa.timestamp("us", "UTC")),
        ]
        return cast_to_schema(pa.Table.from_arrays(columns, schema=_ORDERS), self._table.metadata.schema)

    def _data_file(self, rows: pa.Table, location: str) -> DataFile:
        metadata = self._table.metadata
        with DataFileWriter(
            self._table.storage,
            metadata.schema,
            self._options,
            lambda: location,
            spec_id=metadata.default_spec_id,
            partition=self._partition,
        ) as writer:
            writer.write(rows)
            (file,) = writer.close()
        return file

    def _position_deletes(
        self, files: list[DataFile], positions: list[NDArray[np.int64]], prefix: str
    ) -> Iterator[DataFile]:
        named = [(file, some) for file, some in zip(files, positions, strict=True) if len(some)]
        if self._changes.format_version > 2:
            vectors = [
                (VectorTarget(location=file.file_path, spec_id=file.spec_id, partition=file.partition), BitMap64(some))
                for file, some in named
            ]
            if vectors:
                yield from write_deletion_vectors(self._table.storage, f"{prefix}-vectors.puffin", vectors)
            return
        for number, (file, some) in enumerate(named):
            paths = pa.DictionaryArray.from_arrays(np.zeros(len(some), np.int32), [file.file_path]).cast(pa.string())
            yield write_position_deletes(
                self._table.storage,
                f"{prefix}-{number:03}-positions.parquet",
                "PARQUET",
                pa.table({"file_path": paths, "pos": pa.array(some, pa.int64())}),
                spec_id=file.spec_id,
                partition=file.partition,
                properties=self._table.metadata.properties,
            )

    def _equality_deletes(self, keys: _Keys, prefix: str) -> DataFile:
        return write_equality_deletes(
            self._table.storage,
            f"{prefix}-keys.parquet",
            "PARQUET",
            cast_to_schema(pa.table({_KEY: keys}), self._key_schema),
            [self._key_schema.fields[0].field_id],
            self._key_schema,
            spec_id=self._table.metadata.default_spec_id,
            partition=self._partition,
            properties=self._table.metadata.properties,
        )


def _keys(changes: Changes) -> list[_Keys]:
    """For each partition the keys that its orders may have."""
    most = changes.data_files * changes.rows_a_file
    if changes.partitions == 1:
        return [np.arange(1, most + 1)]
    # Buckets are not quite even, so that there must be some more.
    keys = np.arange(1, int(most * 1.2) + 10_000 * changes.partitions)
    buckets, _ = transformed(pa.array(keys), LONG, parse_transform(f"bucket[{changes.partitions}]"))
    numbers = buckets.to_numpy()
    return [keys[numbers == bucket] for bucket in range(changes.partitions)]


def _decimals(cents: NDArray[np.int64]) -> pa.Array:
    """Whole cents as decimals of two places: 16 bytes each, lowest first."""
    wide = np.zeros((len(cents), 2), np.int64)
    wide[:, 0] = cents
    return pa.Array.from_buffers(pa.decimal128(12, 2), len(cents), [None, pa.py_buffer(wide.tobytes())])
