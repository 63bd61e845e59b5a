"""How far a stream of Spark has come that reads a table, by the checkpoint that it keeps.

    DIRECTORY/offsets/N              where batch N ends: a line for each source, Iceberg's as JSON
    DIRECTORY/commits/N              batch N is done
    DIRECTORY/sources/S/offsets/0    where Iceberg's source S began

A stream that starts again does the first batch again that is not done, from where the last one ended that is: that position
counts, and before any batch is done where the source began. With the trigger `availableNow` Iceberg (up to 1.12) wants to see
the snapshot again where the source began, whatever it has read since; nothing can keep that for good. A checkpoint of which
anything cannot be read says so, and the expiration keeps everything: a directory is named so that its stream goes on.

Flink's position is in the binary state of its checkpoints, which only a job can read: a Flink job registers (`spec/readers`).
"""

from collections.abc import Collection, Iterable, Sequence
from typing import Any

import msgspec

from icekeep.decoding import from_json
from icekeep.errors import IcekeepError, one_line
from icekeep.spec.readers import CHECKPOINT, ReaderPosition
from icekeep.storage.base import Storage

_LOG_VERSION = "v1"
_OFFSET_VERSION = 1
_NO_OFFSET = "-"
_BEFORE_ALL = -1
"""The snapshot in the offset of a source that has seen none."""


class _Offset(msgspec.Struct, frozen=True):
    """Iceberg's offset of a stream in Spark (`StreamingOffset`)."""

    version: int
    snapshot_id: int
    position: int


class _UnreadableError(Exception):
    """A checkpoint is not as Spark and Iceberg write it; the text says what is wrong."""


def checkpoint_positions(storage: Storage, locations: Sequence[str], known: Collection[int]) -> list[ReaderPosition]:
    """Where the streams of some checkpoints are; nothing is raised.

    Args:
        known: ids of the table's snapshots. Of a stream that reads several tables the sources count that are at one of these.
    """
    found: list[ReaderPosition] = []
    for location in locations:
        root = location.rstrip("/")
        try:
            found += _positions(storage, root, known)
        except (_UnreadableError, IcekeepError, OSError, ValueError) as error:
            reason = str(error) if isinstance(error, _UnreadableError) else one_line(error)
            problem = f"its checkpoint cannot be read: {reason}"
            found.append(ReaderPosition(name=root, source=CHECKPOINT, problem=problem))
    return found


def _positions(storage: Storage, root: str, known: Collection[int]) -> list[ReaderPosition]:
    planned, done = (_numbers(storage.child_names(f"{root}/{log}")) for log in ("offsets", "commits"))
    if not planned:
        raise _UnreadableError(f"there is no offset in {root + '/offsets'!r}; is that the directory of a checkpoint?")
    batch = max(done, default=None)
    if batch is None:
        offsets = {source: _begun(storage, root, source) for source in _sources(storage, root)}
        moved = f"{root}/offsets/{min(planned)}"
    elif batch not in planned:
        raise _UnreadableError(f"batch {batch} is done, and its offset is not in {root + '/offsets'!r}")
    else:
        offsets = _logged(storage, root, batch)
        moved = f"{root}/commits/{batch}"
    # The offsets do not say of which table they are.
    own = {source: one for source, one in offsets.items() if one.snapshot_id in known or one.snapshot_id == _BEFORE_ALL}
    info = storage.head(moved)
    return [
        ReaderPosition(
            name=root,
            source=CHECKPOINT,
            snapshot_id=None if one.snapshot_id == _BEFORE_ALL else one.snapshot_id,
            moved_ms=None if info is None else info.modified_ms,
            began_id=_began_id(storage, root, source),
        )
        for source, one in (own or offsets).items()
    ]


def _logged(storage: Storage, root: str, batch: int) -> dict[int, _Offset]:
    """The offsets of Iceberg's sources in the log of a batch, by the number of the source."""
    at = f"{root}/offsets/{batch}"
    version, *lines = storage.read(at).decode().splitlines() or [""]
    if version != _LOG_VERSION:
        raise _UnreadableError(f"{at!r} is a log of version {version!r}, and this icekeep reads {_LOG_VERSION}")
    offsets: dict[int, _Offset] = {}
    # The first of them is about the batch.
    for source, line in enumerate(lines[1:]):
        offset = _begun(storage, root, source) if line.strip() == _NO_OFFSET else _offset(line, at)
        if offset is not None:
            offsets[source] = offset
    if not offsets:
        raise _UnreadableError(f"{at!r} has no offset of a source of Iceberg")
    return offsets


def _begun(storage: Storage, root: str, source: int) -> _Offset:
    at = first_offset(root, source)
    offset = _offset(storage.read(at).decode(), at)
    if offset is None:
        raise _UnreadableError(f"{at!r} is no offset of a source of Iceberg")
    return offset


def _began_id(storage: Storage, root: str, source: int) -> int | None:
    """The snapshot at which a source began; `None` where its file is gone, or it began before all."""
    if storage.head(first_offset(root, source)) is None:
        return None
    began = _begun(storage, root, source).snapshot_id
    return None if began == _BEFORE_ALL else began


def first_offset(root: str, source: int) -> str:
    """The file in which Iceberg keeps where a source began."""
    return f"{root}/sources/{source}/offsets/0"


def _sources(storage: Storage, root: str) -> list[int]:
    found = _numbers(storage.child_names(f"{root}/sources"))
    if not found:
        raise _UnreadableError(f"no batch is done, and {root + '/sources'!r} does not say where the stream began")
    return sorted(found)


def _offset(line: str, at: str) -> _Offset | None:
    """The offset in a line; `None` for that of another kind of source."""
    said: Any = from_json(line, dict)
    if "snapshot_id" not in said:
        return None
    offset = from_json(line, _Offset)
    if offset.version != _OFFSET_VERSION:
        raise _UnreadableError(
            f"{at!r} has an offset of version {offset.version}, and this icekeep reads {_OFFSET_VERSION}"
        )
    return offset


def _numbers(names: Iterable[str]) -> set[int]:
    """The batches, or sources, in the names of a directory; Spark puts temporary files and checksums beside them."""
    return {int(name) for name in names if name.isascii() and name.isdecimal()}
