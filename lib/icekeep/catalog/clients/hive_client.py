"""A Hive metastore by its thrift interface: tables and databases as entries, and a pointer that moves under a lock.

The lock is the one that writers of Iceberg tables hold while they move a table's pointer. Properties are PyIceberg's.
Each operation has a connection of its own. Imported only when such a catalog is used, since thrift is an optional
extra.
"""

import getpass
import os
import re
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any
from urllib.parse import urlsplit

import msgspec
from thrift.protocol.TBinaryProtocol import TBinaryProtocol
from thrift.Thrift import TException
from thrift.transport.TSocket import TSocket
from thrift.transport.TTransport import TBufferedTransport, TSaslClientTransport, TTransportException

from icekeep.catalog.base import Description, Identifier, format_identifier
from icekeep.catalog.clients import hive_thrift as hive
from icekeep.catalog.clients.adapter import HIVE_TIMEOUT
from icekeep.catalog.clients.entries import (
    COLUMN_TYPES,
    EXTERNAL_TABLE,
    POINTER,
    EntryPointer,
    PointerChange,
    column_type,
    is_iceberg,
    pointers_of,
)
from icekeep.catalog.clients.errors import (
    KERBEROS,
    CommitRefused,
    NamespaceExists,
    NamespaceNotEmpty,
    NoSuchNamespace,
    NoSuchTable,
    Settings,
    TableExists,
)
from icekeep.errors import ConfigError, IcekeepBug, PropertyError, UnavailableError, UnsupportedError, UsageError
from icekeep.runtime import Runtime
from icekeep.secrets import masked, server_address, without_login, without_secrets
from icekeep.spec.metadata import TableMetadata
from icekeep.spec.properties import is_true
from icekeep.spec.types import PrimitiveType
from icekeep.storage.ranges import FirstAnswer, first_answer_ms

_SURE_MS = 10_000
"""How old the last answer about a lock may be where something is changed under it; metastores forget a lock after minutes."""

_LOOK_MAX_MS = 1_000
"""The longest pause between two looks at a lock that is waited for: it may be ours by then, and keeps all others waiting."""


class _LockLost(CommitRefused):
    """A lock that was granted has run out; nothing was changed."""


class _Lock(msgspec.Struct):
    """A lock that was granted, and when the metastore last said so, by the monotonic clock."""

    id: int
    seen_ms: int


