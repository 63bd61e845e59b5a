"""Schemas, partition specs and sort orders: ids, and whether each fits the columns that it is made for.

Snapshots and the references to them: ids, parents, sequence numbers, times, and what each must say of itself.

The logs of snapshots and metadata files, and the entries of statistics files.

The metadata file held against the spec. Pure: no other file is looked at.

The metadata files that the metadata log names: whether they are there, and belong to the same table.
"""

import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec.structs import replace

from icekeep.errors import IcekeepError, InvalidTableError, TryAgainError, UnsupportedError
from icekeep.maintenance.check.faults import Fault, FaultId, Tally
from icekeep.maintenance.check.lists import CheckedTable
from icekeep.maintenance.check.metadata_files import Document, Findings, check_lineage, read_document
from icekeep.spec.metadata import metadata_document, metadata_from_json
from icekeep.spec.partitioning import PartitionField, PartitionSpec, last_assigned_field_id, validate_spec
from icekeep.spec.schema import Schema, check_format_version, name_mapping_of, validate_schema
from icekeep.spec.snapshots import MAIN, PartitionStatisticsFile, Snapshot, SnapshotRef, StatisticsFile
from icekeep.spec.sorting import SortOrder, validate_sort_order
from icekeep.spec.transforms import Identity, Truncate, Void
from icekeep.spec.types import MINUTE_MS, Type, child_fields, walk
from icekeep.storage.base import FileInfo, Storage, head_many
from icekeep.storage.locations import canonical_or_text, is_location


def check_schemas(document: Document, findings: Findings) -> None:
    """Faults of schemas: doubled and missing ids, columns that are not told apart, identifiers, what the version lacks."""
    ids = [schema.schema_id for schema in document.schemas]
    report_doubled("schema", ids, findings)
    _check_named("schemas", document.current_schema_id, ids, FaultId.CURRENT_SCHEMA_MISSING, document, findings)
    for schema in document.schemas:
        _check_schema(schema, findings)
        try:
            check_format_version(schema, document.version)
        except InvalidTableError as error:
            findings.add(
                FaultId.FEATURE_OF_A_LATER_VERSION,
                error.message,
                where=_name(schema),
                facts={"schema_id": schema.schema_id},
            )
    highest = max((schema.highest_field_id for schema in document.schemas), default=0)
    if document.last_column_id is not None and document.last_column_id < highest:
        findings.add(
            FaultId.LAST_COLUMN_ID_TOO_LOW,
            f"last-column-id is {document.last_column_id}, and a schema has the field id {highest}",
            facts={"recorded": document.last_column_id, "least": highest},
        )


def check_specs(document: Document, findings: Findings) -> None:
    """Faults of partition specs: doubled and missing ids, fields that are not told apart, columns that they lack."""
    specs = document.partition_specs
    report_doubled("partition spec", [spec.spec_id for spec in specs], findings)
    ids = [spec.spec_id for spec in specs]
    _check_named("partition-specs", document.default_spec_id, ids, FaultId.DEFAULT_SPEC_MISSING, document, findings)
    for spec in specs:
        _check_doubled_fields(spec, findings)
        _check_sources(spec, document, findings)
        _check_arguments(_spec_name(spec), spec.fields, document, findings)
    if document.version > 1:
        _check_across_specs(specs, findings)
    highest = last_assigned_field_id(specs)
    has_fields = any(spec.fields for spec in specs)
    if has_fields and document.last_partition_id is not None and document.last_partition_id < highest:
        findings.add(
            FaultId.LAST_PARTITION_ID_TOO_LOW,
            f"last-partition-id is {document.last_partition_id}, and a partition field has the id {highest}",
            facts={"recorded": document.last_partition_id, "least": highest},
        )


def check_sort_orders(document: Document, findings: Findings) -> None:
    """Faults of sort orders: doubled and missing ids, and columns that the default order lacks."""
    ids = [order.order_id for order in document.sort_orders]
    report_doubled("sort order", ids, findings)
    _check_named(
        "sort-orders", document.default_sort_order_id, ids, FaultId.DEFAULT_SORT_ORDER_MISSING, document, findings
    )
    for order in document.sort_orders:
        if order.order_id == document.default_sort_order_id:
            _check_sort_columns(order, document.schema, findings)
        _check_arguments(f"sort order {order.order_id}", order.fields, document, findings)


