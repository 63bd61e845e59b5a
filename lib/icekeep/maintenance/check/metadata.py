"""Metadata files held against the spec, one generator for each part; and the earlier metadata of a table.

Of the earlier files: whether those of the metadata log are there, and which the table can be registered by. The log says which
files were the table. Where it cannot be read, the names beside the damaged file are all there is; among those may be files that
lost a race and never were the table, so that a log which is read on the way goes before them.
"""

import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice, pairwise
from typing import Any

import msgspec
from msgspec.structs import replace

from icekeep.catalog.metadata_files import file_version, metadata_files
from icekeep.errors import IcekeepError, InvalidTableError, TryAgainError, UnsupportedError
from icekeep.maintenance.check.document import Document, DocumentFault
from icekeep.maintenance.check.faults import CLASSES, Fault, FaultId, Tally
from icekeep.maintenance.check.lists import CheckedTable, look_up
from icekeep.spec.metadata import TableMetadata, metadata_document, metadata_from_json
from icekeep.spec.partitioning import PartitionField, PartitionSpec, last_assigned_field_id, validate_spec
from icekeep.spec.schema import Schema, check_format_version, name_mapping_of, validate_schema
from icekeep.spec.snapshots import MAIN, PartitionStatisticsFile, Snapshot, SnapshotRef, StatisticsFile
from icekeep.spec.sorting import validate_sort_order
from icekeep.spec.transforms import Identity, Truncate, Void
from icekeep.spec.types import MINUTE_MS, Type, child_fields, walk
from icekeep.storage.base import FileInfo, Storage
from icekeep.storage.locations import canonical, canonical_or_text, is_location

SKEW_MS = MINUTE_MS
"""By how much the clocks of machines that commit to one table may differ, for Iceberg Java."""

_OPERATIONS = ("append", "replace", "overwrite", "delete")


def check_metadata(raw: object, location: str, tally: Tally) -> None:
    """Hold the decoded JSON of a metadata file against the spec, of any format version that is known.

    It raises nothing for whatever JSON there is. Where nothing but notices is found, `parse_metadata` takes the file.

    Args:
        raw: what the file holds.
        location: of the file.
        tally: takes the faults; a version that is not known is a gap.
    """
    found: list[DocumentFault] = []
    try:
        document = Document(raw, location) if isinstance(raw, dict) else None
        no_object = DocumentFault(FaultId.UNREADABLE_METADATA, "the metadata is no JSON object")
        found += [no_object] if document is None else document.found
        if document is not None and document.version:
            found += chain.from_iterable(rule(document) for rule in _RULES)
            if all(CLASSES[one.number].is_notice for one in found):
                found += refusal_to_load(raw)
    except UnsupportedError as error:
        tally.gap(f"metadata {location!r}", error.message)
    for number, detail, where, snapshot_id, facts in found:
        tally.add(Fault(number=number, where=where or location, detail=detail, snapshot_id=snapshot_id, facts=facts))


def refusal_to_load(raw: object) -> list[DocumentFault]:
    """What is refused when the metadata is loaded is a fault, whatever the rules know of it."""
    try:
        problem = _refused(metadata_from_json, raw)
    except RecursionError:
        problem = "it is nested too deeply"
    return [] if problem is None else [DocumentFault(FaultId.UNREADABLE_METADATA, problem)]


def is_uuid(text: str) -> bool:
    """Whether a text is a UUID, in any of the spellings that Python reads."""
    try:
        uuid.UUID(text)
    except ValueError:
        return False
    return True


def _refused(act: Callable[..., object], *arguments: Any) -> str | None:
    """Why a validation refuses its arguments; `None` if it does not."""
    try:
        act(*arguments)
    except InvalidTableError as error:
        return error.message
    return None


def _doubled(what: str, ids: Iterable[int]) -> Iterator[DocumentFault]:
    for one, times in Counter(ids).items():
        if times > 1:
            yield DocumentFault(
                FaultId.DOUBLED_ID, f"{times} have this id", f"{what} {one}", facts={"what": what, "id": one}
            )


