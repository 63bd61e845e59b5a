"""What entries say of a delete file, each different saying once, and how its faults are told.

The last row that delete files name of each data file (411): by keys of locations first, then told of those that are wrong.

Deletion vectors: blob, bitmap and count (414, 415), and the footer of their Puffin file (416).

Position delete files: whether they can be read (413), their order and count (412, 415), and what they are for (421).

Equality delete files: whether they can be read (413), have the columns that they delete by (420), and their count (415).
"""

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO, Protocol

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyroaring import BitMap64

from icekeep.errors import InvalidTableError, MissingFileError, UnsupportedError, first_line
from icekeep.formats.arrow.schema import field_ids, has_ids
from icekeep.formats.deletes.read import BATCH_ROWS, DELETE_FILE, delete_source, refuse_wrong_ids
from icekeep.formats.puffin import BlobMetadata, PuffinFooter, footer_of, positions_of
from icekeep.formats.reader import FileColumns, identified, open_reader, read_file
from icekeep.maintenance.check.faults import Fault, FaultId, Tally
from icekeep.maintenance.check.reading import Meeting, keys_of
from icekeep.spec.manifests.structs import FileContent
from icekeep.spec.reach import BLOB_TYPE
from icekeep.spec.schema import DELETE_FILE_PATH, DELETE_FILE_POS, NameMapping, Schema
from icekeep.storage.base import Storage
from icekeep.storage.location_keys import Keys

ENTRY_COLUMNS = (
    "spec_id",
    "content",
    "file_path",
    "file_format",
    "record_count",
    "file_size_in_bytes",
    "lower_bounds",
    "upper_bounds",
    "key_metadata",
    "equality_ids",
    "referenced_data_file",
    "content_offset",
    "content_size_in_bytes",
)
"""What is read of an entry."""

Row = Mapping[str, Any]
"""`ENTRY_COLUMNS` without the bounds, `first_path` and `last_path` in their place, and `manifest`, its number."""

_SAID = (
    "content",
    "file_format",
    "record_count",
    "first_path",
    "last_path",
    "equality_ids",
    "referenced_data_file",
    "content_offset",
    "content_size_in_bytes",
)


class DeleteFileClaim(msgspec.Struct, frozen=True):
    """What entries of some manifests say alike of a file, or of one vector in it; `row` is the first of them."""

    row: Row
    manifests: tuple[int, ...]

    @property
    def path(self) -> str:
        """Of the file."""
        return str(self.row["file_path"])


def claims_of(rows: Iterable[Row]) -> list[DeleteFileClaim]:
    """What the entries of one file say of it, in an order that does not depend on how they came."""
    alike: defaultdict[Hashable, list[Row]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: (row["manifest"], row["content_offset"] or 0)):
        alike[tuple(_hashable(row[name]) for name in _SAID)].append(row)
    return [DeleteFileClaim(some[0], tuple(row["manifest"] for row in some)) for some in alike.values()]


def _hashable(value: Any) -> Hashable:
    return tuple(value) if isinstance(value, list) else value


def is_vector(row: Row) -> bool:
    """Whether an entry is of a deletion vector."""
    return bool(row["content"] == FileContent.POSITION_DELETES and row["file_format"].lower() == "puffin")


class Telling(msgspec.Struct, frozen=True):
    """What faults are told with; can be pickled.

    Attributes:
        manifest_paths: by number.
        whole: classes of which every fault is kept.
    """

    meeting: Meeting
    manifest_paths: tuple[str, ...]
    whole: frozenset[int]

    def fault(self, tally: Tally, number: int, claim: DeleteFileClaim, detail: str, **facts: Any) -> None:
        """Tell a fault of a file; `recorded` and `found` are among its facts, if only as `None`."""
        row = claim.row
        offset = row["content_offset"] if is_vector(row) else None
        tally.add(
            Fault(
                number=number,
                where=claim.path,
                detail=detail,
                snapshot_id=self.meeting.oldest(self.meeting.holding(claim.manifests)),
                facts={
                    "manifest": self.manifest_paths[row["manifest"]],
                    "file_path": claim.path,
                    "content": row["content"],
                    "content_offset": offset,
                    "spec_id": row["spec_id"],
                    "recorded": None,
                    "found": None,
                    **facts,
                },
            )
        )


REACH = np.dtype([("target", np.int64), ("file", np.int64), ("last", np.int64)])
"""Keys of a data file and of a delete file, and the last position that the one has in the other."""

Reaches = NDArray[Any]


