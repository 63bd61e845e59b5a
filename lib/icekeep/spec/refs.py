"""Rules of branches, tags and the history of `main` (spec, "Snapshot References", "Snapshot Retention Policy").

Pure: what a reference may be, and who is an ancestor of whom. What is changed is in `updates.py`.

What was current when: the rows of Iceberg's metadata table `history`.

How far streaming writers have come, as they note it in the summaries of their own snapshots.

A writer that starts again looks there for what it has committed already: it walks from the head of its branch from parent to
parent, takes the newest snapshot that is its own, and stops where a parent is gone. Where it finds nothing it commits
everything that it still holds once more (iceberg #5846). So such a snapshot is worth nothing without all those after it.

A Flink job that commits deletion vectors needs more: all of its branch's history, from the first snapshot on. Iceberg Java, 1.12
among them, looks through it before each such commit for vectors of others, from no snapshot on that Flink would name. Where one
is gone the commit is refused, and so is every later one ("Cannot determine history between starting snapshot null and the last
known ancestor"; iceberg #2482 is the same for deletes of positions, which Flink no longer has looked for).
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta

import msgspec
from msgspec.structs import replace

from icekeep.errors import OptionError, UsageError
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.snapshots import MAIN, Snapshot, SnapshotRef, matching
from icekeep.spec.types import MAX_INT, MAX_LONG

_GREATEST = {"min_snapshots_to_keep": MAX_INT, "max_snapshot_age_ms": MAX_LONG, "max_ref_age_ms": MAX_LONG}
_OF_BRANCHES = ("min_snapshots_to_keep", "max_snapshot_age_ms")


def validated_ref(name: str, ref: SnapshotRef) -> SnapshotRef:
    """Return a reference that the spec allows under this name.

    Raises:
        UsageError: the name is blank, `main` would be a tag, or a tag has a limit that only branches have.
        OptionError: a limit is not a positive number of its type.
    """
    if not name.strip():
        raise UsageError(f"{name!r} cannot be the name of a {ref.type}")
    if name == MAIN and not ref.is_branch:
        raise UsageError("main is a branch; it cannot become a tag")
    for limit, greatest in _GREATEST.items():
        given = getattr(ref, limit)
        if given is None:
            continue
        if limit in _OF_BRANCHES and not ref.is_branch:
            raise UsageError(f"{name!r} is a tag; only a branch can have {limit.replace('_', '-')}")
        if not 1 <= given <= greatest:
            raise OptionError(limit, given=given, expected=f"a whole number from 1 to {greatest}")
    return ref


def moved(ref: SnapshotRef | None, snapshot_id: int) -> SnapshotRef:
    """A reference at another snapshot, its retention unchanged; a new branch where there is none."""
    return SnapshotRef(snapshot_id=snapshot_id, type="branch") if ref is None else replace(ref, snapshot_id=snapshot_id)


def is_ancestor(metadata: TableMetadata, snapshot_id: int, *, of: int | None) -> bool:
    """Whether a snapshot is another one, or leads to it over parents that the table still knows."""
    return any(ancestor.snapshot_id == snapshot_id for ancestor in metadata.ancestors(of))


def newest_ancestor_before(metadata: TableMetadata, timestamp_ms: int) -> Snapshot | None:
    """The newest snapshot of `main`'s history that is older than a moment (epoch ms); `None` if there is none."""
    older = (s for s in metadata.ancestors(metadata.current_snapshot_id) if s.timestamp_ms < timestamp_ms)
    return max(older, key=lambda snapshot: snapshot.timestamp_ms, default=None)


