"""Row ids of version 3 at the heads of branches (417; spec, "Row Lineage").

A data file's rows have the ids from its `first_row_id` on, or those that the file stores. The ids of all live rows are read and
held against each other; of very many in Spark tasks, as runs, since those of neighbours mostly follow one another. Where that
cannot be done, only the ranges of files are: of two that overlap, both must be of files that store no ids.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from icekeep.commit.manifests import ManifestReader
from icekeep.errors import IcekeepError, InvalidTableError, TryAgainError, UnsupportedError, first_line
from icekeep.formats.arrow.schema import field_ids
from icekeep.formats.reader import open_reader
from icekeep.maintenance.check.by_file import (
    FileJoin,
    Numbered,
    Row,
    count_of,
    decode_task,
    keyed_batches,
    keys_of,
    over_manifests,
)
from icekeep.maintenance.check.faults import Fault, FaultId, Tally
from icekeep.maintenance.check.lists import CheckedTable, Listed, branch_heads
from icekeep.planning.entries import DecodeTask, threads_count
from icekeep.planning.spark.rows import arrow_dataframe, collected
from icekeep.planning.spark.session import F, from_arrow_schema, limits_of
from icekeep.planning.spark.tasks import all_results, prepare_worker, run_tasks
from icekeep.spec.manifests.structs import ManifestContent
from icekeep.spec.schema import FILE, POS, ROW_ID
from icekeep.spec.snapshots import MAIN
from icekeep.spec.types import MAX_LONG
from icekeep.storage.base import Storage
from icekeep.storage.location_keys import Keys
from icekeep.tables.read import rows_worked_on, scan

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

BRANCH_FILES = 10_000_000
"""How many data files of a branch are compared by row id, 24 bytes held of each; a branch with more is not checked."""

OVERLAPPING_FILES = 2_000
"""How many data files are opened because their ranges of row ids overlap, at most."""


Place = tuple[int, str, int]
"""A row id, a data file and the position of a row in it."""

PART_IDS = 1 << 24
"""How many ids make a part: all their runs are in one task, which Spark sorts there."""

_MAX_IDS, _MAX_PLACES = 1_000, 100_000

_RUNS = pa.schema([("part", pa.int64()), ("first", pa.int64()), ("end", pa.int64())])
_IDS = pa.schema([(ROW_ID.name, pa.int64())])


def wrong_places(rows: "DataFrame", next_row_id: int) -> list[Place]:
    """Where rows are whose id another has, or whose id was never given: of each file and id the first and the last one.

    Args:
        rows: `_row_id`, `_file` and `_pos` of live rows.
        next_row_id: no id is at or above it.

    Raises:
        IcekeepError: as the tasks that read rows.
    """
    runs = rows.select(ROW_ID.name).mapInArrow(_runs, from_arrow_schema(_RUNS))
    in_order = runs.repartition("part").sortWithinPartitions("first", "end")
    wrong = in_order.mapInArrow(partial(_wrong_ids, next_row_id=next_row_id), from_arrow_schema(_IDS))
    found = {row[0] for row in collected(wrong.limit(_MAX_IDS), "comparing row ids")}
    if not found:
        return []
    wanted = arrow_dataframe(rows.sparkSession, pa.table([pa.array(sorted(found), pa.int64())], schema=_IDS))
    files = rows.join(F.broadcast(wanted), ROW_ID.name).groupBy(ROW_ID.name, FILE.name)
    ends = files.agg(F.min(POS.name).alias("first"), F.max(POS.name).alias("last")).limit(_MAX_PLACES)
    held = collected(ends, "finding rows by their ids")
    return [(row[ROW_ID.name], row[FILE.name], at) for row in held for at in {row["first"], row["last"]}]


def _runs(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    prepare_worker()
    for batch in batches:
        first, end = runs_of(batch.column(0).drop_null().to_numpy())
        yield pa.record_batch([first // PART_IDS, first, end], schema=_RUNS)


def runs_of(ids: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Runs of ids that follow one another: the first of each and the one behind its last; none goes beyond its part.

    >>> [some.tolist() for some in runs_of(np.array([4, 5, 6, 6, 2]))]
    [[4, 6, 2], [7, 7, 3]]
    """
    is_first = np.ones(len(ids), np.bool_)
    is_first[1:] = (ids[1:] != ids[:-1] + 1) | (ids[1:] % PART_IDS == 0)
    starts = np.flatnonzero(is_first)
    lengths = np.diff(np.append(starts, len(ids)))
    first = ids[starts]
    # No id is above the greatest number that there is.
    return first, np.minimum(first, MAX_LONG - lengths) + lengths