class HiveLocks:
    """Takes locks for one thread, and waits for them as long as PyIceberg does by its properties `lock-check-*`, in seconds."""

    def __init__(self, settings: Settings, runtime: Runtime) -> None:
        self._runtime = runtime
        self._min_wait_ms = settings.seconds_in_ms("lock-check-min-wait-time", 100)
        self._max_wait_ms = settings.seconds_in_ms("lock-check-max-wait-time", 60_000)
        waits_count = settings.count("lock-check-retries", 4)
        self._patience_ms = sum(
            min(max(1000 * 2**number, self._min_wait_ms), self._max_wait_ms) for number in range(1, waits_count)
        )
        self._held: dict[Identifier, _Lock] = {}
        self._agent = f"icekeep {runtime.new_uuid()}"
        self._unanswered = set[Identifier]()

    def run_locked(self, metastore: Any, identifier: Identifier, look: Callable[[], Callable[[], None]]) -> None:
        """Look at a table and change it while its lock is held; raises `CommitRefused` if the lock is not granted in time.

        `look` returns what makes the change. An error of its own, or an interrupt, is not replaced by that of an unlock that
        fails too: a lock that nobody drops runs out.
        """
        held = self._held.get(identifier)
        if held is not None:
            try:
                self._change(metastore, identifier, held, look)
            except _LockLost:
                # The metastore was away for minutes, perhaps with an answer that was waited for.
                del self._held[identifier]
                _release(metastore, held.id)
            else:
                return
        lock = self._taken(metastore, identifier)
        try:
            self._change(metastore, identifier, lock, look)
        finally:
            _release(metastore, lock.id)

    def held(self, connect: Callable[[], AbstractContextManager[Any]], identifier: Identifier) -> "_Holding":
        """A context in which a table's lock is held, for what is changed and for what is read before.

        Where the lock is not granted in time it is not held, and each change asks for it again.
        """
        return _Holding(self, connect, identifier)

    def _change(
        self, metastore: Any, identifier: Identifier, lock: _Lock, look: Callable[[], Callable[[], None]]
    ) -> None:
        change = look()
        now_ms = self._runtime.monotonic_ms()
        if now_ms - lock.seen_ms > _SURE_MS:
            # What was seen may not hold any more if the lock ran out meanwhile; asking keeps it, too.
            _check_kept(metastore, identifier, lock)
            lock.seen_ms = now_ms
        change()

    def _taken(self, metastore: Any, identifier: Identifier) -> _Lock:
        if identifier in self._unanswered:
            self._drop_unanswered(metastore, identifier)
        try:
            answer = metastore.lock(_request(identifier, self._agent))
        except BaseException:
            # It may be granted all the same, and would be in our own way until it runs out.
            self._unanswered.add(identifier)
            raise
        state, wait_ms, asked_ms = answer.state, self._min_wait_ms, self._runtime.monotonic_ms()
        try:
            while state == hive.LockState.WAITING and self._runtime.monotonic_ms() - asked_ms < self._patience_ms:
                self._runtime.sleep_ms(wait_ms)
                wait_ms = min(2 * wait_ms, max(_LOOK_MAX_MS, self._min_wait_ms), self._max_wait_ms)
                state = metastore.check_lock(hive.CheckLockRequest(lockid=answer.lockid)).state
            _check_granted(identifier, state)
        except BaseException:
            _release(metastore, answer.lockid)
            raise
        return _Lock(answer.lockid, self._runtime.monotonic_ms())

    def _drop_unanswered(self, metastore: Any, identifier: Identifier) -> None:
        """Give back what was asked for by requests whose answers were lost: the metastore knows whose they are."""
        database, name = identifier
        try:
            locks = metastore.show_locks(hive.ShowLocksRequest(dbname=database, tablename=name)).locks
        except TTransportException:
            raise
        except TException:
            # One that does not tell.
            locks = None
        for lock in locks or ():
            if lock.agentInfo == self._agent:
                _release(metastore, lock.lockid)
        self._unanswered.discard(identifier)


class _Holding:
    """A lock from the beginning of a block to its end; no generator, since thrift's exceptions cannot be raised on by one."""

    def __init__(
        self, locks: HiveLocks, connect: Callable[[], AbstractContextManager[Any]], identifier: Identifier
    ) -> None:
        self._locks, self._connect, self._identifier = locks, connect, identifier

    def __enter__(self) -> None:
        try:
            with suppress(CommitRefused), self._connect() as metastore:
                self._locks._held[self._identifier] = self._locks._taken(metastore, self._identifier)
        except BaseException:
            # Granted, and then the connection could not be ended: nobody else would give the lock back.
            self.__exit__()
            raise

    def __exit__(self, *_: object) -> None:
        lock = self._locks._held.pop(self._identifier, None)
        if lock is not None:
            # Whatever is raised here would hide what became of the change: a ticket of Kerberos may have ended, too.
            with suppress(Exception), self._connect() as metastore:
                _release(metastore, lock.id)


