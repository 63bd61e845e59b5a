"""Files that metadata leads to by name: metadata files, manifest lists, manifests, statistics. No manifest is opened for them."""

import msgspec

from icekeep.catalog.base import Table
from icekeep.catalog.metadata_files import deletes_old_metadata
from icekeep.catalog.version_files import HINT
from icekeep.maintenance.deletion.file_kinds import FileKind
from icekeep.maintenance.deletion.reachable import statistics_files
from icekeep.maintenance.file_life.lineage import ADDED, DESCRIBES, Lineage
from icekeep.maintenance.file_life.search import Manifests, snapshots_of
from icekeep.maintenance.file_life.target import Target, same_file
from icekeep.planning.spark.session import SparkSource
from icekeep.spec.times import format_time

_HINT = "version hint"


class ByName(msgspec.Struct, frozen=True, kw_only=True):
    """A file that is named, and who does.

    Attributes:
        added: the word for what `lineage.added_by` did.
        fate: why it is there and when it goes, where no snapshot has to do with that.
        is_current: whether it is what the table is now.
    """

    file_path: str
    kind: str
    lineage: Lineage = Lineage()
    added: str = ADDED
    fate: str = ""
    is_current: bool = False


def named_locations(table: Table, manifests: Manifests, target: Target) -> list[str]:
    """The named files that may be meant."""
    metadata = table.metadata
    hint = f"{table.metadata_location.rpartition('/')[0]}/{HINT}"
    lists = (snapshot.manifest_list for snapshot in metadata.snapshots if snapshot.manifest_list)
    found = [table.metadata_location, *(entry.metadata_file for entry in metadata.metadata_log), hint]
    found += [*lists, *statistics_files(metadata), *(m.manifest_path for m in manifests.files)]
    return target.among(found)


def told_by_name(location: str, table: Table, manifests: Manifests, spark: SparkSource) -> ByName:
    """What names the file at a location of `named_locations`."""
    metadata = table.metadata
    lists = {s.snapshot_id for s in metadata.snapshots if s.manifest_list and same_file(s.manifest_list, location)}
    if lists:
        lineage = Lineage(readers=frozenset(lists), added_by=frozenset(lists))
        return ByName(file_path=location, kind=FileKind.MANIFEST_LIST, lineage=lineage)
    statistics = [(file.snapshot_id, file.statistics_path) for file in metadata.statistics]
    statistics += [(file.snapshot_id, file.statistics_path) for file in metadata.partition_statistics]
    described = {snapshot_id for snapshot_id, path in statistics if same_file(path, location)}
    if described:
        readers = frozenset(i for i in described if i in metadata.snapshots_by_id)
        lineage = Lineage(readers=readers, added_by=frozenset(described))
        return ByName(file_path=location, kind=FileKind.STATISTICS, lineage=lineage, added=DESCRIBES)
    listed = [m for m in manifests.files if same_file(m.manifest_path, location)]
    if not listed:
        return _metadata_file(location, table)
    named_by = snapshots_of([m.manifest_path for m in listed], table, spark, manifests.files)
    added_by = frozenset(m.added_snapshot_id for m in listed if m.added_snapshot_id is not None)
    lineage = Lineage(
        readers=frozenset[int]().union(*named_by.values()),
        unsure=manifests.unsure(metadata),
        added_by=added_by,
    )
    return ByName(file_path=location, kind=FileKind.MANIFEST, lineage=lineage)


def _metadata_file(location: str, table: Table) -> ByName:
    if same_file(location, table.metadata_location):
        fate = "it is the table's current metadata; the next commit puts it into the metadata log"
        return ByName(file_path=location, kind=FileKind.METADATA, fate=fate, is_current=True)
    log = table.metadata.metadata_log
    place = next((n for n, entry in enumerate(log) if same_file(entry.metadata_file, location)), None)
    if place is None:
        fate = "catalogs that find the table by the number of its version begin to look there; no run deletes it"
        return ByName(file_path=location, kind=_HINT, fate=fate, is_current=True)
    after = "the commit deletes it then"
    if not deletes_old_metadata(table.metadata):
        after = "`expire_snapshots` or `remove_orphan_files` takes it then"
    fate = (
        f"it was the current metadata as of {format_time(log[place].timestamp_ms)} and is number {place + 1} of {len(log)} in "
        f"the metadata log; once later commits push it out (write.metadata.previous-versions-max), {after}"
    )
    return ByName(file_path=location, kind=FileKind.METADATA, fate=fate)
