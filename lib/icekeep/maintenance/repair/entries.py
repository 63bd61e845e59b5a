"""An entry as its file says that it is to be: what the check found is measured again, and nothing is written that was not.

Mends of what entries, rows of manifest lists and summaries say: no row that can be read changes by them.

Files and deletion vectors that are there and cannot be read: their entries go, where that loss is accepted by name.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import replace

from icekeep.catalog.base import Table
from icekeep.commit.changes.repair_entries import live_totals
from icekeep.commit.dangling import dangling_deletes_count
from icekeep.commit.manifests import ManifestReader
from icekeep.commit.summary import totals_of
from icekeep.errors import InvalidTableError, MissingFileError, UnsupportedError, UsageError, first_line
from icekeep.formats.deletes.read import BATCH_ROWS, DELETE_FILE, hold_own_path
from icekeep.formats.puffin import positions_of, read_puffin_footer, read_range
from icekeep.formats.reader import SourceFile, open_reader
from icekeep.maintenance.check.content import (
    Claims,
    Content,
    EntryMetrics,
    Wrong,
    leaf_types,
    read_content,
    top_level,
    wrong_metrics,
)
from icekeep.maintenance.check.faults import Fault, FaultId
from icekeep.maintenance.check.manifests import column_types, is_judged
from icekeep.maintenance.repair.heads import EntryPosition, Head, refuse_doubled, refuse_merged
from icekeep.maintenance.repair.losses import Lost, take_out
from icekeep.maintenance.repair.metadata import NOT_FOUND, CannotMendError, manifests_of, schema_of
from icekeep.planning.prune import decode_bounds
from icekeep.spec.manifests.read import completed
from icekeep.spec.manifests.structs import COUNTS, DataFile, FileContent, ManifestEntry, ManifestFile
from icekeep.spec.partitioning import identity_values
from icekeep.spec.reach import is_deletion_vector
from icekeep.spec.schema import Schema, name_mapping_of
from icekeep.spec.types import PrimitiveType
from icekeep.spec.values import lower_bound, upper_bound, value_from_bytes
from icekeep.spelling import counted_doing

SAID = frozenset((225, 226, 227, 230, 231))
"""Kinds of faults that an entry shows by itself."""

MEASURED = frozenset((302, 402, 405, 406, 407, 408, 409, 415, 422))
"""Kinds that its file shows."""

_COUNTS: Mapping[int, str] = {
    FaultId.NULL_COUNT_WRONG: "null_value_counts",
    FaultId.VALUE_COUNT_WRONG: "value_counts",
    FaultId.NAN_COUNT_WRONG: "nan_value_counts",
}
_BOUND_LENGTH = 16
_SIZE, _ROWS, _UNSORTED, _DELETED_ROWS, _OFFSETS = 302, 402, 409, 415, 422


def mended_file(entry: ManifestEntry, numbers: Collection[int], table: Table, schema: Schema) -> DataFile:
    """How an entry is to describe its file; as it does if none of these faults is there any more.

    Args:
        numbers: kinds of faults of `SAID` and `MEASURED` to look for.
        schema: in whose columns a data file is read.

    Raises:
        CannotMendError: it cannot be told what is right.
        UnavailableError: the store is out of reach.
    """
    file = entry.data_file
    if file.key_metadata is not None:
        raise CannotMendError("the file is encrypted")
    measured = MEASURED.intersection(numbers)
    if measured:
        file = _Measuring(file, measured, table, schema).mended()
    return _without_what_contradicts(file, numbers, table)


def read_whole(file: DataFile, table: Table, schema: Schema) -> None:
    """Read a data file, a delete file or a deletion vector from its first byte to its last.

    Raises:
        MissingFileError: there is no such file.
        InvalidTableError, UnsupportedError, UsageError: it cannot be read.
    """
    _Measuring(file, (), table, schema).read()


def _without_what_contradicts(file: DataFile, numbers: Collection[int], table: Table) -> DataFile:
    """Without the metrics that cannot be right: readers then read the file."""
    if 231 in numbers and file.sort_order_id not in (None, *(o.order_id for o in table.metadata.sort_orders)):
        file = replace(file, sort_order_id=None)
    if 230 in numbers and not _are_offsets(file):
        file = replace(file, split_offsets=None)
    if 227 in numbers:
        wrong = _contradicting_counts(file)
        file = replace(file, **{name: _without(getattr(file, name), wrong) for name in _COUNTS.values()})
    wanted = {number for number in (225, 226) if number in numbers}
    if wanted:
        wrong = _contradicting_bounds(file, wanted, table)
        names = ("lower_bounds", "upper_bounds")
        file = replace(file, **{name: _without(getattr(file, name), wrong) for name in names})
    return file


def _are_offsets(file: DataFile) -> bool:
    offsets = file.split_offsets or ()
    rise = all(one < other for one, other in pairwise(offsets))
    return rise and all(0 <= offset < file.file_size_in_bytes for offset in offsets)


def _contradicting_counts(file: DataFile) -> set[int]:
    maps: list[Mapping[int, int]] = [getattr(file, name) or {} for name in _COUNTS.values()]
    values = file.value_counts or {}
    return {id_ for one in maps for id_, count in one.items() if count < 0 or (id_ in values and count > values[id_])}


def _contradicting_bounds(file: DataFile, numbers: Collection[int], table: Table) -> set[int]:
    known, wrong = column_types(table.metadata), set()
    lower, upper = file.lower_bounds or {}, file.upper_bounds or {}
    for id_ in sorted({*lower, *upper} & known.types.keys()):
        type_ = known.types[id_]
        if not is_judged(type_):
            continue
        bounds = [lower.get(id_), upper.get(id_)]
        low, high = decode_bounds(type_, pa.array(bounds, pa.binary()))
        undecodable = any(b is not None and not v.is_valid for b, v in zip(bounds, (low, high), strict=True))
        crossed = id_ in known.plain and type_.name != "uuid" and bool(pc.greater(low, high).as_py())
        if (225 in numbers and undecodable) or (226 in numbers and crossed):
            wrong.add(id_)
    return wrong


def _without(metrics: Mapping[int, Any] | None, ids: Collection[int]) -> Mapping[int, Any] | None:
    return None if metrics is None else {id_: value for id_, value in metrics.items() if id_ not in ids}


class _Measuring:
    """One file, measured for some kinds of faults."""

    def __init__(self, file: DataFile, numbers: Collection[int], table: Table, schema: Schema) -> None:
        self._file, self._numbers, self._table, self._schema = file, frozenset(numbers), table, schema

    def read(self) -> None:
        if self._file.content is FileContent.DATA:
            self._content()
        elif is_deletion_vector(self._file):
            self._vector_count()
        else:
            self._rows_count()

    def mended(self) -> DataFile:
        try:
            self._check_size()
            return self._data() if self._file.content is FileContent.DATA else self._deletes()
        except (InvalidTableError, UnsupportedError, UsageError) as error:
            raise CannotMendError(f"the file cannot be measured: {first_line(error)}") from error

    def _check_size(self) -> None:
        """A file of another size may be another file, of which nothing is taken over but with its size itself."""
        info = self._table.storage.head(self._file.file_path)
        if info is None:
            raise CannotMendError("there is no such file")
        self._size_bytes = info.size_bytes
        if self._size_bytes != self._file.file_size_in_bytes and _SIZE not in self._numbers:
            raise CannotMendError(
                f"the file has {self._size_bytes} bytes where its entry says {self._file.file_size_in_bytes}, so it may be "
                "another one; see fault 302"
            )

    def _sized(self, rows_count: int) -> DataFile:
        """The file with its true size, which is only taken over where all its rows are there."""
        if self._size_bytes == self._file.file_size_in_bytes:
            return self._file
        if rows_count != self._file.record_count:
            raise CannotMendError(
                f"it has {self._size_bytes} bytes and {rows_count} rows where its entry says "
                f"{self._file.file_size_in_bytes} and {self._file.record_count}: it is another file, or a part of one"
            )
        return replace(self._file, file_size_in_bytes=self._size_bytes)

    def _data(self) -> DataFile:
        content = self._content()
        file = self._sized(content.row_count)
        if file is not self._file:
            self._refuse_other_values(content)
        if _ROWS in self._numbers and content.row_count != file.record_count:
            file = self._counted(file, content.row_count)
        file = self._with_metrics(file, content)
        if _OFFSETS in self._numbers and content.offsets is not None and file.split_offsets:
            offsets = {*file.split_offsets}
            if not (offsets <= {*content.offsets} and min(offsets) == min(content.offsets)):
                file = replace(file, split_offsets=content.offsets)
        if _UNSORTED in self._numbers and content.orders.get(file.sort_order_id or 0) is not None:
            file = replace(file, sort_order_id=None)
        return file

    def _counted(self, file: DataFile, rows_count: int) -> DataFile:
        if self._table.metadata.format_version > 2 and rows_count > file.record_count:
            raise CannotMendError(
                f"the file has {rows_count} rows where its entry says {file.record_count}, and the row ids of the others may "
                "be those of other rows; rewrite the file"
            )
        return replace(file, record_count=rows_count)

    def _content(self) -> Content:
        metadata, file = self._table.metadata, self._file
        source = SourceFile(
            location=file.file_path,
            file_format=file.file_format,
            constants=identity_values(metadata.specs_by_id[file.spec_id], file.partition),
            name_mapping=name_mapping_of(metadata.properties),
        )
        orders = [order for order in metadata.sort_orders if order.order_id == file.sort_order_id]
        return read_content(self._table.storage, source, self._schema, Claims(partitions=(), orders=orders))

    def _with_metrics(self, file: DataFile, content: Content) -> DataFile:
        if content.columns is None or not self._numbers & {FaultId.BOUNDS_WRONG, *_COUNTS}:
            return file
        types = leaf_types(content.columns)
        for wrong in self._wrong_metrics(content, types):
            if wrong.number not in self._numbers:
                continue
            if wrong.number == FaultId.BOUNDS_WRONG:
                file = _with_bounds(file, wrong.columns, types, content)
            else:
                name = _COUNTS[wrong.number]
                counts = {**getattr(file, name), **dict(zip(wrong.columns, wrong.found, strict=True))}
                file = replace(file, **{name: counts})
        return file

    def _wrong_metrics(self, content: Content, types: Mapping[int, PrimitiveType]) -> Iterator[Wrong]:
        file = self._file
        told = EntryMetrics(*(dict(getattr(file, name) or {}) for name in EntryMetrics.__struct_fields__))
        is_orc = file.file_format.lower() == "orc"
        return wrong_metrics(told, content.metrics, types, top_level(types, self._schema), is_orc=is_orc)

    def _refuse_other_values(self, content: Content) -> None:
        """A file of another size and of other values is another file: readers that go by its bounds would miss its rows."""
        if content.columns is None:
            return
        for wrong in self._wrong_metrics(content, leaf_types(content.columns)):
            if wrong.number not in self._numbers:
                raise CannotMendError(
                    f"it has {self._size_bytes} bytes where its entry says {self._file.file_size_in_bytes}, and other values "
                    f"than its metrics say, so it may be another file; if it is the right one, mend fault {wrong.number} too"
                )

    def _deletes(self) -> DataFile:
        count = self._vector_count() if is_deletion_vector(self._file) else self._rows_count()
        file = self._sized(count)
        return replace(file, record_count=count) if _DELETED_ROWS in self._numbers else file

    def _vector_count(self) -> int:
        file, storage = self._file, self._table.storage
        if file.content_offset is None or file.content_size_in_bytes is None:
            raise CannotMendError("the entry does not say where the vector is")
        if _SIZE in self._numbers:
            read_puffin_footer(storage, file.file_path)
        where = f"at byte {file.content_offset} of {file.file_path!r}"
        return len(
            positions_of(read_range(storage, file.file_path, file.content_offset, file.content_size_in_bytes), where)
        )

    def _rows_count(self) -> int:
        with open_reader(self._table.storage, self._file.file_path, self._file.file_format, DELETE_FILE) as reader:
            return sum(rows.num_rows for _, rows in reader.tables(reader.schema.names, None, (), BATCH_ROWS))


def _with_bounds(
    file: DataFile, ids: Collection[int], types: Mapping[int, PrimitiveType], content: Content
) -> DataFile:
    """With the bounds of some columns as they are in the file; of texts not more than is usual."""
    lower, upper = dict(file.lower_bounds or {}), dict(file.upper_bounds or {})
    for id_ in ids:
        type_ = types[id_]
        least, greatest = (
            value_from_bytes(type_, one[id_]) for one in (content.metrics.lower_bounds, content.metrics.upper_bounds)
        )
        if id_ in lower:
            lower[id_] = lower_bound(type_, least, _BOUND_LENGTH)
        if id_ in upper:
            bound = upper_bound(type_, greatest, _BOUND_LENGTH)
            upper.pop(id_) if bound is None else upper.update({id_: bound})
    return replace(file, lower_bounds=lower, upper_bounds=upper)


ENTRIES = SAID | MEASURED
ROWS = frozenset((203, 204, 205, 206, 207))
TOTALS = frozenset((215, 233))
_SHOWN_BYTES = 32
_entry_mends_SIZE, _SIZE_WRONG = "total-files-size", 233


def mend_file(head: Head, fault: Fault, numbers: frozenset[int]) -> list[tuple[EntryPosition, str]]:
    """Describe the entries of a file anew; `numbers` are all kinds of faults of entries that are to be mended.

    Returns:
        Entries that are written anew, each with what is written.

    Raises:
        CannotMendError: they stay.
    """
    facts = fault.facts
    found, same = [], False
    for place in _places(head, fault):
        file = place.entry.data_file
        if facts.get("content_offset") is not None and file.content_offset != facts["content_offset"]:
            continue
        refuse_doubled(head, place.row)
        refuse_merged(head, place)
        known = head.work.entries.get(place.key)
        if known is not None and known.file is None:
            raise CannotMendError("the file is taken out")
        new = _mended(head, fault, place, numbers)
        if (text := _difference(file, new)) == "":
            same = True
            continue
        head.work.entries[place.key] = place.mended(new)
        found.append((place, text))
    if not found and same:
        raise CannotMendError(NOT_FOUND)
    return found


def _places(head: Head, fault: Fault) -> list[EntryPosition]:
    manifests = manifests_of(fault)
    path = str(fault.facts["file_path"])
    # What one manifest says by itself is of that manifest alone.
    if fault.number in SAID:
        rows = [row for row in head.rows if row.manifest_path in manifests]
        return [p for row in rows[:1] for p in head.places(path, {row.manifest_path}) if p.row is row]
    return head.places(path, manifests)


def _mended(head: Head, fault: Fault, place: EntryPosition, numbers: frozenset[int]) -> DataFile:
    """By this fault and those that were mended in the entry before."""
    known = head.work.entries.get(place.key)
    so_far = place.entry.data_file if known is None or known.file is None else known.file
    wanted = {fault.number}
    if fault.number in MEASURED and 302 in numbers:
        # A size is only taken over together with all else that differs.
        wanted |= MEASURED & numbers
    entry = msgspec.structs.replace(place.entry, data_file=so_far)
    return mended_file(entry, wanted, head.table, schema_of(head.table, fault))


def _difference(old: DataFile, new: DataFile) -> str:
    """What is written, in a sentence; empty where nothing is."""
    said = []
    for name in DataFile.__struct_fields__:
        before, after = getattr(old, name), getattr(new, name)
        if before == after:
            continue
        if isinstance(after, dict):
            was = before or {}
            ids = [i for i in sorted({*was, *after}) if was.get(i) != after.get(i)]
            said += [f"{name} of column {i}: {_shown(after.get(i))} in place of {_shown(was.get(i))}" for i in ids]
        else:
            said.append(f"{name} {_shown(after)} in place of {_shown(before)}")
    return "; ".join(said)


def _shown(value: Any) -> str:
    if isinstance(value, bytes):
        return value[:_SHOWN_BYTES].hex() + ("..." if len(value) > _SHOWN_BYTES else "")
    return "none" if value is None else str([*value] if isinstance(value, tuple) else value)


def mend_row(head: Head, fault: Fault) -> str:
    """Write a manifest anew, whose row then says what it holds; returns what that is.

    Raises:
        CannotMendError: nothing proves that the manifest is whole, or the row is right.
    """
    path = str(fault.facts["manifest"])
    row = head.row(path)
    if row is None:
        raise CannotMendError("")
    refuse_doubled(head, row)
    head.work.rows.add(path)
    try:
        entries = head.entries(row)
        wrong = _wrong_row(head, row, entries)
    except (InvalidTableError, UnsupportedError) as error:
        head.work.rows.discard(path)
        raise CannotMendError(first_line(error)) from error
    if fault.number not in wrong:
        # Another kind of fault may have asked for the same manifest.
        if not wrong:
            head.work.rows.discard(path)
        raise CannotMendError(NOT_FOUND)
    live = sum(entry.is_live for entry in entries)
    return f"the manifest is written anew with its {live} live entries; {wrong[fault.number]}"


def _wrong_row(head: Head, row: ManifestFile, entries: Iterable[ManifestEntry]) -> dict[int, str]:
    """By kind of fault what the row says, and what is so."""
    metadata, storage = head.table.metadata, head.table.storage
    partition = metadata.partition_type(row.partition_spec_id)
    data = storage.read(row.manifest_path)
    names = [name for pair in COUNTS.values() for name in pair]
    blank = msgspec.structs.replace(row, manifest_length=len(data), partitions=None, **dict.fromkeys(names))
    found = completed(blank, data, partition)
    wrong = {}
    for number, which in ((204, 0), (205, 1)):
        for pair in COUNTS.values():
            said, is_ = getattr(row, pair[which]), getattr(found, pair[which])
            if said not in (None, is_):
                wrong[number] = f"{pair[which]} {is_} in place of {said}"
    if row.manifest_length != len(data):
        wrong[203] = f"{len(data)} bytes in place of {row.manifest_length}"
    if None not in (row.partitions, found.partitions) and row.partitions != found.partitions:
        wrong[206] = "the summaries of its partitions are worked out anew"
    least = min((e.sequence_number or 0 for e in entries if e.is_live), default=None)
    if least is not None and (row.min_sequence_number or 0) > least:
        wrong[207] = f"min_sequence_number {least} in place of {row.min_sequence_number}"
    return wrong


def count_anew(head: Head, reader: ManifestReader, number: int) -> str:
    """Have the totals counted anew where those of the head are wrong; returns what they become.

    Raises:
        CannotMendError: they are right, or not every manifest can be read, or files are doubled.
    """
    if head.standing:
        raise CannotMendError("files are doubled, and would be counted twice: mend faults 212 and 220 first")
    summary = head.snapshot.summary or {}
    totals = _totals(head, reader)
    names = [name for name in totals if (name == _entry_mends_SIZE) == (number == _SIZE_WRONG)]
    said = [f"{n} {totals[n]} in place of {summary[n]}" for n in names if n in summary and summary[n] != str(totals[n])]
    if not said:
        raise CannotMendError(NOT_FOUND)
    head.work.recounts_totals = True
    return ", ".join(said)


def can_count_anew(head: Head, reader: ManifestReader) -> bool:
    """Whether totals can be counted from the entries once what is planned is written."""
    try:
        _totals(head, reader)
    except CannotMendError:
        return False
    return not head.standing


def _totals(head: Head, reader: ManifestReader) -> Mapping[str, int]:
    """The totals of what is live once what is planned is written; raises `CannotMendError` where not all can be read."""
    # None is listed twice but for those that are going to be listed once.
    rows = {row.manifest_path: row for row in head.rows}
    sound = [row for path, row in rows.items() if path not in head.work.rows]
    try:
        found = reader.gathered(sound, live_totals(head.table.metadata))
        anew = [
            totals_of(p.entry.data_file for p in head.live(row)) for path, row in rows.items() if path in head.work.rows
        ]
    except (InvalidTableError, UnsupportedError) as error:
        raise CannotMendError(f"not every manifest can be read: {first_line(error)}") from error
    totals = totals_of(())
    for one in (*found, *anew):
        totals.update(one)
    if (problem := head.why_cut_short(totals)) is not None:
        raise CannotMendError(problem)
    for entry in head.work.entries.values():
        totals.subtract(totals_of([entry.planned.data_file]))
        totals.update(totals_of(() if entry.file is None else [entry.file]))
    totals.update(totals_of(head.work.copied))
    return totals


def drop_dangling(head: Head, reader: ManifestReader) -> str:
    """Have delete files taken out that reach no live data file; returns how many there are.

    Raises:
        CannotMendError: there are none, or not every manifest can be read.
    """
    if head.standing:
        raise CannotMendError("files are doubled: mend faults 212 and 220 first")
    if head.misleading:
        wrong = ", ".join(map(str, sorted(head.misleading)))
        raise CannotMendError(f"it is not sure what deletes reach while other faults are there: mend {wrong} first")
    try:
        count = dangling_deletes_count(head.table.metadata, head.branch, reader, hold_own_path)
    except (InvalidTableError, UnsupportedError) as error:
        raise CannotMendError(f"not every manifest can be read: {first_line(error)}") from error
    if not count:
        raise CannotMendError(NOT_FOUND)
    head.work.drops_dangling = True
    return f"{counted_doing(count, 'delete files', 'reach')} no data file and {'is' if count == 1 else 'are'} taken out"


BROKEN = frozenset((FaultId.DATA_FILE_UNREADABLE, 413, 414))


def mend_broken(head: Head, fault: Fault, accepted: Collection[str]) -> Lost:
    """Plan that the entries of a file go, or that of a vector, which cannot be read.

    Raises:
        CannotMendError: it can be read, or it is not known whether it can, or the loss is not accepted.
        UnavailableError: the store is out of reach.
    """
    path, offset = str(fault.facts["file_path"]), fault.facts.get("content_offset")
    is_data = fault.number == FaultId.DATA_FILE_UNREADABLE
    places = [
        place
        for place in head.places(path, manifests_of(fault))
        if (place.entry.data_file.content is FileContent.DATA) is is_data
        and offset in (None, place.entry.data_file.content_offset)
    ]
    if not places:
        raise CannotMendError("")
    info = head.table.storage.head(path)
    if info is None:
        raise CannotMendError("it is not there: see faults 301 and 303")
    problems = [_problem(head, fault, place) for place in places]
    if "" in problems:
        raise CannotMendError(NOT_FOUND)
    lost = take_out(head, path, places, accepted, f"icekeep cannot read it: {problems[0]}")
    head.work.broken[path] = info
    return msgspec.structs.replace(lost, action=f"{lost.action}; the file goes when older snapshots expire")


def _problem(head: Head, fault: Fault, place: EntryPosition) -> str:
    """Why a file cannot be read; empty where it can."""
    if place.entry.data_file.key_metadata is not None:
        raise CannotMendError("the file is encrypted")
    try:
        read_whole(place.entry.data_file, head.table, schema_of(head.table, fault))
    except MissingFileError as error:
        raise CannotMendError(NOT_FOUND) from error
    except InvalidTableError as error:
        return first_line(error)
    except (UnsupportedError, UsageError) as error:
        raise CannotMendError(f"it is not known whether the file can be read: {first_line(error)}") from error
    return ""
