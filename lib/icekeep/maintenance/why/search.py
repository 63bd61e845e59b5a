"""What the path means that somebody asks about: a location in whatever spelling, or the end of one.

The entries that manifests have of one file. Each manifest is read once, however many snapshots name it.

A manifest or a list that cannot be read is told of, and all others are looked into: what is not found then may be there all
the same.

Until when expiration, by a table's own limits, keeps a snapshot that reads a file.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Self

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from icekeep.catalog.base import OperatorRules, Table
from icekeep.errors import IcekeepError, InvalidTableError, SafetyError, UnsupportedError, UsageError
from icekeep.maintenance.delete.options import ExpirationOptions
from icekeep.maintenance.delete.reachable import Reached, read_expired, read_reached, statistics_files
from icekeep.planning.decoder import chosen_decoder
from icekeep.planning.entries import (
    DecodeTask,
    EntryFilter,
    ReadBy,
    SpecFilter,
    chosen_reading,
    decode,
    entries_schema,
    few_entries,
    manifest_chunks,
    manifests_by_task,
    threads_count,
)
from icekeep.planning.manifest_lists import snapshots_naming
from icekeep.planning.spark.session import SparkSource, limits_of, started
from icekeep.planning.spark.tasks import all_results, run_tasks
from icekeep.spec.manifests.structs import ManifestFile
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.retention import (
    MAX_REF_AGE_MS,
    MAX_SNAPSHOT_AGE_MS,
    MIN_SNAPSHOTS_TO_KEEP,
    RetentionPolicy,
    default_limit,
    select_expired,
    writers_of,
)
from icekeep.spec.snapshots import MAIN, SnapshotRef
from icekeep.spec.types import DAY_MS
from icekeep.storage.location_keys import location_keys, path_keys
from icekeep.storage.locations import canonical_or_text, is_location

_NAMED = 3


class Target(msgspec.Struct, frozen=True):
    """A path that is asked about; it can be pickled.

    Attributes:
        text: as it was given.
        name: its last part: whatever is meant ends so.
        path_key: of a location; `None` where it can only be the end of one.
    """

    text: str
    name: str
    path_key: int | None

    @classmethod
    def of(cls, text: object) -> Self:
        """Raises `UsageError` for what is no path of a file."""
        if not isinstance(text, str) or not text.strip() or text.endswith("/") or "\0" in text:
            raise UsageError(f"{text!r} is no file; give the location of a file, or the end of it")
        key = int(path_keys(pa.array([text]))[0]) if is_location(text) else None
        return cls(text, text.rpartition("/")[2], key)

    @property
    def is_location(self) -> bool:
        """Whether it names one file, and is not the end of a name."""
        return self.path_key is not None

    @property
    def end(self) -> str:
        """What every location that may be meant ends with."""
        return self.name if self.is_location else self.text

    def mask(self, locations: pa.Array | pa.ChunkedArray) -> NDArray[np.bool_]:
        """Which of some locations may be meant."""
        found: NDArray[np.bool_] = np.array(pc.ends_with(locations, self.end).to_pylist(), bool)
        if self.path_key is None or not found.any():
            return found
        rows = np.flatnonzero(found)
        some = locations.take(pa.array(rows))
        ends = np.array(pc.ends_with(some, self.text).to_pylist(), bool)
        found[rows] = ends | np.array([self._has_its_path(location) for location in some.to_pylist()], bool)
        return found

    def among(self, locations: Iterable[str]) -> list[str]:
        """Those of some locations that may be meant, each once."""
        known = [*dict.fromkeys(location for location in locations if location.endswith(self.end))]
        return pa.array(known, pa.string()).filter(pa.array(self.mask(pa.array(known, pa.string())))).to_pylist()

    def chosen(self, locations: Iterable[str]) -> str | None:
        """The one location that is meant among those that may be; `None` where there is none.

        Raises:
            UsageError: several end so.
        """
        by_file = {canonical_or_text(location): location for location in sorted(locations, reverse=True)}
        if self.is_location:
            if (found := by_file.get(canonical_or_text(self.text))) is not None:
                return found
            of_path = [location for location in by_file.values() if self._has_its_path(location)]
            if len(of_path) == 1:
                return of_path[0]
        names = sorted(by_file.values())
        if len(names) > 1:
            more = " and others" if len(names) > _NAMED else ""
            raise UsageError(
                f"{len(names)} files end with {self.text!r}: {', '.join(map(repr, names[:_NAMED]))}{more}; give more of it"
            )
        return names[0] if names else None

    def _has_its_path(self, location: str) -> bool:
        try:
            return int(path_keys(pa.array([location]))[0]) == self.path_key
        except InvalidTableError:
            return False


def same_file(location: str, other: str) -> bool:
    """Whether two locations are spellings of one."""
    # Asked of a million manifests.
    if location.rpartition("/")[2] != other.rpartition("/")[2]:
        return False
    return canonical_or_text(location) == canonical_or_text(other)


_COLUMNS = frozenset({"manifest_path", "status", "snapshot_id", "content", "file_path", "file_format"})
_MAX_NAMES = 100
"""So many files are brought from each share that end as asked: more than one of them are refused."""

_STAYS = "not everything that the table leads to is known"
_SINCE = "since not everything can be read: "


class ReadableManifests(msgspec.Struct, frozen=True):
    """All manifests of a table that are known, and what of the lists could not be read, each with the reason."""

    reached: Reached
    unreadable: Mapping[str, str]

    @property
    def files(self) -> tuple[ManifestFile, ...]:
        return self.reached.manifests

    def unsure(self, metadata: TableMetadata) -> frozenset[int]:
        """The snapshots whose lists could not be read."""
        gone = {*self.unreadable}
        return frozenset(
            s.snapshot_id
            for s in metadata.snapshots
            if s.manifest_list in gone or not gone.isdisjoint(s.manifests or ())
        )


class Entries(msgspec.Struct, frozen=True):
    """The entries of files that may be meant: rows of some of `planning.manifests.ENTRIES`, deleted ones too."""

    rows: pa.Table
    unreadable: Mapping[str, str]

    def of_file(self, path: str) -> pa.Table:
        """Those of one file, however it is spelled."""
        return self.rows.filter(_is_file(self.rows["file_path"], path))


class _Search(msgspec.Struct, frozen=True):
    decode: DecodeTask
    target: Target


class _Share(msgspec.Struct):
    rows: pa.Table
    unreadable: dict[str, str]


def read_manifests(table: Table, spark: SparkSource, *, trust_manifest_list: bool) -> ReadableManifests:
    """Read the manifest lists of all snapshots; where not all are whole, those that can be read, and which cannot."""
    metadata, storage = table.metadata, table.storage
    try:
        reached = read_reached(
            metadata,
            table.metadata_location,
            storage,
            spark,
            trust_manifest_list=trust_manifest_list,
            stays=_STAYS,
        )
        return ReadableManifests(reached, {})
    except (SafetyError, UnsupportedError) as error:
        some = read_expired(
            metadata, metadata.snapshots, storage, spark, statistics=statistics_files(metadata), metadata_files=()
        )
        told = dict.fromkeys(some.unreadable, "it is missing or damaged")
        return ReadableManifests(some, told or _not_whole(error, metadata))


def _not_whole(error: IcekeepError, metadata: TableMetadata) -> dict[str, str]:
    """The list that can be read, and is not what its snapshot or other lists say."""
    snapshot = metadata.snapshots_by_id.get(error.facts.get("snapshot_id", 0))
    location = error.facts.get("location") or (None if snapshot is None else snapshot.manifest_list)
    return {location or "a manifest list": error.message.partition(_SINCE)[2] or error.message}


def find_entries(manifests: Sequence[ManifestFile], table: Table, spark: SparkSource, target: Target) -> Entries:
    """Look for a file in manifests: few on the driver, in threads, many in Spark tasks.

    Raises:
        UnavailableError: the store fails for now.
    """
    types, unreadable = _partition_types(manifests, table.metadata)
    # Alike ones are decoded together, the newest first.
    known = sorted(
        (m for m in manifests if m.partition_spec_id in types),
        key=lambda m: (m.content, m.partition_spec_id, m.sequence_number or 0),
        reverse=True,
    )
    reading = chosen_reading(known, limits_of(spark).folded_entries_count)
    wanted = EntryFilter(specs=types, live_only=False, path_end=target.end)
    task = DecodeTask(manifests=(), wanted=wanted, columns=_COLUMNS, storage=table.storage, decoder=reading.decoder)
    session = None if reading.by is ReadBy.DRIVER else started(spark)
    shares = [*manifest_chunks(known)] if session is None else manifests_by_task(known, session)
    threads = threads_count(m.manifest_path for m in known)
    ran = run_tasks(session, shares, _look, _Search(task, target), step="looking for a file", threads=threads)
    found = all_results(ran)
    for share in found:
        unreadable |= share.unreadable
    return Entries(pa.concat_tables([entries_schema(_COLUMNS).empty_table(), *(s.rows for s in found)]), unreadable)


def whole_entries(manifests: Sequence[ManifestFile], table: Table, path: str, columns: Iterable[str]) -> pa.Table:
    """The live entries of one file in a few manifests, with whatever columns of `planning.manifests.ENTRIES`."""
    types, _ = _partition_types(manifests, table.metadata)
    wanted = EntryFilter(specs=types, path_end=path.rpartition("/")[2])
    rows = few_entries(table.storage, manifests, wanted, {*columns, "file_path"}, chosen_decoder()[0])
    return rows.filter(_is_file(rows["file_path"], path))


def snapshots_of(
    paths: Iterable[str], table: Table, spark: SparkSource, listed: Sequence[ManifestFile]
) -> dict[str, frozenset[int]]:
    """The ids of the snapshots that name each of some manifests, which never name one that was made after them."""
    names = [*dict.fromkeys(paths)]
    if not names:
        return {}
    numbers = {m.manifest_path: m.sequence_number or 0 for m in listed}
    least = min(numbers.get(name, 0) for name in names)
    asked = [snapshot for snapshot in table.metadata.snapshots if snapshot.sequence_number >= least]
    found = snapshots_naming(table.storage, spark, asked, names)
    if len(found) < len(names) or not all(found.values()):
        # A number that is wrong hides snapshots, and what no snapshot names would be taken for garbage.
        found = snapshots_naming(table.storage, spark, table.metadata.snapshots, names)
    keys = location_keys(pa.array(names, pa.string())).tolist()
    return {name: found.get(key, frozenset()) for name, key in zip(names, keys, strict=True)}


def _partition_types(
    manifests: Iterable[ManifestFile], metadata: TableMetadata
) -> tuple[dict[int, SpecFilter], dict[str, str]]:
    """Those of all specs, and the manifests whose spec is not there."""
    types: dict[int, SpecFilter] = {}
    unreadable: dict[str, str] = {}
    for manifest in manifests:
        spec_id = manifest.partition_spec_id
        try:
            types.setdefault(spec_id, SpecFilter(metadata.partition_type(spec_id)))
        except InvalidTableError as error:
            unreadable[manifest.manifest_path] = error.message
    return types, unreadable


def _look(manifests: Sequence[ManifestFile], search: _Search) -> _Share:
    try:
        return _Share(_rows(manifests, search), {})
    except (InvalidTableError, UnsupportedError) as error:
        if len(manifests) == 1:
            return _Share(entries_schema(_COLUMNS).empty_table(), {manifests[0].manifest_path: error.message})
    found = [_look([manifest], search) for manifest in manifests]
    rows = pa.concat_tables(share.rows for share in found)
    return _Share(rows, {path: why for share in found for path, why in share.unreadable.items()})


def _rows(manifests: Sequence[ManifestFile], search: _Search) -> pa.Table:
    some = []
    names: set[str] = set()
    for decoded in decode(msgspec.structs.replace(search.decode, manifests=tuple(manifests))):
        rows = decoded.entries.filter(pa.array(search.target.mask(decoded.entries["file_path"])))
        new = {*rows["file_path"].to_pylist()} - names
        if rows.num_rows and (not new or len(names) < _MAX_NAMES):
            names |= new
            some.append(rows)
    return pa.Table.from_batches(some, entries_schema(_COLUMNS))


def _is_file(paths: pa.ChunkedArray, path: str) -> pa.Array:
    """Which paths are spellings of one."""
    return pa.array(location_keys(paths) == location_keys(pa.array([path]))[0], pa.bool_())


_FAR_MS = 36_500 * DAY_MS
"""What is kept for a hundred years is kept for good."""


class SnapshotRetention(msgspec.Struct, frozen=True):
    """How long a file is kept by the snapshots that read it, if nothing else is committed.

    Attributes:
        until_ms: the first moment at which a run of `expire_snapshots` drops the last of them, epoch milliseconds; a moment that
            is not in the future: the next run does. `None`: none ever does.
        by: the references that keep one for good.
    """

    until_ms: int | None
    by: tuple[str, ...] = ()


def kept_until(
    metadata: TableMetadata, rules: OperatorRules, readers: frozenset[int], now_ms: int
) -> SnapshotRetention:
    """Ask `select_expired`, as `expire_snapshots` without arguments does, at the moments at which its answer may change.

    Raises as that does.

    A snapshot that a branch has dropped and that comes to be on none, since the branch has expired before its snapshots would
    have, counts as kept.
    """
    policy = ExpirationOptions().policy(rules)

    def left(at_ms: int) -> frozenset[int]:
        return readers - select_expired(metadata, policy, at_ms).snapshot_ids

    if not left(now_ms):
        return SnapshotRetention(now_ms)
    moments = sorted({at for at in _moments(metadata, policy) if now_ms < at < now_ms + _FAR_MS})
    last_ms = moments[-1] if moments else now_ms
    if for_good := left(last_ms):
        expired = select_expired(metadata, policy, last_ms).ref_names
        refs = {name: ref for name, ref in metadata.refs.items() if name not in expired}
        return SnapshotRetention(None, tuple(_keepers(metadata, refs.items(), for_good)))
    low, high = 0, len(moments) - 1
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if left(moments[middle]) else (low, middle)
    return SnapshotRetention(moments[low])


def _moments(metadata: TableMetadata, policy: RetentionPolicy) -> Iterable[int]:
    """When a snapshot or a reference may become too old, and a writer's progress too: right after it has the age."""
    ages = {ref.max_snapshot_age_ms for ref in metadata.refs.values()} - {None}
    ages |= {default_limit(metadata, MAX_SNAPSHOT_AGE_MS)}
    for snapshot in metadata.snapshots:
        yield from (snapshot.timestamp_ms + age + 1 for age in ages if age is not None)
        yield snapshot.timestamp_ms + policy.least_age_ms + 1
        if writers_of(snapshot, policy.progress_keys):
            yield snapshot.timestamp_ms + policy.keep_writer_progress_ms
    for ref in metadata.refs.values():
        head = metadata.snapshots_by_id.get(ref.snapshot_id)
        age = default_limit(metadata, MAX_REF_AGE_MS) if ref.max_ref_age_ms is None else ref.max_ref_age_ms
        if head is not None:
            yield head.timestamp_ms + age + 1


def _keepers(
    metadata: TableMetadata, refs: Iterable[tuple[str, SnapshotRef]], readers: frozenset[int]
) -> Iterable[str]:
    """How each reference that keeps a snapshot for good is called."""
    for name, ref in sorted(refs, key=lambda item: (item[0] != MAIN, item[0])):
        if ref.snapshot_id in readers:
            yield f"{ref.type} {name}"
        elif ref.is_branch:
            count = ref.min_snapshots_to_keep
            count = default_limit(metadata, MIN_SNAPSHOTS_TO_KEEP) if count is None else count
            behind = islice(metadata.ancestors(ref.snapshot_id), 1, max(1, count))
            if any(snapshot.snapshot_id in readers for snapshot in behind):
                yield f"branch {name}, which keeps its newest snapshots whatever their age"
