"""What an expiration may delete, worked out anew: a plain set computation over all metadata, slow and without a short cut.

It reads metadata as JSON and manifests with fastavro, compares names of files by a rule of its own, and shares no code with
the library; nor does the rule of which snapshots and references a retention policy expires, one snapshot at a time.
"""

import io
import json
import posixpath
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple

import fastavro

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


CONTENT_KINDS = ("data file", "position delete file", "equality delete file")
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(.*)", re.DOTALL)


class Reached(NamedTuple):
    """A file that some metadata leads to: what it is, and how it is spelled there.

    Attributes:
        blob: the data file and the offset of a deletion vector.
        listed_by: the manifest of a data file or delete file, and the partition spec of that.
    """

    kind: str
    spelling: str
    blob: tuple[str, int] | None = None
    listed_by: str = ""
    spec_id: int = 0


class Expiration(NamedTuple):
    """What an expiration comes to; files are under their `normal` names.

    Attributes:
        snapshot_ids, ref_names: that go.
        garbage: files that go, by kind.
        outside: files that are as unreachable, and stay for where they lie.
        retained: what the snapshots that stay lead to, and all that the metadata itself names.
        expired: what those that go lead to.
    """

    snapshot_ids: set[int]
    ref_names: set[str]
    garbage: dict[str, set[str]]
    outside: set[str]
    retained: dict[str, set[Reached]]
    expired: dict[str, set[Reached]]

    @property
    def files(self) -> set[str]:
        """All that go."""
        return set().union(*self.garbage.values())


def normal(location: str) -> str:
    """One name for all spellings of a file."""
    match = _SCHEME.fullmatch(location)
    scheme, rest = (match[1].lower(), match[2]) if match else ("file", location)
    authority = ""
    if match and rest.startswith("//"):
        authority, _, path = rest[2:].partition("/")
        rest = f"/{path}"
    if scheme == "file" and authority == "localhost":
        authority = ""
    return f"{scheme}://{authority}/{posixpath.normpath('/' + rest.lstrip('/')).lstrip('/')}"


class Oracle:
    """Reads what a table's files say; `files` are all of a store, under any of their names."""

    def __init__(self, files: Mapping[str, bytes]) -> None:
        self.files = {normal(location): data for location, data in files.items()}
        self._records: dict[str, list[dict[str, Any]]] = {}

    def document(self, metadata_location: str) -> dict[str, Any]:
        """Table metadata as JSON."""
        found = json.loads(self.files[normal(metadata_location)])
        assert isinstance(found, dict)
        return {"snapshots": [], "refs": {}, "properties": {}, **found}

    def expiration(
        self,
        metadata_location: str,
        *,
        now_ms: int,
        roots: Collection[str] = (),
        keep_writer_progress_ms: int = 0,
        **policy: Any,
    ) -> Expiration:
        """What expiring does to the table as it is; `policy` are arguments of `expected_expiration`.

        Raises:
            ValueError: a snapshot that is named has to stay.
        """
        document = self.document(metadata_location)
        ids, names = expected_expiration(document, now_ms=now_ms, **policy)
        needed = _needed_by_writers(document, names, keep_writer_progress_ms, now_ms)
        if needed & set(policy.get("snapshot_ids", ())):
            raise ValueError("an explicit id is one that a writer finds its progress in")
        ids -= needed
        gone = [s for s in document["snapshots"] if s["snapshot-id"] in ids]
        kept = [s for s in document["snapshots"] if s["snapshot-id"] not in ids]
        expired = _gathered(self._reached(document, gone))
        retained = _gathered(self._reached(document, kept))
        retained.setdefault(normal(metadata_location), set()).add(Reached("metadata file", metadata_location))
        unreachable = expired.keys() - retained.keys()
        territory = [normal(root) for root in (document["location"], *roots)]
        outside = {name for name in unreachable if not any(_lies_in(name, root) for root in territory)}
        garbage: dict[str, set[str]] = {}
        for name in unreachable - outside:
            kinds = {reached.kind for reached in expired[name]}
            assert len(kinds) == 1, f"{name} is several things: {kinds}"
            garbage.setdefault(kinds.pop(), set()).add(name)
        return Expiration(ids, names, garbage, outside, retained, expired)

    def reachable(self, metadata_location: str) -> set[str]:
        """Every file that a table's metadata leads to, itself too."""
        document = self.document(metadata_location)
        return {normal(metadata_location), *_gathered(self._reached(document, document["snapshots"]))}

    def missing(self, metadata_location: str) -> set[str]:
        """Files that the metadata leads to and that are not there; the first of those that others are read from."""
        try:
            return self.reachable(metadata_location) - self.files.keys()
        except KeyError as error:
            return {error.args[0]}

    def _reached(self, document: Mapping[str, Any], snapshots: Collection[Mapping[str, Any]]) -> Iterator[Reached]:
        ids = {s["snapshot-id"] for s in snapshots}
        for snapshot in snapshots:
            yield Reached("manifest list", snapshot["manifest-list"])
            for manifest in self._avro(snapshot["manifest-list"]):
                path, spec_id = manifest["manifest_path"], manifest["partition_spec_id"]
                yield Reached("manifest", path)
                for entry in self._avro(path):
                    if entry["status"] != 2:
                        yield _content(entry["data_file"], path, spec_id)
        for key in ("statistics", "partition-statistics"):
            for file in document.get(key, ()):
                if file["snapshot-id"] in ids:
                    yield Reached("statistics file", file["statistics-path"])

    def _avro(self, location: str) -> list[dict[str, Any]]:
        name = normal(location)
        if name not in self._records:
            records = fastavro.reader(io.BytesIO(self.files[name]))
            self._records[name] = [record for record in records if isinstance(record, dict)]
        return self._records[name]