def _missing(
    number: FaultId, key: str, named: int | None, ids: Iterable[int], document: Document
) -> Iterator[DocumentFault]:
    # The missing one may be the one that could not be read, which is a fault of its own.
    known = sorted(set(ids))
    if named is not None and named not in known and key not in document.broken:
        there = ", ".join(map(str, known)) or "none"
        yield DocumentFault(number, f"{named} is not among the {key}, which are {there}", facts={"named": named})


def _too_low(number: FaultId, key: str, recorded: int | None, least: int, why: str) -> Iterator[DocumentFault]:
    if recorded is not None and recorded < least:
        yield DocumentFault(number, f"{key} is {recorded}, and {why}", facts={"recorded": recorded, "least": least})


def _top(document: Document) -> Iterator[DocumentFault]:
    table_uuid, location = document.table_uuid, document.location
    if table_uuid is not None and not is_uuid(table_uuid):
        yield DocumentFault(FaultId.TABLE_UUID_WRONG, f"table-uuid is {table_uuid!r}, which is no UUID")
    if location is not None and not is_location(location):
        yield DocumentFault(FaultId.LOCATION_WRONG, f"location is {location!r}; it must be SCHEME://PATH or /PATH")
    try:
        problem = _refused(name_mapping_of, document.properties)
    except RecursionError:
        problem = "the name mapping is nested too deeply"
    if problem is not None:
        yield DocumentFault(FaultId.NAME_MAPPING_WRONG, problem)


def _schemas(document: Document) -> Iterator[DocumentFault]:
    ids = [schema.schema_id for schema in document.schemas]
    yield from _doubled("schema", ids)
    yield from _missing(FaultId.CURRENT_SCHEMA_MISSING, "schemas", document.current_schema_id, ids, document)
    for schema in document.schemas:
        where, facts = f"schema {schema.schema_id}", {"schema_id": schema.schema_id}
        if (refused := _refused(validate_schema, schema)) is not None:
            doubled = [*_doubled_fields(schema)]
            wrong_identifiers = [] if doubled else _wrong_identifiers(schema)
            for problem in doubled:
                yield DocumentFault(FaultId.FIELD_ID_DOUBLED, problem, where, facts=facts)
            for field_id, problem in wrong_identifiers or ():
                yield DocumentFault(
                    FaultId.IDENTIFIER_FIELD_WRONG, problem, where, facts={**facts, "field_id": field_id}
                )
            if wrong_identifiers is None:
                yield DocumentFault(FaultId.UNREADABLE_METADATA, refused, where)
        if (of_later := _refused(check_format_version, schema, document.version)) is not None:
            yield DocumentFault(FaultId.FEATURE_OF_A_LATER_VERSION, of_later, where, facts=facts)
    highest = max((schema.highest_field_id for schema in document.schemas), default=0)
    why = f"a schema has the field id {highest}"
    yield from _too_low(FaultId.LAST_COLUMN_ID_TOO_LOW, "last-column-id", document.last_column_id, highest, why)


def _doubled_fields(schema: Schema) -> Iterator[str]:
    struct = schema.as_struct()
    for what, some in (("id", [field.field_id for field in walk(struct)]), ("name", [*_full_names(struct)])):
        for one, times in Counter[int | str](some).items():
            if times > 1:
                yield f"{times} fields have the {what} {one!r}"


def _full_names(type_: Type, prefix: str = "") -> Iterator[str]:
    for field in child_fields(type_):
        yield prefix + field.name
        yield from _full_names(field.type, f"{prefix}{field.name}.")


def _wrong_identifiers(schema: Schema) -> list[tuple[int, str]] | None:
    """Identifier fields that cannot be such, and why; `None` where something else is wrong with the schema."""
    if _refused(validate_schema, replace(schema, identifier_field_ids=())) is not None:
        return None
    alone = ((one, replace(schema, identifier_field_ids=(one,))) for one in schema.identifier_field_ids)
    return [(one, problem) for one, of_one in alone if (problem := _refused(validate_schema, of_one)) is not None]


