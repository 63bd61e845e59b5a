"""Position and equality delete files, written and read (spec, "Position Delete Files", "Equality Delete Files").

`apply` applies them to data files; deletion vectors are in `formats.puffin`. `DeleteCache` keeps decoded delete files for the
data files of one task.
"""

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from icekeep.errors import IcekeepBug, IcekeepError, InvalidTableError, PropertyError, UnsupportedError
from icekeep.formats.arrow.projection import cast_to_schema, leaf_path
from icekeep.formats.arrow.schema import field_id, field_ids
from icekeep.formats.base import FileReader, PartChoice
from icekeep.formats.options import WriteOptions, write_options
from icekeep.formats.reader import FileColumns, SourceFile, identified, read_file
from icekeep.formats.writer import DataFileWriter
from icekeep.spec.manifests.structs import DataFile, FileContent
from icekeep.spec.properties import FULL, metrics_modes
from icekeep.spec.reach import PathDigest, encoded_path, own_path, own_path_digest
from icekeep.spec.schema import (
    DELETE_FILE_PATH,
    DELETE_FILE_POS,
    NameMapping,
    Schema,
    deleted_row_column,
    name_mapping_for,
)
from icekeep.spec.types import MAX_LONG, MIB, UNKNOWN, StructType
from icekeep.storage.base import REQUESTS_AT_ONCE, Storage, answer_each

BATCH_ROWS = 65_536
"""Rows of a delete file that are decoded at a time, if its format can."""

DELETE_FILE = "delete file"
"""The noun for a delete file in errors (`SourceFile.noun`)."""

DEFAULT_BUDGET_BYTES = 64 * MIB
"""The most bytes of decoded delete files in a `DeleteCache`."""

Positions = NDArray[np.int64]

POSITION_COLUMNS = Schema(fields=(DELETE_FILE_PATH, DELETE_FILE_POS))

_POSITION_NAMES = name_mapping_for(POSITION_COLUMNS)
_ROW_GROUP_ARROW_BYTES = 16 * MIB
_DELETE_PREFIX, _PREFIX = "write.delete.", "write."


def write_position_deletes(  # noqa: PLR0913 - what the caller knows and the entry says
    storage: Storage,
    location: str,
    file_format: str,
    positions: Iterable[tuple[str, int]] | pa.Table,
    *,
    spec_id: int,
    partition: tuple[Any, ...] = (),
    properties: Mapping[str, str] | None = None,
    row_type: StructType | None = None,
) -> DataFile:
    """Write one position delete file; duplicates are written once.

    `positions` are in any order, each with the path of its data file as in the manifest entry; a table has them as `file_path`
    and `pos`, and values of deleted rows, of columns `row_type`, as `row`. Table properties `write.delete.*` override `write.*`.
    Raises `FileExistsError` if the name is taken, `UsageError` if only some rows have values, or a property is invalid.
    """
    properties = properties or {}
    fields = POSITION_COLUMNS.fields
    modes = {field.field_id: FULL for field in fields}
    if row_type is not None:
        fields = (*fields, msgspec.structs.replace(deleted_row_column(row_type), required=True))
        modes |= metrics_modes(properties, Schema(fields=row_type.fields))
    schema = Schema(fields=fields)
    if not isinstance(positions, pa.Table):
        pairs = [*positions]
        columns = [pa.array([path for path, _ in pairs], pa.string()), pa.array([at for _, at in pairs], pa.int64())]
        positions = pa.Table.from_arrays(columns, names=[field.name for field in POSITION_COLUMNS.fields])
    if not positions.num_rows:
        raise IcekeepBug("a position delete file without positions is not written")
    table = sorted_once(cast_to_schema(positions, schema))
    if (least := pc.min(table.column(1)).as_py()) < 0:
        raise IcekeepBug(f"there is no row at position {least}")
    options = msgspec.structs.replace(delete_write_options(properties, file_format, schema), metrics_modes=modes)
    return as_position_deletes(_write(storage, location, options, table, schema, spec_id, partition))


def as_position_deletes(file: DataFile) -> DataFile:
    """A file that was written with full bounds of paths as a position delete file."""
    lower = (file.lower_bounds or {}).get(DELETE_FILE_PATH.field_id)
    upper = (file.upper_bounds or {}).get(DELETE_FILE_PATH.field_id)
    return msgspec.structs.replace(
        file,
        content=FileContent.POSITION_DELETES,
        sort_order_id=None,
        referenced_data_file=lower.decode() if lower is not None and lower == upper else None,
    )


