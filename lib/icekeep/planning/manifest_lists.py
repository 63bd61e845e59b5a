"""Manifest lists: the manifests that snapshots lead to, each once, and which snapshots name some manifests.

Most lists of a table repeat the manifests of the one before, so lists are decoded as columns, those of one Avro schema
together, and only rows with news become `ManifestFile`s. Whatever looks wrong, or is beyond DataFusion, is read by
`spec.manifests.read.read_manifest_list`, list by list, which gives the rows, or the exact error.

Retained lists must be read in full, or the files that they lead to would be taken for garbage. The length of a manifest list is
not recorded, and one that is cut between two blocks reads as a sound, shorter one; only the file totals in the snapshot's
summary show it.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeAlias, TypeVar

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from icekeep.commit.summary import FILE_TOTALS, check_file_total
from icekeep.errors import IcekeepError, InvalidTableError, UnsupportedError
from icekeep.planning.decoder import (
    Layout,
    ManifestDecoder,
    NotReadError,
    chosen_decoder,
    doubtful,
    flat_schema,
    note_slow_read,
    read_together,
)
from icekeep.planning.spark.session import SparkSource, limits_of, started
from icekeep.planning.spark.tasks import all_results, run_tasks
from icekeep.planning.spark.workers import LIST_ROWS, tasks_count
from icekeep.spec.avro import AvroHeader, read_header
from icekeep.spec.collections import cut_evenly, each_once
from icekeep.spec.manifests.read import inspect_manifest, read_manifest_list, stored_fields, without_null
from icekeep.spec.manifests.structs import MANIFEST_FILE_FIELDS, FieldSummary, ManifestContent, ManifestFile
from icekeep.spec.snapshots import Snapshot
from icekeep.spec.types import MIB
from icekeep.storage.base import LOCAL_REQUESTS_AT_ONCE, Storage
from icekeep.storage.location_keys import Keys, location_keys
from icekeep.storage.locations import are_local, canonical

Rows: TypeAlias = NDArray[np.int64]

UNKNOWN = -1
"""The live files of a manifest whose list does not count them."""

_REQUIRED = tuple(f.name for f in MANIFEST_FILE_FIELDS if f.required_since == 1)
_SUMMARY_FIELDS = {
    509: ("contains_null", "boolean"),
    518: ("contains_nan", "boolean"),
    510: ("lower_bound", "bytes"),
    511: ("upper_bound", "bytes"),
}
_ARROW_KINDS: dict[str, Callable[[pa.DataType], bool]] = {
    "int": pa.types.is_integer,
    "long": pa.types.is_integer,
    "string": lambda type_: type_ in (pa.string(), pa.large_string(), pa.string_view()),
    "binary": lambda type_: type_ in (pa.binary(), pa.large_binary(), pa.binary_view()),
}

_LIST_ROWS, _REMOTE_LIST_ROWS = 100, 1_000
"""The fixed cost of a list, in rows: a remote one takes a request."""

_MIN_TASK_LISTS = 250
_BUNDLE_LISTS = 128
_BUNDLE_BYTES = 4 * MIB
_REMOTE_THREADS = 32


class ListedRows(msgspec.Struct, frozen=True):
    """Rows of some manifest lists, one list after another.

    Attributes:
        list_numbers: the index of each row's list.
        live_counts: added and existing files, or `UNKNOWN`.
        decode: decodes some of the rows; raises `NotReadError` if fastavro must decode them.
    """

    list_numbers: Rows
    paths: pa.Array
    lengths: Rows
    contents: Rows
    live_counts: Rows
    decode: Callable[[Rows], list[ManifestFile]]


def rows_of(manifests: Sequence[ManifestFile]) -> ListedRows:
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
    """Decodes lists of one Avro schema, which is that of most lists of a table."""

    def __init__(self, schema_json: bytes) -> None:
        """Raises `NotReadError` if fastavro must decode lists of the schema, which is given as JSON."""
        with doubtful():
            schema = msgspec.json.decode(schema_json)
            stored = stored_fields(schema)
            flat, flat_names, _ = flat_schema(schema, "")
            fields = [f for f in MANIFEST_FILE_FIELDS if f.field_id in stored]
            self._names = {f.name: flat_names[stored[f.field_id]["name"]] for f in fields}
            if any(name not in self._names for name in _REQUIRED):
                raise NotReadError("it lacks a field that each row must have")
            self._kinds = {f.name: _ARROW_KINDS[str(f.type)] for f in fields if str(f.type) in _ARROW_KINDS}
            partitions = next((stored[f.field_id] for f in fields if f.name == "partitions"), None)
            self._summary_names = {} if partitions is None else _summary_names(partitions["type"])
            self._layout = Layout(flat, tuple(self._names.values()))

    def read(self, files: Iterable[tuple[bytes, AvroHeader]]) -> ListedRows:
        """The rows of some lists; raises `NotReadError` if fastavro must decode one, or all are empty."""
        (batch, _), counts = read_together(files, self._layout)
        columns = {name: batch[flat_name] for name, flat_name in self._names.items()}
        for name, is_right in self._kinds.items():
            if not is_right(columns[name].type):
                raise NotReadError(f"field {name!r} is stored as {columns[name].type}")
        if any(columns[name].null_count for name in _REQUIRED):
            raise NotReadError("a row lacks a field that it must have")

        def numbers(column: pa.Array | None, missing: int) -> Rows:
            if column is None:
                return np.full(batch.num_rows, missing, np.int64)
            return pc.fill_null(column.cast(pa.int64()), missing).to_numpy()

        contents = numbers(columns.get("content"), 0)
        if not np.isin(contents, [*ManifestContent]).all():
            raise NotReadError("a row has a content that the spec does not know")
        added, existing = (columns.get(f"{status}_files_count") for status in ("added", "existing"))
        live = None if added is None or existing is None else pc.add(added.cast(pa.int64()), existing.cast(pa.int64()))
        return ListedRows(
            np.repeat(np.arange(len(counts)), counts),
            columns["manifest_path"].cast(pa.string()),
            numbers(columns["manifest_length"], 0),
            contents,
            numbers(live, UNKNOWN),
            lambda rows: self._decode(columns, rows),
        )

    def _decode(self, columns: dict[str, pa.Array], rows: Rows) -> list[ManifestFile]:
        values = {name: column.take(pa.array(rows)).to_pylist() for name, column in columns.items()}
        # Version 1 has no sequence numbers: readers take 0 (spec, "Reading v1 metadata for v2").
        for name in ("content", "sequence_number", "min_sequence_number"):
            values[name] = [number or 0 for number in values.get(name) or [0] * len(rows)]
        values["content"] = [*map(ManifestContent, values["content"])]
        if "partitions" in values:
            values["partitions"] = [None if raw is None else self._summaries(raw) for raw in values["partitions"]]
        return [ManifestFile(**dict(zip(values, row, strict=True))) for row in zip(*values.values(), strict=True)]

    def _summaries(self, raw: list[dict[str, Any]]) -> tuple[FieldSummary, ...]:
        if None in raw:
            raise NotReadError("a summary of a partition field is null")
        names = self._summary_names.items()
        return tuple(FieldSummary(**{name: summary[stored] for name, stored in names}) for summary in raw)


def _summary_names(schema: Any) -> dict[str, str]:
    """The names of the fields of `field_summary` in a list, by those of the spec."""
    array = without_null(schema)
    record = without_null(array["items"])
    if (array["type"], record["type"]) != ("array", "record"):
        raise NotReadError("summaries of partition fields are laid out in another way")
    stored = stored_fields(record)
    if 509 not in stored:
        raise NotReadError("summaries lack a part that they must have")
    for field_id, (_, kind) in _SUMMARY_FIELDS.items():
        if field_id in stored and stored[field_id]["type"] not in (kind, ["null", kind], [kind, "null"]):
            raise NotReadError("a part of a summary is stored as something else")
    return {name: stored[field_id]["name"] for field_id, (name, _) in _SUMMARY_FIELDS.items() if field_id in stored}


class _List(msgspec.Struct, frozen=True):
    """A manifest list, or the manifests that a snapshot of version 1 names itself.

    Attributes:
        location: of the list; empty if there is none.
        totals: live files of each kind in the summaries of the snapshots that name the list, by snapshot id.
        manifests: of a snapshot without a list.
    """

    location: str
    totals: Mapping[int, Mapping[ManifestContent, str]]
    manifests: tuple[str, ...] = ()

    def __str__(self) -> str:
        if not self.location:
            return f"snapshot {next(iter(self.totals))}, which has no manifest list,"
        return f"manifest list {self.location!r}"


def _lists_of(snapshots: Iterable[Snapshot]) -> tuple[list[_List], list[_List]]:
    """The lists of snapshots, each once, and those of snapshots without a list file."""
    by_key: dict[str, _List] = {}
    unlisted = []
    for snapshot in snapshots:
        summary = snapshot.summary or {}
        totals = {snapshot.snapshot_id: {c: summary[name] for c, name in FILE_TOTALS.items() if name in summary}}
        if snapshot.manifest_list is None:
            unlisted.append(_List("", totals, tuple(snapshot.manifests or ())))
            continue
        key = canonical(snapshot.manifest_list)
        listed = by_key.get(key, _List(snapshot.manifest_list, {}))
        by_key[key] = _List(listed.location, {**listed.totals, **totals})
    return [*by_key.values()], unlisted


C = TypeVar("C", bound="_DistinctManifests | _Naming")
"""Collects the rows of lists; with `check` a list that cannot be read is an error."""


def _collect(new: Callable[[], C], lists: Sequence[_List], storage: Storage, spark: SparkSource) -> C:
    """Read manifest lists into a new collector, few on the driver, many in Spark tasks."""
    collector = new()
    reader = _ListReader(storage, collector)
    # The newest lists are mostly the longest; their size is an estimate for the others.
    newest, others = lists[-_BUNDLE_LISTS:], lists[:-_BUNDLE_LISTS]
    reader.read(newest)
    rows_count = reader.rows_count // max(1, len(newest))
    cost = len(others) * (rows_count + (_LIST_ROWS if are_local(one.location for one in others) else _REMOTE_LIST_ROWS))
    if cost <= limits_of(spark).list_rows_count:
        reader.read(others)
        return collector
    session = started(spark)
    # Neighbours stay together, since they share most manifests.
    bins_count = max(1, min(tasks_count(session, cost, LIST_ROWS), len(others) // _MIN_TASK_LISTS))
    shares = [*map(tuple, cut_evenly(others, each_once, bins_count))]
    for part in all_results(run_tasks(session, shares, _read_share, (storage, new), step="reading manifest lists")):
        collector.merge(part)
    return collector


def _read_share(lists: tuple[_List, ...], shared: tuple[Storage, Callable[[], C]]) -> C:
    storage, new = shared
    collector = new()
    _ListReader(storage, collector).read(lists)
    return collector


class _ListReader:
    """Reads manifest lists into a collector, and counts their rows."""

    def __init__(self, storage: Storage, collector: "_DistinctManifests | _Naming") -> None:
        self._storage, self._collector = storage, collector
        self.rows_count = 0
        self._decoder, _ = chosen_decoder()
        self._by_schema: dict[bytes, StoredLists] = {}

    def read(self, lists: Sequence[_List]) -> None:
        """Read lists, some megabytes at a time, while the next ones are fetched."""
        bundles = [lists[start : start + _BUNDLE_LISTS] for start in range(0, len(lists), _BUNDLE_LISTS)]
        # A thread that reads from a remote store mostly waits.
        pool = ThreadPoolExecutor(
            LOCAL_REQUESTS_AT_ONCE if are_local(one.location for one in lists) else _REMOTE_THREADS
        )
        try:
            fetched = deque(pool.map(self._fetch, bundle) for bundle in bundles[:1])
            for number, bundle in enumerate(bundles):
                fetched.extend(pool.map(self._fetch, following) for following in bundles[number + 1 : number + 2])
                files, size_bytes = [], 0
                for one, data in zip(bundle, fetched.popleft(), strict=True):
                    files.append((one, data))
                    size_bytes += len(data) if isinstance(data, bytes) else 0
                    if size_bytes >= _BUNDLE_BYTES:
                        self._add(files)
                        files, size_bytes = [], 0
                self._add(files)
        finally:
            # After an error or an interrupt, no more lists are fetched.
            pool.shutdown(wait=True, cancel_futures=True)

    def _fetch(self, one: _List) -> bytes | IcekeepError:
        try:
            return self._storage.read(one.location)
        except (InvalidTableError, UnsupportedError) as error:
            return error

    def _add(self, files: Iterable[tuple[_List, bytes | IcekeepError]]) -> None:
        by_schema: dict[bytes, list[tuple[_List, bytes, AvroHeader]]] = defaultdict(list)
        for one, data in files:
            try:
                if isinstance(data, IcekeepError):
                    raise data
                header = read_header(data, one.location)
                by_schema[header.metadata["avro.schema"]].append((one, data, header))
            except (InvalidTableError, UnsupportedError) as error:
                self._collector.refuse(one.location, error)
        for schema, group in by_schema.items():
            reason = None
            if self._decoder is ManifestDecoder.DATAFUSION:
                reason = self._add_together(schema, group)
                if reason is None:
                    continue
            for one, data, _ in group:
                self._add_alone(one, data, reason)

    def _add_together(self, schema: bytes, files: Sequence[tuple[_List, bytes, AvroHeader]]) -> Exception | None:
        """Add lists of one schema, or return why fastavro must decode them."""
        try:
            if schema not in self._by_schema:
                self._by_schema[schema] = StoredLists(schema)
            rows = self._by_schema[schema].read((data, header) for _, data, header in files)
            self._collector.add(rows, [one for one, _, _ in files])
        except NotReadError as error:
            return error
        except InvalidTableError as error:
            if self._collector.check:
                raise
            return error
        self.rows_count += len(rows.paths)
        return None

    def _add_alone(self, one: _List, data: bytes, reason: Exception | None) -> None:
        try:
            rows = rows_of(read_manifest_list(data, one.location))
            self._collector.add(rows, [one])
        except InvalidTableError as error:
            self._collector.refuse(one.location, error)
            return
        if reason is not None:
            note_slow_read(one.location, reason)
        self.rows_count += len(rows.paths)


class ListedManifests(msgspec.Struct, frozen=True, kw_only=True):
    """The manifests that some snapshots lead to.

    Attributes:
        manifests: each once.
        keys: the `location_keys` of their paths, ascending, in the same order.
        untotalled_count: checked snapshots for which a total or a count was missing.
        unreadable: lists, or manifests of a snapshot without a list, that could not be read.
    """

    manifests: tuple[ManifestFile, ...]
    keys: Keys
    untotalled_count: int = 0
    unreadable: tuple[str, ...] = ()


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

    Of several rows of one manifest the one with the most live files is returned.

    Args:
        check: for retained snapshots: a list that is damaged, cut short, gone, or contradicts another is an error, and not
            only reported.
        trust: do not compare the lists with the totals of the summaries.
        without: keys of manifests that are left out.
    """
    unwanted = np.unique(without) if without is not None else np.empty(0, np.int64)
    lists, unlisted = _lists_of(snapshots)
    distinct = _collect(partial(_DistinctManifests, unwanted, check, trust), lists, storage, spark)
    inspected: dict[str, ManifestFile] = {}
    for one in unlisted:
        for location in one.manifests:
            if location in inspected:
                continue
            try:
                # The key of a location is asked for here, since one that is no location is a damaged table.
                if check or not distinct.are_unwanted(location_keys(pa.array([location], pa.string())))[0]:
                    # No list says what it holds.
                    inspected[location] = inspect_manifest(storage.read(location), location)
            except (InvalidTableError, UnsupportedError) as error:
                distinct.refuse(location, error)
        distinct.add(rows_of([inspected[location] for location in one.manifests if location in inspected]), [one])
    manifests = dict(sorted(distinct.by_key.items()))
    return ListedManifests(
        manifests=tuple(manifests.values()),
        keys=np.array([*manifests], np.int64),
        untotalled_count=distinct.untotalled_count,
        unreadable=tuple(distinct.unreadable),
    )


