"""Tables of millions of data files whose metadata is real: manifests, lists, snapshots; the files themselves are not there.

Entries of data files are arrays (`AlikeRecords`), those of delete files are encoded one by one; two processes write
manifests. All snapshots are committed at once, so that there is one metadata file.

Files have numbers. First come those that are live, then garbage, which the first snapshot added and the second removed, then
orphans, which no snapshot has. Partitions take turns, so that each manifest has files of all of them.

Each tenth of the live files is appended by some snapshots; then one adds deletes for it: deletes of positions in one file, in a
stretch of files, deletion vectors, and equality deletes, which reach all files of their partition that came before.

Records of one length are put together as arrays of bytes. A record is encoded once by `EntryEncoder`, with the least value of
everything that differs from entry to entry, and once more for the greatest value of each: where the bytes differ the value lies.
All other entries are the first one with other bytes there.
"""

import datetime
import multiprocessing
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from enum import StrEnum
from functools import cache
from itertools import count, pairwise
from typing import Any, ClassVar, Literal, NamedTuple

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from bench.tables.big_tables import ACCOUNTS, ACCOUNTS_A_FILE, schema
from bench.tables.kept import IDENTIFIER, NAMESPACE, Kept
from icekeep.catalog.base import Committed, Table
from icekeep.planning.transcode import fast_packer
from icekeep.spec.manifests.structs import (
    DataFile,
    FileContent,
    ManifestContent,
    ManifestEntry,
    ManifestFile,
    Status,
    assign_row_ids,
)
from icekeep.spec.manifests.write import EntryEncoder, ManifestBuilder, write_manifest_list
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.properties import data_directory, manifest_list_location, metadata_directory
from icekeep.spec.schema import DELETE_FILE_PATH, DELETE_FILE_POS
from icekeep.spec.snapshots import MAIN, Snapshot, SnapshotRef
from icekeep.spec.updates import AddSnapshot, SetSnapshotRef, Update, requirements_for
from icekeep.storage.local.storage import LocalStorage
from icekeep.storage.locations import local_path
from icekeep.tables.verbs import create_table

Bytes = NDArray[np.uint8]
Numbers = NDArray[np.int64]


class AlikeRecords:
    """Makes records that differ in some values only.

    Args:
        encode: makes the record of some values, by their names.
        ends: for each name two values whose encodings are of one length and have no byte in common.
    """

    def __init__(self, encode: Callable[[Mapping[str, Any]], bytes], ends: Mapping[str, tuple[Any, Any]]) -> None:
        least = {name: first for name, (first, _) in ends.items()}
        self._record: Bytes = np.frombuffer(encode(least), np.uint8)
        self._places = {name: self._places_of(encode({**least, name: last})) for name, (_, last) in ends.items()}

    def _places_of(self, record: bytes) -> Numbers:
        other = np.frombuffer(record, np.uint8)
        if len(other) != len(self._record):
            raise ValueError(f"records of {len(other)} and {len(self._record)} bytes are not alike")
        return np.flatnonzero(other != self._record)

    def make(self, columns: Mapping[str, Bytes]) -> Bytes:
        """A row of bytes for each record; a value that a record has several times is given once.

        Args:
            columns: for each name a row of encoded bytes for each record.
        """
        if columns.keys() != self._places.keys():
            raise ValueError(f"there are {sorted(columns)}, not {sorted(self._places)}")
        count = len(next(iter(columns.values())))
        records = np.repeat(self._record[None], count, axis=0)
        for name, values in columns.items():
            places = self._places[name]
            times, rest = divmod(len(places), values.shape[1])
            if rest or not times:
                raise ValueError(
                    f"{name} takes {len(places)} bytes of a record, not {values.shape[1]} once or several times"
                )
            records[:, places] = np.tile(values, times)
        return records


def varints(numbers: Numbers, size_bytes: int) -> Bytes:
    """Avro's longs that each take so many bytes.

    Raises:
        ValueError: one of them takes fewer or more.
    """
    zigzag = numbers * 2
    if len(numbers) and not (ends_of_varint(size_bytes)[0] * 2 <= zigzag.min() and zigzag.max() < 1 << 7 * size_bytes):
        raise ValueError(f"numbers from {numbers.min()} to {numbers.max()} are not of {size_bytes} bytes")
    parts = (zigzag[:, None] >> 7 * np.arange(size_bytes)) & 0x7F
    parts[:, :-1] |= 0x80
    return parts.astype(np.uint8)