def sorted_once(deletes: pa.Table) -> pa.Table:
    """One or more rows of position deletes, sorted by path and position, each position once."""
    keys = [(DELETE_FILE_PATH.name, "ascending"), (DELETE_FILE_POS.name, "ascending")]
    deletes = deletes.take(pc.sort_indices(deletes, sort_keys=keys))
    paths, positions = deletes.column(0), deletes.column(1).to_numpy()
    again = pc.equal(paths.slice(1), paths.slice(0, len(paths) - 1)).to_numpy() & (np.diff(positions) == 0)
    return deletes.take(pa.array(np.flatnonzero(np.concatenate([[True], ~again]))))


def write_equality_deletes(  # noqa: PLR0913 - what the caller knows and the entry says
    storage: Storage,
    location: str,
    file_format: str,
    rows: pa.Table,
    equality_ids: Iterable[int],
    schema: Schema,
    *,
    spec_id: int,
    partition: tuple[Any, ...] = (),
    properties: Mapping[str, str] | None = None,
    sort_order_id: int = 0,
) -> DataFile:
    """Write one equality delete file, in the order of its rows.

    Columns that are not in `equality_ids` only describe the deleted row. `rows` are in the columns of `schema`, as `project` or
    `cast_to_schema` returns them. Floating point columns may be compared, although the spec does not let them identify rows:
    other engines write such deletes, and agree on their meaning. An unpartitioned spec is for deletes in all partitions.
    """
    ids = tuple(dict.fromkeys(equality_ids))
    if not ids:
        raise IcekeepBug("equality deletes without columns to compare would delete every row")
    for id_ in ids:
        try:
            *_, leaf = leaf_path(id_, [schema])
        except InvalidTableError as error:
            raise IcekeepBug(f"equality deletes cannot be written: {error.message}") from error
        if leaf.type == UNKNOWN:
            raise IcekeepBug(f"equality deletes cannot be written: column {leaf.name!r} is of type 'unknown'")
    if not rows.num_rows:
        raise IcekeepBug(f"an equality delete file without rows is not written: {location!r}")
    options = delete_write_options(properties or {}, file_format, schema)
    file = _write(storage, location, options, rows, schema, spec_id, partition)
    return msgspec.structs.replace(
        file, content=FileContent.EQUALITY_DELETES, equality_ids=ids, sort_order_id=sort_order_id
    )


def _write(
    storage: Storage,
    location: str,
    options: WriteOptions,
    table: pa.Table,
    schema: Schema,
    spec_id: int,
    partition: tuple[Any, ...],
) -> DataFile:
    with DataFileWriter(
        storage, schema, options, lambda: location, spec_id=spec_id, partition=partition, sort_order_id=None
    ) as writer:
        writer.write(table)
        (file,) = writer.close()
    return file


def delete_write_options(
    properties: Mapping[str, str], file_format: str, schema: Schema, *, target_file_size_bytes: int = MAX_LONG
) -> WriteOptions:
    """The write options of delete files: those of data files, overridden by the properties for deletes."""
    own = {
        _PREFIX + key.removeprefix(_DELETE_PREFIX): value
        for key, value in properties.items()
        if key.startswith(_DELETE_PREFIX)
    }
    merged = {**properties, **own, "write.format.default": file_format}
    try:
        options = write_options(merged, schema, target_file_size_bytes=target_file_size_bytes)
    except PropertyError as error:
        key = error.facts["property"]
        if key not in own:
            raise
        named = _DELETE_PREFIX + key.removeprefix(_PREFIX)
        raise PropertyError(error.worded({repr(key): repr(named)}), property=named) from None
    # Small row groups: a reader of the deletes of one data file skips the others.
    return msgspec.structs.replace(options, row_group_arrow_bytes=_ROW_GROUP_ARROW_BYTES)


def read_position_deletes(storage: Storage, file: DataFile, path: str) -> Positions:
    """The positions that a position delete file deletes in one data file: ascending, each once.

    Paths are compared as they are: that of the manifest entry and that of the delete file must agree in each character. Raises
    `InvalidTableError` if the file is damaged, has the wrong number of rows, or is no position delete file, and
    `UnsupportedError` if it is encrypted, or its format is unknown.
    """
    parts = [
        table.column(1).filter(pc.equal(table.column(0), path)).to_numpy()
        for table in position_tables(storage, file, POSITION_COLUMNS, path, f"{path}\0")
    ]
    return np.unique(np.concatenate(parts)) if parts else np.empty(0, np.int64)


