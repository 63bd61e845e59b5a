"""What entries, rows of manifest lists and summaries say wrongly is measured and written: no row that can be read changes."""

from collections.abc import Collection, Iterable, Mapping
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import asdict, replace

from icekeep.catalog.base import Table
from icekeep.commit.changes.repair_entries import live_totals
from icekeep.commit.dangling import dangling_deletes_count
from icekeep.commit.summary import totals_of
from icekeep.errors import InvalidTableError, UnsupportedError, UsageError, first_line
from icekeep.formats.deletes.read import BATCH_ROWS, DELETE_FILE, hold_own_path
from icekeep.formats.puffin import positions_of, read_puffin_footer, read_range
from icekeep.formats.reader import SourceFile, open_reader
from icekeep.maintenance.check.content import Content, read_content, wrong_metrics
from icekeep.maintenance.check.faults import Fault, FaultId
from icekeep.maintenance.check.manifests import column_types, is_judged
from icekeep.maintenance.repair.heads import Head, manifests_of
from icekeep.maintenance.repair.plan import NOT_FOUND, CannotRepairError, Fix
from icekeep.planning.prune import decode_bounds
from icekeep.spec.manifests.read import completed
from icekeep.spec.manifests.structs import COUNTS, DataFile, FileContent, ManifestEntry, ManifestFile
from icekeep.spec.partitioning import identity_values
from icekeep.spec.reach import is_deletion_vector
from icekeep.spec.schema import Schema, name_mapping_of
from icekeep.spec.types import PrimitiveType
from icekeep.spec.values import lower_bound, upper_bound, value_from_bytes
from icekeep.spelling import counted_doing

IN_ENTRY = frozenset(
    (
        FaultId.BOUND_UNDECODABLE,
        FaultId.BOUNDS_CROSSED,
        FaultId.METRIC_COUNTS_CONTRADICT,
        FaultId.SPLIT_OFFSETS_WRONG,
        FaultId.SORT_ORDER_UNKNOWN,
    )
)
"""Kinds of faults that an entry shows by itself."""

IN_FILE = frozenset(
    (
        FaultId.FILE_SIZE_WRONG,
        FaultId.RECORD_COUNT_WRONG,
        FaultId.BOUNDS_WRONG,
        FaultId.NULL_COUNT_WRONG,
        FaultId.VALUE_COUNT_WRONG,
        FaultId.NAN_COUNT_WRONG,
        FaultId.NOT_SORTED_AS_CLAIMED,
        FaultId.DELETED_COUNT_WRONG,
        FaultId.SPLIT_OFFSETS_NOT_OF_FILE,
    )
)
"""Kinds that its file shows."""

_COUNT_FIELDS: Mapping[int, str] = {
    FaultId.NULL_COUNT_WRONG: "null_value_counts",
    FaultId.VALUE_COUNT_WRONG: "value_counts",
    FaultId.NAN_COUNT_WRONG: "nan_value_counts",
}
_BOUND_FIELDS = ("lower_bounds", "upper_bounds")
_BOUND_LENGTH = 16
_SHOWN_BYTES = 32


def fix_entries(head: Head, fault: Fault) -> list[Fix]:
    """Plan to correct the entries of a file, by all kinds of faults of entries that are to be repaired.

    Raises:
        CannotRepairError: they stay.
    """
    manifests, path = manifests_of(fault), str(fault.facts["file_path"])
    places = head.places(path, manifests)
    if fault.number in IN_ENTRY:
        # What one manifest shows by itself is of that manifest alone.
        row = next((row for row in head.rows if row.manifest_path in manifests), None)
        places = [] if row is None else [p for p in head.places(path, {row.manifest_path}) if p.row is row]
    offset = fault.facts.get("content_offset")
    found, is_same = list[Fix](), False
    for place in places:
        file = place.entry.data_file
        if offset not in (None, file.content_offset):
            continue
        head.refuse_doubled(place.row)
        head.refuse_merged(place)
        planned = head.work.entries.get(place.key)
        if planned is not None and planned.file is None:
            raise CannotRepairError("the file is taken out")
        numbers = {fault.number}
        if fault.number in IN_FILE and FaultId.FILE_SIZE_WRONG in head.scope.numbers:
            # A size is only corrected together with all else that differs.
            numbers |= IN_FILE & head.scope.numbers
        so_far = file if planned is None or planned.file is None else planned.file
        new = corrected(so_far, numbers, head.table, head.schema_of(fault))
        if action := _difference(file, new):
            head.work.entries[place.key] = place.repaired(new)
            found.append(Fix(action=action))
        else:
            is_same = True
    if not found and is_same:
        raise CannotRepairError(NOT_FOUND)
    return found