def ends_of_varint(size_bytes: int) -> tuple[int, int]:
    """The least number that takes so many bytes as Avro's long, and one that has no byte of it."""
    return (1 << 7 * (size_bytes - 1)) // 2 if size_bytes > 1 else 0, _GREATEST[size_bytes]


_GREATEST = {1: 63, 3: ((1 << 21) - 2) // 2, 4: ((1 << 28) - 2) // 2}


def little_endian(numbers: Numbers) -> Bytes:
    """Longs as bounds have them."""
    return numbers.astype("<i8").view(np.uint8).reshape(-1, 8)


def digits(numbers: Numbers, count: int, base: int = 10) -> Bytes:
    """Numbers as text of so many digits."""
    powers = base ** np.arange(count - 1, -1, -1, dtype=np.int64)
    return np.frombuffer(b"0123456789abcdef", np.uint8)[numbers[:, None] // powers % base]


FIRST_DAY = 18_262
"""2020-01-01, in days since the epoch: the day of the first partition."""

CHUNKS = 10
APPENDS_A_CHUNK = 5
_STRETCH_FILES = 50
_HASH = 2_654_435_761
_EPOCH = datetime.date(1970, 1, 1)


class DeleteKind(StrEnum):
    """What a delete file is; of ten in a row these follow one another."""

    OF_FILE = "of one file"
    OF_STRETCH = "of a stretch"
    VECTOR = "vector"
    EQUALITY = "equality"


_TURNS = {
    "all": (*[DeleteKind.OF_FILE] * 6, *[DeleteKind.OF_STRETCH] * 2, DeleteKind.VECTOR, DeleteKind.EQUALITY),
    "mostly-of-one-file": (*[DeleteKind.OF_FILE] * 99, *[DeleteKind.OF_STRETCH] * 10, DeleteKind.EQUALITY),
    "wide": (DeleteKind.OF_STRETCH,),
    "equality": (DeleteKind.EQUALITY,),
}
"""What the delete files of a table are, by the name of the mix: their kinds follow one another in this order."""


class Scale(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """How big a table is.

    Attributes:
        files: live data files.
        deletes: delete files and vectors; as many in each chunk and partition.
        manifest_files: how many files a data manifest has.
        garbage_percent, orphans_percent: how many files of the other kinds there are, of a hundred live ones.
        mix: of which kinds the delete files are, a name of `_TURNS`.
        format_version: 2 has no vectors, and a position delete file of one data file is known by equal bounds.
    """

    files: int
    deletes: int = 100_000
    partitions: int = 1_000
    manifest_files: int = 10_000
    garbage_percent: int = 10
    orphans_percent: int = 1
    mix: Literal["all", "mostly-of-one-file", "wide", "equality"] = "all"
    format_version: Literal[2, 3] = 3

    read: ClassVar[tuple[str, ...]] = ("*.avro",)
    is_restored: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.deletes % (CHUNKS * self.partitions):
            raise ValueError(
                f"{self.deletes} delete files cannot be dealt out to {CHUNKS} times {self.partitions} partitions"
            )
        if self.files % (CHUNKS * self.partitions):
            raise ValueError(f"{self.files} files cannot be dealt out to {CHUNKS} times {self.partitions} partitions")
        if self.deletes > self.files:
            raise ValueError("there is at most one delete file a data file")

    @property
    def name(self) -> str:
        numbers = (
            f"{self.files}-files-{self.deletes}-deletes-{self.partitions}-partitions-{self.manifest_files}-a-manifest"
        )
        name = f"scale-{numbers}-{self.garbage_percent}-percent-garbage"
        return name if self.mix == "all" else f"{name}-{self.mix}-v{self.format_version}"

    @property
    def small(self) -> "Scale":
        return replace(self, files=20_000, deletes=400, partitions=20, manifest_files=200)

    @property
    def garbage(self) -> range:
        """The numbers of the files that only the first snapshot has."""
        return range(self.files, self.files + self.files * self.garbage_percent // 100)

    @property
    def orphans(self) -> range:
        """The numbers of the files that no snapshot has."""
        first = self.garbage.stop
        return range(first, first + self.files * self.orphans_percent // 100)

    @property
    def chunk_rows(self) -> int:
        """How many files of a partition a chunk adds."""
        return self.files // CHUNKS // self.partitions

    def appends(self, chunk: int) -> Iterator[range]:
        """The numbers of the files that each snapshot of a chunk appends."""
        size = self.files // CHUNKS
        bounds = [size * chunk + size * number // APPENDS_A_CHUNK for number in range(APPENDS_A_CHUNK + 1)]
        yield from (range(first, stop) for first, stop in pairwise(bounds))

    def chunk_deletes(self, chunk: int) -> range:
        """The numbers of the delete files that the last snapshot of a chunk adds."""
        size = self.deletes // CHUNKS
        return range(size * chunk, size * (chunk + 1))

    def delete(self, number: int) -> "Delete":
        """What a delete file is, and which data files it is for."""
        chunk, own = divmod(number, self.deletes // CHUNKS)
        turn, partition = divmod(own, self.partitions)
        turns = self.deletes // CHUNKS // self.partitions
        kinds = _TURNS[self.mix]
        # Each partition begins elsewhere in the order, so that all kinds are in it even where a chunk has one turn.
        kind = kinds[(turns * chunk + turn + (partition if self.mix != "all" else 0)) % len(kinds)]
        first = self.chunk_rows * chunk + self.chunk_rows * turn // turns
        last = first + min(_STRETCH_FILES, self.chunk_rows // 2) if kind is DeleteKind.OF_STRETCH else first
        last = min(last, self.chunk_rows * (chunk + 1) - 1)
        return Delete(kind, partition, first * self.partitions + partition, last * self.partitions + partition)


class Delete(NamedTuple):
    """A delete file; of files of its partition the first and the last number in which it deletes positions."""

    kind: DeleteKind
    partition: int
    first: int
    last: int


class Paths:
    """Where the files of a table are."""

    def __init__(self, shape: Scale, directory: str) -> None:
        self._shape, self._directory = shape, directory

    def directory(self, partition: int) -> str:
        return f"{self._directory}/at_day={day_text(partition)}"

    def partition_of(self, directory: str) -> int | None:
        """The partition whose files are in a directory; `None` if it is another one."""
        head = f"{self._directory}/at_day="
        if not directory.startswith(head):
            return None
        return (datetime.date.fromisoformat(directory.removeprefix(head)) - _EPOCH).days - FIRST_DAY

    def data(self, number: int) -> str:
        return f"{self.directory(number % self._shape.partitions)}/{number:010}-{hash_of(number):08x}-00001.parquet"

    def delete(self, number: int) -> str:
        ending = "puffin" if self._shape.delete(number).kind is DeleteKind.VECTOR else "parquet"
        return f"{self.directory(number % self._shape.partitions)}/{number:010}-00001-deletes.{ending}"


def hash_of(number: int) -> int:
    """A number of 32 bits that does not follow from its neighbours'."""
    return number * _HASH % (1 << 32)


def hashes(numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    """The same of many."""
    return (numbers.astype(np.uint64) * np.uint64(_HASH) % np.uint64(1 << 32)).astype(np.int64)


@cache
def day_text(partition: int) -> str:
    """The day of a partition as ISO 8601."""
    return (_EPOCH + datetime.timedelta(days=FIRST_DAY + partition)).isoformat()


COLUMNS = 10
TARGET_BYTES = 128 << 20
_PROCESSES = 2
_DELETES_A_MANIFEST = 1_000
_FIRST_SNAPSHOT_ID = 1 << 60
_DAY_US = 86_400_000_000
_BLOCK_RECORDS = 128
_RANDOM_BYTES = 3
_SMALL, _SMALL_SPREAD = 16 << 20, 32 << 20
_LARGE, _LARGE_SPREAD = 104 << 20, 20 << 20
"""Half of the files are small, half have about the target size."""

_VARYING = {
    "day": (8192, (1 << 20) - 1),
    "day_text": ("0000-00-00", "9999-99-99"),
    "number": ("0" * 10, "9" * 10),
    "hash": ("0" * 8, "f" * 8),
    **{name: ends_of_varint(size) for name, size in (("records", 3), ("size", 4), ("column", 3), ("nulls", 1))},
    **{
        f"{bound}_{name}": (bytes(length), b"\xff" * length)
        for bound in ("lower", "upper")
        for name, length in (("id", 8), ("at", 8), ("account", 8), ("others", 3))
    },
}
"""The least and the greatest value of what differs from entry to entry; no byte of their encodings is the same."""


class _Part(msgspec.Struct, frozen=True):
    """A manifest to be written: of data files or delete files by their numbers."""

    shape: Scale
    metadata: TableMetadata
    location: str
    content: ManifestContent
    first: int
    stop: int


def make(table: Kept) -> dict[str, int]:
    """Make a table; how many files of each kind it has."""
    catalog, shape = table.catalog, table.shape
    catalog.create_namespace((NAMESPACE,), exists_ok=True)
    created = create_table(
        catalog,
        IDENTIFIER,
        schema(COLUMNS),
        partition_by=[("at", "day")],
        properties={"write.target-file-size-bytes": str(TARGET_BYTES)},
        format_version=shape.format_version,
    )
    steps = list(_snapshots(created, shape))
    _commit(created, steps)
    kinds = Counter(shape.delete(number).kind for number in range(shape.deletes))
    return {
        "files": shape.files,
        "deletes": shape.deletes,
        "entries": shape.files + shape.deletes,
        "small": int(np.count_nonzero(_are_small(hashes(np.arange(shape.files))))),
        "position_deletes": kinds[DeleteKind.OF_FILE] + kinds[DeleteKind.OF_STRETCH],
        "garbage": len(shape.garbage),
        "faults": 0,
        "orphans": len(shape.orphans),
        "expired": len(steps) - 1,
    }


def _snapshots(table: Table, shape: Scale) -> Iterator[list[ManifestFile]]:
    """What each snapshot adds; the second adds nothing, and removes what the first added."""
    steps: list[list[_Part]] = []
    directory, numbers = metadata_directory(table.metadata), count()

    def parts(content: ManifestContent, files: range, size: int) -> list[_Part]:
        bounds = [*range(files.start, files.stop, size), files.stop]
        return [
            _Part(shape, table.metadata, f"{directory}/scale-m{next(numbers):06}.avro", content, first, stop)
            for first, stop in pairwise(bounds)
        ]

    steps += [parts(ManifestContent.DATA, shape.garbage, shape.manifest_files), []]
    for chunk in range(CHUNKS):
        steps += [parts(ManifestContent.DATA, files, shape.manifest_files) for files in shape.appends(chunk)]
        steps.append(parts(ManifestContent.DELETES, shape.chunk_deletes(chunk), _DELETES_A_MANIFEST))
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(_PROCESSES, mp_context=context) as pool:
        written = pool.map(_write, [part for step in steps for part in step], chunksize=4)
        yield from ([next(written) for _ in step] for step in steps)


def _write(part: _Part) -> ManifestFile:
    metadata = part.metadata
    encoder = EntryEncoder(metadata.partition_type(0), part.shape.format_version)
    builder = ManifestBuilder(
        part.location,
        encoder,
        metadata.spec,
        metadata.schema,
        format_version=part.shape.format_version,
        content=part.content,
        pack=fast_packer("gzip", None),
    )
    add = _add_data if part.content is ManifestContent.DATA else _add_deletes
    add(builder, part, encoder)
    data, manifest = builder.finish(None)
    with open(local_path(part.location), "wb") as stream:
        stream.write(data)
    # Blocks are counted as if their entries were existing ones.
    return replace(
        manifest,
        added_files_count=manifest.live_files_count,
        added_rows_count=(manifest.added_rows_count or 0) + (manifest.existing_rows_count or 0),
        existing_files_count=0,
        existing_rows_count=0,
    )


def _add_data(builder: ManifestBuilder, part: _Part, encoder: EntryEncoder) -> None:
    directory, partitions = data_directory(part.metadata), part.shape.partitions

    def encode(values: Mapping[str, Any]) -> bytes:
        return encoder.encode(ManifestEntry(status=Status.ADDED, data_file=_data_file(directory, values)))

    numbers = np.arange(part.first, part.stop)
    columns, record_counts = _columns(numbers, partitions)
    records = AlikeRecords(encode, _VARYING).make(columns)
    for first in range(0, len(numbers), _BLOCK_RECORDS):
        some = slice(first, first + _BLOCK_RECORDS)
        builder.add_block(records[some].tobytes(), len(records[some]), int(record_counts[some].sum()), None)
    builder.add_partitions((FIRST_DAY + number,) for number in np.unique(numbers % partitions).tolist())


def _data_file(directory: str, values: Mapping[str, Any]) -> DataFile:
    """The file of an entry from `_VARYING` values."""
    ids = range(1, COLUMNS + 1)
    return DataFile(
        file_path=f"{directory}/at_day={values['day_text']}/{values['number']}-{values['hash']}-00001.parquet",
        file_format="PARQUET",
        spec_id=0,
        partition=(values["day"],),
        record_count=values["records"],
        file_size_in_bytes=values["size"],
        column_sizes=dict.fromkeys(ids, values["column"]),
        value_counts=dict.fromkeys(ids, values["records"]),
        null_value_counts={number: 0 if number <= len(_KEYS) else values["nulls"] for number in ids},
        nan_value_counts={6: 0},
        lower_bounds=_bounds(values, "lower", 0),
        upper_bounds=_bounds(values, "upper", 1),
        split_offsets=(4,),
        sort_order_id=0,
    )


_KEYS = ("id", "at", "account")


def _bounds(values: Mapping[str, Any], bound: str, high: int) -> dict[int, bytes]:
    """The bounds of the columns of `big_tables.schema`: the upper ones are higher in a byte that is not by chance."""
    some, more = values[f"{bound}_others"], bytes([high])
    others = [
        some + more,  # an int
        some + more + bytes(4),  # a long
        some + bytes(3) + (b"\xf0\x3f", b"\x00\x40")[high],  # a double: from 1 on, and from 2 on
        b"item-%d" % high,
        bytes(3) + some + bytes([5 + high, 0]),  # a timestamp
        bytes([1 + high]) + some,  # a decimal
        (FIRST_DAY + high).to_bytes(4, "little"),  # a date
    ]
    return dict(enumerate((*(values[f"{bound}_{name}"] for name in _KEYS), *others), 1))


def _columns(numbers: Numbers, partitions: int) -> tuple[dict[str, Bytes], Numbers]:
    """What differs from entry to entry, and how many records each file has."""
    partition, unique = numbers % partitions, hashes(numbers)
    others = hashes(unique)
    records = 20_000 + unique % 60_000
    days = np.array([[*day_text(number).replace("-", "").encode()] for number in range(partitions)], np.uint8)
    first_id, first_at = others << 8, (FIRST_DAY + partition) * _DAY_US + unique
    account = others % ACCOUNTS
    columns = {
        "day": varints(FIRST_DAY + partition, 3),
        "day_text": days[partition],
        "number": digits(numbers, 10),
        "hash": digits(unique, 8, 16),
        "records": varints(records, 3),
        "size": varints(data_bytes(numbers), 4),
        "column": varints(10_000 + others % 500_000, 3),
        "nulls": varints(unique % 60, 1),
        "lower_id": little_endian(first_id),
        # All files lie one over another in the middle of all ids.
        "upper_id": little_endian(first_id + (1 << 40)),
        "lower_at": little_endian(first_at),
        "upper_at": little_endian(first_at + others * 10 + 1),
        "lower_account": little_endian(account),
        "upper_account": little_endian(account + ACCOUNTS_A_FILE - 1),
        "lower_others": _low_bytes(unique >> 8),
        "upper_others": _low_bytes(others >> 8),
    }
    return columns, records


def data_bytes(numbers: Numbers) -> Numbers:
    """The sizes of data files."""
    unique = hashes(numbers)
    others = hashes(unique)
    found: Numbers = np.where(_are_small(unique), _SMALL + others % _SMALL_SPREAD, _LARGE + others % _LARGE_SPREAD)
    return found


def delete_bytes(number: int) -> int:
    """The size of a delete file."""
    return 1_500 + number % 1_000


def _are_small(unique: Numbers) -> NDArray[np.bool_]:
    found: NDArray[np.bool_] = (unique >> 16 & 1).astype(np.bool_)
    return found


def _low_bytes(numbers: Numbers) -> Bytes:
    return little_endian(numbers)[:, :_RANDOM_BYTES]


def _add_deletes(builder: ManifestBuilder, part: _Part, encoder: EntryEncoder) -> None:
    paths = Paths(part.shape, data_directory(part.metadata))
    for number in range(part.first, part.stop):
        builder.add(ManifestEntry(status=Status.ADDED, data_file=_delete_file(number, part.shape, paths)))


def _delete_file(number: int, shape: Scale, paths: Paths) -> DataFile:
    delete = shape.delete(number)
    file = DataFile(
        content=FileContent.POSITION_DELETES,
        file_path=paths.delete(number),
        file_format="PARQUET",
        spec_id=0,
        partition=(FIRST_DAY + delete.partition,),
        record_count=10 + number % 90,
        file_size_in_bytes=delete_bytes(number),
        split_offsets=(4,),
    )
    first, last = paths.data(delete.first), paths.data(delete.last)
    match delete.kind:
        case DeleteKind.EQUALITY:
            return replace(file, content=FileContent.EQUALITY_DELETES, equality_ids=(1,), sort_order_id=0)
        case DeleteKind.VECTOR:
            blob = {"referenced_data_file": first, "content_offset": 4, "content_size_in_bytes": 60}
            return replace(file, file_format="PUFFIN", **blob, split_offsets=None)
    positions = little_endian(np.array([0, file.record_count - 1]))
    lower, upper = (
        {DELETE_FILE_PATH.field_id: path.encode(), DELETE_FILE_POS.field_id: position.tobytes()}
        for path, position in zip((first, last), positions, strict=True)
    )
    only = first if delete.kind is DeleteKind.OF_FILE and shape.format_version > 2 else None
    return replace(file, lower_bounds=lower, upper_bounds=upper, referenced_data_file=only)


def _commit(table: Table, steps: Sequence[list[ManifestFile]]) -> None:
    """Commit all snapshots at once."""
    metadata, storage = table.metadata, LocalStorage()
    updates: list[Update] = []
    listed: list[ManifestFile] = []
    totals = dict.fromkeys(("data-files", "delete-files", "records"), 0)
    next_row_id = metadata.next_row_id or 0
    for number, added in enumerate(steps, 1):
        if not added:
            listed, totals = [], dict.fromkeys(totals, 0)
        snapshot_id, first_row_id = _FIRST_SNAPSHOT_ID + number, next_row_id
        own = [replace(one, added_snapshot_id=snapshot_id) for one in added]
        listed = [*own, *listed]
        if metadata.next_row_id is not None:
            listed, next_row_id = assign_row_ids(listed, next_row_id)
        summary = _summary(own, totals)
        snapshot = Snapshot(
            snapshot_id=snapshot_id,
            parent_snapshot_id=snapshot_id - 1 if number > 1 else None,
            sequence_number=number,
            timestamp_ms=metadata.last_updated_ms + number,
            manifest_list=manifest_list_location(metadata, snapshot_id, 1, "scale"),
            summary=summary,
            schema_id=metadata.current_schema_id,
            first_row_id=None if metadata.next_row_id is None else first_row_id,
            added_rows=None if metadata.next_row_id is None else next_row_id - first_row_id,
        )
        # From now on they have the number of the snapshot that added them.
        numbers = {"sequence_number": number, "min_sequence_number": number}
        listed = [one if one.sequence_number else replace(one, **numbers) for one in listed]
        assert snapshot.manifest_list is not None
        with storage.write(snapshot.manifest_list) as stream:
            stream.write(write_manifest_list(listed, snapshot, format_version=metadata.format_version))
        updates += [AddSnapshot(snapshot), SetSnapshotRef(MAIN, SnapshotRef(snapshot_id=snapshot_id, type="branch"))]
    outcome = table.catalog.swap(table, requirements_for(metadata, updates), updates)
    if not isinstance(outcome, Committed):
        raise RuntimeError(f"the table was not committed: {outcome}")


def _summary(added: Sequence[ManifestFile], totals: dict[str, int]) -> dict[str, str]:
    """What a snapshot says of itself; `totals` become those after it."""
    counts = dict.fromkeys(totals, 0)
    for one in added:
        kind = "data-files" if one.content is ManifestContent.DATA else "delete-files"
        counts[kind] += one.added_files_count or 0
        counts["records"] += (one.added_rows_count or 0) if one.content is ManifestContent.DATA else 0
    totals.update({name: totals[name] + number for name, number in counts.items()})
    operation = "delete" if not added else "overwrite" if counts["delete-files"] else "append"
    said = {f"added-{name}": str(number) for name, number in counts.items() if number}
    return {"operation": operation, **said, **{f"total-{name}": str(number) for name, number in totals.items()}}
