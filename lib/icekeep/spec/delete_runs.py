"""Which delete files reach which data files (spec, "Scan Planning" and "Delete Formats"): the rule, over columns.

A reader of a data file must apply a delete file
* that is new enough: of the data file's sequence number or newer, but newer for equality deletes;
* that is for this data file alone (`referenced_data_file`), lies in its spec and partition, or holds equality deletes of an
  unpartitioned spec. One for this data file that lies in another partition is an error: no reader can tell whether it applies;
* whose bounds of paths, if they are one path, match the data file's path: see `reach.sole_path`;
* unless it holds positions and a deletion vector reaches the data file, which has them all (spec, "Deletion Vectors").

A thousand equality delete files may reach each of ten thousand data files. Those of one partition, or of the table, are sorted
by sequence number: those that reach a data file are the end of that list, a run of two numbers. Planning calls this with Arrow
tables (`planning.deletes`), commits with entries (`matched_deletes`).
"""

from collections.abc import Callable, Mapping, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from icekeep.errors import InvalidTableError
from icekeep.spec.collections import PositionSet, of_stretches
from icekeep.spec.reach import PathBounds, encoded_path, in_another_partition, named_range

Numbers = NDArray[np.int64]
Places = NDArray[np.int32]
Flags = NDArray[np.bool_]

NO_LIMIT = 2**62

SEVERAL_FILES = -2
"""In `DeleteColumns.files`: the delete file may be for several data files."""


class DataColumns(msgspec.Struct, frozen=True, kw_only=True):
    """Data files, a row each; files and partitions are arbitrary numbers from 0. `paths` gives the paths of some rows."""

    files: Numbers
    partitions: Numbers
    sequence_numbers: Numbers
    paths: Callable[[Numbers], Sequence[str]]


class DeleteColumns(msgspec.Struct, frozen=True, kw_only=True):
    """Delete files, a row each, with the numbers of `DataColumns`.

    Attributes:
        files: the only data file of a row, -1 if it is not in `DataColumns`; or `SEVERAL_FILES`.
        partitions: -1 for one without data files.
        bounds: by row, for position delete files of several data files whose bounds are one path.
        paths: the paths of some rows.
    """

    files: Numbers
    partitions: Numbers
    sequence_numbers: Numbers
    is_equality: Flags
    is_vector: Flags
    is_global: Flags
    bounds: Mapping[int, PathBounds]
    paths: Callable[[Numbers], Sequence[str]]


class DeleteRuns(msgspec.Struct, frozen=True, kw_only=True):
    """The delete files that reach each data file, as runs in an order of all delete files, list by list.

    Attributes:
        ranks: the delete files in this order, as rows of `DeleteColumns`.
        lists: the number of each one's list: of a partition, of the table or of one data file, by sequence number.
        reached: which of them reach any data file, whether a vector takes their place or not.
        offsets: the runs of data file n are those from `offsets[n]` to `offsets[n + 1]`.
        starts, stops: of each run, within one list, its first place in the order and the one after its last.
    """

    ranks: Places
    lists: Places
    reached: Flags
    offsets: Numbers
    starts: Places
    stops: Places

    @property
    def rows(self) -> Numbers:
        """The data file of each run."""
        return np.repeat(np.arange(len(self.offsets) - 1), np.diff(self.offsets))

    @property
    def used(self) -> Flags:
        """Which delete files a reader of any data file applies."""
        return _covered(self.starts, self.stops, len(self.ranks))

    def positions_of_row(self, row: int) -> PositionSet:
        """The places of the delete files that reach a data file."""
        runs = slice(self.offsets[row], self.offsets[row + 1])
        return of_stretches(zip(self.starts[runs].tolist(), self.stops[runs].tolist(), strict=True))

    def of_row(self, row: int) -> list[int]:
        """The same, in the order of `DeleteColumns`."""
        return sorted(self.positions_of_row(row), key=self.ranks.__getitem__)


def match(
    data: DataColumns, deletes: DeleteColumns, *, max_pairs: int = NO_LIMIT, max_runs: int = NO_LIMIT
) -> DeleteRuns | None:
    """Match delete files with data files; `None` for more than `max_pairs` pairs of files or `max_runs` runs.

    Raises `InvalidTableError` where two deletion vectors reach one data file, or a delete file for one lies in another partition.
    """
    count = len(deletes.files)
    greatest = deletes.sequence_numbers - deletes.is_equality
    is_listed = deletes.files == SEVERAL_FILES
    is_listed[[*deletes.bounds]] = False
    bounded = _bounded_pairs(data, deletes, greatest, min(max_pairs, max_runs))
    if bounded is None:
        return None
    rows, singles = (np.concatenate(some) for some in zip(_named_pairs(data, deletes, greatest), bounded, strict=True))

    partitions, of_row = np.unique(data.partitions, return_inverse=True)
    whole_table = 2 * len(partitions) + 2
    # Two lists by partition, from 2 on: the second is of equality deletes.
    numbers = np.searchsorted(partitions, deletes.partitions)
    is_there = np.append(partitions, np.iinfo(np.int64).min)[numbers] == deletes.partitions
    lists = np.where(deletes.is_global, whole_table, np.where(is_there, 2 * numbers + 2, 0) + deletes.is_equality)
    # Delete files that are matched one by one have a list each, but those that reach the same data file alone share one.
    only = np.full(count, -1)
    only[singles] = rows
    only[np.bincount(singles, minlength=count) != 1] = -1
    own = whole_table + 1 + np.where(only < 0, np.arange(count), count + only)
    lists = np.where(is_listed, lists, own)
    order = np.lexsort((deletes.sequence_numbers, lists))
    places = np.argsort(order)

    # Within a list the greatest sequence numbers reached ascend: their places among all of these make one key with the list's.
    listed = order[: np.count_nonzero(is_listed)]
    steps = np.unique(greatest[listed])
    width = len(steps) + 1
    keys = lists[listed] * width + np.searchsorted(steps, greatest[listed])
    since = np.searchsorted(steps, data.sequence_numbers)
    found = [(rows, places[singles], places[singles] + 1)]
    for numbers in (2 * of_row + 2, 2 * of_row + 3, np.full(len(of_row), whole_table)):
        starts, stops = np.searchsorted(keys, numbers * width + since), np.searchsorted(keys, (numbers + 1) * width)
        met = np.flatnonzero(starts < stops)
        found.append((met, starts[met], stops[met]))
    rows, starts, stops = (np.concatenate(some) for some in zip(*found, strict=True))
    if int((stops - starts).sum()) > max_pairs or len(rows) > max_runs:
        return None
    list_of = np.unique(lists[order], return_inverse=True)[1].astype(np.int32)
    reached = _covered(starts, stops, count)
    rows, starts, stops = _in_force(data, deletes, order, list_of, (rows, starts, stops))
    return DeleteRuns(
        ranks=order.astype(np.int32),
        lists=list_of,
        reached=reached,
        offsets=np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=len(data.files)))]),
        starts=starts.astype(np.int32),
        stops=stops.astype(np.int32),
    )


