"""Delete files of all snapshots that are looked at, each read once and held against all entries that name it.

Here in threads, or in Spark tasks by their keys. What they delete is noted by keys of locations, and held against the counts
of the data files (411) when all have been read.
"""

from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from typing import Any, BinaryIO

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyroaring import BitMap64

from icekeep.catalog.base import Table
from icekeep.errors import InvalidTableError, MissingFileError, UnsupportedError, first_line
from icekeep.formats.arrow.schema import field_ids, has_ids
from icekeep.formats.deletes.read import BATCH_ROWS, DELETE_FILE, delete_source, refuse_wrong_ids
from icekeep.formats.puffin import BLOB_TYPE, BlobMetadata, PuffinFooter, footer_of, positions_of
from icekeep.formats.reader import FileColumns, identified, open_reader, read_file
from icekeep.maintenance.check.by_file import (
    FileJoin,
    Membership,
    Numbered,
    Row,
    count_of,
    decode_task,
    is_vector,
    keyed_batches,
    keys_of,
    over_manifests,
    vector_offset,
)
from icekeep.maintenance.check.faults import FaultId, Tally
from icekeep.maintenance.check.lists import CheckedTable, Listed
from icekeep.maintenance.check.row_ids import check_row_ids
from icekeep.maintenance.delete.reachable import among
from icekeep.planning.entries import DecodeTask
from icekeep.planning.spark.session import SparkSource, limits_of, started
from icekeep.spec.collections import packed
from icekeep.spec.manifests.structs import FileContent, ManifestContent
from icekeep.spec.schema import DELETE_FILE_PATH, DELETE_FILE_POS, NameMapping, Schema, name_mapping_of
from icekeep.spec.types import MIB
from icekeep.storage.base import Storage
from icekeep.storage.location_keys import Keys

_SAID = (
    "content", "file_format", "record_count", "lower_bounds", "upper_bounds", "equality_ids", "referenced_data_file",
    "content_offset", "content_size_in_bytes",
)  # fmt: skip
"""What an entry says of its file."""

_ENTRY_COLUMNS = ("spec_id", "file_path", "file_size_in_bytes", "key_metadata", *_SAID)

_ENTRIES_OF_THREAD, _BYTES_OF_THREAD = 20, 16 * MIB
_MAX_OUT_OF_RANGE = 100_000
"""How many positions beyond the ends of data files are looked at more closely, at most."""

REACH = np.dtype([("target", np.int64), ("file", np.int64), ("last", np.int64)])
"""Keys of a data file and of a delete file, and the last position that the one has in the other."""

REACHES = 10_000_000
"""Pairs of a delete file and a data file from which it deletes; 24 bytes are held of each, twice while they are sorted. Each of
several tasks holds its share of them. Where there are more, none is checked."""

_POSITIONS = Schema(fields=(DELETE_FILE_PATH, DELETE_FILE_POS))
_NEEDED = ("content_offset", "content_size_in_bytes", "referenced_data_file")


def check_delete_content(subject: CheckedTable, listed: Listed) -> None:
    """Read the delete files of all snapshots that are looked at, each once, and report what is wrong in them; then row ids.

    Raises:
        TryAgainError: the store or Spark is out of reach.
    """
    membership = Membership.of(subject.snapshots, listed)
    deletes = membership.live(listed, ManifestContent.DELETES)
    if deletes:
        _check_files(subject, membership, deletes, membership.live(listed, ManifestContent.DATA))
    check_row_ids(subject, listed)


def _check_files(
    subject: CheckedTable, membership: Membership, deletes: Sequence[Numbered], data: Sequence[Numbered]
) -> None:
    table, tally, spark = subject.table, subject.tally, subject.spark
    try:
        mapping = name_mapping_of(table.metadata.properties)
    except InvalidTableError:
        # A fault of the metadata.
        mapping = None
    checker = DeleteFileChecker(
        storage=table.storage,
        membership=membership,
        name_mapping=mapping,
        limit=REACHES,
        whole=tally.whole,
    )
    found = _checked_files(table, deletes, checker, spark, tally)
    for one in found:
        tally.merge(one.tally)
    reaches = np.concatenate([np.empty(0, REACH), *(one.reaches for one in found)])
    if any(one.is_cut for one in found) or len(reaches) > REACHES:
        more = "there are more pairs of a delete file and a data file than are held"
        why = f"{more} ({REACHES:,}, an equal share in each task): none was looked at"
        tally.gap("whether deletes name rows that data files have", why)
    elif len(reaches):
        _check_ranges(subject, checker, deletes, data, reaches)


