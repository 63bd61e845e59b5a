"""Rows as data files of a table's current schema and spec, which no snapshot has yet."""

from collections.abc import Callable, Iterator
from functools import partial

import pyarrow as pa

from icekeep.catalog.base import Table
from icekeep.formats.arrow.projection import cast_to_schema
from icekeep.formats.partitioner import split_by_partition
from icekeep.formats.rolling_writer import DataFileWriter
from icekeep.formats.write_options import WriteOptions
from icekeep.spec.manifests.structs import DataFile
from icekeep.spec.partitioning import partition_path


def new_files(
    table: Table, rows: pa.Table, options: WriteOptions, new_location: Callable[[str], str]
) -> Iterator[DataFile]:
    """Write rows, split by partition, and give each file when it is whole.

    Args:
        rows: of columns with the names of the table's.
        new_location: of the next file, from the path of its partition.

    Raises:
        UsageError: the columns do not fit the table's, a required one is null, or missing and without a default.
        UnsupportedError: a column's type or the table's partition spec cannot be written.
    """
    metadata = table.metadata
    for partition, part in split_by_partition(cast_to_schema(rows, metadata.schema), metadata.spec, metadata.schema):
        path = partition_path(metadata.spec, metadata.schema, partition)
        with DataFileWriter(
            table.storage,
            metadata.schema,
            options,
            partial(new_location, path),
            spec_id=metadata.default_spec_id,
            partition=partition,
        ) as writer:
            writer.write(part)
            yield from writer.close()
