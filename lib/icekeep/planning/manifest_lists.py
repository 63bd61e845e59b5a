"""Manifest lists as Arrow columns: `spec.manifests.decode.read_manifest_list` for many lists at once.

Of the thousands of lists of a table nearly every one names the manifests that the one before it names, so rows are decoded
as columns, and made into values only where they are wanted. What looks wrong, or is beyond DataFusion, is left to that
function, which knows what to say about it.

Manifests that many lists name, each once; told apart by the keys of their paths.

The manifests that some snapshots lead to, each once: the lists of ten thousand snapshots hold a million rows.

What is retained must be read whole, or else what it leads to would be taken for garbage. A manifest list has no recorded
length, and one that is cut between two blocks reads as a whole, shorter one; what shows it are the totals of files that
the snapshot's summary keeps.

Which snapshots name some manifests: their lists are read for a few manifests, and nothing else of them is kept.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from icekeep.commit.summary import FILE_TOTALS, check_file_total
from icekeep.errors import IcekeepError, InvalidTableError, UnsupportedError
from icekeep.planning.decoder import Layout, NotReadError, flat_schema, read_together
from icekeep.planning.manifests import ManifestDecoder, chosen_decoder, note_slow_read
from icekeep.planning.spark.session import SparkSource, limits_of, started
from icekeep.planning.spark.tasks import all_results, run_tasks
from icekeep.planning.spark.workers import LIST_ROWS, tasks_count
from icekeep.spec.avro import AvroHeader, read_header
from icekeep.spec.collections import cut_evenly, each_once
from icekeep.spec.manifests.read import inspect_manifest, read_manifest_list, stored_fields
from icekeep.spec.manifests.structs import MANIFEST_FILE_FIELDS, FieldSummary, ManifestContent, ManifestFile
from icekeep.spec.snapshots import Snapshot
from icekeep.spec.types import MIB
from icekeep.storage.base import Storage
from icekeep.storage.location_keys import Keys, location_keys
from icekeep.storage.locations import canonical, parse_location
from icekeep.storage.many import LOCAL_REQUESTS_AT_ONCE, REQUESTS_AT_ONCE

UNKNOWN = -1
"""The count of live files of a manifest whose list does not say."""

_CONTENTS = [int(content) for content in ManifestContent]
_REQUIRED = tuple(f.name for f in MANIFEST_FILE_FIELDS if f.required_since == 1)
_SUMMARY_FIELDS = {509: "contains_null", 518: "contains_nan", 510: "lower_bound", 511: "upper_bound"}
_NUMBERED = ("sequence_number", "min_sequence_number")


class ListedRows(msgspec.Struct, frozen=True):
    """Rows of some manifest lists, one list after another.

    Attributes:
        list_numbers: which of the lists each row is of.
        live_counts: added and existing files, or `UNKNOWN`.
        made: makes the values of some rows; raises `NotReadError` where that takes a closer look.
    """

    list_numbers: NDArray[np.int64]
    paths: pa.Array
    lengths: NDArray[np.int64]
    contents: NDArray[np.int64]
    live_counts: NDArray[np.int64]
    made: Callable[[NDArray[np.int64]], list[ManifestFile]]


def rows_of(manifests: Sequence[ManifestFile]) -> ListedRows:
    """Rows of one list that are values already."""
    live = (m.live_files_count for m in manifests)
    return ListedRows(
        np.zeros(len(manifests), np.int64),
        pa.array([m.manifest_path for m in manifests], pa.string()),
        np.array([m.manifest_length for m in manifests], np.int64),
        np.array([m.content for m in manifests], np.int64),
        np.array([UNKNOWN if count is None else count for count in live], np.int64),
        lambda rows: [manifests[row] for row in rows.tolist()],
    )


class StoredLists:
    """Reads lists of one Avro schema, which most lists of a table have to the letter."""

    def __init__(self, schema_json: bytes) -> None:
        """Prepare for lists with a schema, given as JSON.

        Raises:
            NotReadError: rows of this schema need a closer look.
        """
        try:
            self._prepare(msgspec.json.decode(schema_json))
        except (KeyError, TypeError, ValueError) as error:
            raise NotReadError(str(error)) from error

    def _prepare(self, schema: Any) -> None:
        stored = stored_fields(schema)
        flat, flat_names, _ = flat_schema(schema, "")
        known = [f for f in MANIFEST_FILE_FIELDS if f.field_id in stored]
        self._names = {f.name: flat_names[stored[f.field_id]["name"]] for f in known}
        if any(name not in self._names for name in _REQUIRED):
            raise NotReadError("it lacks a field that each row must have")
        self._kinds = {f.name: _KINDS[str(f.type)] for f in known if str(f.type) in _KINDS}
        partitions = next((stored[f.field_id] for f in known if f.name == "partitions"), None)
        self._summary_names = {} if partitions is None else _summary_names(partitions["type"])
        self._layout = Layout(flat, tuple(self._names.values()))

    def read(self, files: Sequence[tuple[bytes, AvroHeader]]) -> ListedRows:
        """The rows of some lists; each file ends on its sync marker right after its last block, whose counts hold.

        Raises:
            NotReadError: one of the lists needs a closer look, or together they have no row.
        """
        (batch, _), counts = read_together(files, self._layout)
        columns = {name: batch[flat_name] for name, flat_name in self._names.items()}
        for name, column in columns.items():
            if name in self._kinds and not self._kinds[name](column.type):
                raise NotReadError(f"field {name!r} is stored as {column.type}")
        if any(columns[name].null_count for name in _REQUIRED):
            raise NotReadError("a row lacks a field that it must have")
        contents = _numbers(columns.get("content"), batch.num_rows, 0)
        if not np.isin(contents, _CONTENTS).all():
            raise NotReadError("a row has a content that the spec does not know")
        added, existing = (columns.get(f"{status}_files_count") for status in ("added", "existing"))
        live = None if added is None or existing is None else pc.add(added.cast(pa.int64()), existing.cast(pa.int64()))
        return ListedRows(
            np.repeat(np.arange(len(counts)), counts),
            columns["manifest_path"].cast(pa.string()),
            _numbers(columns["manifest_length"], batch.num_rows, 0),
            contents,
            _numbers(live, batch.num_rows, UNKNOWN),
            lambda rows: self._made(columns, rows),
        )

    def _made(self, columns: dict[str, pa.Array], rows: NDArray[np.int64]) -> list[ManifestFile]:
        list_numbers = pa.array(rows)
        values = {name: column.take(list_numbers).to_pylist() for name, column in columns.items()}
        values["content"] = [ManifestContent(content or 0) for content in values.get("content") or [0] * len(rows)]
        for name in _NUMBERED:
            # Version 1 has no sequence numbers: readers take 0 (spec, "Reading v1 metadata for v2").
            values[name] = [number or 0 for number in values.get(name) or [0] * len(rows)]
        if "partitions" in values:
            values["partitions"] = [self._summaries(raw) for raw in values["partitions"]]
        return [ManifestFile(**dict(zip(values, row, strict=True))) for row in zip(*values.values(), strict=True)]

    def _summaries(self, raw: list[dict[str, Any]] | None) -> tuple[FieldSummary, ...] | None:
        if raw is None:
            return None
        if None in raw:
            raise NotReadError("a summary of a partition field is null")
        names = self._summary_names.items()
        return tuple(FieldSummary(**{name: summary[stored] for name, stored in names}) for summary in raw)


_KINDS: dict[str, Callable[[pa.DataType], bool]] = {
    "int": pa.types.is_integer,
    "long": pa.types.is_integer,
    "string": lambda type_: type_ in (pa.string(), pa.large_string(), pa.string_view()),
    "binary": lambda type_: type_ in (pa.binary(), pa.large_binary(), pa.binary_view()),
}


def _summary_names(schema: Any) -> dict[str, str]:
    """The names that a list gives to the parts of a partition field's summary, by ours."""
    array = _without_null(schema)
    record = _without_null(array["items"])
    if (array["type"], record["type"]) != ("array", "record"):
        raise NotReadError("summaries of partition fields are laid out in another way")
    stored = stored_fields(record)
    expected = {509: "boolean", 518: "boolean", 510: "bytes", 511: "bytes"}
    for field_id, kind in expected.items():
        if field_id in stored and stored[field_id]["type"] not in (kind, ["null", kind], [kind, "null"]):
            raise NotReadError("a part of a summary is stored as something else")
    if 509 not in stored:
        raise NotReadError("summaries lack a part that they must have")
    return {name: stored[field_id]["name"] for field_id, name in _SUMMARY_FIELDS.items() if field_id in stored}


