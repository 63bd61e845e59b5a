"""A Hive metastore's lock on a table, which writers of Iceberg tables hold while they move its pointer."""

import getpass
import socket
from collections.abc import Callable
from typing import Any

from icekeep.catalog.base import Identifier
from icekeep.catalog.clients import hive_thrift as hive
from icekeep.catalog.clients.refusals import CommitRefused
from icekeep.catalog.clients.settings import Settings
from icekeep.runtime import Runtime


class HiveLocks:
    """Takes locks, and waits for them as `lock-check-*` say, PyIceberg's properties in seconds."""

    def __init__(self, settings: Settings, runtime: Runtime) -> None:
        self._runtime = runtime
        self._min_wait_ms = settings.seconds_in_ms("lock-check-min-wait-time", 100)
        self._max_wait_ms = settings.seconds_in_ms("lock-check-max-wait-time", 60_000)
        self._looks_count = settings.count("lock-check-retries", 4)

    def run_locked(self, metastore: Any, identifier: Identifier, act: Callable[[], None]) -> None:
        """Do something while the lock of a table is held; raises `CommitRefused` if it is not had in time."""
        lock = metastore.lock(_request(identifier))
        try:
            self._wait(metastore, identifier, lock)
            act()
        finally:
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
            raise CommitRefused(f"Failed to acquire lock for {identifier}, state: {state}")


def _request(identifier: Identifier) -> Any:
    database, name = identifier
    component = hive.LockComponent(
        level=hive.LockLevel.TABLE,
        type=hive.LockType.EXCLUSIVE,
        dbname=database,
        tablename=name,
        isTransactional=True,
    )
    return hive.LockRequest(component=[component], user=getpass.getuser(), hostname=socket.gethostname())