class _DistinctManifests:
    """Collects manifests, each once; only a row with more live files replaces an earlier one.

    Manifests with `unwanted` keys, which are sorted, are left out.

    Attributes:
        check: lists that cannot be read, contradict each other, or do not agree with the totals of their snapshots are errors.
    """

    def __init__(self, unwanted: Keys, check: bool, trust: bool) -> None:
        self.check, self._trust, self._unwanted = check, trust, unwanted
        self.by_key: dict[int, ManifestFile] = {}
        self.untotalled_count = 0
        self.unreadable: list[str] = []

    def __getstate__(self) -> dict[str, Any]:
        """As a task answers: without what it was given, which may be millions of keys for each of a hundred tasks."""
        return {**self.__dict__, "_unwanted": np.empty(0, np.int64)}

    def refuse(self, location: str, error: IcekeepError) -> None:
        if self.check:
            raise error
        self.unreadable.append(location)

    def merge(self, other: Any) -> None:
        self.untotalled_count += other.untotalled_count
        self.unreadable += other.unreadable
        self._add(rows_of([*other.by_key.values()]), ["another manifest list"])

    def add(self, rows: ListedRows, lists: Sequence[_List]) -> None:
        """Add rows of lists, or none of them if it raises `NotReadError`."""
        self._add(rows, [str(one) for one in lists])
        if self.check:
            self._check_totals(rows, lists)

    def _add(self, rows: ListedRows, names: Sequence[str]) -> None:
        coded = rows.paths.dictionary_encode()
        codes, path_keys = coded.indices.to_numpy(), location_keys(coded.dictionary)
        remaining = np.flatnonzero(~self.are_unwanted(path_keys)[codes])
        best = self._best_of_each(rows, codes, remaining, names)
        keys = path_keys[codes[best]].tolist()
        new = [self._is_better(rows, row, key, names) for row, key in zip(best.tolist(), keys, strict=True)]
        new_keys = (key for key, is_new in zip(keys, new, strict=True) if is_new)
        for key, manifest in zip(new_keys, rows.decode(best[np.array(new, bool)]), strict=True):
            # Two spellings of one path may come together.
            if key not in self.by_key or self._is_better(rows_of([manifest]), 0, key, ["another manifest list"]):
                self.by_key[key] = manifest

    def are_unwanted(self, keys: Keys) -> NDArray[np.bool_]:
        if not len(self._unwanted):
            return np.zeros(len(keys), bool)
        indices = np.minimum(np.searchsorted(self._unwanted, keys), len(self._unwanted) - 1)
        return self._unwanted[indices] == keys

    def _best_of_each(self, rows: ListedRows, codes: NDArray[np.int32], candidates: Rows, names: Sequence[str]) -> Rows:
        """The row of each path with the most live files; `UNKNOWN` is the greatest count."""
        order = candidates[np.lexsort((rows.live_counts[candidates].view(np.uint64), codes[candidates]))]
        is_same = codes[order][1:] == codes[order][:-1]
        if self.check:
            lengths = rows.lengths[order]
            differing = np.flatnonzero(is_same & (lengths[1:] != lengths[:-1]))
            if len(differing):
                row, other = (int(order[differing[0] + step]) for step in (1, 0))
                raise _contradiction(rows, row, int(rows.lengths[other]), names)
        return order[np.append(~is_same, np.ones(min(1, len(order)), bool))]

    def _is_better(self, rows: ListedRows, row: int, key: int, names: Sequence[str]) -> bool:
        """Whether a row is of a new manifest, or counts more live files than the collected one."""
        collected = self.by_key.get(key)
        if collected is None:
            return True
        if self.check:
            if int(rows.lengths[row]) != collected.manifest_length:
                raise _contradiction(rows, row, collected.manifest_length, names)
            path = rows.paths[row].as_py()
            if path != collected.manifest_path and canonical(path) != canonical(collected.manifest_path):
                # Once in billions of tables: the files of the other one would be taken for garbage.
                raise UnsupportedError(
                    f"manifests {collected.manifest_path!r} and {path!r} cannot be told apart by their keys"
                )
        count, collected_count = int(rows.live_counts[row]), collected.live_files_count
        return collected_count is not None and (count == UNKNOWN or count > collected_count)

    def _check_totals(self, rows: ListedRows, lists: Sequence[_List]) -> None:
        """Compare the live files of each list with the totals of its snapshots, where there are any."""
        counts: dict[ManifestContent, list[int | None]] = {}
        for content in FILE_TOTALS:
            mine = rows.contents == content
            numbers, live = rows.list_numbers[mine], rows.live_counts[mine]
            # A list that lacks the count of one of its manifests has none.
            lacks = np.bincount(numbers, live == UNKNOWN, len(lists)).tolist()
            sums = np.bincount(numbers, live, len(lists)).astype(np.int64).tolist()
            counts[content] = [None if lacking else total for lacking, total in zip(lacks, sums, strict=True)]
        for number, one in enumerate(lists):
            for snapshot_id, totals in one.totals.items():
                is_totalled = True
                for content in FILE_TOTALS:
                    count, recorded = counts[content][number], totals.get(content)
                    if count is None or recorded is None:
                        is_totalled = False
                    elif not self._trust:
                        otherwise = "; if the total is wrong, --trust-manifest-list goes by the list"
                        check_file_total(str(one), content, count, recorded, snapshot_id, otherwise=otherwise)
                self.untotalled_count += not is_totalled


