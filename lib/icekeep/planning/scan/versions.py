"""Which state of a table a scan reads: a branch, a tag, a snapshot, a moment, or what was appended between two snapshots."""

import operator
from collections.abc import Mapping
from typing import Any, TypedDict, Unpack

import msgspec

from icekeep.errors import NotFoundError, UsageError, argument
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.schema import Schema
from icekeep.spec.snapshots import MAIN, Snapshot
from icekeep.spec.times import Moment, format_time, moment_ms


class VersionArguments(TypedDict, total=False):
    """How every scan is told what to read; by default the head of `main`.

    Attributes:
        ref: a branch or tag.
        snapshot_id: any snapshot of the table.
        as_of: what was current at this moment, or so long ago.
        start_snapshot_id: an incremental scan reads what was appended after this snapshot (exclusive),
        end_snapshot_id: up to this one (inclusive), by default up to the head of `main`. Deletes are left aside.
    """

    ref: str | None
    snapshot_id: int | None
    as_of: Moment | None
    start_snapshot_id: int | None
    end_snapshot_id: int | None


VERSION_ARGUMENTS = tuple(VersionArguments.__annotations__)


class Version(msgspec.Struct, frozen=True, kw_only=True):
    """What a scan reads.

    Attributes:
        snapshot: whose manifests are planned from; `None` for a table without data.
        schema: that the filter is bound to and rows are read with.
        appended_by: for an incremental scan: the snapshots whose appended files are read; `None` for all live files.
    """

    snapshot: Snapshot | None
    schema: Schema
    appended_by: tuple[Snapshot, ...] | None = None


def chosen_version(metadata: TableMetadata, now_ms: int, **arguments: Unpack[VersionArguments]) -> Version:
    """The version that the arguments of a scan name; an age is counted back from `now_ms`.

    A snapshot and a tag are read with the schema that was current when the snapshot was made, a branch with the table's.

    Raises:
        NotFoundError: there is no such branch, tag or snapshot, or the table had none at that moment.
        UsageError: there is no such argument, one has a value that it cannot take, two of them contradict one another, or the
            start is no ancestor of the end.
    """
    given: dict[str, Any] = {name: value for name, value in arguments.items() if value is not None}
    _check_known(given)
    end_id = given.pop("end_snapshot_id", None)
    if len(given) > 1:
        raise UsageError(f"{' and '.join(map(argument, given))} contradict one another; give one of them")
    if end_id is not None and "start_snapshot_id" not in given:
        raise UsageError(
            f"{argument('end_snapshot_id')} needs {argument('start_snapshot_id')}; a single snapshot is named by "
            f"{argument('snapshot_id')}"
        )
    if (start_id := given.get("start_snapshot_id")) is not None:
        end_id = None if end_id is None else _snapshot_id("end_snapshot_id", end_id)
        return _incremental(metadata, _snapshot_id("start_snapshot_id", start_id), end_id)
    if (snapshot_id := given.get("snapshot_id")) is not None:
        return _at(metadata, metadata.snapshot(_snapshot_id("snapshot_id", snapshot_id)))
    if (as_of := given.get("as_of")) is not None:
        return _at(metadata, _snapshot_as_of(metadata, moment_ms(as_of, now_ms)))
    ref = given.get("ref", MAIN)
    if not isinstance(ref, str):
        raise UsageError(f"{argument('ref')} is {ref!r}; give the name of a branch or tag")
    head, named = metadata.head(ref), metadata.refs.get(ref)
    if head is not None and named is not None and not named.is_branch:
        return _at(metadata, head)
    return Version(snapshot=head, schema=metadata.schema)


def _check_known(given: Mapping[str, Any]) -> None:
    """A name with a slip in it must not mean the current snapshot."""
    for name in given:
        if name not in VERSION_ARGUMENTS:
            raise UsageError(
                f"a scan has no argument {name!r}; what it reads is named by one of {', '.join(VERSION_ARGUMENTS[:-1])}"
            )


def _snapshot_id(name: str, given: Any) -> int:
    """Also an integer of numpy's, as pandas has them."""
    if isinstance(given, bool) or not hasattr(given, "__index__"):
        raise UsageError(f"{argument(name)} is {given!r}; give the id of a snapshot, a whole number")
    return operator.index(given)


def _at(metadata: TableMetadata, snapshot: Snapshot) -> Version:
    schema_id = snapshot.schema_id
    schema = metadata.schema if schema_id is None else metadata.schemas_by_id.get(schema_id, metadata.schema)
    return Version(snapshot=snapshot, schema=schema)


def _snapshot_as_of(metadata: TableMetadata, at_ms: int) -> Snapshot:
    """What `main` was at a moment, by the table's `snapshot-log`."""
    log = metadata.snapshot_log
    entries = [entry for entry in log if entry.timestamp_ms <= at_ms]
    if not entries:
        known = f"its log begins at {format_time(log[0].timestamp_ms)}" if log else "it has no snapshot at all"
        raise NotFoundError(
            f"the table at {metadata.location!r} is not known as of {format_time(at_ms)}: {known}", as_of=at_ms
        )
    return metadata.snapshot(entries[-1].snapshot_id)


def _incremental(metadata: TableMetadata, start_id: int, end_id: int | None) -> Version:
    metadata.snapshot(start_id)
    end = metadata.current_snapshot if end_id is None else metadata.snapshot(end_id)
    if end is None:
        raise NotFoundError(
            f"the table at {metadata.location!r} has no current snapshot; give {argument('end_snapshot_id')}"
        )
    between = []
    for snapshot in metadata.ancestors(end.snapshot_id):
        if snapshot.snapshot_id == start_id:
            break
        between.append(snapshot)
    else:
        raise UsageError(
            f"snapshot {start_id} is no ancestor of snapshot {end.snapshot_id}, so nothing lies between them"
        )
    appends = tuple(snapshot for snapshot in reversed(between) if snapshot.operation == "append")
    return Version(snapshot=end, schema=metadata.schema, appended_by=appends)
