"""Data files of all snapshots that are looked at, each read once and held against the table and all entries that name it.

A file is read from its first row to its last, a batch at a time: here for few bytes, else in Spark tasks. Checked on the way
are its columns as the table has them, metrics, orders and partitions.
"""

import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import replace

from icekeep.errors import InvalidTableError, MissingFileError, UnsupportedError, and_more, first_line
from icekeep.formats.arrow.projection import column_values, leaf_path, leaf_values, project, unidentified
from icekeep.formats.arrow.schema import arrow_schema, field_id, has_ids
from icekeep.formats.arrow.schema import child_fields as stored_children
from icekeep.formats.base import FileMetrics, FileReader, MetricsCollector
from icekeep.formats.evaluate import transformed
from icekeep.formats.reader import FileColumns, SourceFile, open_reader
from icekeep.formats.sort.encode import Ordering
from icekeep.formats.sort.keys import sort_keys
from icekeep.maintenance.check.by_file import FileJoin, Membership, Row, count_of, decode_task
from icekeep.maintenance.check.faults import FaultId, Tally
from icekeep.maintenance.check.lists import CheckedTable, Listed
from icekeep.maintenance.check.manifests import METRIC_COLUMNS
from icekeep.planning.prune import decode_bounds
from icekeep.planning.spark.session import limits_of, started
from icekeep.spec.manifests.structs import ManifestContent
from icekeep.spec.manifests.write import PartitionCodecs
from icekeep.spec.partitioning import PartitionField, PartitionSpec, identity_values
from icekeep.spec.properties import FULL
from icekeep.spec.schema import NameMapping, Schema, name_mapping_of
from icekeep.spec.sorting import SortOrder
from icekeep.spec.transforms import Day, Hour, Month, Void, Year
from icekeep.spec.types import (
    FLOATING_TYPES,
    TIMESTAMP,
    TIMESTAMP_NS,
    UUID,
    ListType,
    MapType,
    NestedField,
    PrimitiveType,
    StructType,
    Type,
    child_fields,
)
from icekeep.spec.values import INTEGER_WIDTHS
from icekeep.storage.base import Storage

_ENTRY_COLUMNS = (
    "spec_id", "partition", "file_path", "file_format", "record_count", "file_size_in_bytes", *METRIC_COLUMNS, "key_metadata",
    "split_offsets", "sort_order_id",
)  # fmt: skip

_ORDERED = frozenset((*INTEGER_WIDTHS, "boolean", "float", "double", "decimal", "string", "fixed", "binary"))
"""Types that all writers order alike: UUIDs have two orders, and other types have bounds of another form."""

_BATCH_ROWS = 32_768
"""How many rows of a large part are held at once, at most."""

_MAX_NAMES = _MAX_VALUES = 5
_TIMES = (Year, Month, Day, Hour)

PartitionKey: TypeAlias = tuple[int, bytes]
"""A partition spec, and a partition as entries have it."""

_DETAILS: Mapping[int, str] = {
    FaultId.BOUNDS_WRONG: "values of {} lie outside of their bounds",
    FaultId.NULL_COUNT_WRONG: "{} has {} nulls where its entry says {}",
    FaultId.VALUE_COUNT_WRONG: "{} has {} values where its entry says {}",
    FaultId.NAN_COUNT_WRONG: "{} has {} NaNs where its entry says {}",
}


class CheckedColumns(msgspec.Struct, frozen=True, kw_only=True):
    """Columns of a file.

    Attributes:
        schema: those that can be read, everything optional.
        types: of primitive fields in no list or map that the file has itself, by id.
        wrong: by id of a top-level column why it cannot be read as the table's.
        zoned: ids of timestamps without time zone that the file marks as adjusted to UTC: the number is the same.
        unreadable: the same of columns whose type icekeep does not read.
        unidentified: full names, by field id, of fields that the file has by their name only.
        absent: ids of other required fields that the file lacks, and nothing gives.
        promoted: ids of top-level columns whose type in the file is another one.
    """

    schema: Schema
    types: Mapping[int, PrimitiveType]
    wrong: Mapping[int, str]
    zoned: tuple[int, ...]
    unreadable: Mapping[int, str]
    unidentified: Mapping[int, str]
    absent: tuple[int, ...]
    promoted: frozenset[int]


