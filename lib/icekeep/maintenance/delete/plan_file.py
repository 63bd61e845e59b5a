"""What is going to be deleted, on disk before anything is: one directory a run, JSON lines that an operator can read.

    <table>/.icekeep/plans/<run>/files-<part>.jsonl   {"kind": "data file", "location": "...", "size-in-bytes": 4242}
    <table>/.icekeep/plans/<run>/before.json          the table's metadata before the run, from which snapshots can come back
    <table>/.icekeep/plans/<run>/claims/000001.json   who is at work on it (`lease.py`)
    <table>/.icekeep/plans/<run>/plan.json            the head: whose plan it is, what it sums up to, and its hash

The head is written last and removed first: a directory that has none is of a run that died, and nothing in it counts. Where
files go to the trash, the same lies under `.icekeep/trash/<run>/`, with the files themselves below `files/`.

One protocol for deleting a plan's files and for bringing them back: lease the plan, prove it on metadata that was loaded after
that, and look at lease and catalog again before each call.

The hash is of the set: of what the run is to do and how, and of each file's kind and location, in whatever order and parts they
are.
"""

import hashlib
import json
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from icekeep.catalog.base import Table
from icekeep.decoding import from_json
from icekeep.errors import (
    InvalidTableError,
    MissingFileError,
    NotFoundError,
    SafetyError,
    UnavailableError,
    UsageError,
    and_more,
    shown_command,
)
from icekeep.events import Listener, Warned
from icekeep.maintenance.delete.garbage import UNREADABLE, Garbage
from icekeep.maintenance.delete.lease import last_work
from icekeep.maintenance.delete.locations import DeletableLocations
from icekeep.maintenance.delete.reachable import (
    GARBAGE,
    FilesOfKind,
    added,
    among,
    by_kind,
    fails_closed,
    with_checksums,
)
from icekeep.planning.spark.session import task_context
from icekeep.planning.spark.tasks import all_results, run_over_partitions
from icekeep.runtime import Runtime
from icekeep.spec.collections import packed
from icekeep.spec.metadata import TableMetadata, format_metadata, parse_metadata
from icekeep.spec.properties import own_directory
from icekeep.spelling import counted
from icekeep.storage.base import DeleteStatus, Storage, head_many
from icekeep.storage.location_keys import Keys, location_keys
from icekeep.storage.locations import canonical, is_under, join, parse_location

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

HEAD = "plan.json"
BEFORE = "before.json"
FILES = "files"
DONE = "done.json"
"""Beside the head of a plan in the trash: no run goes on with it, and its days are counted. It says how many of the files are
not in the trash: in use, kept by another plan, or gone."""

DROPPED = "dropped.json"
"""Beside the head of a purge's plan: the catalog has said that it forgot the table."""

_DIGEST_BYTES = 16
_MODULUS = 1 << (8 * _DIGEST_BYTES)


class DoneMark(msgspec.Struct, frozen=True, rename="kebab"):
    """What `DONE` says.

    Attributes:
        absent_count: how many files of the plan are not in the trash; -1 where that is not known.
        restored: a restore has brought all files of the plan back, and left it to hold what another run moves even then.
    """

    absent_count: int = -1
    restored: bool = False


class PlanPart(msgspec.Struct, frozen=True, kw_only=True, rename="kebab"):
    """Some of a plan's files, in a file of their own; `digest` is the sum of their hashes, as hexadecimal digits."""

    location: str
    files: tuple[FilesOfKind, ...]
    digest: str

    @property
    def files_count(self) -> int:
        return sum(f.files_count for f in self.files)


