"""Which snapshots and references a retention policy expires (spec, "Snapshot Retention Policy").

Pure: metadata, a policy and a moment in, ids out. Nothing is changed here and no file is looked at.

Streaming writers note how far they have come in the summaries of their own snapshots. A writer that starts again looks there for
what it has committed already: it walks from the head of its branch from parent to parent, takes the newest snapshot that is its
own, and stops where a parent is gone. Where it finds nothing it commits everything that it still holds once more (iceberg #5846).
So such a snapshot is worth nothing without all those after it.

A Flink job that commits deletion vectors needs more: all of its branch's history, from the first snapshot on. Iceberg Java, 1.12
among them, looks through it before each such commit for vectors of others, from no snapshot on that Flink would name. Where one
is gone the commit is refused, and so is every later one ("Cannot determine history between starting snapshot null and the last
known ancestor"; iceberg #2482 is the same for deletes of positions, which Flink no longer has looked for).
"""

from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from icekeep.errors import OptionError, SafetyError, UsageError, argument
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.properties import whole_number
from icekeep.spec.snapshots import MAIN, Snapshot, SnapshotRef, matching
from icekeep.spec.times import format_span, format_time
from icekeep.spec.types import DAY_MS, HOUR_MS, MAX_LONG

MAX_SNAPSHOT_AGE_MS = "history.expire.max-snapshot-age-ms"
MIN_SNAPSHOTS_TO_KEEP = "history.expire.min-snapshots-to-keep"
MAX_REF_AGE_MS = "history.expire.max-ref-age-ms"
LEAST_AGE = "expire.least-age"
"""The property of a catalog that says below which age no snapshot of any table expires."""

ADDED_VECTORS = "added-dvs"
"""In the summaries of snapshots with new deletion vectors. It is also the key of snapshots that stay since a writer of
vectors needs the whole history."""

_DEFAULTS = {MAX_SNAPSHOT_AGE_MS: 5 * DAY_MS, MIN_SNAPSHOTS_TO_KEEP: 1, MAX_REF_AGE_MS: MAX_LONG}
_CLOCKS_DIFFER_MS = HOUR_MS
_FLINK_CHECKPOINT = "flink.max-committed-checkpoint-id"
_SPARK_EPOCH = "spark.sql.streaming.epochId"
_SPARK_QUERY = "spark.sql.streaming.queryId"
# The second is how the connector named them before its third version, at first without the name of a group.
_KAFKA_OFFSETS = ("kafka.connect.offsets.", "kafka.connect.control.offsets")


class RetentionPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """What an operator asks for beyond the table's own properties.

    `older_than_ms` is a moment (epoch ms), `retain_last` a number of snapshots a branch; `None` takes the table's
    properties `history.expire.*`. `snapshot_ids` go even where they would be retained. What streaming writers find their
    progress in, and what they cannot commit without, stays while that is younger than `keep_writer_progress_ms`; 0 keeps
    nothing for them. `progress_keys` are the keys of writers that only the operator knows. What is younger than `least_age_ms`,
    which the operator lays down, stays whatever else is asked for.
    """

    older_than_ms: int | None = None
    retain_last: int | None = None
    snapshot_ids: tuple[int, ...] = ()
    keep_writer_progress_ms: int = 0
    progress_keys: tuple[str, ...] = ()
    least_age_ms: int = 0


class KeptForWriter(msgspec.Struct, frozen=True):
    """A snapshot of a branch that a writer finds its progress in, or walks over to that; where the key is `ADDED_VECTORS`,
    one that it walks over before it commits vectors.
    """

    snapshot_id: int
    key: str
    writer: str
    branch: str


class Expired(msgspec.Struct, frozen=True):
    """What leaves the metadata.

    Attributes:
        snapshot_ids: never the head of a retained ref.
        ref_names: branches and tags.
        kept: the snapshots that would leave it too, if no writer's progress were kept.
        schema_ids, spec_ids: schemas and partition specs that nothing uses once the snapshots are gone; none where unused ones
            are to stay.
    """

    snapshot_ids: frozenset[int]
    ref_names: frozenset[str]
    kept: tuple[KeptForWriter, ...] = ()
    schema_ids: frozenset[int] = frozenset()
    spec_ids: frozenset[int] = frozenset()

    @property
    def is_empty(self) -> bool:
        return not (self.snapshot_ids or self.ref_names or self.schema_ids or self.spec_ids)