def _without_null(schema: Any) -> Any:
    kinds = [kind for kind in (schema if isinstance(schema, list) else [schema]) if kind != "null"]
    if len(kinds) != 1:
        raise NotReadError(f"a field is stored as one of {len(kinds)} types")
    return kinds[0]


def _numbers(column: pa.Array | None, count: int, missing: int) -> NDArray[np.int64]:
    if column is None:
        return np.full(count, missing, np.int64)
    numbers: NDArray[np.int64] = pc.fill_null(column.cast(pa.int64()), missing).to_numpy()
    return numbers


_Rows: TypeAlias = NDArray[np.int64]


class ListedManifests(msgspec.Struct, frozen=True, kw_only=True):
    """The manifests that some snapshots lead to.

    Attributes:
        manifests: each once.
        keys: of their paths, as `location_keys` has them, in the same order, which is ascending.
        untotalled_count: of the snapshots that were checked, those of whose files not all could be held against a total:
            the summary has none, or the list does not count.
        unreadable: lists, or manifests that a snapshot names itself, that could not be read.
    """

    manifests: tuple[ManifestFile, ...]
    keys: Keys
    untotalled_count: int = 0
    unreadable: tuple[str, ...] = ()


class DistinctManifests:
    """Collects rows of manifest lists; of a manifest that is there already only a better row is made a value.

    Attributes:
        check: whether lists that contradict each other are an error.
    """

    def __init__(self, unwanted: Keys, *, check: bool) -> None:
        """Begin with nothing; manifests with `unwanted` keys, which ascend, are left out."""
        self.check = check
        self._unwanted = unwanted
        self._by_key: dict[int, ManifestFile] = {}

    def is_unwanted(self, keys: Keys) -> NDArray[np.bool_]:
        """Which keys are of manifests that are left out."""
        if not len(self._unwanted):
            return np.zeros(len(keys), bool)
        indices = np.minimum(np.searchsorted(self._unwanted, keys), len(self._unwanted) - 1)
        found: NDArray[np.bool_] = self._unwanted[indices] == keys
        return found

    def add(self, rows: ListedRows, lists: Sequence[str]) -> None:
        """Take in rows of lists that are called so in a sentence.

        Raises:
            InvalidTableError: two lists give one manifest different lengths, or a path is none.
            NotReadError: a row needs a closer look; none is taken in.
        """
        coded = rows.paths.dictionary_encode()
        codes, path_keys = coded.indices.to_numpy(), location_keys(coded.dictionary)
        wanted = np.flatnonzero(~self.is_unwanted(path_keys)[codes])
        best = self._best_of_each(rows, codes, wanted, lists)
        keys = path_keys[codes[best]].tolist()
        new = [self._says_more(rows, row, key, lists) for row, key in zip(best.tolist(), keys, strict=True)]
        made = rows.made(best[np.array(new, bool)])
        new_keys = (key for key, is_new in zip(keys, new, strict=True) if is_new)
        for key, manifest in zip(new_keys, made, strict=True):
            known = self._by_key.get(key)
            # Two spellings of one path may come together.
            if known is None or self._says_more(rows_of([manifest]), 0, key, ["another manifest list"]):
                self._by_key[key] = manifest

    def manifests(self) -> tuple[Keys, tuple[ManifestFile, ...]]:
        """What was taken in: keys, which ascend, and the manifests in their order."""
        keys = sorted(self._by_key)
        return np.array(keys, np.int64), tuple(self._by_key[key] for key in keys)

    def _best_of_each(self, rows: ListedRows, codes: NDArray[np.int32], wanted: _Rows, lists: Sequence[str]) -> _Rows:
        """Of the rows of each path the one with the most live files; where their number is not known it counts as more."""
        order = wanted[np.lexsort((rows.live_counts[wanted].view(np.uint64), codes[wanted]))]
        is_same = codes[order][1:] == codes[order][:-1]
        if self.check:
            lengths = rows.lengths[order]
            differing = np.flatnonzero(is_same & (lengths[1:] != lengths[:-1]))
            if len(differing):
                row, other = (int(order[differing[0] + step]) for step in (1, 0))
                raise _contradiction(rows, row, int(rows.lengths[other]), lists)
        return order[np.append(~is_same, np.ones(min(1, len(order)), bool))]

    def _says_more(self, rows: ListedRows, row: int, key: int, lists: Sequence[str]) -> bool:
        """Whether a row is of a new manifest, or says of more live files than what is known of its manifest."""
        known = self._by_key.get(key)
        if known is None:
            return True
        if self.check:
            if int(rows.lengths[row]) != known.manifest_length:
                raise _contradiction(rows, row, known.manifest_length, lists)
            path = rows.paths[row].as_py()
            if path != known.manifest_path and canonical(path) != canonical(known.manifest_path):
                # Once in billions of tables: what the other one leads to would be taken for garbage.
                raise UnsupportedError(
                    f"manifests {known.manifest_path!r} and {path!r} cannot be told apart by their keys"
                )
        count, known_count = int(rows.live_counts[row]), known.live_files_count
        return known_count is not None and (count == UNKNOWN or count > known_count)


