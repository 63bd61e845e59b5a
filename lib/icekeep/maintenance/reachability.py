"""What retained metadata leads to, and what nothing leads to any more. Fails closed.

Garbage is set difference by path: what expired snapshots lead to, less everything that any retained snapshot leads to. Never
by age, never by what an entry says of being deleted. Whatever is retained must be read whole, or there is no garbage at all:
a manifest that is missed on that side turns into deleted data.
"""

import pickle
from collections.abc import Iterator, Sequence
from enum import StrEnum

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from icekeep.catalog.base import Table
from icekeep.commit.manifests import StorageManifestReader
from icekeep.errors import IcekeepError, InvalidTableError, SafetyError
from icekeep.planning.decode import DecodeTask, EntryFilter, SpecFilter, decode
from icekeep.planning.entries import shares
from icekeep.planning.manifest_batches import chosen_decoder
from icekeep.planning.tasks import collected, dataframe_from_tasks, dealt, parallelism, streamed
from icekeep.spec.manifests.structs import FileContent, ManifestContent, ManifestFile
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.snapshots import Snapshot
from icekeep.storage.base import Storage
from icekeep.storage.locations import canonical, is_under


class FileKind(StrEnum):
    """Kinds of garbage, in the order in which they are deleted: what others name goes before what names it."""

    DATA = "data file"
    POSITION_DELETES = "position delete file"
    EQUALITY_DELETES = "equality delete file"
    MANIFEST = "manifest"
    MANIFEST_LIST = "manifest list"
    STATISTICS = "statistics file"


class GarbageFile(msgspec.Struct, frozen=True):
    """A file that nothing retained leads to; `size_bytes` is null where metadata does not record it."""

    kind: FileKind
    location: str
    size_bytes: int | None = None


class Unreachable(msgspec.Struct, frozen=True, kw_only=True):
    """The proof that a deleter asks for: only `unreachable` makes it.

    `files` lie under the table's location and may be deleted. `outside` are as unreachable, but lie elsewhere: they may
    belong to someone else and are kept.
    """

    table_uuid: str | None
    files: tuple[GarbageFile, ...]
    outside: tuple[GarbageFile, ...]


_CONTENT = pa.schema(
    [
        pa.field("key", pa.string(), nullable=False),
        pa.field("file_path", pa.string(), nullable=False),
        pa.field("content", pa.int32(), nullable=False),
        pa.field("file_size_in_bytes", pa.int64(), nullable=False),
    ]
)
_MANIFESTS = pa.schema(
    [pa.field("key", pa.string(), nullable=False), pa.field("manifest", pa.binary(), nullable=False)]
)
_CONTENT_KINDS = {
    FileContent.DATA: FileKind.DATA,
    FileContent.POSITION_DELETES: FileKind.POSITION_DELETES,
    FileContent.EQUALITY_DELETES: FileKind.EQUALITY_DELETES,
}


class _ListTask(msgspec.Struct, frozen=True):
    snapshots: tuple[Snapshot, ...]
    storage: Storage
    retained: bool


def unreachable(table: Table, spark: SparkSession, before: TableMetadata, after: TableMetadata) -> Unreachable:
    """Prove which files of the snapshots that `after` no longer has are reached from none that it has.

    Args:
        before: metadata that still has the snapshots.
        after: metadata without them, the newest that is known.

    Raises:
        SafetyError: something could not be read whole; nothing may be deleted.
    """
    try:
        return _unreachable(table, spark, before, after)
    except IcekeepError as error:
        raise SafetyError(f"nothing is deleted, since not everything can be read: {error.message}") from error


def _unreachable(table: Table, spark: SparkSession, before: TableMetadata, after: TableMetadata) -> Unreachable:
    gone = [s for s in before.snapshots if s.snapshot_id not in after.snapshots_by_id]
    retained = _manifests(table, spark, after.snapshots, retained=True)
    retained_keys = {canonical(m.manifest_path) for m in retained}
    expired_only = [
        m for m in _manifests(table, spark, gone, retained=False) if canonical(m.manifest_path) not in retained_keys
    ]
    lists = {canonical(s.manifest_list) for s in after.snapshots if s.manifest_list}
    files = [
        *_content_garbage(table, spark, before, after, expired_only, retained),
        *(GarbageFile(FileKind.MANIFEST, m.manifest_path, m.manifest_length) for m in expired_only),
        *(
            GarbageFile(FileKind.MANIFEST_LIST, s.manifest_list)
            for s in gone
            if s.manifest_list and canonical(s.manifest_list) not in lists
        ),
        *_statistics_garbage(before, after),
    ]
    inside = tuple(f for f in files if is_under(f.location, after.location))
    outside = tuple(f for f in files if not is_under(f.location, after.location))
    return Unreachable(table_uuid=after.table_uuid, files=inside, outside=outside)