def select_expired(metadata: TableMetadata, policy: RetentionPolicy, now_ms: int) -> Expired:
    """Choose the snapshots and references that no policy keeps.

    `main` stays. Another reference stays while its snapshot is not older than its `max-ref-age-ms`. A branch keeps its
    head and, from there back, ancestors that are among its newest `min-snapshots-to-keep` or not older than its
    `max-snapshot-age-ms`, up to the first that is neither; and those that a writer finds its progress in. A tag keeps its
    snapshot, not the ancestors. A snapshot that is on no branch and under no tag stays while it is younger than the default age.

    Args:
        now_ms: the moment that ages are measured against, epoch milliseconds. What is dated after it is as young as can be.

    Raises:
        OptionError: `retain_last` is less than 1, or `keep_writer_progress_ms` less than 0.
        NotFoundError: the policy names a snapshot that the table does not have.
        UsageError: the policy names the head of a retained reference.
        SafetyError: the policy names a snapshot that a writer finds its progress in, or asks for what is younger than the least
            age.
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
    _check_explicit(metadata, policy, refs, needed)
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
        frozenset(i for i in unretained if i not in needed),
        frozenset(metadata.refs.keys() - refs.keys()),
        tuple(needed[i] for i in unretained if i in needed),
    )


def default_limit(metadata: TableMetadata, name: str) -> int:
    """One of the properties `history.expire.*`, or what holds where the table does not have it; raises `PropertyError`."""
    return whole_number(metadata.properties, name, _DEFAULTS[name], least=None)


def _check_floor(metadata: TableMetadata, policy: RetentionPolicy, floor_ms: int) -> None:
    """Refuse what is asked for by name; the ages of tables and references are no more than too short."""
    age = format_span(policy.least_age_ms)
    # The moment may have been worked out from an age by another clock.
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
) -> None:
    for snapshot_id in policy.snapshot_ids:
        names = sorted(name for name, ref in refs.items() if ref.snapshot_id == snapshot_id)
        if names:
            raise UsageError(
                f"cannot expire snapshot {snapshot_id}: it is the head of {', '.join(map(repr, names))}; "
                "remove the reference first"
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
    """What the branches keep: most of a table's history is on all of them, and need not be walked for each."""
    walks = []
    for branch in branches:
        age_ms, count = branch.max_snapshot_age_ms, branch.min_snapshots_to_keep
        oldest_ms = cutoff_ms if age_ms is None else now_ms - age_ms
        head = metadata.snapshots_by_id[branch.snapshot_id]
        walks.append((oldest_ms, made(head), max(0, minimum if count is None else count)))
    # How many more were to be kept at least, from a snapshot on. A walk ends where one was before it that went back as far in
    # time and was to keep as many: so those that go back furthest come first, and of these those behind.
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
    """The heads of branches and all their ancestors, as far as the table has them."""
    reached: set[int] = set()
    for branch in branches:
        for snapshot in metadata.ancestors(branch.snapshot_id):
            if snapshot.snapshot_id in reached:
                break
            reached.add(snapshot.snapshot_id)
    return reached


class Writer(msgspec.Struct, frozen=True):
    """A writer that notes its progress: the key of the summary that has it, and the writer's name as an operator knows it."""

    key: str
    name: str


def writers_of(snapshot: Snapshot, keys: Sequence[str] = ()) -> tuple[Writer, ...]:
    """The writers whose progress a snapshot's summary has: most often one or none.

    Args:
        keys: of further writers, as the operator names them (`snapshots.matching`).
    """
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
    """By which snapshots sort in the order in which they were made; in version 1 all sequence numbers are 0."""
    return snapshot.sequence_number, snapshot.timestamp_ms, snapshot.snapshot_id


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
    sought = {writer for snapshot_id in young for writer in writers[snapshot_id]}
    kept: dict[int, KeptForWriter] = {}

    def keep(snapshot_ids: Iterable[int], needed_by: set[Writer], branch: str) -> None:
        if needed_by:
            writer = min(needed_by, key=lambda writer: (writer.key, writer.name))
            for i in snapshot_ids:
                kept.setdefault(i, KeptForWriter(i, writer.key, writer.name, branch))

    # What lies below a head need not be walked again by the branches that come upon it.
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
    """Note all snapshots of branches that have young progress of a Flink job which commits vectors."""
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
    """Schemas that are neither current nor named by a snapshot that stays.

    Those that say the type of a source column of a partition spec that stays are used too, without which its manifests cannot
    be read, and so are those of columns that equality deletes compare: a column that was dropped is still used to apply them
    (spec, "Equality Delete Files").

    Args:
        removed_spec_ids: partition specs that go with the snapshots.
        equality_ids: columns that equality deletes of the snapshots that stay compare.
    """
    used = {s.schema_id for s in metadata.snapshots if s.snapshot_id not in removed_snapshot_ids}
    used.add(metadata.current_schema_id)
    used.update(metadata.schema_of(field_id).schema_id for field_id in equality_ids)
    specs = [spec for spec in metadata.partition_specs if spec.spec_id not in removed_spec_ids]
    used.update(metadata.schema_of(f.source_id).schema_id for spec in specs for f in spec.fields)
    return tuple(s.schema_id for s in metadata.schemas if s.schema_id not in used)


def columns_of_schemas(metadata: TableMetadata, schema_ids: Collection[int]) -> frozenset[int]:
    """Ids of the columns that would be unknown, or known by an older definition only, without some schemas."""
    current_last = sorted(metadata.schemas, key=lambda s: (s.schema_id == metadata.current_schema_id, s.schema_id))
    newest = {field_id: schema.schema_id for schema in current_last for field_id in schema.fields_by_id}
    return frozenset(field_id for field_id, schema_id in newest.items() if schema_id in schema_ids)


def unused_spec_ids(metadata: TableMetadata, spec_ids_of_retained_manifests: Iterable[int]) -> tuple[int, ...]:
    """Partition specs that are neither the default nor used by a manifest of a snapshot that stays."""
    used = {metadata.default_spec_id, *spec_ids_of_retained_manifests}
    return tuple(s.spec_id for s in metadata.partition_specs if s.spec_id not in used)