class DeletionPlan(msgspec.Struct, frozen=True, kw_only=True, rename="kebab"):
    """The head of a plan.

    Attributes:
        job, run: who made it.
        directory: where it lies.
        table: the table's name in its catalog.
        table_uuid, table_location, metadata_location: of the table as it was when the plan was made.
        created_ms: when that was, epoch milliseconds.
        not_before_ms: nothing of it is deleted before this moment.
        trash_until_ms: the files move to the trash and stay there until then; `None` where they are deleted at once.
        snapshot_ids, ref_names: what leaves the metadata with them.
        outside_count: files that are as unreachable, and are kept because of where they lie.
        hash: what `--approve` demands.
        roots: the directories that the operator named for the run (`reclaim.roots`). Whoever may write below the table's
            location may write any: they allow nothing, and say what the plan waits for.
        catalog: what tells the table's catalog from others (`Catalog.identity`).
        newer_snapshot_ids: of the table when the plan was proved, those that it did not have before the run.
    """

    job: str
    run: str
    directory: str
    table: str
    table_uuid: str | None
    table_location: str
    metadata_location: str
    created_ms: int
    not_before_ms: int
    trash_until_ms: int | None
    snapshot_ids: tuple[int, ...]
    ref_names: tuple[str, ...]
    outside_count: int
    parts: tuple[PlanPart, ...]
    hash: str
    roots: tuple[str, ...] = ()
    catalog: str = ""
    newer_snapshot_ids: tuple[int, ...] = ()

    @property
    def files(self) -> tuple[FilesOfKind, ...]:
        """What all parts sum up to."""
        return added(*(part.files for part in self.parts))

    @property
    def files_count(self) -> int:
        return sum(part.files_count for part in self.parts)

    @property
    def is_trash(self) -> bool:
        return self.trash_until_ms is not None


def plans_directory(metadata: TableMetadata) -> str:
    """Above the plans whose files are deleted."""
    return own_directory(metadata, "plans")


def trash_directory(metadata: TableMetadata) -> str:
    """Above the plans whose files are moved, and above these files."""
    return own_directory(metadata, "trash")


def trash_location(plan: DeletionPlan, location: str) -> str:
    """Where a file of a plan is while it is in the trash: a function of its name, so that no record of it can be lost."""
    if is_under(location, plan.table_location):
        path = canonical(location).removeprefix(canonical(plan.table_location).rstrip("/") + "/")
        return f"{plan.directory}/{FILES}/{path}"
    scheme, authority, _ = parse_location(canonical(location))
    path = parse_location(canonical(location)).path.lstrip("/")
    return f"{plan.directory}/{FILES}/{'/'.join(filter(None, ('_elsewhere', scheme, authority, path)))}"


def write_part(files: pa.Table, location: str, storage: Storage) -> PlanPart:
    """Write some files of a plan, rows of `GARBAGE`.

    Raises:
        FileExistsError: the name is taken.
    """
    total = 0
    with storage.write(location) as stream:
        for batch in files.to_batches(max_chunksize=10_000):
            lines = []
            for row in batch.to_pylist():
                total += _digest(row["kind"], row["location"])
                line = {"kind": row["kind"], "location": row["location"], "size-in-bytes": row["size_bytes"]}
                lines.append(msgspec.json.encode(line))
            stream.write(b"\n".join(lines) + b"\n")
    return PlanPart(location=location, files=by_kind(files), digest=f"{total % _MODULUS:032x}")


def read_part(part: PlanPart, storage: Storage) -> pa.Table:
    """The files of a part again, rows of `GARBAGE`.

    Raises:
        InvalidTableError: it is not what was written.
    """
    data = storage.read(part.location)
    try:
        rows = [json.loads(line) for line in data.splitlines()]
        found = pa.table(
            [
                pa.array([row["kind"] for row in rows], pa.string()),
                pa.array([row["location"] for row in rows], pa.string()),
                pa.array([row["size-in-bytes"] for row in rows], pa.int64()),
            ],
            schema=GARBAGE,
        )
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidTableError(f"plan {part.location!r} cannot be read: {error}", location=part.location) from None
    total = sum(_digest(row["kind"], row["location"]) for row in rows) % _MODULUS
    if f"{total:032x}" != part.digest:
        raise InvalidTableError(
            f"plan {part.location!r} is not the one that was written: its hash differs", location=part.location
        )
    return found


def plan_hash(job: str, table_uuid: str | None, changes: Sequence[Any], digests: Iterable[str]) -> str:
    """The hash of what a run does, the same for the same set however its files are parted.

    Args:
        changes: what it does beside its files, and how; JSON values in an order that is always the same.
        digests: of all parts.
    """
    what = [job, table_uuid, *changes, combined_digest(digests)]
    return hashlib.blake2b(msgspec.json.encode(what), digest_size=_DIGEST_BYTES).hexdigest()


