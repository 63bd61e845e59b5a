"""The faults of one metadata file, on their way to a tally.

The JSON of a metadata file, taken apart so that one wrong value hides nothing but itself.

What is not as it must be is a fault 101 that names the key, and is left out of the `Document`; all other rules look at what is
in it. Null and absent are the same.

What came with version 3 beside columns: row ids of snapshots, and encryption keys (spec, "Row Lineage", "Encryption Keys").
"""

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import Any, TypeVar

import msgspec

from icekeep.errors import InvalidTableError, UnsupportedError
from icekeep.maintenance.check.faults import CLASSES, Fault, FaultId, Tally
from icekeep.spec.metadata import SUPPORTED_FORMAT_VERSION
from icekeep.spec.partitioning import PartitionSpec, partition_fields_from_json, spec_from_json
from icekeep.spec.schema import Schema, unvalidated_schema
from icekeep.spec.snapshots import (
    MetadataLogEntry,
    PartitionStatisticsFile,
    Snapshot,
    SnapshotLogEntry,
    SnapshotRef,
    StatisticsFile,
    View,
    view_from_json,
)
from icekeep.spec.sorting import UNSORTED, SortOrder, sort_order_from_json

NO_FACTS: Mapping[str, Any] = {}


class Findings:
    """Takes the faults of a metadata file, and knows whether one of them is more than a notice.

    Args:
        location: of the metadata file.
    """

    def __init__(self, location: str, tally: Tally) -> None:
        self.location = location
        self.has_faults = False
        self._tally = tally

    def add(
        self,
        number: int,
        detail: str,
        *,
        where: str = "",
        snapshot_id: int | None = None,
        facts: Mapping[str, Any] = NO_FACTS,
    ) -> None:
        """Note a fault; `where` is a part of the metadata, or empty for its top, which is the file itself."""
        self.has_faults = self.has_faults or not CLASSES[number].is_notice
        where = where or self.location
        self._tally.add(Fault(number=number, where=where, detail=detail, snapshot_id=snapshot_id, facts=facts))

    def unreadable(self, detail: str, where: str = "") -> None:
        """Note that something is not of the form that the spec describes."""
        self.add(FaultId.UNREADABLE_METADATA, detail, where=where)

    def gap(self, why: str) -> None:
        """Note that the metadata could not be checked."""
        self._tally.gap(f"metadata {self.location!r}", why)


T = TypeVar("T")
V = TypeVar("V", bound=View)

_INT_BITS = 31
_LONG_BITS = 63
_FROM_ZERO = frozenset(
    ("sequence-number", "first-row-id", "added-rows", "file-size-in-bytes", "file-footer-size-in-bytes")
)


class Blob(View, frozen=True):
    """What a statistics file's entry says of a blob in it (spec, "Table Statistics")."""

    type: str
    snapshot_id: int
    sequence_number: int
    fields: tuple[int, ...]
    properties: Mapping[str, str] = {}


class EncryptionKey(View, frozen=True):
    """A key of the table (spec, "Encryption Keys")."""

    key_id: str
    encrypted_key_metadata: str
    encrypted_by_id: str | None = None
    properties: Mapping[str, str] = {}


