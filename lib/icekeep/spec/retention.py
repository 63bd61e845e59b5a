"""Which snapshots and references a retention policy expires (spec, "Snapshot Retention Policy"), by metadata alone.

Streaming writers record their progress in the summaries of their own snapshots. A writer that restarts looks there for its last
commit: it walks from the head of its branch from parent to parent to its newest own snapshot, and stops at a missing parent. If
it finds none, it commits everything that it still holds once more (iceberg #5846). So such a snapshot is of no use without all
those after it.

A Flink job that commits deletion vectors needs more: all of its branch's history, from the first snapshot on. Iceberg Java, as
of 1.12, looks through it before each such commit for vectors of other writers, as Flink gives it no starting snapshot. If one is
missing the commit is refused, and so is every later one ("Cannot determine history between starting snapshot null and the last
known ancestor"; iceberg #2482 is the same for position deletes, for which Flink no longer has the history checked).
"""

from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from icekeep.errors import OptionError, SafetyError, UsageError, argument
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.properties import whole_number
from icekeep.spec.readers import (
    KeptForReader,
    NeededByReaders,
    ReaderPosition,
    ReaderSeen,
    needed_by_readers,
    registered_readers,
)
from icekeep.spec.snapshots import MAIN, Snapshot, SnapshotRef, matching
from icekeep.spec.times import format_span, format_time
from icekeep.spec.types import DAY_MS, HOUR_MS, MAX_LONG

MAX_SNAPSHOT_AGE_MS = "history.expire.max-snapshot-age-ms"
MIN_SNAPSHOTS_TO_KEEP = "history.expire.min-snapshots-to-keep"
MAX_REF_AGE_MS = "history.expire.max-ref-age-ms"
LEAST_AGE = "expire.least-age"
"""The property of a catalog that sets the least age at which snapshots of its tables expire."""

ADDED_VECTORS = "added-dvs"
"""A key in the summaries of snapshots with new deletion vectors; `KeptForWriter` has it for snapshots that are kept because a
writer of vectors needs the whole history."""

_DEFAULTS = {MAX_SNAPSHOT_AGE_MS: 5 * DAY_MS, MIN_SNAPSHOTS_TO_KEEP: 1, MAX_REF_AGE_MS: MAX_LONG}
_CLOCKS_DIFFER_MS = HOUR_MS
_FLINK_CHECKPOINT = "flink.max-committed-checkpoint-id"
_SPARK_EPOCH = "spark.sql.streaming.epochId"
_SPARK_QUERY = "spark.sql.streaming.queryId"
# The second is the connector's key before its third version, at first without the name of a group.
_KAFKA_OFFSETS = ("kafka.connect.offsets.", "kafka.connect.control.offsets")


class RetentionPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """An operator's settings beyond the table's own properties.

    `older_than_ms` is a moment (epoch ms), `retain_last` a number of snapshots a branch; `None` takes the table's
    properties `history.expire.*`. `snapshot_ids` expire even if they would be retained. Snapshots that streaming writers need
    to find their progress, or to commit at all, are kept while the progress is younger than `keep_writer_progress_ms`; 0 keeps
    nothing for them. `progress_keys` are the summary keys of further writers. Snapshots younger than `least_age_ms` are kept
    in any case.

    Readers that have registered in the table, and those of `reader_positions`, keep what they have not read while they lag for
    no longer than `max_reader_lag_ms`; 0 waits for none.
    """

    older_than_ms: int | None = None
    retain_last: int | None = None
    snapshot_ids: tuple[int, ...] = ()
    keep_writer_progress_ms: int = 0
    progress_keys: tuple[str, ...] = ()
    least_age_ms: int = 0
    reader_positions: tuple[ReaderPosition, ...] = ()
    max_reader_lag_ms: int = 0


class KeptForWriter(msgspec.Struct, frozen=True):
    """A snapshot of a branch that has a writer's progress, or that the writer passes on the way to it; with the key
    `ADDED_VECTORS`, one that it passes before it commits vectors.
    """

    snapshot_id: int
    key: str
    writer: str
    branch: str