def _contradiction(rows: ListedRows, row: int, other: int, names: Sequence[str]) -> InvalidTableError:
    path, name = rows.paths[row].as_py(), names[int(rows.list_numbers[row])]
    return InvalidTableError(
        f"manifest {path!r} has {int(rows.lengths[row])} bytes by {name}, but {other} by another manifest list",
        location=path,
    )


def snapshots_naming(
    storage: Storage, spark: SparkSource, snapshots: Sequence[Snapshot], manifests: Sequence[str]
) -> dict[int, frozenset[int]]:
    """The ids of the snapshots that name each of some manifests, by the `location_keys` of these.

    Unreadable lists are skipped: the caller knows them from `listed_manifests`.
    """
    if not manifests:
        return {}
    keys = np.unique(location_keys(pa.array(manifests, pa.string())))
    lists, unlisted = _lists_of(snapshots)
    naming = _collect(partial(_Naming, keys), lists, storage, spark)
    for one in unlisted:
        for key in np.intersect1d(keys, location_keys(pa.array(one.manifests, pa.string()))).tolist():
            naming.snapshot_ids[key].update(one.totals)
    return {key: frozenset(ids) for key, ids in naming.snapshot_ids.items()}


class _Naming:
    """Collects the snapshots that name manifests of some keys."""

    check = False

    def __init__(self, keys: Keys) -> None:
        self._keys = keys
        self.snapshot_ids: dict[int, set[int]] = defaultdict(set)

    def add(self, rows: ListedRows, lists: Sequence[_List]) -> None:
        keys = location_keys(rows.paths)
        is_named = np.isin(keys, self._keys)
        for number, key in zip(rows.list_numbers[is_named].tolist(), keys[is_named].tolist(), strict=True):
            self.snapshot_ids[key].update(lists[number].totals)

    def merge(self, other: Any) -> None:
        for key, ids in other.snapshot_ids.items():
            self.snapshot_ids[key] |= ids

    def refuse(self, location: str, error: IcekeepError) -> None:
        pass
