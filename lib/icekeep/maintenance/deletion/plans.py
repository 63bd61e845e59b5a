"""What is going to be deleted, on disk before anything is: one directory a run, JSON lines that an operator can read.

    <table>/.icekeep/plans/<run>/files-<part>.jsonl   {"kind": "data file", "location": "...", "size-in-bytes": 4242}
    <table>/.icekeep/plans/<run>/before.json          the table's metadata before the run, from which snapshots can come back
    <table>/.icekeep/plans/<run>/claims/000001.json   who is at work on it (`claims.py`)
    <table>/.icekeep/plans/<run>/plan.json            the head: whose plan it is, what it sums up to, and its hash

The head is written last and removed first: a directory that has none is of a run that died, and nothing in it counts. Where
files go to the trash, the same lies under `.icekeep/trash/<run>/`, with the files themselves below `files/`.

One protocol for whoever deletes a plan's files or brings them back: claim the plan, prove it on metadata that was loaded after
that, and look at claim and catalog again before each call.

The hash is of the set: of what the run is to do and how, and of each file's kind and location, in whatever order and parts they
are.
"""

import hashlib
import json
import shlex
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

import msgspec
import pyarrow as pa

from icekeep.catalog.base import Table
from icekeep.decoding import from_json
from icekeep.errors import InvalidTableError, MissingFileError, SafetyError, UnavailableError
from icekeep.maintenance.deletion.file_kinds import GARBAGE, FilesOfKind, added, by_kind
from icekeep.spec.metadata import TableMetadata, parse_metadata
from icekeep.spec.properties import own_directory
from icekeep.storage.base import DeleteStatus, Storage
from icekeep.storage.locations import canonical, is_under, parse_location

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


class _Done(msgspec.Struct, frozen=True, rename="kebab"):
    """What `DONE` says; one that does not say it may lack any of its files. `restored`: a restore has said it."""

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
    """Write some files of a plan, rows of `file_kinds.GARBAGE`.

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
    """The files of a part again, rows of `file_kinds.GARBAGE`.

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
    return [run for run in runs if storage.head(f"{run}/{HEAD}") is not None]


def mark_done(plan: DeletionPlan, absent_count: int, storage: Storage, *, restored: bool = False) -> None:
    """Mark a plan as done: all its files but so many are in the trash, and their days there begin now.

    Args:
        restored: a restore says so, after which a run that it took the plan from may move files to the trash still.
    """
    mark_undone(plan, storage)
    with suppress(FileExistsError):
        storage.create(f"{plan.directory}/{DONE}", msgspec.json.encode(_Done(absent_count, restored)))


def mark_undone(plan: DeletionPlan, storage: Storage) -> None:
    """Say before files of a plan leave the trash that it is done no more: a later run moves them there again.

    Raises:
        UnavailableError: the store does not take that.
    """
    for outcome in storage.delete_many([f"{plan.directory}/{DONE}"]):
        if outcome.status is DeleteStatus.FAILED:
            raise UnavailableError(f"cannot delete {outcome.location!r}: {outcome.reason}", location=outcome.location)


def is_whole_in_trash(directory: str, storage: Storage) -> bool:
    """Whether a plan is done, and all its files are in the trash."""
    return _done(directory, storage).absent_count == 0


def is_restored(directory: str, storage: Storage) -> bool:
    """Whether a restore has brought all files of a plan back, and left it to hold what another run moves even then."""
    return _done(directory, storage).restored


def _done(directory: str, storage: Storage) -> _Done:
    try:
        return from_json(storage.read(f"{directory}/{DONE}"), _Done)
    except (MissingFileError, msgspec.MsgspecError):
        return _Done()


def is_committed(plan: DeletionPlan, metadata: TableMetadata) -> bool:
    """Whether a plan counts: the snapshots that were to go with its files went, though some may be back since."""
    return not plan.snapshot_ids or not metadata.snapshots_by_id.keys() >= {*plan.snapshot_ids}


def is_forgotten(plan: DeletionPlan, storage: Storage) -> bool:
    """Whether a part is gone and nothing is in the trash: somebody has forgotten the plan, and could not remove its head."""
    is_cut = any(storage.head(part.location) is None for part in plan.parts)
    return is_cut and not holds_files(plan, storage)


def holds_files(plan: DeletionPlan, storage: Storage) -> bool:
    """Whether anything is in a plan's trash."""
    return any(storage.list(f"{plan.directory}/{FILES}"))


def forget_plan(plan: DeletionPlan, storage: Storage) -> None:
    """Remove a plan and all that lies in its directory but the files that it has in the trash.

    The head goes first, so that what a crash leaves does not count. Where it cannot be removed the rest goes all the same: a
    plan without its parts deletes nothing, and is forgotten by a later run (`is_forgotten`).
    """
    storage.delete_many([f"{plan.directory}/{HEAD}"])
    kept = f"{plan.directory}/{FILES}/"
    storage.delete_many([f.location for f in storage.list(plan.directory) if not f.location.startswith(kept)])


def remove_draft(directory: str, storage: Storage) -> None:
    """Remove what was written of a plan that has no head, and gets none; a directory that has a head is another run's and stays.

    Nothing is raised: an error here would hide why the plan is given up, and a later run sweeps what stays.
    """
    with suppress(Exception):
        files = [file.location for file in storage.list(directory)]
        if f"{directory}/{HEAD}" not in files:
            storage.delete_many(files)


def restore_command(table: Table, run: str) -> str:
    """What people are told to run for what a run has removed of a table."""
    return shlex.join(["icekeep", "restore", "--table", table.full_name, "--run", run])


def _digest(kind: str, location: str) -> int:
    # A plan has to hold off accidents, not somebody who may write into the table's directory.
    text = f"{kind}\0{location}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=_DIGEST_BYTES).digest(), "big")
