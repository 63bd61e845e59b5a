"""The JSON of a metadata file, taken apart so that one wrong value hides nothing but itself.

What is not as the spec describes it is a fault 101 that names the key, and is left out of the `Document`; all other rules look
at what is in it. Null and absent are the same.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple, TypeVar

from icekeep.errors import InvalidTableError, UnsupportedError
from icekeep.maintenance.check.faults import FaultId
from icekeep.spec.metadata import SUPPORTED_FORMAT_VERSION
from icekeep.spec.partitioning import PartitionSpec, partition_fields_from_json, spec_from_json
from icekeep.spec.schema import Schema, unvalidated_schema
from icekeep.spec.snapshots import (
    JsonObject,
    MetadataLogEntry,
    PartitionStatisticsFile,
    Snapshot,
    SnapshotLogEntry,
    SnapshotRef,
    StatisticsFile,
    object_from_json,
)
from icekeep.spec.sorting import UNSORTED, SortOrder, sort_order_from_json

T = TypeVar("T")
V = TypeVar("V", bound=JsonObject)

_INT_BITS = 31
_LONG_BITS = 63
_FROM_ZERO = frozenset(
    ("sequence-number", "first-row-id", "added-rows", "file-size-in-bytes", "file-footer-size-in-bytes")
)


class DocumentFault(NamedTuple):
    """A fault of a metadata file; `where` is a part of it, or empty for its top."""

    number: FaultId
    detail: str
    where: str = ""
    snapshot_id: int | None = None
    facts: Mapping[str, Any] = {}


class Blob(JsonObject, frozen=True):
    """What a statistics file's entry says of a blob in it (spec, "Table Statistics")."""

    type: str
    snapshot_id: int
    sequence_number: int
    fields: tuple[int, ...]
    properties: Mapping[str, str] = {}


class EncryptionKey(JsonObject, frozen=True):
    """A key of the table (spec, "Encryption Keys")."""

    key_id: str
    encrypted_key_metadata: str
    encrypted_by_id: str | None = None
    properties: Mapping[str, str] = {}


