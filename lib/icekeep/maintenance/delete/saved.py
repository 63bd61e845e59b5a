"""A deletion that was planned and saved before: of what is garbage now exactly its files go, or none; and its lines.

A saved plan names each file in a line. They are read back as exact keys, eight bytes a file, and one digest of all.
"""

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from icekeep.catalog.base import Table
from icekeep.maintenance.delete.garbage import UNREADABLE, Garbage
from icekeep.maintenance.delete.locations import DeletableLocations
from icekeep.maintenance.delete.plan_file import ClassifiedGarbage, combined_digest, digest_of, readable
from icekeep.maintenance.delete.reachable import GARBAGE, among, with_checksums
from icekeep.maintenance.jobs import FILE_CPU_MS
from icekeep.maintenance.plans import PlanCost, PlanLine, SavedPlan
from icekeep.maintenance.preconditions import AlreadyApplied, first_of, moved
from icekeep.planning.spark.rows import record_batches, streamed
from icekeep.spelling import counted
from icekeep.storage.base import Storage, head_many
from icekeep.storage.location_keys import Keys, location_keys

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

DELETE = "delete"
"""The verb of a file's line in a saved plan."""

_LINES = 10_000
_LOOKED_UP = 500
"""How many files are looked up to find out whether a plan was carried out before."""


class SavedDeletion(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be deleted, as it was planned: exact keys of the files, and the digest of all, whose parts have their own."""

    plan: SavedPlan
    keys: Keys
    files_count: int
    digest: str

    @classmethod
    def of(cls, plan: SavedPlan) -> "SavedDeletion":
        """The files of a plan."""
        keys: list[Keys] = [np.empty(0, np.int64)]
        digests: list[str] = []
        lines = _deletions(plan)
        while some := [*islice(lines, _LINES)]:
            columns = [[one.kind for one in some], [one.name for one in some], [one.size_bytes for one in some]]
            rows = pa.table(columns, schema=GARBAGE)
            keys.append(location_keys(rows["location"]))
            digests.append(digest_of(rows))
        together = np.concatenate(keys)
        return cls(
            plan=plan,
            keys=np.unique(together),
            files_count=len(together),
            digest=combined_digest(digests),
        )

    def check(self, found: ClassifiedGarbage, table: Table) -> None:
        """Compare what was found of the planned files with the plan.

        Raises:
            SafetyError: some of them are in use, or gone, or not where files may be deleted.
            AlreadyApplied: all of them are gone.
        """
        if combined_digest(part.digest for part in found.parts) == self.digest:
            return
        some = [] if found.parts else [line.name for line in islice(_deletions(self.plan), _LOOKED_UP)]
        if some and not any(head_many(some, table.storage)):
            raise AlreadyApplied(
                f"none of the {self.files_count:,} files that were to go is there any more: it was carried out before, or "
                "somebody else deleted them"
            )
        there = np.unique(np.concatenate([np.empty(0, np.int64), *found.keys]))
        missing_count = int((~among(self.keys, there)).sum())
        if not missing_count:
            raise moved(self.plan, table.metadata, "files to delete have another kind now", missing_count=0)
        absent = (
            line.name
            for line in _deletions(self.plan)
            if not among(location_keys(pa.array([line.name], pa.string())), there).any()
        )
        problem = (
            f"{counted(missing_count, 'files')} to delete {'is' if missing_count == 1 else 'are'} in use, or gone, such as "
            f"{first_of([*islice(absent, _LOOKED_UP)], missing_count)}"
        )
        raise moved(self.plan, table.metadata, problem, missing_count=missing_count)


def _deletions(plan: SavedPlan) -> Iterator[PlanLine]:
    return (line for line in plan.lines() if line.do == DELETE)


def deletion_lines(
    garbage: Garbage, found: ClassifiedGarbage, locations: DeletableLocations, storage: Storage
) -> Iterator[PlanLine]:
    """The files that go of some garbage, one after the other; what is in Spark comes from there a part at a time."""
    if garbage.content is not None:
        yield from file_lines(garbage.content, locations, storage)
    yield from file_lines(readable(garbage.named, found), locations, storage)


def file_lines(files: "pa.Table | DataFrame", locations: DeletableLocations, storage: Storage) -> Iterator[PlanLine]:
    """The same for rows of `GARBAGE`."""
    if isinstance(files, pa.Table):
        batches = files.select(GARBAGE.names).to_batches(max_chunksize=_LINES)
    else:
        rows = streamed(files.select(*GARBAGE.names), "naming what is to be deleted")
        batches = record_batches(map(tuple, rows), GARBAGE, _LINES)
    for batch in batches:
        is_inside = pa.array(locations.reaches(batch["location"]), pa.bool_())
        goes = pc.and_(is_inside, pc.not_equal(batch["kind"], UNREADABLE))
        for row in with_checksums(pa.Table.from_batches([batch.filter(goes)]), storage).to_pylist():
            yield PlanLine(do=DELETE, kind=row["kind"], name=row["location"], size_bytes=row["size_bytes"])


def deletion_cost(files_count: int, *, requests_count: int = 0) -> PlanCost:
    """What a deletion takes: at most a request for each file, beside those by which it is found."""
    cpu_ms = round(files_count * FILE_CPU_MS)
    return PlanCost(read_bytes=0, requests_count=requests_count + files_count, cpu_ms=cpu_ms)