def user_name() -> str:
    """Who runs this, for locks and owners; a container's user may have a number only."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


def _release(metastore: Any, lock_id: int) -> None:
    with suppress(TException, OSError):
        metastore.unlock(hive.UnlockRequest(lockid=lock_id))


def _check_granted(identifier: Identifier, state: int) -> None:
    if state != hive.LockState.ACQUIRED:
        name = hive.LockState._VALUES_TO_NAMES.get(state, state)
        raise CommitRefused(
            f"the lock of table {format_identifier(identifier)!r} is not to be had, its state is {name}"
        )


def _check_kept(metastore: Any, identifier: Identifier, lock: _Lock) -> None:
    """Raise `_LockLost` where the metastore has a lock no more that it has granted."""
    try:
        _check_granted(identifier, metastore.check_lock(hive.CheckLockRequest(lockid=lock.id)).state)
    except (CommitRefused, hive.NoSuchLockException) as error:
        raise _LockLost(f"the lock of table {format_identifier(identifier)!r} ran out while it was held") from error


def _request(identifier: Identifier, agent: str) -> Any:
    database, name = identifier
    component = hive.LockComponent(
        level=hive.LockLevel.TABLE,
        type=hive.LockType.EXCLUSIVE,
        dbname=database,
        tablename=name,
        isTransactional=True,
    )
    return hive.LockRequest(component=[component], user=user_name(), hostname=socket.gethostname(), agentInfo=agent)


_TIMEOUT_DEFAULT_MS = 300_000
_ENTRIES_IN_AN_ANSWER = 100
"""An entry holds the schema, tens of kilobytes of it, and an answer by Kerberos no more than 16 MB."""

_LOCK_ENABLED = "engine.hive.lock-enabled"
_VERSION = re.compile(r"(\d+)\.(\d+)\.(\d+).*")
_FIRST_COMPARING_HIVE = (4, 0, 1)
"""Version 4.0.0 compares, but over MySQL not in one step with the change (HIVE-28121)."""

_MODIFIED = "The table has been modified"
"""What a metastore says that compared the pointer and found another."""

_INCOMPARABLE = "ERROR 42818"
"""What Derby answers a metastore that has it compare the pointer, a CLOB there: the statement is never carried out."""

_REFUSED_LOGIN = "Bad SASL negotiation status"
_KDC_IS_AWAY = -1765328228
_EXTERNAL = {"EXTERNAL": "TRUE"}
_KEEP_STATISTICS = {"DO_NOT_UPDATE_STATS": "true"}
_TYPES = {**COLUMN_TYPES, "timestamptz": "timestamp with local time zone", "unknown": "void"}


class HiveClient:
    """A metastore, or several that stand for each other; the one that answered last is asked first."""

    def __init__(self, settings: Settings, runtime: Runtime) -> None:
        self._addresses = [address.strip() for address in (settings.text("uri") or "").split(",")]
        for address in self._addresses:
            parts = server_address(address, ("thrift",))
            if parts is None or parts.port is None:
                raise ConfigError(
                    f"catalogs.{settings.name}.uri",
                    f"has {masked('uri', address)!r}, which is no address of a metastore; give thrift://HOST:PORT (Hive's port "
                    "is 9083), and several with commas between",
                )
        self._timeout_ms = settings.count(HIVE_TIMEOUT, _TIMEOUT_DEFAULT_MS, 1)
        shown = ", ".join(map(without_login, self._addresses))
        self._first = FirstAnswer(shown, first_answer_ms(f"catalogs.{settings.name}", settings.properties))
        self._user = (settings.text("ugi") or "").split(":")
        self._has_kerberos = settings.switch(KERBEROS, default=False)
        self._service = settings.text("hive.kerberos-service-name") or "hive"
        is_old = settings.switch("hive.hive2-compatible", default=False)
        # Version 2 has no type for a moment.
        self._types = {**_TYPES, "timestamptz": "timestamp"} if is_old else _TYPES
        self._runtime = runtime
        self._locks = HiveLocks(settings, runtime)
        self._database_compares = True

    def pointer(self, identifier: Identifier) -> EntryPointer:
        with self._opened() as metastore:
            return pointers_of(_entry(metastore, identifier).parameters, identifier)

    def compares(self) -> bool:
        """Whether the metastore itself compares the pointer (HIVE-26882), as Hive does from 4.0.1 on; older ones do not tell."""
        with self._opened() as metastore:
            return self._compares(metastore)

    def locked(self, identifier: Identifier, properties: Mapping[str, str]) -> AbstractContextManager[None]:
        return self._locks.held(self._opened, identifier) if _takes_lock(properties) else nullcontext()

    def describe(self, identifier: Identifier) -> Description | None:
        """What the entry of a table says of where it lies, whatever its format."""
        with self._opened() as metastore:
            entry = _entry(metastore, identifier)
        location = getattr(entry.sd, "location", None)
        return Description(location, dict(entry.parameters or {})) if location else None

    def check(self, metadata: TableMetadata) -> None:
        self._stored(metadata)

    def move(self, change: PointerChange) -> None:
        """Move a table's pointer, or create the table, under the table's lock."""
        stored = self._stored(change.new)
        properties = (change.base or change.new).properties
        with self._opened() as metastore:

            def look() -> Callable[[], None]:
                entry = _entry_if_any(metastore, change.identifier)
                change.check_base(None if entry is None else entry.parameters or {})
                if entry is None:
                    return lambda: _create(metastore, change, stored, self._runtime.now_ms() // 1000)
                self._check_guarded(metastore, change.identifier, properties)
                return lambda: self._alter(metastore, change, stored, entry)

            self._run(metastore, change.identifier, properties, look)

    def _run(
        self,
        metastore: Any,
        identifier: Identifier,
        properties: Mapping[str, str],
        look: Callable[[], Callable[[], None]],
    ) -> None:
        """Look at a table and change it, under its lock unless its properties say that its writers take none."""

        def run() -> None:
            if _takes_lock(properties):
                self._locks.run_locked(metastore, identifier, look)
            else:
                look()()

        try:
            run()
        except _Incomparable:
            self._database_compares = False
            run()

    def drop_table(self, identifier: Identifier) -> None:
        database, name = identifier
        try:
            with self._opened() as metastore:
                metastore.drop_table(dbname=database, name=name, deleteData=False)
        except hive.NoSuchObjectException as error:
            raise NoSuchTable.of(identifier) from error

    def rename_table(self, old: Identifier, new: Identifier) -> None:
        """Give an entry another name, if that is free.

        The whole entry is sent, its pointer too: that must not undo what somebody commits meanwhile.
        """
        with self._opened() as metastore:
            properties = _entry(metastore, old).parameters or {}

            def look() -> Callable[[], None]:
                entry = _entry(metastore, old)
                if _entry_if_any(metastore, new) is not None:
                    raise TableExists.of(new)
                self._check_guarded(metastore, old, properties)
                return lambda: self._rename(metastore, entry, old, new)

            self._run(metastore, old, properties, look)

    def list_tables(self, namespace: Identifier) -> list[Identifier]:
        """The Iceberg tables of a database; none where there is no such database."""
        (database,) = namespace
        with self._opened() as metastore:
            names = metastore.get_all_tables(db_name=database)
            # Without this capability one insert-only table hides all tables of its database.
            knows = hive.ClientCapabilities(values=[hive.ClientCapability.INSERT_ONLY_TABLES])
            found: list[Identifier] = []
            for start in range(0, len(names), _ENTRIES_IN_AN_ANSWER):
                some = names[start : start + _ENTRIES_IN_AN_ANSWER]
                request = hive.GetTablesRequest(dbName=database, tblNames=some, capabilities=knows)
                entries = metastore.get_table_objects_by_name_req(request).tables
                found += [(database, entry.tableName) for entry in entries if is_iceberg(entry.parameters)]
        return found

    def list_namespaces(self, parent: Identifier) -> list[Identifier]:
        """The databases; there are none within one."""
        if parent:
            return []
        with self._opened() as metastore:
            return [(name,) for name in metastore.get_all_databases()]

    def namespace_properties(self, namespace: Identifier) -> dict[str, str]:
        (name,) = namespace
        try:
            with self._opened() as metastore:
                database = metastore.get_database(name=name)
        except hive.NoSuchObjectException as error:
            raise NoSuchNamespace.of(namespace) from error
        location = database.locationUri
        return {**(database.parameters or {}), **({"location": location} if location else {})}

    def create_namespace(self, namespace: Identifier, properties: Mapping[str, str]) -> None:
        """Create a database; `location` and `comment` go where Hive has them."""
        (name,) = namespace
        parameters = dict(properties)
        database = hive.Database(
            name=name,
            locationUri=parameters.pop("location", None),
            description=parameters.pop("comment", None),
            parameters=parameters,
        )
        try:
            with self._opened() as metastore:
                metastore.create_database(database)
        except hive.AlreadyExistsException as error:
            raise NamespaceExists.of(namespace) from error
        except hive.InvalidObjectException as error:
            raise _invalid(namespace, error) from error

    def drop_namespace(self, namespace: Identifier) -> None:
        (name,) = namespace
        try:
            with self._opened() as metastore:
                metastore.drop_database(name, deleteData=False, cascade=False)
        except hive.InvalidOperationException as error:
            raise NamespaceNotEmpty.of(namespace) from error
        except hive.NoSuchObjectException as error:
            raise NoSuchNamespace.of(namespace) from error

    def _alter(self, metastore: Any, change: PointerChange, stored: Any, entry: Any) -> None:
        """Change an entry, and have the metastore compare the pointer, if it is one that can (HIVE-26882).

        This is what stops a writer who takes no lock, and us where our lock ran out.
        """
        entry.parameters = {**change.parameters(entry.parameters or {}), **_EXTERNAL}
        if entry.sd is None:
            entry.sd = stored
        else:
            # The formats stay: with others than ours Hive reads the table itself.
            entry.sd.cols, entry.sd.location = stored.cols, stored.location
        change.was_sent = True
        try:
            self._send(metastore, change.identifier, entry, change.base_location)
        except _Incomparable:
            change.was_sent = False
            raise

    def _rename(self, metastore: Any, entry: Any, old: Identifier, new: Identifier) -> None:
        entry.dbName, entry.tableName = new
        try:
            self._send(metastore, old, entry, (entry.parameters or {}).get(POINTER))
        except hive.NoSuchObjectException as error:
            raise NoSuchTable.of(old) from error
        except hive.InvalidOperationException as error:
            raise NoSuchNamespace.of(new[:-1]) from error

    def _send(self, metastore: Any, identifier: Identifier, entry: Any, expected: str | None) -> None:
        """Replace a table's entry; raises `CommitRefused` where the metastore compares, and its pointer is not as expected."""
        database, name = identifier
        if expected is None or not self._database_compares:
            compared = {}
        else:
            compared = {"expected_parameter_key": POINTER, "expected_parameter_value": expected}
        try:
            metastore.alter_table_with_environment_context(
                dbname=database,
                tbl_name=name,
                new_tbl=entry,
                environment_context=hive.EnvironmentContext(properties={**_KEEP_STATISTICS, **compared}),
            )
        except hive.MetaException as error:
            if _MODIFIED in str(error):
                raise CommitRefused(str(error.message)) from error
            if compared and _INCOMPARABLE in str(error):
                raise _Incomparable(str(error.message)) from error
            raise

    def _check_guarded(self, metastore: Any, identifier: Identifier, properties: Mapping[str, str]) -> None:
        """Raise `PropertyError` for a table whose writers take no lock, where the metastore compares nothing."""
        if not _takes_lock(properties) and not self._compares(metastore):
            raise PropertyError(
                f"table {format_identifier(identifier)!r} has {_LOCK_ENABLED}={properties[_LOCK_ENABLED]}: its writers take no "
                "lock, and only a metastore of Hive 4.0.1 or later, over another database than Derby, keeps them apart without "
                "one; nothing was changed",
                property=_LOCK_ENABLED,
            )

    def _compares(self, metastore: Any) -> bool:
        if not self._database_compares:
            return False
        try:
            version = _VERSION.fullmatch(str(metastore.getVersion()))
        except TTransportException:
            raise
        except TException:
            # One that does not know the question.
            return False
        return version is not None and tuple(map(int, version.groups())) >= _FIRST_COMPARING_HIVE

    def _opened(self) -> "_Connection":
        return _Connection(self._first.ask(self._connected, lambda _: False), self._user, self._first)

    def _connected(self) -> Any:
        failed: Exception | None = None
        for address in self._addresses:
            server = urlsplit(address)
            wire = TSocket(server.hostname, server.port)
            wire.setTimeout(self._timeout_ms)
            try:
                if self._has_kerberos:
                    transport = TSaslClientTransport(wire, host=wire.host, service=self._service)
                else:
                    transport = TBufferedTransport(wire)
                transport.open()
            except TTransportException as error:
                wire.close()
                failed = _not_let_in(error, address)
                continue
            except Exception as error:
                wire.close()
                if not self._has_kerberos:
                    raise
                raise _not_let_in(error, address) from error
            self._addresses = [address, *(other for other in self._addresses if other != address)]
            return transport
        raise failed or IcekeepBug("a metastore has no address")

    def _stored(self, metadata: TableMetadata) -> Any:
        columns = [
            hive.FieldSchema(field.name, column_type(field.type, self._type_name), field.doc)
            for field in metadata.schema.fields
        ]
        return hive.StorageDescriptor(
            columns,
            metadata.location,
            "org.apache.hadoop.mapred.FileInputFormat",
            "org.apache.hadoop.mapred.FileOutputFormat",
            serdeInfo=hive.SerDeInfo(serializationLib="org.apache.hadoop.hive.serde2.lazy.LazySimpleSerDe"),
        )

    def _type_name(self, type_: PrimitiveType) -> str:
        if type_.name not in self._types:
            raise UnsupportedError(f"a Hive metastore has no column type for {str(type_)!r}")
        return self._types[type_.name]