class ReachConsumer(Protocol):
    """Takes in what delete files delete."""

    def add(self, claim: DeleteFileClaim, paths: list[str], lasts: NDArray[np.int64]) -> None:
        """Take in the last positions that a delete file has for some data files; one may come several times."""


class LastPositions:
    """Keeps reaches, of many files only the last position for each data file."""

    def __init__(self, limit: int) -> None:
        """`limit` is how many are kept; beyond it `is_cut` says that some are not."""
        self.is_cut = False
        self._limit = limit
        self._parts: list[Reaches] = []
        self._count = 0

    def add(self, claim: DeleteFileClaim, paths: list[str], lasts: NDArray[np.int64]) -> None:
        """See `ReachConsumer`."""
        targets, there = keys_of(pa.array(paths, pa.string()))
        reaches = np.empty(len(paths), REACH)
        reaches["target"], reaches["last"] = targets, lasts
        reaches["file"] = keys_of(pa.array([claim.path]))[0][0]
        self._parts.append(_last_of_each(reaches[there]))
        self._count += len(self._parts[-1])
        if self._count > self._limit:
            self._parts, self.is_cut = [], True

    def all(self) -> Reaches:
        """All that is kept; nothing where it was too much."""
        return np.concatenate([np.empty(0, REACH), *([] if self.is_cut else self._parts)])