def columns_of(
    stored: pa.Schema, schema: Schema, constants: Collection[int], without: Mapping[int, str]
) -> CheckedColumns:
    """Find the table's columns in a file.

    Args:
        stored: the file's columns, with field ids.
        schema: the table's.
        constants: ids of columns whose values the partition gives.
        without: columns that turned out not to fit, and why.
    """
    by_id = {field_id(field): field for field in stored}
    lost = unidentified(stored, schema.fields, constants)
    fields: list[NestedField] = []
    types: dict[int, PrimitiveType] = {}
    promoted: set[int] = set()
    wrong, unreadable = dict(without), {}
    for field in schema.fields:
        found = by_id.get(field.field_id)
        if found is None or field.field_id in without or unidentified([found], [field], constants):
            continue
        optional = _optional(field)
        try:
            target = project(_no_rows(pa.schema([found])), Schema(fields=(optional,))).schema.field(0).type
        except InvalidTableError as error:
            wrong[field.field_id] = first_line(error)
            continue
        except UnsupportedError as error:
            unreadable[field.field_id] = first_line(error)
            continue
        fields.append(optional)
        types.update(_leaves(field, found))
        if isinstance(field.type, PrimitiveType) and found.type != target:
            promoted.add(field.field_id)
    return CheckedColumns(
        schema=Schema(fields=tuple(fields)),
        types=types,
        wrong=wrong,
        zoned=tuple(id_ for field in fields for id_ in _zoned(field, by_id[field.field_id])),
        unreadable=unreadable,
        unidentified=lost,
        absent=tuple(_absent(schema.as_struct(), by_id, {*constants, *lost})),
        promoted=frozenset(promoted),
    )


def _no_rows(schema: pa.Schema) -> pa.Table:
    """A table without rows; Arrow's own way fails on UUIDs."""
    return pa.Table.from_arrays([pa.nulls(0, field.type) for field in schema], schema=schema)


def required_paths(schema: Schema, there: Schema) -> list[tuple[NestedField, ...]]:
    """The required fields in no list or map, each with the structs around it, of columns that can be read."""
    names = {field.field_id for field in there.fields}
    below: list[tuple[NestedField, ...]] = [(field,) for field in schema.fields if field.field_id in names]
    found = []
    while below:
        path = below.pop()
        if path[-1].required:
            found.append(path)
        if isinstance(path[-1].type, StructType):
            below += [(*path, field) for field in path[-1].type.fields]
    return found


def nulls_in(rows: pa.Table, schema: Schema, path: Sequence[NestedField]) -> int:
    """How often a field is null where the struct around it is not."""
    column: Any = rows.column([field.field_id for field in schema.fields].index(path[0].field_id))
    above = 0
    for outer, inner in pairwise(path):
        above = column.null_count
        assert isinstance(outer.type, StructType)
        column = pc.struct_field(column, [outer.type.fields.index(inner)])
    return int(column.null_count) - above


def _optional(field: NestedField) -> NestedField:
    return replace(field, required=False, type=_optional_type(field.type))


def _optional_type(type_: Type) -> Type:
    match type_:
        case StructType(fields=fields):
            return StructType(tuple(map(_optional, fields)))
        case ListType(element=element):
            return replace(type_, element=_optional_type(element), element_required=False)
        case MapType(value=value):
            return replace(type_, value=_optional_type(value), value_required=False)
    return type_


def _children(stored: pa.Field) -> dict[int | None, pa.Field]:
    return {field_id(child): child for _, child in stored_children(stored.type)}


def _leaves(field: NestedField, stored: pa.Field) -> Iterator[tuple[int, PrimitiveType]]:
    if isinstance(field.type, PrimitiveType):
        yield field.field_id, field.type
    elif isinstance(field.type, StructType) and pa.types.is_struct(stored.type):
        by_id = _children(stored)
        for child in field.type.fields:
            if child.field_id in by_id:
                yield from _leaves(child, by_id[child.field_id])


def _zoned(field: NestedField, stored: pa.Field) -> Iterator[int]:
    if field.type in (TIMESTAMP, TIMESTAMP_NS) and pa.types.is_timestamp(stored.type) and stored.type.tz is not None:
        yield field.field_id
    by_id = _children(stored)
    for child in child_fields(field.type):
        if child.field_id in by_id:
            yield from _zoned(child, by_id[child.field_id])