def combined_digest(digests: Iterable[str]) -> str:
    """What `PlanPart.digest` of all files is, of those of some parts of them."""
    return f"{sum(int(digest, 16) for digest in digests) % _MODULUS:032x}"


def digest_of(files: pa.Table) -> str:
    """What `PlanPart.digest` of these files is, without writing them."""
    kinds, locations = files["kind"].to_pylist(), files["location"].to_pylist()
    return f"{sum(map(_digest, kinds, locations)) % _MODULUS:032x}"


def refuse_unapproved(approve: str | None, plan_hash: str, stays: str) -> None:
    """Raise `SafetyError` where a plan is approved, and this is not the one.

    Args:
        stays: what is not done now, as "nothing is deleted".
    """
    if approve is not None and approve != plan_hash:
        raise SafetyError(
            f"the plan has the hash {plan_hash}, and {approve!r} is approved: {stays}; look at --dry-run again",
            hash=plan_hash,
        )


def write_head(plan: DeletionPlan, storage: Storage) -> None:
    """Write the head, after which the plan counts."""
    storage.create(f"{plan.directory}/{HEAD}", msgspec.json.format(msgspec.json.encode(plan), indent=2))


def read_plan(directory: str, storage: Storage) -> DeletionPlan:
    """The plan in a directory.

    Raises:
        MissingFileError: it has no head.
        InvalidTableError: the head cannot be read.
    """
    location = f"{directory}/{HEAD}"
    try:
        plan = from_json(storage.read(location), DeletionPlan)
    except msgspec.MsgspecError as error:
        raise InvalidTableError(f"plan {location!r} cannot be read: {error}", location=location) from None
    if canonical(plan.directory) != canonical(directory):
        raise InvalidTableError(f"plan {location!r} says that it lies in {plan.directory!r}", location=location)
    for part in plan.parts:
        if not is_under(part.location, directory):
            raise InvalidTableError(f"plan {location!r} says that a part of it is {part.location!r}", location=location)
    return plan


def metadata_before(plan: DeletionPlan, storage: Storage) -> TableMetadata | None:
    """The table's metadata before the run, `None` where the plan has none; raises `InvalidTableError` as `parse_metadata`."""
    location = f"{plan.directory}/{BEFORE}"
    try:
        return parse_metadata(storage.read(location), location)
    except MissingFileError:
        return None


def plan_directories(metadata: TableMetadata, storage: Storage) -> list[str]:
    """The directories of all plans of a table that have a head; those whose files go to the trash come last."""
    above = (plans_directory(metadata), trash_directory(metadata))
    return [directory for one in above for directory in plans_below(one, storage)]


def plans_below(directory: str, storage: Storage) -> list[str]:
    """The directories of the plans below one of `plans_directory` and `trash_directory`, those with a head, sorted."""
    above = directory.rstrip("/")
    runs = [f"{above}/{run}" for run in sorted(storage.child_names(above))]
    heads = head_many([f"{run}/{HEAD}" for run in runs], storage)
    return [run for run, head in zip(runs, heads, strict=True) if head is not None]


def mark_done(plan: DeletionPlan, absent_count: int, storage: Storage, *, restored: bool = False) -> None:
    """Mark a plan as done: all its files but `absent_count` are in the trash, and their days there begin now.

    Args:
        restored: a restore says so, after which a run that it took the plan from may move files to the trash still.
    """
    clear_done_mark(plan, storage)
    with suppress(FileExistsError):
        storage.create(f"{plan.directory}/{DONE}", msgspec.json.encode(DoneMark(absent_count, restored)))


def clear_done_mark(plan: DeletionPlan, storage: Storage) -> None:
    """Say before files of a plan leave the trash that it is not done any more: a later run moves them there again.

    Raises:
        UnavailableError: the store does not take that.
    """
    for outcome in storage.delete_many([f"{plan.directory}/{DONE}"]):
        if outcome.status is DeleteStatus.FAILED:
            raise UnavailableError(f"cannot delete {outcome.location!r}: {outcome.reason}", location=outcome.location)


