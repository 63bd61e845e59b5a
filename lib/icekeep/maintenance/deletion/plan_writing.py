"""From garbage to a plan: rows are sorted by place, hashed and written, on the driver or where Spark has them."""

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from icekeep.catalog.base import Table
from icekeep.errors import and_more
from icekeep.events import Listener, Warned
from icekeep.maintenance.deletion.file_kinds import GARBAGE, FilesOfKind, added, by_kind, with_checksums
from icekeep.maintenance.deletion.garbage import UNREADABLE, Garbage
from icekeep.maintenance.deletion.path_set import Mask
from icekeep.maintenance.deletion.plans import (
    BEFORE,
    DeletionPlan,
    PlanPart,
    digest_of,
    plan_hash,
    plans_directory,
    trash_directory,
    write_head,
    write_part,
)
from icekeep.maintenance.deletion.reachable import fails_closed
from icekeep.maintenance.deletion.territory import Territory
from icekeep.planning.spark.session import task_context
from icekeep.planning.spark.tasks import all_results, run_over_partitions
from icekeep.runtime import Runtime
from icekeep.spec.collections import packed
from icekeep.spec.metadata import format_metadata
from icekeep.spelling import counted
from icekeep.storage.base import Storage
from icekeep.storage.location_keys import Keys, location_keys

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SAMPLE_COUNT = 1_000
"""So many files of a plan are shown where all cannot be."""

_PART_ROWS = 50_000
_ORDER = [("location", "ascending")]


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


class Only(Protocol):
    """Files that may go, whatever else is garbage; it can be pickled."""

    def mask(self, locations: pa.ChunkedArray) -> Mask:
        """Which of some files are among them."""


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
        """The same, and files that go beside the plan, rows of `file_kinds.GARBAGE`."""
        part = PlanPart(location="", files=by_kind(files), digest=digest_of(files))
        sample = (*self.sample, *files["location"].slice(0, SAMPLE_COUNT).to_pylist())[:SAMPLE_COUNT]
        return msgspec.structs.replace(self, beside=(part,), sample=sample)


def tell_outside(found: ClassifiedGarbage, table: Table, listener: Listener) -> None:
    """Warn of garbage that stays because of where it lies."""
    if found.outside_count:
        listener.on(
            Warned(
                f"kept {counted(found.outside_count, 'unused files')} outside the places of table {table.name!r}, such as "
                f"{found.first_outside!r}; if they belong to the table, name their directory in reclaim.roots"
            )
        )


def tell_unread(found: ClassifiedGarbage, rest: str, listener: Listener) -> None:
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
    garbage: Garbage, territory: Territory, directory: str | None, storage: Storage, only: Only | None = None
) -> ClassifiedGarbage:
    """Tell what lies where files may be deleted from what does not, and write it down, content first.

    Args:
        directory: where the parts are written; `None` to count them only.
        only: other garbage is left out; `None` for nothing.

    Raises:
        SafetyError: something that is retained could not be read whole; parts may be left, which no head names.
    """
    content = ClassifiedGarbage()
    if garbage.content is not None:
        # Where Spark has the files, the retained manifests are read only now.
        with fails_closed():
            content = classify_files(garbage.content, territory, directory, storage, only)
    named = garbage.named
    if content.unreadable:
        unreadable = pa.array(content.unreadable, pa.string())
        named = named.filter(pc.invert(pc.is_in(named["location"], unreadable)))
    last = _classify(named.to_batches(), _Places(territory, directory, storage, only), "files-named")
    together = _together([content, last])
    return msgspec.structs.replace(together, unreadable=(*garbage.unreadable, *together.unreadable))


def classify_files(
    files: "pa.Table | DataFrame",
    territory: Territory,
    directory: str | None,
    storage: Storage,
    only: Only | None = None,
) -> ClassifiedGarbage:
    """The same for rows of `file_kinds.GARBAGE`; an error leaves parts behind that no head names."""
    places = _Places(territory, directory, storage, only)
    if isinstance(files, pa.Table):
        return _classify(files.to_batches(), places, "files")
    step = "writing down what is to be deleted"
    return _together(all_results(run_over_partitions(files, _classify_partition, places, step=step)))


class _Places(msgspec.Struct, frozen=True):
    """Where files may be deleted, and where it is written down which; the same for all tasks."""

    territory: Territory
    directory: str | None
    storage: Storage
    only: Only | None


def _classify_partition(batches: Iterable[pa.RecordBatch], places: _Places) -> ClassifiedGarbage:
    context = task_context()
    assert context is not None
    # Attempts that failed may have left files of their names.
    name = f"files-{context.partitionId():05d}-{context.taskAttemptId()}"
    return _classify(batches, places, name)


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


def _classify(batches: Iterable[pa.RecordBatch], places: _Places, name: str) -> ClassifiedGarbage:
    found, directory = [], places.directory
    for number, rows in enumerate(_in_parts(batches)):
        is_unreadable = pc.equal(rows["kind"], UNREADABLE)
        files = rows.filter(pc.invert(is_unreadable)).select(GARBAGE.names).sort_by(_ORDER)
        mask = pa.array(places.territory.reaches(files["location"]), pa.bool_())
        inside, outside = with_checksums(files.filter(mask), places.storage), files.filter(pc.invert(mask))
        if places.only is not None:
            inside = inside.filter(pa.array(places.only.mask(inside["location"]), pa.bool_()))
        parts: tuple[PlanPart, ...] = ()
        if inside.num_rows and directory is not None:
            parts = (write_part(inside, f"{directory}/{name}-{number:04d}.jsonl", places.storage),)
        elif inside.num_rows:
            parts = (PlanPart(location="", files=by_kind(inside), digest=digest_of(inside)),)
        found.append(
            ClassifiedGarbage(
                parts=parts,
                outside=by_kind(outside),
                first_outside=outside["location"][0].as_py() if outside.num_rows else "",
                unreadable=tuple(rows.filter(is_unreadable)["location"].to_pylist()),
                sample=tuple(inside["location"].slice(0, SAMPLE_COUNT).to_pylist()),
                keys=() if places.only is None else (location_keys(inside["location"]),),
            )
        )
    return _together(found)


def _in_parts(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Rows in tables of some size, whatever the size of the batches."""
    pieces = (batch.slice(start, _PART_ROWS) for batch in batches for start in range(0, batch.num_rows, _PART_ROWS))
    return map(pa.Table.from_batches, packed(pieces, (lambda piece: piece.num_rows, _PART_ROWS)))


def _together(found: Sequence[ClassifiedGarbage]) -> ClassifiedGarbage:
    return ClassifiedGarbage(
        parts=tuple(part for one in found for part in one.parts),
        outside=added(*(one.outside for one in found)),
        first_outside=next((one.first_outside for one in found if one.first_outside), ""),
        unreadable=tuple(location for one in found for location in one.unreadable),
        sample=tuple(location for one in found for location in one.sample)[:SAMPLE_COUNT],
        keys=tuple(keys for one in found for keys in one.keys),
    )
