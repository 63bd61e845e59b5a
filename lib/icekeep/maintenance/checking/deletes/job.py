"""What delete files hold, and how many rows the data files have from which they delete."""

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from icekeep.errors import InvalidTableError
from icekeep.maintenance.checking.deletes import caps
from icekeep.maintenance.checking.deletes.claims import Telling
from icekeep.maintenance.checking.deletes.data_entries import keyed_batches, over_manifests
from icekeep.maintenance.checking.deletes.examining import Examining, examine
from icekeep.maintenance.checking.deletes.reaches import Lengths, Reaches
from icekeep.maintenance.checking.deletes.row_ids import check_row_ids
from icekeep.maintenance.checking.entries.meeting import Meeting
from icekeep.maintenance.checking.entries.reading import Numbered, decode_task
from icekeep.maintenance.checking.subject import Listed, Subject
from icekeep.maintenance.deletion.path_set import among
from icekeep.planning.entries import DecodeTask
from icekeep.spec.manifests.structs import ManifestContent
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.schema import NameMapping, name_mapping_of
from icekeep.storage.location_keys import Keys

_LENGTH_COLUMNS = ("file_path", "record_count")


def check_delete_content(subject: Subject, listed: Listed) -> None:
    """Read the delete files of all snapshots that are looked at, each once, and tell what is wrong in them; then row ids.

    Raises:
        TryAgainError: the store or Spark is out of reach.
    """
    meeting = Meeting.of(subject.snapshots, listed)
    manifests = [
        (number, manifest)
        for number, manifest in enumerate(listed.manifests)
        if manifest.may_have_live_files and meeting.snapshots_of[number]
    ]
    deletes = [one for one in manifests if one[1].content is ManifestContent.DELETES]
    if deletes:
        data = [one for one in manifests if one[1].content is ManifestContent.DATA]
        _check_files(subject, listed, deletes, data, meeting)
    check_row_ids(subject, listed)


def _check_files(
    subject: Subject, listed: Listed, deletes: Sequence[Numbered], data: Sequence[Numbered], meeting: Meeting
) -> None:
    table, tally, spark = subject.table, subject.tally, subject.spark
    paths = tuple(manifest.manifest_path for manifest in listed.manifests)
    examining = Examining(
        storage=table.storage,
        telling=Telling(meeting, paths, tally.whole),
        name_mapping=_name_mapping(table.metadata),
        limit=caps.REACHES,
    )
    found = examine(table, deletes, examining, spark)
    tally.merge(found.tally)
    if found.is_cut or len(found.reaches) > caps.REACHES:
        more = "there are more pairs of a delete file and a data file than are held"
        why = f"{more} ({caps.REACHES:,}, an equal share in each task): none was looked at"
        tally.gap("whether deletes name rows that data files have", why)
    elif len(found.reaches):
        beyond = _beyond(subject, data, found.reaches)
        if len(beyond.files):
            again = msgspec.structs.replace(examining, only=beyond.files, lengths=beyond.lengths)
            tally.merge(examine(table, deletes, again, spark).tally)


def _name_mapping(metadata: TableMetadata) -> NameMapping | None:
    try:
        return name_mapping_of(metadata.properties)
    except InvalidTableError:
        # A fault of the metadata, which has been told.
        return None


class _Beyond(msgspec.Struct, frozen=True):
    """Delete files, as ascending keys, that name rows beyond the ends of some data files."""

    files: Keys
    lengths: Lengths


def _beyond(subject: Subject, data: Sequence[Numbered], reaches: Reaches) -> _Beyond:
    targets = np.unique(reaches["target"])
    decode = decode_task(subject.table, (manifest for _, manifest in data), _LENGTH_COLUMNS)
    found = over_manifests(subject.spark, data, _lengths, (decode, targets), "counting rows of data files")
    lengths = Lengths.of((one.targets, one.counts) for one in found)
    wrong = lengths.beyond(reaches["target"], reaches["last"])
    return _Beyond(np.unique(reaches["file"][wrong]), lengths.some(np.unique(reaches["target"][wrong])))


def _lengths(manifests: Sequence[Numbered], shared: tuple[DecodeTask, NDArray[np.int64]]) -> Lengths:
    decode, targets = shared
    found = []
    for batch, _, keys, there in keyed_batches(manifests, decode):
        counts = batch["record_count"].to_numpy()
        # A count below 0 says nothing, and is a fault of its own.
        chosen = there & among(keys, targets) & (counts >= 0)
        found.append((keys[chosen], counts[chosen]))
    return Lengths.of(found)
