"""A Hive metastore's lock on a table, which writers of Iceberg tables hold while they move its pointer."""

import getpass
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from thrift.Thrift import TException

from icekeep.catalog.base import Identifier, format_identifier
from icekeep.catalog.clients import hive_thrift as hive
from icekeep.catalog.clients.refusals import CommitRefused
from icekeep.catalog.clients.settings import Settings
from icekeep.runtime import Runtime

_SURE_MS = 10_000
"""How old the last word on a lock may be where something is changed under it; metastores forget a lock after minutes."""


class HiveLocks:
    """Takes locks, and waits for them as `lock-check-*` say, PyIceberg's properties in seconds."""

    def __init__(self, settings: Settings, runtime: Runtime) -> None:
        self._runtime = runtime
        self._min_wait_ms = settings.seconds_in_ms("lock-check-min-wait-time", 100)
        self._max_wait_ms = settings.seconds_in_ms("lock-check-max-wait-time", 60_000)
        self._looks_count = settings.count("lock-check-retries", 4)

    def run_locked(self, metastore: Any, identifier: Identifier, look: Callable[[], Callable[[], None]]) -> None:
        """Look at a table and change it while its lock is held; raises `CommitRefused` if the lock is not had in time.

        `look` returns what makes the change. An error of its own, or an interrupt, is not replaced by that of an unlock that
        fails too: a lock that nobody drops runs out.
        """
        lock = metastore.lock(_request(identifier))
        try:
            self._wait(metastore, identifier, lock)
            held_ms = self._runtime.monotonic_ms()
            change = look()
            if self._runtime.monotonic_ms() - held_ms > _SURE_MS:
                # What was seen may not hold any more if the lock ran out meanwhile; asking keeps it, too.
                self._wait(metastore, identifier, metastore.check_lock(hive.CheckLockRequest(lockid=lock.lockid)))
            change()
        finally:
            with suppress(TException, OSError):
                metastore.unlock(hive.UnlockRequest(lockid=lock.lockid))

    def _wait(self, metastore: Any, identifier: Identifier, lock: Any) -> None:
        state = lock.state
        for number in range(self._looks_count):
            if state != hive.LockState.WAITING:
                break
            if number:
                self._runtime.sleep_ms(min(max(1000 * 2**number, self._min_wait_ms), self._max_wait_ms))
            state = metastore.check_lock(hive.CheckLockRequest(lockid=lock.lockid)).state
        if state != hive.LockState.ACQUIRED:
            name = hive.LockState._VALUES_TO_NAMES.get(state, state)
            raise CommitRefused(
                f"the lock of table {format_identifier(identifier)!r} is not to be had, its state is {name}"
            )


def user_name() -> str:
    """Who runs this, for locks and owners; a container's user may have a number only."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


def _request(identifier: Identifier) -> Any:
    database, name = identifier
    component = hive.LockComponent(
        level=hive.LockLevel.TABLE,
        type=hive.LockType.EXCLUSIVE,
        dbname=database,
        tablename=name,
        isTransactional=True,
    )
    return hive.LockRequest(component=[component], user=user_name(), hostname=socket.gethostname())