def _wrong_ids(batches: Iterable[pa.RecordBatch], next_row_id: int) -> Iterator[pa.RecordBatch]:
    prepare_worker()
    for ids in wrong_ids(((batch["first"].to_numpy(), batch["end"].to_numpy()) for batch in batches), next_row_id):
        yield pa.record_batch([ids], schema=_IDS)


def wrong_ids(
    runs: Iterable[tuple[NDArray[np.int64], NDArray[np.int64]]], next_row_id: int
) -> Iterator[NDArray[np.int64]]:
    """Of runs in order, and so in whole parts: an id of each that others have as well, and of each that goes too far."""
    reach, room = -MAX_LONG - 1, _MAX_IDS
    for first, end in runs:
        if not len(first):
            continue
        reaches = np.maximum.accumulate(np.append(reach, end))
        again = first[first < reaches[:-1]]
        high = np.maximum(first, next_row_id)[end > next_row_id]
        reach = int(reaches[-1])
        found = np.unique(np.append(again, high))[:room]
        room -= len(found)
        if len(found):
            yield found


_MAX_REPORTED = 1_000

_PLACES_OF_ID = 2
"""How many rows with one id are held for each file: two show that it has the id twice."""

_NAMES = (ROW_ID.name, FILE.name, POS.name)
_RANGE = np.dtype([("key", np.int64), ("first", np.int64), ("end", np.int64)])
Ranges = NDArray[Any]


def check_row_ids(subject: CheckedTable, listed: Listed) -> None:
    """Report row ids that two live rows of a branch's head have, or that are not below `next-row-id`."""
    metadata = subject.table.metadata
    if metadata.next_row_id is None:
        return
    looked_at = {snapshot.snapshot_id: snapshot for snapshot in subject.snapshots}
    reader = ManifestReader(subject.table.storage)
    for snapshot_id, names in branch_heads(metadata).items():
        if snapshot_id not in looked_at or snapshot_id not in listed.members:
            continue
        branch = MAIN if snapshot_id == metadata.current_snapshot_id else names[-1]
        numbers = {listed.manifests[number].manifest_path: number for number in listed.members[snapshot_id]}
        try:
            # By its own list: an older one may say nothing of row ids.
            rows = reader.manifests(looked_at[snapshot_id])
        except (InvalidTableError, UnsupportedError) as error:
            subject.tally.gap(f"row ids of branch {branch!r}", first_line(error))
            continue
        of_data = (row for row in rows if row.content is ManifestContent.DATA and row.may_have_live_files)
        data = [(numbers[row.manifest_path], row) for row in of_data if row.manifest_path in numbers]
        if data:
            _Head(subject, snapshot_id, branch, data, metadata.next_row_id).check()


