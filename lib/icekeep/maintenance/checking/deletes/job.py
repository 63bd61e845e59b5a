"""What delete files hold, and how many rows the data files have from which they delete."""

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from icekeep.maintenance.checking.deletes.claims import Telling
from icekeep.maintenance.checking.deletes.examining import Examining, examine
from icekeep.maintenance.checking.deletes.reaches import Lengths, Reaches
from icekeep.maintenance.checking.entries.keys import keys_of
from icekeep.maintenance.checking.entries.meeting import Meeting
from icekeep.maintenance.checking.entries.reading import Numbered, batches, chunks, decode_task
from icekeep.maintenance.checking.faults import Tally
from icekeep.maintenance.checking.subject import Listed, Subject
from icekeep.maintenance.deletion.path_set import among
from icekeep.planning.entries.decode import DecodeTask
from icekeep.planning.entries.read import entries_count, threads_count
from icekeep.planning.spark.amounts import MANIFEST_BYTES, tasks_count
from icekeep.planning.spark.source import limits_of, started
from icekeep.planning.spark.tasks import all_results, run_tasks
from icekeep.spec.bins import balanced
from icekeep.spec.manifests.structs import ManifestContent
from icekeep.spec.name_mapping import name_mapping_of
from icekeep.storage.location_keys import Keys

_LENGTH_COLUMNS = ("file_path", "record_count")


def check_delete_content(subject: Subject, listed: Listed) -> None:
    """Read the delete files of all snapshots that are looked at, each once, and tell what is wrong in them.

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
        _check_files(subject, listed, deletes, [one for one in manifests if one not in deletes], meeting)


def _check_files(
    subject: Subject, listed: Listed, deletes: Sequence[Numbered], data: Sequence[Numbered], meeting: Meeting
) -> None:
    table, tally, spark = subject.table, subject.tally, subject.spark
    paths = tuple(manifest.manifest_path for manifest in listed.manifests)
    limit = limits_of(spark).reachable_entries_count
    examining = Examining(
        storage=table.storage,
        telling=Telling(meeting, paths, tally.whole),
        name_mapping=name_mapping_of(table.metadata.properties),
        limit=limit,
    )
    found = examine(table, deletes, examining, spark)
    tally.merge(found.tally)
    if found.is_cut or len(found.reaches) > limit:
        tally.gap("whether deletes name rows that data files have", f"they are of more than {limit:,} files")
    elif len(found.reaches):
        beyond = _beyond(subject, data, found.reaches)
        if len(beyond.files):
            again = msgspec.structs.replace(examining, only=beyond.files, lengths=beyond.lengths)
            tally.merge(examine(table, deletes, again, spark).tally)


class _Beyond(msgspec.Struct, frozen=True):
    """Delete files, as ascending keys, that name rows beyond the ends of some data files."""

    files: Keys
    lengths: Lengths


def _beyond(subject: Subject, data: Sequence[Numbered], reaches: Reaches) -> _Beyond:
    targets = np.unique(reaches["target"])
    decode = decode_task(subject.table, (manifest for _, manifest in data), _LENGTH_COLUMNS)
    session = None
    some = chunks(data)
    if entries_count(manifest for _, manifest in data) > limits_of(subject.spark).folded_entries_count:
        session = started(subject.spark)
        length = sum(manifest.manifest_length for _, manifest in data)
        some = balanced(data, lambda one: one[1].manifest_length, tasks_count(session, length, MANIFEST_BYTES))
    threads = threads_count(manifest.manifest_path for _, manifest in data)
    ran = run_tasks(session, some, _lengths, (decode, targets), step="counting rows of data files", threads=threads)
    # What cannot be read of data manifests has been noted where entries were held against the store.
    lengths = Lengths.of((one.targets, one.counts) for one in all_results(ran))
    wrong = lengths.beyond(reaches["target"], reaches["last"])
    return _Beyond(np.unique(reaches["file"][wrong]), lengths.some(np.unique(reaches["target"][wrong])))


def _lengths(manifests: Sequence[Numbered], shared: tuple[DecodeTask, NDArray[np.int64]]) -> Lengths:
    decode, targets = shared
    found = []
    for some in chunks(manifests):
        for batch, _ in batches(some, decode, Tally()):
            keys, there = keys_of(batch["file_path"])
            chosen = there & among(keys, targets)
            found.append((keys[chosen], batch["record_count"].to_numpy()[chosen]))
    return Lengths.of(found)