def _named_pairs(data: DataColumns, deletes: DeleteColumns, greatest: Numbers) -> tuple[Numbers, Numbers]:
    """Pairs of a data file and a delete file that is for it alone and reaches it."""
    named = np.flatnonzero(deletes.files != SEVERAL_FILES)
    by_file = np.argsort(data.files, kind="stable")
    files = data.files[by_file]
    firsts = np.searchsorted(files, deletes.files[named])
    counts = np.searchsorted(files, deletes.files[named], "right") - firsts
    rows = by_file[np.arange(counts.sum()) + np.repeat(firsts - np.cumsum(counts) + counts, counts)]
    named = np.repeat(named, counts)
    is_newer = data.sequence_numbers[rows] <= greatest[named]
    rows, named = rows[is_newer], named[is_newer]
    elsewhere = np.flatnonzero(data.partitions[rows] != deletes.partitions[named])[:1]
    if len(elsewhere):
        raise in_another_partition(deletes.paths(named[elsewhere])[0], data.paths(rows[elsewhere])[0])
    return rows, named


def _bounded_pairs(
    data: DataColumns, deletes: DeleteColumns, greatest: Numbers, max_pairs: int
) -> tuple[Numbers, Numbers] | None:
    """Pairs of a data file and a delete file whose bounds are one path and match it; `None` for more than `max_pairs`."""
    by_partition = np.argsort(data.partitions, kind="stable") if deletes.bounds else np.empty(0, np.int64)
    partitions = data.partitions[by_partition]
    neighbours: dict[int, tuple[Numbers, list[bytes]]] = {}
    found: list[Numbers] = [np.empty(0, np.int64)]
    total = 0
    for delete, bounds in deletes.bounds.items():
        partition = int(deletes.partitions[delete])
        if partition not in neighbours:
            low, high = np.searchsorted(partitions, (partition, partition + 1))
            rows = by_partition[low:high]
            paths = [*map(encoded_path, data.paths(rows))]
            order = sorted(range(len(rows)), key=paths.__getitem__)
            neighbours[partition] = rows[order], [paths[place] for place in order]
        rows, paths = neighbours[partition]
        rows = rows[named_range(paths, bounds)]
        found.append(rows[data.sequence_numbers[rows] <= greatest[delete]])
        total += len(found[-1])
        if total > max_pairs:
            return None
    members = np.repeat(np.array([*deletes.bounds], np.int64), [*map(len, found[1:])])
    return np.concatenate(found), members


def _covered(starts: NDArray[np.integer], stops: NDArray[np.integer], count: int) -> Flags:
    """Which of `count` places lie in any run."""
    edges = np.bincount(starts, minlength=count + 1) - np.bincount(stops, minlength=count + 1)
    return np.asarray(np.cumsum(edges)[:-1] > 0)


def _in_force(
    data: DataColumns, deletes: DeleteColumns, order: Numbers, lists: Places, found: tuple[Numbers, Numbers, Numbers]
) -> tuple[Numbers, Numbers, Numbers]:
    """Runs by data file and start, without position deletes that a vector replaces; adjacent ones of one list are joined."""
    rows, starts, stops = found
    firsts = order[starts]
    vectors = np.bincount(rows[deletes.is_vector[firsts]], minlength=len(data.files))
    several = np.flatnonzero(vectors > 1)[:1]
    if len(several):
        [path] = data.paths(several)
        raise InvalidTableError(f"data file {path!r} has {vectors[several[0]]} deletion vectors; it may have one")
    stays = deletes.is_vector[firsts] | deletes.is_equality[firsts] | (vectors[rows] == 0)
    rows, starts, stops = rows[stays], starts[stays], stops[stays]
    by_row = np.lexsort((starts, rows))
    rows, starts, stops = rows[by_row], starts[by_row], stops[by_row]
    touches = (rows[1:] == rows[:-1]) & (starts[1:] == stops[:-1]) & (lists[starts[1:]] == lists[starts[:-1]])
    begins, ends = np.append(True, ~touches), np.append(~touches, True)
    if not len(rows):
        begins = ends = np.empty(0, np.bool_)
    return rows[begins], starts[begins], stops[ends]