def report_doubled(what: str, ids: Iterable[int], findings: Findings) -> None:
    """Faults 103 of a list whose items are told apart by id."""
    for one, times in Counter(ids).items():
        if times > 1:
            findings.add(
                FaultId.DOUBLED_ID, f"{times} have this id", where=f"{what} {one}", facts={"what": what, "id": one}
            )


def _check_named(
    key: str, named: int | None, ids: Iterable[int], number: int, document: Document, findings: Findings
) -> None:
    # What is not there may be the one that could not be read, and that is told.
    known = sorted(set(ids))
    if named is None or named in known or key in document.broken:
        return
    there = ", ".join(map(str, known)) or "none"
    findings.add(number, f"{named} is not among the {key}, which are {there}", facts={"named": named})


def _check_schema(schema: Schema, findings: Findings) -> None:
    try:
        validate_schema(schema)
    except InvalidTableError as error:
        doubled = [*_doubled_fields(schema)]
        for problem in doubled:
            findings.add(FaultId.FIELD_ID_DOUBLED, problem, where=_name(schema), facts={"schema_id": schema.schema_id})
        if not doubled and not _check_identifiers(schema, findings):
            findings.unreadable(error.message, _name(schema))


def _doubled_fields(schema: Schema) -> Iterator[str]:
    for field_id, times in Counter(field.field_id for field in walk(schema.as_struct())).items():
        if times > 1:
            yield f"{times} fields have the id {field_id}"
    for name, times in Counter(_full_names(schema.as_struct())).items():
        if times > 1:
            yield f"{times} fields have the name {name!r}"


def _full_names(type_: Type, prefix: str = "") -> Iterator[str]:
    for field in child_fields(type_):
        yield prefix + field.name
        yield from _full_names(field.type, f"{prefix}{field.name}.")


def _check_identifiers(schema: Schema, findings: Findings) -> bool:
    """Tell of identifier fields that are none; whether that is all that is wrong with the schema."""
    try:
        validate_schema(replace(schema, identifier_field_ids=()))
    except InvalidTableError:
        return False
    for field_id in schema.identifier_field_ids:
        try:
            validate_schema(replace(schema, identifier_field_ids=(field_id,)))
        except InvalidTableError as error:
            findings.add(
                FaultId.IDENTIFIER_FIELD_WRONG,
                error.message,
                where=_name(schema),
                facts={"schema_id": schema.schema_id, "field_id": field_id},
            )
    return True


def _check_doubled_fields(spec: PartitionSpec, findings: Findings) -> None:
    where = _spec_name(spec)
    for field_id, times in Counter(field.field_id for field in spec.fields).items():
        if times > 1:
            findings.add(FaultId.PARTITION_FIELD_DOUBLED, f"{times} fields have the id {field_id}", where=where)
    for name, times in Counter(field.name for field in spec.fields).items():
        if times > 1:
            findings.add(FaultId.PARTITION_FIELD_DOUBLED, f"{times} fields have the name {name!r}", where=where)


def _check_across_specs(specs: Iterable[PartitionSpec], findings: Findings) -> None:
    """One id, one meaning; but a field that was dropped from a table of version 1 is void from then on."""
    known: dict[int, tuple[PartitionSpec, PartitionField]] = {}
    for spec in specs:
        for field in spec.fields:
            other_spec, other = known.setdefault(field.field_id, (spec, field))
            if other_spec is spec or _mean_the_same(field, other):
                # What a void field was before tells more of what may stand under its id.
                if isinstance(other.transform, Void):
                    known[field.field_id] = (spec, field)
                continue
            findings.add(
                FaultId.PARTITION_FIELD_DOUBLED,
                f"field {field.field_id} is {_shown(field)}, and in partition spec {other_spec.spec_id} {_shown(other)}",
                where=_spec_name(spec),
                facts={"field_id": field.field_id, "spec_ids": [other_spec.spec_id, spec.spec_id]},
            )


def _mean_the_same(one: PartitionField, other: PartitionField) -> bool:
    has_void = isinstance(one.transform, Void) or isinstance(other.transform, Void)
    return one.source_ids == other.source_ids and (has_void or one.transform == other.transform)


