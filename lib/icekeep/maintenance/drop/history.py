"""Everything that a table's metadata leads to, through its history: the files of a table that is to go as a whole."""

from collections import deque
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import replace

from icekeep.catalog.base import Table
from icekeep.catalog.metadata_files import HINT, list_versions, parse_version_name
from icekeep.errors import IcekeepError, InvalidTableError, MissingFileError
from icekeep.maintenance.delete.garbage import Garbage, garbage_of
from icekeep.maintenance.delete.kept import done_file
from icekeep.maintenance.delete.lease import last_work
from icekeep.maintenance.delete.plan_file import plan_directories, read_part, read_plan
from icekeep.maintenance.delete.reachable import GARBAGE, FileKind, GarbageFile, read_expired, statistics_files
from icekeep.planning.spark.session import SparkSource
from icekeep.spec.metadata import TableMetadata, parse_metadata
from icekeep.spec.partitioning import PartitionSpec
from icekeep.spec.schema import Schema
from icekeep.spec.snapshots import Snapshot
from icekeep.storage.base import REQUESTS_AT_ONCE, Storage, head_many
from icekeep.storage.locations import canonical, checksum_location, has_checksum_files, is_location, join


class History(msgspec.Struct, frozen=True, kw_only=True):
    """What the table's metadata and those before it lead to, as far as they are still there; no more of them is held.

    Attributes:
        metadata: the newest, with the partition specs and schemas that any of them has.
        snapshots: that any of them has, without their summaries.
        statistics: of all of them, as `statistics_files`.
        locations: of all metadata files that are named anywhere, there or not.
        unreadable: metadata files that cannot be read; what only they lead to stays.
    """

    metadata: TableMetadata
    snapshots: tuple[Snapshot, ...]
    statistics: Mapping[str, int]
    locations: tuple[str, ...]
    unreadable: tuple[str, ...]


def read_history(table: Table) -> History:
    """Read the table's metadata files through their logs, and those that they name in turn, some at a time."""
    found = _Found(table)
    with ThreadPoolExecutor(REQUESTS_AT_ONCE) as pool:
        while found.unread:
            some = [found.unread.popleft() for _ in range(min(REQUESTS_AT_ONCE, len(found.unread)))]
            for location, read in zip(some, pool.map(lambda at: _read(at, table.storage), some), strict=True):
                found.add(location, read)
    return found.history()


class _Found:
    """What was found so far: of each metadata file what none before it has."""

    def __init__(self, table: Table) -> None:
        self._newest = table.metadata
        self._snapshots: dict[int, Snapshot] = {}
        self._statistics: dict[str, int] = {}
        self._specs: dict[int, PartitionSpec] = {}
        self._schemas: dict[int, Schema] = {}
        self._locations = {canonical(table.metadata_location): table.metadata_location}
        self._unreadable: list[str] = []
        self.unread: deque[str] = deque()
        self._take(table.metadata)

    def add(self, location: str, read: TableMetadata | IcekeepError | None) -> None:
        """Take in what came of reading a metadata file."""
        if isinstance(read, IcekeepError):
            self._unreadable.append(location)
        # Another table's metadata in the log would lead to files of another table.
        elif read is not None and read.table_uuid == self._newest.table_uuid:
            self._take(read)

    def history(self) -> History:
        return History(
            metadata=replace(
                self._newest, partition_specs=tuple(self._specs.values()), schemas=tuple(self._schemas.values())
            ),
            snapshots=tuple(self._snapshots.values()),
            statistics=self._statistics,
            locations=tuple(self._locations.values()),
            unreadable=tuple(self._unreadable),
        )

    def _take(self, metadata: TableMetadata) -> None:
        # What is newer comes first, and counts.
        for snapshot in metadata.snapshots:
            if snapshot.snapshot_id not in self._snapshots:
                self._snapshots[snapshot.snapshot_id] = replace(snapshot, summary=None)
        for spec in metadata.partition_specs:
            self._specs.setdefault(spec.spec_id, spec)
        for schema in metadata.schemas:
            self._schemas.setdefault(schema.schema_id, schema)
        self._statistics.update(statistics_files(metadata))
        for entry in metadata.metadata_log:
            # What is no location leads to no file, as in `left_the_log`.
            if is_location(entry.metadata_file) and (key := canonical(entry.metadata_file)) not in self._locations:
                self._locations[key] = entry.metadata_file
                self.unread.append(entry.metadata_file)


