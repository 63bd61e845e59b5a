"""Iceberg's REST protocol as far as it is spoken here: the requests, what refusals of them mean, and the answers.

Requirements and updates are sent as the protocol's "CommitTableRequest".
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any

import msgspec

from icekeep.catalog.base import Identifier
from icekeep.catalog.clients.errors import (
    CommitRefused,
    NamespaceExists,
    NamespaceNotEmpty,
    NoSuchNamespace,
    NoSuchTable,
    Refusal,
    TableExists,
)
from icekeep.decoding import from_plain
from icekeep.errors import UnsupportedError
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.partitioning import PartitionSpec, spec_to_json
from icekeep.spec.schema import Schema, schema_to_json
from icekeep.spec.snapshots import JsonObject, object_to_json
from icekeep.spec.sorting import SortOrder, sort_order_to_json
from icekeep.spec.updates import (
    LAST_ADDED,
    AddPartitionSpec,
    AddSchema,
    AddSortOrder,
    AssertRefSnapshotId,
    AssignUuid,
    RaiseCounters,
    Requirement,
    RestoreSnapshots,
    SetCurrentSchema,
    SetDefaultSortOrder,
    SetDefaultSpec,
    SetLocation,
    SetProperties,
    SetSnapshotRef,
    Update,
    UpgradeFormatVersion,
)


class Endpoint(msgspec.Struct, frozen=True):
    """One kind of request; its text is how a server's list of endpoints names it.

    `refusals` are what statuses mean; `is_newer` says that only a server which lists it has it; `root` is before the version,
    of what is not Iceberg's.
    """

    method: str
    path: str
    refusals: Mapping[int, type[Refusal]] = {}
    is_newer: bool = False
    root: str = ""

    def __str__(self) -> str:
        return f"{self.method} /{self.root}v1/{{prefix}}/{self.path}"


_NAMESPACE = "namespaces/{namespace}"
_TABLES = f"{_NAMESPACE}/tables"
_TABLE = f"{_TABLES}/{{table}}"

LIST_NAMESPACES = Endpoint("GET", "namespaces", {404: NoSuchNamespace})
CREATE_NAMESPACE = Endpoint("POST", "namespaces", {409: NamespaceExists})
LOAD_NAMESPACE = Endpoint("GET", _NAMESPACE, {404: NoSuchNamespace})
DROP_NAMESPACE = Endpoint("DELETE", _NAMESPACE, {404: NoSuchNamespace, 409: NamespaceNotEmpty})
LIST_TABLES = Endpoint("GET", _TABLES, {404: NoSuchNamespace})
CREATE_TABLE = Endpoint("POST", _TABLES, {404: NoSuchNamespace, 409: TableExists})
LOAD_TABLE = Endpoint("GET", _TABLE, {404: NoSuchTable})
UPDATE_TABLE = Endpoint("POST", _TABLE, {409: CommitRefused})
DROP_TABLE = Endpoint("DELETE", _TABLE, {404: NoSuchTable})
LOAD_CREDENTIALS = Endpoint("GET", f"{_TABLE}/credentials", {404: NoSuchTable}, is_newer=True)
UNREGISTER_TABLE = Endpoint("POST", f"{_TABLE}/unregister", {404: NoSuchTable}, is_newer=True)
REGISTER_TABLE = Endpoint("POST", f"{_NAMESPACE}/register", {404: NoSuchNamespace, 409: TableExists})
RENAME_TABLE = Endpoint("POST", "tables/rename", {404: NoSuchTable, 409: TableExists})

APPLICABLE_POLICIES = Endpoint("GET", "applicable-policies", {404: NoSuchTable}, is_newer=True, root="polaris/")
"""Of Polaris: its stored policies that hold for a table."""


ASSERT_CREATE: Mapping[str, Any] = {"type": "assert-create"}
"""The requirement that a table does not exist yet."""


def commit_request(
    identifier: Identifier, requirements: Sequence[Mapping[str, Any]], updates: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """A commit to a table; all requirements are in it, also several of one type."""
    name = {"namespace": list(identifier[:-1]), "name": identifier[-1]}
    return {"identifier": name, "requirements": list(requirements), "updates": list(updates)}


def requirement_to_json(requirement: Requirement) -> dict[str, Any]:
    if isinstance(requirement, AssertRefSnapshotId):
        # Null says that there must be no such reference, and the protocol wants it said.
        return {"type": "assert-ref-snapshot-id", "ref": requirement.ref, "snapshot-id": requirement.snapshot_id}
    return _to_json(requirement, "type")


def updates_to_json(base: TableMetadata | None, updates: Sequence[Update]) -> list[dict[str, Any]]:
    """Updates as the protocol has them; `base` is what they were made for, null for a new table.

    Raises:
        UnsupportedError: the protocol has no such update.
    """
    return [_update_to_json(base, update) for update in updates]


def creation_updates(metadata: TableMetadata) -> list[Update]:
    """The updates that make an empty table with this metadata out of nothing."""
    updates: list[Update] = [AssignUuid(metadata.table_uuid)] if metadata.table_uuid is not None else []
    updates += [
        UpgradeFormatVersion(metadata.format_version),
        AddSchema(metadata.schema, metadata.last_column_id),
        SetCurrentSchema(LAST_ADDED),
        AddPartitionSpec(metadata.spec),
        SetDefaultSpec(LAST_ADDED),
        AddSortOrder(metadata.sort_order),
        SetDefaultSortOrder(LAST_ADDED),
        SetLocation(metadata.location),
        SetProperties(dict(metadata.properties)),
    ]
    return updates


def _update_to_json(base: TableMetadata | None, update: Update) -> dict[str, Any]:
    match update:
        case SetSnapshotRef():
            return {"action": "set-snapshot-ref", "ref-name": update.ref_name, **object_to_json(update.ref)}
        case AddSchema():
            # Deprecated, since servers work it out; but Nessie 0.99 takes no schema without it.
            highest = max(update.schema.highest_field_id, base.last_column_id if base is not None else 0)
            counted = update.last_column_id if update.last_column_id is not None else highest
            return _to_json(msgspec.structs.replace(update, last_column_id=counted), "action")
        case RestoreSnapshots():
            raise UnsupportedError(
                "snapshots cannot be restored through a REST catalog: a server refuses their old sequence numbers"
            )
        case RaiseCounters():
            raise UnsupportedError(
                "counters of ids cannot be raised through a REST catalog: a server works them out by itself"
            )
    out = _to_json(update, "action")
    snapshot = out.get("snapshot")
    if isinstance(snapshot, dict) and base is not None and base.format_version == 1:
        snapshot.pop("sequence-number", None)
    return out


def _to_json(value: msgspec.Struct, tag_field: str) -> dict[str, Any]:
    out: dict[str, Any] = {tag_field: type(value).__struct_config__.tag}
    for name in value.__struct_fields__:
        item = _item_to_json(getattr(value, name))
        if item is not None:
            out[name.replace("_", "-")] = item
    if "statistics" in out:
        # Older servers want the id beside the file that holds it.
        out["snapshot-id"] = out["statistics"]["snapshot-id"]
    return out


def _item_to_json(item: Any) -> Any:
    match item:
        case Schema():
            return schema_to_json(item)
        case PartitionSpec():
            return spec_to_json(item)
        case SortOrder():
            return sort_order_to_json(item)
        case JsonObject():
            return object_to_json(item)
        case tuple():
            return list(item)
        case Mapping():
            return dict(item)
    return item


class ResponseBody(msgspec.Struct, rename="kebab"):
    """What is read of a JSON object; all else in it is passed over."""


class ConfigResponse(ResponseBody):
    """What a server wants its clients to know."""

    defaults: dict[str, Any] | None = None
    overrides: dict[str, Any] | None = None
    endpoints: list[str] | None = None
    idempotency_key_lifetime: Any = None

    @property
    def key_lifetime_ms(self) -> int | None:
        """For how long a request may be sent again with its key; `None` where the server serves no keys.

        >>> [ConfigResponse(idempotency_key_lifetime=text).key_lifetime_ms for text in ("PT30M", "soon")]
        [1800000, None]
        """
        try:
            lifetime = from_plain(self.idempotency_key_lifetime, timedelta)
        except msgspec.ValidationError:
            return None
        return int(lifetime.total_seconds() * 1000)


class StorageCredential(ResponseBody):
    """What the files below a prefix are reached with."""

    prefix: str
    config: dict[str, Any]


class Credentials(ResponseBody):
    """What a table's files are reached with."""

    storage_credentials: list[StorageCredential]