def _absent(struct: StructType, stored: Mapping[Any, pa.Field], constants: Collection[int]) -> Iterator[int]:
    for field in struct.fields:
        found = stored.get(field.field_id)
        if found is not None:
            if isinstance(field.type, StructType) and pa.types.is_struct(found.type):
                yield from _absent(field.type, _children(found), constants)
        elif field.required and field.initial_default is None and field.field_id not in constants:
            yield field.field_id


class OrderWatch:
    """Looks at the rows of a file, batch by batch.

    Attributes:
        broken_at: the position of the first row that is less than the one before it.
    """

    def __init__(self, order: SortOrder, columns: CheckedColumns) -> None:
        """An order by a column that the file lacks, or that writers understand differently, is not judged."""
        self.broken_at: int | None = None
        self._schema = columns.schema
        self._ordering = Ordering(fields=order.fields)
        self._floats = [n for n, field in enumerate(self._schema.fields) if field.type in FLOATING_TYPES]
        self._last: Any = None
        self._is_judged = self._can_judge(order, columns.types)

    def add(self, rows: pa.Table, first: int) -> None:
        """Look at some rows, the first of which has a position in the file."""
        if not self._is_judged or self.broken_at is not None or not rows.num_rows:
            return
        for position in self._floats:
            # Engines sort both zeros as one.
            column = rows.column(position)
            rows = rows.set_column(position, rows.schema.field(position), pc.add(column, pa.scalar(0.0, column.type)))
        keys = sort_keys(rows, self._ordering, self._schema)
        if self._last is not None and pc.less(keys[0], self._last).as_py():
            self.broken_at = first
            return
        less = pc.less(keys[1:], keys[:-1]).to_numpy(zero_copy_only=False)
        if less.any():
            self.broken_at = first + 1 + int(np.argmax(less))
        self._last = keys[-1]

    def _can_judge(self, order: SortOrder, types: Mapping[int, PrimitiveType]) -> bool:
        top_level = {field.field_id for field in self._schema.fields}
        for field in order.fields:
            type_ = types.get(field.source_id)
            if type_ in (None, UUID) or (type_ in FLOATING_TYPES and field.source_id not in top_level):
                return False
        try:
            sort_keys(_no_rows(arrow_schema(self._schema)), self._ordering, self._schema)
        except (InvalidTableError, UnsupportedError):
            return False
        return bool(order.fields)


class PartitionWatch:
    """Looks at the rows of a file, batch by batch.

    Attributes:
        others: by name of a partition field values of rows that are not the entry's, some of them.
        source_ids: columns that those are made of.
    """

    def __init__(self, spec: PartitionSpec, values: Sequence[Any], columns: CheckedColumns) -> None:
        """Only fields whose source columns are in the file can be judged."""
        self.others: dict[str, list[Any]] = {}
        self.source_ids: set[int] = set()
        self._schema = columns.schema
        self._fields = [
            (field, type_, value)
            for field, value in zip(spec.fields, values, strict=True)
            if field.source_id in columns.types and (type_ := _source_type(field, columns)) is not None
        ]

    def add(self, rows: pa.Table) -> None:
        """Look at some rows."""
        if not rows.num_rows:
            return
        for field, type_, expected in self._fields:
            column: Any = leaf_values(rows, self._schema, field.source_id)
            array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
            if isinstance(array, pa.ExtensionArray):
                array = array.storage
            values, value_type = transformed(array, type_, field.transform)
            for value in column_values(pc.unique(values), value_type):
                if not _is_of(field, value, expected):
                    self.source_ids.add(field.source_id)
                    shown = self.others.setdefault(field.name, [])
                    if len(shown) < _MAX_VALUES and value not in shown:
                        shown.append(value)


def _source_type(field: PartitionField, columns: CheckedColumns) -> PrimitiveType | None:
    """The type of the source, if the transform can be held against the entry's value."""
    if isinstance(field.transform, Void):
        return None
    try:
        type_ = leaf_path(field.source_id, [columns.schema])[-1].type
        assert isinstance(type_, PrimitiveType)
        field.transform.apply(type_, None)
    except (InvalidTableError, UnsupportedError):
        return None
    # A partition value of a date is in days, also when its column has become a timestamp.
    is_other = field.source_id in columns.promoted and type_.name in ("timestamp", "timestamp_ns")
    return None if is_other else type_