def _check_sources(spec: PartitionSpec, document: Document, findings: Findings) -> None:
    is_default = spec.spec_id == document.default_spec_id
    for field in spec.fields:
        problem = _misfit(spec, field, document.schema) if is_default else _loss(field, document)
        if problem is not None:
            findings.add(
                FaultId.PARTITION_SOURCE_MISSING,
                problem,
                where=_spec_name(spec),
                facts={"spec_id": spec.spec_id, "field_id": field.field_id, "source_id": field.source_id},
            )


def _misfit(spec: PartitionSpec, field: PartitionField, schema: Schema | None) -> str | None:
    """Why a field of the default spec does not fit the current schema."""
    if schema is None:
        return None
    try:
        validate_spec(replace(spec, fields=(field,)), schema)
    except InvalidTableError as error:
        return error.message
    return None


def _loss(field: PartitionField, document: Document) -> str | None:
    """Why values of an older spec's field cannot be read: other transforms have one type whatever the column was."""
    if "schemas" in document.broken or not isinstance(field.transform, Identity | Truncate):
        return None
    if any(field.source_id in schema.fields_by_id for schema in document.schemas):
        return None
    return f"the source column {field.source_id} of field {field.name!r} is in no schema"


def _check_sort_columns(order: SortOrder, schema: Schema | None, findings: Findings) -> None:
    if schema is None:
        return
    for field in order.fields:
        try:
            validate_sort_order(replace(order, fields=(field,)), schema)
        except InvalidTableError as error:
            findings.add(
                FaultId.SORT_SOURCE_MISSING,
                error.message,
                where=f"sort order {order.order_id}",
                facts={"order_id": order.order_id, "source_id": field.source_id},
            )


def _check_arguments(where: str, fields: Iterable[object], document: Document, findings: Findings) -> None:
    """Transforms of several columns came with version 3."""
    if document.version >= 3:
        return
    for field in fields:
        source_ids = getattr(field, "extra", {}).get("source-ids")
        if source_ids is not None:
            findings.add(
                FaultId.FEATURE_OF_A_LATER_VERSION,
                f"a transform has the source columns {source_ids}; only version 3 has transforms of several",
                where=where,
            )


def _shown(field: PartitionField) -> str:
    return f"{str(field.transform)!r} of column {field.source_id}"


def _name(schema: Schema) -> str:
    return f"schema {schema.schema_id}"


def _spec_name(spec: PartitionSpec) -> str:
    return f"partition spec {spec.spec_id}"


SKEW_MS = MINUTE_MS
"""Clocks of machines that commit to one table may differ by so much, for Iceberg Java."""


_OPERATIONS = ("append", "replace", "overwrite", "delete")


def check_snapshots(document: Document, findings: Findings) -> None:
    """Faults of snapshots, one by one and among each other."""
    report_doubled("snapshot", [snapshot.snapshot_id for snapshot in document.snapshots], findings)
    current = document.current_snapshot_id
    is_known = current is None or current in document.snapshots_by_id
    if not is_known and "snapshots" not in document.broken:
        findings.add(FaultId.CURRENT_SNAPSHOT_MISSING, f"current-snapshot-id {current} is not among the snapshots")
    for snapshot in document.snapshots:
        _check_manifests(snapshot, document, findings)
        _snapshots_check_schema(snapshot, document, findings)
        _check_operation(snapshot, document, findings)
        _check_times(snapshot, document, findings)
    if document.version > 1:
        _check_last_sequence_number(document, findings)
        _check_rising(document, findings)
    for circle in _circles(document.snapshots_by_id):
        where = f"snapshot {circle[0]}"
        findings.add(
            FaultId.ANCESTORS_IN_A_CIRCLE,
            f"its ancestors are {', '.join(map(str, circle))} again",
            where=where,
            snapshot_id=circle[0],
        )


