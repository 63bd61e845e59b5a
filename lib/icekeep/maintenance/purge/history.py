"""Everything that a table's metadata leads to, through its history: the files of a table that is to go as a whole."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import replace

from icekeep.catalog.base import Table
from icekeep.errors import IcekeepError, InvalidTableError, MissingFileError
from icekeep.maintenance.deletion.claims import last_work
from icekeep.maintenance.deletion.file_kinds import GARBAGE
from icekeep.maintenance.deletion.garbage import Garbage, garbage_of
from icekeep.maintenance.deletion.kept_by_plans import done_file
from icekeep.maintenance.deletion.plans import plan_directories, read_part, read_plan
from icekeep.maintenance.deletion.reachable import read_expired
from icekeep.planning.spark.source import SparkSource
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.metadata_codec import parse_metadata
from icekeep.spec.snapshots import Snapshot
from icekeep.storage.base import Storage
from icekeep.storage.locations import canonical, is_location
from icekeep.storage.many import REQUESTS_AT_ONCE


class History(msgspec.Struct, frozen=True, kw_only=True):
    """The table's metadata and those before it, as far as they are still there.

    Attributes:
        locations: of all metadata files that are named anywhere, there or not.
        unreadable: metadata files that cannot be read; what only they lead to stays.
    """

    metadata: tuple[TableMetadata, ...]
    locations: tuple[str, ...]
    unreadable: tuple[str, ...]


def read_history(table: Table) -> History:
    """Read the table's metadata files through their logs, and those that they name in turn."""
    found = [table.metadata]
    locations = {canonical(table.metadata_location): table.metadata_location}
    unreadable: list[str] = []
    newest = [table.metadata]
    with ThreadPoolExecutor(REQUESTS_AT_ONCE) as pool:
        while newest:
            logged = [entry.metadata_file for one in newest for entry in one.metadata_log]
            # What is no location leads to no file, as in `left_the_log`.
            named = {canonical(location): location for location in logged if is_location(location)}
            fresh = [location for key, location in named.items() if key not in locations]
            locations |= named
            newest = []
            for location, read in zip(fresh, pool.map(lambda at: _read(at, table.storage), fresh), strict=True):
                if isinstance(read, TableMetadata):
                    newest.append(read)
                elif read is not None:
                    unreadable.append(location)
            # Another table's metadata in the log would lead to files of another table.
            newest = [one for one in newest if one.table_uuid == table.metadata.table_uuid]
            found += newest
    return History(metadata=tuple(found), locations=tuple(locations.values()), unreadable=tuple(unreadable))


def all_garbage(table: Table, spark: SparkSource) -> Garbage:
    """Every file that the table's metadata leads to, now or in its history, and what waits for its deletion.

    What cannot be read is told and stays.
    """
    history = read_history(table)
    snapshots = [*_snapshots(history)]
    waiting, unreadable = _waiting(table, {snapshot.snapshot_id for snapshot in snapshots})
    expired = read_expired(
        _with_all_specs(history),
        snapshots,
        table.storage,
        spark,
        statistics_of=history.metadata,
        metadata_files=history.locations,
    )
    told = (*history.unreadable, *_still_there(expired.unreadable, table.storage), *unreadable)
    everything = replace(expired, named=pa.concat_tables([expired.named, waiting]), unreadable=told)
    garbage = garbage_of(everything, None, spark)
    if isinstance(garbage.content, pa.Table):
        # What a plan names and manifests lead to is counted once.
        is_content = pc.is_in(garbage.named["location"], value_set=garbage.content["location"].combine_chunks())
        garbage = replace(garbage, named=garbage.named.filter(pc.invert(is_content)))
    return garbage


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


def _snapshots(history: History) -> Iterator[Snapshot]:
    seen: set[int] = set()
    for metadata in history.metadata:
        for snapshot in metadata.snapshots:
            if snapshot.snapshot_id not in seen:
                seen.add(snapshot.snapshot_id)
                yield snapshot


def _with_all_specs(history: History) -> TableMetadata:
    """The newest metadata with the partition specs and schemas that any of them has."""
    specs = {spec.spec_id: spec for one in reversed(history.metadata) for spec in one.partition_specs}
    schemas = {schema.schema_id: schema for one in reversed(history.metadata) for schema in one.schemas}
    return replace(history.metadata[0], partition_specs=tuple(specs.values()), schemas=tuple(schemas.values()))


def _still_there(locations: tuple[str, ...], storage: Storage) -> tuple[str, ...]:
    """Lists of snapshots that expired are gone, and nobody needs to hear of it."""
    return tuple(location for location in locations if storage.head(location) is not None)
