"""The live entries of manifests, brought together by file: in threads of this process, or in Spark tasks by keys of locations.

A manifest that cannot be read whole is a gap, and none of its entries is looked at. Entries are brought together as Arrow
tables, and become Python values for some files at a time.
"""

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyroaring import BitMap

from icekeep.catalog.base import Table
from icekeep.errors import InvalidTableError, UnsupportedError, UsageError, first_line
from icekeep.maintenance.check.faults import Fault, FaultId, Tally
from icekeep.maintenance.check.lists import Listed
from icekeep.maintenance.delete.locations import compared
from icekeep.maintenance.delete.reachable import among
from icekeep.planning.decoder import chosen_decoder
from icekeep.planning.entries import DecodeTask, EntryFilter, SpecFilter, decode, entries_count, threads_count
from icekeep.planning.spark.session import SparkSource, limits_of, started
from icekeep.planning.spark.tasks import all_results, run_exchange, run_tasks
from icekeep.planning.spark.workers import MANIFEST_BYTES, TaskSize, tasks_count
from icekeep.spec.collections import balanced, packed
from icekeep.spec.manifests.structs import FileContent, ManifestContent, ManifestFile
from icekeep.spec.snapshots import Snapshot
from icekeep.spec.types import GIB, MIB
from icekeep.storage.location_keys import Keys, location_keys
from icekeep.storage.locations import is_location

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

R = TypeVar("R")
S = TypeVar("S")

Numbered: TypeAlias = tuple[int, ManifestFile]
"""A manifest with its number, which is its index in `Listed.manifests`."""

Row: TypeAlias = Mapping[str, Any]
"""An entry as Python values, with `manifest`, the number of its manifest."""

_CHUNK_BYTES = 5 * MIB
_ROWS_AT_ONCE = 200
_TASK_BYTES = TaskSize(16 * MIB, GIB)
_FILE_BYTES = MIB // 2
"""What opening a file costs besides reading it, in bytes."""

_MOST_PARTS = 20_000


class Membership(msgspec.Struct, frozen=True):
    """Which snapshots have each manifest; can be pickled.

    Attributes:
        manifest_paths: by number.
        snapshot_ids: of the snapshots that are looked at, the oldest first.
        snapshots_of: by number of a manifest the positions in `snapshot_ids` of those that have it.
    """

    manifest_paths: tuple[str, ...]
    snapshot_ids: tuple[int, ...]
    snapshots_of: tuple[BitMap, ...]

    @classmethod
    def of(cls, snapshots: Sequence[Snapshot], listed: Listed) -> "Membership":
        """Invert what a listing says of each snapshot: the work grows with what changes from one to the next."""
        ids = tuple(dict.fromkeys(snapshot.snapshot_id for snapshot in snapshots))
        found = [BitMap() for _ in listed.manifests]
        begun: dict[int, int] = {}
        before = BitMap()
        for position, snapshot_id in enumerate((*ids, None)):
            now = BitMap() if snapshot_id is None else listed.members.get(snapshot_id, BitMap())
            for number in before - now:
                found[number].add_range(begun.pop(number), position)
            begun.update(dict.fromkeys(now - before, position))
            before = now
        return cls(tuple(manifest.manifest_path for manifest in listed.manifests), ids, tuple(found))

    def live(self, listed: Listed, content: ManifestContent | None = None) -> list[Numbered]:
        """The manifests, of one content or of all, that may have live files."""
        return [
            (number, manifest)
            for number, manifest in enumerate(listed.manifests)
            if manifest.may_have_live_files and self.snapshots_of[number] and content in (None, manifest.content)
        ]

    def are_apart(self, manifests: Iterable[int]) -> bool:
        """Whether no snapshot has two of some manifests, or one of them twice."""
        seen, count = BitMap(), 0
        for number in manifests:
            seen |= self.snapshots_of[number]
            count += len(self.snapshots_of[number])
        return len(seen) == count

    def holding(self, rows: Iterable[Row]) -> BitMap:
        """The positions of the snapshots that have any of some entries."""
        return BitMap.union(BitMap(), *(self.snapshots_of[row["manifest"]] for row in rows))

    def oldest(self, positions: BitMap) -> int | None:
        """The id of the oldest of some snapshots."""
        return self.snapshot_ids[positions.min()] if positions else None

    def fault(self, number: FaultId, rows: Sequence[Row], detail: str, **facts: Any) -> Fault:
        """A fault of a file by some entries, of which the first is named."""
        first = rows[0]
        known = {
            "manifest": self.manifest_paths[first["manifest"]],
            "file_path": first["file_path"],
            "content_offset": vector_offset(first),
            "spec_id": first["spec_id"],
        }
        snapshot_id = self.oldest(self.holding(rows))
        return Fault(
            number=number, where=first["file_path"], detail=detail, snapshot_id=snapshot_id, facts={**known, **facts}
        )