def _contradiction(rows: ListedRows, row: int, other: int, lists: Sequence[str]) -> InvalidTableError:
    path, name = rows.paths[row].as_py(), lists[int(rows.list_numbers[row])]
    return InvalidTableError(
        f"manifest {path!r} has {int(rows.lengths[row])} bytes by {name}, but {other} by another manifest list",
        location=path,
    )


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


_ROWS_A_LIST = 1_000
_LISTS_AT_ONCE = 32

_naming_File: TypeAlias = tuple[str, bytes, AvroHeader]


class _Wanted(msgspec.Struct, frozen=True):
    """What all tasks share: ascending keys of manifests."""

    keys: Keys
    storage: Storage


def snapshots_naming(
    storage: Storage, spark: SparkSource, snapshots: Sequence[Snapshot], manifests: Sequence[str]
) -> dict[int, frozenset[int]]:
    """The ids of the snapshots that name each of some manifests, by `location_keys` of these.

    Lists that cannot be read are passed over: whoever asks has read them before, and knows which.

    Raises:
        UnavailableError: the store fails for now.
    """
    keys = np.unique(location_keys(pa.array(manifests, pa.string())))
    found: dict[int, set[int]] = defaultdict(set)
    by_list: dict[str, list[int]] = defaultdict(list)
    for snapshot in snapshots:
        if snapshot.manifest_list is not None:
            by_list[snapshot.manifest_list].append(snapshot.snapshot_id)
            continue
        for key in _named(pa.array(snapshot.manifests or (), pa.string()), keys):
            found[key].add(snapshot.snapshot_id)
    if not len(keys):
        return {}
    lists = [*by_list]
    shares = [tuple(lists[start : start + _LISTS_AT_ONCE]) for start in range(0, len(lists), _LISTS_AT_ONCE)]
    is_many = len(lists) * _ROWS_A_LIST > limits_of(spark).list_rows_count
    is_local = all(parse_location(one).scheme == "file" for one in lists)
    ran = run_tasks(
        started(spark) if is_many else None,
        shares,
        _naming_read_share,
        _Wanted(keys, storage),
        step="reading manifest lists",
        threads=LOCAL_REQUESTS_AT_ONCE if is_local else REQUESTS_AT_ONCE,
    )
    for share, answers in zip(shares, all_results(ran), strict=True):
        for location, named in zip(share, answers, strict=True):
            for key in named:
                found[key].update(by_list[location])
    return {key: frozenset(ids) for key, ids in found.items()}