def all_garbage(table: Table, spark: SparkSource) -> Garbage:
    """Every file that the table's metadata leads to, now or in its history, and what waits for its deletion.

    What cannot be read is named and stays.
    """
    history = read_history(table)
    waiting, unreadable = _waiting(table, {snapshot.snapshot_id for snapshot in history.snapshots})
    expired = read_expired(
        history.metadata,
        history.snapshots,
        table.storage,
        spark,
        statistics=history.statistics,
        metadata_files=history.locations,
    )
    # Manifest lists of expired snapshots are gone, which needs no warning.
    lists = [one.location for one in head_many(expired.unreadable, table.storage) if one is not None]
    named = pa.concat_tables([expired.named, waiting])
    if table.catalog.drop_frees_metadata_names:
        # The drop moves these to icekeep's own, with which they go: their names may be those of another table's files then.
        directory = canonical(join(table.metadata.location, "metadata"))
        is_moved = [
            parse_version_name(one.rpartition("/")[2]) is not None and canonical(one.rpartition("/")[0]) == directory
            for one in named["location"].to_pylist()
        ]
        named = named.filter(pc.invert(pa.array(is_moved, pa.bool_())))
    everything = replace(expired, named=named, unreadable=(*history.unreadable, *lists, *unreadable))
    garbage = garbage_of(everything, None, spark)
    if isinstance(garbage.content, pa.Table):
        # What a plan names and manifests lead to is counted once.
        is_content = pc.is_in(garbage.named["location"], value_set=garbage.content["location"].combine_chunks())
        garbage = replace(garbage, named=garbage.named.filter(pc.invert(is_content)))
    return garbage


def moved_by_drop(table: Table) -> list[GarbageFile]:
    """The metadata files that the drop itself moves to icekeep's own, and the hint, which it deletes, with their checksums."""
    if not table.catalog.drop_frees_metadata_names:
        return []
    storage = table.storage
    versions = list_versions(storage, join(table.metadata.location, "metadata"))
    found = [at for number in sorted(versions) for at in versions[number]]
    checksums = [at for at in map(checksum_location, found) if has_checksum_files(at) and storage.head(at) is not None]
    return [
        *(GarbageFile(FileKind.METADATA, at) for at in found),
        *(GarbageFile(FileKind.CHECKSUM, at) for at in checksums),
        *hint_of(table),
    ]


def hint_of(table: Table) -> list[GarbageFile]:
    """The hint by which readers find the newest version of a table's metadata, where its drop deletes one, and its checksum."""
    if not table.catalog.drop_frees_metadata_names:
        return []
    hint = join(table.metadata.location, "metadata", HINT)
    kinds = {hint: FileKind.METADATA}
    if has_checksum_files(hint):
        kinds[checksum_location(hint)] = FileKind.CHECKSUM
    return [GarbageFile(kind, at) for at, kind in kinds.items() if table.storage.head(at) is not None]


def _waiting(table: Table, known_ids: set[int]) -> tuple[pa.Table, list[str]]:
    """The files of plans that wait, to which no snapshot of the history leads any more, and the plans that cannot be read.

    Of a plan that is done all files are in the trash, or in use, in another plan, or gone, or they were restored.
    """
    rows, unreadable = [GARBAGE.empty_table()], []
    for directory in plan_directories(table.metadata, table.storage):
        try:
            plan = read_plan(directory, table.storage)
            is_own = plan.table_uuid == table.metadata.table_uuid
            work = last_work(directory, table.storage)
            if done_file(plan, work, table.storage) is not None:
                continue
            if is_own and (not plan.snapshot_ids or not known_ids >= {*plan.snapshot_ids}):
                rows += [read_part(part, table.storage) for part in plan.parts]
        except MissingFileError:
            # Its run has just finished it.
            continue
        except InvalidTableError:
            unreadable.append(directory)
    return pa.concat_tables(rows), unreadable


def _read(location: str, storage: Storage) -> TableMetadata | IcekeepError | None:
    try:
        return parse_metadata(storage.read(location), location)
    except MissingFileError:
        return None
    except IcekeepError as error:
        return error
