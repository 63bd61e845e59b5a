"""Live entries of manifests, in batches with the numbers of their manifests; one that cannot be read is a gap.

Keys of locations that may be none, and keys made of two.

What storage has below a table's directories, as marks: keys of locations with sizes.

Which manifests one snapshot has together: a file in two manifests is doubled only where they meet.

The faults among entries of one file, or of the vectors of one data file: by what they say, and what the store has.

What is held of each live entry while all are compared: keys, a size and the number of its manifest, 20 bytes a file.
"""

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import islice
from typing import Any, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyroaring import BitMap

from icekeep.catalog.base import Table
from icekeep.errors import InvalidTableError, UnsupportedError, UsageError, and_more, first_line
from icekeep.maintenance.check.faults import Fault, FaultId, Tally
from icekeep.maintenance.check.lists import Listed
from icekeep.maintenance.delete.locations import compared, table_roots
from icekeep.maintenance.delete.reachable import among
from icekeep.planning.decoder import chosen_decoder
from icekeep.planning.entries import DecodeTask, EntryFilter, SpecFilter, decode
from icekeep.spec.collections import packed
from icekeep.spec.manifests.structs import FileContent, ManifestContent, ManifestFile
from icekeep.spec.manifests.write import PartitionCodecs
from icekeep.spec.properties import metadata_directory
from icekeep.spec.snapshots import Snapshot
from icekeep.spec.types import MIB, StructType
from icekeep.storage.base import REQUESTS_AT_ONCE, FileInfo, ListingShare, Storage, answer_each
from icekeep.storage.location_keys import Keys, location_keys
from icekeep.storage.locations import is_location

Numbered: TypeAlias = tuple[int, ManifestFile]
"""A manifest with its number, which is its index in `Listed.manifests`."""

_CHUNK_BYTES = 5 * MIB


def decode_task(table: Table, manifests: Iterable[ManifestFile], columns: Iterable[str]) -> DecodeTask:
    """How live entries of some manifests are read: without the manifests, for `batches`."""
    spec_ids = {manifest.partition_spec_id for manifest in manifests}
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
    in_order = sorted(manifests, key=lambda one: one[1].content)
    return [
        some
        for content in dict.fromkeys(manifest.content for _, manifest in in_order)
        for some in packed(
            (one for one in in_order if one[1].content is content), (lambda one: one[1].manifest_length, _CHUNK_BYTES)
        )
    ]


def batches(
    some: Sequence[Numbered], task: DecodeTask, tally: Tally
) -> Iterator[tuple[pa.RecordBatch, NDArray[np.int32]]]:
    """The live entries of a chunk of manifests, each with the number of its manifest.

    A manifest is noted in the tally as a gap where it cannot be read whole, and gives no entry then.

    Raises:
        TryAgainError: the store is out of reach.
    """
    manifests = tuple(manifest for _, manifest in some)
    try:
        found = [decoded.entries for decoded in decode(msgspec.structs.replace(task, manifests=manifests))]
    except (InvalidTableError, UnsupportedError, UsageError) as error:
        if len(some) == 1:
            tally.unread_manifest(manifests[0].manifest_path, first_line(error))
            return
        for one in some:
            yield from batches([one], task, tally)
        return
    numbers = np.array([number for number, _ in some], np.int32)
    paths = pa.array([manifest.manifest_path for manifest in manifests])
    for batch in found:
        if batch.num_rows:
            yield batch, numbers[pc.index_in(batch["manifest_path"], paths).to_numpy()]


_FACTOR = np.uint64(0xD6E8FEB86659FD93)


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


def paired(keys: Keys, numbers: Keys) -> Keys:
    """A key of each pair of a key and a number; of one key with different numbers they always differ."""
    mixed: Keys = (keys.astype(np.uint64) * _FACTOR + numbers.astype(np.uint64)).view(np.int64)
    return mixed


_BATCH_ROWS = 10_000


