"""The function `file_layout`: how the files of a table lie in its partitions, of as many as fit a picture."""

from typing import Unpack

import msgspec

from icekeep.catalog.base import Table
from icekeep.errors import UsageError
from icekeep.planning.scan.plan import VersionArguments, few_files, open_scan
from icekeep.rendered import Rendered
from icekeep.spec.filters.expressions import ALWAYS_TRUE, Expression
from icekeep.spec.manifests.write import PartitionCodec

__all__ = ["FileLayout", "file_layout"]

FILES_MAX = 20_000
_COLUMNS = ("file_path", "spec_id", "partition", "file_size_in_bytes", "record_count")


class LaidFile(msgspec.Struct, frozen=True, kw_only=True):
    """A data file; `deletes_count` is how many delete files and vectors a reader applies to it."""

    bytes: int
    record_count: int
    deletes_count: int


class LaidPartition(msgspec.Struct, frozen=True, kw_only=True):
    """A partition as its path (`day=2013-01-05`; empty without partitions) and its data files, the largest first."""

    partition: str
    spec_id: int
    files: tuple[LaidFile, ...]

    @property
    def bytes(self) -> int:
        """Of its files."""
        return sum(file.bytes for file in self.files)


class FileLayout(Rendered, frozen=True, kw_only=True):
    """How the data files of one version of a table lie in partitions. A notebook shows it as a picture.

    Attributes:
        table: `catalog.namespace.name`.
        manifests_count: that a reader of all these files opens.
        applied_deletes_count: how often a reader of all these files applies a delete file or vector to a data file.
        partitions: by spec and path.
    """

    table: str
    snapshot_id: int | None
    manifests_count: int
    data_files_count: int
    data_files_bytes: int
    applied_deletes_count: int
    partitions: tuple[LaidPartition, ...]


def file_layout(
    table: Table, *, where: str | Expression = ALWAYS_TRUE, **version: Unpack[VersionArguments]
) -> FileLayout:
    """Say how the data files of a table lie in its partitions; manifests are read, and nothing else.

    Args:
        where, version: which files, as for `scan`, and so what it raises.

    Raises:
        UsageError: they are more than a picture can show (20,000).
        InvalidTableError, MissingFileError, UnsupportedError: a manifest cannot be read whole, or deletes contradict the data.
    """
    scan = open_scan(table, where=where, **version)
    found = few_files(scan, columns=_COLUMNS)
    if found is None or found.files.num_rows > FILES_MAX:
        raise UsageError(
            f"{table.name!r} has more files than a picture shows ({FILES_MAX:,}); give `where` to choose some"
        )
    codecs = {spec_id: PartitionCodec(table.metadata.partition_type(spec_id)) for spec_id in table.metadata.specs_by_id}
    by_partition: dict[tuple[int, str], list[LaidFile]] = {}
    for row in found.rows():
        values = codecs[row["spec_id"]].decode(bytes(row["partition"]))
        key = row["spec_id"], table.metadata.partition_path(row["spec_id"], values)
        file = LaidFile(
            bytes=row["file_size_in_bytes"], record_count=row["record_count"], deletes_count=len(row["deletes"])
        )
        by_partition.setdefault(key, []).append(file)
    partitions = tuple(
        LaidPartition(partition=path, spec_id=spec_id, files=tuple(sorted(files, key=lambda file: -file.bytes)))
        for (spec_id, path), files in sorted(by_partition.items())
    )
    files = [file for one in partitions for file in one.files]
    return FileLayout(
        table=table.full_name,
        snapshot_id=None if scan.version.snapshot is None else scan.version.snapshot.snapshot_id,
        manifests_count=len(scan.data.opened) + len(scan.deletes.opened),
        data_files_count=len(files),
        data_files_bytes=sum(file.bytes for file in files),
        applied_deletes_count=sum(file.deletes_count for file in files),
        partitions=partitions,
    )