def _specs(document: Document) -> Iterator[DocumentFault]:
    specs = document.partition_specs
    ids = [spec.spec_id for spec in specs]
    yield from _doubled("partition spec", ids)
    yield from _missing(FaultId.DEFAULT_SPEC_MISSING, "partition-specs", document.default_spec_id, ids, document)
    for spec in specs:
        where = f"partition spec {spec.spec_id}"
        names: list[int | str] = [field.name for field in spec.fields]
        for what, some in (("id", [field.field_id for field in spec.fields]), ("name", names)):
            for one, times in Counter[int | str](some).items():
                if times > 1:
                    problem = f"{times} fields have the {what} {one!r}"
                    yield DocumentFault(FaultId.PARTITION_FIELD_DOUBLED, problem, where)
        for field in spec.fields:
            problem_of_source = _source_problem(spec, field, document)
            if problem_of_source is not None:
                facts = {"spec_id": spec.spec_id, "field_id": field.field_id, "source_id": field.source_id}
                yield DocumentFault(FaultId.PARTITION_SOURCE_MISSING, problem_of_source, where, facts=facts)
        yield from _several_sources(where, spec.fields, document)
    if document.version > 1:
        yield from _across_specs(specs)
    highest = last_assigned_field_id(specs)
    if any(spec.fields for spec in specs):
        why = f"a partition field has the id {highest}"
        recorded = document.last_partition_id
        yield from _too_low(FaultId.LAST_PARTITION_ID_TOO_LOW, "last-partition-id", recorded, highest, why)


def _source_problem(spec: PartitionSpec, field: PartitionField, document: Document) -> str | None:
    """Why a field of the default spec does not fit the current schema, or values of an older spec's cannot be read."""
    if spec.spec_id == document.default_spec_id:
        if document.schema is None:
            return None
        return _refused(validate_spec, replace(spec, fields=(field,)), document.schema)
    # Other transforms have one type whatever the column was.
    if "schemas" in document.broken or not isinstance(field.transform, Identity | Truncate):
        return None
    if any(field.source_id in schema.fields_by_id for schema in document.schemas):
        return None
    return f"the source column {field.source_id} of field {field.name!r} is in no schema"


def _across_specs(specs: Iterable[PartitionSpec]) -> Iterator[DocumentFault]:
    """One id, one meaning; but a field that was dropped from a table of version 1 is void from then on."""
    known: dict[int, tuple[PartitionSpec, PartitionField]] = {}
    for spec in specs:
        for field in spec.fields:
            other_spec, other = known.setdefault(field.field_id, (spec, field))
            is_void = isinstance(other.transform, Void)
            has_void = is_void or isinstance(field.transform, Void)
            is_same = field.source_ids == other.source_ids and (has_void or field.transform == other.transform)
            if other_spec is spec or is_same:
                # What a void field was before says more of what may have its id.
                if is_void:
                    known[field.field_id] = (spec, field)
                continue
            yield DocumentFault(
                FaultId.PARTITION_FIELD_DOUBLED,
                f"field {field.field_id} is {_shown(field)}, and in partition spec {other_spec.spec_id} {_shown(other)}",
                f"partition spec {spec.spec_id}",
                facts={"field_id": field.field_id, "spec_ids": [other_spec.spec_id, spec.spec_id]},
            )


def _shown(field: PartitionField) -> str:
    return f"{str(field.transform)!r} of column {field.source_id}"


def _sort_orders(document: Document) -> Iterator[DocumentFault]:
    ids, default = [order.order_id for order in document.sort_orders], document.default_sort_order_id
    yield from _doubled("sort order", ids)
    yield from _missing(FaultId.DEFAULT_SORT_ORDER_MISSING, "sort-orders", default, ids, document)
    for order in document.sort_orders:
        where = f"sort order {order.order_id}"
        for field in order.fields if order.order_id == default and document.schema is not None else ():
            problem = _refused(validate_sort_order, replace(order, fields=(field,)), document.schema)
            if problem is not None:
                facts = {"order_id": order.order_id, "source_id": field.source_id}
                yield DocumentFault(FaultId.SORT_SOURCE_MISSING, problem, where, facts=facts)
        yield from _several_sources(where, order.fields, document)