def done_mark(directory: str, storage: Storage) -> DoneMark:
    """What the mark of a plan says; of a plan without one that any file may be absent."""
    try:
        return from_json(storage.read(f"{directory}/{DONE}"), DoneMark)
    except (MissingFileError, msgspec.MsgspecError):
        return DoneMark()


def is_committed(plan: DeletionPlan, metadata: TableMetadata) -> bool:
    """Whether a plan counts: the snapshots that were to go with its files went, though some may be back since."""
    return not plan.snapshot_ids or not metadata.snapshots_by_id.keys() >= {*plan.snapshot_ids}


def is_forgotten(plan: DeletionPlan, storage: Storage) -> bool:
    """Whether a part is gone and nothing is in the trash: somebody has forgotten the plan, and could not remove its head."""
    parts = head_many([part.location for part in plan.parts], storage)
    return any(found is None for found in parts) and not holds_files(plan, storage)


def holds_files(plan: DeletionPlan, storage: Storage) -> bool:
    """Whether anything is in a plan's trash."""
    return any(storage.list(f"{plan.directory}/{FILES}"))


def delete_plan(plan: DeletionPlan, storage: Storage) -> None:
    """Remove a plan and all that lies in its directory but the files that it has in the trash.

    The head goes first, so that what a crash leaves does not count. Where it cannot be removed the rest goes all the same: a
    plan without its parts deletes nothing, and is forgotten by a later run (`is_forgotten`).
    """
    storage.delete_many([f"{plan.directory}/{HEAD}"])
    kept = f"{plan.directory}/{FILES}/"
    storage.delete_many([f.location for f in storage.list(plan.directory) if not f.location.startswith(kept)])


def delete_draft(directory: str, storage: Storage) -> None:
    """Remove what was written of a plan that has no head, and gets none; a directory that has a head is another run's and stays.

    Nothing is raised: an error here would hide why the plan is given up, and a later run sweeps what stays.
    """
    with suppress(Exception):
        files = [file.location for file in storage.list(directory)]
        if f"{directory}/{HEAD}" not in files:
            storage.delete_many(files)


def restore_command(table: Table, run: str) -> str:
    """The command that brings back what a run has removed of a table."""
    return shown_command("restore", "--table", table.full_name, "--run", run)


def _digest(kind: str, location: str) -> int:
    # A plan has to hold off accidents, not somebody who may write into the table's directory.
    text = f"{kind}\0{location}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=_DIGEST_BYTES).digest(), "big")


SAMPLE_COUNT = 1_000
"""How many files of a plan are shown where there are too many to show all."""

_PART_ROWS = 50_000


class PlanDraft(msgspec.Struct, frozen=True, kw_only=True):
    """What a plan says beside its files; see `DeletionPlan`.

    Attributes:
        schema_ids, spec_ids: schemas and partition specs that leave the metadata too.
        grace_ms, trash_ms: for how long files stay in their places and in the trash, 0 where they go at once: by these the run is
            approved, whatever the moments are that they come to.
        roots: as in `DeletionPlan`.
        accepted: names of tables that cannot be loaded, which the operator accepts: a part of what is approved.
        keeps_before: whether the metadata that the table has now is kept with the plan, since snapshots of it are to go.
    """

    job: str
    run: str
    snapshot_ids: tuple[int, ...] = ()
    ref_names: tuple[str, ...] = ()
    schema_ids: tuple[int, ...] = ()
    spec_ids: tuple[int, ...] = ()
    grace_ms: int = 0
    trash_ms: int = 0
    not_before_ms: int = 0
    trash_until_ms: int | None = None
    keeps_before: bool = False
    roots: tuple[str, ...] = ()
    accepted: tuple[str, ...] = ()

    def at(self, begin_ms: int) -> "PlanDraft":
        """The same with its moments: the grace begins at one, and the days in the trash at its end."""
        not_before_ms = begin_ms + self.grace_ms
        until_ms = not_before_ms + self.trash_ms if self.trash_ms else None
        return msgspec.structs.replace(self, not_before_ms=not_before_ms, trash_until_ms=until_ms)