class Expired(msgspec.Struct, frozen=True):
    """The parts that are removed from the metadata.

    Attributes:
        snapshot_ids: never the head of a retained ref.
        ref_names: branches and tags.
        kept: snapshots that would be removed too, if they were not kept for writers.
        kept_for_readers: the same of readers, where no writer needs the snapshot.
        readers: all that are known, those for which nothing is kept among them.
        schema_ids, spec_ids: schemas and partition specs that nothing uses without the snapshots; none if unused ones are kept.
    """

    snapshot_ids: frozenset[int]
    ref_names: frozenset[str]
    kept: tuple[KeptForWriter, ...] = ()
    schema_ids: frozenset[int] = frozenset()
    spec_ids: frozenset[int] = frozenset()
    kept_for_readers: tuple[KeptForReader, ...] = ()
    readers: tuple[ReaderSeen, ...] = ()

    @property
    def is_empty(self) -> bool:
        return not (self.snapshot_ids or self.ref_names or self.schema_ids or self.spec_ids)


def select_expired(metadata: TableMetadata, policy: RetentionPolicy, now_ms: int) -> Expired:
    """Choose the snapshots and references that no policy keeps; ages are measured at `now_ms` (epoch milliseconds).

    `main` is kept. Another reference is kept while its snapshot is not older than its `max-ref-age-ms`. A branch keeps its
    head and, from there back, ancestors that are among its newest `min-snapshots-to-keep` or not older than its
    `max-snapshot-age-ms`, up to the first that is neither; and those that writers and readers need. Where the position of a
    reader is not known, everything is kept. A tag keeps its snapshot, not the
    ancestors. A snapshot of no branch or tag is kept while it is younger than the default age.

    Where the policy names a snapshot, it may not be missing (`NotFoundError`), the head of a retained reference (`UsageError`),
    nor one that a writer or a reader needs, or that is younger than the least age (`SafetyError`).
    """
    keep_ms = policy.keep_writer_progress_ms
    if policy.retain_last is not None and policy.retain_last < 1:
        raise OptionError("retain_last", given=policy.retain_last, expected="a whole number, 1 or more")
    if keep_ms < 0:
        raise OptionError("keep-writer-progress", given=keep_ms, expected="an age, 0 or more")
    floor_ms = now_ms - policy.least_age_ms if policy.least_age_ms else MAX_LONG
    _check_floor(metadata, policy, floor_ms)
    cutoff_ms = policy.older_than_ms
    if cutoff_ms is None:
        cutoff_ms = now_ms - default_limit(metadata, MAX_SNAPSHOT_AGE_MS)
    cutoff_ms = min(floor_ms, cutoff_ms)
    minimum = policy.retain_last or default_limit(metadata, MIN_SNAPSHOTS_TO_KEEP)
    refs = _retained_refs(metadata, now_ms, policy.least_age_ms)
    branches = {name: ref for name, ref in refs.items() if ref.is_branch}
    needed = kept_for_writers(metadata, branches, keep_ms, now_ms, policy.progress_keys) if keep_ms else {}
    read = _needed_by_readers(metadata, policy, refs, now_ms)
    _check_explicit(metadata, policy, refs, needed, read)
    if read.keeps_all:
        refs = metadata.refs
    retained = {ref.snapshot_id for ref in refs.values()}
    retained |= _kept_on_branches(metadata, branches.values(), cutoff_ms, minimum, now_ms)
    on_branches = _reached(metadata, branches.values())
    retained.update(
        s.snapshot_id
        for s in metadata.snapshots
        if s.timestamp_ms >= floor_ms or (s.timestamp_ms >= cutoff_ms and s.snapshot_id not in on_branches)
    )
    retained -= set(policy.snapshot_ids)
    unretained = [s.snapshot_id for s in metadata.snapshots if s.snapshot_id not in retained]
    return Expired(
        frozenset(i for i in unretained if i not in needed and i not in read.snapshots),
        frozenset(metadata.refs.keys() - refs.keys()),
        tuple(needed[i] for i in unretained if i in needed),
        kept_for_readers=tuple(read.snapshots[i] for i in unretained if i in read.snapshots and i not in needed),
        readers=read.readers,
    )