def _several_sources(where: str, fields: Iterable[object], document: Document) -> Iterator[DocumentFault]:
    """Transforms of several columns came with version 3."""
    for field in fields if document.version < 3 else ():
        source_ids = getattr(field, "extra", {}).get("source-ids")
        if source_ids is not None:
            problem = f"a transform has the source columns {source_ids}; only version 3 has transforms of several"
            yield DocumentFault(FaultId.FEATURE_OF_A_LATER_VERSION, problem, where)


def _of(snapshot: Snapshot, number: FaultId, problem: str, **facts: Any) -> DocumentFault:
    return DocumentFault(number, problem, f"snapshot {snapshot.snapshot_id}", snapshot.snapshot_id, facts)


def _snapshots(document: Document) -> Iterator[DocumentFault]:
    yield from _doubled("snapshot", [snapshot.snapshot_id for snapshot in document.snapshots])
    current = document.current_snapshot_id
    is_known = current is None or current in document.snapshots_by_id
    if not is_known and "snapshots" not in document.broken:
        problem = f"current-snapshot-id {current} is not among the snapshots"
        yield DocumentFault(FaultId.CURRENT_SNAPSHOT_MISSING, problem)
    for snapshot in document.snapshots:
        for number, problem in _of_snapshot(snapshot, document):
            yield _of(snapshot, number, problem)
    if document.version > 1:
        recorded = document.last_sequence_number
        highest = max((snapshot.sequence_number for snapshot in document.snapshots), default=0)
        why = f"a snapshot has {highest}"
        yield from _too_low(FaultId.LAST_SEQUENCE_NUMBER_TOO_LOW, "last-sequence-number", recorded, highest, why)
        yield from _sequence_numbers(document)
    for circle in _circles(document.snapshots_by_id):
        problem = f"its ancestors are {', '.join(map(str, circle))} again"
        yield _of(document.snapshots_by_id[circle[0]], FaultId.ANCESTORS_IN_A_CIRCLE, problem)


def _of_snapshot(snapshot: Snapshot, document: Document) -> Iterator[tuple[FaultId, str]]:
    # It may have been made before the table was upgraded to version 2.
    may_be_of_version_1 = document.version == 1 or snapshot.sequence_number == 0
    if not snapshot.manifest_list:
        if snapshot.manifests is None:
            yield FaultId.SNAPSHOT_WITHOUT_MANIFESTS, "it names no manifest list"
        elif not may_be_of_version_1:
            problem = "it names manifests in place of a manifest list, which only version 1 has"
            yield FaultId.SNAPSHOT_WITHOUT_MANIFESTS, problem
    if (
        snapshot.schema_id is not None
        and "schemas" not in document.broken
        and snapshot.schema_id not in document.schema_ids
    ):
        yield FaultId.ODD_HISTORY, f"its schema-id {snapshot.schema_id} is not among the schemas"
    operation = snapshot.operation
    if operation is None and not may_be_of_version_1:
        yield FaultId.ODD_HISTORY, "its summary has no operation"
    elif operation is not None and operation not in _OPERATIONS:
        yield FaultId.ODD_HISTORY, f"its operation is {operation!r}, which the spec does not know"
    parent, last_ms = _parent(snapshot, document), document.last_updated_ms
    if parent is not None and snapshot.timestamp_ms < parent.timestamp_ms - SKEW_MS:
        behind_ms = parent.timestamp_ms - snapshot.timestamp_ms
        problem = f"its timestamp-ms is {behind_ms} ms before that of its parent {parent.snapshot_id}"
        yield FaultId.ODD_HISTORY, problem
    if last_ms is not None and snapshot.timestamp_ms > last_ms + SKEW_MS:
        ahead_ms = snapshot.timestamp_ms - last_ms
        yield FaultId.ODD_HISTORY, f"its timestamp-ms is {ahead_ms} ms after last-updated-ms"


def _parent(snapshot: Snapshot, document: Document) -> Snapshot | None:
    parent_id = snapshot.parent_snapshot_id
    return None if parent_id is None else document.snapshots_by_id.get(parent_id)


