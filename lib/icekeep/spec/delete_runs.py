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

from collections.abc import Callable, Iterator, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from icekeep.errors import InvalidTableError
from icekeep.spec.collections import PositionSet, of_stretches
from icekeep.spec.reach import encoded_path, in_another_partition, named_range

Numbers = NDArray[np.int64]
Places = NDArray[np.int32]
Flags = NDArray[np.bool_]

NO_LIMIT = 2**62

_MANY_LENGTHS = 16
"""Sole paths of more lengths than this are searched for one by one."""

SEVERAL_FILES = -2
"""In `DeleteColumns.files`: the delete file may be for several data files."""


class DataColumns(msgspec.Struct, frozen=True, kw_only=True):
    """Data files, a row each; partitions are arbitrary numbers from 0.

    Attributes:
        files: numbers that are equal where paths are, or -1 for a path that no delete file names.
        paths: the paths of some rows.
    """

    files: Numbers
    partitions: Numbers
    sequence_numbers: Numbers
    paths: Callable[[Numbers], Sequence[str]]


class DeleteColumns(msgspec.Struct, frozen=True, kw_only=True):
    """Delete files, a row each, with the numbers of `DataColumns`.

    Attributes:
        files: the only data file of a row, a number that no data file has if it is not there; or `SEVERAL_FILES`.
        partitions: -1 for one without data files.
        sole_lengths: for a position delete file of several data files whose bounds are one path, the bytes of that path; else -1.
        beginnings: for a length, rows of data files and rows of delete files with a path of this length: numbers of the data
            files' paths up to this length, and of the delete files' paths, that are equal where the bytes are. -1 for a data
            file whose path is shorter, or begins like no delete file's.
        sole_paths: of some rows with such a path, in UTF-8.
        paths: the paths of some rows.
    """

    files: Numbers
    partitions: Numbers
    sequence_numbers: Numbers
    is_equality: Flags
    is_vector: Flags
    is_global: Flags
    sole_lengths: Numbers
    beginnings: Callable[[int, Numbers, Numbers], tuple[Numbers, Numbers]]
    sole_paths: Callable[[Numbers], Sequence[bytes]]
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
    is_listed = (deletes.files == SEVERAL_FILES) & (deletes.sole_lengths < 0)
    partitions, of_row = np.unique(data.partitions, return_inverse=True)
    numbers = np.searchsorted(partitions, deletes.partitions)
    is_there = np.append(partitions, np.iinfo(np.int64).min)[numbers] == deletes.partitions
    one_by_one = [_named_pairs(data, deletes)]
    left = min(max_pairs, max_runs)
    for pairs in _sole_path_pairs(data, of_row, np.where(is_there, numbers, -1), deletes, left):
        if pairs is None or len(pairs[0]) > left:
            return None
        left -= len(pairs[0])
        one_by_one.append(pairs)
    rows, singles = (np.concatenate(some) for some in zip(*one_by_one, strict=True))
    is_newer = data.sequence_numbers[rows] <= greatest[singles]
    rows, singles = rows[is_newer], singles[is_newer]

    whole_table = 2 * len(partitions) + 2
    # Two lists by partition, from 2 on: the second is of equality deletes.
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
    # Half the size of `Numbers`: there may be several runs for each data file.
    own_places: Places = places[singles].astype(np.int32)
    found: list[tuple[Places, ...]] = [(rows.astype(np.int32), own_places, own_places + 1)]
    # The end of each list is one for all data files of a partition.
    ends = np.searchsorted(keys, np.arange(1, whole_table + 2) * width)
    for numbers in (2 * of_row + 2, 2 * of_row + 3, np.full(len(of_row), whole_table)):
        starts, stops = np.searchsorted(keys, numbers * width + since), ends[numbers]
        met = np.flatnonzero(starts < stops)
        found.append((met.astype(np.int32), starts[met].astype(np.int32), stops[met].astype(np.int32)))
    of_files, firsts, afters = (np.concatenate(some) for some in zip(*found, strict=True))
    if int((afters - firsts).sum(dtype=np.int64)) > max_pairs or len(of_files) > max_runs:
        return None
    list_of = np.unique(lists[order], return_inverse=True)[1].astype(np.int32)
    reached = _covered(firsts, afters, count)
    of_files, firsts, afters = _in_force(data, deletes, order, list_of, (of_files, firsts, afters))
    return DeleteRuns(
        ranks=order.astype(np.int32),
        lists=list_of,
        reached=reached,
        offsets=np.concatenate([[0], np.cumsum(np.bincount(of_files, minlength=len(data.files)))]),
        starts=firsts,
        stops=afters,
    )