def has_been_current_since(metadata: TableMetadata, snapshot_id: int, former_id: int | None) -> bool:
    """Whether the snapshot log shows a snapshot as the current one, now or at a time after `former_id` was it last."""
    ids = [entry.snapshot_id for entry in metadata.snapshot_log]
    since = len(ids) - ids[::-1].index(former_id) if former_id in ids else len(ids) if former_id is not None else 0
    return metadata.current_snapshot_id == snapshot_id or snapshot_id in ids[since:]


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class HistoryEntry(msgspec.Struct, frozen=True, kw_only=True):
    """From `made_current_at` (UTC) on a snapshot was the current one.

    Attributes:
        parent_id: the snapshot that it was made from; `None` for a first one, and where the snapshot has expired.
        is_current_ancestor: whether the table as it is now comes from it, or it is the current one itself.
    """

    made_current_at: datetime
    snapshot_id: int
    parent_id: int | None
    is_current_ancestor: bool


def history(metadata: TableMetadata) -> tuple[HistoryEntry, ...]:
    """The table's `snapshot-log`, the oldest first."""
    ancestors = {snapshot.snapshot_id for snapshot in metadata.ancestors(metadata.current_snapshot_id)}
    entries = []
    for entry in metadata.snapshot_log:
        snapshot = metadata.snapshots_by_id.get(entry.snapshot_id)
        entries.append(
            HistoryEntry(
                made_current_at=_EPOCH + timedelta(milliseconds=entry.timestamp_ms),
                snapshot_id=entry.snapshot_id,
                parent_id=None if snapshot is None else snapshot.parent_snapshot_id,
                is_current_ancestor=entry.snapshot_id in ancestors,
            )
        )
    return tuple(entries)


_FLINK_CHECKPOINT = "flink.max-committed-checkpoint-id"
_FLINK_JOB = "flink.job-id"
_FLINK_OPERATOR = "flink.operator-id"
ADDED_VECTORS = "added-dvs"
"""In the summaries of snapshots with new deletion vectors. It is also the key of snapshots that stay since a writer of
vectors needs the whole history."""
_SPARK_EPOCH = "spark.sql.streaming.epochId"
_SPARK_QUERY = "spark.sql.streaming.queryId"
# The second is how the connector named them before its third version, at first without the name of a group.
_KAFKA_OFFSETS = ("kafka.connect.offsets.", "kafka.connect.control.offsets")


class Writer(msgspec.Struct, frozen=True):
    """Who notes its progress: the key of the summary that has it, and the writer's name as an operator knows it."""

    key: str
    name: str


class KeptForWriter(msgspec.Struct, frozen=True):
    """A snapshot of a branch that a writer finds its progress in, or walks over to that; where the key is `ADDED_VECTORS`,
    one that it walks over before it commits vectors.
    """

    snapshot_id: int
    key: str
    writer: str
    branch: str


def writers_of(snapshot: Snapshot, keys: Sequence[str] = ()) -> tuple[Writer, ...]:
    """The writers whose progress a snapshot's summary has: most often one or none.

    Args:
        keys: of further writers, as the operator names them (`summary_keys.matching`).
    """
    summary = snapshot.summary
    return tuple(_writers(summary, keys)) if summary else ()


def kept_for_writers(
    metadata: TableMetadata,
    branches: Mapping[str, SnapshotRef],
    keep_ms: int,
    now_ms: int,
    keys: Sequence[str] = (),
) -> dict[int, KeptForWriter]:
    """The snapshots that writers need to find their progress in, by id.

    On each branch these are the newest snapshot of each writer, where that is younger than `keep_ms`, and all between it and
    the head. Of several writers that need one, one is named. Where a Flink job of these commits vectors, all others stay as well,
    unless some are gone already: then the job does without them, or is broken already.

    Args:
        now_ms: the moment that ages are measured against; a snapshot dated after it is young.
        keys: of further writers, as for `writers_of`.
    """
    writers = {s.snapshot_id: theirs for s in metadata.snapshots if (theirs := writers_of(s, keys))}
    young = {i for i in writers if now_ms - metadata.snapshots_by_id[i].timestamp_ms < keep_ms}
    wanted = {writer for snapshot_id in young for writer in writers[snapshot_id]}
    kept: dict[int, KeptForWriter] = {}
    # What was found from a head on need not be looked for by the branches that come upon it.
    found_below: dict[int, set[Writer]] = {}
    oldest_first = sorted(branches.items(), key=lambda item: made(metadata.snapshots_by_id[item[1].snapshot_id]))
    for name, ref in oldest_first:
        unseen, found = set(wanted), set[Writer]()
        walked: list[int] = []
        for snapshot in metadata.ancestors(ref.snapshot_id) if unseen else ():
            below = found_below.get(snapshot.snapshot_id)
            if below is not None:
                found |= below & unseen
                _keep(kept, walked, below & unseen, name)
                break
            walked.append(snapshot.snapshot_id)
            new = unseen.intersection(writers.get(snapshot.snapshot_id, ()))
            unseen -= new
            if new and snapshot.snapshot_id in young:
                found |= new
                _keep(kept, walked, new, name)
                walked = []
            if not unseen:
                break
        found_below[ref.snapshot_id] = found
    _keep_histories(kept, metadata, oldest_first, writers, young)
    return kept