def _sequence_numbers(document: Document) -> Iterator[DocumentFault]:
    """They rise from parent to child, and no two are equal; snapshots of version 1 all have 0."""
    first: dict[int, Snapshot] = {}
    for snapshot in document.snapshots:
        number, parent = snapshot.sequence_number, _parent(snapshot, document)
        other = first.setdefault(number, snapshot)
        if number > 0 and other.snapshot_id != snapshot.snapshot_id:
            problem = f"its sequence number {number} is that of snapshot {other.snapshot_id} too"
            yield _of(snapshot, FaultId.SEQUENCE_NUMBERS_NOT_RISING, problem)
        if parent is not None and number < parent.sequence_number:
            problem = f"its sequence number {number} is below {parent.sequence_number}, that of its parent {parent.snapshot_id}"
            yield _of(snapshot, FaultId.SEQUENCE_NUMBERS_NOT_RISING, problem)


def _circles(by_id: Mapping[int, Snapshot]) -> Iterator[list[int]]:
    """The circles that parents make, each once, from the least of its ids on."""
    done: set[int] = set()
    for start in sorted(by_id):
        way: dict[int, int] = {}
        current: int | None = start
        while current is not None and current in by_id and current not in done and current not in way:
            way[current] = len(way)
            current = by_id[current].parent_snapshot_id
        if current in way:
            circle = [*way][way[current] :]
            least = circle.index(min(circle))
            yield [*circle[least:], *circle[:least]]
        done.update(way)


def _references(document: Document) -> Iterator[DocumentFault]:
    for name, ref in document.refs.items():
        where = f"ref {name!r}"
        if ref.snapshot_id not in document.snapshots_by_id and "snapshots" not in document.broken:
            problem = f"it names snapshot {ref.snapshot_id}, which is not there"
            facts = {"ref": name, "named": ref.snapshot_id}
            yield DocumentFault(FaultId.REFERENCE_TO_MISSING_SNAPSHOT, problem, where, facts=facts)
        for problem in _limit_problems(ref):
            yield DocumentFault(FaultId.REFERENCE_LIMIT_WRONG, problem, where, facts={"ref": name})
    main, current = document.refs.get(MAIN), document.current_snapshot_id
    if main is not None and not main.is_branch:
        yield DocumentFault(FaultId.MAIN_NOT_CURRENT, "it is a tag; it must be a branch", f"ref {MAIN!r}")
    if main is not None and main.snapshot_id != current:
        problem = f"it names snapshot {main.snapshot_id}, and current-snapshot-id is {current}"
        facts = {"recorded": current, "found": main.snapshot_id}
        yield DocumentFault(FaultId.MAIN_NOT_CURRENT, problem, f"ref {MAIN!r}", facts=facts)


def _limit_problems(ref: SnapshotRef) -> Iterator[str]:
    for key, limit in (
        ("min-snapshots-to-keep", ref.min_snapshots_to_keep),
        ("max-snapshot-age-ms", ref.max_snapshot_age_ms),
        ("max-ref-age-ms", ref.max_ref_age_ms),
    ):
        if limit is not None and limit < 1:
            yield f"its {key} is {limit}; it must be above zero"
        elif limit is not None and not ref.is_branch and key != "max-ref-age-ms":
            yield f"it has {key}, which is for branches, and is a tag"


def _logs(document: Document) -> Iterator[DocumentFault]:
    """The two logs, as far as no other file is looked at."""
    snapshots, last_ms = document.snapshot_log, document.last_updated_ms
    for number, key, log in (
        (FaultId.SNAPSHOT_LOG_WRONG, "snapshot-log", snapshots),
        (FaultId.METADATA_LOG_UNSORTED, "metadata-log", document.metadata_log),
    ):
        for where, problem in _out_of_order(key, [entry.timestamp_ms for entry in log], last_ms):
            yield DocumentFault(number, problem, where)
    # Without a current snapshot, as after a table was replaced, the log says what was; and it may have been left empty.
    current = document.current_snapshot_id
    if current is not None and snapshots and "snapshot-log" not in document.broken:
        last = snapshots[-1].snapshot_id
        if last != current:
            problem = f"its last entry is snapshot {last}, and current-snapshot-id is {current}"
            facts = {"recorded": last, "found": current}
            yield DocumentFault(FaultId.SNAPSHOT_LOG_WRONG, problem, "snapshot-log", facts=facts)
    times = Counter(canonical_or_text(entry.metadata_file) for entry in document.metadata_log)
    own = canonical_or_text(document.metadata_location)
    for key, count in times.items():
        if key == own:
            yield DocumentFault(FaultId.ODD_HISTORY, "the current metadata file is in the metadata log")
        elif count > 1:
            yield DocumentFault(FaultId.ODD_HISTORY, f"it is {count} times in the metadata log", key)


