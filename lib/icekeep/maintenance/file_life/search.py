"""The entries that manifests have of one file. Each manifest is read once, however many snapshots name it.

A manifest or a list that cannot be read is told of, and all others are looked into: what is not found then may be there all
the same.
"""

from collections.abc import Iterable, Mapping, Sequence

import msgspec
import pyarrow as pa

from icekeep.catalog.base import Table
from icekeep.errors import IcekeepError, InvalidTableError, SafetyError, UnsupportedError
from icekeep.maintenance.deletion.reachable import Reached, read_expired, read_reached, statistics_files
from icekeep.maintenance.file_life.target import Target
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
from icekeep.storage.location_keys import location_keys

_COLUMNS = frozenset({"manifest_path", "status", "snapshot_id", "content", "file_path", "file_format"})
_MAX_NAMES = 100
"""So many files are brought from each share that end as asked: more than one of them are refused."""

_STAYS = "not everything that the table leads to is known"
_SINCE = "since not everything can be read: "


class Manifests(msgspec.Struct, frozen=True):
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


def read_manifests(table: Table, spark: SparkSource, *, trust_manifest_list: bool) -> Manifests:
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
        return Manifests(reached, {})
    except (SafetyError, UnsupportedError) as error:
        some = read_expired(
            metadata, metadata.snapshots, storage, spark, statistics=statistics_files(metadata), metadata_files=()
        )
        told = dict.fromkeys(some.unreadable, "it is missing or damaged")
        return Manifests(some, told or _not_whole(error, metadata))


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