class CheckedFiles(msgspec.Struct, frozen=True):
    """What was found in some delete files; `is_cut` where there was too much to be noted in `reaches`."""

    tally: Tally
    reaches: NDArray[Any]
    is_cut: bool


def _checked_files(
    table: Table, manifests: Sequence[Numbered], checker: "DeleteFileChecker", spark: SparkSource, gaps: Tally
) -> list[CheckedFiles]:
    limits = limits_of(spark)
    join = FileJoin(decode=decode_task(table, manifests, _ENTRY_COLUMNS), work=DeleteFileChecker.check, shared=checker)
    if count_of(manifests) <= limits.entries_count:
        files = join.files(spark, manifests, gaps)
        if sum(map(_size, files)) <= limits.checked_delete_bytes and len(files) <= limits.footers_count:
            return join.here([*packed(files, (len, _ENTRIES_OF_THREAD), (_size, _BYTES_OF_THREAD))])
    session = started(spark)
    parts = join.parts_by_bytes(manifests, session, spark)
    shared = msgspec.structs.replace(checker, limit=max(1, checker.limit // parts))
    join = msgspec.structs.replace(join, shared=shared)
    return join.in_tasks(manifests, session, parts, gaps, "reading delete files")


def _size(rows: Sequence[Row]) -> int:
    """How many bytes of a file are read: of a Puffin file the blobs of its vectors, of others all."""
    length = abs(int(rows[0]["file_size_in_bytes"]))
    if is_vector(rows[0]):
        return min(length, sum(abs(row["content_size_in_bytes"] or 0) for row in rows))
    return length


class DeleteFileChecker(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked of delete files; can be pickled.

    Attributes:
        limit: how many pairs of a delete file and a data file a task holds; of more none is judged.
        whole: classes of which every fault is kept.
    """

    storage: Storage
    membership: Membership
    name_mapping: NameMapping | None
    limit: int
    whole: frozenset[int]

    def check(self, files: Iterable[Sequence[Row]]) -> "CheckedFiles":
        """Look into files, of each of which these are all entries."""
        check = _FilesCheck(self)
        for rows in files:
            check.file(rows)
        return CheckedFiles(check.tally, np.concatenate([np.empty(0, REACH), *check.reaches]), check.is_cut)

    def report(self, tally: Tally, number: FaultId, rows: Sequence[Row], detail: str, **facts: Any) -> None:
        """Note a fault of some entries that say the same; `recorded` and `found` are among its facts, if only as `None`."""
        known = {"content": rows[0]["content"], "recorded": None, "found": None}
        tally.add(self.membership.fault(number, rows, detail, **{**known, **facts}))


def _alike(rows: Iterable[Row]) -> list[list[Row]]:
    """The entries of one file, grouped by what they say of it, in an order that does not depend on how they came."""
    alike: defaultdict[Hashable, list[Row]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: (row["manifest"], row["content_offset"] or 0)):
        alike[tuple(tuple(row[name]) if isinstance(row[name], list) else row[name] for name in _SAID)].append(row)
    return [*alike.values()]


class _FilesCheck:
    """Looks into one file after the other, as each kind of delete file that its entries take it for.

    Attributes:
        tally: what is found.
        reaches: what is deleted, rows of `REACH`, of each file only the last position for each data file.
        is_cut: whether there was too much to note.
    """

    def __init__(self, checker: DeleteFileChecker) -> None:
        self.tally = Tally(checker.whole)
        self.reaches: list[NDArray[Any]] = []
        self.is_cut = False
        self._checker, self._storage = checker, checker.storage
        self._reaches_count = 0

    def file(self, rows: Sequence[Row]) -> None:
        """Look into a file, of which these are all entries; one that is not there is a fault of entries."""
        path = rows[0]["file_path"]
        if any(row["key_metadata"] is not None for row in rows):
            self.tally.gap(f"delete file {path!r}", "it is encrypted")
            return
        several = _alike(row for row in rows if row["content"] != FileContent.DATA)
        vectors = [alike for alike in several if is_vector(alike[0])]
        others = [alike for alike in several if not is_vector(alike[0])]
        for content, act, some in (
            (FileContent.POSITION_DELETES, self._vectors, vectors),
            (FileContent.POSITION_DELETES, self._positions, others),
            (FileContent.EQUALITY_DELETES, self._equality, others),
        ):
            if not (of_kind := [alike for alike in some if alike[0]["content"] == content]):
                continue
            try:
                act(of_kind)
            except MissingFileError:
                return
            except InvalidTableError as error:
                self._checker.report(self.tally, FaultId.DELETE_FILE_UNREADABLE, of_kind[0], first_line(error))
            except UnsupportedError as error:
                self.tally.gap(f"delete file {path!r}", first_line(error))

    def _note(self, path: str, targets: list[str], lasts: NDArray[np.int64]) -> None:
        """Note the last positions that a file has for some data files; one may come several times."""
        keys, there = keys_of(pa.array(targets, pa.string()))
        reaches = np.empty(len(targets), REACH)
        reaches["target"], reaches["last"] = keys, lasts
        reaches["file"] = keys_of(pa.array([path]))[0][0]
        reaches = np.sort(reaches[there], order=["target", "last"])
        is_last = np.append(reaches["target"][1:] != reaches["target"][:-1], True)[: len(reaches)]
        self.reaches.append(reaches[is_last])
        self._reaches_count += len(self.reaches[-1])
        if self._reaches_count > self._checker.limit:
            self.reaches, self.is_cut = [], True

    def _check_count(self, rows: Sequence[Row], found: int, what: str) -> None:
        recorded = rows[0]["record_count"]
        if found != recorded:
            detail = f"{what} {found} rows where its entry says {recorded}"
            facts = {"recorded": recorded, "found": found}
            self._checker.report(self.tally, FaultId.DELETED_COUNT_WRONG, rows, detail, **facts)

    def _vectors(self, several: Sequence[Sequence[Row]]) -> None:
        """Blob, bitmap and count of deletion vectors, and the footer of their Puffin file."""
        path = several[0][0]["file_path"]
        with self._storage.open(path) as stream:
            footer: PuffinFooter | None = None
            try:
                footer = footer_of(stream, path)
            except InvalidTableError as error:
                every = [row for rows in several for row in rows]
                self._checker.report(self.tally, FaultId.PUFFIN_FOOTER_WRONG, every, first_line(error))
            for rows in several:
                # An entry that lacks these contradicts itself, which is a fault of its own.
                if all(rows[0][name] is not None for name in _NEEDED):
                    self._vector(stream, rows, footer)

    def _vector(self, stream: BinaryIO, rows: Sequence[Row], footer: PuffinFooter | None) -> None:
        row = rows[0]
        offset = row["content_offset"]
        positions: BitMap64 | None = None
        try:
            positions = _vector_positions(stream, offset, row["content_size_in_bytes"])
        except InvalidTableError as error:
            self._checker.report(self.tally, FaultId.VECTOR_UNREADABLE, rows, first_line(error))
        if positions is not None:
            self._check_count(rows, len(positions), f"its vector at {offset} deletes")
            if positions:
                last = np.array([positions.max()], np.int64)
                self._note(row["file_path"], [row["referenced_data_file"]], last)
        if footer is not None and (problem := wrong_blob(footer, row, positions)) is not None:
            self._checker.report(self.tally, FaultId.PUFFIN_FOOTER_WRONG, rows, problem)

    def _positions(self, several: Sequence[Sequence[Row]]) -> None:
        """Rows of a position delete file: their order and count, and the data files that they are for."""
        first = several[0][0]
        found = _PositionRows()
        source = delete_source(first["file_path"], first["file_format"], FileContent.POSITION_DELETES)
        columns = FileColumns(_POSITIONS, kept_dictionaries=(DELETE_FILE_PATH.field_id,))
        for table in read_file(self._storage, source, columns, refuse_wrong_ids, batch_rows=BATCH_ROWS):
            if table.num_rows:
                self._note(first["file_path"], *found.add(table))
        if found.unsorted is not None:
            self._checker.report(self.tally, FaultId.POSITION_DELETES_UNSORTED, several[0], found.unsorted)
        for rows in several:
            self._check_count(rows, found.count, "it has")
            if (wrong := _wrong_reference(rows[0], found)) is not None:
                path, detail = wrong
                facts = {"recorded": path, "found": found.paths[0] if len(found.paths) == 1 else None}
                self._checker.report(self.tally, FaultId.REFERENCE_OF_DELETES_WRONG, rows, detail, **facts)

    def _equality(self, several: Sequence[Sequence[Row]]) -> None:
        """Rows of an equality delete file, all of which are read in the columns that it deletes by, and its columns."""
        first = several[0][0]
        path, file_format = first["file_path"], first["file_format"]
        ids = {field_id for rows in several for field_id in rows[0]["equality_ids"] or ()}
        with open_reader(self._storage, path, file_format, DELETE_FILE) as reader:
            source = delete_source(path, file_format, FileContent.EQUALITY_DELETES, self._checker.name_mapping)
            schema = identified(reader.schema, source)
            if not has_ids(schema):
                raise UnsupportedError("it has no field ids, and the table no name mapping for it")
            names = [field.name for field in schema if field_ids(pa.schema([field])) & ids]
            count = sum(table.num_rows for _, table in reader.tables(names, None, (), BATCH_ROWS))
            found = field_ids(schema)
        for rows in several:
            self._check_count(rows, count, "it has")
            wanted = rows[0]["equality_ids"] or []
            if missing := sorted({*wanted} - found):
                detail = f"it has no column with field id {missing[0]}, which its entry has among the equality_ids"
                facts = {"recorded": [*wanted], "found": sorted(found)}
                self._checker.report(self.tally, FaultId.EQUALITY_COLUMN_MISSING, rows, detail, **facts)


def _vector_positions(stream: BinaryIO, offset: int, length: int) -> BitMap64:
    end = stream.seek(0, 2)
    if offset < 0 or length < 0 or offset + length > end:
        raise InvalidTableError(f"its vector should lie at bytes {offset} to {offset + length}, and the file has {end}")
    stream.seek(offset)
    return positions_of(stream.read(length), f"at byte {offset}")


def wrong_blob(footer: PuffinFooter, row: Row, positions: BitMap64 | None) -> str | None:
    """What the footer says wrongly of a vector; `positions` are `None` where they cannot be read."""
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
    named, count = blob.properties.get("referenced-data-file"), blob.properties.get("cardinality")
    if named != target:
        return f"is for data file {named!r}, where its entry says {target!r}"
    if positions is not None and count != str(len(positions)):
        return f"has cardinality {count!r}, where {len(positions)} rows are deleted"
    return None


class _PositionRows:
    """What the rows of a position delete file show, batch by batch.

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

    def add(self, table: pa.Table) -> tuple[list[str], NDArray[np.int64]]:
        """Take in some rows; returns the data files of runs of rows, each with the last position of its run.

        Raises:
            InvalidTableError: a position is below 0.
        """
        positions = table.column(1).to_numpy()
        if positions.min() < 0:
            raise InvalidTableError(f"it deletes a row at position {positions.min()}, below 0")
        codes, texts = _encoded(table.column(0))
        starts = np.flatnonzero(np.append(True, codes[1:] != codes[:-1]))
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
        return paths, np.maximum.reduceat(positions, starts)

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


def _wrong_reference(row: Row, found: _PositionRows) -> tuple[str, str] | None:
    """What an entry says wrongly of the data files that its deletes are for: the path that it names, and a sentence."""
    if found.lowest is None or found.highest is None:
        return None
    first, last = (_path_bound(row[name]) for name in ("lower_bounds", "upper_bounds"))
    # A bound that was cut short is never equal to the other.
    for what, path in (
        ("referenced_data_file", row["referenced_data_file"]),
        ("bounds of file_path", first if first == last else None),
    ):
        other = next((one for one in found.paths if one != path), None)
        if path is not None and other is not None:
            only = f"its entry says by {what} that it deletes rows of {path!r} only"
            return path, f"{only}, and it deletes some of {other!r}"
    if first is not None and _is_after(first, found.lowest):
        return first, f"its entry says that the paths begin with {first!r}, and it deletes rows of {found.lowest!r}"
    # Some writers cut an upper bound and forget to increment it.
    if last is not None and _is_after(found.highest[: len(last)], last):
        return last, f"its entry says that the paths end with {last!r}, and it deletes rows of {found.highest!r}"
    return None


def _path_bound(bounds: Iterable[tuple[int, bytes]] | None) -> str | None:
    """The bound of `file_path` as text; `None` where it is none, as one that was cut within a character."""
    bound = dict(bounds or ()).get(DELETE_FILE_PATH.field_id)
    try:
        return None if bound is None else bound.decode()
    except UnicodeDecodeError:
        return None


def _check_ranges(
    subject: CheckedTable,
    checker: DeleteFileChecker,
    deletes: Sequence[Numbered],
    data: Sequence[Numbered],
    reaches: NDArray[Any],
) -> None:
    """Report the delete files that name rows which data files do not have, each of them once."""
    table, spark, tally = subject.table, subject.spark, subject.tally
    decode = decode_task(table, data, ("file_path", "record_count"))
    shared = (decode, np.unique(reaches["target"]))
    several = over_manifests(spark, data, _rows_counts, shared, "counting rows of data files")
    targets, counts = _greatest_of_each([(np.empty(0, np.int64), np.empty(0, np.int64)), *several])
    if not len(targets):
        return
    at = np.minimum(np.searchsorted(targets, reaches["target"]), len(targets) - 1)
    # Nothing is known of a data file that is missing.
    is_beyond = (targets[at] == reaches["target"]) & (reaches["last"] >= counts[at])
    if np.count_nonzero(is_beyond) > _MAX_OUT_OF_RANGE:
        why = f"more than {_MAX_OUT_OF_RANGE:,} delete files name rows that data files do not have"
        tally.gap("the others of the delete files that name rows beyond the ends of data files", why)
    beyond, limits = (some[is_beyond][:_MAX_OUT_OF_RANGE] for some in (reaches, counts[at]))
    if not len(beyond):
        return
    of_data = FileJoin(decode=decode, wanted=np.unique(beyond["target"]))
    keyed = ((rows, _key(rows[0]["file_path"])) for rows in of_data.files(spark, data, Tally()))
    path_of = {key: min(row["file_path"] for row in rows) for rows, key in keyed}
    wrong: defaultdict[int, dict[int, tuple[str, int, int]]] = defaultdict(dict)
    for one, limit in zip(beyond.tolist(), limits.tolist(), strict=True):
        target, file, last = one
        if target in path_of:
            wrong[file][target] = (path_of[target], last, limit)
    columns = decode_task(table, deletes, _ENTRY_COLUMNS)
    of_deletes = FileJoin(decode=columns, wanted=np.unique(beyond["file"]))
    for rows in of_deletes.files(spark, deletes, Tally()):
        reported: set[int | None] = set()
        for alike in _alike(rows):
            row, of_file = alike[0], wrong[_key(alike[0]["file_path"])]
            offset = vector_offset(row)
            if is_vector(row) and row["referenced_data_file"] is not None:
                target = _key(row["referenced_data_file"])
                of_file = {target: of_file[target]} if target in of_file else {}
            if not of_file or offset in reported or row["content"] != FileContent.POSITION_DELETES:
                continue
            reported.add(offset)
            path, last, limit = min(of_file.values())
            what = "it" if offset is None else f"its vector at {offset}"
            detail = f"{what} deletes row {last} of data file {path!r}, which has {limit} rows"
            facts = {"recorded": limit, "found": last, "data_file": path}
            checker.report(tally, FaultId.POSITION_OUT_OF_RANGE, alike, detail, **facts)


def _key(location: str) -> int:
    return int(keys_of(pa.array([location]))[0][0])


def _rows_counts(manifests: Sequence[Numbered], shared: tuple[DecodeTask, Keys]) -> tuple[Keys, NDArray[np.int64]]:
    decode, targets = shared
    found = [(np.empty(0, np.int64), np.empty(0, np.int64))]
    for batch, _, keys, there in keyed_batches(manifests, decode, Tally()):
        counts = batch["record_count"].to_numpy()
        # A count below 0 says nothing, and is a fault of its own.
        chosen = there & among(keys, targets) & (counts >= 0)
        found.append((keys[chosen], counts[chosen]))
    return _greatest_of_each(found)


def _greatest_of_each(several: Iterable[tuple[Keys, NDArray[np.int64]]]) -> tuple[Keys, NDArray[np.int64]]:
    """Of a file whose entries disagree the greatest count is right: the others are faults of their own."""
    keys, counts = (np.concatenate(arrays) for arrays in zip(*several, strict=True))
    order = np.lexsort((counts, keys))
    keys, counts = keys[order], counts[order]
    is_last = np.append(keys[1:] != keys[:-1], True)[: len(keys)]
    return keys[is_last], counts[is_last]