def _out_of_order(key: str, times_ms: Sequence[int], last_ms: int | None) -> Iterator[tuple[str, str]]:
    """Where a log does not go forward in time, and why; a minute is allowed for clocks that differ."""
    for position, (before_ms, time_ms) in enumerate(pairwise(times_ms), start=1):
        if time_ms < before_ms - SKEW_MS:
            yield f"{key}[{position}]", f"it is {before_ms - time_ms} ms before the entry that it follows"
    if times_ms and last_ms is not None and times_ms[-1] > last_ms + SKEW_MS:
        yield key, f"its last entry is {times_ms[-1] - last_ms} ms after last-updated-ms"


def _statistics(document: Document) -> Iterator[DocumentFault]:
    """Each statistics file is of a snapshot of the table, and no snapshot has two of a kind."""
    kinds: dict[str, Sequence[StatisticsFile | PartitionStatisticsFile]] = {
        "statistics": document.statistics,
        "partition-statistics": document.partition_statistics,
    }
    for kind, files in kinds.items():
        seen: dict[int, str] = {}
        for file in files:
            snapshot_id, path = file.snapshot_id, file.statistics_path
            problem = None
            if snapshot_id in seen:
                problem = f"snapshot {snapshot_id} has {seen[snapshot_id]!r} as {kind} too"
            elif snapshot_id not in document.snapshots_by_id and "snapshots" not in document.broken:
                problem = f"it is {kind} of snapshot {snapshot_id}, which is not there"
            seen.setdefault(snapshot_id, path)
            if problem is not None:
                facts = {"snapshot_id": snapshot_id, "statistics_path": path, "kind": kind}
                yield DocumentFault(FaultId.STATISTICS_OF_MISSING_SNAPSHOT, problem, path, facts=facts)


def _lineage(document: Document) -> Iterator[DocumentFault]:
    """Row ids and encryption keys (spec, "Row Lineage", "Encryption Keys"); before version 3 there must be none."""
    if document.version < 3:
        yield from _later_keys(document)
        return
    numbered = [snapshot for snapshot in document.snapshots if snapshot.first_row_id is not None]
    # Snapshots that were made before the upgrade to version 3 have no row ids; all that came later do.
    upgraded = min((snapshot.sequence_number for snapshot in numbered), default=None)
    for snapshot in document.snapshots:
        missing = "added-rows" if snapshot.added_rows is None else None
        if snapshot.first_row_id is None:
            missing = "first-row-id" if upgraded is not None and snapshot.sequence_number >= upgraded else None
        if missing is not None:
            yield _of(snapshot, FaultId.FIRST_ROW_ID_MISSING, f"it has no {missing}")
    firsts = [snapshot.first_row_id or 0 for snapshot in numbered]
    ends = [first + (snapshot.added_rows or 0) for first, snapshot in zip(firsts, numbered, strict=True)]
    least = max(ends, default=0)
    why = f"snapshots assigned the row ids up to {least - 1}"
    yield from _too_low(FaultId.NEXT_ROW_ID_TOO_LOW, "next-row-id", document.next_row_id, least, why)
    last: tuple[int, Snapshot] | None = None
    for first, end, snapshot in sorted(zip(firsts, ends, numbered, strict=True), key=lambda one: one[:2]):
        if end == first:
            continue
        if last is not None and first < last[0]:
            other = last[1].snapshot_id
            problem = f"its row ids begin at {first}, and those of snapshot {other} go on up to {last[0] - 1}"
            yield _of(snapshot, FaultId.ROW_IDS_OF_SNAPSHOTS_OVERLAP, problem, others=[other])
        if last is None or end > last[0]:
            last = (end, snapshot)