def _needed_by_readers(
    metadata: TableMetadata, policy: RetentionPolicy, refs: Mapping[str, SnapshotRef], now_ms: int
) -> NeededByReaders:
    if not policy.max_reader_lag_ms:
        return NeededByReaders()
    positions = [*registered_readers(metadata, refs), *policy.reader_positions]
    return needed_by_readers(metadata, positions, policy.max_reader_lag_ms, now_ms)


def default_limit(metadata: TableMetadata, name: str) -> int:
    """One of the properties `history.expire.*`, or its default; raises `PropertyError`."""
    return whole_number(metadata.properties, name, _DEFAULTS[name], least=None)


def _check_floor(metadata: TableMetadata, policy: RetentionPolicy, floor_ms: int) -> None:
    """Refuse explicit requests below the least age; shorter ages in tables and references are only raised to it."""
    age = format_span(policy.least_age_ms)
    # The moment may have been derived from an age by another clock.
    if policy.older_than_ms is not None and policy.older_than_ms > floor_ms + _CLOCKS_DIFFER_MS:
        raise SafetyError(
            f"{argument('older_than')} is {format_time(policy.older_than_ms)}, and {LEAST_AGE} of the catalog lets no snapshot "
            f"expire that is younger than {age}; give that age or more"
        )
    for snapshot_id in policy.snapshot_ids:
        if metadata.snapshot(snapshot_id).timestamp_ms >= floor_ms:
            raise SafetyError(
                f"cannot expire snapshot {snapshot_id}: {LEAST_AGE} of the catalog lets none expire that is younger than {age}; "
                "leave it out",
                snapshot_id=snapshot_id,
            )


def _check_explicit(
    metadata: TableMetadata,
    policy: RetentionPolicy,
    refs: Mapping[str, SnapshotRef],
    needed: Mapping[int, KeptForWriter],
    read: NeededByReaders,
) -> None:
    for snapshot_id in policy.snapshot_ids:
        names = sorted(name for name, ref in refs.items() if ref.snapshot_id == snapshot_id)
        if names:
            raise UsageError(
                f"cannot expire snapshot {snapshot_id}: it is the head of {', '.join(map(repr, names))}; "
                "remove the reference first"
            )
        if (reader := read.snapshots.get(snapshot_id)) is not None:
            raise SafetyError(
                f"cannot expire snapshot {snapshot_id}: reader {reader.reader!r} has not read all after it; if it never starts "
                "again, remove its registration or its checkpoint, or give readers.max-lag=0",
                snapshot_id=snapshot_id,
                reader=reader.reader,
            )
        if (kept := needed.get(snapshot_id)) is None:
            continue
        harm = (
            f"no longer find how far it has come ({kept.key}) and write again what it has written; if it never starts again, "
            "give keep-writer-progress=0"
        )
        if kept.key == ADDED_VECTORS:
            harm = (
                "no longer commit: it writes deletion vectors, for which Iceberg Java looks through all of the branch's history; "
                "if it never starts again, or its Iceberg does so no more, give keep-writer-progress=0"
            )
        raise SafetyError(
            f"cannot expire snapshot {snapshot_id}: on branch {kept.branch!r} {kept.writer} would {harm}",
            snapshot_id=snapshot_id,
            writer=kept.writer,
            key=kept.key,
            branch=kept.branch,
        )


def _retained_refs(metadata: TableMetadata, now_ms: int, least_age_ms: int) -> Mapping[str, SnapshotRef]:
    default_age_ms = default_limit(metadata, MAX_REF_AGE_MS)
    retained = {}
    for name, ref in metadata.refs.items():
        snapshot = metadata.snapshots_by_id.get(ref.snapshot_id)
        max_age_ms = default_age_ms if ref.max_ref_age_ms is None else ref.max_ref_age_ms
        is_young = snapshot is not None and now_ms - snapshot.timestamp_ms <= max(max_age_ms, least_age_ms)
        if name == MAIN or is_young:
            retained[name] = ref
    return retained


