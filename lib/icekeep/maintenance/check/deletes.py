"""Reading delete files: each once, held against all entries that name it; here in threads, or in Spark tasks by their keys.

What delete files hold, and how many rows the data files have from which they delete.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from icekeep.catalog.base import Table
from icekeep.errors import InvalidTableError
from icekeep.maintenance.check import row_ids as caps
from icekeep.maintenance.check.delete_files import (
    ENTRY_COLUMNS,
    DeleteFileClaim,
    EqualityCheck,
    LastPositions,
    Lengths,
    PositionCheck,
    PositionChecks,
    ReachConsumer,
    Reaches,
    Row,
    Telling,
    VectorCheck,
    claims_of,
    is_vector,
)
from icekeep.maintenance.check.entries import part_of
from icekeep.maintenance.check.faults import Tally
from icekeep.maintenance.check.lists import CheckedTable, Listed
from icekeep.maintenance.check.reading import Meeting, Numbered, batches, chunks, decode_task, keys_of
from icekeep.maintenance.check.row_ids import check_row_ids, keyed_batches, over_manifests
from icekeep.maintenance.delete.reachable import among
from icekeep.planning.entries import DecodeTask, entries_count, threads_count
from icekeep.planning.spark.session import SparkSource, limits_of, started
from icekeep.planning.spark.tasks import all_results, run_exchange, run_tasks
from icekeep.planning.spark.workers import DATA_BYTES, MANIFEST_BYTES, TaskSize, tasks_count
from icekeep.spec.collections import balanced, packed
from icekeep.spec.manifests.structs import FileContent, ManifestContent
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.schema import DELETE_FILE_PATH, NameMapping, name_mapping_of
from icekeep.spec.types import MIB
from icekeep.storage.base import Storage
from icekeep.storage.location_keys import Keys

_FILES_OF_TASK = TaskSize(200, 2_000)
"""Delete files that a task reads, however small they are."""

_FILES_OF_THREAD, _BYTES_OF_THREAD = 20, 16 * MIB


class Examining(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked of delete files; can be pickled.

    Attributes:
        limit: how many pairs of a delete file and a data file a task holds; of more none is judged.
        only: keys of the delete files that are looked at; all where it is `None`.
        lengths: tell positions beyond the ends of these data files, and nothing else.
    """

    storage: Storage
    telling: Telling
    name_mapping: NameMapping | None
    limit: int
    only: Keys | None = None
    lengths: Lengths | None = None


class Examined(msgspec.Struct, frozen=True):
    """What was found; `is_cut` where there was too much to be noted in `reaches`."""

    tally: Tally
    reaches: Reaches
    is_cut: bool

    @classmethod
    def joined(cls, several: Iterable["Examined"], whole: frozenset[int]) -> "Examined":
        """What was found in parts."""
        held = [*several]
        tally = Tally(whole)
        for one in held:
            tally.merge(one.tally)
        reaches = np.concatenate([LastPositions(0).all(), *(one.reaches for one in held)])
        return cls(tally, reaches, any(one.is_cut for one in held))


class _Shared(msgspec.Struct, frozen=True):
    decode: DecodeTask
    examining: Examining
    parts: int = 1


class _Sent(msgspec.Struct, frozen=True):
    """Entries of delete files of one part, and what could not be read of manifests."""

    rows: pa.Table | None = None
    tally: Tally | None = None


def examine(table: Table, manifests: Sequence[Numbered], examining: Examining, spark: SparkSource) -> Examined:
    """Look into the delete files of some manifests.

    Raises:
        TryAgainError: the store or Spark is out of reach.
    """
    limits = limits_of(spark)
    shared = _Shared(decode_task(table, (manifest for _, manifest in manifests), ENTRY_COLUMNS), examining)
    whole = examining.telling.whole
    if entries_count(manifest for _, manifest in manifests) > limits.entries_count:
        return _in_tasks(manifests, shared, spark, None)
    threads = threads_count(manifest.manifest_path for _, manifest in manifests)
    read = all_results(run_tasks(None, chunks(manifests), _entries, shared, threads=threads))
    files = [*_files(rows for some in read for rows in some if rows.rows is not None)]
    bytes_count = sum(map(_size, files))
    if bytes_count > limits.checked_delete_bytes or len(files) > limits.footers_count:
        return _in_tasks(manifests, shared, spark, bytes_count)
    some = [*packed(files, (_one, _FILES_OF_THREAD), (_size, _BYTES_OF_THREAD))]
    found = all_results(run_tasks(None, some, _examined, examining, threads=threads))
    gaps = [
        Examined(one.tally, LastPositions(0).all(), False) for part in read for one in part if one.tally is not None
    ]
    return Examined.joined([*gaps, *found], whole)