class Loaded(ResponseBody):
    """A table, its metadata aside."""

    metadata_location: str | None = None
    config: dict[str, Any] | None = None
    storage_credentials: list[StorageCredential] | None = None
    read_restrictions: Any = None


class Described(ResponseBody):
    """A table, with metadata that may make no sense."""

    metadata: Any = None
    metadata_location: Any = None


class Landed(ResponseBody):
    """A table after a commit, or when it was unregistered."""

    metadata_location: str


class TableLocation(ResponseBody):
    location: str


class Staged(ResponseBody):
    """A table that was prepared and is not there."""

    metadata: TableLocation


class Namespace(ResponseBody):
    properties: dict[str, Any] | None = None


class ListPage(ResponseBody, kw_only=True):
    next_page_token: str | None = None


class Namespaces(ListPage):
    namespaces: list[tuple[str, ...]]


class TableName(ResponseBody):
    namespace: tuple[str, ...]
    name: str


class TableNames(ListPage):
    identifiers: list[TableName]


class ApplicablePolicy(ResponseBody):
    """A stored policy; its content is a text, or the JSON that the text would be."""

    policy_type: str
    name: str
    content: str | dict[str, Any] | None = None
    inherited: bool = False

    @property
    def content_text(self) -> str | None:
        return msgspec.json.encode(self.content).decode() if isinstance(self.content, dict) else self.content


class ApplicablePolicies(ListPage):
    applicable_policies: list[ApplicablePolicy]


def texts(given: Mapping[str, Any] | None) -> dict[str, str]:
    """Properties as text; what is neither a text nor a number nor a switch is passed over."""
    return {
        key: str(value).lower() if isinstance(value, bool) else str(value)
        for key, value in (given or {}).items()
        if isinstance(value, str | int | float)
    }


def restrictions(read_restrictions: Any) -> list[str]:
    """What an answer restricts of reads, by the names of the protocol; what this client does not know restricts, too.

    >>> restrictions({"required-row-filter": True, "required-column-projections": []}), restrictions({"later": "x"})
    ([], ['later'])
    """
    if not isinstance(read_restrictions, dict):
        return [] if read_restrictions is None else ["read-restrictions"]
    return [name for name, value in read_restrictions.items() if not _is_no_restriction(name, value)]


def _is_no_restriction(name: str, value: Any) -> bool:
    """Whether a part of the restrictions lets everything through: it is empty, or a filter that is always true."""
    is_true = value is True or value == {"type": "true"}
    return value is None or value == [] or value == {} or (name == "required-row-filter" and is_true)


def chosen(credentials: Iterable[StorageCredential] | None, location: str | None) -> dict[str, str]:
    """The credentials for a location: those of the longest prefix."""
    fitting = [one for one in credentials or () if location is not None and location.startswith(one.prefix)]
    return texts(max(fitting, key=lambda one: len(one.prefix)).config) if fitting else {}
