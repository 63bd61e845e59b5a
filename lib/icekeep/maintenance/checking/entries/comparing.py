"""All entries against each other and against a listing, by keys: on the driver for few files, in Spark tasks for many.

On the driver a listing leaves behind only what entries name, so that it may be of any length. In tasks entries and listed files
are sent to parts by their keys, and vectors to those of their data files too.
"""

from collections.abc import Iterable, Iterator, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from icekeep.catalog.base import Table
from icekeep.maintenance.checking.entries.listing import listed_batches, listing_shares
from icekeep.maintenance.checking.entries.meeting import Meeting
from icekeep.maintenance.checking.entries.reading import Numbered, chunks, decode_task
from icekeep.maintenance.checking.entries.sketch import DELETE_COLUMNS, VECTOR, Rows, Sketch, sketch_of
from icekeep.maintenance.checking.entries.suspects import Suspects, suspects_of
from icekeep.maintenance.checking.faults import Tally
from icekeep.maintenance.deletion.path_set import among
from icekeep.planning.entries import DecodeTask, entries_count, threads_count
from icekeep.planning.spark.session import SparkSource, limits_of, started
from icekeep.planning.spark.tasks import all_results, run_exchange, run_tasks
from icekeep.planning.spark.workers import LISTED_FILES, MANIFEST_BYTES, SHUFFLED_KEYS, tasks_count
from icekeep.spec.collections import balanced, each_once, packed
from icekeep.spec.manifests.structs import ManifestContent
from icekeep.storage.base import ListingShare, Storage
from icekeep.storage.location_keys import Keys
from icekeep.storage.locations import parse_location
from icekeep.storage.many import LOCAL_REQUESTS_AT_ONCE, REQUESTS_AT_ONCE

_SHARES_A_SLOT = 8
_PART_ROWS = 1_000_000
_SENT_ROWS = 200_000
"""Files of a listing that a task divides among parts at a time."""


class Comparing(msgspec.Struct, frozen=True):
    """What all tasks share."""

    decode: DecodeTask
    storage: Storage
    meeting: Meeting
    is_delete: NDArray[np.bool_]
    parts: int = 1


class _Sending(msgspec.Struct, frozen=True):
    """What one task sends: entries of manifests, or files of a listing."""

    manifests: tuple[Numbered, ...] = ()
    shares: tuple[ListingShare, ...] = ()


class _Sent(msgspec.Struct, frozen=True):
    """What a part is sent: entries whose files are its own, vectors whose data files are, marks of a listing, and gaps."""

    entries: Sketch | None = None
    targets: Rows | None = None
    listed: Keys | None = None
    tally: Tally | None = None


def is_for_tasks(table: Table, manifests: Sequence[Numbered], spark: SparkSource) -> bool:
    """Whether there are more entries, or files to be listed, than the driver takes."""
    limits = limits_of(spark)
    count = entries_count(manifest for _, manifest in manifests)
    return count > limits.reachable_entries_count or count > limits.listed_files_count


def compare(
    table: Table, manifests: Sequence[Numbered], meeting: Meeting, spark: SparkSource, tally: Tally, *, in_tasks: bool
) -> Suspects:
    """What looks wrong with the files of some manifests, which are all that may have live ones.

    Args:
        tally: is told of what cannot be read.

    Raises:
        TryAgainError: the store or Spark is out of reach.
    """
    length = 1 + max((number for number, _ in manifests), default=0)
    is_delete = np.zeros(length, np.bool_)
    is_delete[[number for number, manifest in manifests if manifest.content is ManifestContent.DELETES]] = True
    decode = decode_task(table, (manifest for _, manifest in manifests), DELETE_COLUMNS)
    shared = Comparing(decode, table.storage, meeting, is_delete)
    if in_tasks:
        return _in_tasks(table, manifests, shared, spark, tally)
    return _here(table, manifests, shared, limits_of(spark).looked_up_files_count, tally)


def _here(table: Table, manifests: Sequence[Numbered], shared: Comparing, few: int, tally: Tally) -> Suspects:
    sketch = _read_here(manifests, shared.decode, tally)
    marks, listed = np.unique(sketch.marks), None
    if len(marks) > few:
        is_local = parse_location(table.metadata.location).scheme == "file"
        threads = LOCAL_REQUESTS_AT_ONCE if is_local else REQUESTS_AT_ONCE
        shares = listing_shares(table, threads)
        answers = all_results(run_tasks(None, shares, _listed, (table.storage, marks), threads=threads))
        listed = np.unique(np.concatenate([np.empty(0, np.int64), *answers]))
    # A part at a time, as in tasks: what is worked out takes several times as much as what is held.
    parts = 1 + (len(sketch.files) + len(sketch.vectors)) // _PART_ROWS
    return Suspects.joined(_suspects_of_part(part, parts, sketch, listed, shared) for part in range(parts))