class ClassifiedGarbage(msgspec.Struct, frozen=True, kw_only=True):
    """Garbage by whether it lies where files may be deleted.

    Attributes:
        parts: what lies where files may be deleted; written to disk, or counted only.
        outside: what lies elsewhere: it may belong to someone else, and is kept.
        unreadable: manifests of expired snapshots that could not be read; they and what they alone name are kept.
        first_outside: the location of one of those; empty if there is none.
        beside: what goes with the files of a table that is purged, and is in no plan: it is counted only.
        sample: locations of the first files.
        keys: where only some files may go, exact keys of those that were found.
    """

    parts: tuple[PlanPart, ...] = ()
    outside: tuple[FilesOfKind, ...] = ()
    unreadable: tuple[str, ...] = ()
    first_outside: str = ""
    beside: tuple[PlanPart, ...] = ()
    sample: tuple[str, ...] = ()
    keys: tuple[Keys, ...] = ()

    @property
    def files(self) -> tuple[FilesOfKind, ...]:
        """What may be deleted, by kind."""
        return added(*(part.files for part in (*self.parts, *self.beside)))

    @property
    def outside_count(self) -> int:
        return sum(f.files_count for f in self.outside)

    def hash(self, table: Table, draft: PlanDraft) -> str:
        """The hash that a plan of these files has."""
        ids = (draft.snapshot_ids, draft.schema_ids, draft.spec_ids)
        names = (draft.ref_names, draft.accepted)
        changes = [*map(sorted, ids), *map(sorted, names), draft.grace_ms, draft.trash_ms]
        digests = (part.digest for part in (*self.parts, *self.beside))
        return plan_hash(draft.job, table.metadata.table_uuid, changes, digests)

    def with_beside(self, files: pa.Table) -> "ClassifiedGarbage":
        """The same, and files that go beside the plan, rows of `GARBAGE`."""
        part = PlanPart(location="", files=by_kind(files), digest=digest_of(files))
        sample = (*self.sample, *files["location"].slice(0, SAMPLE_COUNT).to_pylist())[:SAMPLE_COUNT]
        return msgspec.structs.replace(self, beside=(part,), sample=sample)


def warn_of_outside(found: ClassifiedGarbage, table: Table, listener: Listener) -> None:
    """Warn of garbage that stays because of where it lies."""
    if found.outside_count:
        listener.on(
            Warned(
                f"kept {counted(found.outside_count, 'unused files')} outside the places of table {table.name!r}, such as "
                f"{found.first_outside!r}; if they belong to the table, name their directory in reclaim.roots"
            )
        )


def warn_of_unread(found: ClassifiedGarbage, rest: str, listener: Listener) -> None:
    """Warn of files that could not be read, since what only they lead to stays; `rest` says who finds that."""
    if found.unreadable:
        listener.on(
            Warned(
                f"cannot read {found.unreadable[0]!r}{and_more(found.unreadable)}: what nothing else leads to stays; {rest}"
            )
        )


def plan_directory(table: Table, draft: PlanDraft) -> str:
    """Where the plan of a draft lies."""
    above = trash_directory(table.metadata) if draft.trash_until_ms is not None else plans_directory(table.metadata)
    return f"{above}/{draft.run}"


def classify_garbage(
    garbage: Garbage, locations: DeletableLocations, directory: str | None, storage: Storage, only: Keys | None = None
) -> ClassifiedGarbage:
    """Tell what lies where files may be deleted from what does not, and write it down, content first.

    Args:
        directory: where the parts are written; `None` to count them only.
        only: exact keys of what may go alone; `None` for all of it.

    Raises:
        SafetyError: something that is retained could not be read whole; parts may be left, which no head names.
    """
    content = ClassifiedGarbage()
    if garbage.content is not None:
        # Where Spark has the files, the retained manifests are read only now.
        with fails_closed():
            content = classify_files(garbage.content, locations, directory, storage, only)
    classifier = _Classifier(locations, directory, storage, only)
    last = classifier.classified(readable(garbage.named, content).to_batches(), "files-named")
    together = _together([content, last])
    return msgspec.structs.replace(together, unreadable=(*garbage.unreadable, *together.unreadable))