def _not_let_in(error: Exception, address: str) -> Exception:
    """The error for one of a login by Kerberos; any other error as it is.

    The library raises its own type, with pairs of a text and a number; a metastore's answer is an error of Thrift.
    """
    reason, numbers = str(error), set[Any]()
    is_answer = isinstance(error, TTransportException)
    if is_answer and not reason.startswith(_REFUSED_LOGIN):
        return error
    if not is_answer:
        said = [part for part in error.args if isinstance(part, tuple) and len(part) == 2]
        reason = "; ".join(str(text) for text, _ in said) or reason or type(error).__name__
        numbers = {number for _, number in said}
    text = f"cannot log in to the metastore at {without_login(address)} by Kerberos: {without_secrets(reason)}"
    if _KDC_IS_AWAY in numbers:
        return UnavailableError(text)
    advice = "get a ticket (kinit), and compare hive.kerberos-service-name and the host in uri with the metastore's principal"
    return UsageError(f"{text}; {advice}")


class _Incomparable(Exception):
    """The metastore's database cannot compare the pointer; nothing was changed."""


class _Connection:
    """The metastore for one operation; no generator, since thrift's exceptions cannot be raised on by one."""

    def __init__(self, transport: Any, user: Sequence[str], first: FirstAnswer) -> None:
        self._transport = transport
        self._user = user
        self._first = first

    def __enter__(self) -> Any:
        metastore = self._first.asking(hive.Client(TBinaryProtocol(self._transport)))
        try:
            if self._user[0]:
                metastore.set_ugi(self._user[0], list(self._user[1:]))
        except BaseException as error:
            self.__exit__(type(error), error, None)
            raise
        return metastore

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        self._transport.close()
        # An answer that seems to be longer than any may be: so look what refuses a login without Kerberos, and the first bytes of
        # HTTP and of TLS.
        if isinstance(error, TTransportException) and error.type == TTransportException.SIZE_LIMIT:
            raise UsageError(
                f"what answers at uri speaks no plain Thrift ({error}): if it is a metastore that wants a login by Kerberos, set "
                f"{KERBEROS}=true; one that wants TLS or HTTP cannot be used; else check the port"
            ) from error