def _naming_read_share(lists: tuple[str, ...], wanted: _Wanted) -> list[tuple[int, ...]]:
    """The keys that each list names; those of one schema, which most are of, are read together."""
    found: dict[str, tuple[int, ...]] = {}
    alike: dict[bytes, list[_naming_File]] = defaultdict(list)
    for location in lists:
        try:
            data = wanted.storage.read(location)
            header = read_header(data, location)
            alike[header.metadata["avro.schema"]].append((location, data, header))
        except (InvalidTableError, UnsupportedError):
            continue
    for schema, files in alike.items():
        found |= _named_together(schema, files, wanted.keys) or _named_one_by_one(files, wanted.keys)
    return [found.get(location, ()) for location in lists]


def _named_together(schema: bytes, files: Sequence[_naming_File], keys: Keys) -> dict[str, tuple[int, ...]] | None:
    """What lists name, read as columns; `None` where one of them needs a closer look."""
    if chosen_decoder()[0] is not ManifestDecoder.DATAFUSION:
        return None
    try:
        rows = StoredLists(schema).read([(data, header) for _, data, header in files])
    except (NotReadError, InvalidTableError):
        return None
    all_keys = location_keys(rows.paths)
    are_wanted = np.isin(all_keys, keys)
    found: dict[str, list[int]] = {location: [] for location, _, _ in files}
    for number, key in zip(rows.list_numbers[are_wanted].tolist(), all_keys[are_wanted].tolist(), strict=True):
        found[files[number][0]].append(key)
    return {location: tuple(some) for location, some in found.items()}


def _named_one_by_one(files: Sequence[_naming_File], keys: Keys) -> dict[str, tuple[int, ...]]:
    found = {}
    for location, data, _ in files:
        with suppress(InvalidTableError, UnsupportedError):
            paths = [row.manifest_path for row in read_manifest_list(data, location)]
            found[location] = _named(pa.array(paths, pa.string()), keys)
    return found


def _named(paths: pa.Array, keys: Keys) -> tuple[int, ...]:
    return tuple(np.intersect1d(location_keys(paths), keys).tolist())