def _kept_on_branches(
    metadata: TableMetadata, branches: Iterable[SnapshotRef], cutoff_ms: int, minimum: int, now_ms: int
) -> set[int]:
    """The ids that branches keep; history that they share is not walked for each."""
    walks = []
    for branch in branches:
        age_ms, count = branch.max_snapshot_age_ms, branch.min_snapshots_to_keep
        oldest_ms = cutoff_ms if age_ms is None else now_ms - age_ms
        head = metadata.snapshots_by_id[branch.snapshot_id]
        walks.append((oldest_ms, made(head), max(0, minimum if count is None else count)))
    # From each snapshot on, how many more were to be kept at least. A walk ends where an earlier one passed that went back as
    # far in time and was to keep as many: so those that go back furthest come first, and of these the oldest heads.
    walked: dict[int, int] = {}
    for oldest_ms, (_, _, head_id), at_least in sorted(walks):
        missing = at_least
        for snapshot in metadata.ancestors(head_id):
            is_old = not missing and snapshot.timestamp_ms < oldest_ms
            if is_old or walked.get(snapshot.snapshot_id, -1) >= missing:
                break
            walked[snapshot.snapshot_id] = missing
            missing = max(0, missing - 1)
    return {*walked}


def _reached(metadata: TableMetadata, branches: Iterable[SnapshotRef]) -> set[int]:
    """The ids of the heads of branches and all their ancestors."""
    reached: set[int] = set()
    for branch in branches:
        for snapshot in metadata.ancestors(branch.snapshot_id):
            if snapshot.snapshot_id in reached:
                break
            reached.add(snapshot.snapshot_id)
    return reached


class Writer(msgspec.Struct, frozen=True):
    """A streaming writer: the summary key of its progress, and its name for people."""

    key: str
    name: str


def writers_of(snapshot: Snapshot, keys: Sequence[str] = ()) -> tuple[Writer, ...]:
    """The writers whose progress a snapshot's summary has; `keys` are patterns of further ones (`snapshots.matching`)."""
    summary, writers = snapshot.summary or {}, []
    if _FLINK_CHECKPOINT in summary:
        operator = summary.get("flink.operator-id")
        name = f"Flink job {summary.get('flink.job-id', '(unnamed)')}"
        writers.append(Writer(_FLINK_CHECKPOINT, f"{name}, operator {operator}" if operator is not None else name))
    if _SPARK_EPOCH in summary and _SPARK_QUERY in summary:
        writers.append(Writer(_SPARK_EPOCH, f"Spark query {summary[_SPARK_QUERY]}"))
    for key in summary:
        for start in _KAFKA_OFFSETS:
            if key.startswith(start):
                writers.append(Writer(key, f"Kafka Connect {key[len(start) :].lstrip('.') or 'sink'}"))
        if keys and matching(key, keys) is not None:
            writers.append(Writer(key, f"the writer of {key}"))
    return tuple(writers)


def made(snapshot: Snapshot) -> tuple[int, int, int]:
    """A sort key for the order of commits; in version 1 all sequence numbers are 0."""
    return snapshot.sequence_number, snapshot.timestamp_ms, snapshot.snapshot_id


def kept_for_writers(
    metadata: TableMetadata, branches: Mapping[str, SnapshotRef], keep_ms: int, now_ms: int, keys: Sequence[str] = ()
) -> dict[int, KeptForWriter]:
    """The snapshots that writers need to find their progress, by id; `keys` as in `writers_of`.

    On each branch these are the newest snapshot of each writer, if it is younger than `keep_ms`, and all between it and the
    head. Of several writers that need a snapshot, one is named. If one of them is a Flink job that commits vectors, all other
    snapshots of the branch are kept as well, unless some are gone already: then the job does without them, or is broken.
    """
    writers = {s.snapshot_id: theirs for s in metadata.snapshots if (theirs := writers_of(s, keys))}
    young = {i for i in writers if now_ms - metadata.snapshots_by_id[i].timestamp_ms < keep_ms}
    sought = {writer for snapshot_id in young for writer in writers[snapshot_id]}
    kept: dict[int, KeptForWriter] = {}

    def keep(snapshot_ids: Iterable[int], needed_by: set[Writer], branch: str) -> None:
        if needed_by:
            writer = min(needed_by, key=lambda writer: (writer.key, writer.name))
            for i in snapshot_ids:
                kept.setdefault(i, KeptForWriter(i, writer.key, writer.name, branch))

    # Branches that contain another one's head need not walk its history again.
    found_below: dict[int, set[Writer]] = {}
    oldest_first = sorted(branches.items(), key=lambda item: made(metadata.snapshots_by_id[item[1].snapshot_id]))
    for name, ref in oldest_first:
        unseen, found = set(sought), set[Writer]()
        walked: list[int] = []
        for snapshot in metadata.ancestors(ref.snapshot_id) if unseen else ():
            below = found_below.get(snapshot.snapshot_id)
            if below is not None:
                found |= below & unseen
                keep(walked, below & unseen, name)
                break
            walked.append(snapshot.snapshot_id)
            new = unseen.intersection(writers.get(snapshot.snapshot_id, ()))
            unseen -= new
            if new and snapshot.snapshot_id in young:
                found |= new
                keep(walked, new, name)
                walked = []
            if not unseen:
                break
        found_below[ref.snapshot_id] = found
    _keep_histories(kept, metadata, oldest_first, writers, young)
    return kept