def _content_garbage(
    table: Table,
    spark: SparkSession,
    before: TableMetadata,
    after: TableMetadata,
    expired_only: Sequence[ManifestFile],
    retained: Sequence[ManifestFile],
) -> Iterator[GarbageFile]:
    """Files of manifests that only expired snapshots list, less the files of every retained manifest."""
    if not expired_only:
        # Every manifest is still listed by a retained snapshot: then so is every file, and no manifest is opened.
        return
    candidates = _content(table, spark, before, expired_only).dropDuplicates(["key"])
    live = _content(table, spark, after, retained).select("key")
    for row in streamed(candidates.join(live, on="key", how="left_anti")):
        kind = _CONTENT_KINDS[FileContent(row["content"])]
        yield GarbageFile(kind, row["file_path"], row["file_size_in_bytes"])


def _statistics_garbage(before: TableMetadata, after: TableMetadata) -> Iterator[GarbageFile]:
    kept = {canonical(location) for location, _ in _statistics(after)}
    for location, size_bytes in _statistics(before):
        if canonical(location) not in kept:
            yield GarbageFile(FileKind.STATISTICS, location, size_bytes)


def _statistics(metadata: TableMetadata) -> Iterator[tuple[str, int]]:
    for file in metadata.statistics:
        yield file.statistics_path, file.file_size_in_bytes
    for partition_file in metadata.partition_statistics:
        yield partition_file.statistics_path, partition_file.file_size_in_bytes


def _manifests(
    table: Table, spark: SparkSession, snapshots: Sequence[Snapshot], *, retained: bool
) -> list[ManifestFile]:
    """The manifests of some snapshots, each once; manifest lists are read in tasks."""
    if not snapshots:
        return []
    piles = dealt(snapshots, lambda s: 1, min(parallelism(spark), len(snapshots)))
    tasks = [_ListTask(tuple(pile), table.storage, retained) for pile in piles]
    rows = collected(dataframe_from_tasks(spark, tasks, _read_lists, _MANIFESTS).dropDuplicates(["key"]))
    return [pickle.loads(row["manifest"]) for row in rows]


def _read_lists(task: _ListTask) -> Iterator[pa.RecordBatch]:
    reader = StorageManifestReader(task.storage)
    by_key: dict[str, ManifestFile] = {}
    for snapshot in task.snapshots:
        manifests = reader.manifests(snapshot)
        if task.retained:
            _check_totals(snapshot, manifests)
        by_key.update((canonical(m.manifest_path), m) for m in manifests)
    yield pa.record_batch(
        [pa.array(by_key, pa.string()), pa.array(map(pickle.dumps, by_key.values()), pa.binary())], schema=_MANIFESTS
    )


def _check_totals(snapshot: Snapshot, manifests: Sequence[ManifestFile]) -> None:
    """A manifest list has no recorded length, and one that is cut between two blocks reads as a whole, shorter one.

    What shows it are the totals that the snapshot's summary keeps. A summary without totals proves nothing.
    """
    kinds = {"total-data-files": ManifestContent.DATA, "total-delete-files": ManifestContent.DELETES}
    for total, content in kinds.items():
        recorded = (snapshot.summary or {}).get(total)
        counts = [m.live_files_count for m in manifests if m.content is content]
        if recorded is None or None in counts:
            continue
        listed = sum(count for count in counts if count is not None)
        if recorded != str(listed):
            raise InvalidTableError(
                f"manifest list {snapshot.manifest_list!r} leads to {listed} {content.name.lower()} files, but snapshot "
                f"{snapshot.snapshot_id} says {total} {recorded}: the list may be cut short",
                location=snapshot.manifest_list,
            )


def _content(
    table: Table, spark: SparkSession, metadata: TableMetadata, manifests: Sequence[ManifestFile]
) -> DataFrame:
    """The live entries of manifests: a comparable key, the path as it is written, content and size."""
    spec_ids = {m.partition_spec_id for m in manifests}
    wanted = EntryFilter(specs={spec_id: SpecFilter(metadata.partition_type(spec_id)) for spec_id in spec_ids})
    columns = frozenset(_CONTENT.names) - {"key"}
    decoder, _ = chosen_decoder()
    whole = DecodeTask(
        manifests=tuple(manifests), wanted=wanted, columns=columns, storage=table.storage, decoder=decoder
    )
    return dataframe_from_tasks(spark, shares(whole, spark), _read_content, _CONTENT)


def _read_content(task: DecodeTask) -> Iterator[pa.RecordBatch]:
    for decoded in decode(task):
        rows = decoded.entries
        keys = pa.array([canonical(path) for path in rows["file_path"].to_pylist()], pa.string())
        columns = {"key": keys, **{name: rows[name] for name in rows.schema.names}}
        yield pa.record_batch([columns[name] for name in _CONTENT.names], schema=_CONTENT)
