"""The files of a plan that was written before: of what is garbage by now exactly these go, or none."""

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from icekeep.catalog.base import Table
from icekeep.errors import SafetyError
from icekeep.maintenance.deletion.file_kinds import GARBAGE, with_checksums
from icekeep.maintenance.deletion.garbage import UNREADABLE, Garbage
from icekeep.maintenance.deletion.path_set import Mask, among
from icekeep.maintenance.deletion.plan_writing import ClassifiedGarbage
from icekeep.maintenance.deletion.plans import combined_digest, digest_of
from icekeep.maintenance.deletion.territory import Territory
from icekeep.maintenance.exact_plans import AlreadyApplied, GivenPlan, PlanCost, PlanLine, moved, some_of
from icekeep.maintenance.rates import FILE_CPU_MS
from icekeep.planning.spark.rows import record_batches, streamed
from icekeep.spelling import counted
from icekeep.storage.base import Storage
from icekeep.storage.location_keys import Keys, location_keys

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

DELETE = "delete"
_LINES = 10_000
_LOOKED_UP = 500
"""So many files are asked for, to tell whether a plan was carried out before."""


class GivenFiles(msgspec.Struct, frozen=True):
    """Which files a plan names: exact keys of their locations, eight bytes a file. It can be pickled."""

    keys: Keys

    def mask(self, locations: pa.ChunkedArray) -> Mask:
        """Which of some files the plan names; by chance one too many, which the digest of the whole then shows."""
        return among(location_keys(locations), self.keys)


class GivenDeletion(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be deleted, as it was planned.

    Attributes:
        digest: that of all files, whose parts have their own.
    """

    plan: GivenPlan
    files: GivenFiles
    files_count: int
    digest: str

    @classmethod
    def of(cls, given: GivenPlan) -> "GivenDeletion":
        """The files of a plan."""
        keys: list[Keys] = []
        digests: list[str] = []
        lines = (line for line in given.lines() if line.do == DELETE)
        while some := [*islice(lines, _LINES)]:
            rows = pa.table(
                [[one.kind for one in some], [one.name for one in some], [one.size_bytes for one in some]],
                schema=GARBAGE,
            )
            keys.append(location_keys(rows["location"]))
            digests.append(digest_of(rows))
        together = np.concatenate([np.empty(0, np.int64), *keys])
        return cls(
            plan=given,
            files=GivenFiles(np.unique(together)),
            files_count=len(together),
            digest=combined_digest(digests),
        )

    def hold(self, found: ClassifiedGarbage, table: Table) -> None:
        """Hold what was found of the planned files against the plan.

        Raises:
            SafetyError: some of them are in use, or gone, or not where files may be deleted.
            AlreadyApplied: all of them are gone.
        """
        if combined_digest(part.digest for part in found.parts) == self.digest:
            return
        if not found.parts and self._are_gone(table):
            raise AlreadyApplied(
                f"none of the {self.files_count:,} files that were to go is there any more: it was carried out before, or "
                "somebody else deleted them"
            )
        raise self._moved(found, table)

    def _moved(self, found: ClassifiedGarbage, table: Table) -> SafetyError:
        there = np.unique(np.concatenate([np.empty(0, np.int64), *(found.keys or ())]))
        names, count = [], 0
        for line in self._lines():
            key = location_keys(pa.array([line.name], pa.string()))
            if not among(key, there).any():
                names.append(line.name)
                count += 1
            if count >= _LOOKED_UP:
                break
        missing = int((~among(self.files.keys, there)).sum())
        files = counted(missing, "files")
        problem = (
            f"{files} to delete {'is' if missing == 1 else 'are'} in use, or gone, such as {some_of(names, missing)}"
        )
        if not missing:
            problem = "files to delete are of another kind by now"
        return moved(self.plan, table.metadata, problem, missing_count=missing)

    def _are_gone(self, table: Table) -> bool:
        some = [line.name for line in islice(self._lines(), _LOOKED_UP)]
        return bool(some) and all(table.storage.head(name) is None for name in some)

    def _lines(self) -> Iterator[PlanLine]:
        return (line for line in self.plan.lines() if line.do == DELETE)


def deletion_lines(
    garbage: Garbage, found: ClassifiedGarbage, territory: Territory, storage: Storage
) -> Iterator[PlanLine]:
    """The files that go of some garbage, one after the other; what is in Spark comes from there a part at a time."""
    if garbage.content is not None:
        yield from file_lines(garbage.content, territory, storage)
    named = garbage.named
    if found.unreadable:
        unreadable = pa.array(found.unreadable, pa.string())
        named = named.filter(pc.invert(pc.is_in(named["location"], unreadable)))
    yield from file_lines(named, territory, storage)


def file_lines(files: "pa.Table | DataFrame", territory: Territory, storage: Storage) -> Iterator[PlanLine]:
    """The same for rows of `file_kinds.GARBAGE`."""
    if isinstance(files, pa.Table):
        batches = files.select(GARBAGE.names).to_batches(max_chunksize=_LINES)
    else:
        rows = streamed(files.select(*GARBAGE.names), "naming what is to be deleted")
        batches = record_batches(map(tuple, rows), GARBAGE, _LINES)
    for batch in batches:
        is_inside = pa.array(territory.reaches(batch["location"]), pa.bool_())
        goes = pc.and_(is_inside, pc.not_equal(batch["kind"], UNREADABLE))
        for row in with_checksums(pa.Table.from_batches([batch.filter(goes)]), storage).to_pylist():
            yield PlanLine(do=DELETE, kind=row["kind"], name=row["location"], size_bytes=row["size_bytes"])


def deletion_cost(files_count: int, *, read_bytes: int = 0, requests_count: int = 0) -> PlanCost:
    """What a deletion takes: at most a request for each file, beside what is read to prove that it may go."""
    return PlanCost(
        read_bytes=read_bytes, requests_count=requests_count + files_count, cpu_ms=round(files_count * FILE_CPU_MS)
    )