def listing_shares(table: Table, count: int) -> list[ListingShare]:
    """The listing of the directories that a table's files lie in, in about `count` shares; none where it may not be listed."""
    beside = metadata_directory(table.metadata).rstrip("/")
    roots = [root for root in table_roots(table.metadata) if root.rstrip("/") != beside]
    shares: list[ListingShare] = []
    for root in roots:
        try:
            shares += table.storage.shares(root, max(1, count // len(roots)))
        except (InvalidTableError, UnsupportedError, UsageError):
            # Its files are looked for one by one then.
            continue
    return shares


def listed_batches(share: ListingShare, storage: Storage) -> Iterator[tuple[Keys, Keys]]:
    """Keys of the files of a share, and their marks; as far as the share may be listed.

    Raises:
        UnavailableError: the store is out of reach.
    """
    infos = storage.list_share(share)
    while True:
        try:
            some: list[FileInfo] = [*islice(infos, _BATCH_ROWS)]
        except (InvalidTableError, UnsupportedError, UsageError):
            return
        if not some:
            return
        keys, there = keys_of(pa.array([info.location for info in some], pa.string()))
        sizes = np.array([info.size_bytes for info in some], np.int64)
        yield keys[there], paired(keys[there], sizes[there])


def look_up(locations: Sequence[str], storage: Storage) -> list[FileInfo | str | None]:
    """What there is at some locations, as `Storage.head` tells it; a text says why nobody can tell.

    Raises:
        UnavailableError: the store is out of reach.
    """

    def head(location: str) -> FileInfo | str | None:
        try:
            return storage.head(location)
        except (InvalidTableError, UnsupportedError, UsageError) as error:
            return first_line(error)

    return answer_each(head, locations, lambda location: location, REQUESTS_AT_ONCE)


class Meeting(msgspec.Struct, frozen=True):
    """The snapshots of each manifest; can be pickled.

    Attributes:
        snapshot_ids: of the snapshots that are looked at, the oldest first.
        snapshots_of: by number of a manifest the positions in `snapshot_ids` of those that have it.
    """

    snapshot_ids: tuple[int, ...]
    snapshots_of: tuple[BitMap, ...]

    @classmethod
    def of(cls, snapshots: Sequence[Snapshot], listed: Listed) -> "Meeting":
        """Turn round what a listing says of each snapshot: the work grows with what changes from one to the next."""
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
        return cls(ids, tuple(found))

    def are_apart(self, manifests: Iterable[int]) -> bool:
        """Whether no snapshot has two of some manifests, or one of them twice."""
        seen, count = BitMap(), 0
        for number in manifests:
            seen |= self.snapshots_of[number]
            count += len(self.snapshots_of[number])
        return len(seen) == count

    def holding(self, manifests: Iterable[int]) -> BitMap:
        """The positions of the snapshots that have any of some manifests."""
        return BitMap.union(BitMap(), *(self.snapshots_of[number] for number in manifests))

    def oldest(self, positions: BitMap) -> int | None:
        """The id of the oldest of some snapshots."""
        return self.snapshot_ids[positions.min()] if positions else None


def twice(several: Iterable[BitMap]) -> BitMap:
    """The snapshots that are in two of some sets, or more."""
    seen, again = BitMap(), BitMap()
    for one in several:
        again |= seen & one
        seen |= one
    return again


MOVED_ON = "the table moved on while it was checked"
_MAX_TOLD = 1_000
"""So many entries of one file are told."""

Row = Mapping[str, Any]


class EntryChecks(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """What is asked of entries; can be pickled.

    Attributes:
        manifest_paths: by number.
        partitions: the partition types of the specs.
        unseen: keys of files that are looked up in the store.
        gone: positions of snapshots that the table no longer has.
        whole: classes of which every fault is kept.
    """

    meeting: Meeting
    manifest_paths: tuple[str, ...]
    partitions: Mapping[int, StructType]
    storage: Storage
    unseen: Keys
    gone: BitMap
    whole: frozenset[int]

    def files(self, rows: Sequence[Row], tally: Tally) -> None:
        """Tell the faults of files, of each of which these are all entries (212, 301, 302, 303, 306)."""
        by_file = _grouped(rows, lambda row: compared(row["file_path"]))
        is_unseen = among(np.array([some[0]["key"] for some in by_file], np.int64), self.unseen)
        asked = [some[0]["file_path"] for some, ask in zip(by_file, is_unseen, strict=True) if ask]
        there = dict(zip(asked, look_up(asked, self.storage), strict=True))
        for some in by_file:
            for alike in _grouped(some, lambda row: (_is_data(row), _offset(row))):
                self._doubled(alike, tally)
            self._both(some, tally)
            if some[0]["file_path"] in there:
                self._stored(some, there[some[0]["file_path"]], tally)

    def targets(self, rows: Sequence[Row], tally: Tally) -> None:
        """Tell which data files have two vectors; these are all vectors of each of them (213)."""
        for some in _grouped(rows, lambda row: compared(row["referenced_data_file"])):
            vectors = _grouped(some, lambda row: (compared(row["file_path"]), _offset(row)))
            positions = twice(self._holding(alike) for alike in vectors)
            if not positions:
                continue
            path = some[0]["referenced_data_file"]
            told = [row for row in some if self._holding([row]) & positions]
            names = _several(f"{row['file_path']!r} at {row['content_offset']}" for row in told)
            detail = f"one snapshot has several deletion vectors for it, {names}, where it may have one"
            facts = {"referenced_data_file": path}
            tally.add(self._fault(FaultId.TWO_VECTORS, path, detail, told, positions, **facts))

    def _doubled(self, rows: Sequence[Row], tally: Tally) -> None:
        positions = twice(self._holding([row]) for row in rows)
        if not positions:
            return
        told = [row for row in rows if self._holding([row]) & positions]
        names = _several(repr(self.manifest_paths[row["manifest"]]) for row in told)
        detail = f"one snapshot has it live several times, by entries of {names}, where a file is live once"
        if len({row["file_path"] for row in told}) > 1:
            detail += "; it is spelled in several ways"
        tally.add(self._fault(FaultId.DOUBLED_FILE, told[0]["file_path"], detail, told, positions))

    def _both(self, rows: Sequence[Row], tally: Tally) -> None:
        data, deletes = ([row for row in rows if _is_data(row) is is_data] for is_data in (True, False))
        if not data or not deletes:
            return
        first, second = (self.manifest_paths[some[0]["manifest"]] for some in (data, deletes))
        detail = f"it is a data file in manifest {first!r} and a delete file in manifest {second!r}"
        positions = self._holding(data) & self._holding(deletes) or self._holding(rows)
        tally.add(self._fault(FaultId.DATA_AND_DELETE, rows[0]["file_path"], detail, rows, positions))

    def _stored(self, rows: Sequence[Row], info: FileInfo | str | None, tally: Tally) -> None:
        path = rows[0]["file_path"]
        if isinstance(info, str):
            tally.gap(f"file {path!r}", info)
            return
        wrong = [row for row in rows if info is None or row["file_size_in_bytes"] != info.size_bytes]
        positions = self._holding(wrong) - self.gone
        if not positions:
            if wrong:
                tally.gap(f"file {path!r}", MOVED_ON)
        elif info is None:
            for is_data, number in ((True, FaultId.DATA_FILE_MISSING), (False, FaultId.DELETE_FILE_MISSING)):
                told = [row for row in wrong if _is_data(row) is is_data]
                if positions := self._holding(told) - self.gone:
                    tally.add(self._fault(number, path, "there is no such file", told, positions))
        elif any(row["key_metadata"] is not None for row in wrong):
            tally.gap(f"the size of file {path!r}", "it is encrypted")
        else:
            found, recorded = info.size_bytes, wrong[0]["file_size_in_bytes"]
            detail = f"it has {found} bytes where its entry says {recorded}"
            tally.add(
                self._fault(FaultId.FILE_SIZE_WRONG, path, detail, wrong, positions, recorded=recorded, found=found)
            )

    def _holding(self, rows: Iterable[Row]) -> BitMap:
        return self.meeting.holding(row["manifest"] for row in rows)

    def _fault(
        self, number: int, where: str, detail: str, rows: Sequence[Row], positions: BitMap, **facts: Any
    ) -> Fault:
        """A fault of some entries; facts tell of the first and of each."""
        entries = [self._told(row) for row in rows[:_MAX_TOLD]]
        return Fault(
            number=number,
            where=where,
            detail=detail,
            snapshot_id=self.meeting.oldest(positions),
            facts={
                **entries[0],
                "entries": entries,
                "entries_count": len(rows),
                "snapshots_count": len(positions),
                **facts,
            },
        )

    @cached_property
    def _codecs(self) -> PartitionCodecs:
        return PartitionCodecs(self.partitions)

    def _partition(self, row: Row) -> list[str | None]:
        """Its values as texts."""
        values = self._codecs.decode(row["spec_id"], row["partition"])
        return [None if value is None else str(value) for value in values]

    def _told(self, row: Row) -> dict[str, Any]:
        return {
            "manifest": self.manifest_paths[row["manifest"]],
            "file_path": row["file_path"],
            "content": row["content"],
            "content_offset": _offset(row),
            "content_size_in_bytes": row["content_size_in_bytes"],
            "referenced_data_file": row["referenced_data_file"],
            "spec_id": row["spec_id"],
            "partition": self._partition(row),
            "sequence_number": row["sequence_number"],
            "added_snapshot_id": row["snapshot_id"],
            "record_count": row["record_count"],
            "file_size_in_bytes": row["file_size_in_bytes"],
        }


def _grouped(rows: Sequence[Row], key: Callable[[Row], Hashable]) -> list[list[Row]]:
    """Rows of one key together, in an order that does not depend on how they came."""
    groups: defaultdict[Hashable, list[Row]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: (row["manifest"], row["file_path"], _offset(row) or 0)):
        groups[key(row)].append(row)
    return [*groups.values()]


def _is_data(row: Row) -> bool:
    return bool(row["content"] == FileContent.DATA)


def _offset(row: Row) -> int | None:
    """What tells the vectors of one Puffin file apart."""
    is_vector = row["content"] == FileContent.POSITION_DELETES and row["file_format"].lower() == "puffin"
    return row["content_offset"] if is_vector else None


def _several(names: Iterable[str]) -> str:
    """Some names in a sentence."""
    known = [*dict.fromkeys(names)]
    return f"{' and '.join(known[:2])}{and_more(known, 2)}"


Rows = NDArray[Any]

FILE = np.dtype([("key", np.int64), ("size", np.int64), ("manifest", np.int32)])
"""A data file, or a delete file that is no vector: the key of its location, its bytes, and the number of its manifest."""

VECTOR = np.dtype([*FILE.descr, ("id", np.int64), ("ref", np.int64)])
"""A deletion vector: as `FILE` has it of its Puffin file, a key of that and its offset, and the key of its data file or 0."""

DATA_COLUMNS = ("file_path", "file_size_in_bytes")
DELETE_COLUMNS = (*DATA_COLUMNS, "content", "file_format", "content_offset", "referenced_data_file")


class Sketch(msgspec.Struct, frozen=True):
    """Live entries; rows of `FILE`, and of `VECTOR`."""

    files: Rows
    vectors: Rows

    @classmethod
    def joined(cls, several: Iterable["Sketch"]) -> "Sketch":
        """The entries of all."""
        held = [*several]
        files = [np.empty(0, FILE), *(one.files for one in held)]
        return cls(np.concatenate(files), np.concatenate([np.empty(0, VECTOR), *(one.vectors for one in held)]))

    @property
    def keys(self) -> Keys:
        """The keys of all files, those of vectors last."""
        return np.concatenate([self.files["key"], self.vectors["key"]])

    @property
    def manifests(self) -> NDArray[np.int32]:
        """The numbers of the manifests, in the same order."""
        return np.concatenate([self.files["manifest"], self.vectors["manifest"]])

    @property
    def marks(self) -> Keys:
        """Keys of files with their sizes, in the same order: what a listing of the store must have."""
        return paired(self.keys, np.concatenate([self.files["size"], self.vectors["size"]]))


def sketch_of(some: Sequence[Numbered], task: DecodeTask, tally: Tally) -> Sketch:
    """The live entries of a chunk of manifests of one content.

    Args:
        task: reads `DELETE_COLUMNS`.
        tally: is told of manifests that cannot be read, and of files whose paths are no locations.
    """
    is_data = some[0][1].content is ManifestContent.DATA
    columns = task.columns if not is_data else frozenset({"manifest_path", *DATA_COLUMNS})
    task = msgspec.structs.replace(task, columns=columns)
    return Sketch.joined(_sketch(batch, numbers, tally) for batch, numbers in batches(some, task, tally))


def _sketch(batch: pa.RecordBatch, numbers: NDArray[np.int32], tally: Tally) -> Sketch:
    keys, there = keys_of(batch["file_path"])
    if not there.all():
        for path in batch["file_path"].filter(pa.array(~there)).to_pylist():
            tally.gap(f"file {path!r}", "its path is no location")
        batch, keys, numbers = batch.filter(pa.array(there)), keys[there], numbers[there]
    rows = np.empty(len(keys), FILE)
    rows["key"], rows["size"], rows["manifest"] = keys, batch["file_size_in_bytes"].to_numpy(), numbers
    if "content" not in batch.schema.names:
        return Sketch(rows, np.empty(0, VECTOR))
    is_vector = vector_mask(batch)
    chosen = batch.filter(pa.array(is_vector))
    vectors = np.empty(chosen.num_rows, VECTOR)
    for name in FILE.names or ():
        vectors[name] = rows[name][is_vector]
    vectors["id"] = paired(vectors["key"], pc.fill_null(chosen["content_offset"], -1).to_numpy())
    vectors["ref"] = keys_of(chosen["referenced_data_file"])[0]
    return Sketch(rows[~is_vector], vectors)


def vector_mask(batch: pa.RecordBatch) -> NDArray[np.bool_]:
    """Which entries are deletion vectors, as `reach.is_deletion_vector` says."""
    is_puffin = pc.equal(pc.utf8_lower(batch["file_format"]), "puffin")
    mask = pc.and_(is_puffin, pc.equal(batch["content"], int(FileContent.POSITION_DELETES)))
    return np.asarray(mask.to_numpy(zero_copy_only=False), np.bool_)