def _is_of(field: PartitionField, value: Any, expected: Any) -> bool:
    if value is None or expected is None:
        return value is expected
    if isinstance(value, float) and isinstance(expected, float) and math.isnan(value):
        return math.isnan(expected)
    # Early versions of Iceberg Java rounded times before 1970 up, and readers reckon with it.
    is_rounded_up = isinstance(field.transform, _TIMES) and value < 0 and value + 1 == expected
    return bool(value == expected or is_rounded_up)


class Content(msgspec.Struct, frozen=True, kw_only=True):
    """What a file holds.

    Attributes:
        columns: `None` where its columns have no field ids, and no name stands for one.
        metrics: of the leaves that the file has.
        offsets: where its parts begin, `None` for a format without parts.
        nulls: of required fields that have some, by id.
        partitions: what was found of each partition that was asked for.
        orders: by id of a sort order the position of the first row that breaks it.
    """

    row_count: int
    columns: CheckedColumns | None
    metrics: FileMetrics
    offsets: tuple[int, ...] | None
    nulls: Mapping[int, int] = {}
    partitions: Mapping[PartitionKey, PartitionWatch] = {}
    orders: Mapping[int, int] = {}


def read_content(
    storage: Storage,
    source: SourceFile,
    schema: Schema,
    orders: Iterable[SortOrder] = (),
    partitions: Mapping[PartitionKey, tuple[PartitionSpec, Sequence[Any]]] = {},
) -> Content:
    """Read all rows of a file in the columns of a schema.

    Args:
        orders: that its rows are said to be in.
        partitions: with their specs and values, that its rows are said to have.

    Raises:
        MissingFileError: there is no such file.
        InvalidTableError: it is damaged.
        UnsupportedError: its format is not known, or it holds what icekeep does not read.
    """
    without: dict[int, str] = {}
    while True:
        try:
            with open_reader(storage, source.location, source.file_format) as reader:
                return _read(reader, source, schema, orders, partitions, without)
        except InvalidTableError as error:
            # A value outside of its column's type shows up only when its row is read.
            name = str(error.facts.get("column", "")).partition(".")[0]
            found = next((field.field_id for field in schema.fields if field.name == name), None)
            if found is None or found in without:
                raise
            without[found] = first_line(error)


def _read(
    reader: FileReader,
    source: SourceFile,
    schema: Schema,
    orders: Iterable[SortOrder],
    partitions: Mapping[PartitionKey, tuple[PartitionSpec, Sequence[Any]]],
    without: Mapping[int, str],
) -> Content:
    parts = tuple(reader.part_offsets())
    # Avro has one part, at 0; some writers of Parquet write 0 for an offset that does not exist.
    offsets = None if 0 in parts else parts
    if len(reader.schema) and not has_ids(reader.schema) and source.name_mapping is None:
        count = sum(data.num_rows for _, data in reader.tables(reader.schema.names, None, (), _BATCH_ROWS))
        nothing = MetricsCollector(Schema(fields=()), {}).metrics()
        return Content(row_count=count, columns=None, metrics=nothing, offsets=offsets)
    identified = FileColumns(Schema(fields=())).find(reader.schema, source).schema
    columns = columns_of(identified, schema, source.constants, without)
    partition_watches = {key: PartitionWatch(spec, values, columns) for key, (spec, values) in partitions.items()}
    order_watches = {order.order_id: OrderWatch(order, columns) for order in orders}
    metrics = MetricsCollector(columns.schema, dict.fromkeys(columns.types, FULL))
    required = required_paths(schema, columns.schema)
    nulls, count = Counter[int](), 0
    read_as = FileColumns(columns.schema)
    found = read_as.find(reader.schema, source)
    for _, data in reader.tables(found.names, None, (), _BATCH_ROWS):
        rows = read_as.projected(data, found, {})
        metrics.add(rows)
        for path in required:
            nulls[path[-1].field_id] += nulls_in(rows, columns.schema, path)
        for partition in partition_watches.values():
            partition.add(rows)
        for order in order_watches.values():
            order.add(rows, count)
        count += rows.num_rows
    return Content(
        row_count=count,
        columns=columns,
        metrics=metrics.metrics(),
        offsets=offsets,
        nulls=+nulls,
        partitions=partition_watches,
        orders={number: one.broken_at for number, one in order_watches.items() if one.broken_at is not None},
    )


