"""Row-level deletes for tests, made of the library's own parts: what another engine's writer would commit."""

import io

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from icekeep.catalog.base import Table
from icekeep.commit.attempt import Attempt
from icekeep.commit.manifests import ManifestReader
from icekeep.commit.retry import commit
from icekeep.commit.summary import SummaryBuilder
from icekeep.spec.manifests.structs import DataFile, FileContent, ManifestContent, ManifestEntry, Status
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.properties import data_directory
from icekeep.spec.updates import Update


class AddDeleteFile(msgspec.Struct, frozen=True):
    """A change that adds one delete file, without looking whether what it deletes is live."""

    file: DataFile

    def apply(self, base: TableMetadata, attempt: Attempt) -> tuple[Update, ...]:
        summary = SummaryBuilder()
        summary.add(self.file)
        entry = ManifestEntry(status=Status.ADDED, data_file=self.file)
        added = attempt.write_manifests("deletes", [entry], self.file.spec_id, ManifestContent.DELETES)
        head = base.current_snapshot
        assert head is not None
        return attempt.snapshot_updates("delete", [*attempt.reader.manifests(head), *added], summary)


def with_position_deletes(table: Table, position: int = 0, *, is_for_one: bool = False) -> Table:
    """The table after one row of its first data file was deleted by a position delete file.

    Args:
        is_for_one: the delete file says that it is for that data file alone.
    """
    metadata = table.metadata
    assert metadata.current_snapshot is not None
    reader = ManifestReader(table.storage)
    manifest = reader.manifests(metadata.current_snapshot)[0]
    victim = next(e.data_file for e in reader.entries(manifest, metadata) if e.is_live)
    schema = pa.schema(
        [
            pa.field("file_path", pa.string(), nullable=False, metadata={b"PARQUET:field_id": b"2147483546"}),
            pa.field("pos", pa.int64(), nullable=False, metadata={b"PARQUET:field_id": b"2147483545"}),
        ]
    )
    out = io.BytesIO()
    pq.write_table(pa.table([[victim.file_path], [position]], schema=schema), out)
    location = f"{data_directory(metadata)}/{metadata.last_sequence_number}-deletes.parquet"
    with table.storage.write(location) as stream:
        stream.write(out.getvalue())
    file = DataFile(
        file_path=location,
        file_format="PARQUET",
        content=FileContent.POSITION_DELETES,
        spec_id=victim.spec_id,
        partition=victim.partition,
        record_count=1,
        file_size_in_bytes=len(out.getvalue()),
        referenced_data_file=victim.file_path if is_for_one else None,
    )
    return commit(table, AddDeleteFile(file)).table