def decode_task(table: Table, manifests: Iterable[Numbered], columns: Iterable[str]) -> DecodeTask:
    """How live entries of some manifests are read: without the manifests, for `batches`."""
    spec_ids = {manifest.partition_spec_id for _, manifest in manifests}
    specs = {number: SpecFilter(table.metadata.partition_type(number)) for number in spec_ids}
    return DecodeTask(
        manifests=(),
        wanted=EntryFilter(specs=specs),
        columns=frozenset({"manifest_path", *columns}),
        storage=table.storage,
        decoder=chosen_decoder()[0],
    )


def chunks(manifests: Iterable[Numbered]) -> list[list[Numbered]]:
    """Neighbours of one content, some megabytes of them together."""
    by_content: defaultdict[ManifestContent, list[Numbered]] = defaultdict(list)
    for one in manifests:
        by_content[one[1].content].append(one)
    in_order = sorted(by_content.items())
    return [chunk for _, some in in_order for chunk in packed(some, (_length, _CHUNK_BYTES))]


def _length(one: Numbered) -> int:
    return one[1].manifest_length


def bins_of(manifests: Sequence[Numbered], session: "SparkSession") -> list[list[Numbered]]:
    """The manifests, divided among Spark tasks that read them."""
    return balanced(manifests, _length, tasks_count(session, sum(map(_length, manifests)), MANIFEST_BYTES))


def threads_of(manifests: Iterable[Numbered]) -> int:
    """How many threads read manifests."""
    return threads_count(manifest.manifest_path for _, manifest in manifests)


def count_of(manifests: Iterable[Numbered]) -> int:
    """How many entries manifests have by their rows in lists."""
    return entries_count(manifest for _, manifest in manifests)


def over_manifests(
    spark: SparkSource, manifests: Sequence[Numbered], work: Callable[[Sequence[Numbered], S], R], shared: S, step: str
) -> list[R]:
    """Run some work, which holds little in memory, over manifests.

    Args:
        work: a function of a module, called with some manifests and what all share.
        step: what Spark's pages say of it.
    """
    session, some = None, chunks(manifests)
    if count_of(manifests) > limits_of(spark).folded_entries_count:
        session = started(spark)
        some = bins_of(manifests, session)
    return all_results(run_tasks(session, some, work, shared, step=step, threads=threads_of(manifests)))


def batches(
    some: Sequence[Numbered], task: DecodeTask, gaps: Tally
) -> Iterator[tuple[pa.RecordBatch, NDArray[np.int32]]]:
    """The live entries of a chunk of manifests, each with the number of its manifest.

    A manifest is a gap where it cannot be read whole, and gives no entry then.
    """
    manifests = tuple(manifest for _, manifest in some)
    try:
        found = [decoded.entries for decoded in decode(msgspec.structs.replace(task, manifests=manifests))]
    except (InvalidTableError, UnsupportedError, UsageError) as error:
        if len(some) == 1:
            path = manifests[0].manifest_path
            gaps.unread_manifests.add(path)
            gaps.gap(f"the files of manifest {path!r}", first_line(error))
            return
        for one in some:
            yield from batches([one], task, gaps)
        return
    numbers = np.array([number for number, _ in some], np.int32)
    paths = pa.array([manifest.manifest_path for manifest in manifests])
    for batch in found:
        if batch.num_rows:
            yield batch, numbers[pc.index_in(batch["manifest_path"], paths).to_numpy()]


def keyed_batches(
    manifests: Sequence[Numbered], decode: DecodeTask, gaps: Tally, column: str = "file_path"
) -> Iterator[tuple[pa.RecordBatch, NDArray[np.int32], Keys, NDArray[np.bool_]]]:
    """As `batches`, of many manifests; with the keys of the locations in a column, and which of these are locations."""
    for some in chunks(manifests):
        for batch, numbers in batches(some, decode, gaps):
            keys, there = keys_of(batch[column])
            yield batch, numbers, keys, there


def keys_of(locations: pa.Array) -> tuple[Keys, NDArray[np.bool_]]:
    """`location_keys`, and which of the texts are locations at all; the keys of others, and of nulls, are 0."""
    there = np.asarray(locations.is_valid())
    try:
        if there.all():
            return location_keys(locations), there
        keys = np.zeros(len(locations), np.int64)
        keys[there] = location_keys(locations.drop_null())
    except InvalidTableError:
        there = np.array([text is not None and is_location(text) for text in locations.to_pylist()], np.bool_)
        keys = np.zeros(len(locations), np.int64)
        keys[there] = location_keys(locations.filter(pa.array(there)))
    return keys, there


def part_of(keys: Keys, parts: int) -> NDArray[np.int64]:
    """Which part the files of some keys go to."""
    numbers: NDArray[np.int64] = (keys.view(np.uint64) % np.uint64(parts)).astype(np.int64)
    return numbers


