"""A Hive metastore's lock on a table, which writers of Iceberg tables hold while they move its pointer."""

import getpass
import os
import socket
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from typing import Any

import msgspec
from thrift.Thrift import TException
from thrift.transport.TTransport import TTransportException

from icekeep.catalog.base import Identifier, format_identifier
from icekeep.catalog.clients import hive_thrift as hive
from icekeep.catalog.clients.refusals import CommitRefused
from icekeep.catalog.clients.settings import Settings
from icekeep.runtime import Runtime

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