def _later_keys(document: Document) -> Iterator[DocumentFault]:
    number = FaultId.FEATURE_OF_A_LATER_VERSION
    # A zero says nothing that version 2 does not say.
    if document.next_row_id:
        yield DocumentFault(number, f"next-row-id is {document.next_row_id}; only version 3 numbers rows")
    if document.encryption_keys:
        yield DocumentFault(number, "there are encryption-keys; only version 3 has them")
    for snapshot in document.snapshots:
        for key, value in (("first-row-id", snapshot.first_row_id), ("key-id", snapshot.key_id)):
            if value is not None:
                yield _of(snapshot, number, f"it has {key}, which only version 3 has")


_RULES: tuple[Callable[[Document], Iterator[DocumentFault]], ...] = (
    _top, _schemas, _specs, _sort_orders, _snapshots, _references, _logs, _statistics, _lineage,
)  # fmt: skip


_ENTRIES_MAX = 100
"""How many of the newest entries are looked for: tables keep 100 by default, and some keep all."""

_TRIED_MAX = 3
"""How many of their files are tried, the newest first, for one that can be read."""

_FOUND_MAX = 5
_READ_MAX = 20
"""How many files are read in that search: a table whose writer broke metadata long ago is not read to its beginning."""

_TENS = 3
"""How many tens of versions, whose names begin alike, are listed first, down from the damaged one."""


class EarlierMetadata(msgspec.Struct, frozen=True, kw_only=True):
    """A sound metadata file.

    Attributes:
        timestamp_ms: when it was written, epoch milliseconds: its `last-updated-ms`.
        snapshot_ids: of its snapshots, in its order; their files may be gone.
    """

    location: str
    timestamp_ms: int
    last_sequence_number: int
    snapshot_ids: tuple[int, ...]
    current_snapshot_id: int | None


def check_logs(subject: CheckedTable) -> None:
    """Look for the files of the metadata log, and compare the table's uuid with the newest of them.

    Raises:
        UnavailableError: storage is out of reach for now.
    """
    table, tally = subject.table, subject.tally
    logged = reversed(table.metadata.metadata_log[-_ENTRIES_MAX:])
    newest = [*dict.fromkeys(entry.metadata_file for entry in logged)]
    known = [location for location in newest if is_location(location)]
    infos = dict(zip(known, look_up(known, table.storage), strict=True))
    there = [location for location in known if isinstance(infos[location], FileInfo)]
    for location in newest:
        info = infos.get(location)
        if info is None:
            detail = "it is in the metadata log, and not in storage"
            tally.add(Fault(number=FaultId.ODD_HISTORY, where=location, detail=detail))
        elif isinstance(info, str):
            tally.gap(f"metadata {location!r}", info)
    if table.metadata.table_uuid is not None:
        _check_uuid(there[:_TRIED_MAX], table.metadata.table_uuid, subject)


def _check_uuid(locations: Sequence[str], table_uuid: str, subject: CheckedTable) -> None:
    for location in locations:
        try:
            raw = metadata_document(subject.table.storage.read(location), location)
        except TryAgainError:
            raise
        except IcekeepError as error:
            subject.tally.gap(f"metadata {location!r}", error.message)
            continue
        before = raw.get("table-uuid") if isinstance(raw, dict) else None
        # In version 1 a table may have had none.
        if isinstance(before, str) and before.lower() != table_uuid.lower():
            subject.tally.add(
                Fault(
                    number=FaultId.TABLE_UUID_WRONG,
                    where=subject.table.metadata_location,
                    detail=f"table-uuid is {table_uuid}, and {before} in the metadata before, {location!r}",
                    facts={"recorded": table_uuid, "found": before, "metadata_file": location},
                )
            )
        return


