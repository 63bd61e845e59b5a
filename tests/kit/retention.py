"""Which snapshots and references a retention policy expires, worked out anew from the rules: slow, one snapshot at a time.

It reads a metadata document as JSON and shares no code with the library.
"""

from collections.abc import Collection, Mapping
from typing import Any

FIVE_DAYS_MS = 5 * 24 * 60 * 60 * 1000


class WriterNeedsIt(ValueError):
    """An explicit id lies between the head of a branch that stays and what a writer finds there."""


def expected_expiration(
    document: Mapping[str, Any],
    *,
    now_ms: int,
    older_than_ms: int | None = None,
    retain_last: int | None = None,
    snapshot_ids: Collection[int] = (),
    keep_writer_progress_ms: int = 0,
) -> tuple[set[int], set[str]]:
    """The ids of expired snapshots and the names of expired references.

    Raises:
        ValueError: an explicit id is the head of a reference that stays.
        WriterNeedsIt: an explicit id is between such a head and the progress of a writer.
    """
    snapshots = {s["snapshot-id"]: s for s in document["snapshots"]}
    properties = document["properties"]
    default_age = int(properties.get("history.expire.max-snapshot-age-ms", FIVE_DAYS_MS))
    default_cutoff = now_ms - default_age if older_than_ms is None else older_than_ms
    default_minimum = retain_last or int(properties.get("history.expire.min-snapshots-to-keep", 1))
    default_ref_age = int(properties.get("history.expire.max-ref-age-ms", 2**63 - 1))

    refs = document["refs"]
    gone_refs = {
        name
        for name, ref in refs.items()
        if name != "main"
        and now_ms - snapshots[ref["snapshot-id"]]["timestamp-ms"] > ref.get("max-ref-age-ms", default_ref_age)
    }
    kept_refs = {name: ref for name, ref in refs.items() if name not in gone_refs}
    heads = {ref["snapshot-id"] for ref in kept_refs.values()}
    if heads & set(snapshot_ids):
        raise ValueError("an explicit id is the head of a reference that stays")
    branches = [ref for ref in kept_refs.values() if ref["type"] == "branch"]
    histories = [_history(snapshots, ref["snapshot-id"]) for ref in branches]
    needed = {
        between
        for history in histories
        for of in (needed_by_writers, needed_for_vectors)
        for between, _ in of(snapshots, history, now_ms, keep_writer_progress_ms)
    }
    if needed & set(snapshot_ids):
        raise WriterNeedsIt("an explicit id is between a head and the progress of a writer")

    def protected_by(branch: Mapping[str, Any], history: list[int], snapshot_id: int) -> bool:
        """Whether every snapshot from the head down to this one is new enough, or early enough in the branch."""
        age = branch.get("max-snapshot-age-ms")
        cutoff = default_cutoff if age is None else now_ms - age
        minimum = branch.get("min-snapshots-to-keep", default_minimum)
        return snapshot_id in history and all(
            position < minimum or snapshots[history[position]]["timestamp-ms"] >= cutoff
            for position in range(history.index(snapshot_id) + 1)
        )

    def stays(snapshot_id: int) -> bool:
        if snapshot_id in snapshot_ids:
            return False
        if snapshot_id in heads or snapshot_id in needed:
            return True
        if any(snapshot_id in history for history in histories):
            return any(protected_by(b, h, snapshot_id) for b, h in zip(branches, histories, strict=True))
        return bool(snapshots[snapshot_id]["timestamp-ms"] >= default_cutoff)

    return {snapshot_id for snapshot_id in snapshots if not stays(snapshot_id)}, gone_refs


def needed_by_writers(
    snapshots: Mapping[int, Mapping[str, Any]], history: list[int], now_ms: int, keep_ms: int
) -> set[tuple[int, str]]:
    """Snapshots of a branch with the writers that walk over them to one of theirs that is younger than `keep_ms`, if not 0."""
    needed = set()
    writers = {writer for snapshot_id in history for writer in writers_in(snapshots[snapshot_id])}
    for writer in writers:
        theirs = [i for i in history if writer in writers_in(snapshots[i])]
        if keep_ms and now_ms - snapshots[theirs[0]]["timestamp-ms"] < keep_ms:
            needed |= {(i, writer) for i in history[: history.index(theirs[0]) + 1]}
    return needed


def needed_for_vectors(
    snapshots: Mapping[int, Mapping[str, Any]], history: list[int], now_ms: int, keep_ms: int
) -> set[tuple[int, str]]:
    """All snapshots of a branch that is known to its root, if a Flink job that adds vectors to any has made a young one."""
    if snapshots[history[-1]].get("parent-snapshot-id") is not None:
        return set()
    adding = [snapshot for snapshot in snapshots.values() if "added-dvs" in snapshot.get("summary", {})]
    flink = {writer for snapshot in adding for writer in writers_in(snapshot)}
    young = [i for i in history if keep_ms and now_ms - snapshots[i]["timestamp-ms"] < keep_ms]
    found = {w for i in young for w in writers_in(snapshots[i]) & flink if w.startswith("flink ")}
    return {(i, writer) for i in history for writer in found}


def writers_in(snapshot: Mapping[str, Any]) -> set[str]:
    """Names of the writers whose progress is in the summary of a snapshot."""
    summary = snapshot.get("summary", {})
    found = {key for key in summary if key.startswith(("kafka.connect.offsets.", "kafka.connect.control.offsets"))}
    if "flink.max-committed-checkpoint-id" in summary:
        found.add(f"flink {summary.get('flink.job-id')} {summary.get('flink.operator-id')}")
    if {"spark.sql.streaming.queryId", "spark.sql.streaming.epochId"} <= summary.keys():
        found.add(f"spark {summary['spark.sql.streaming.queryId']}")
    return found


def _history(snapshots: Mapping[int, Mapping[str, Any]], head: int) -> list[int]:
    """A snapshot and its ancestors, newest first, as far as they are known."""
    parent = snapshots[head].get("parent-snapshot-id")
    return [head, *(_history(snapshots, parent) if parent in snapshots else [])]
