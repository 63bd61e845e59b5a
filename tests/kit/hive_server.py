"""A Hive metastore on this machine: its thrift protocol over a socket, over entries in memory.

Only what a catalog of Iceberg tables asks for, of two releases: 4.0.1, which compares pointers and has no `get_table` any more,
which PyIceberg calls, and older ones (`compares` is false). Locks are real: one holder a table, others wait. `fail` names a call
that fails once, before or after it took effect, or is kept back (`late`). It may ask for tickets of `fake_puresasl`.
"""

import copy
import itertools
import re
import socket
import threading
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from struct import pack, unpack
from typing import Any

from hive_metastore import ThriftHiveMetastore
from hive_metastore.ttypes import (
    AlreadyExistsException,
    GetTableResult,
    GetTablesResult,
    InvalidObjectException,
    InvalidOperationException,
    LockResponse,
    LockState,
    MetaException,
    NoSuchLockException,
    NoSuchObjectException,
    ShowLocksResponse,
    ShowLocksResponseElement,
)
from thrift.protocol import TBinaryProtocol
from thrift.Thrift import TApplicationException
from thrift.transport import TSocket, TTransport
from thrift.transport.TTransport import TTransportBase

from icekeep.runtime import SYSTEM

_START, _OK, _BAD, _COMPLETE = 1, 2, 3, 5


class SaslServerTransport(TTransportBase):
    """Lets in who has a ticket for `service`, and then reads and writes what is sealed."""

    def __init__(self, wire: Any, service: str) -> None:
        self._wire = wire
        self._read = BytesIO()
        self._written = BytesIO()
        assert self._received() == (_START, b"GSSAPI")
        status, ticket = self._received()
        if (status, ticket) != (_OK, service.encode()):
            self._say(_BAD, b"no ticket for this service")
            return
        self._say(_OK, b"who are you")
        assert self._received() == (_OK, b"thanks")
        self._say(_COMPLETE, b"")

    def read(self, size: int) -> bytes:
        found = self._read.read(size)
        if not found:
            (length,) = unpack("!i", self._wire.readAll(4))
            self._read = BytesIO(self._wire.readAll(length).removeprefix(b"sealed"))
            found = self._read.read(size)
        return found

    def write(self, data: bytes) -> None:
        self._written.write(data)

    def flush(self) -> None:
        sealed = b"sealed" + self._written.getvalue()
        self._written = BytesIO()
        self._wire.write(pack("!i", len(sealed)) + sealed)
        self._wire.flush()

    def _received(self) -> tuple[int, bytes]:
        status, length = unpack(">BI", self._wire.readAll(5))
        return status, self._wire.readAll(length) if length else b""

    def _say(self, status: int, body: bytes) -> None:
        self._wire.write(pack(">BI", status, len(body)) + body)
        self._wire.flush()


class HiveServer:
    """Ends with `close`; `service` is whom tickets must be for, if clients need any."""

    def __init__(self, service: str | None = None) -> None:
        self.service = service
        self.users: list[tuple[str, list[str]]] = []
        self.databases: dict[str, Any] = {}
        self.tables: dict[tuple[str, str], Any] = {}
        self.locks: dict[tuple[str, str], list[int]] = {}
        self.agents: dict[int, str] = {}
        self.calls: list[str] = []
        self.fail: tuple[str, str] | None = None
        self.before_alter: Any = None
        self.before_lock: Any = None
        self.is_derby = False
        self.compares = True
        self.version = "3.0"
        self.late: Any = None
        self.lock_guard = threading.RLock()
        self._ids = itertools.count(1)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        with suppress(OSError):
            # Closing alone does not end an accept that waits.
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        wire = TSocket.TSocket()
        wire.setHandle(connection)
        processor = ThriftHiveMetastore.Processor(_Handler(self, connection))
        with suppress(TTransport.TTransportException, OSError, ConnectionError):
            buffered = TTransport.TBufferedTransport(wire)
            transport = buffered if self.service is None else SaslServerTransport(buffered, self.service)
            protocol = TBinaryProtocol.TBinaryProtocol(transport)
            while True:
                processor.process(protocol, protocol)


