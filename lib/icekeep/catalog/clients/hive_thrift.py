"""The classes of a Hive metastore's thrift interface, as PyIceberg installs them: all that is taken from it.

They are generated from Hive's own definition, lie in a package of PyIceberg's beside its own, and no release promises
them. Nothing else of ours imports that package or PyIceberg; a test names the release in which one of them is missing.
"""

from hive_metastore.ThriftHiveMetastore import Client
from hive_metastore.ttypes import (
    AlreadyExistsException,
    CheckLockRequest,
    ClientCapabilities,
    ClientCapability,
    Database,
    EnvironmentContext,
    FieldSchema,
    GetTableRequest,
    GetTablesRequest,
    InvalidObjectException,
    InvalidOperationException,
    LockComponent,
    LockLevel,
    LockRequest,
    LockState,
    LockType,
    MetaException,
    NoSuchLockException,
    NoSuchObjectException,
    SerDeInfo,
    ShowLocksRequest,
    StorageDescriptor,
    Table,
    UnlockRequest,
)

__all__ = [
    "AlreadyExistsException",
    "CheckLockRequest",
    "Client",
    "ClientCapabilities",
    "ClientCapability",
    "Database",
    "EnvironmentContext",
    "FieldSchema",
    "GetTableRequest",
    "GetTablesRequest",
    "InvalidObjectException",
    "InvalidOperationException",
    "LockComponent",
    "LockLevel",
    "LockRequest",
    "LockState",
    "LockType",
    "MetaException",
    "NoSuchLockException",
    "NoSuchObjectException",
    "SerDeInfo",
    "ShowLocksRequest",
    "StorageDescriptor",
    "Table",
    "UnlockRequest",
]