class Document(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """What could be read of a metadata file; `None` is what is missing or wrong.

    Attributes:
        broken: keys of the lists that have items which could not be read: what is missing in them may be one of those.
    """

    version: int
    table_uuid: str | None
    location: str | None
    last_sequence_number: int | None
    last_updated_ms: int | None
    last_column_id: int | None
    schemas: tuple[Schema, ...]
    current_schema_id: int | None
    partition_specs: tuple[PartitionSpec, ...]
    default_spec_id: int | None
    last_partition_id: int | None
    sort_orders: tuple[SortOrder, ...]
    default_sort_order_id: int | None
    properties: Mapping[str, str]
    current_snapshot_id: int | None
    snapshots: tuple[Snapshot, ...]
    snapshot_log: tuple[SnapshotLogEntry, ...]
    metadata_log: tuple[MetadataLogEntry, ...]
    refs: Mapping[str, SnapshotRef]
    statistics: tuple[StatisticsFile, ...]
    partition_statistics: tuple[PartitionStatisticsFile, ...]
    next_row_id: int | None
    encryption_keys: tuple[EncryptionKey, ...]
    broken: frozenset[str]

    @cached_property
    def schema_ids(self) -> frozenset[int]:
        """The ids of all schemas that could be read."""
        return frozenset(schema.schema_id for schema in self.schemas)

    @property
    def schema(self) -> Schema | None:
        """The current schema, if it could be read."""
        return next((schema for schema in self.schemas if schema.schema_id == self.current_schema_id), None)

    @cached_property
    def snapshots_by_id(self) -> dict[int, Snapshot]:
        """Snapshots by id; of two that have one id the last."""
        return {snapshot.snapshot_id: snapshot for snapshot in self.snapshots}


def read_document(raw: object, findings: Findings) -> Document | None:
    """Take apart the decoded JSON of a metadata file; `None`, with a fault or a gap, if nothing more can be said of it."""
    if not isinstance(raw, dict):
        findings.unreadable("the metadata is no JSON object")
        return None
    reader = _Reader(raw, findings)
    version = reader.whole("format-version", _INT_BITS)
    if version is None:
        return None
    if version > SUPPORTED_FORMAT_VERSION:
        findings.gap(f"format version {version} is newer than {SUPPORTED_FORMAT_VERSION}, the newest that is known")
        return None
    if version < 1:
        findings.unreadable(f"format-version is {version}; the spec knows 1 and above")
        return None
    return reader.document(version)


class _Reader:
    """Reads key by key the JSON object of a metadata file."""

    def __init__(self, raw: dict[str, Any], findings: Findings) -> None:
        self._raw = raw
        self._findings = findings
        self._broken: set[str] = set()

    def document(self, version: int) -> Document:
        schemas, current_schema_id = self._schemas(version)
        specs, default_spec_id = self._specs(version)
        orders, default_sort_order_id = self._sort_orders(version)
        is_later = version > 1
        return Document(
            version=version,
            table_uuid=self._text("table-uuid", required=is_later),
            location=self._text("location"),
            last_sequence_number=self.whole("last-sequence-number", least=0) if is_later else None,
            last_updated_ms=self.whole("last-updated-ms"),
            last_column_id=self.whole("last-column-id", _INT_BITS),
            schemas=schemas,
            current_schema_id=current_schema_id,
            partition_specs=specs,
            default_spec_id=default_spec_id,
            last_partition_id=self.whole("last-partition-id", _INT_BITS, required=is_later),
            sort_orders=orders,
            default_sort_order_id=default_sort_order_id,
            properties=self._properties(),
            current_snapshot_id=self._current_snapshot_id(),
            snapshots=self._views("snapshots", Snapshot),
            snapshot_log=self._views("snapshot-log", SnapshotLogEntry),
            metadata_log=self._views("metadata-log", MetadataLogEntry),
            refs=self._refs(),
            statistics=self._statistics(),
            partition_statistics=self._views("partition-statistics", PartitionStatisticsFile),
            next_row_id=self.whole("next-row-id", required=version >= 3, least=0),
            encryption_keys=self._views("encryption-keys", EncryptionKey),
            broken=frozenset(self._broken),
        )

    def whole(self, key: str, bits: int = _LONG_BITS, *, required: bool = True, least: int | None = None) -> int | None:
        """A whole number at the top of the metadata."""
        value = self._raw.get(key)
        if value is None:
            if required:
                self._findings.unreadable(f"the required key {key!r} is missing")
            return None
        problem = _number_problem(value, bits, least)
        if problem is not None:
            self._findings.unreadable(f"{key} is {_shown(value)}; {problem}")
            return None
        number: int = value
        return number

    def _text(self, key: str, *, required: bool = True) -> str | None:
        value = self._raw.get(key)
        if isinstance(value, str):
            return value
        if value is not None:
            self._findings.unreadable(f"{key} is {_shown(value)}; it must be text")
        elif required:
            self._findings.unreadable(f"the required key {key!r} is missing")
        return None

    def _schemas(self, version: int) -> tuple[tuple[Schema, ...], int | None]:
        if version == 1 and self._raw.get("schemas") is None:
            found = self._one("schema", _schema)
            return ((), None) if found is None else ((found,), found.schema_id)
        return self._list("schemas", _schema, required=True), self.whole("current-schema-id", _INT_BITS)

    def _specs(self, version: int) -> tuple[tuple[PartitionSpec, ...], int | None]:
        if version == 1 and self._raw.get("partition-specs") is None:
            fields = self._one("partition-spec", partition_fields_from_json)
            return ((), None) if fields is None else ((PartitionSpec(spec_id=0, fields=fields),), 0)
        return self._list("partition-specs", spec_from_json, required=True), self.whole("default-spec-id", _INT_BITS)

    def _sort_orders(self, version: int) -> tuple[tuple[SortOrder, ...], int | None]:
        if version == 1 and self._raw.get("sort-orders") is None:
            return (UNSORTED,), UNSORTED.order_id
        orders = self._list("sort-orders", sort_order_from_json, required=True)
        return orders, self.whole("default-sort-order-id", _INT_BITS)

    def _current_snapshot_id(self) -> int | None:
        found = self.whole("current-snapshot-id", required=False)
        # Java writes -1 for none.
        return None if found == -1 else found

    def _properties(self) -> Mapping[str, str]:
        value = self._raw.get("properties")
        if value is None:
            return {}
        if not isinstance(value, dict):
            self._findings.unreadable(f"properties is {_shown(value)}; it must be an object of texts")
            return {}
        for name, item in value.items():
            if not isinstance(item, str):
                self._findings.unreadable(f"{name!r} in properties is {_shown(item)}; it must be text")
        return {name: item for name, item in value.items() if isinstance(item, str)}

    def _refs(self) -> Mapping[str, SnapshotRef]:
        value = self._raw.get("refs")
        if value is None:
            return {}
        if not isinstance(value, dict):
            self._mark("refs", f"refs is {_shown(value)}; it must be an object")
            return {}
        read = {name: self._item("refs", f"ref {name!r}", ref, _viewed(SnapshotRef)) for name, ref in value.items()}
        return {name: ref for name, ref in read.items() if ref is not None}

    def _statistics(self) -> tuple[StatisticsFile, ...]:
        files = self._views("statistics", StatisticsFile)
        for file in files:
            for blob in file.blob_metadata:
                self._item("statistics", f"blob-metadata of statistics {file.statistics_path!r}", blob, _viewed(Blob))
        return files

    def _views(self, key: str, cls: type[V]) -> tuple[V, ...]:
        return self._list(key, _viewed(cls))

    def _list(self, key: str, read: Callable[[Any], T], *, required: bool = False) -> tuple[T, ...]:
        value = self._raw.get(key)
        if value is None and not required:
            return ()
        if not isinstance(value, list):
            missing = f"the required key {key!r} is missing"
            self._mark(key, missing if value is None else f"{key} is {_shown(value)}; it must be a list")
            return ()
        items = (self._item(key, f"{key}[{position}]", item, read) for position, item in enumerate(value))
        return tuple(item for item in items if item is not None)

    def _one(self, key: str, read: Callable[[Any], T]) -> T | None:
        value = self._raw.get(key)
        if value is None:
            self._mark(f"{key}s", f"the required key {key!r} is missing")
            return None
        return self._item(f"{key}s", key, value, read)

    def _item(self, key: str, where: str, value: Any, read: Callable[[Any], T]) -> T | None:
        """An item of the list `key`; `where` names it, as its errors may not."""
        wrong_number = next(_number_problems(value), None)
        if wrong_number is not None:
            self._mark(key, wrong_number, where)
            return None
        try:
            return read(value)
        except (InvalidTableError, UnsupportedError) as error:
            self._mark(key, error.message.removeprefix("it: "), where)
        except RecursionError:
            self._mark(key, "it is nested too deeply", where)
        return None

    def _mark(self, key: str, problem: str, where: str = "") -> None:
        self._broken.add(key)
        self._findings.unreadable(problem, where)


def _schema(value: Any) -> Schema:
    # We take a schema without its type; Java does not.
    if isinstance(value, dict) and "type" not in value:
        raise InvalidTableError("the required key 'type' is missing")
    return unvalidated_schema(value)


def _viewed(cls: type[V]) -> Callable[[Any], V]:
    return lambda value: view_from_json(cls, value, "it")


def _number_problems(value: Any) -> Iterator[str]:
    """The whole numbers right in an object that no engine can take, and why."""
    if not isinstance(value, dict):
        return
    for name, item in value.items():
        if type(item) is int:
            problem = _number_problem(item, _LONG_BITS, 0 if name in _FROM_ZERO else None)
            if problem is not None:
                yield f"{name} is {item}; {problem}"


def _number_problem(value: Any, bits: int, least: int | None) -> str | None:
    if type(value) is not int:
        return "it must be a whole number"
    if not -(1 << bits) <= value < 1 << bits:
        return f"it must fit in {bits + 1} bits"
    if least is not None and value < least:
        return f"it must be {least} or more"
    return None


def _shown(value: Any) -> str:
    """A value in a message: as much of it as a line has room for."""
    try:
        text = repr(value)
    except RecursionError:
        text = f"a {type(value).__name__} of many levels"
    return text if len(text) <= 80 else f"{text[:77]}..."


def check_lineage(document: Document, findings: Findings) -> None:
    """Faults of row ids; before version 3 that there are any, or encryption keys."""
    if document.version < 3:
        _check_absent(document, findings)
        return
    _check_present(document, findings)
    numbered = [(snapshot, *_row_ids(snapshot)) for snapshot in document.snapshots if snapshot.first_row_id is not None]
    _check_next_row_id(document, max((end for _, _, end in numbered), default=0), findings)
    last: tuple[Snapshot, int] | None = None
    for snapshot, first, end in sorted(numbered, key=lambda one: one[1:]):
        if end == first:
            continue
        if last is not None and first < last[1]:
            other, other_end = last
            findings.add(
                FaultId.ROW_IDS_OF_SNAPSHOTS_OVERLAP,
                f"its row ids begin at {first}, and those of snapshot {other.snapshot_id} go on up to {other_end - 1}",
                where=f"snapshot {snapshot.snapshot_id}",
                snapshot_id=snapshot.snapshot_id,
                facts={"others": [other.snapshot_id]},
            )
        if last is None or end > last[1]:
            last = (snapshot, end)


def _row_ids(snapshot: Snapshot) -> tuple[int, int]:
    """The first row id that a snapshot assigns, and the first behind the last."""
    first = snapshot.first_row_id or 0
    return first, first + (snapshot.added_rows or 0)


def _check_next_row_id(document: Document, least: int, findings: Findings) -> None:
    recorded = document.next_row_id
    if recorded is not None and recorded < least:
        findings.add(
            FaultId.NEXT_ROW_ID_TOO_LOW,
            f"next-row-id is {recorded}, and snapshots assigned the row ids up to {least - 1}",
            facts={"recorded": recorded, "least": least},
        )


def _check_present(document: Document, findings: Findings) -> None:
    """Snapshots that were made before the upgrade to version 3 have no row ids; all that came later do."""
    numbered = [s.sequence_number for s in document.snapshots if s.first_row_id is not None]
    upgraded = min(numbered, default=None)
    for snapshot in document.snapshots:
        if snapshot.first_row_id is None:
            is_older = upgraded is None or snapshot.sequence_number < upgraded
            missing = None if is_older else "first-row-id"
        else:
            missing = "added-rows" if snapshot.added_rows is None else None
        if missing is not None:
            findings.add(
                FaultId.FIRST_ROW_ID_MISSING,
                f"it has no {missing}",
                where=f"snapshot {snapshot.snapshot_id}",
                snapshot_id=snapshot.snapshot_id,
            )


def _check_absent(document: Document, findings: Findings) -> None:
    # A zero says nothing that version 2 does not say.
    if document.next_row_id:
        findings.add(
            FaultId.FEATURE_OF_A_LATER_VERSION, f"next-row-id is {document.next_row_id}; only version 3 numbers rows"
        )
    if document.encryption_keys:
        findings.add(FaultId.FEATURE_OF_A_LATER_VERSION, "there are encryption-keys; only version 3 has them")
    for snapshot in document.snapshots:
        for key, value in (("first-row-id", snapshot.first_row_id), ("key-id", snapshot.key_id)):
            if value is not None:
                findings.add(
                    FaultId.FEATURE_OF_A_LATER_VERSION,
                    f"it has {key}, which only version 3 has",
                    where=f"snapshot {snapshot.snapshot_id}",
                    snapshot_id=snapshot.snapshot_id,
                )