class Document:
    """What could be read of the JSON object of a metadata file; `None` stands for what is missing or wrong.

    Attributes:
        metadata_location: of the file.
        found: what is not as the spec describes it.
        broken: keys of the lists that have items which could not be read: what is missing in them may be one of those.
    """

    def __init__(self, raw: dict[str, Any], metadata_location: str) -> None:
        """Raises `UnsupportedError` where the format version is newer than those that are known."""
        self._raw = raw
        self.metadata_location = metadata_location
        self.found: list[DocumentFault] = []
        self.broken: set[str] = set()
        version = self._whole("format-version", _INT_BITS)
        if version is not None and version > SUPPORTED_FORMAT_VERSION:
            newest = f"{SUPPORTED_FORMAT_VERSION}, the newest that is known"
            raise UnsupportedError(f"format version {version} is newer than {newest}")
        if version is not None and version < 1:
            self._wrong(f"format-version is {version}; the spec knows 1 and above")
        self.version = version or 0
        if self.version < 1:
            return
        is_later = self.version > 1
        self.table_uuid = self._text("table-uuid", required=is_later)
        self.location = self._text("location")
        self.last_sequence_number = self._whole("last-sequence-number", least=0) if is_later else None
        self.last_updated_ms = self._whole("last-updated-ms")
        self.last_column_id = self._whole("last-column-id", _INT_BITS)
        self.schemas, self.current_schema_id = self._schemas()
        self.partition_specs, self.default_spec_id = self._specs()
        self.last_partition_id = self._whole("last-partition-id", _INT_BITS, required=is_later)
        self.sort_orders, self.default_sort_order_id = self._sort_orders()
        self.properties = self._properties()
        current_snapshot_id = self._whole("current-snapshot-id", required=False)
        # Java writes -1 for none.
        self.current_snapshot_id = None if current_snapshot_id == -1 else current_snapshot_id
        self.snapshots = self._views("snapshots", Snapshot)
        self.snapshot_log = self._views("snapshot-log", SnapshotLogEntry)
        self.metadata_log = self._views("metadata-log", MetadataLogEntry)
        self.refs = self._refs()
        self.statistics = self._statistics()
        self.partition_statistics = self._views("partition-statistics", PartitionStatisticsFile)
        self.next_row_id = self._whole("next-row-id", required=self.version >= 3, least=0)
        self.encryption_keys = self._views("encryption-keys", EncryptionKey)
        self.schema_ids = {schema.schema_id for schema in self.schemas}
        self.schema = next((one for one in self.schemas if one.schema_id == self.current_schema_id), None)
        # Of two with the same id the last one counts.
        self.snapshots_by_id = {snapshot.snapshot_id: snapshot for snapshot in self.snapshots}

    def _wrong(self, problem: str, where: str = "", *, broken: str | None = None) -> None:
        """Note what is not of the form that the spec describes; `broken` is the list that lacks an item by it."""
        self.found.append(DocumentFault(FaultId.UNREADABLE_METADATA, problem, where))
        if broken is not None:
            self.broken.add(broken)

    def _whole(
        self, key: str, bits: int = _LONG_BITS, *, required: bool = True, least: int | None = None
    ) -> int | None:
        found: int | None = self._value(key, partial(_number_problem, bits=bits, least=least), required=required)
        return found

    def _text(self, key: str, *, required: bool = True) -> str | None:
        def problem(value: Any) -> str | None:
            return None if isinstance(value, str) else "it must be text"

        found: str | None = self._value(key, problem, required=required)
        return found

    def _value(self, key: str, problem_of: Callable[[Any], str | None], *, required: bool) -> Any:
        value = self._raw.get(key)
        if value is None:
            if required:
                self._wrong(f"the required key {key!r} is missing")
        elif (problem := problem_of(value)) is not None:
            self._wrong(f"{key} is {_shown(value)}; {problem}")
            return None
        return value

    def _schemas(self) -> tuple[tuple[Schema, ...], int | None]:
        if self.version == 1 and self._raw.get("schemas") is None:
            found = self._one("schema", _schema)
            return ((), None) if found is None else ((found,), found.schema_id)
        return self._list("schemas", _schema, required=True), self._whole("current-schema-id", _INT_BITS)

    def _specs(self) -> tuple[tuple[PartitionSpec, ...], int | None]:
        if self.version == 1 and self._raw.get("partition-specs") is None:
            fields = self._one("partition-spec", partition_fields_from_json)
            return ((), None) if fields is None else ((PartitionSpec(spec_id=0, fields=fields),), 0)
        return self._list("partition-specs", spec_from_json, required=True), self._whole("default-spec-id", _INT_BITS)

    def _sort_orders(self) -> tuple[tuple[SortOrder, ...], int | None]:
        if self.version == 1 and self._raw.get("sort-orders") is None:
            return (UNSORTED,), UNSORTED.order_id
        orders = self._list("sort-orders", sort_order_from_json, required=True)
        return orders, self._whole("default-sort-order-id", _INT_BITS)

    def _properties(self) -> Mapping[str, str]:
        value = self._raw.get("properties")
        if value is None:
            return {}
        if not isinstance(value, dict):
            self._wrong(f"properties is {_shown(value)}; it must be an object of texts")
            return {}
        for name, item in value.items():
            if not isinstance(item, str):
                self._wrong(f"{name!r} in properties is {_shown(item)}; it must be text")
        return {name: item for name, item in value.items() if isinstance(item, str)}

    def _refs(self) -> Mapping[str, SnapshotRef]:
        value = self._raw.get("refs")
        if value is not None and not isinstance(value, dict):
            self._wrong(f"refs is {_shown(value)}; it must be an object", broken="refs")
            return {}
        read = {n: self._item("refs", f"ref {n!r}", ref, _viewed(SnapshotRef)) for n, ref in (value or {}).items()}
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
            self._wrong(missing if value is None else f"{key} is {_shown(value)}; it must be a list", broken=key)
            return ()
        items = (self._item(key, f"{key}[{position}]", item, read) for position, item in enumerate(value))
        return tuple(item for item in items if item is not None)

    def _one(self, key: str, read: Callable[[Any], T]) -> T | None:
        value = self._raw.get(key)
        if value is None:
            self._wrong(f"the required key {key!r} is missing", broken=f"{key}s")
            return None
        return self._item(f"{key}s", key, value, read)

    def _item(self, key: str, where: str, value: Any, read: Callable[[Any], T]) -> T | None:
        """An item of the list `key`; `where` names it, as its errors may not."""
        problem = _wrong_number(value)
        if problem is None:
            try:
                return read(value)
            except (InvalidTableError, UnsupportedError) as error:
                problem = error.message.removeprefix("it: ")
            except RecursionError:
                problem = "it is nested too deeply"
        self._wrong(problem, where, broken=key)
        return None


def _schema(value: Any) -> Schema:
    # We take a schema without its type; Java does not.
    if isinstance(value, dict) and "type" not in value:
        raise InvalidTableError("the required key 'type' is missing")
    return unvalidated_schema(value)


def _viewed(cls: type[V]) -> Callable[[Any], V]:
    return lambda value: object_from_json(cls, value, "it")


def _wrong_number(value: Any) -> str | None:
    """The first whole number directly in an object that no engine can read, and why."""
    for name, item in value.items() if isinstance(value, dict) else ():
        if type(item) is int:
            problem = _number_problem(item, _LONG_BITS, 0 if name in _FROM_ZERO else None)
            if problem is not None:
                return f"{name} is {item}; {problem}"
    return None


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
