"""What orphan removal holds against a listing: all that metadata leads to, and the statistics of older metadata in the log.

Nobody may need these but a rollback of the catalog. Of older metadata a file leads to nothing that is gone, or was cut off:
nobody can roll back to it. Nor does one outside of the table's places that is not ours to read, as of a table that was moved:
nothing is deleted there.
"""

import zlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from icekeep.catalog.base import Table
from icekeep.errors import InvalidTableError, MissingFileError, UnsupportedError, UsageError, first_line
from icekeep.maintenance.deletion.file_kinds import FileKind, GarbageFile, garbage_table
from icekeep.maintenance.deletion.reachable import NOTHING_SEEN, Reached, Seen, fails_closed, read_reached
from icekeep.maintenance.deletion.territory import Territory, territory
from icekeep.maintenance.orphans.metadata_text import CutOffError, parse_metadata_text
from icekeep.planning.spark.session import SparkSource
from icekeep.spec.types import MIB
from icekeep.storage.base import Storage
from icekeep.storage.locations import canonical_or_text
from icekeep.storage.many import REQUESTS_AT_ONCE

_HELD_BYTES = 256 * MIB
"""So much of older metadata is held at once: what one file takes while it is read may be hundreds of megabytes."""

_GROWTH = 11
"""About how much more than its file a packed text of metadata takes, and the file itself."""


def reached_by(table: Table, spark: SparkSource, *, trust_manifest_list: bool, since: Seen = NOTHING_SEEN) -> Reached:
    """What a table leads to, through the metadata in its log as well; raises as `read_reached`.

    Args:
        since: what was read before, and is left out.
    """
    metadata, storage = table.metadata, table.storage
    reached = read_reached(
        metadata, table.metadata_location, storage, spark, trust_manifest_list=trust_manifest_list, since=since
    )
    logged = dict.fromkeys(entry.metadata_file for entry in metadata.metadata_log)
    with fails_closed():
        statistics = _statistics_of([one for one in logged if one not in since.metadata_files], table)
    older = garbage_table(GarbageFile(FileKind.STATISTICS, one) for some in statistics.values() for one in some)
    seen = msgspec.structs.replace(reached.seen, metadata_files=since.metadata_files.union(statistics))
    return msgspec.structs.replace(reached, named=pa.concat_tables([reached.named, older]), seen=seen)


def former_statistics(table: Table, reached: Reached) -> pa.Array:
    """The locations of statistics that are reached through older metadata alone: they were taken off the table since."""
    metadata = table.metadata
    paths = [file.statistics_path for file in metadata.statistics]
    paths += [file.statistics_path for file in metadata.partition_statistics]
    current = {*map(canonical_or_text, paths)}
    named = reached.named.filter(pc.equal(reached.named["kind"], FileKind.STATISTICS.value))["location"]
    former = dict.fromkeys(one for one in named.to_pylist() if canonical_or_text(one) not in current)
    return pa.array(former, pa.string())


class _Named(msgspec.Struct):
    statistics_path: str = msgspec.field(name="statistics-path", default="")


class _Statistics(msgspec.Struct):
    """Of a metadata file only what names statistics."""

    statistics: list[_Named] | None = None
    partition_statistics: list[_Named] | None = msgspec.field(name="partition-statistics", default=None)


def _statistics_of(locations: Sequence[str], table: Table) -> dict[str, list[str]]:
    """The statistics that each of some older metadata files names; those that nobody can read are left out.

    Raises what keeps a file of it from being read, unless that is gone.
    """
    if not locations:
        return {}
    places, storage = territory(table), table.storage
    with ThreadPoolExecutor(_files_at_once(table)) as pool:
        found = pool.map(lambda location: _statistics_named_by(location, places, storage), locations)
        return {location: files for location, files in zip(locations, found, strict=True) if files is not None}


def _files_at_once(table: Table) -> int:
    """How many metadata files are read at a time, by the size of the newest: those before it are about as large."""
    newest = table.storage.head(table.metadata_location)
    file_bytes = 1 if newest is None else max(1, newest.size_bytes)
    return max(1, min(REQUESTS_AT_ONCE, _HELD_BYTES // (_GROWTH * file_bytes)))


def _statistics_named_by(location: str, places: Territory, storage: Storage) -> list[str] | None:
    try:
        data = storage.read(location)
    except MissingFileError:
        return None
    except (UsageError, UnsupportedError):
        if places.holds(location):
            raise
        return None
    try:
        found = parse_metadata_text(data, _Statistics)
    except CutOffError:
        return None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, zlib.error) as error:
        raise InvalidTableError(
            f"{location!r} in the metadata log cannot be read ({first_line(error)}); if it is broken for good, move it away",
            location=location,
        ) from error
    files = (*(found.statistics or ()), *(found.partition_statistics or ()))
    return [file.statistics_path for file in files if file.statistics_path]