class _Handler:
    """One connection's calls; all others raise as a metastore does that does not know them."""

    def __init__(self, owner: HiveServer, connection: socket.socket) -> None:
        self._owner = owner
        self._connection = connection

    def __getattribute__(self, name: str) -> Any:
        found = object.__getattribute__(self, name)
        return found if name.startswith("_") else object.__getattribute__(self, "_failing")(name, found)

    def _failing(self, name: str, call: Any) -> Any:
        owner = self._owner

        def guarded(*arguments: Any, **named: Any) -> Any:
            owner.calls.append(name)
            how = owner.fail[1] if owner.fail is not None and owner.fail[0] == name else ""
            if how:
                owner.fail = None
            if how == "before":
                raise MetaException("it did not work")
            if how == "late":
                # Kept back until somebody calls it; the client hears nothing.
                owner.late = lambda: call(*arguments, **named)
                self._connection.shutdown(socket.SHUT_RDWR)
                self._connection.close()
                return None
            if how == "slow":
                SYSTEM.sleep_ms(900)
            if name == "lock" and owner.before_lock is not None:
                owner.before_lock()
            with owner.lock_guard:
                answer = call(*arguments, **named)
            if how == "after":
                raise MetaException("it did not work")
            if how == "cut":
                self._connection.shutdown(socket.SHUT_RDWR)
                self._connection.close()
            return answer

        return guarded

    def set_ugi(self, user_name: str, group_names: list[str]) -> list[str]:
        self._owner.users.append((user_name, group_names))
        return group_names

    def getVersion(self) -> str:
        return "4.0.1" if self._owner.compares else self._owner.version

    def create_database(self, database: Any) -> None:
        _check_name(database.name)
        if database.name in self._owner.databases:
            raise AlreadyExistsException("exists")
        self._owner.databases[database.name] = database

    def get_database(self, name: str) -> Any:
        if name not in self._owner.databases:
            raise NoSuchObjectException(name)
        return self._owner.databases[name]

    def get_all_databases(self) -> list[str]:
        return list(self._owner.databases)

    def drop_database(self, name: str, deleteData: bool, cascade: bool) -> None:
        self.get_database(name)
        if any(database == name for database, _ in self._owner.tables):
            raise InvalidOperationException("not empty")
        del self._owner.databases[name]

    def get_all_tables(self, db_name: str) -> list[str]:
        return [table for database, table in self._owner.tables if database == db_name]

    def get_table_objects_by_name_req(self, req: Any) -> GetTablesResult:
        return GetTablesResult([self._table(req.dbName, name) for name in req.tblNames])

    def get_table_req(self, req: Any) -> GetTableResult:
        return GetTableResult(self._table(req.dbName, req.tblName))

    def get_table(self, dbname: str, tbl_name: str) -> Any:
        if self._owner.compares:
            raise TApplicationException(TApplicationException.UNKNOWN_METHOD, "Invalid method name: 'get_table'")
        return self._table(dbname, tbl_name)

    def _table(self, database: str, name: str) -> Any:
        if (database, name) not in self._owner.tables:
            raise NoSuchObjectException(f"{database}.{name}")
        return copy.deepcopy(self._owner.tables[(database, name)])

    def create_table(self, tbl: Any) -> None:
        _check_name(tbl.tableName)
        self.get_database(tbl.dbName)
        if (tbl.dbName, tbl.tableName) in self._owner.tables:
            raise AlreadyExistsException("exists")
        self._owner.tables[(tbl.dbName, tbl.tableName)] = tbl

    def drop_table(self, dbname: str, name: str, deleteData: bool) -> None:
        self._table(dbname, name)
        assert not deleteData
        del self._owner.tables[(dbname, name)]

    def alter_table_with_environment_context(
        self, dbname: str, tbl_name: str, new_tbl: Any, environment_context: Any
    ) -> None:
        if self._owner.before_alter is not None:
            act, self._owner.before_alter = self._owner.before_alter, None
            act()
        current = self._table(dbname, tbl_name)
        key = environment_context.properties.get("expected_parameter_key")
        expected = environment_context.properties.get("expected_parameter_value")
        if self._owner.compares and self._owner.is_derby and key is not None:
            raise MetaException(
                "JDODataStoreException: Error executing SQL query\nRoot cause: ERROR 42818: Comparisons"
            )
        if self._owner.compares and key is not None and current.parameters.get(key) != expected:
            raise MetaException(f"The table has been modified. The parameter value for key {key!r} is another")
        if new_tbl.dbName not in self._owner.databases:
            raise InvalidOperationException("no such database")
        del self._owner.tables[(dbname, tbl_name)]
        self._owner.tables[(new_tbl.dbName, new_tbl.tableName)] = new_tbl

    def lock(self, rqst: Any) -> LockResponse:
        (component,) = rqst.component
        queue = self._owner.locks.setdefault((component.dbname, component.tablename), [])
        queue.append(next(self._owner._ids))
        self._owner.agents[queue[-1]] = rqst.agentInfo
        return LockResponse(queue[-1], LockState.ACQUIRED if len(queue) == 1 else LockState.WAITING)

    def check_lock(self, rqst: Any) -> LockResponse:
        if not any(rqst.lockid in queue for queue in self._owner.locks.values()):
            raise NoSuchLockException(f"No such lock lockid:{rqst.lockid}")
        is_held = any(queue[:1] == [rqst.lockid] for queue in self._owner.locks.values())
        return LockResponse(rqst.lockid, LockState.ACQUIRED if is_held else LockState.WAITING)

    def show_locks(self, rqst: Any) -> ShowLocksResponse:
        queue = self._owner.locks.get((rqst.dbname, rqst.tablename), ())
        return ShowLocksResponse(
            [ShowLocksResponseElement(lockid=number, agentInfo=self._owner.agents[number]) for number in queue]
        )

    def unlock(self, rqst: Any) -> None:
        for queue in self._owner.locks.values():
            if rqst.lockid in queue:
                queue.remove(rqst.lockid)


def _check_name(name: str) -> None:
    if not re.fullmatch("[A-Za-z0-9_]+", name):
        raise InvalidObjectException(f"{name} is not a valid object name")


def hive_properties(metastore: HiveServer, directory: Path, **more: str) -> dict[str, str]:
    """What a catalog in the metastore is opened with; its tables lie below a directory, and it waits for no lock long."""
    return {
        "type": "hive",
        "uri": f"thrift://127.0.0.1:{metastore.port}",
        "warehouse": (directory / "warehouse").as_uri(),
        "lock-check-min-wait-time": "0.01",
        "lock-check-max-wait-time": "0.02",
        "lock-check-retries": "100",
        **more,
    }
