"""Row-level deletes as another engine would commit them: delete files that are described alone, and such as are written."""

import io
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import count
from typing import Any, ClassVar

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from msgspec.structs import replace
from pyroaring import BitMap64

from icekeep.catalog.base import Table
from icekeep.commit.attempt import Attempt
from icekeep.commit.changes.deletes import RowDelta
from icekeep.commit.changes.files import DeleteFiles
from icekeep.commit.manifests import ManifestReader
from icekeep.commit.retry import commit
from icekeep.commit.summary import SummaryBuilder
from icekeep.formats.arrow.projection import cast_to_schema
from icekeep.formats.deletes.read import write_equality_deletes, write_position_deletes
from icekeep.formats.options import write_options
from icekeep.formats.puffin import VectorTarget, read_deletion_vector, write_deletion_vectors
from icekeep.spec.manifests.structs import DataFile, FileContent, ManifestContent, ManifestEntry, Status
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.properties import data_directory
from icekeep.spec.schema import DELETE_FILE_PATH, Schema
from icekeep.spec.snapshots import MAIN
from icekeep.spec.updates import Update
from icekeep.storage.base import Storage
from icekeep.tables.verbs import new_files
from kit.naive_scan import live_entries
from kit.rows import Place
from kit.tables import data_file


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


def path_of(name: str) -> str:
    """Where the file of a name lies."""
    return data_file(name).file_path


def position_deletes(name: str, *named: str, partition: tuple[Any, ...] = (), **changes: Any) -> DataFile:
    """Positions of the named data files, one of each; bounds say between which two they lie."""
    paths = sorted(path_of(n).encode() for n in named)
    field_id = DELETE_FILE_PATH.field_id
    return replace(
        data_file(name, max(1, len(named)), partition),
        content=FileContent.POSITION_DELETES,
        lower_bounds={field_id: paths[0]} if paths else None,
        upper_bounds={field_id: paths[-1]} if paths else None,
        **changes,
    )


def deletion_vector(
    name: str, named: str, offset: int = 4, partition: tuple[Any, ...] = (), **changes: Any
) -> DataFile:
    """A vector of one deleted position of a data file, in the Puffin file of a name."""
    vector = {"content_offset": offset, "content_size_in_bytes": 40, "referenced_data_file": path_of(named), **changes}
    content = FileContent.POSITION_DELETES
    return replace(data_file(name, 1, partition), content=content, file_format="puffin", **vector)


def equality_deletes(name: str, *ids: int, partition: tuple[Any, ...] = (), **changes: Any) -> DataFile:
    """One row's values of the columns with some ids; by default the first."""
    changes = {"equality_ids": ids or (1,), **changes}
    return replace(data_file(name, 1, partition), content=FileContent.EQUALITY_DELETES, **changes)


class SaidToHold:
    """A `PathProof` of delete files that were never written: those of some names hold what their bounds say.

    `asked` has the names that anybody asked of.
    """

    asked: ClassVar[list[str]] = []

    def __init__(self, *names: str) -> None:
        self.names = names
        self.asked.clear()

    def __call__(self, storage: Storage, files: Sequence[DataFile]) -> list[DataFile]:
        self.asked.extend(file.file_path.rsplit("/", 1)[-1] for file in files)
        held = {path_of(name) for name in self.names}
        return [file for file in files if file.file_path in held]


def add_deletes(table: Table, *deletes: DataFile, named: tuple[str, ...] = (), **change: Any) -> Table:
    """The table after another commit that adds delete files."""
    delta = RowDelta(added_deletes=deletes, named=frozenset(map(path_of, named)), **change)
    return commit(table, delta, runtime=table.catalog.runtime).table


_NUMBERS = count()


def data_files(table: Table, ref: str = MAIN) -> list[DataFile]:
    """The live data files of a branch, by path."""
    files = [entry.data_file for entry in live_entries(table, ref) if entry.data_file.content is FileContent.DATA]
    return sorted(files, key=lambda file: file.file_path)


def delete_files(table: Table) -> list[DataFile]:
    """The live delete files of the main branch."""
    files = [entry.data_file for entry in live_entries(table)]
    return [file for file in files if file.content is not FileContent.DATA]


def delete_positions(
    table: Table, positions: Iterable[tuple[str, int]], file_format: str = "PARQUET", *, names_file: bool = True
) -> Table:
    """The table after a commit of one position delete file for data files of one partition.

    Args:
        names_file: whether one that is for a single data file has `referenced_data_file`; Iceberg Java writes none in version
            2, where equal bounds of `file_path` say it.
    """
    files = {file.file_path: file for file in data_files(table)}
    pairs = [(files[path], position) for path, position in positions]
    (file,) = position_delete_files(table, pairs, file_format)
    if not names_file:
        file = replace(file, referenced_data_file=None)
    return commit(table, RowDelta(added_deletes=(file,), named=frozenset(file.file_path for file, _ in pairs))).table


