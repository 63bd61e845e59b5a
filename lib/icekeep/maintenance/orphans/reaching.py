"""Everything that a table's metadata leads to, by name or through manifests. Fails closed.

content files of every retained manifest, manifests, manifest lists, statistics, metadata files of the log, the version hint;
and the statistics of the metadata files in the log, which a rollback of the catalog would need

Of older metadata a file leads to nothing that is gone, or was cut off: nobody can roll back to it. Nor does one outside of the
table's places that is not ours to read, as of a table that was moved: nothing is deleted there.
"""

import zlib
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import msgspec
import pyarrow as pa

from icekeep.catalog.base import Table
from icekeep.catalog.version_files import HINT
from icekeep.errors import InvalidTableError, MissingFileError, SafetyError, UnsupportedError, UsageError, first_line
from icekeep.maintenance.deletion.reachability import statistics_files
from icekeep.maintenance.deletion.territory import territory
from icekeep.maintenance.orphans.metadata_text import CutOffError, parse_metadata_text
from icekeep.planning.entries.decode import DecodeTask, EntryFilter, SpecFilter
from icekeep.planning.manifests.lists import listed_manifests
from icekeep.planning.manifests.reader import chosen_decoder
from icekeep.planning.spark.source import SparkSource
from icekeep.spec.manifests.structs import ManifestFile
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.snapshots import Snapshot
from icekeep.storage.base import Storage
from icekeep.storage.location_keys import Keys
from icekeep.storage.many import REQUESTS_AT_ONCE


class Reached(msgspec.Struct, frozen=True, kw_only=True):
    """What metadata leads to.

    Attributes:
        manifests: each once; their live entries are reached too.
        manifest_keys: of all manifests that were listed.
        names: locations of everything that is not an entry of a manifest.
        untotalled_count: snapshots that do not say how many files they have.
    """

    manifests: tuple[ManifestFile, ...]
    manifest_keys: Keys
    names: pa.Array
    wanted: EntryFilter
    storage: Storage
    untotalled_count: int = 0

    @property
    def columns(self) -> frozenset[str]:
        """What is read of an entry."""
        return frozenset({"file_path"})

    @property
    def decode_task(self) -> DecodeTask:
        """The work of reading all live entries."""
        decoder, _ = chosen_decoder()
        return DecodeTask(
            manifests=self.manifests,
            wanted=self.wanted,
            columns=self.columns,
            storage=self.storage,
            decoder=decoder,
        )


def read_reached(table: Table, spark: SparkSource, *, trust_totals: bool) -> Reached:
    """Read the manifest lists of all snapshots, and name whatever else metadata leads to.

    Args:
        trust_totals: believe a manifest list although the snapshot's summary counts other files.

    Raises:
        SafetyError: a manifest list is not whole; nothing may be deleted.
    """
    return _reached(table, table.metadata.snapshots, None, spark, trust_totals=trust_totals)


def read_newly_reached(
    table: Table, before: TableMetadata, known: Reached, spark: SparkSource, *, trust_totals: bool
) -> Reached:
    """What a table leads to now, and did not when `known` was read from `before`; raises as `read_reached` does."""
    lists = {snapshot.manifest_list or snapshot.manifests for snapshot in before.snapshots}
    newer = [s for s in table.metadata.snapshots if (s.manifest_list or s.manifests) not in lists]
    return _reached(table, newer, known.manifest_keys, spark, trust_totals=trust_totals)


@contextmanager
def fails_closed() -> Iterator[None]:
    """What cannot be read whole among what is retained ends the run; what may pass by itself stays the error that it is."""
    try:
        yield
    except InvalidTableError as error:
        raise SafetyError(
            f"nothing is deleted, since not everything can be read: {error.message}", **error.facts
        ) from error


def _reached(
    table: Table, snapshots: Iterable[Snapshot], without: Keys | None, spark: SparkSource, *, trust_totals: bool
) -> Reached:
    metadata, storage = table.metadata, table.storage
    with fails_closed():
        listed = listed_manifests(storage, spark, [*snapshots], check=True, trust=trust_totals, without=without)
        specs = {m.partition_spec_id for m in listed.manifests}
        wanted = EntryFilter(specs={spec_id: SpecFilter(metadata.partition_type(spec_id)) for spec_id in specs})
        older_statistics = _statistics_of_the_log(metadata, storage)
    names = [
        *(m.manifest_path for m in listed.manifests),
        *(s.manifest_list for s in metadata.snapshots if s.manifest_list),
        *statistics_files(metadata),
        table.metadata_location,
        *(entry.metadata_file for entry in metadata.metadata_log),
        f"{metadata.location.rstrip('/')}/metadata/{HINT}",
        f"{table.metadata_location.rpartition('/')[0]}/{HINT}",
        *older_statistics,
    ]
    return Reached(
        manifests=listed.manifests,
        manifest_keys=listed.keys,
        names=pa.array(dict.fromkeys(names), pa.string()),
        wanted=wanted,
        storage=storage,
        untotalled_count=listed.untotalled_count,
    )


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