def last_sound(storage: Storage, location: str, raw: object, *, without: Iterable[str] = ()) -> list[EarlierMetadata]:
    """The newest metadata files before one that load, have no fault but notices, and are of the same table.

    Args:
        location: of the damaged metadata file, which may be missing.
        raw: its decoded JSON, as far as there is any; `None` if there is none. Its log and `table-uuid` are looked at, so leave
            the latter out where it is known to be wrong.
        without: locations of files that are passed over.

    Returns:
        At most 5, the newest first. Where `raw` says no `table-uuid`, the first that is found says what it is for the others.

    Raises:
        UnavailableError: storage is out of reach for now.
        UsageError: it denies access, so that it is not known what is there.
    """
    said = raw if isinstance(raw, Mapping) else {}
    table_uuid, log = said.get("table-uuid"), said.get("metadata-log")
    its_uuid = table_uuid.lower() if isinstance(table_uuid, str) and is_uuid(table_uuid) else None
    entries = [entry for entry in reversed(log if isinstance(log, list) else []) if isinstance(entry, Mapping)]
    logged = [name for entry in entries if isinstance(name := entry.get("metadata-file"), str)]
    search = _Search(storage, location, its_uuid, without)
    found = [one for one, _ in islice(search.sound(logged), _FOUND_MAX)] or search.beside()
    return sorted(found, key=lambda one: (one.timestamp_ms, file_version(one.location)), reverse=True)


class _Search:
    """Reads metadata files for sound ones of one table, each once and not too many."""

    def __init__(self, storage: Storage, location: str, table_uuid: str | None, without: Iterable[str]) -> None:
        self._storage = storage
        self._location = location
        self._table_uuid = table_uuid
        self._passed = {canonical(one) for one in (location, *without) if is_location(one)}
        self._read: set[str] = set()

    def sound(self, locations: Iterable[str]) -> Iterator[tuple[EarlierMetadata, TableMetadata]]:
        """Those that are sound, in their order."""
        for location in locations:
            if not is_location(location) or canonical(location) in self._read | self._passed:
                continue
            if len(self._read) >= _READ_MAX:
                return
            self._read.add(canonical(location))
            metadata = _sound(self._storage, location)
            if metadata is None:
                continue
            its_uuid = metadata.table_uuid and metadata.table_uuid.lower()
            self._table_uuid = self._table_uuid or its_uuid
            if its_uuid == self._table_uuid:
                snapshot_ids = tuple(snapshot.snapshot_id for snapshot in metadata.snapshots)
                found = EarlierMetadata(
                    location=location,
                    timestamp_ms=metadata.last_updated_ms,
                    last_sequence_number=metadata.last_sequence_number,
                    snapshot_ids=snapshot_ids,
                    current_snapshot_id=metadata.current_snapshot_id,
                )
                yield found, metadata

    def beside(self) -> list[EarlierMetadata]:
        """Those in the directory of the damaged one: the newest, others of its version, and what its log names."""
        names = _beside(self._storage, self._location)
        first = next(self.sound(names), None)
        if first is None:
            return []
        newest, metadata = first
        others = [name for name in names if file_version(name) == file_version(newest.location)]
        logged = [entry.metadata_file for entry in reversed(metadata.metadata_log)]
        return [newest, *(one for one, _ in islice(self.sound([*others, *logged]), _FOUND_MAX - 1))]


def _sound(storage: Storage, location: str) -> TableMetadata | None:
    """The metadata of a file; `None` if it is not sound."""
    tally = Tally()
    try:
        raw = metadata_document(storage.read(location), location)
        check_metadata(raw, location, tally)
        return None if any(not CLASSES[number].is_notice for number in tally.counts) else metadata_from_json(raw)
    except (InvalidTableError, UnsupportedError):
        return None


def _beside(storage: Storage, location: str) -> list[str]:
    """Metadata files in the directory of one, the newest first by their versions; none that is not older."""
    directory, _, name = location.rpartition("/")
    version = file_version(name)
    near = range(max(0, version // 10 - _TENS + 1) * 10, version)
    if near and (older := _older(metadata_files(storage, directory, like=name, versions=near), version)):
        return older
    return _older(metadata_files(storage, directory), version)


def _older(infos: Iterable[FileInfo], version: int) -> list[str]:
    ranked = [(file_version(one.location), one.modified_ms, one.location) for one in infos]
    older = [one for one in ranked if one[0] >= 0 and (version < 0 or one[0] < version)]
    return [location for _, _, location in sorted(older, reverse=True)]