class WrongMetric(msgspec.Struct, frozen=True):
    """Columns of which a metric is wrong, with what is recorded and what was found of each."""

    number: FaultId
    columns: tuple[int, ...]
    recorded: tuple[Any, ...]
    found: tuple[Any, ...]


def wrong_metrics(entry: Mapping[str, Any], content: Content, schema: Schema) -> Iterator[WrongMetric]:
    """The metrics of an entry that are not those of the file's values.

    Counts of nulls and values are judged at the top level only: of fields of structs writers count in several ways.

    Args:
        entry: its `METRIC_COLUMNS`, as maps or pairs, and `file_format`.
        schema: the table's.
    """
    if content.columns is None:
        return
    types, found = content.columns.types, content.metrics
    said = {name: dict(entry[name] or ()) for name in METRIC_COLUMNS}
    top_level = {field.field_id for field in schema.fields}
    for number, name, judged in (
        (FaultId.NULL_COUNT_WRONG, "null_value_counts", top_level & types.keys()),
        (FaultId.VALUE_COUNT_WRONG, "value_counts", top_level & types.keys()),
        (FaultId.NAN_COUNT_WRONG, "nan_value_counts", types.keys()),
    ):
        counts, known = said[name], getattr(found, name)
        # Negative counts are reported as what they are.
        wrong = [id_ for id_ in sorted(counts) if id_ in judged and id_ in known and 0 <= counts[id_] != known[id_]]
        if wrong:
            yield WrongMetric(number, tuple(wrong), tuple(counts[i] for i in wrong), tuple(known[i] for i in wrong))
    is_orc, outside = entry["file_format"].lower() == "orc", []
    for id_, type_ in sorted(types.items()):
        recorded = said["lower_bounds"].get(id_), said["upper_bounds"].get(id_)
        real = found.lower_bounds.get(id_), found.upper_bounds.get(id_)
        if _is_outside(type_, recorded, real, is_orc=is_orc):
            hexes = ([None if bound is None else bound.hex() for bound in bounds] for bounds in (recorded, real))
            outside.append((id_, *hexes))
    if outside:
        yield WrongMetric(FaultId.BOUNDS_WRONG, *zip(*outside, strict=True))


_Bounds = tuple[bytes | None, bytes | None]


def _is_outside(type_: PrimitiveType, recorded: _Bounds, real: _Bounds, *, is_orc: bool) -> bool:
    if type_.name not in _ORDERED or real[0] is None or recorded in ((None, None), real):
        return False
    lower, upper, least, greatest = decode_bounds(type_, pa.array([*recorded, *real], pa.binary())).to_pylist()
    # Libraries read fractions of seconds before 1970 in ORC in two ways.
    if is_orc and type_.name.startswith("timestamp") and least is not None and least < 0:
        return False
    # A bound that is NaN is above and below nothing, and says nothing.
    below = lower is not None and least is not None and lower > least
    above = upper is not None and greatest is not None and upper < greatest
    return bool(below or above)


def check_data_files(subject: CheckedTable, listed: Listed) -> None:
    """Read every live data file, and report where rows are not what metadata says of them.

    Raises:
        TryAgainError: the store or Spark is out of reach.
    """
    table, metadata, tally, spark = subject.table, subject.table.metadata, subject.tally, subject.spark
    membership = Membership.of(subject.snapshots, listed)
    manifests = membership.live(listed, ManifestContent.DATA)
    if not manifests:
        return
    try:
        mapping = name_mapping_of(metadata.properties)
    except InvalidTableError as error:
        tally.gap("columns of data files without field ids", first_line(error))
        mapping = ()
    specs = {manifest.partition_spec_id for _, manifest in manifests}
    checker = DataFileChecker(
        storage=table.storage,
        membership=membership,
        schemas={
            one.snapshot_id: schema
            for one in subject.snapshots
            if one.schema_id is not None and (schema := metadata.schemas_by_id.get(one.schema_id)) is not None
        },
        current_schema=metadata.schema,
        specs=metadata.specs_by_id,
        partitions={number: metadata.partition_type(number) for number in specs},
        sort_orders={order.order_id: order for order in metadata.sort_orders},
        name_mapping=mapping,
        whole=tally.whole,
    )
    join = FileJoin(decode=decode_task(table, manifests, _ENTRY_COLUMNS), work=DataFileChecker.faults, shared=checker)
    limits, files = limits_of(spark), None
    if count_of(manifests) <= limits.footers_count:
        files = join.files(spark, manifests, tally)
    if files is not None and sum(rows[0]["file_size_in_bytes"] for rows in files) <= limits.submitted_rewrite_bytes:
        found = join.here([[rows] for rows in files])
    else:
        session = started(spark)
        parts = join.parts_by_bytes(manifests, session, spark)
        found = join.in_tasks(manifests, session, parts, tally, "checking data files")
    for one in found:
        tally.merge(one)