def read_all_position_deletes(storage: Storage, file: DataFile, limit_bytes: int) -> dict[str, Positions] | None:
    """The same for each data file; null if the positions take more than a limit. Raises as `read_position_deletes`."""
    by_path: dict[str, list[Positions]] = {}
    held_bytes = 0
    for table in position_tables(storage, file, POSITION_COLUMNS):
        held_bytes += 8 * table.num_rows
        if held_bytes > limit_bytes:
            return None
        positions = table.column(1).to_numpy()
        for path, rows in rows_by_path(table.column(0)):
            by_path.setdefault(path, []).append(positions[rows])
    return {path: np.unique(np.concatenate(parts)) for path, parts in by_path.items()}


def hold_own_path(storage: Storage, files: Sequence[DataFile]) -> list[DataFile]:
    """The position delete files whose rows all have the path that is their `own_path`; a `PathProof`.

    A file that cannot be read, for any reason, is left out, so that it is kept in the table.
    """

    def holds(file: DataFile) -> bool:
        own = own_path(file)
        try:
            for rows in position_tables(storage, file, POSITION_COLUMNS):
                if any(encoded_path(path) != own for path, _ in rows_by_path(rows.column(0))):
                    return False
        except (IcekeepError, UnicodeDecodeError):
            return False
        return own is not None

    answers = answer_each(holds, files, lambda file: file.file_path, REQUESTS_AT_ONCE)
    return [file for file, is_held in zip(files, answers, strict=True) if is_held]


class OwnPathProof(msgspec.Struct, frozen=True):
    """`hold_own_path` if some files were read before: `proven` has their `own_path_digest`."""

    proven: frozenset[PathDigest]

    def __call__(self, storage: Storage, files: Sequence[DataFile]) -> list[DataFile]:
        asked = [file for file in files if own_path_digest(file) not in self.proven]
        held = self.proven.union(map(own_path_digest, hold_own_path(storage, asked)))
        return [file for file in files if own_path_digest(file) in held]


def position_tables(
    storage: Storage, file: DataFile, columns: Schema, first_path: str | None = None, end_path: str | None = None
) -> Iterator[pa.Table]:
    """The rows of a position delete file, one batch at a time; raises as `read_position_deletes`.

    Parts without paths from `first_path` to before `end_path` may be skipped.
    """

    def choose(reader: FileReader) -> Sequence[int] | None:
        refuse_wrong_ids(reader)
        if first_path is None and end_path is None:
            return None
        return reader.parts_that_may_hold(DELETE_FILE_PATH.field_id, first_path, end_path)

    # As a dictionary, a path that occurs a thousand times is one text.
    encoded = FileColumns(columns, kept_dictionaries=(DELETE_FILE_PATH.field_id,))
    source = delete_source(file.file_path, file.file_format, file.content)
    for table in _counted(storage, file, source, encoded, choose, BATCH_ROWS):
        if table.num_rows and pc.min(table.column(1)).as_py() < 0:
            raise InvalidTableError(
                f"delete file {file.file_path!r} deletes a row at a position below 0", location=file.file_path
            )
        yield table


def rows_by_path(paths: pa.ChunkedArray) -> Iterator[tuple[str, Positions]]:
    """The rows of each path; they should be sorted by path, but need not be."""
    encoded = paths.combine_chunks()
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.unify_dictionaries().combine_chunks()
    if not pa.types.is_dictionary(encoded.type):
        encoded = encoded.dictionary_encode()
    codes = encoded.indices.to_numpy()
    order = np.argsort(codes, kind="stable")
    borders = np.flatnonzero(np.diff(codes[order])) + 1
    for run in np.split(order, borders):
        if len(run):
            yield encoded.dictionary[int(codes[run[0]])].as_py(), run


def read_equality_keys(
    storage: Storage,
    file: DataFile,
    columns: Schema,
    *,
    name_mapping: NameMapping | None = None,
    batch_rows: int = BATCH_ROWS,
) -> Iterator[pa.Table]:
    """The rows of an equality delete file in some columns, one batch at a time; raises as `read_position_deletes`.

    A missing column is read as in a data file, as its `initial-default` or null, but is an error if it is in `equality_ids`: the
    file would delete every row without a value there. `columns` are a `leaf_schema`.
    """
    source = delete_source(file.file_path, file.file_format, file.content, name_mapping)

    def choose(reader: FileReader) -> None:
        missing = set(file.equality_ids or ()) - field_ids(identified(reader.schema, source))
        if missing:
            raise InvalidTableError(
                f"it has no column with id {min(missing)}, though its manifest says that it deletes by it (equality_ids)"
            )

    return _counted(storage, file, source, columns, choose, batch_rows)