def check_references(document: Document, findings: Findings) -> None:
    """Faults of branches and tags."""
    for name, ref in document.refs.items():
        where = f"ref {name!r}"
        if ref.snapshot_id not in document.snapshots_by_id and "snapshots" not in document.broken:
            findings.add(
                FaultId.REFERENCE_TO_MISSING_SNAPSHOT,
                f"it names snapshot {ref.snapshot_id}, which is not there",
                where=where,
                facts={"ref": name, "named": ref.snapshot_id},
            )
        for problem in _limit_problems(ref):
            findings.add(FaultId.REFERENCE_LIMIT_WRONG, problem, where=where, facts={"ref": name})
    main = document.refs.get(MAIN)
    if main is None:
        return
    if not main.is_branch:
        findings.add(FaultId.MAIN_NOT_CURRENT, "it is a tag; it must be a branch", where=f"ref {MAIN!r}")
    if main.snapshot_id != document.current_snapshot_id:
        findings.add(
            FaultId.MAIN_NOT_CURRENT,
            f"it names snapshot {main.snapshot_id}, and current-snapshot-id is {document.current_snapshot_id}",
            where=f"ref {MAIN!r}",
            facts={"recorded": document.current_snapshot_id, "found": main.snapshot_id},
        )


def _check_manifests(snapshot: Snapshot, document: Document, findings: Findings) -> None:
    if snapshot.manifest_list:
        return
    if snapshot.manifests is None:
        problem = "it names no manifest list"
    elif not _may_be_of_version_1(snapshot, document):
        problem = "it names manifests in place of a manifest list, which only version 1 has"
    else:
        return
    _add(FaultId.SNAPSHOT_WITHOUT_MANIFESTS, problem, snapshot, findings)


def _snapshots_check_schema(snapshot: Snapshot, document: Document, findings: Findings) -> None:
    schema_id = snapshot.schema_id
    if schema_id is None or "schemas" in document.broken:
        return
    if schema_id not in document.schema_ids:
        _add(
            FaultId.SCHEMA_OF_SNAPSHOT_MISSING,
            f"its schema-id {schema_id} is not among the schemas",
            snapshot,
            findings,
        )


def _check_operation(snapshot: Snapshot, document: Document, findings: Findings) -> None:
    if snapshot.operation in _OPERATIONS or (snapshot.operation is None and _may_be_of_version_1(snapshot, document)):
        return
    problem = "its summary says no operation"
    if snapshot.operation is not None:
        problem = f"its operation is {snapshot.operation!r}, which the spec does not know"
    _add(FaultId.OPERATION_MISSING, problem, snapshot, findings)


def _may_be_of_version_1(snapshot: Snapshot, document: Document) -> bool:
    """Whether a snapshot may have been made before the table was upgraded to version 2."""
    return document.version == 1 or snapshot.sequence_number == 0


def _check_times(snapshot: Snapshot, document: Document, findings: Findings) -> None:
    parent = _parent(snapshot, document.snapshots_by_id)
    if parent is not None and snapshot.timestamp_ms < parent.timestamp_ms - SKEW_MS:
        behind_ms = parent.timestamp_ms - snapshot.timestamp_ms
        _add(
            FaultId.TIME_RUNS_BACKWARDS,
            f"its timestamp-ms is {behind_ms} ms before that of its parent {parent.snapshot_id}",
            snapshot,
            findings,
        )
    last_ms = document.last_updated_ms
    if last_ms is not None and snapshot.timestamp_ms > last_ms + SKEW_MS:
        ahead_ms = snapshot.timestamp_ms - last_ms
        _add(
            FaultId.TIME_RUNS_BACKWARDS, f"its timestamp-ms is {ahead_ms} ms after last-updated-ms", snapshot, findings
        )


def _check_last_sequence_number(document: Document, findings: Findings) -> None:
    highest = max((snapshot.sequence_number for snapshot in document.snapshots), default=0)
    recorded = document.last_sequence_number
    if recorded is not None and recorded < highest:
        findings.add(
            FaultId.LAST_SEQUENCE_NUMBER_TOO_LOW,
            f"last-sequence-number is {recorded}, and a snapshot has {highest}",
            facts={"recorded": recorded, "least": highest},
        )