def _difference(old: DataFile, new: DataFile) -> str:
    """What is written, in a sentence; empty where nothing is."""
    changes = []
    for name in DataFile.__struct_fields__:
        before, after = getattr(old, name), getattr(new, name)
        if before == after:
            continue
        if isinstance(after, dict):
            was = before or {}
            ids = [i for i in sorted({*was, *after}) if was.get(i) != after.get(i)]
            changes += [f"{name} of column {i}: {_shown(after.get(i))} in place of {_shown(was.get(i))}" for i in ids]
        else:
            changes.append(f"{name} {_shown(after)} in place of {_shown(before)}")
    return "; ".join(changes)


def _shown(value: Any) -> str:
    if isinstance(value, bytes):
        return value[:_SHOWN_BYTES].hex() + ("..." if len(value) > _SHOWN_BYTES else "")
    return "none" if value is None else str([*value] if isinstance(value, tuple) else value)


def corrected(file: DataFile, numbers: Collection[int], table: Table, schema: Schema) -> DataFile:
    """How an entry must describe its file; unchanged if none of these faults is there any more.

    Args:
        numbers: kinds of faults of `IN_ENTRY` and `IN_FILE` to look for.
        schema: in whose columns a data file is read.

    Raises:
        CannotRepairError: it is not known what is right.
        UnavailableError: the store is out of reach.
    """
    if file.key_metadata is not None:
        raise CannotRepairError("the file is encrypted")
    if in_file := IN_FILE.intersection(numbers):
        file = _Measuring(file, in_file, table, schema).corrected()
    # Readers without a metric that cannot be right read the file.
    orders = {order.order_id for order in table.metadata.sort_orders}
    if FaultId.SORT_ORDER_UNKNOWN in numbers and file.sort_order_id not in (None, *orders):
        file = replace(file, sort_order_id=None)
    if FaultId.SPLIT_OFFSETS_WRONG in numbers:
        offsets = file.split_offsets or ()
        rise = all(one < other for one, other in pairwise(offsets))
        if not rise or not all(0 <= offset < file.file_size_in_bytes for offset in offsets):
            file = replace(file, split_offsets=None)
    if FaultId.METRIC_COUNTS_CONTRADICT in numbers:
        file = _without(file, _COUNT_FIELDS.values(), _contradicting_counts(file))
    if of_bounds := {FaultId.BOUND_UNDECODABLE, FaultId.BOUNDS_CROSSED}.intersection(numbers):
        file = _without(file, _BOUND_FIELDS, _contradicting_bounds(file, of_bounds, table))
    return file


def _contradicting_counts(file: DataFile) -> set[int]:
    maps: list[Mapping[int, int]] = [getattr(file, name) or {} for name in _COUNT_FIELDS.values()]
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
        if (FaultId.BOUND_UNDECODABLE in numbers and undecodable) or (FaultId.BOUNDS_CROSSED in numbers and crossed):
            wrong.add(id_)
    return wrong


def _without(file: DataFile, names: Iterable[str], ids: Collection[int]) -> DataFile:
    """The file without the metrics of some columns."""
    kept: dict[str, Any] = {}
    for name in names:
        metrics = getattr(file, name)
        kept[name] = metrics and {id_: value for id_, value in metrics.items() if id_ not in ids}
    return replace(file, **kept)


def read_whole(file: DataFile, table: Table, schema: Schema) -> None:
    """Read a data file, a delete file or a deletion vector from its first byte to its last.

    Raises:
        MissingFileError: there is no such file.
        InvalidTableError, UnsupportedError, UsageError: it cannot be read.
    """
    measuring = _Measuring(file, frozenset(), table, schema)
    if file.content is FileContent.DATA:
        measuring.content()
    else:
        measuring.deletes_count()


