"""The manifests that some snapshots lead to, each once: the lists of ten thousand snapshots hold a million rows.

What is retained must be read whole, or else what it leads to would be taken for garbage. A manifest list has no recorded
length, and one that is cut between two blocks reads as a whole, shorter one; what shows it are the totals of files that
the snapshot's summary keeps.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeAlias

import msgspec
import numpy as np
import pyarrow as pa

from icekeep.commit.summary import FILE_TOTALS, check_file_total
from icekeep.errors import IcekeepError, InvalidTableError, UnsupportedError
from icekeep.planning.manifests.avro_decoder import NotReadError
from icekeep.planning.manifests.distinct import DistinctManifests, ListedManifests
from icekeep.planning.manifests.list_columns import UNKNOWN, ListedRows, StoredLists, rows_of
from icekeep.planning.manifests.reader import ManifestDecoder, chosen_decoder
from icekeep.planning.slow_reads import note_slow_read
from icekeep.planning.spark.amounts import LIST_ROWS, tasks_count
from icekeep.planning.spark.source import SparkSource, limits_of, started
from icekeep.planning.spark.tasks import all_results, run_tasks
from icekeep.spec.avro import AvroHeader, read_header
from icekeep.spec.bins import cut_evenly, each_once
from icekeep.spec.manifests.decode import read_manifest_list
from icekeep.spec.manifests.inspection import inspect_manifest
from icekeep.spec.manifests.structs import ManifestContent, ManifestFile
from icekeep.spec.snapshots import Snapshot
from icekeep.spec.units import MIB
from icekeep.storage.base import Storage
from icekeep.storage.location_keys import Keys, location_keys
from icekeep.storage.locations import canonical, parse_location
from icekeep.storage.many import LOCAL_REQUESTS_AT_ONCE

__all__ = ["ListedManifests", "listed_manifests"]

_LIST_ROWS, _REMOTE_LIST_ROWS = 100, 1_000
"""What a list takes beside its rows, in rows: a remote one takes a request."""

_MIN_TASK_LISTS = 250
_BUNDLE_LISTS = 128
_BUNDLE_BYTES = 4 * MIB
_REMOTE_THREADS = 32


def listed_manifests(
    storage: Storage,
    spark: SparkSource,
    snapshots: Sequence[Snapshot],
    *,
    check: bool,
    trust: bool = False,
    without: Keys | None = None,
) -> ListedManifests:
    """Read the manifest lists of some snapshots; few on the driver, many in Spark tasks.

    Of a manifest that several lists name that row is returned which knows of the most live files.

    Args:
        check: of snapshots that are kept: a list that is not whole is an error, and not only told of.
        trust: do not hold the lists against the totals of the summaries.
        without: keys of manifests that are not wanted.

    Raises:
        InvalidTableError, MissingFileError, UnsupportedError: with `check`, a list is damaged, cut short, or gone; or two
            lists contradict each other.
        UnavailableError: the store fails for now.
    """
    unwanted = np.unique(without) if without is not None else np.empty(0, np.int64)
    lists, unlisted = _taken_apart(snapshots)
    reader = _ListReader(storage, unwanted, check=check, trust=trust)
    # The newest lists are mostly the longest; they tell what is to be expected of the others.
    newest, others = lists[-_BUNDLE_LISTS:], lists[:-_BUNDLE_LISTS]
    reader.read(newest)
    cost = _cost(others, reader.rows_count // max(1, len(newest)))
    if cost <= limits_of(spark).list_rows_count:
        reader.read(others)
    else:
        session = started(spark)
        some = [*map(tuple, _cut_into_bins(others, tasks_count(session, cost, LIST_ROWS)))]
        shared = _Reading(storage, unwanted, check, trust)
        for part in all_results(run_tasks(session, some, _read_share, shared, step="reading manifest lists")):
            reader.merge(part)
    reader.inspect(unlisted)
    return reader.found()


class _Totals(msgspec.Struct, frozen=True):
    """How many live files of each kind the summary of a snapshot says there are."""

    snapshot_id: int
    files: Mapping[ManifestContent, str]


class _List(msgspec.Struct, frozen=True):
    """A manifest list, and the totals of the snapshots that name it."""

    location: str
    totals: tuple[_Totals, ...]

    def __str__(self) -> str:
        return f"manifest list {self.location!r}"


class _Unlisted(msgspec.Struct, frozen=True):
    """The manifests that a snapshot of version 1 names itself."""

    manifests: tuple[str, ...]
    totals: tuple[_Totals]

    def __str__(self) -> str:
        return f"snapshot {self.totals[0].snapshot_id}, which has no manifest list,"


_File: TypeAlias = tuple[_List, bytes, AvroHeader]


class _Reading(msgspec.Struct, frozen=True):
    """What all tasks that read lists share."""

    storage: Storage
    unwanted: Keys
    check: bool
    trust: bool


def _taken_apart(snapshots: Iterable[Snapshot]) -> tuple[list[_List], list[_Unlisted]]:
    """The lists of snapshots, each once, and what snapshots without a list name."""
    by_key: dict[str, _List] = {}
    unlisted = []
    for snapshot in snapshots:
        summary = snapshot.summary or {}
        totals = _Totals(snapshot.snapshot_id, {c: summary[name] for c, name in FILE_TOTALS.items() if name in summary})
        if snapshot.manifest_list is None:
            unlisted.append(_Unlisted(snapshot.manifests or (), (totals,)))
            continue
        key = canonical(snapshot.manifest_list)
        known = by_key.get(key, _List(snapshot.manifest_list, ()))
        by_key[key] = _List(known.location, (*known.totals, totals))
    return [*by_key.values()], unlisted


def _cost(lists: Sequence[_List], rows_count: int) -> int:
    """What it takes to read lists of so many rows each, in rows."""
    return len(lists) * (rows_count + (_LIST_ROWS if _are_local(lists) else _REMOTE_LIST_ROWS))


def _are_local(lists: Iterable[_List]) -> bool:
    return all(parse_location(one.location).scheme == "file" for one in lists)


def _cut_into_bins(lists: Sequence[_List], bins_count: int) -> list[Sequence[_List]]:
    """Neighbours stay together, since they name the same manifests."""
    bins_count = max(1, min(bins_count, len(lists) // _MIN_TASK_LISTS))
    return cut_evenly(lists, each_once, bins_count)


def _read_share(lists: tuple[_List, ...], reading: _Reading) -> ListedManifests:
    reader = _ListReader(reading.storage, reading.unwanted, check=reading.check, trust=reading.trust)
    reader.read(lists)
    return reader.found()


class _ListReader:
    """Reads manifest lists, and collects what they name.

    Attributes:
        rows_count: rows of the lists that were read here.
    """

    def __init__(self, storage: Storage, unwanted: Keys, *, check: bool, trust: bool) -> None:
        self._storage, self._check, self._trust = storage, check, trust
        self._distinct = DistinctManifests(unwanted, check=check)
        self.rows_count = 0
        self._untotalled_count = 0
        self._unreadable: list[str] = []
        self._decoder, _ = chosen_decoder()
        self._by_schema: dict[bytes, StoredLists] = {}
        self._slow_reason: Exception | None = None

    def found(self) -> ListedManifests:
        keys, manifests = self._distinct.manifests()
        return ListedManifests(
            manifests=manifests,
            keys=keys,
            untotalled_count=self._untotalled_count,
            unreadable=tuple(self._unreadable),
        )

    def merge(self, part: ListedManifests) -> None:
        """Take in what a task has found."""
        self._untotalled_count += part.untotalled_count
        self._unreadable += part.unreadable
        self._distinct.add(rows_of(part.manifests), ["another manifest list"])

    def read(self, lists: Sequence[_List]) -> None:
        """Read lists, some megabytes at a time; the next ones are fetched meanwhile."""
        bundles = [lists[start : start + _BUNDLE_LISTS] for start in range(0, len(lists), _BUNDLE_LISTS)]
        # Most of the time of a thread that reads from afar is waiting.
        pool = ThreadPoolExecutor(LOCAL_REQUESTS_AT_ONCE if _are_local(lists) else _REMOTE_THREADS)
        try:
            fetched = deque(pool.map(self._fetched, bundle) for bundle in bundles[:1])
            for number, bundle in enumerate(bundles):
                fetched.extend(pool.map(self._fetched, following) for following in bundles[number + 1 : number + 2])
                for files in _some_megabytes(zip(bundle, fetched.popleft(), strict=True)):
                    self._add(files)
        finally:
            # After an error or an interrupt, lists that were not begun are not read any more.
            pool.shutdown(wait=True, cancel_futures=True)

    def inspect(self, unlisted: Sequence[_Unlisted]) -> None:
        """Read the manifests that snapshots name themselves: no list says what they hold."""
        rows: dict[str, ManifestFile] = {}
        for one in unlisted:
            for location in one.manifests:
                if location not in rows and (row := self._inspected(location)) is not None:
                    rows[location] = row
            listed = rows_of([rows[location] for location in one.manifests if location in rows])
            self._distinct.add(listed, [str(one)])
            self._check_totals(listed, [one])

    def _inspected(self, location: str) -> ManifestFile | None:
        try:
            if not self._check and self._distinct.is_unwanted(location_keys(pa.array([location])))[0]:
                return None
            return inspect_manifest(self._storage.read(location), location)
        except (InvalidTableError, UnsupportedError) as error:
            self._tell(location, error)
            return None

    def _fetched(self, one: _List) -> bytes | IcekeepError:
        try:
            return self._storage.read(one.location)
        except (InvalidTableError, UnsupportedError) as error:
            return error

    def _tell(self, location: str, error: IcekeepError) -> None:
        """What is retained must be read whole; of what is not, it is enough to tell that it was not read."""
        if self._check:
            raise error
        self._unreadable.append(location)

    def _add(self, files: Iterable[tuple[_List, bytes | IcekeepError]]) -> None:
        alike: dict[bytes, list[_File]] = {}
        for one, data in files:
            try:
                if isinstance(data, IcekeepError):
                    raise data
                header = read_header(data, one.location)
                alike.setdefault(header.metadata["avro.schema"], []).append((one, data, header))
            except (InvalidTableError, UnsupportedError) as error:
                self._tell(one.location, error)
        for schema, some in alike.items():
            if not self._add_together(schema, some):
                for one, data, _ in some:
                    self._add_alone(one, data)

    def _add_together(self, schema: bytes, files: Sequence[_File]) -> bool:
        """Add lists of one schema, if that is possible and none of them needs a closer look."""
        self._slow_reason = None
        if self._decoder is not ManifestDecoder.DATAFUSION:
            return False
        try:
            if schema not in self._by_schema:
                self._by_schema[schema] = StoredLists(schema)
            rows = self._by_schema[schema].read([(data, header) for _, data, header in files])
            self._distinct.add(rows, [str(one) for one, _, _ in files])
        except NotReadError as error:
            self._slow_reason = error
            return False
        except InvalidTableError as error:
            if self._check:
                raise
            self._slow_reason = error
            return False
        self.rows_count += len(rows.paths)
        self._check_totals(rows, [one for one, _, _ in files])
        return True

    def _add_alone(self, one: _List, data: bytes) -> None:
        try:
            rows = rows_of(read_manifest_list(data, one.location))
            self._distinct.add(rows, [str(one)])
        except InvalidTableError as error:
            self._tell(one.location, error)
            return
        if self._slow_reason is not None:
            note_slow_read(one.location, self._slow_reason)
        self.rows_count += len(rows.paths)
        self._check_totals(rows, [one])

    def _check_totals(self, rows: ListedRows, lists: Sequence[_List | _Unlisted]) -> None:
        """Hold the live files of each list against the summaries of its snapshots; one without totals proves nothing."""
        if not self._check:
            return
        counts = {content: _live_counts(rows, content, len(lists)) for content in FILE_TOTALS}
        for number, one in enumerate(lists):
            listed = {content: counts[content][number] for content in FILE_TOTALS}
            for totals in one.totals:
                self._check_snapshot(one, totals, listed)

    def _check_snapshot(
        self, one: _List | _Unlisted, totals: _Totals, listed: Mapping[ManifestContent, int | None]
    ) -> None:
        known = {content: totals.files.get(content) for content in FILE_TOTALS if listed[content] is not None}
        if len(known) < len(FILE_TOTALS) or None in known.values():
            self._untotalled_count += 1
        for content, recorded in known.items():
            count = listed[content]
            if not self._trust and recorded is not None and count is not None:
                check_file_total(
                    str(one),
                    content,
                    count,
                    recorded,
                    totals.snapshot_id,
                    otherwise="; if the total is wrong, --trust-manifest-list goes by the list",
                )


def _live_counts(rows: ListedRows, content: ManifestContent, lists_count: int) -> list[int | None]:
    """The live files that each list leads to; `None` where it does not say of all its manifests."""
    mine = rows.contents == content
    list_numbers, live = rows.list_numbers[mine], rows.live_counts[mine]
    unknown = np.bincount(list_numbers, live == UNKNOWN, lists_count)
    sums = np.bincount(list_numbers, live, lists_count).astype(np.int64)
    return [None if has_unknown else count for has_unknown, count in zip(unknown.tolist(), sums.tolist(), strict=True)]


def _some_megabytes(
    files: Iterable[tuple[_List, bytes | IcekeepError]],
) -> Iterator[list[tuple[_List, bytes | IcekeepError]]]:
    some, size_bytes = [], 0
    for one, data in files:
        some.append((one, data))
        size_bytes += len(data) if isinstance(data, bytes) else 0
        if size_bytes >= _BUNDLE_BYTES:
            yield some
            some, size_bytes = [], 0
    if some:
        yield some
