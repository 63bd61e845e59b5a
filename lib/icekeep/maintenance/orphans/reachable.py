"""What orphan removal holds against a listing: all that metadata leads to, and the statistics of older metadata in the log.

Nobody may need these but a rollback of the catalog. Of older metadata a file leads to nothing that is gone, or was cut off:
nobody can roll back to it. Nor does one outside of the table's places that is not ours to read, as of a table that was moved:
nothing is deleted there.
"""

import zlib
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pyarrow as pa

from icekeep.catalog.base import Table
from icekeep.errors import InvalidTableError, MissingFileError, UnsupportedError, UsageError, first_line
from icekeep.maintenance.deletion.file_kinds import FileKind, GarbageFile, garbage_table
from icekeep.maintenance.deletion.reachable import NOTHING_SEEN, Reached, Seen, fails_closed, read_reached
from icekeep.maintenance.deletion.territory import territory
from icekeep.maintenance.orphans.metadata_text import CutOffError, parse_metadata_text
from icekeep.planning.spark.source import SparkSource
from icekeep.spec.metadata import TableMetadata
from icekeep.storage.base import Storage
from icekeep.storage.many import REQUESTS_AT_ONCE


def reached_by(table: Table, spark: SparkSource, *, trust_manifest_list: bool, since: Seen = NOTHING_SEEN) -> Reached:
    """What a table leads to, through the metadata in its log as well; raises as `read_reached`."""
    metadata, storage = table.metadata, table.storage
    reached = read_reached(
        metadata, table.metadata_location, storage, spark, trust_manifest_list=trust_manifest_list, since=since
    )
    with fails_closed():
        statistics = _statistics_of_the_log(metadata, storage)
    older = garbage_table(GarbageFile(FileKind.STATISTICS, location) for location in dict.fromkeys(statistics))
    return msgspec.structs.replace(reached, named=pa.concat_tables([reached.named, older]))


class _Named(msgspec.Struct):
    statistics_path: str = msgspec.field(name="statistics-path", default="")


class _Statistics(msgspec.Struct):
    """Of a metadata file only what names statistics."""

    statistics: list[_Named] | None = None
    partition_statistics: list[_Named] | None = msgspec.field(name="partition-statistics", default=None)


def _statistics_of_the_log(metadata: TableMetadata, storage: Storage) -> list[str]:
    """The statistics that older metadata names; raises what keeps a file of it from being read, unless that is gone."""
    places = territory(metadata)

    def named(location: str) -> list[str]:
        try:
            data = storage.read(location)
        except MissingFileError:
            return []
        except (UsageError, UnsupportedError):
            if places.holds(location):
                raise
            return []
        try:
            found = parse_metadata_text(data, _Statistics)
        except CutOffError:
            return []
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, zlib.error) as error:
            raise InvalidTableError(
                f"{location!r} in the metadata log cannot be read ({first_line(error)}); if it is broken for good, move it away",
                location=location,
            ) from error
        files = (*(found.statistics or ()), *(found.partition_statistics or ()))
        return [file.statistics_path for file in files if file.statistics_path]

    locations = [entry.metadata_file for entry in metadata.metadata_log]
    with ThreadPoolExecutor(min(REQUESTS_AT_ONCE, max(1, len(locations)))) as pool:
        return [location for some in pool.map(named, locations) for location in some]