def _suspects_of_part(part: int, parts: int, sketch: Sketch, listed: Keys | None, shared: Comparing) -> Suspects:
    of_files, of_vectors, of_targets = (
        part_of(keys, parts) == part for keys in (sketch.files["key"], sketch.vectors["key"], sketch.vectors["ref"])
    )
    some = Sketch(sketch.files[of_files], sketch.vectors[of_vectors])
    return suspects_of(some, sketch.vectors[of_targets], listed, shared.meeting, shared.is_delete)


def _read_here(manifests: Sequence[Numbered], decode: DecodeTask, tally: Tally) -> Sketch:
    threads = threads_count(manifest.manifest_path for _, manifest in manifests)
    read = all_results(run_tasks(None, chunks(manifests), _sketched, decode, threads=threads))
    for _, gaps in read:
        tally.merge(gaps)
    return Sketch.joined(one for one, _ in read)


def _sketched(some: Sequence[Numbered], decode: DecodeTask) -> tuple[Sketch, Tally]:
    tally = Tally()
    return sketch_of(some, decode, tally), tally


def _listed(share: ListingShare, shared: tuple[Storage, Keys]) -> Keys:
    """The marks of a share that entries name, which ascend."""
    storage, marks = shared
    found = [np.empty(0, np.int64)]
    for _, some in listed_batches(share, storage):
        found.append(some[among(some, marks)])
    return np.concatenate(found)


def _in_tasks(
    table: Table, manifests: Sequence[Numbered], shared: Comparing, spark: SparkSource, tally: Tally
) -> Suspects:
    session = started(spark)
    files_count = max(entries_count(manifest for _, manifest in manifests), 2 * limits_of(spark).listed_files_count)
    tasks = tasks_count(session, sum(manifest.manifest_length for _, manifest in manifests), MANIFEST_BYTES)
    bins = balanced(manifests, lambda one: one[1].manifest_length, tasks)
    lists = tasks_count(session, files_count, LISTED_FILES, a_slot=_SHARES_A_SLOT)
    sendings = [
        *(_Sending(manifests=tuple(some)) for some in bins),
        *(_Sending(shares=tuple(some)) for some in balanced(listing_shares(table, lists), each_once, lists)),
    ]
    rows_count = entries_count(manifest for _, manifest in manifests) + files_count
    parts = tasks_count(session, rows_count, SHUFFLED_KEYS, a_slot=2)
    shared = msgspec.structs.replace(shared, parts=parts)
    ran = run_exchange(session, sendings, _send, parts, _received, shared, step="holding files against the store")
    found: list[Suspects] = []
    for suspects, gaps in all_results(ran):
        tally.merge(gaps)
        found.append(suspects)
    return Suspects.joined(found)


def part_of(keys: Keys, parts: int) -> NDArray[np.int64]:
    """Which part the files of some keys go to."""
    numbers: NDArray[np.int64] = (keys.view(np.uint64) % np.uint64(parts)).astype(np.int64)
    return numbers


def _send(sending: _Sending, shared: Comparing) -> Iterator[tuple[int, _Sent]]:
    tally = Tally()
    for some in chunks(sending.manifests):
        sketch = sketch_of(some, shared.decode, tally)
        of_files, of_vectors = (part_of(rows["key"], shared.parts) for rows in (sketch.files, sketch.vectors))
        for part in np.union1d(of_files, of_vectors).tolist():
            yield part, _Sent(entries=Sketch(sketch.files[of_files == part], sketch.vectors[of_vectors == part]))
        of_targets = part_of(sketch.vectors["ref"], shared.parts)
        for part in np.unique(of_targets).tolist():
            yield part, _Sent(targets=sketch.vectors[of_targets == part])
    listed = (one for share in sending.shares for one in listed_batches(share, shared.storage))
    for several in packed(listed, (lambda one: len(one[0]), _SENT_ROWS)):
        keys, marks = (np.concatenate(arrays) for arrays in zip(*several, strict=True))
        of_marks = part_of(keys, shared.parts)
        for part in np.unique(of_marks).tolist():
            yield part, _Sent(listed=marks[of_marks == part])
    yield 0, _Sent(tally=tally)


def _received(part: int, sent: Iterable[tuple[int, _Sent]], shared: Comparing) -> tuple[Suspects, Tally]:
    entries: list[Sketch] = []
    listed, targets, tally = [np.empty(0, np.int64)], [np.empty(0, VECTOR)], Tally()
    for _, one in sent:
        if one.entries is not None:
            entries.append(one.entries)
        if one.targets is not None:
            targets.append(one.targets)
        if one.listed is not None:
            listed.append(one.listed)
        if one.tally is not None:
            tally.merge(one.tally)
    found = suspects_of(
        Sketch.joined(entries),
        np.concatenate(targets),
        np.unique(np.concatenate(listed)),
        shared.meeting,
        shared.is_delete,
    )
    return found, tally