class _Head(msgspec.Struct, frozen=True):
    """The data manifests of a branch's head."""

    subject: CheckedTable
    snapshot_id: int
    branch: str
    data: Sequence[Numbered]
    next_row_id: int

    def check(self) -> None:
        """Report what is wrong."""
        if count_of(self.data) > BRANCH_FILES:
            self._gap(f"there are more than {BRANCH_FILES:,} files")
            return
        decode = decode_task(self.subject.table, self.data, ("file_path", "record_count", "first_row_id"))
        found = over_manifests(self.subject.spark, self.data, _ranges, decode, "reading row ids of files")
        # A file that is there twice is a fault of its own.
        ranges = np.unique(np.concatenate([np.empty(0, _RANGE), *found]))
        ranges = ranges[np.append(ranges["key"][1:] != ranges["key"][:-1], True)[: len(ranges)]]
        self._check_ends(ranges)
        why = self._check_rows(int((ranges["end"] - ranges["first"]).sum()))
        if why is not None:
            self._gap(f"{why}; only the ranges of files that store no ids were looked at")
            self._check_overlaps(ranges)

    def _check_ends(self, ranges: Ranges) -> None:
        wrong = ranges[ranges["end"] > self.next_row_id]
        for key, file in self._files(wrong["key"][:_MAX_REPORTED]).items():
            end = int(wrong["end"][wrong["key"] == key][0])
            self._report(file, f"its row ids end before {end}, where next-row-id is {self.next_row_id}", end)

    def _check_rows(self, rows_count: int) -> str | None:
        """Hold the ids of all live rows against each other; says why that cannot be done."""
        try:
            spark = self.subject.spark
            places = self._wrong_places() if rows_count <= limits_of(spark).row_ids_count else None
            if places is None:
                rows = scan(self.subject.table, spark, select=_NAMES, snapshot_id=self.snapshot_id)
                places = wrong_places(rows, self.next_row_id)
            self._report_rows(places)
        except TryAgainError:
            raise
        except IcekeepError as error:
            return first_line(error)
        return None

    def _wrong_places(self) -> list[Place] | None:
        """Rows with an id that another has, or that was never given; `None` where files are too many for this process."""
        table = self.subject.table
        found = rows_worked_on(table, _ids, select=_NAMES[:1], snapshot_id=self.snapshot_id)
        if found is None:
            return None
        ids = np.sort(np.concatenate([np.empty(0, np.int64), *found]))
        again = np.unique(ids[1:][ids[1:] == ids[:-1]])[:_MAX_REPORTED]
        high = np.unique(ids[np.searchsorted(ids, self.next_row_id) :])[:_MAX_REPORTED]
        if not len(again) and not len(high):
            return []
        act = partial(_places, wanted=np.union1d(again, high))
        places = rows_worked_on(table, act, select=_NAMES, snapshot_id=self.snapshot_id) or []
        return [one for some in places for one in some]

    def _report_rows(self, places: list[Place]) -> None:
        """Report each pair of files whose rows share an id once; `places` are ids, files and positions."""
        keys = keys_of(pa.array([path for _, path, _ in places], pa.string()))[0]
        files = self._files(np.unique(keys))
        key_of = {path: key for (_, path, _), key in zip(places, keys.tolist(), strict=True)}
        reported: set[tuple[str, ...]] = set()
        in_order = sorted(set(places))
        for row_id, path, position in in_order:
            if row_id >= self.next_row_id and (path,) not in reported:
                reported.add((path,))
                detail = f"its row {position} has row id {row_id}, where next-row-id is {self.next_row_id}"
                self._report(files[key_of[path]], detail, row_id)
        for (first_id, first, first_at), (second_id, second, second_at) in pairwise(in_order):
            if first_id == second_id and (first, second) not in reported:
                reported.add((first, second))
                detail = f"its row {second_at} has row id {second_id}, as row {first_at} of {first!r}"
                self._report(files[key_of[second]], detail, second_id, other=first)

    def _check_overlaps(self, ranges: Ranges) -> None:
        """Hold against each other the ranges of files that store no ids; those that no other range meets are not opened."""
        ranges = np.sort(ranges[ranges["end"] > ranges["first"]], order=["first", "end"])
        meets = np.maximum.accumulate(ranges["end"])[:-1] > ranges["first"][1:]
        ranges = ranges[np.append(False, meets) | np.append(meets, False)[: len(ranges)]]
        if len(ranges) > OVERLAPPING_FILES:
            looked_at = f"{OVERLAPPING_FILES:,} were looked at"
            self._gap(f"the ranges of {len(ranges):,} files overlap with others; {looked_at}")
            ranges = ranges[:OVERLAPPING_FILES]
        files = self._files(ranges["key"])
        # A range that is not used must not hide that two others overlap within it.
        ranges = ranges[np.isin(ranges["key"], self._without_ids(files))]
        ends = np.maximum.accumulate(ranges["end"])
        at = 1 + np.flatnonzero(ranges["first"][1:] < ends[:-1])
        # Each with the first one that reaches into it.
        before = np.searchsorted(ends, ranges["first"][at], side="right")
        for one, other in zip(ranges[at], ranges[before], strict=True):
            path = files[int(other["key"])]["file_path"]
            detail = f"its row ids begin at {one['first']}, and those of {path!r} end before {other['end']}"
            self._report(files[int(one["key"])], detail, int(one["first"]), other=path)

    def _without_ids(self, files: Mapping[int, Row]) -> list[int]:
        """The keys of files that are known to store no row ids."""
        threads = threads_count(file["file_path"] for file in files.values())
        ran = run_tasks(None, [*files.values()], _stores_none, self.subject.table.storage, threads=threads)
        return [key for key, stores_none in zip(files, all_results(ran), strict=True) if stores_none]

    def _files(self, keys: Keys) -> dict[int, Row]:
        """An entry of each of some data files, by their keys."""
        if not len(keys):
            return {}
        decode = decode_task(self.subject.table, self.data, ("file_path", "file_format", "spec_id"))
        join = FileJoin(decode=decode, wanted=np.unique(keys))
        files = [rows[-1] for rows in join.files(self.subject.spark, self.data, Tally())]
        paths = pa.array([file["file_path"] for file in files], pa.string())
        return dict(zip(keys_of(paths)[0].tolist(), files, strict=True))

    def _gap(self, why: str) -> None:
        self.subject.tally.gap(f"row ids of branch {self.branch!r}", why)

    def _report(self, file: Row, detail: str, found: int, **facts: Any) -> None:
        self.subject.tally.add(
            Fault(
                number=FaultId.ROW_ID_DOUBLED,
                where=file["file_path"],
                detail=detail,
                snapshot_id=self.snapshot_id,
                facts={
                    "manifest": file["manifest_path"],
                    "file_path": file["file_path"],
                    "content": 0,
                    "content_offset": None,
                    "spec_id": file["spec_id"],
                    "recorded": self.next_row_id,
                    "found": found,
                    **facts,
                },
            )
        )