class Lengths(msgspec.Struct, frozen=True):
    """How many rows data files have: keys of their locations, ascending, and counts."""

    targets: Keys
    counts: NDArray[np.int64]

    @classmethod
    def of(cls, several: Iterable[tuple[Keys, NDArray[np.int64]]]) -> "Lengths":
        """Of a file whose entries disagree the greatest count is right: the others are faults of their own."""
        held = [(np.empty(0, np.int64), np.empty(0, np.int64)), *several]
        keys, counts = (np.concatenate(arrays) for arrays in zip(*held, strict=True))
        order = np.lexsort((counts, keys))
        keys, counts = keys[order], counts[order]
        is_last = np.append(keys[1:] != keys[:-1], True)[: len(keys)]
        return cls(keys[is_last], counts[is_last])

    def beyond(self, targets: Keys, lasts: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which positions are beyond the ends of their data files; of a file that is not known none is."""
        if not len(self.targets):
            return np.zeros(len(targets), np.bool_)
        at = np.minimum(np.searchsorted(self.targets, targets), len(self.targets) - 1)
        return (self.targets[at] == targets) & (lasts >= self.counts[at])

    def some(self, targets: Keys) -> "Lengths":
        """The counts of some data files."""
        chosen = np.isin(self.targets, targets)
        return Lengths(self.targets[chosen], self.counts[chosen])

    def count(self, target: int) -> int:
        """The count of one file, which is known."""
        return int(self.counts[np.searchsorted(self.targets, target)])


class PositionChecks:
    """Tells which positions of a delete file are beyond the ends of data files: of each delete file once."""

    def __init__(self, lengths: Lengths, telling: Telling, tally: Tally) -> None:
        self._lengths, self._telling, self._tally = lengths, telling, tally
        self._told: set[tuple[str, int | None]] = set()

    def add(self, claim: DeleteFileClaim, paths: list[str], lasts: NDArray[np.int64]) -> None:
        """See `ReachConsumer`."""
        targets, there = keys_of(pa.array(paths, pa.string()))
        wrong = np.flatnonzero(self._lengths.beyond(targets, lasts) & there)
        offset = claim.row["content_offset"] if is_vector(claim.row) else None
        if not len(wrong) or (claim.path, offset) in self._told:
            return
        self._told.add((claim.path, offset))
        at = int(wrong[0])
        last, rows = int(lasts[at]), self._lengths.count(int(targets[at]))
        what = f"its vector at {offset}" if offset is not None else "it"
        self._telling.fault(
            self._tally,
            FaultId.POSITION_OUT_OF_RANGE,
            claim,
            f"{what} deletes row {last} of data file {paths[at]!r}, which has {rows} rows",
            recorded=rows,
            found=last,
            data_file=paths[at],
        )


def _last_of_each(reaches: Reaches) -> Reaches:
    order = np.lexsort((reaches["last"], reaches["target"]))
    reaches = reaches[order]
    is_last = np.append(reaches["target"][1:] != reaches["target"][:-1], True)[: len(reaches)]
    return reaches[is_last]


_TARGET, _CARDINALITY = "referenced-data-file", "cardinality"
_NEEDED = ("content_offset", "content_size_in_bytes", "referenced_data_file")


class VectorCheck(msgspec.Struct, frozen=True):
    """Holds the vectors of one Puffin file after the other against their entries."""

    storage: Storage
    telling: Telling

    def check(self, claims: Sequence[DeleteFileClaim], tally: Tally, seen: ReachConsumer) -> None:
        """Tell the faults of a file, of whose vectors these are all that is said; a file that is not there has none.

        Raises:
            TryAgainError: the store is out of reach.
        """
        path = claims[0].path
        if any(claim.row["key_metadata"] is not None for claim in claims):
            tally.gap(f"delete file {path!r}", "it is encrypted")
            return
        # An entry that lacks these contradicts itself, which is a fault of its own.
        whole = [claim for claim in claims if all(claim.row[name] is not None for name in _NEEDED)]
        try:
            with self.storage.open(path) as stream:
                footer = self._footer(stream, claims, tally)
                for claim in whole:
                    self._vector(stream, claim, footer, tally, seen)
        except MissingFileError:
            return

    def _footer(self, stream: BinaryIO, claims: Sequence[DeleteFileClaim], tally: Tally) -> PuffinFooter | None:
        try:
            return footer_of(stream, claims[0].path)
        except InvalidTableError as error:
            of_all = DeleteFileClaim(claims[0].row, tuple(number for claim in claims for number in claim.manifests))
            self.telling.fault(tally, FaultId.PUFFIN_FOOTER_WRONG, of_all, first_line(error))
            return None

    def _vector(
        self, stream: BinaryIO, claim: DeleteFileClaim, footer: PuffinFooter | None, tally: Tally, seen: ReachConsumer
    ) -> None:
        row = claim.row
        offset, recorded = row["content_offset"], row["record_count"]
        try:
            positions = _positions(stream, offset, row["content_size_in_bytes"])
        except InvalidTableError as error:
            self.telling.fault(tally, FaultId.VECTOR_UNREADABLE, claim, first_line(error))
            positions = None
        if positions is not None:
            found = len(positions)
            if found != recorded:
                detail = f"its vector at {offset} deletes {found} rows where its entry says {recorded}"
                self.telling.fault(tally, FaultId.DELETED_COUNT_WRONG, claim, detail, recorded=recorded, found=found)
            if found:
                seen.add(claim, [row["referenced_data_file"]], np.array([positions.max()], np.int64))
        if footer is not None and (wrong := wrong_blob(footer, row, positions)) is not None:
            self.telling.fault(tally, FaultId.PUFFIN_FOOTER_WRONG, claim, wrong)


def _positions(stream: BinaryIO, offset: int, length: int) -> BitMap64:
    end = stream.seek(0, 2)
    if offset < 0 or length < 0 or offset + length > end:
        raise InvalidTableError(f"its vector should lie at bytes {offset} to {offset + length}, and the file has {end}")
    stream.seek(offset)
    return positions_of(stream.read(length), f"at byte {offset}")


def named_data_file(blob: BlobMetadata) -> str | None:
    """The data file that a footer says a vector is for."""
    return blob.properties.get(_TARGET)


def wrong_blob(footer: PuffinFooter, row: Mapping[str, Any], positions: BitMap64 | None) -> str | None:
    """What the footer says wrongly of a vector; `None` if nothing.

    Args:
        row: what its entry says, by names of fields.
        positions: that it has; `None` where they cannot be read.
    """
    offset, length = row["content_offset"], row["content_size_in_bytes"]
    blobs = [blob for blob in footer.blobs if (blob.offset, blob.length) == (offset, length)]
    if not blobs:
        return f"its footer has no blob of {length} bytes at {offset}, where a vector lies by its entry"
    wrong = [_wrong_properties(blob, row["referenced_data_file"], positions) for blob in blobs]
    return None if None in wrong else f"in its footer the blob at {offset} {wrong[0]}"


def _wrong_properties(blob: BlobMetadata, target: str, positions: BitMap64 | None) -> str | None:
    if blob.type != BLOB_TYPE:
        return f"is of type {blob.type!r}, where its entry takes it for a deletion vector"
    if blob.compression_codec is not None:
        return f"is packed with {blob.compression_codec!r}, as no deletion vector may be"
    named, count = named_data_file(blob), blob.properties.get(_CARDINALITY)
    if named != target:
        return f"is for data file {named!r}, where its entry says {target!r}"
    if positions is not None and count != str(len(positions)):
        return f"has cardinality {count!r}, where {len(positions)} rows are deleted"
    return None


_COLUMNS = Schema(fields=(DELETE_FILE_PATH, DELETE_FILE_POS))


class PositionCheck(msgspec.Struct, frozen=True):
    """Holds one position delete file after the other against its entries."""

    storage: Storage
    telling: Telling

    def check(self, claims: Sequence[DeleteFileClaim], tally: Tally, seen: ReachConsumer) -> None:
        """Tell the faults of a file of which this is all that is said; one that is not there has none.

        Raises:
            TryAgainError: the store is out of reach.
        """
        first = claims[0]
        rows = _Rows()
        source = delete_source(first.path, first.row["file_format"], FileContent.POSITION_DELETES)
        columns = FileColumns(_COLUMNS, kept_dictionaries=(DELETE_FILE_PATH.field_id,))
        try:
            for table in read_file(self.storage, source, columns, refuse_wrong_ids, batch_rows=BATCH_ROWS):
                for paths, lasts in rows.add(table):
                    seen.add(first, paths, lasts)
        except MissingFileError:
            return
        except InvalidTableError as error:
            self.telling.fault(tally, FaultId.DELETE_FILE_UNREADABLE, first, first_line(error))
            return
        except UnsupportedError as error:
            tally.gap(f"delete file {first.path!r}", first_line(error))
            return
        if rows.unsorted is not None:
            self.telling.fault(tally, FaultId.POSITION_DELETES_UNSORTED, first, rows.unsorted)
        for claim in claims:
            self._claim(claim, rows, tally)

    def _claim(self, claim: DeleteFileClaim, rows: "_Rows", tally: Tally) -> None:
        recorded = claim.row["record_count"]
        if rows.count != recorded:
            detail = f"it has {rows.count} rows where its entry says {recorded}"
            self.telling.fault(tally, FaultId.DELETED_COUNT_WRONG, claim, detail, recorded=recorded, found=rows.count)
        if (wrong := _wrong_reference(claim, rows)) is not None:
            path, detail = wrong
            found = rows.paths[0] if len(rows.paths) == 1 else None
            self.telling.fault(tally, FaultId.REFERENCE_OF_DELETES_WRONG, claim, detail, recorded=path, found=found)


def _wrong_reference(claim: DeleteFileClaim, rows: "_Rows") -> tuple[str, str] | None:
    """What an entry says wrongly of the data files that its deletes are for: the path that it names, and a sentence."""
    if rows.lowest is None or rows.highest is None:
        return None
    first, last = _text(claim.row["first_path"]), _text(claim.row["last_path"])
    # A bound that was cut short is never equal to the other.
    for what, path in (
        ("referenced_data_file", claim.row["referenced_data_file"]),
        ("bounds of file_path", first if first == last else None),
    ):
        other = next((one for one in rows.paths if one != path), None)
        if path is not None and other is not None:
            return (
                path,
                f"its entry says by {what} that it deletes rows of {path!r} only, and it deletes some of {other!r}",
            )
    if first is not None and _is_after(first, rows.lowest):
        return first, f"its entry says that the paths begin with {first!r}, and it deletes rows of {rows.lowest!r}"
    # Some writers cut an upper bound and forget to increment it.
    if last is not None and _is_after(rows.highest[: len(last)], last):
        return last, f"its entry says that the paths end with {last!r}, and it deletes rows of {rows.highest!r}"
    return None


class _Rows:
    """What is learnt of the rows of a position delete file as they pass by.

    Attributes:
        paths: the first two data files of which there are rows.
        lowest, highest: the least and the greatest path.
        unsorted: where the order is broken first.
    """

    def __init__(self) -> None:
        self.count = 0
        self.paths: list[str] = []
        self.lowest: str | None = None
        self.highest: str | None = None
        self.unsorted: str | None = None
        self._last: tuple[str, int] | None = None

    def add(self, table: pa.Table) -> Iterator[tuple[list[str], NDArray[np.int64]]]:
        """Take in some rows; gives the data files of runs of rows, each with the last position of its run.

        Raises:
            InvalidTableError: a position is below 0.
        """
        if not table.num_rows:
            return
        positions = table.column(1).to_numpy()
        if positions.min() < 0:
            raise InvalidTableError(f"it deletes a row at position {positions.min()}, below 0")
        codes, texts = _encoded(table.column(0))
        starts = np.flatnonzero(np.concatenate([[True], codes[1:] != codes[:-1]]))
        paths = [texts[code] for code in codes[starts].tolist()]
        self.count += table.num_rows
        self.lowest = min(paths if self.lowest is None else (self.lowest, *paths))
        self.highest = max(paths if self.highest is None else (self.highest, *paths))
        for path in paths:
            if len(self.paths) == 2:
                break
            if path not in self.paths:
                self.paths.append(path)
        if self.unsorted is None:
            self._check_order(paths, starts, positions)
        self._last = paths[-1], int(positions[-1])
        yield paths, np.maximum.reduceat(positions, starts)

    def _check_order(self, paths: list[str], starts: NDArray[np.intp], positions: NDArray[np.int64]) -> None:
        before = self._last
        for path, start in zip(paths, starts.tolist(), strict=True):
            if before is not None and (
                _is_after(before[0], path) or (before[0] == path and before[1] > positions[start])
            ):
                self.unsorted = f"row {positions[start]} of {path!r} comes after row {before[1]} of {before[0]!r}"
                return
            before = path, 0
        falls = np.diff(positions) < 0
        falls[starts[1:] - 1] = False
        if falls.any():
            at = int(np.argmax(falls))
            path = paths[int(np.searchsorted(starts, at, side="right")) - 1]
            self.unsorted = f"row {positions[at + 1]} of {path!r} comes after row {positions[at]}"


def _encoded(column: pa.ChunkedArray) -> tuple[NDArray[Any], list[str]]:
    encoded = column.combine_chunks()
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.unify_dictionaries().combine_chunks()
    if not pa.types.is_dictionary(encoded.type):
        encoded = encoded.dictionary_encode()
    # A dictionary may have a text twice, and then two codes are one path.
    texts = encoded.dictionary.dictionary_encode()
    return texts.indices.to_numpy()[encoded.indices.to_numpy()], texts.dictionary.to_pylist()


def _is_after(first: str, second: str) -> bool:
    """Whether a path is greater, in the order of code points and in Java's, which differ above U+D7FF."""
    return first > second and first.encode("utf-16-be", "surrogatepass") > second.encode("utf-16-be", "surrogatepass")


def _text(bound: bytes | None) -> str | None:
    """A bound as text; `None` where it is none, as one that was cut within a character."""
    try:
        return None if bound is None else bound.decode()
    except UnicodeDecodeError:
        return None


class EqualityCheck(msgspec.Struct, frozen=True):
    """Holds one equality delete file after the other against its entries; `name_mapping` is the table's."""

    storage: Storage
    telling: Telling
    name_mapping: NameMapping | None

    def check(self, claims: Sequence[DeleteFileClaim], tally: Tally) -> None:
        """Tell the faults of a file of which this is all that is said; one that is not there has none.

        Raises:
            TryAgainError: the store is out of reach.
        """
        first = claims[0]
        ids = {field_id for claim in claims for field_id in claim.row["equality_ids"] or ()}
        try:
            count, found = self._read(first, ids)
        except MissingFileError:
            return
        except InvalidTableError as error:
            self.telling.fault(tally, FaultId.DELETE_FILE_UNREADABLE, first, first_line(error))
            return
        except UnsupportedError as error:
            tally.gap(f"delete file {first.path!r}", first_line(error))
            return
        for claim in claims:
            recorded, wanted = claim.row["record_count"], claim.row["equality_ids"] or []
            if count != recorded:
                detail = f"it has {count} rows where its entry says {recorded}"
                self.telling.fault(tally, FaultId.DELETED_COUNT_WRONG, claim, detail, recorded=recorded, found=count)
            if missing := sorted({*wanted} - found):
                detail = f"it has no column with field id {missing[0]}, which its entry has among the equality_ids"
                self.telling.fault(
                    tally, FaultId.EQUALITY_COLUMN_MISSING, claim, detail, recorded=[*wanted], found=sorted(found)
                )

    def _read(self, claim: DeleteFileClaim, ids: set[int]) -> tuple[int, set[int]]:
        """How many rows the file has, all of which are read in the columns that it deletes by, and the ids of its columns."""
        with open_reader(self.storage, claim.path, claim.row["file_format"], DELETE_FILE) as reader:
            content = FileContent.EQUALITY_DELETES
            source = delete_source(claim.path, claim.row["file_format"], content, self.name_mapping)
            schema = identified(reader.schema, source)
            if not has_ids(schema):
                raise UnsupportedError("it has no field ids, and the table no name mapping for it")
            names = [field.name for field in schema if field_ids(pa.schema([field])) & ids]
            count = sum(table.num_rows for _, table in reader.tables(names, None, (), BATCH_ROWS))
            return count, field_ids(schema)