class ContentFault(NamedTuple):
    """A fault without its place: of an entry, or of the file whatever its entries say."""

    number: FaultId
    detail: str
    columns: Sequence[int] = ()
    recorded: Any = None
    found: Any = None


class DataFileChecker(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """Finds the faults of data files; can be pickled.

    Attributes:
        schemas: of the snapshots that have one which is there.
        partitions: the partition types of the specs.
        whole: of which classes each fault is kept.
    """

    storage: Storage
    membership: Membership
    schemas: Mapping[int, Schema]
    current_schema: Schema
    specs: Mapping[int, PartitionSpec]
    partitions: Mapping[int, StructType]
    sort_orders: Mapping[int, SortOrder]
    name_mapping: NameMapping | None
    whole: frozenset[int]

    @cached_property
    def _codecs(self) -> PartitionCodecs:
        return PartitionCodecs(self.partitions)

    def faults(self, files: Iterable[Sequence[Row]]) -> Tally:
        """The faults of files, of each of which these are all entries."""
        tally = Tally(self.whole)
        for rows in files:
            self._check(rows, tally)
        return tally

    def _check(self, rows: Sequence[Row], tally: Tally) -> None:
        snapshots_of = self.membership.snapshots_of
        rows = sorted(rows, key=lambda row: (snapshots_of[row["manifest"]].min(), row["manifest"]))
        first, path = rows[0], rows[0]["file_path"]
        if any(row["key_metadata"] is not None for row in rows):
            tally.gap(f"the rows of file {path!r}", "it is encrypted")
            return
        schema = self.schemas.get(self.membership.oldest(snapshots_of[first["manifest"]]) or 0, self.current_schema)
        values = {_partition_key(row): self._codecs.decode(row["spec_id"], row["partition"]) for row in rows}
        source = SourceFile(
            location=path,
            file_format=first["file_format"],
            constants=identity_values(self.specs[first["spec_id"]], values[_partition_key(first)]),
            name_mapping=self.name_mapping,
        )
        orders = sorted({row["sort_order_id"] for row in rows} & self.sort_orders.keys())
        partitions = {key: (self.specs[key[0]], some) for key, some in values.items()}
        try:
            content = read_content(
                self.storage, source, schema, [self.sort_orders[number] for number in orders], partitions
            )
        except MissingFileError:
            # A fault of entries.
            return
        except InvalidTableError as error:
            recorded = first["file_format"]
            unreadable = ContentFault(FaultId.DATA_FILE_UNREADABLE, first_line(error), recorded=recorded)
            self._report(rows, unreadable, tally)
            return
        except UnsupportedError as error:
            tally.gap(f"the rows of file {path!r}", first_line(error))
            return
        for one in _of_file(content, schema):
            self._report(rows, one, tally)
        for id_, why in sorted(content.columns.unreadable.items()) if content.columns is not None else ():
            tally.gap(f"column {schema.names_by_id[id_]!r} of file {path!r}", why)
        by_number: dict[int, list[tuple[Row, ContentFault]]] = {}
        for row in rows:
            for one in (*_of_entry(row, content, schema), *self._of_partition(row, content, values)):
                by_number.setdefault(one.number, []).append((row, one))
        for wrong in by_number.values():
            self._report([row for row, _ in wrong], wrong[0][1], tally)

    def _of_partition(
        self, row: Row, content: Content, values: Mapping[PartitionKey, Sequence[Any]]
    ) -> Iterator[ContentFault]:
        key = _partition_key(row)
        watch = content.partitions.get(key)
        if watch is None or not watch.others:
            return
        fields, others = self.specs[row["spec_id"]].fields, watch.others
        recorded = {field.name: value for field, value in zip(fields, values[key], strict=True)}
        shown = ", ".join(f"{name!r} {others[name][0]} where its entry says {recorded[name]}" for name in others)
        yield ContentFault(
            FaultId.PARTITION_NOT_OF_ROWS,
            f"it has rows of other partitions: of {shown}",
            sorted(watch.source_ids),
            [_text(recorded[name]) for name in others],
            [[*map(_text, some)] for some in others.values()],
        )

    def _report(self, rows: Sequence[Row], one: ContentFault, tally: Tally) -> None:
        facts = {
            "manifests": [self.membership.manifest_paths[row["manifest"]] for row in rows],
            "columns": [*one.columns],
            "recorded": one.recorded,
            "found": one.found,
        }
        tally.add(self.membership.fault(one.number, rows, one.detail, **facts))


def _partition_key(row: Row) -> PartitionKey:
    return row["spec_id"], row["partition"]


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def _names(ids: Collection[int], schema: Schema) -> str:
    """Columns in a sentence."""
    names = [repr(schema.names_by_id[id_]) for id_ in [*ids][:_MAX_NAMES]]
    return f"column{'s' if len(ids) > 1 else ''} {', '.join(names)}{and_more([*ids], _MAX_NAMES)}"


def _of_file(content: Content, schema: Schema) -> Iterator[ContentFault]:
    columns = content.columns
    if columns is None:
        detail = "its columns have no field ids, and the table has no name mapping"
        yield ContentFault(FaultId.FIELD_ID_UNKNOWN, detail)
        return
    if ids := sorted(columns.unidentified):
        detail = f"it has values of {_names(ids, schema)} without a field id, and the table's name mapping has no id for the name"
        yield ContentFault(FaultId.FIELD_ID_UNKNOWN, detail, ids)
    if ids := sorted(columns.wrong):
        yield ContentFault(FaultId.COLUMN_TYPE_WRONG, columns.wrong[ids[0]], ids)
    elif columns.zoned:
        detail = f"it marks {_names(columns.zoned, schema)} as adjusted to UTC, where the table has no time zone"
        yield ContentFault(FaultId.COLUMN_TYPE_WRONG, detail, columns.zoned)
    problems = []
    if columns.absent:
        problems.append(f"it lacks required {_names(columns.absent, schema)}")
    if content.nulls:
        nulls = sum(content.nulls.values())
        problems.append(f"required {_names(sorted(content.nulls), schema)} has {nulls} nulls")
    if problems:
        ids = sorted({*columns.absent, *content.nulls})
        found = [content.nulls.get(id_) for id_ in ids]
        yield ContentFault(FaultId.REQUIRED_COLUMN_EMPTY, ", and ".join(problems), ids, found=found)


def _of_entry(row: Row, content: Content, schema: Schema) -> Iterator[ContentFault]:
    recorded, count = row["record_count"], content.row_count
    # Negative counts are reported as what they are.
    if 0 <= recorded != count:
        detail = f"it has {count} rows where its entry says {recorded}"
        yield ContentFault(FaultId.RECORD_COUNT_WRONG, detail, recorded=recorded, found=count)
    for wrong in wrong_metrics(row, content, schema):
        names = _names(wrong.columns, schema)
        detail = _DETAILS[wrong.number].format(names, wrong.found[0], wrong.recorded[0])
        yield ContentFault(wrong.number, detail, wrong.columns, [*wrong.recorded], [*wrong.found])
    offsets, parts = row["split_offsets"] or [], content.offsets
    # Those beyond the file are reported as such.
    beyond = any(offset >= row["file_size_in_bytes"] or offset < 0 for offset in offsets)
    if parts is not None and offsets and not beyond:
        strange = [offset for offset in offsets if offset not in parts]
        detail = ""
        if strange:
            detail = f"no row group or stripe begins at byte {strange[0]}, which is one of its split offsets"
        elif min(offsets) != min(parts):
            detail = f"its split offsets begin at byte {offsets[0]}, and its first row group or stripe at {parts[0]}"
        if detail:
            yield ContentFault(FaultId.SPLIT_OFFSETS_NOT_OF_FILE, detail, recorded=offsets, found=[*parts])
    order_id = row["sort_order_id"]
    if (position := content.orders.get(order_id)) is not None:
        detail = f"row {position} comes before row {position - 1} in sort order {order_id}"
        yield ContentFault(FaultId.NOT_SORTED_AS_CLAIMED, detail, recorded=order_id, found=position)