def _check_rising(document: Document, findings: Findings) -> None:
    """Sequence numbers rise from parent to child, and none is there twice; snapshots of version 1 have all 0."""
    first: dict[int, Snapshot] = {}
    for snapshot in document.snapshots:
        other = first.setdefault(snapshot.sequence_number, snapshot)
        if snapshot.sequence_number > 0 and other.snapshot_id != snapshot.snapshot_id:
            _add(
                FaultId.SEQUENCE_NUMBERS_NOT_RISING,
                f"its sequence number {snapshot.sequence_number} is that of snapshot {other.snapshot_id} too",
                snapshot,
                findings,
            )
    for snapshot in document.snapshots:
        parent = _parent(snapshot, document.snapshots_by_id)
        if parent is not None and snapshot.sequence_number < parent.sequence_number:
            _add(
                FaultId.SEQUENCE_NUMBERS_NOT_RISING,
                f"its sequence number {snapshot.sequence_number} is below {parent.sequence_number}, that of its parent"
                f" {parent.snapshot_id}",
                snapshot,
                findings,
            )


def _parent(snapshot: Snapshot, by_id: Mapping[int, Snapshot]) -> Snapshot | None:
    parent_id = snapshot.parent_snapshot_id
    return None if parent_id is None else by_id.get(parent_id)


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


def _limit_problems(ref: SnapshotRef) -> Iterator[str]:
    limits = {
        "min-snapshots-to-keep": ref.min_snapshots_to_keep,
        "max-snapshot-age-ms": ref.max_snapshot_age_ms,
        "max-ref-age-ms": ref.max_ref_age_ms,
    }
    for key, limit in limits.items():
        if limit is not None and limit < 1:
            yield f"its {key} is {limit}; it must be above zero"
        elif limit is not None and not ref.is_branch and key != "max-ref-age-ms":
            yield f"it has {key}, which is for branches, and is a tag"


def _add(number: int, problem: str, snapshot: Snapshot, findings: Findings) -> None:
    findings.add(number, problem, where=f"snapshot {snapshot.snapshot_id}", snapshot_id=snapshot.snapshot_id)


def check_logs_of(document: Document, findings: Findings) -> None:
    """Faults of the two logs, as far as they are seen without looking for a file."""
    for where, problem in _times(
        "snapshot-log", [e.timestamp_ms for e in document.snapshot_log], document.last_updated_ms
    ):
        findings.add(FaultId.SNAPSHOT_LOG_WRONG, problem, where=where)
    for where, problem in _times(
        "metadata-log", [e.timestamp_ms for e in document.metadata_log], document.last_updated_ms
    ):
        findings.add(FaultId.METADATA_LOG_UNSORTED, problem, where=where)
    _check_last_snapshot(document, findings)
    current = canonical_or_text(findings.location)
    times = Counter(canonical_or_text(entry.metadata_file) for entry in document.metadata_log)
    for key, count in times.items():
        if key == current:
            findings.add(FaultId.METADATA_LOG_WRONG, "the current metadata file is in the metadata log")
        elif count > 1:
            findings.add(FaultId.METADATA_LOG_WRONG, f"it is {count} times in the metadata log", where=key)


def check_statistics(document: Document, findings: Findings) -> None:
    """Faults of the entries of statistics files: whose they are, and that there is one of each kind for a snapshot."""
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
                findings.add(FaultId.STATISTICS_OF_MISSING_SNAPSHOT, problem, where=path, facts=facts)


def _check_last_snapshot(document: Document, findings: Findings) -> None:
    """Without a current snapshot, as after a table was replaced, the log says what was; and it may have been left empty."""
    current = document.current_snapshot_id
    if current is None or not document.snapshot_log or "snapshot-log" in document.broken:
        return
    last = document.snapshot_log[-1].snapshot_id
    if last != current:
        findings.add(
            FaultId.SNAPSHOT_LOG_WRONG,
            f"its last entry is snapshot {last}, and current-snapshot-id is {current}",
            where="snapshot-log",
            facts={"recorded": last, "found": current},
        )


def _times(key: str, times_ms: Sequence[int], last_ms: int | None) -> Iterator[tuple[str, str]]:
    """Where a log does not go forward in time, and why; a minute is allowed for clocks that differ."""
    before_ms: int | None = None
    for position, time_ms in enumerate(times_ms):
        if before_ms is not None and time_ms < before_ms - SKEW_MS:
            yield f"{key}[{position}]", f"it is {before_ms - time_ms} ms before the entry that it follows"
        before_ms = time_ms
    if before_ms is not None and last_ms is not None and before_ms > last_ms + SKEW_MS:
        yield key, f"its last entry is {before_ms - last_ms} ms after last-updated-ms"


