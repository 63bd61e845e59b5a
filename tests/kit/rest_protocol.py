"""What a server of Iceberg's REST protocol says of itself, and of a table that is not there yet."""

from typing import Any

from icekeep.runtime import SYSTEM

_ROOT = "/v1/{prefix}"
_NAMESPACE = f"{_ROOT}/namespaces/{{namespace}}"
_TABLE = f"{_NAMESPACE}/tables/{{table}}"
ENDPOINTS = (
    *(f"{method} {_ROOT}/namespaces" for method in ("GET", "POST")),
    *(f"{method} {_NAMESPACE}" for method in ("GET", "DELETE")),
    *(f"{method} {_NAMESPACE}/tables" for method in ("GET", "POST")),
    *(f"{method} {_TABLE}" for method in ("GET", "POST", "DELETE")),
    f"POST {_ROOT}/tables/rename",
    f"POST {_NAMESPACE}/register",
)
"""As the protocol names the requests that this server knows, but for `CREDENTIALS` and `UNREGISTER`."""

POLICIES = "GET /polaris/v1/{prefix}/applicable-policies"
"""Of Polaris, beside the protocol."""

CREDENTIALS = f"GET {_TABLE}/credentials"
UNREGISTER = f"POST {_TABLE}/unregister"


def empty_metadata(location: str, body: Any) -> Any:
    """The metadata of a table that was asked for by `body`."""
    return {
        "format-version": 2,
        "table-uuid": str(SYSTEM.new_uuid()),
        "location": location,
        "last-sequence-number": 0,
        "last-updated-ms": 0,
        "last-column-id": 0,
        "schemas": [body["schema"]],
        "current-schema-id": 0,
        "partition-specs": [{"spec-id": 0, "fields": []}],
        "default-spec-id": 0,
        "last-partition-id": 999,
        "sort-orders": [{"order-id": 0, "fields": []}],
        "default-sort-order-id": 0,
        "properties": {},
        "snapshots": [],
    }