def lose_reached_file(table: Table, files: Sequence[DataFile] = ()) -> Table:
    """The table after a commit of position delete files for two data files, and one that removes the first of these.

    Neither of them names its data file: their bounds do.

    Args:
        files: the two; any by default.
    """
    gone, stays = files or data_files(table)[:2]
    written = position_delete_files(table, [(gone, 0), (stays, 0)], scope="file")
    deletes = tuple(replace(file, referenced_data_file=None) for file in written)
    table = commit(table, RowDelta(added_deletes=deletes, named=frozenset({gone.file_path, stays.file_path}))).table
    return commit(table, DeleteFiles(paths=frozenset([gone.file_path]))).table


def delete_by_vector(table: Table, path: str, positions: Iterable[int]) -> Table:
    """The table after a commit of a deletion vector for a data file, with all that the file's present vector holds."""
    target = next(file for file in data_files(table) if file.file_path == path)
    old = [entry for entry in live_entries(table) if entry.data_file.referenced_data_file == path]
    files = vector_files(table, [(target, position) for position in positions], old)
    return commit(table, RowDelta(added_deletes=files, removed_deletes=tuple(old))).table


def position_delete_files(
    table: Table, positions: Iterable[tuple[DataFile, int]], file_format: str = "PARQUET", scope: str = "partition"
) -> tuple[DataFile, ...]:
    """Position delete files that are written and not committed: one a data `file`, or one a `partition`."""
    groups: dict[str, list[tuple[DataFile, int]]] = defaultdict(list)
    for file, position in positions:
        groups[file.file_path if scope == "file" else repr((file.spec_id, file.partition))].append((file, position))
    return tuple(
        write_position_deletes(
            table.storage,
            _location(table, file_format),
            file_format,
            [(file.file_path, position) for file, position in group],
            spec_id=group[0][0].spec_id,
            partition=group[0][0].partition,
        )
        for group in groups.values()
    )


def vector_files(
    table: Table, positions: Iterable[tuple[DataFile, int]], replaced: Iterable[ManifestEntry]
) -> tuple[DataFile, ...]:
    """Deletion vectors in one Puffin file, not committed, with all that the vectors hold whose place they take."""
    deleted: dict[str, BitMap64] = defaultdict(BitMap64)
    files: dict[str, DataFile] = {}
    for file, position in positions:
        files[file.file_path] = file
        deleted[file.file_path].add(position)
    for entry in replaced:
        deleted[str(entry.data_file.referenced_data_file)] |= read_deletion_vector(table.storage, entry.data_file)
    targets = [
        (VectorTarget(location=path, spec_id=file.spec_id, partition=file.partition), deleted[path])
        for path, file in files.items()
    ]
    return tuple(write_deletion_vectors(table.storage, _location(table, "PUFFIN"), targets))


def delete_equal(
    table: Table,
    rows: pa.Table,
    columns: Sequence[str],
    *,
    like: DataFile | Place | None = None,
    file_format: str = "PARQUET",
    added: tuple[DataFile, ...] = (),
) -> Table:
    """The table after a commit of equality deletes: rows that equal one of `rows` in `columns` are gone.

    Args:
        like: whose spec and partition the deletes take, a data file perhaps; null for an unpartitioned table.
        added: data files that the commit adds, which the deletes spare.
    """
    schema = table.metadata.schema
    wanted = Schema(fields=tuple(field for field in schema.fields if field.name in rows.column_names))
    ids = [field.field_id for field in wanted.fields if field.name in columns]
    file = write_equality_deletes(
        table.storage,
        _location(table, file_format),
        file_format,
        cast_to_schema(rows, wanted),
        ids,
        wanted,
        spec_id=table.metadata.default_spec_id if like is None else like.spec_id,
        partition=() if like is None else like.partition,
    )
    return commit(table, RowDelta(added=added, added_deletes=(file,))).table


def new_data_files(table: Table, rows: pa.Table) -> tuple[DataFile, ...]:
    """Rows in data files of the current spec and the table's format, one a partition, not committed."""
    options = write_options(table.metadata.properties, table.metadata.schema)
    return tuple(new_files(table, rows, options, lambda _: _location(table, options.file_format, "data")))


def _location(table: Table, file_format: str, kind: str = "deletes") -> str:
    return f"{data_directory(table.metadata)}/{kind}-{next(_NUMBERS)}.{file_format.lower()}"