def _stores_none(file: Row, storage: Storage) -> bool:
    try:
        with open_reader(storage, file["file_path"], file["file_format"]) as reader:
            return ROW_ID.field_id not in field_ids(reader.schema)
    except (InvalidTableError, UnsupportedError):
        return False


def _ranges(manifests: Sequence[Numbered], decode: DecodeTask) -> Ranges:
    found = [np.empty(0, _RANGE)]
    for batch, _, keys, there in keyed_batches(manifests, decode, Tally()):
        has_ids = there & batch["first_row_id"].is_valid().to_numpy(zero_copy_only=False)
        rows = np.empty(batch.num_rows, _RANGE)
        rows["key"], rows["first"] = keys, batch["first_row_id"].fill_null(0).to_numpy()
        rows["end"] = rows["first"] + np.maximum(batch["record_count"].to_numpy(), 0)
        found.append(rows[has_ids])
    return np.concatenate(found)


def _ids(batches: Iterator[pa.RecordBatch]) -> NDArray[np.int64]:
    return np.concatenate([np.empty(0, np.int64), *(batch.column(0).drop_null().to_numpy() for batch in batches)])


def _places(batches: Iterator[pa.RecordBatch], wanted: NDArray[np.int64]) -> list[Place]:
    """Where rows with some ids are; of many with one id only some, for a file may have the same id in all of its rows."""
    found: list[Place] = []
    taken = np.zeros(len(wanted), np.int64)
    file = None
    for batch in batches:
        if len(batch) and (now := batch.column(1)[0].as_py()) != file:
            file, taken = now, np.zeros(len(wanted), np.int64)
        ids = batch.column(0).fill_null(-1).to_numpy()
        at = np.flatnonzero(np.isin(ids, wanted) & batch.column(0).is_valid().to_numpy(zero_copy_only=False))
        numbers = np.searchsorted(wanted, ids[at])
        order = np.argsort(numbers, kind="stable")
        starts = np.searchsorted(numbers[order], numbers[order], side="left")
        # The rank of each among those of its id in this batch.
        kept = order[np.arange(len(order)) - starts + taken[numbers[order]] < _PLACES_OF_ID]
        np.add.at(taken, numbers[kept], 1)
        chosen = batch.take(pa.array(at[np.sort(kept)]))
        found += zip(*(column.to_pylist() for column in chosen.columns), strict=True)
    return found