def _content(file: Mapping[str, Any], listed_by: str, spec_id: int) -> Reached:
    kind = CONTENT_KINDS[file.get("content") or 0]
    blob = (file["referenced_data_file"], file["content_offset"]) if file.get("content_offset") is not None else None
    return Reached(kind, file["file_path"], blob, listed_by, spec_id)


def _gathered(reached: Iterator[Reached]) -> dict[str, set[Reached]]:
    found: dict[str, set[Reached]] = {}
    for one in reached:
        found.setdefault(normal(one.spelling), set()).add(one)
    return found


def _needed_by_writers(document: Mapping[str, Any], gone_refs: set[str], keep_ms: int, now_ms: int) -> set[int]:
    """On each branch the newest snapshot of each writer, where that is young, and all from there to the head."""
    snapshots = {s["snapshot-id"]: s for s in document["snapshots"]}
    needed: set[int] = set()
    for name, ref in document["refs"].items():
        if ref["type"] != "branch" or name in gone_refs:
            continue
        seen: set[tuple[str, ...]] = set()
        walked: list[int] = []
        snapshot = snapshots.get(ref["snapshot-id"])
        while snapshot is not None:
            walked.append(snapshot["snapshot-id"])
            new = _writers(snapshot.get("summary", {})) - seen
            if new and now_ms - snapshot["timestamp-ms"] < keep_ms:
                needed.update(walked)
            seen |= new
            snapshot = snapshots.get(snapshot.get("parent-snapshot-id"))
    return needed


def _writers(summary: Mapping[str, str]) -> set[tuple[str, ...]]:
    found: set[tuple[str, ...]] = set()
    if "flink.max-committed-checkpoint-id" in summary:
        found.add(("flink", summary["flink.job-id"], summary.get("flink.operator-id", "")))
    if "spark.sql.streaming.epochId" in summary:
        found.add(("spark", summary["spark.sql.streaming.queryId"]))
    found.update(("kafka", key) for key in summary if key.startswith("kafka.connect.offsets."))
    return found


def _lies_in(name: str, root: str) -> bool:
    parts, above = name.split("/"), root.split("/")
    return len(parts) > len(above) and parts[: len(above)] == above
