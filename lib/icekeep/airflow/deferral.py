"""Which jobs a triggerer can wait for, and what their task remembers of them meanwhile.

A job in the worker, and one whose driver runs there (client mode), is a process of the task and ends with it. Of clusters YARN is
asked alone.
"""

from typing import Any

import msgspec

from icekeep.airflow.outcomes import CallOutcome, figures
from icekeep.airflow.units import JobOnTable
from icekeep.airflow.yarn import ADDRESS_KEY, ResourceManager
from icekeep.decoding import from_plain
from icekeep.errors import UsageError, first_line
from icekeep.secrets import without_login

CLUSTER = "cluster"
DOES_NOT_WAIT = {"spark.yarn.submit.waitAppCompletion": "false"}
"""By this spark-submit ends as soon as YARN has accepted the application."""

_YARN = "yarn"


class Waiting(msgspec.Struct, frozen=True, kw_only=True):
    """A task whose job runs on YARN while a triggerer waits.

    Attributes:
        call: what runs.
        application: its id.
        address: of the ResourceManager.
        page: where the application is seen in a browser; empty where it is not known.
        result_file: where its driver writes what it has to say; `None` where the worker cannot read it.
        until_ms: when the task's time is over, epoch milliseconds; `None` for never.
        ended: the calls that have ended before.
        rest: those that run after it.
    """

    call: JobOnTable
    application: str
    address: str
    page: str = ""
    result_file: str | None = None
    until_ms: int | None = None
    ended: tuple[CallOutcome, ...] = ()
    rest: tuple[JobOnTable, ...] = ()

    def packed(self) -> dict[str, Any]:
        """As a triggerer keeps it: JSON, and of documents no more than XCom gets."""
        ended = [
            msgspec.structs.replace(one, document=None if one.document is None else figures(one.document))
            for one in self.ended
        ]
        plain: dict[str, Any] = msgspec.json.decode(
            msgspec.json.encode(msgspec.structs.replace(self, ended=tuple(ended)))
        )
        return plain

    @classmethod
    def unpacked(cls, plain: Any) -> "Waiting":
        """What `packed` has made."""
        return from_plain(plain, cls)


def yarn_of(call: JobOnTable, mode: str, connection: Any) -> ResourceManager:
    """YARN, which will run a call and can be asked of it.

    Args:
        mode: the deploy mode of spark-submit.
        connection: of the cluster; `None` where there is none.

    Raises:
        UsageError: a worker has to wait for the call, and why.
    """
    if not call.submit:
        raise UsageError("it is a process of the worker")
    if mode != CLUSTER:
        raise UsageError("its driver is a process of the worker (client mode)")
    if connection is None or _YARN not in (connection.conn_type, (connection.host or "").partition("://")[0]):
        raise UsageError("its cluster is not YARN by the connection, and a triggerer can ask YARN alone")
    address = str(connection.extra_dejson.get(ADDRESS_KEY) or "").strip()
    if not address:
        raise UsageError(f"connection {connection.conn_id!r} has no {ADDRESS_KEY!r} in its extra")
    try:
        manager = ResourceManager(address)
        manager.check()
    except OSError as error:
        raise UsageError(f"YARN cannot be asked at {without_login(address)}: {first_line(error)}") from None
    return manager
