"""What a commit added and removed, and how large the table is after it: the one place that says which source counts.

manifest list       counts of files and rows, where it has them
summary             bytes, and how delete files and deletes are shared among their kinds, where these add up to the list's
entries             all of that, of the manifests that the commit wrote, where list and summary together leave something open
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from icekeep.commit.manifests import EntryMemory, ManifestReader
from icekeep.maintenance.commit_history.lists import ListSums
from icekeep.maintenance.commit_history.result import FilesChanged, TableTotals, total
from icekeep.spec.manifests.structs import COUNTS, DataFile, FileContent, ManifestContent, ManifestFile, Status
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.reach import is_deletion_vector
from icekeep.storage.base import Storage

_SUMMARY_KEYS = {
    Status.ADDED: {
        "record_count": "added-records",
        "position_delete_files_count": "added-position-delete-files",
        "equality_delete_files_count": "added-equality-delete-files",
        "deletion_vectors_count": "added-dvs",
        "position_deletes_count": "added-position-deletes",
        "equality_deletes_count": "added-equality-deletes",
        "bytes": "added-files-size",
    },
    Status.DELETED: {
        "record_count": "deleted-records",
        "position_delete_files_count": "removed-position-delete-files",
        "equality_delete_files_count": "removed-equality-delete-files",
        "deletion_vectors_count": "removed-dvs",
        "position_deletes_count": "removed-position-deletes",
        "equality_deletes_count": "removed-equality-deletes",
        "bytes": "removed-files-size",
    },
}
_FILE_KINDS = ("position_delete_files_count", "equality_delete_files_count", "deletion_vectors_count")
_DELETE_KINDS = ("position_deletes_count", "equality_deletes_count")
_IN_SUMMARY_ALONE = ("record_count", *_DELETE_KINDS, "bytes")

_MAX_DIGITS = 19
"""Longer numbers are none that a table could have."""


def files_changed(status: Status, sums: ListSums | None, summary: Mapping[str, str]) -> FilesChanged:
    """What a commit added or deleted by its list, which may be unreadable, and its summary.

    Counters are written where they are not zero: one that is missing is zero only where the list says that there is no file
    for it, or the others account for all that the list has.
    """
    said = {name: _number(summary, key) for name, key in _SUMMARY_KEYS[status].items()}
    if sums is None:
        return FilesChanged(**{name: said[name] for name in _IN_SUMMARY_ALONE})
    files, rows = COUNTS[status]
    data_files, records = (_listed(sums.created, ManifestContent.DATA, name) for name in (files, rows))
    delete_files, deletes = (_listed(sums.created, ManifestContent.DELETES, name) for name in (files, rows))
    return FilesChanged(
        data_files_count=data_files,
        record_count=said["record_count"] if records is None else records,
        bytes=0 if data_files == delete_files == 0 else said["bytes"],
        **_shared(said, _FILE_KINDS, delete_files),
        **_shared(said, _DELETE_KINDS, deletes),
    )


def is_whole(changed: FilesChanged) -> bool:
    """Whether all is known of it."""
    return all(getattr(changed, name) is not None for name in changed.__struct_fields__)


def files_counted(
    created: Iterable[ManifestFile], snapshot_id: int, metadata: TableMetadata, storage: Storage
) -> dict[Status, FilesChanged]:
    """What a commit added and deleted by the entries of the manifests that it wrote; no entry is kept.

    Raises:
        IcekeepError: a manifest cannot be read.
    """
    reader = ManifestReader(storage, EntryMemory(0))
    counters = {Status.ADDED: Counter[str](), Status.DELETED: Counter[str]()}
    for manifest in created:
        if manifest.added_files_count == manifest.deleted_files_count == 0:
            continue
        for entry in reader.entries(manifest, metadata):
            if entry.status in counters and entry.snapshot_id == snapshot_id:
                _count(counters[entry.status], entry.data_file)
    return {
        status: FilesChanged(**{name: counter[name] for name in FilesChanged.__struct_fields__})
        for status, counter in counters.items()
    }


def totals_after(sums: ListSums | None, summary: Mapping[str, str]) -> TableTotals:
    """How large the table is: by the list, where that has counts, else by the summary; nothing where the list is unreadable."""
    if sums is None:
        return TableTotals()
    live = sums.live
    delete_files = _or_number(live.delete_files_count, summary, "total-delete-files")
    data_files = _or_number(live.data_files_count, summary, "total-data-files")
    of_deletes = 0 if delete_files == 0 else None
    return TableTotals(
        data_files_count=data_files,
        record_count=_or_number(live.record_count, summary, "total-records"),
        delete_files_count=delete_files,
        position_deletes_count=_or_number(of_deletes, summary, "total-position-deletes"),
        equality_deletes_count=_or_number(of_deletes, summary, "total-equality-deletes"),
        bytes=_or_number(0 if data_files == delete_files == 0 else None, summary, "total-files-size"),
    )


def _listed(created: Iterable[ManifestFile], content: ManifestContent, name: str) -> int | None:
    return total([getattr(manifest, name) for manifest in created if manifest.content is content])


def _shared(said: Mapping[str, int | None], names: Sequence[str], listed: int | None) -> dict[str, int | None]:
    """The parts of what the list counts together; not known unless they add up to it."""
    parts = {name: said[name] or 0 for name in names}
    if listed == 0:
        return dict.fromkeys(names, 0)
    return {**parts} if sum(parts.values()) == listed else dict.fromkeys(names, None)


def _count(counter: Counter[str], file: DataFile) -> None:
    counter["bytes"] += file.own_bytes
    if file.content is FileContent.DATA:
        counter["data_files_count"] += 1
        counter["record_count"] += file.record_count
    elif file.content is FileContent.EQUALITY_DELETES:
        counter["equality_delete_files_count"] += 1
        counter["equality_deletes_count"] += file.record_count
    else:
        is_vector = is_deletion_vector(file)
        counter["deletion_vectors_count" if is_vector else "position_delete_files_count"] += 1
        counter["position_deletes_count"] += file.record_count


def _or_number(known: int | None, summary: Mapping[str, str], key: str) -> int | None:
    return _number(summary, key) if known is None else known


def _number(summary: Mapping[str, str], key: str) -> int | None:
    text = summary.get(key, "")
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= _MAX_DIGITS else None