def _keep_histories(
    kept: dict[int, KeptForWriter],
    metadata: TableMetadata,
    branches: Iterable[tuple[str, SnapshotRef]],
    writers: Mapping[int, tuple[Writer, ...]],
    young: Collection[int],
) -> None:
    """Add to `kept` all snapshots of branches with young progress of a Flink job that commits vectors."""
    adding = {
        writer
        for snapshot_id, theirs in writers.items()
        if ADDED_VECTORS in (metadata.snapshots_by_id[snapshot_id].summary or {})
        for writer in theirs
        if writer.key == _FLINK_CHECKPOINT
    }
    whole: dict[int, Writer] = {}
    for name, ref in branches if adding else ():
        walked: list[Snapshot] = []
        found = set[Writer]()
        for snapshot in metadata.ancestors(ref.snapshot_id):
            if snapshot.snapshot_id in whole:
                found.add(whole[snapshot.snapshot_id])
                break
            walked.append(snapshot)
            if snapshot.snapshot_id in young:
                found |= adding.intersection(writers[snapshot.snapshot_id])
        if walked and found and (walked[-1].parent_snapshot_id is None or walked[-1].parent_snapshot_id in whole):
            writer = min(found, key=lambda writer: writer.name)
            for s in walked:
                whole[s.snapshot_id] = writer
                kept.setdefault(s.snapshot_id, KeptForWriter(s.snapshot_id, ADDED_VECTORS, writer.name, name))


def unused_schema_ids(
    metadata: TableMetadata,
    removed_snapshot_ids: frozenset[int],
    removed_spec_ids: Collection[int] = (),
    equality_ids: Iterable[int] = (),
) -> tuple[int, ...]:
    """Schemas that are neither current nor used by retained snapshots and partition specs.

    Those that define a source column of a retained spec are used, as its manifests cannot be read without them, and so are
    those of the columns `equality_ids` of the retained equality deletes, which apply to dropped columns too (spec, "Equality
    Delete Files").
    """
    used = {s.schema_id for s in metadata.snapshots if s.snapshot_id not in removed_snapshot_ids}
    used.add(metadata.current_schema_id)
    used.update(metadata.schema_of(field_id).schema_id for field_id in equality_ids)
    specs = [spec for spec in metadata.partition_specs if spec.spec_id not in removed_spec_ids]
    used.update(metadata.schema_of(f.source_id).schema_id for spec in specs for f in spec.fields)
    return tuple(s.schema_id for s in metadata.schemas if s.schema_id not in used)


def columns_of_schemas(metadata: TableMetadata, schema_ids: Collection[int]) -> frozenset[int]:
    """Ids of the columns whose definition, the current schema's or else the newest, is in one of some schemas."""
    current_last = sorted(metadata.schemas, key=lambda s: (s.schema_id == metadata.current_schema_id, s.schema_id))
    newest = {field_id: schema.schema_id for schema in current_last for field_id in schema.fields_by_id}
    return frozenset(field_id for field_id, schema_id in newest.items() if schema_id in schema_ids)


def unused_spec_ids(metadata: TableMetadata, spec_ids_of_retained_manifests: Iterable[int]) -> tuple[int, ...]:
    """Partition specs that are neither the default nor used by a manifest of a retained snapshot."""
    used = {metadata.default_spec_id, *spec_ids_of_retained_manifests}
    return tuple(s.spec_id for s in metadata.partition_specs if s.spec_id not in used)