def readable(named: pa.Table, found: ClassifiedGarbage) -> pa.Table:
    """Files that garbage names, rows of `GARBAGE`, without manifests that could not be read: they stay."""
    unreadable = pa.array(found.unreadable, pa.string())
    return named.filter(pc.invert(pc.is_in(named["location"], unreadable)))


def classify_files(
    files: "pa.Table | DataFrame",
    locations: DeletableLocations,
    directory: str | None,
    storage: Storage,
    only: Keys | None = None,
) -> ClassifiedGarbage:
    """The same for rows of `GARBAGE`; an error leaves parts behind that no head names."""
    classifier = _Classifier(locations, directory, storage, only)
    if isinstance(files, pa.Table):
        return classifier.classified(files.to_batches(), "files")
    step = "writing down what is to be deleted"
    return _together(all_results(run_over_partitions(files, _classify_partition, classifier, step=step)))


class _Classifier(msgspec.Struct, frozen=True):
    """Where files may be deleted, and where it is written down which; the same for all tasks."""

    locations: DeletableLocations
    directory: str | None
    storage: Storage
    only: Keys | None

    def classified(self, batches: Iterable[pa.RecordBatch], name: str) -> ClassifiedGarbage:
        """Rows of `GARBAGE`, written in parts with names that begin alike."""
        pieces = (batch.slice(start, _PART_ROWS) for batch in batches for start in range(0, batch.num_rows, _PART_ROWS))
        parts = packed(pieces, (lambda piece: piece.num_rows, _PART_ROWS))
        return _together(
            [
                self._part(pa.Table.from_batches(some), f"{self.directory}/{name}-{number:04d}.jsonl")
                for number, some in enumerate(parts)
            ]
        )

    def _part(self, rows: pa.Table, location: str) -> ClassifiedGarbage:
        is_unreadable = pc.equal(rows["kind"], UNREADABLE)
        files = rows.filter(pc.invert(is_unreadable)).select(GARBAGE.names).sort_by([("location", "ascending")])
        is_inside = pa.array(self.locations.reaches(files["location"]), pa.bool_())
        inside, outside = with_checksums(files.filter(is_inside), self.storage), files.filter(pc.invert(is_inside))
        keys: tuple[Keys, ...] = ()
        if self.only is not None:
            own = location_keys(inside["location"])
            # By chance one too many, which the digest of the whole then shows.
            mask = among(own, self.only)
            inside, keys = inside.filter(pa.array(mask, pa.bool_())), (own[mask],)
        parts: tuple[PlanPart, ...] = ()
        if inside.num_rows and self.directory is not None:
            parts = (write_part(inside, location, self.storage),)
        elif inside.num_rows:
            parts = (PlanPart(location="", files=by_kind(inside), digest=digest_of(inside)),)
        return ClassifiedGarbage(
            parts=parts,
            outside=by_kind(outside),
            first_outside=outside["location"][0].as_py() if outside.num_rows else "",
            unreadable=tuple(rows.filter(is_unreadable)["location"].to_pylist()),
            sample=tuple(inside["location"].slice(0, SAMPLE_COUNT).to_pylist()),
            keys=keys,
        )


def _classify_partition(batches: Iterable[pa.RecordBatch], classifier: _Classifier) -> ClassifiedGarbage:
    context = task_context()
    assert context is not None
    # Attempts that failed may have left files of their names.
    return classifier.classified(batches, f"files-{context.partitionId():05d}-{context.taskAttemptId()}")


def _together(found: Sequence[ClassifiedGarbage]) -> ClassifiedGarbage:
    return ClassifiedGarbage(
        parts=tuple(part for one in found for part in one.parts),
        outside=added(*(one.outside for one in found)),
        first_outside=next((one.first_outside for one in found if one.first_outside), ""),
        unreadable=tuple(location for one in found for location in one.unreadable),
        sample=tuple(location for one in found for location in one.sample)[:SAMPLE_COUNT],
        keys=tuple(keys for one in found for keys in one.keys),
    )