class _Measuring:
    """One file, measured for some kinds of faults."""

    def __init__(self, file: DataFile, numbers: frozenset[int], table: Table, schema: Schema) -> None:
        self._file, self._numbers, self._table, self._schema = file, numbers, table, schema
        self._size_bytes = file.file_size_in_bytes

    def corrected(self) -> DataFile:
        """A file of another size may be another file, of which facts are taken over only together with its size."""
        file = self._file
        try:
            info = self._table.storage.head(file.file_path)
            if info is None:
                raise CannotRepairError("there is no such file")
            self._size_bytes = info.size_bytes
            if self._size_bytes != file.file_size_in_bytes and FaultId.FILE_SIZE_WRONG not in self._numbers:
                raise CannotRepairError(
                    f"the file has {self._size_bytes} bytes where its entry says {file.file_size_in_bytes}, so it may be "
                    "another one; see fault 302"
                )
            if file.content is FileContent.DATA:
                return self._corrected_data()
            count = self.deletes_count()
            file = self._sized(count)
            return replace(file, record_count=count) if FaultId.DELETED_COUNT_WRONG in self._numbers else file
        except (InvalidTableError, UnsupportedError, UsageError) as error:
            raise CannotRepairError(f"the file cannot be measured: {first_line(error)}") from error

    def _sized(self, rows_count: int) -> DataFile:
        """The file with its true size, which is only taken over where all its rows are there."""
        file = self._file
        if self._size_bytes == file.file_size_in_bytes:
            return file
        if rows_count != file.record_count:
            raise CannotRepairError(
                f"it has {self._size_bytes} bytes and {rows_count} rows where its entry says "
                f"{file.file_size_in_bytes} and {file.record_count}: it is another file, or a part of one"
            )
        return replace(file, file_size_in_bytes=self._size_bytes)

    def _corrected_data(self) -> DataFile:
        content, numbers = self.content(), self._numbers
        file = self._sized(content.row_count)
        if file is not self._file:
            self._refuse_other_values(content)
        if FaultId.RECORD_COUNT_WRONG in numbers and content.row_count != file.record_count:
            if self._table.metadata.format_version > 2 and content.row_count > file.record_count:
                raise CannotRepairError(
                    f"the file has {content.row_count} rows where its entry says {file.record_count}, and the row ids of the "
                    "others may be those of other rows; rewrite the file"
                )
            file = replace(file, record_count=content.row_count)
        file = self._with_metrics(file, content)
        if FaultId.SPLIT_OFFSETS_NOT_OF_FILE in numbers and content.offsets is not None and file.split_offsets:
            offsets = {*file.split_offsets}
            if not (offsets <= {*content.offsets} and min(offsets) == min(content.offsets)):
                file = replace(file, split_offsets=content.offsets)
        if FaultId.NOT_SORTED_AS_CLAIMED in numbers and content.orders.get(file.sort_order_id or 0) is not None:
            file = replace(file, sort_order_id=None)
        return file

    def content(self) -> Content:
        """All rows of a data file, measured by the check."""
        metadata, file = self._table.metadata, self._file
        source = SourceFile(
            location=file.file_path,
            file_format=file.file_format,
            constants=identity_values(metadata.specs_by_id[file.spec_id], file.partition),
            name_mapping=name_mapping_of(metadata.properties),
        )
        orders = [order for order in metadata.sort_orders if order.order_id == file.sort_order_id]
        return read_content(self._table.storage, source, self._schema, orders)

    def _with_metrics(self, file: DataFile, content: Content) -> DataFile:
        if content.columns is None or not self._numbers & {FaultId.BOUNDS_WRONG, *_COUNT_FIELDS}:
            return file
        for wrong in wrong_metrics(asdict(self._file), content, self._schema):
            if wrong.number not in self._numbers:
                continue
            if wrong.number == FaultId.BOUNDS_WRONG:
                file = _with_bounds(file, wrong.columns, content.columns.types, content)
            else:
                name = _COUNT_FIELDS[wrong.number]
                counts = {**getattr(file, name), **dict(zip(wrong.columns, wrong.found, strict=True))}
                file = replace(file, **{name: counts})
        return file

    def _refuse_other_values(self, content: Content) -> None:
        """A file of another size and of other values is another file: readers that go by its bounds would miss its rows."""
        for wrong in wrong_metrics(asdict(self._file), content, self._schema):
            if wrong.number not in self._numbers:
                raise CannotRepairError(
                    f"it has {self._size_bytes} bytes where its entry says {self._file.file_size_in_bytes}, and other values "
                    f"than its metrics say, so it may be another file; if it is the right one, repair fault {wrong.number} too"
                )

    def deletes_count(self) -> int:
        """How many rows a delete file has, or how many positions a vector."""
        file, storage = self._file, self._table.storage
        if not is_deletion_vector(file):
            with open_reader(storage, file.file_path, file.file_format, DELETE_FILE) as reader:
                return sum(rows.num_rows for _, rows in reader.tables(reader.schema.names, None, (), BATCH_ROWS))
        if file.content_offset is None or file.content_size_in_bytes is None:
            raise CannotRepairError("the entry does not say where the vector is")
        if FaultId.FILE_SIZE_WRONG in self._numbers:
            read_puffin_footer(storage, file.file_path)
        data = read_range(storage, file.file_path, file.content_offset, file.content_size_in_bytes)
        return len(positions_of(data, f"at byte {file.content_offset} of {file.file_path!r}"))


