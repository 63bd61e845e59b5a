"""An entry as its file says that it is to be: what the check found is measured again, and nothing is written that was not."""

from collections.abc import Collection, Iterator, Mapping
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import replace

from icekeep.catalog.base import Table
from icekeep.errors import InvalidTableError, UnsupportedError, UsageError, first_line
from icekeep.formats.deletes.read import BATCH_ROWS, DELETE_FILE
from icekeep.formats.puffin import positions_of, read_puffin_footer, read_range
from icekeep.formats.reader import SourceFile, open_reader
from icekeep.maintenance.checking.content.judging import Told
from icekeep.maintenance.checking.content.metrics import BOUNDS, NANS, NULLS, VALUES, Wrong, wrong_metrics
from icekeep.maintenance.checking.content.reading import Claims, Content, leaf_types, read_content, top_level
from icekeep.maintenance.checking.manifests.metrics import column_types, is_judged
from icekeep.maintenance.repairing.reasons import CannotMendError
from icekeep.planning.prune import decode_bounds
from icekeep.spec.manifests.structs import DataFile, FileContent, ManifestEntry
from icekeep.spec.partitioning import identity_values
from icekeep.spec.reach import is_deletion_vector
from icekeep.spec.schema import Schema, name_mapping_of
from icekeep.spec.types import PrimitiveType
from icekeep.spec.values import lower_bound, upper_bound, value_from_bytes

SAID = frozenset((225, 226, 227, 230, 231))
"""Kinds of faults that an entry shows by itself."""

MEASURED = frozenset((302, 402, 405, 406, 407, 408, 409, 415, 422))
"""Kinds that its file shows."""

_COUNTS = {NULLS: "null_value_counts", VALUES: "value_counts", NANS: "nan_value_counts"}
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
        if content.columns is None or not self._numbers & {BOUNDS, *_COUNTS}:
            return file
        types = leaf_types(content.columns)
        for wrong in self._wrong_metrics(content, types):
            if wrong.number not in self._numbers:
                continue
            if wrong.number == BOUNDS:
                file = _with_bounds(file, wrong.columns, types, content)
            else:
                name = _COUNTS[wrong.number]
                counts = {**getattr(file, name), **dict(zip(wrong.columns, wrong.found, strict=True))}
                file = replace(file, **{name: counts})
        return file

    def _wrong_metrics(self, content: Content, types: Mapping[int, PrimitiveType]) -> Iterator[Wrong]:
        file = self._file
        told = Told(*(dict(getattr(file, name) or {}) for name in Told.__struct_fields__))
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