def write_plan(
    found: ClassifiedGarbage,
    draft: PlanDraft,
    table: Table,
    runtime: Runtime,
    *,
    base: Table | None = None,
    directory: str | None = None,
) -> DeletionPlan:
    """Write the head of a plan whose parts are written.

    Args:
        table: as it was when the plan was made.
        base: the table whose metadata is kept with the plan, if it is another.
        directory: where the plan lies, if not below the table's location.
    """
    before = base or table
    newer = table.metadata.snapshots_by_id.keys() - before.metadata.snapshots_by_id.keys()
    plan = DeletionPlan(
        job=draft.job,
        run=draft.run,
        directory=directory or plan_directory(table, draft),
        table=table.name,
        table_uuid=table.metadata.table_uuid,
        table_location=table.metadata.location,
        metadata_location=table.metadata_location,
        created_ms=runtime.now_ms(),
        not_before_ms=draft.not_before_ms,
        trash_until_ms=draft.trash_until_ms,
        snapshot_ids=draft.snapshot_ids,
        ref_names=draft.ref_names,
        outside_count=found.outside_count,
        parts=found.parts,
        hash=found.hash(table, draft),
        roots=draft.roots,
        catalog=table.catalog.identity,
        newer_snapshot_ids=tuple(sorted(newer)),
    )
    if draft.keeps_before:
        table.storage.create(f"{plan.directory}/{BEFORE}", format_metadata(before.metadata))
    write_head(plan, table.storage)
    return plan


_ID_LENGTH_MIN = 4


def plans_of(table: Table) -> list[DeletionPlan]:
    """All plans of a table that count, the newest first; raises `InvalidTableError` where one cannot be read."""
    plans = []
    for directory in plan_directories(table.metadata, table.storage):
        with suppress(MissingFileError):
            plans.append(read_plan(directory, table.storage))
    return sorted(plans, key=lambda plan: (plan.created_ms, plan.run), reverse=True)


def chosen_plan(table: Table, run: str | None) -> DeletionPlan:
    """The plan of a run, or the newest that has something to bring back.

    Raises:
        NotFoundError: there is none; says which there are.
    """
    if run is None:
        plans = plans_of(table)
        # What is being deleted for good comes last: the newest of it is chosen to say so.
        for plan in sorted(plans, key=lambda plan: last_work(plan.directory, table.storage).deletes):
            # Snapshots that the table lacks, or files of no snapshot in the trash.
            if is_committed(plan, table.metadata) if plan.snapshot_ids else plan.is_trash and plan.files_count:
                return plan
        raise NotFoundError(
            f"there is nothing to restore for table {table.full_name!r}{_known(plans)}; a compaction is undone by "
            f"`{shown_command('rollback', '--table', table.full_name, '--snapshot-id', 'ID')}`, and "
            f"`{shown_command('history', '--table', table.full_name)}` shows the snapshot before it"
        )
    is_name = "/" not in run and run not in ("", ".", "..")
    for above in (trash_directory(table.metadata), plans_directory(table.metadata)) if is_name else ():
        with suppress(MissingFileError):
            return read_plan(join(above, run), table.storage)
    plans = plans_of(table)
    whole = whole_run(run, [plan.run for plan in plans])
    if whole is not None:
        return next(plan for plan in plans if plan.run == whole)
    raise NotFoundError(f"there is no run {run!r} to restore for table {table.full_name!r}{_known(plans)}", run=run)


def whole_run(beginning: str, runs: Iterable[str]) -> str | None:
    """The run of that id, or whose id begins so, as the list of runs shows it; `None` where there is none.

    A beginning has the name of the job, and some of the characters behind that: of `repair-` nobody knows which repair is meant.

    Raises:
        UsageError: several begin so.
    """
    runs = {*runs}
    if beginning in runs:
        return beginning
    if len(beginning.partition("-")[2]) < _ID_LENGTH_MIN:
        return None
    found = sorted(one for one in runs if one.startswith(beginning))
    if len(found) > 1:
        raise UsageError(f"{beginning!r} is the beginning of several runs: {', '.join(found)}; give one of them whole")
    return found[0] if found else None


def _known(plans: Iterable[DeletionPlan]) -> str:
    names = ", ".join(repr(plan.run) for plan in plans)
    return f"; there is {names}" if names else ""