def made(snapshot: Snapshot) -> tuple[int, int, int]:
    """By which snapshots sort in the order in which they were made; in version 1 all sequence numbers are 0."""
    return snapshot.sequence_number, snapshot.timestamp_ms, snapshot.snapshot_id


def _keep(kept: dict[int, KeptForWriter], snapshot_ids: list[int], writers: set[Writer], branch: str) -> None:
    """Note that some writers need these snapshots, each under the name of one."""
    new = [i for i in snapshot_ids if i not in kept] if writers else []
    if new:
        writer = min(writers, key=lambda writer: (writer.key, writer.name))
        kept.update((i, KeptForWriter(i, writer.key, writer.name, branch)) for i in new)


def _keep_histories(
    kept: dict[int, KeptForWriter],
    metadata: TableMetadata,
    branches: Iterable[tuple[str, SnapshotRef]],
    writers: Mapping[int, tuple[Writer, ...]],
    young: Collection[int],
) -> None:
    """Note all snapshots of branches that have young progress of a Flink job which commits vectors."""
    adding = {
        writer
        for snapshot_id, theirs in writers.items()
        if ADDED_VECTORS in (metadata.snapshots_by_id[snapshot_id].summary or {})
        for writer in theirs
        if writer.key == _FLINK_CHECKPOINT
    }
    whole: dict[int, Writer] = {}
    for name, ref in branches:
        walked: list[Snapshot] = []
        found = set[Writer]()
        for snapshot in metadata.ancestors(ref.snapshot_id) if adding else ():
            if snapshot.snapshot_id in whole:
                found.add(whole[snapshot.snapshot_id])
                break
            walked.append(snapshot)
            if snapshot.snapshot_id in young:
                found |= adding.intersection(writers[snapshot.snapshot_id])
        if walked and found and (walked[-1].parent_snapshot_id is None or walked[-1].parent_snapshot_id in whole):
            writer = min(found, key=lambda writer: writer.name)
            whole.update((s.snapshot_id, writer) for s in walked)
            for s in walked:
                kept.setdefault(s.snapshot_id, KeptForWriter(s.snapshot_id, ADDED_VECTORS, writer.name, name))


def _writers(summary: Mapping[str, str], keys: Sequence[str]) -> Iterator[Writer]:
    if _FLINK_CHECKPOINT in summary:
        operator = summary.get(_FLINK_OPERATOR)
        name = f"Flink job {summary.get(_FLINK_JOB, '(unnamed)')}"
        yield Writer(_FLINK_CHECKPOINT, f"{name}, operator {operator}" if operator is not None else name)
    if _SPARK_EPOCH in summary and _SPARK_QUERY in summary:
        yield Writer(_SPARK_EPOCH, f"Spark query {summary[_SPARK_QUERY]}")
    for key in summary:
        for start in _KAFKA_OFFSETS:
            if key.startswith(start):
                yield Writer(key, f"Kafka Connect {key[len(start) :].lstrip('.') or 'sink'}")
        if keys and matching(key, keys) is not None:
            yield Writer(key, f"the writer of {key}")