class FileJoin(msgspec.Struct, frozen=True, kw_only=True):
    """How entries are brought together by file, and what is done then; can be pickled.

    Attributes:
        work: a function of a module or class, called with `shared` and the entries of some files, a list for each file; `None`
            where only entries are asked for.
        column: has the file that an entry is for; entries without one are left out.
        wanted: keys of the files that are looked at, ascending; all where it is `None`.
    """

    decode: DecodeTask
    work: Callable[[Any, Iterable[list[Row]]], Any] | None = None
    shared: Any = None
    column: str = "file_path"
    wanted: Keys | None = None
    parts: int = 1

    def files(self, spark: SparkSource, manifests: Sequence[Numbered], gaps: Tally) -> list[list[Row]]:
        """The entries of each file."""
        read = over_manifests(spark, manifests, _read, self, "reading entries")
        return [*_by_file((one for some in read for _, one in some), self.column, gaps)]

    def here(self, files: Sequence[list[list[Row]]]) -> list[Any]:
        """The results of the work, done in threads on some files at a time."""
        threads = threads_count(rows[0][self.column] for some in files for rows in some)
        return all_results(run_tasks(None, files, _work, self, threads=threads))

    def in_tasks(
        self, manifests: Sequence[Numbered], session: "SparkSession", parts: int, gaps: Tally, step: str
    ) -> list[Any]:
        """The results of the work, done in Spark tasks, each of which has the files of one part."""
        join = msgspec.structs.replace(self, parts=parts)
        ran = run_exchange(session, bins_of(manifests, session), _send, parts, _receive, join, step=step)
        results = []
        for result, unread in all_results(ran):
            results.append(result)
            gaps.merge(unread)
        return results

    def parts_by_bytes(self, manifests: Sequence[Numbered], session: "SparkSession", spark: SparkSource) -> int:
        """How many tasks are to read the files whole; a file of several manifests counts several times."""
        columns = frozenset({"manifest_path", "content", "file_size_in_bytes", "content_size_in_bytes"})
        decode = msgspec.structs.replace(self.decode, columns=columns)
        sizes = over_manifests(spark, manifests, _bytes_of, decode, "adding up files")
        # The sizes that entries record may be wrong.
        return max(1, min(_MOST_PARTS, count_of(manifests), tasks_count(session, sum(sizes), _TASK_BYTES)))


def _bytes_of(manifests: Sequence[Numbered], decode: DecodeTask) -> int:
    total = 0
    for some in chunks(manifests):
        for batch, _ in batches(some, decode, Tally()):
            own = pc.coalesce(batch["content_size_in_bytes"], batch["file_size_in_bytes"])
            total += int(np.clip(own.to_numpy(zero_copy_only=False), _FILE_BYTES, GIB << 10).sum())
    return total


def _read(some: Sequence[Numbered], join: FileJoin) -> list[tuple[int, pa.Table | Tally]]:
    return [*_send(some, join)]


def _send(manifests: Sequence[Numbered], join: FileJoin) -> Iterator[tuple[int, pa.Table | Tally]]:
    gaps = Tally()
    for batch, numbers, keys, there in keyed_batches(manifests, join.decode, gaps, join.column):
        wanted = there if join.wanted is None else there & among(keys, join.wanted)
        parts = part_of(keys, join.parts)
        rows = pa.Table.from_batches([batch]).append_column("manifest", pa.array(numbers))
        for part in np.unique(parts[wanted]).tolist():
            # Taken, so that what is sent of a batch is not all of it.
            yield part, rows.take(pa.array(np.flatnonzero(wanted & (parts == part))))
    yield 0, gaps


def _receive(part: int, sent: Iterable[tuple[int, pa.Table | Tally]], join: FileJoin) -> tuple[Any, Tally]:
    gaps = Tally()
    return _work(_by_file((one for _, one in sent), join.column, gaps), join), gaps


def _work(files: Iterable[list[Row]], join: FileJoin) -> Any:
    assert join.work is not None
    return join.work(join.shared, files)


def _by_file(sent: Iterable[pa.Table | Tally], column: str, gaps: Tally) -> Iterator[list[Row]]:
    """The entries of each file; some files at a time, since metrics take ten times as much as Python values."""
    tables = []
    for one in sent:
        if isinstance(one, Tally):
            gaps.merge(one)
        else:
            tables.append(one)
    if not tables:
        return
    entries = pa.concat_tables(tables).combine_chunks()
    keys = keys_of(entries[column].combine_chunks())[0]
    order = np.argsort(keys, kind="stable")
    starts = np.flatnonzero(np.append(True, np.diff(keys[order]) != 0))
    cuts = starts[np.unique(starts // _ROWS_AT_ONCE, return_index=True)[1]]
    for indices in np.split(order, cuts[1:]):
        files: defaultdict[Hashable, list[Row]] = defaultdict(list)
        for row in entries.take(pa.array(indices)).to_pylist():
            files[compared(row[column])].append(row)
        yield from files.values()


def is_vector(row: Row) -> bool:
    """Whether an entry is of a deletion vector, as `reach.is_deletion_vector` says."""
    return bool(row.get("content") == FileContent.POSITION_DELETES and row["file_format"].lower() == "puffin")


def vector_offset(row: Row) -> int | None:
    """Where a deletion vector begins, which tells the vectors of one Puffin file apart; `None` for other files."""
    return row["content_offset"] if is_vector(row) else None