def _counted(
    storage: Storage,
    file: DataFile,
    source: SourceFile,
    columns: Schema | FileColumns,
    choose: PartChoice,
    batch_rows: int,
) -> Iterator[pa.Table]:
    """The rows of a delete file, which must be as many as its manifest says: each missing one would bring back a deleted row."""
    row_count: int | None = None
    leaves_out = False

    def parts(reader: FileReader) -> Sequence[int] | None:
        nonlocal row_count, leaves_out
        row_count, chosen = reader.row_count(), choose(reader)
        leaves_out = chosen is not None
        return chosen

    def validate(count: int | None) -> None:
        if count not in (None, file.record_count):
            raise InvalidTableError(
                f"delete file {file.file_path!r} has {count} rows where its manifest says {file.record_count}: it was cut short "
                "or replaced",
                location=file.file_path,
            )

    validate_plain(file)
    read_count = 0
    for table in read_file(storage, source, columns, parts, batch_rows=batch_rows):
        validate(row_count)
        read_count += table.num_rows
        yield table
    validate(row_count)
    validate(None if leaves_out else read_count)


def validate_plain(file: DataFile) -> None:
    if file.key_metadata is not None:
        raise UnsupportedError(
            f"delete file {file.file_path!r} is encrypted, which icekeep does not read", location=file.file_path
        )


def delete_source(
    location: str, file_format: str, content: FileContent, name_mapping: NameMapping | None = None
) -> SourceFile:
    """A delete file to read; `name_mapping` is the table's, for equality deletes: position deletes have the spec's names."""
    mapping = _POSITION_NAMES if content is FileContent.POSITION_DELETES else name_mapping
    return SourceFile(location=location, file_format=file_format, name_mapping=mapping, noun=DELETE_FILE)


def refuse_wrong_ids(reader: FileReader) -> None:
    """Raise `InvalidTableError` if a file has `file_path` or `pos` under another field id than the spec's."""
    ids = {field.name: field_id(field) for field in reader.schema}
    for column in POSITION_COLUMNS.fields:
        id_ = ids.get(column.name)
        if id_ is not None and column.field_id not in ids.values():
            raise InvalidTableError(
                f"column {column.name!r} has field id {id_}, where a position delete file must have {column.field_id}",
                section="Position Delete Files",
            )


class DeleteCache:
    """Keeps decoded delete files for the next data files; those that do not fit the budget are streamed each time.

    Only delete files that the current data file does not use are evicted: with more deletes than room, each data file would
    otherwise evict those that the next one starts with.

    Attributes:
        proven: of each position delete file that was read whole and whose rows are all of one data file, the `own_path_digest`
            of a correct entry.
    """

    def __init__(self, budget_bytes: int = DEFAULT_BUDGET_BYTES) -> None:
        self._budget_bytes, self.held_bytes = budget_bytes, 0
        self._entries: dict[Hashable, tuple[Any, int]] = {}
        self._used: dict[Hashable, None] = {}
        self._idle: dict[Hashable, None] = {}
        self.proven: set[PathDigest] = set()

    def begin_file(self) -> None:
        """Start the next data file: entries that it does not use may be evicted."""
        self._idle |= self._used
        self._used.clear()

    def make_room(self, size_bytes: int) -> bool:
        """Evict idle entries until a new one fits; returns whether it does."""
        while self._idle and self.held_bytes + size_bytes > self._budget_bytes:
            key = next(iter(self._idle))
            del self._idle[key]
            self.held_bytes -= self._entries.pop(key)[1]
        return self.held_bytes + size_bytes <= self._budget_bytes

    def get(self, key: Hashable) -> Any:
        if key not in self._entries:
            return None
        self._idle.pop(key, None)
        self._used[key] = None
        return self._entries[key][0]

    def keep(self, key: Hashable, value: Any, size_bytes: int) -> None:
        """If there is room."""
        if key not in self._entries and self.make_room(size_bytes):
            self._entries[key] = (value, size_bytes)
            self._used[key] = None
            self.held_bytes += size_bytes