def _named_pairs(data: DataColumns, deletes: DeleteColumns) -> tuple[Numbers, Numbers]:
    """Pairs of a data file and a delete file that is for it alone, and new enough."""
    named = np.flatnonzero(deletes.files != SEVERAL_FILES)
    pairs = _equal_pairs(data.files, deletes.files[named], NO_LIMIT)
    assert pairs is not None
    rows, places = pairs[0], named[pairs[1]]
    is_newer = data.sequence_numbers[rows] <= deletes.sequence_numbers[places]
    rows, places = rows[is_newer], places[is_newer]
    elsewhere = np.flatnonzero(data.partitions[rows] != deletes.partitions[places])[:1]
    if len(elsewhere):
        raise in_another_partition(deletes.paths(places[elsewhere])[0], data.paths(rows[elsewhere])[0])
    return rows, places


def _sole_path_pairs(
    data: DataColumns, partitions: Numbers, of_deletes: Numbers, deletes: DeleteColumns, max_pairs: int
) -> Iterator[tuple[Numbers, Numbers] | None]:
    """Pairs of a data file and a delete file of its partition, whose bounds are one path that the data file's begins with.

    Some writers cut both bounds, and do not increment the upper one: then they begin many paths, else they are a whole one. The
    paths of a table have few lengths, by each of which they are compared at once. Partitions are numbered from 0; -1 is one
    without data files. `None` in place of more than `max_pairs`.
    """
    count = int(partitions.max(initial=-1)) + 1
    sole = np.flatnonzero((deletes.sole_lengths >= 0) & (of_deletes >= 0))
    lengths = np.unique(deletes.sole_lengths[sole])
    if len(sole) and len(lengths) > _MANY_LENGTHS:
        yield from _searched_pairs(data, partitions, of_deletes, deletes, sole)
        return
    for length in lengths.tolist():
        those = sole[deletes.sole_lengths[sole] == length]
        rows = np.flatnonzero(np.bincount(of_deletes[those], minlength=count)[partitions])
        of_rows, of_those = deletes.beginnings(length, rows, those)
        keys = np.where(of_rows < 0, -1, of_rows * count + partitions[rows])
        pairs = _equal_pairs(keys, of_those * count + of_deletes[those], max_pairs)
        yield None if pairs is None else (rows[pairs[0]], those[pairs[1]])


def _searched_pairs(
    data: DataColumns, partitions: Numbers, of_deletes: Numbers, deletes: DeleteColumns, sole: Numbers
) -> Iterator[tuple[Numbers, Numbers]]:
    """The same, where paths have many lengths: those of each partition are sorted and searched."""
    by_partition, of_sole = np.argsort(partitions, kind="stable"), sole[np.argsort(of_deletes[sole], kind="stable")]
    numbers, starts = np.unique(of_deletes[of_sole], return_index=True)
    ordered = partitions[by_partition]
    for number, those in zip(numbers.tolist(), np.split(of_sole, starts[1:]), strict=True):
        low, high = np.searchsorted(ordered, (number, number + 1))
        rows = by_partition[low:high]
        paths = [*map(encoded_path, data.paths(rows))]
        order = sorted(range(len(rows)), key=paths.__getitem__)
        paths = [paths[place] for place in order]
        rows = rows[order]
        found = [rows[named_range(paths, (path, path))] for path in deletes.sole_paths(those)]
        yield np.concatenate(found), np.repeat(those, [*map(len, found)])


def _equal_pairs(data: Numbers, deletes: Numbers, max_pairs: int) -> tuple[Numbers, Numbers] | None:
    """The pairs of places at which both have the same number, by the place of the delete file; those of data are -1 for none."""
    some = np.flatnonzero(data >= 0)
    some = some[np.argsort(data[some], kind="stable")]
    numbers = data[some]
    firsts = np.searchsorted(numbers, deletes)
    counts = np.searchsorted(numbers, deletes, "right") - firsts
    total = int(counts.sum())
    if total > max_pairs:
        return None
    rows = some[np.arange(total) + np.repeat(firsts - np.cumsum(counts) + counts, counts)]
    return rows, np.repeat(np.arange(len(deletes)), counts)


def _covered(starts: NDArray[np.integer], stops: NDArray[np.integer], count: int) -> Flags:
    """Which of `count` places lie in any run."""
    edges = np.bincount(starts, minlength=count + 1) - np.bincount(stops, minlength=count + 1)
    return np.asarray(np.cumsum(edges)[:-1] > 0)


def _in_force(
    data: DataColumns, deletes: DeleteColumns, order: Numbers, lists: Places, found: tuple[Places, Places, Places]
) -> tuple[Places, Places, Places]:
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
