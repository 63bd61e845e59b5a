"""Each manifest once, on the driver in threads or in Spark tasks; what comes back are faults, true rows and sums."""

from collections.abc import Sequence
from contextlib import suppress

import msgspec
import numpy as np
from pyroaring import BitMap

from icekeep.errors import InvalidTableError
from icekeep.maintenance.checking.faults import Tally
from icekeep.maintenance.checking.manifests.lists import ReadLists, RowsOfManifest
from icekeep.maintenance.checking.manifests.metrics import column_types
from icekeep.maintenance.checking.manifests.one_manifest import Checked, Known, check_manifest
from icekeep.maintenance.checking.manifests.sums import Counted
from icekeep.maintenance.checking.subject import Listed, Subject
from icekeep.planning.entries import ReadBy, chosen_reading, threads_count
from icekeep.planning.spark.session import limits_of, started
from icekeep.planning.spark.tasks import all_results, run_tasks
from icekeep.planning.spark.workers import MANIFEST_BYTES, tasks_count
from icekeep.spec.collections import balanced, packed
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.types import MIB, StructType

_CHUNK_BYTES = 5 * MIB


class CheckedManifests(msgspec.Struct, frozen=True):
    """The manifests that could be read, by true rows, with the sums of each."""

    listed: Listed
    counted: tuple[Counted, ...]


def check_manifests(subject: Subject, lists: ReadLists) -> CheckedManifests:
    """Look at each manifest; faults go to the subject's tally."""
    metadata = subject.table.metadata
    reading = chosen_reading(lists.listed.manifests, limits_of(subject.spark).folded_entries_count)
    known = Known(
        storage=subject.table.storage,
        format_version=metadata.format_version,
        partitions=_partition_types(metadata),
        columns=column_types(metadata),
        equality_ids=frozenset(field_id for schema in metadata.schemas for field_id in schema.fields_by_id),
        sort_order_ids=frozenset({0, *(order.order_id for order in metadata.sort_orders)}),
        decoder=reading.decoder,
        whole=subject.tally.whole,
        row_ids_since=min((s.sequence_number for s in metadata.snapshots if s.first_row_id is not None), default=None),
    )
    session = None if reading.by is ReadBy.DRIVER else started(subject.spark)
    numbered = [*enumerate(lists.rows)]

    def size_of(one: tuple[int, RowsOfManifest]) -> int:
        return max(1, one[1].rows[0][0].manifest_length)

    if session is None:
        some = [*map(tuple, packed(numbered, (size_of, _CHUNK_BYTES)))]
    else:
        count = tasks_count(session, sum(map(size_of, numbered)), MANIFEST_BYTES)
        some = [*map(tuple, balanced(numbered, size_of, min(count, max(1, len(numbered)))))]
    threads = threads_count(manifest.manifest_path for manifest in lists.listed.manifests)
    checked: dict[int, Checked] = {}
    for part, tally in all_results(
        run_tasks(session, some, _checked, known, step="checking manifests", threads=threads)
    ):
        checked.update(part)
        subject.tally.merge(tally)
    return _renumbered(subject, lists, checked)


def _partition_types(metadata: TableMetadata) -> dict[int, StructType]:
    """Those of the specs whose source columns some schema has; what is wrong with the others is told with the metadata."""
    found: dict[int, StructType] = {}
    for spec_id in metadata.specs_by_id:
        with suppress(InvalidTableError):
            found[spec_id] = metadata.partition_type(spec_id)
    return found


def _checked(some: Sequence[tuple[int, RowsOfManifest]], known: Known) -> tuple[dict[int, Checked], Tally]:
    tally = Tally(known.whole)
    found = {number: check_manifest(rows, known, tally) for number, rows in some}
    return {number: one for number, one in found.items() if one is not None}, tally


def _renumbered(subject: Subject, lists: ReadLists, checked: dict[int, Checked]) -> CheckedManifests:
    """The manifests that were read, with numbers of their own."""
    listed, unread = lists.listed, {*lists.listed.unread}
    kept = sorted(checked)
    new = np.full(len(listed.manifests), -1, np.int64)
    new[kept] = np.arange(len(kept))
    read, members = BitMap(kept), {}
    for snapshot_id, old in listed.members.items():
        here = old & read
        members[snapshot_id] = here if len(kept) == len(new) else BitMap(new[here.to_array()].tolist())
        if len(here) < len(old):
            unread.add(snapshot_id)
    for snapshot_id in sorted(unread):
        subject.tally.gap(f"snapshot {snapshot_id}", "not all of its manifests were read")
    for snapshot in subject.snapshots:
        if snapshot.snapshot_id not in listed.members:
            subject.tally.gap(f"snapshot {snapshot.snapshot_id}", "its manifest list was not read")
    return CheckedManifests(
        Listed(
            manifests=tuple(checked[number].row for number in kept),
            members=members,
            since=tuple(listed.since[number] for number in kept),
            unread=frozenset(unread),
        ),
        tuple(checked[number].counted for number in kept),
    )
