"""Delete bytes that are proven unreachable, by a plan that was written before.

The only deleter of table files. It accepts nothing but the proof that `reachability` makes.
"""

from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec

from icekeep.errors import IcekeepBug, SafetyError
from icekeep.events import Listener, StepAdvanced, StepFinished, StepStarted, Warned
from icekeep.maintenance.reachability import FileKind, GarbageFile, Unreachable
from icekeep.spec.layout import own_directory
from icekeep.spec.metadata import TableMetadata
from icekeep.storage.base import DeleteStatus, Storage
from icekeep.storage.locations import is_under

_BATCH_FILES = 1000


class Reclaimed(msgspec.Struct, frozen=True, kw_only=True):
    """What became of garbage: files deleted by kind, their known bytes, those already gone, those that could not be."""

    deleted: dict[FileKind, int]
    deleted_bytes: int
    missing_count: int
    failed: tuple[str, ...]


def refuse_if_gc_is_disabled(metadata: TableMetadata) -> None:
    """Raise `SafetyError` where the property `gc.enabled` is false: other tables may share the files."""
    enabled = metadata.properties.get("gc.enabled", "true")
    # Iceberg takes every text but "true" for false; here that is the safe side as well.
    if enabled.lower() != "true":
        raise SafetyError(
            f"the table at {metadata.location!r} has gc.enabled={enabled}: its files may belong to other tables too, so nothing "
            "is expired or deleted"
        )


def write_plan(garbage: Unreachable, metadata: TableMetadata, storage: Storage, job: str, run: str) -> str:
    """Write what is going to be deleted as JSON lines, the first saying whose it is; returns the plan's location."""
    location = f"{own_directory(metadata, 'plans')}/{job}-{run}.jsonl"
    head = {"job": job, "run": run, "table-uuid": garbage.table_uuid, "location": metadata.location}
    lines = [head, *({"kind": f.kind, "location": f.location, "size-in-bytes": f.size_bytes} for f in garbage.files)]
    with storage.write(location) as stream:
        stream.write(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
    return location


def reclaim(garbage: Unreachable, metadata: TableMetadata, storage: Storage, listener: Listener) -> Reclaimed:
    """Delete unreachable files, what others name before what names it. Files that are gone already are fine.

    Args:
        metadata: the table's newest metadata.

    Raises:
        SafetyError: garbage collection is disabled.
    """
    refuse_if_gc_is_disabled(metadata)
    if garbage.table_uuid != metadata.table_uuid:
        raise IcekeepBug("the proof is of another table")
    if not all(is_under(f.location, metadata.location) for f in garbage.files):
        raise IcekeepBug("a file outside the table's location was about to be deleted")
    listener.on(StepStarted("deleting files", len(garbage.files), "files"))
    deleted: Counter[FileKind] = Counter()
    deleted_bytes = missing_count = 0
    failed: list[str] = []
    for chunk in _in_order(garbage.files):
        for file, outcome in zip(chunk, storage.delete_many([f.location for f in chunk]), strict=True):
            match outcome.status:
                case DeleteStatus.DELETED:
                    deleted[file.kind] += 1
                    deleted_bytes += file.size_bytes or 0
                case DeleteStatus.MISSING:
                    missing_count += 1
                case DeleteStatus.FAILED:
                    failed.append(file.location)
                    listener.on(Warned(f"could not delete {file.location!r}: {outcome.reason}"))
        listener.on(StepAdvanced("deleting files", len(chunk)))
    listener.on(StepFinished("deleting files", f"{deleted.total()} files"))
    return Reclaimed(
        deleted=dict(deleted), deleted_bytes=deleted_bytes, missing_count=missing_count, failed=tuple(failed)
    )


def _in_order(files: Sequence[GarbageFile]) -> Iterable[tuple[GarbageFile, ...]]:
    order = list(FileKind)
    ordered = sorted(files, key=lambda f: order.index(f.kind))
    return (tuple(ordered[at : at + _BATCH_FILES]) for at in range(0, len(ordered), _BATCH_FILES))