def _with_bounds(
    file: DataFile, ids: Collection[int], types: Mapping[int, PrimitiveType], content: Content
) -> DataFile:
    """With the bounds of some columns as they are in the file; of texts not more than is usual."""
    lower, upper = dict(file.lower_bounds or {}), dict(file.upper_bounds or {})
    for id_ in ids:
        type_ = types[id_]
        if id_ in lower:
            least = value_from_bytes(type_, content.metrics.lower_bounds[id_])
            lower[id_] = lower_bound(type_, least, _BOUND_LENGTH)
        if id_ in upper:
            bound = upper_bound(type_, value_from_bytes(type_, content.metrics.upper_bounds[id_]), _BOUND_LENGTH)
            upper.pop(id_) if bound is None else upper.update({id_: bound})
    return replace(file, lower_bounds=lower, upper_bounds=upper)


def fix_row(head: Head, fault: Fault) -> list[Fix]:
    """Plan to rewrite a manifest, whose row then says what it holds.

    Raises:
        CannotRepairError: nothing proves that the manifest is whole, or the row is right.
    """
    path = str(fault.facts["manifest"])
    row = next((row for row in head.rows if row.manifest_path == path), None)
    if row is None:
        raise CannotRepairError("")
    head.refuse_doubled(row)
    head.work.rows.add(path)
    try:
        entries = head.entries(row)
        wrong = _wrong_row(head, row, entries)
    except (InvalidTableError, UnsupportedError) as error:
        head.work.rows.discard(path)
        raise CannotRepairError(first_line(error)) from error
    if fault.number not in wrong:
        # Another kind of fault may have asked for the same manifest.
        if not wrong:
            head.work.rows.discard(path)
        raise CannotRepairError(NOT_FOUND)
    live = sum(entry.is_live for entry in entries)
    return [Fix(action=f"the manifest is rewritten with its {live} live entries; {wrong[fault.number]}")]


