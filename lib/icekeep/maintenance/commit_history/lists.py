"""The manifest list of a snapshot, in sums: only the manifests that the snapshot itself wrote are kept.

A list may have a hundred thousand rows. Several are read at a time, since stores are slow to answer; one at a time is decoded.
"""

from collections.abc import Iterable
from threading import Lock

import msgspec

from icekeep.commit.manifests import EntryMemory, ManifestReader
from icekeep.maintenance.commit_history.result import ManifestsAfter, TableTotals, total
from icekeep.spec.manifests.read import read_manifest_list
from icekeep.spec.manifests.structs import ManifestContent, ManifestFile
from icekeep.spec.snapshots import Snapshot
from icekeep.storage.base import Storage

_DECODING = Lock()


class ListSums(msgspec.Struct, frozen=True, kw_only=True):
    """What the manifest list of a snapshot says in all; `created` are the manifests that the snapshot wrote.

    `live` has counts of files and records alone, which lists of version 1 may leave out.
    """

    manifests: ManifestsAfter
    live: TableTotals
    created: tuple[ManifestFile, ...]


def read_list_sums(snapshot: Snapshot, storage: Storage) -> ListSums:
    """Read the manifest list of a snapshot; of one that names its manifests itself (v1), these.

    Raises:
        IcekeepError: it cannot be read.
    """
    if snapshot.manifest_list is None:
        return _sums(ManifestReader(storage, EntryMemory(0)).manifests(snapshot), snapshot.snapshot_id, None)
    data = storage.read(snapshot.manifest_list)
    with _DECODING:
        return _sums(read_manifest_list(data, snapshot.manifest_list), snapshot.snapshot_id, len(data))


def _sums(rows: list[ManifestFile], snapshot_id: int, list_bytes: int | None) -> ListSums:
    created = tuple(row for row in rows if row.added_snapshot_id == snapshot_id)
    manifests_bytes = _bytes(rows)
    data = [row for row in rows if row.content is ManifestContent.DATA]
    deletes = [row for row in rows if row.content is ManifestContent.DELETES]
    return ListSums(
        manifests=ManifestsAfter(
            manifests_count=len(rows),
            manifests_bytes=manifests_bytes,
            manifest_list_bytes=list_bytes,
            metadata_bytes=manifests_bytes + (list_bytes or 0),
            created_count=len(created),
            created_bytes=_bytes(created),
            kept_count=len(rows) - len(created),
        ),
        live=TableTotals(
            data_files_count=total([row.live_files_count for row in data]),
            record_count=total([count for row in data for count in (row.added_rows_count, row.existing_rows_count)]),
            delete_files_count=total([row.live_files_count for row in deletes]),
        ),
        created=created,
    )


def _bytes(rows: Iterable[ManifestFile]) -> int:
    return sum(row.manifest_length for row in rows)