def _entry(metastore: Any, identifier: Identifier) -> Any:
    database, name = identifier
    try:
        # `get_table` is gone in Hive 4.0.1; this is there since 2.3.
        return metastore.get_table_req(hive.GetTableRequest(dbName=database, tblName=name)).table
    except hive.NoSuchObjectException as error:
        raise NoSuchTable.of(identifier) from error


def _entry_if_any(metastore: Any, identifier: Identifier) -> Any:
    try:
        return _entry(metastore, identifier)
    except NoSuchTable:
        return None


def _takes_lock(properties: Mapping[str, str]) -> bool:
    return is_true(properties, _LOCK_ENABLED, True)


def _create(metastore: Any, change: PointerChange, stored: Any, now_s: int) -> None:
    database, name = change.identifier
    entry = hive.Table(
        dbName=database,
        tableName=name,
        owner=change.new.properties.get("owner") or user_name(),
        createTime=now_s,
        lastAccessTime=now_s,
        sd=stored,
        tableType=EXTERNAL_TABLE,
        parameters={**change.parameters({}), **_EXTERNAL},
    )
    change.was_sent = True
    try:
        metastore.create_table(entry)
    except hive.AlreadyExistsException as error:
        raise TableExists.of(change.identifier) from error
    except hive.InvalidObjectException as error:
        change.was_sent = False
        raise _invalid(change.identifier, error) from error


def _invalid(name: Identifier, error: Any) -> UsageError:
    """The error for a name or a column that a metastore does not take; it looks at them before it does anything."""
    return UsageError(
        f"the metastore refuses {format_identifier(name)!r}: {error.message}; Hive's names have letters, digits and _"
    )
