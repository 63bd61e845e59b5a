"""Finds one file by the path that was asked for: the manifests and entries that name it.

Each manifest is read once, however many snapshots name it. One that cannot be read is reported, and all others are searched:
what is not found then may be there all the same.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Self

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from icekeep.catalog.base import Table
from icekeep.errors import InvalidTableError, SafetyError, UnsupportedError, UsageError
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
from icekeep.storage.location_keys import location_keys, path_keys
from icekeep.storage.locations import canonical_or_text, is_location

_NAMES_SHOWN = 3
_COLUMNS = frozenset({"manifest_path", "status", "snapshot_id", "content", "file_path", "file_format"})
_MAX_NAMES = 100
"""Of each share of manifests at most this many matching files are kept: more than one of them are refused."""

_PROBLEM = "not everything that the table leads to is known"
_BEFORE_CAUSE = "since not everything can be read: "


class Target(msgspec.Struct, frozen=True):
    """The path that was asked for; it can be pickled.

    Attributes:
        end: what every matching location ends with: the name of a location, or the whole text.
        path_key: of a location; `None` for the end of one.
    """

    text: str
    end: str
    path_key: int | None

    @classmethod
    def of(cls, text: object) -> Self:
        """Raises `UsageError` for what is no path of a file."""
        if not isinstance(text, str) or not text.strip() or text.endswith("/") or "\0" in text:
            raise UsageError(f"{text!r} is no file; give the location of a file, or the end of it")
        if not is_location(text):
            return cls(text, text, None)
        return cls(text, text.rpartition("/")[2], int(path_keys(pa.array([text]))[0]))

    @property
    def is_location(self) -> bool:
        """Whether it names one file, and is not the end of a name."""
        return self.path_key is not None

    def mask(self, locations: pa.Array | pa.ChunkedArray) -> NDArray[np.bool_]:
        """Which of some locations match."""
        found: NDArray[np.bool_] = np.array(pc.ends_with(locations, self.end).to_pylist(), bool)
        if self.path_key is None or not found.any():
            return found
        rows = np.flatnonzero(found)
        some = locations.take(pa.array(rows))
        ends = np.array(pc.ends_with(some, self.text).to_pylist(), bool)
        found[rows] = ends | np.array([self._has_its_path(location) for location in some.to_pylist()], bool)
        return found

    def among(self, locations: Iterable[str]) -> list[str]:
        """Those of some locations that match, each once."""
        names = pa.array([*dict.fromkeys(one for one in locations if one.endswith(self.end))], pa.string())
        return names.filter(pa.array(self.mask(names), pa.bool_())).to_pylist()

    def chosen(self, locations: Iterable[str]) -> str | None:
        """The one of some matching locations that is meant; `None` where there is none.

        Raises:
            UsageError: several match.
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
            more = " and others" if len(names) > _NAMES_SHOWN else ""
            raise UsageError(
                f"{len(names)} files end with {self.text!r}: {', '.join(map(repr, names[:_NAMES_SHOWN]))}{more}; give more of it"
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


class ReadableManifests(msgspec.Struct, frozen=True):
    """The manifests that the table's lists name, and the lists that could not be read, each with the reason."""

    reached: Reached
    unreadable: Mapping[str, str]

    def unread_snapshots(self, metadata: TableMetadata) -> frozenset[int]:
        """The snapshots whose lists could not be read."""
        gone = {*self.unreadable}
        return frozenset(
            s.snapshot_id
            for s in metadata.snapshots
            if s.manifest_list in gone or not gone.isdisjoint(s.manifests or ())
        )


def read_manifests(table: Table, spark: SparkSource, *, trust_manifest_list: bool) -> ReadableManifests:
    """Read the manifest lists of all snapshots; where not all are whole, those that can be read."""
    metadata, storage, location = table.metadata, table.storage, table.metadata_location
    try:
        reached = read_reached(
            metadata, location, storage, spark, trust_manifest_list=trust_manifest_list, stays=_PROBLEM
        )
    except (SafetyError, UnsupportedError) as error:
        some = read_expired(
            metadata, metadata.snapshots, storage, spark, statistics=statistics_files(metadata), metadata_files=()
        )
        if some.unreadable:
            return ReadableManifests(some, dict.fromkeys(some.unreadable, "it is missing or damaged"))
        # A list that can be read, and is not what its snapshot or other lists say.
        snapshot = metadata.snapshots_by_id.get(error.facts.get("snapshot_id", 0))
        place = error.facts.get("location") or (None if snapshot is None else snapshot.manifest_list)
        cause = error.message.partition(_BEFORE_CAUSE)[2] or error.message
        return ReadableManifests(some, {place or "a manifest list": cause})
    return ReadableManifests(reached, {})


class Entries(msgspec.Struct, frozen=True):
    """Entries of matching files, removed ones too: rows of some of `planning.manifests.ENTRIES`; and unreadable manifests."""

    rows: pa.Table
    unreadable: dict[str, str]


class _Search(msgspec.Struct, frozen=True):
    decode: DecodeTask
    target: Target


def find_entries(manifests: Sequence[ManifestFile], table: Table, spark: SparkSource, target: Target) -> Entries:
    """Search manifests for a file: few on the driver, in threads, many in Spark tasks.

    Raises:
        UnavailableError: the store fails for now.
    """
    types, unreadable = _partition_types(manifests, table.metadata)
    # Manifests of one content and spec are decoded together, the newest first.
    readable = sorted(
        (m for m in manifests if m.partition_spec_id in types),
        key=lambda m: (m.content, m.partition_spec_id, m.sequence_number or 0),
        reverse=True,
    )
    reading = chosen_reading(readable, limits_of(spark).folded_entries_count)
    wanted = EntryFilter(specs=types, live_only=False, path_end=target.end)
    task = DecodeTask(manifests=(), wanted=wanted, columns=_COLUMNS, storage=table.storage, decoder=reading.decoder)
    session = None if reading.by is ReadBy.DRIVER else started(spark)
    shares = [*manifest_chunks(readable)] if session is None else manifests_by_task(readable, session)
    threads = threads_count(m.manifest_path for m in readable)
    ran = run_tasks(session, shares, _search, _Search(task, target), step="looking for a file", threads=threads)
    return _together([Entries(entries_schema(_COLUMNS).empty_table(), unreadable), *all_results(ran)])


def _search(manifests: Sequence[ManifestFile], search: _Search) -> Entries:
    some: list[pa.RecordBatch] = []
    names: set[str] = set()
    try:
        for decoded in decode(msgspec.structs.replace(search.decode, manifests=tuple(manifests))):
            rows = decoded.entries.filter(pa.array(search.target.mask(decoded.entries["file_path"])))
            new = {*rows["file_path"].to_pylist()} - names
            if rows.num_rows and (not new or len(names) < _MAX_NAMES):
                names |= new
                some.append(rows)
    except (InvalidTableError, UnsupportedError) as error:
        if len(manifests) > 1:
            return _together([_search([manifest], search) for manifest in manifests])
        return Entries(entries_schema(_COLUMNS).empty_table(), {manifests[0].manifest_path: error.message})
    return Entries(pa.Table.from_batches(some, entries_schema(_COLUMNS)), {})


def _together(parts: Sequence[Entries]) -> Entries:
    unreadable = {path: why for part in parts for path, why in part.unreadable.items()}
    return Entries(pa.concat_tables(part.rows for part in parts), unreadable)


def whole_entries(manifests: Sequence[ManifestFile], table: Table, path: str, columns: Iterable[str]) -> pa.Table:
    """The live entries of one file in a few manifests, with any columns of `planning.manifests.ENTRIES`."""
    wanted = EntryFilter(specs=_partition_types(manifests, table.metadata)[0], path_end=path.rpartition("/")[2])
    return of_file(few_entries(table.storage, manifests, wanted, {*columns, "file_path"}, chosen_decoder()[0]), path)


def of_file(entries: pa.Table, path: str) -> pa.Table:
    """The entries of one file, however its location is spelled."""
    is_file = location_keys(entries["file_path"]) == location_keys(pa.array([path]))[0]
    return entries.filter(pa.array(is_file, pa.bool_()))


def snapshots_of(
    paths: Iterable[str], table: Table, spark: SparkSource, listed: Sequence[ManifestFile]
) -> dict[str, frozenset[int]]:
    """The ids of the snapshots that name each of some manifests, which never name one that was made after them."""
    names = [*dict.fromkeys(paths)]
    if not names:
        return {}
    numbers = {m.manifest_path: m.sequence_number or 0 for m in listed}
    least = min(numbers.get(name, 0) for name in names)
    later = [snapshot for snapshot in table.metadata.snapshots if snapshot.sequence_number >= least]
    found = snapshots_naming(table.storage, spark, later, names)
    if len(found) < len(names) or not all(found.values()):
        # A number that is wrong hides snapshots, and what no snapshot names would be taken for garbage.
        found = snapshots_naming(table.storage, spark, table.metadata.snapshots, names)
    keys = location_keys(pa.array(names, pa.string())).tolist()
    return {name: found.get(key, frozenset()) for name, key in zip(names, keys, strict=True)}


def _partition_types(
    manifests: Iterable[ManifestFile], metadata: TableMetadata
) -> tuple[dict[int, SpecFilter], dict[str, str]]:
    """Those of all specs, and the manifests whose spec the table does not have, with the reason."""
    types: dict[int, SpecFilter] = {}
    unreadable: dict[str, str] = {}
    for manifest in manifests:
        spec_id = manifest.partition_spec_id
        try:
            types.setdefault(spec_id, SpecFilter(metadata.partition_type(spec_id)))
        except InvalidTableError as error:
            unreadable[manifest.manifest_path] = error.message
    return types, unreadable
