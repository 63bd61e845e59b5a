"""YARN: its ResourceManager by REST, which jobs a triggerer can ask it of, and what their task remembers of them meanwhile.

A job in the worker, and one whose driver runs there (client mode), is a process of the task and ends with it. Of clusters YARN is
asked alone. Triggerers import this module, so it needs neither Airflow nor Spark. No login is sent: a cluster that wants one
(SPNEGO) refuses the first request, before anything is submitted.
"""

import json
from collections.abc import Mapping
from http.client import HTTPException
from typing import Any, NamedTuple
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

import msgspec

from icekeep.airflow.calls import JobOnTable
from icekeep.airflow.outcomes import CallOutcome, figures
from icekeep.decoding import from_plain
from icekeep.errors import UsageError, first_line
from icekeep.secrets import without_login

ADDRESS_KEY = "yarn_resourcemanager_webapp_address"
"""The key of a Spark connection's extra under which Airflow's own operator looks for the address too."""

_ENDED = frozenset({"FINISHED", "FAILED", "KILLED"})
_SUCCEEDED = "SUCCEEDED"
_TIMEOUT_S = 20
_DIAGNOSTICS_LENGTH_MAX = 4000
_NOT_FOUND = 404
_REPEATS = (307, 308)


class ApplicationReport(NamedTuple):
    """What YARN says of an application.

    Attributes:
        state: as YARN names it; empty where it does not know the application, or not any more.
        final_status: how it ended, as the application said itself.
        diagnostics: why; the exit status of a driver that failed is in it.
    """

    state: str
    final_status: str = ""
    diagnostics: str = ""

    @property
    def has_ended(self) -> bool:
        """Whether there is nothing more to wait for."""
        return self.state in _ENDED or not self.state

    @property
    def has_succeeded(self) -> bool:
        """Whether its driver ended with 0."""
        return self.state in _ENDED and self.final_status == _SUCCEEDED


class _ToTheActive(HTTPRedirectHandler):
    """Goes on to where a ResourceManager on standby leads, with a change too, which Python by itself refuses to repeat."""

    def redirect_request(self, req: Request, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Request | None:
        if req.get_method() == "PUT" and code in _REPEATS:
            return Request(newurl, data=req.data, headers=req.headers, method="PUT")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


class ResourceManager:
    """Raises `OSError` wherever it does not answer as it should.

    Args:
        address: `http://HOST:8088`, as `yarn.resourcemanager.webapp.address` has it; without a scheme it is `http`.
    """

    def __init__(self, address: str) -> None:
        self.address = (address if "://" in address else f"http://{address}").rstrip("/")
        parts = urlsplit(self.address)
        if parts.scheme not in ("http", "https"):
            raise OSError(f"{without_login(address)!r} is not an http or https address")
        if "@" in parts.netloc:
            # A triggerer's database and logs would have it.
            raise OSError("the address has a login in it, and YARN takes none")

    def check(self) -> None:
        """Ask something that any client may ask."""
        self._asked("info")

    def report(self, application: str) -> ApplicationReport:
        """The state of an application."""
        try:
            found = self._asked(f"apps/{application}")
        except HTTPError as error:
            if error.code == _NOT_FOUND:
                return ApplicationReport("")
            raise
        app = found.get("app")
        if not isinstance(app, Mapping) or not app.get("state"):
            raise OSError(f"{self.address} does not answer as a ResourceManager does")
        state, final_status, diagnostics = (str(app.get(key) or "") for key in ("state", "finalStatus", "diagnostics"))
        return ApplicationReport(state, final_status, diagnostics[-_DIAGNOSTICS_LENGTH_MAX:])

    def kill(self, application: str) -> None:
        """Kill an application; one that has ended stays as it is."""
        self._asked(f"apps/{application}/state", {"state": "KILLED"})

    def _asked(self, path: str, body: Mapping[str, str] | None = None) -> Mapping[str, Any]:
        request = Request(
            f"{self.address}/ws/v1/cluster/{path}",
            data=None if body is None else json.dumps(body).encode(),
            headers={"Accept": "application/json", "Content-Type": "application/json"},
            method="GET" if body is None else "PUT",
        )
        try:
            with build_opener(_ToTheActive).open(request, timeout=_TIMEOUT_S) as answer:
                found = json.load(answer)
        except (HTTPException, ValueError) as error:
            raise OSError(
                f"{self.address} does not answer as a ResourceManager does: {type(error).__name__}"
            ) from error
        return found if isinstance(found, Mapping) else {}


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