def check_metadata(raw: object, location: str, tally: Tally) -> None:
    """Hold the decoded JSON of a metadata file against the spec, of any format version that is known.

    It raises nothing for whatever JSON there is. Where nothing but notices is told, `parse_metadata` takes the file.

    Args:
        raw: what the file holds.
        location: of the file.
        tally: takes the faults; a version that is not known is a gap.
    """
    findings = Findings(location, tally)
    document = read_document(raw, findings)
    if document is None:
        return
    _check_top(document, findings)
    check_schemas(document, findings)
    check_specs(document, findings)
    check_sort_orders(document, findings)
    check_snapshots(document, findings)
    check_references(document, findings)
    check_logs_of(document, findings)
    check_statistics(document, findings)
    check_lineage(document, findings)
    if not findings.has_faults:
        check_loads(raw, findings)


def _check_top(document: Document, findings: Findings) -> None:
    if document.table_uuid is not None and not is_uuid(document.table_uuid):
        findings.add(FaultId.TABLE_UUID_WRONG, f"table-uuid is {document.table_uuid!r}, which is no UUID")
    if document.location is not None and not is_location(document.location):
        findings.add(FaultId.LOCATION_WRONG, f"location is {document.location!r}; it must be SCHEME://PATH or /PATH")
    try:
        name_mapping_of(document.properties)
    except InvalidTableError as error:
        findings.add(FaultId.NAME_MAPPING_WRONG, error.message)
    except RecursionError:
        findings.add(FaultId.NAME_MAPPING_WRONG, "the name mapping is nested too deeply")


def check_loads(raw: object, findings: Findings) -> None:
    """Try to load the metadata: what is refused there is a fault, whatever the rules know of it."""
    try:
        metadata_from_json(raw)
    except InvalidTableError as error:
        findings.unreadable(error.message)
    except RecursionError:
        findings.unreadable("it is nested too deeply")
    except UnsupportedError as error:
        findings.gap(error.message)


def is_uuid(text: str) -> bool:
    """Whether a text is a UUID, in any of the spellings that Python reads."""
    try:
        uuid.UUID(text)
    except ValueError:
        return False
    return True


_ENTRIES_MAX = 100
"""So many of the newest entries are looked for: tables keep 100 by default, and some keep all."""

_READ_MAX = 3
"""So many files are tried, the newest first, for one that can be read."""


def check_logs(subject: CheckedTable) -> None:
    """Look for the files of the metadata log, and compare the table's uuid with the newest of them.

    Raises:
        UnavailableError: storage is out of reach for now.
    """
    table, tally = subject.table, subject.tally
    logged = reversed(table.metadata.metadata_log[-_ENTRIES_MAX:])
    newest = [*dict.fromkeys(entry.metadata_file for entry in logged)]
    found: list[str] = []
    for location, answer in zip(newest, _heads(newest, table.storage), strict=True):
        if isinstance(answer, FileInfo):
            found.append(location)
        elif answer is None:
            tally.add(
                Fault(
                    number=FaultId.LOGGED_METADATA_MISSING,
                    where=location,
                    detail="it is in the metadata log, and not in storage",
                )
            )
        else:
            tally.gap(f"metadata {location!r}", answer)
    if table.metadata.table_uuid is not None:
        _check_uuid(found[:_READ_MAX], table.metadata.table_uuid, subject)


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
        # In version 1 a table may have been without.
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


def _heads(locations: Sequence[str], storage: Storage) -> list[FileInfo | str | None]:
    """What there is at some locations: a file, nothing, or why that cannot be told."""
    try:
        if all(map(is_location, locations)):
            return [*head_many(locations, storage)]
    except TryAgainError:
        raise
    except IcekeepError:
        # One of them is in another store, or is denied: then each has its own answer.
        pass
    return [_head(location, storage) for location in locations]


def _head(location: str, storage: Storage) -> FileInfo | str | None:
    if not is_location(location):
        return None
    try:
        return storage.head(location)
    except TryAgainError:
        raise
    except IcekeepError as error:
        return error.message