def _in_tasks(manifests: Sequence[Numbered], shared: _Shared, spark: SparkSource, bytes_count: int | None) -> Examined:
    session = started(spark)
    length = sum(manifest.manifest_length for _, manifest in manifests)
    bins = balanced(manifests, lambda one: one[1].manifest_length, tasks_count(session, length, MANIFEST_BYTES))
    files = entries_count(manifest for _, manifest in manifests)
    parts = max(
        tasks_count(session, files, _FILES_OF_TASK, a_slot=2),
        tasks_count(session, bytes_count or 0, DATA_BYTES, a_slot=2),
    )
    # What entries say of bytes may be wrong.
    parts = max(1, min(parts, files))
    limit = max(1, shared.examining.limit // parts)
    examining = msgspec.structs.replace(shared.examining, limit=limit)
    shared = msgspec.structs.replace(shared, parts=parts, examining=examining)
    ran = run_exchange(session, bins, _send, parts, _received, shared, step="reading delete files")
    return Examined.joined(all_results(ran), examining.telling.whole)


def _entries(some: Sequence[Numbered], shared: _Shared) -> list[_Sent]:
    return [one for _, one in _send(some, shared)]


def _send(manifests: Sequence[Numbered], shared: _Shared) -> Iterator[tuple[int, _Sent]]:
    tally, only = Tally(), shared.examining.only
    for some in chunks(manifests):
        for batch, numbers in batches(some, shared.decode, tally):
            # A path that is no location is noted where files are held against the store.
            keys, there = keys_of(batch["file_path"])
            wanted = there if only is None else there & among(keys, only)
            wanted = wanted & (batch["content"].to_numpy() != FileContent.DATA)
            rows, parts = _rows_of(batch).append_column("manifest", pa.array(numbers)), part_of(keys, shared.parts)
            for part in np.unique(parts[wanted]).tolist():
                yield part, _Sent(rows=rows.take(pa.array(np.flatnonzero(wanted & (parts == part)))))
    yield 0, _Sent(tally=tally)


def _rows_of(batch: pa.RecordBatch) -> pa.Table:
    """The columns of `claims.Row`: of all bounds only those of paths."""
    columns = {name: batch[name] for name in ENTRY_COLUMNS if name not in ("lower_bounds", "upper_bounds")}
    key = pa.scalar(DELETE_FILE_PATH.field_id, pa.int32())
    for name, bounds in (("first_path", "lower_bounds"), ("last_path", "upper_bounds")):
        columns[name] = pc.map_lookup(batch[bounds], key, "first")
    return pa.table(columns)


def _received(part: int, sent: Iterable[tuple[int, _Sent]], shared: _Shared) -> Examined:
    held = [one for _, one in sent]
    tally = Tally(shared.examining.telling.whole)
    for one in held:
        if one.tally is not None:
            tally.merge(one.tally)
    found = _examined([*_files(one for one in held if one.rows is not None)], shared.examining)
    return Examined.joined([Examined(tally, LastPositions(0).all(), False), found], tally.whole)


def _files(sent: Iterable[_Sent]) -> Iterator[list[Row]]:
    """The entries of each file."""
    by_path: defaultdict[str, list[Row]] = defaultdict(list)
    for one in sent:
        for row in [] if one.rows is None else one.rows.to_pylist():
            by_path[row["file_path"]].append(row)
    return iter([by_path[path] for path in sorted(by_path)])


def _size(rows: Sequence[Row]) -> int:
    """What is read of a file: of vectors their blobs, which are in it, of other files all."""
    length = abs(int(rows[0]["file_size_in_bytes"]))
    if is_vector(rows[0]):
        return min(length, sum(abs(row["content_size_in_bytes"] or 0) for row in rows))
    return length


def _one(rows: Sequence[Row]) -> int:
    return len(rows) if is_vector(rows[0]) else 1


def _examined(files: Sequence[Sequence[Row]], examining: Examining) -> Examined:
    tally, noted = Tally(examining.telling.whole), LastPositions(examining.limit)
    beyond = Tally(examining.telling.whole)
    seen: ReachConsumer = noted
    if examining.lengths is not None:
        seen = PositionChecks(examining.lengths, examining.telling, beyond)
    for rows in files:
        _examine(claims_of(rows), examining, tally, seen)
    return Examined(tally if examining.lengths is None else beyond, noted.all(), noted.is_cut)


def _examine(claims: Sequence[DeleteFileClaim], examining: Examining, tally: Tally, seen: ReachConsumer) -> None:
    """Look into one file, as each kind of delete file that its entries take it for."""
    storage, telling = examining.storage, examining.telling
    vectors = [claim for claim in claims if is_vector(claim.row)]
    if vectors:
        VectorCheck(storage, telling).check(vectors, tally, seen)
    others = [claim for claim in claims if not is_vector(claim.row)]
    if any(claim.row["key_metadata"] is not None for claim in others):
        tally.gap(f"delete file {others[0].path!r}", "it is encrypted")
        return
    positions = [claim for claim in others if claim.row["content"] == FileContent.POSITION_DELETES]
    if positions:
        PositionCheck(storage, telling).check(positions, tally, seen)
    equality = [claim for claim in others if claim.row["content"] == FileContent.EQUALITY_DELETES]
    if equality and examining.lengths is None:
        EqualityCheck(storage, telling, examining.name_mapping).check(equality, tally)


_LENGTH_COLUMNS = ("file_path", "record_count")


def check_delete_content(subject: CheckedTable, listed: Listed) -> None:
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
    subject: CheckedTable, listed: Listed, deletes: Sequence[Numbered], data: Sequence[Numbered], meeting: Meeting
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


def _beyond(subject: CheckedTable, data: Sequence[Numbered], reaches: Reaches) -> _Beyond:
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