def _wrong_row(head: Head, row: ManifestFile, entries: Iterable[ManifestEntry]) -> dict[int, str]:
    """By kind of fault what the row says, and what is true."""
    data = head.table.storage.read(row.manifest_path)
    names = [name for pair in COUNTS.values() for name in pair]
    blank = replace(row, manifest_length=len(data), partitions=None, **dict.fromkeys(names))
    found = completed(blank, data, head.table.metadata.partition_type(row.partition_spec_id))
    wrong: dict[int, str] = {}
    for pair in COUNTS.values():
        for number, name in zip((FaultId.FILE_COUNTS_WRONG, FaultId.ROW_COUNTS_WRONG), pair, strict=True):
            if getattr(row, name) not in (None, getattr(found, name)):
                wrong[number] = f"{name} {getattr(found, name)} in place of {getattr(row, name)}"
    if row.manifest_length != len(data):
        wrong[FaultId.MANIFEST_LENGTH_WRONG] = f"{len(data)} bytes in place of {row.manifest_length}"
    if None not in (row.partitions, found.partitions) and row.partitions != found.partitions:
        wrong[FaultId.PARTITION_SUMMARY_WRONG] = "the summaries of its partitions are computed again"
    least = min((e.sequence_number or 0 for e in entries if e.is_live), default=None)
    if least is not None and (row.min_sequence_number or 0) > least:
        wrong[FaultId.MIN_SEQUENCE_NUMBER_WRONG] = f"min_sequence_number {least} in place of {row.min_sequence_number}"
    return wrong


def fix_totals(head: Head, fault: Fault) -> list[Fix]:
    """Plan to recount the totals of the head where they are wrong.

    Raises:
        CannotRepairError: they are right, or not every manifest can be read, or files are doubled.
    """
    if head.standing:
        raise CannotRepairError("files are doubled, and would be counted twice: repair faults 212 and 220 first")
    summary, totals = head.snapshot.summary or {}, _totals(head)
    names = [n for n in totals if (n == "total-files-size") == (fault.number == FaultId.SIZE_TOTAL_WRONG)]
    wrong = [n for n in names if n in summary and summary[n] != str(totals[n])]
    if not wrong:
        raise CannotRepairError(NOT_FOUND)
    head.work.recounts_totals = True
    return [Fix(action=", ".join(f"{name} {totals[name]} in place of {summary[name]}" for name in wrong))]


def can_recount(head: Head) -> bool:
    """Whether totals can be counted from the entries after the planned changes."""
    try:
        _totals(head)
    except CannotRepairError:
        return False
    return not head.standing


def _totals(head: Head) -> Mapping[str, int]:
    """The totals of live files after the planned changes; raises `CannotRepairError` where not all can be read."""
    # None is listed twice but for those that are going to be listed once.
    rows = {row.manifest_path: row for row in head.rows}
    totals = totals_of(())
    try:
        right = [row for path, row in rows.items() if path not in head.work.rows]
        for found in head.reader.gathered(right, live_totals(head.table.metadata)):
            totals.update(found)
        for path in rows.keys() & head.work.rows:
            totals.update(totals_of(entry.data_file for entry in head.entries(rows[path]) if entry.is_live))
    except (InvalidTableError, UnsupportedError) as error:
        raise CannotRepairError(f"not every manifest can be read: {first_line(error)}") from error
    if (problem := head.why_cut_short(totals)) is not None:
        raise CannotRepairError(problem)
    for entry in head.work.entries.values():
        totals.subtract(totals_of([entry.planned.data_file]))
        totals.update(totals_of(() if entry.file is None else [entry.file]))
    copied = (old.entry.data_file for one in head.work.replacements.values() for old in one.old)
    totals.update(totals_of(copied))
    return totals


def fix_dangling(head: Head, _: Fault) -> list[Fix]:
    """Plan to take out the delete files that reach no live data file.

    Raises:
        CannotRepairError: there are none, or not every manifest can be read.
    """
    if head.standing:
        raise CannotRepairError("files are doubled: repair faults 212 and 220 first")
    if head.misleading:
        wrong = ", ".join(str(int(number)) for number in sorted(head.misleading))
        raise CannotRepairError(
            f"it is not certain what deletes reach while other faults are there: repair {wrong} first"
        )
    try:
        count = dangling_deletes_count(head.table.metadata, head.branch, head.reader, hold_own_path)
    except (InvalidTableError, UnsupportedError) as error:
        raise CannotRepairError(f"not every manifest can be read: {first_line(error)}") from error
    if not count:
        raise CannotRepairError(NOT_FOUND)
    head.work.drops_dangling = True
    verb = "is" if count == 1 else "are"
    return [Fix(action=f"{counted_doing(count, 'delete files', 'reach')} no data file and {verb} taken out")]
