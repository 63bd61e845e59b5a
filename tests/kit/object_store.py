"""S3 and Glue on this machine, moto's, one request at a time; a test may stand between the store and its client."""

import logging
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from typing import Any, NamedTuple
from urllib.parse import unquote

import boto3
import pytest
from moto.moto_server.werkzeug_app import create_backend_app
from moto.s3.models import s3_backends
from moto.server import ThreadedMotoServer
from werkzeug.serving import WSGIRequestHandler, make_server

from icekeep.catalog.base import Identifier
from icekeep.runtime import SYSTEM

KEYS = {"s3.access-key-id": "testing", "s3.secret-access-key": "hunter2", "s3.region": "us-east-1"}

_numbers = count(1)


class Request(NamedTuple):
    """A request as it arrived; `path` is decoded and has the query, `range` what of an object is wanted."""

    method: str
    path: str
    condition: str
    range: str


def _nothing() -> None:
    pass


class ObjectStore:
    """The server, in a thread; `requests` holds each one that arrived.

    moto looks whether a name is taken and then puts the object, in two steps that threads would interleave: real stores
    do it in one. So here a lock is held around each request.
    """

    def __init__(self) -> None:
        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        self._app = create_backend_app("s3")
        self._lock = threading.Lock()
        self._server = make_server("127.0.0.1", 0, self._serve, threaded=True, request_handler=_Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        self._thread.start()
        self.port: int = self._server.server_port
        self.endpoint = f"http://127.0.0.1:{self.port}"
        self.client: Any = boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            region_name="us-east-1",
            aws_access_key_id="other",
            aws_secret_access_key="other",
        )
        self.reset()

    def reset(self) -> None:
        self.requests: list[Request] = []
        self.ignores_conditions = False
        self.ended_keys: set[str] = set()
        self.uses_left: dict[str, int] = {}
        self._faults: list[_Fault] = []
        self._late: list[dict[str, Any]] = []
        self._busy_every, self._stalled_every, self._stall_ms = 0, 0, 0

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def new_bucket(self) -> str:
        name = f"bucket-{next(_numbers)}"
        self.client.create_bucket(Bucket=name)
        self.requests.clear()
        return name

    def new_root(self) -> str:
        """A location in a bucket of its own."""
        return f"s3://{self.new_bucket()}/wh"

    def properties(self, **more: str) -> dict[str, str]:
        """The catalog properties that lead here."""
        return {"s3.endpoint": self.endpoint, **KEYS, **more}

    def keys(self, bucket: str) -> list[str]:
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=bucket)
        return [item["Key"] for page in pages for item in page.get("Contents", ())]

    def names(self, root: str) -> list[str]:
        """The names of all objects below a location, sorted, as another client sees them."""
        bucket, _, prefix = root.partition("://")[2].partition("/")
        return sorted(key[len(prefix) + 1 :] for key in self.keys(bucket) if key.startswith(f"{prefix}/"))

    def end_key(self, access_key: str, after_uses: int = 0) -> None:
        """Take an access key for one that has ended, now or after so many more requests."""
        if after_uses:
            self.uses_left[access_key] = after_uses
        else:
            self.ended_keys.add(access_key)

    def _has_ended(self, authorization: str) -> bool:
        access_key = authorization.partition("Credential=")[2].partition("/")[0]
        if access_key in self.uses_left:
            self.uses_left[access_key] -= 1
            if self.uses_left[access_key] < 0:
                self.ended_keys.add(access_key)
        return access_key in self.ended_keys

    def put_many(self, bucket: str, keys: Iterable[str]) -> None:
        """Make objects of one byte, faster than a client can."""
        (accounts,) = s3_backends.values()
        with self._lock:
            for key in keys:
                accounts["aws"].put_object(bucket, key, b"1")

    def make_older(self, bucket: str, age: timedelta) -> None:
        """Let all objects of a bucket be written so much earlier than they were."""
        (accounts,) = s3_backends.values()
        with self._lock:
            for key in accounts["aws"].buckets[bucket].keys.values():
                key.last_modified -= age

    def answer(
        self,
        method: str,
        name: str,
        status: int,
        code: str = "",
        *,
        lands: bool = False,
        times: int = 1,
        body: str = "",
    ) -> None:
        """Answer requests of a method whose path holds `name` by an error, after carrying them out if it `lands`.

        `body` is answered as it is, in place of an error with a code.
        """
        body = body or (f"<Error><Code>{code}</Code></Error>" if code else "")
        self._faults.append(_Fault(method, name, times, lands, f"{status} X", body))

    def lose_answer(self, method: str, name: str, *, lands: bool, first: Callable[[], object] = _nothing) -> None:
        """Do something, and close the connection instead of answering."""
        self._faults.append(_Fault(method, name, 1, lands, "lost", "", first))

    def delay(self, method: str, name: str) -> None:
        """Close the connection instead of answering, and keep the request back until it is `deliver`ed."""
        self._faults.append(_Fault(method, name, 1, False, "late", ""))

    def deliver(self) -> list[str]:
        """Carry out what was kept back; the statuses that nobody sees."""
        statuses: list[str] = []
        for environ in self._late:
            list(self._app(environ, lambda status, *_: statuses.append(status)))
        self._late = []
        return statuses

    def repeat(self, method: str, name: str) -> None:
        """Carry a request out twice and bring the second answer, as a proxy does that lost the first."""
        self._faults.append(_Fault(method, name, 1, True, "again", ""))

    def before(self, method: str, name: str, act: Callable[[], object]) -> None:
        """Do something before a request is carried out."""
        self._faults.append(_Fault(method, name, 1, False, "again", "", act))

    def be_unreliable(self, *, busy_every: int, stalled_every: int, stall_ms: int) -> None:
        """Answer one request of so many by 503, and let one of so many others wait, until `reset`."""
        self._busy_every, self._stalled_every, self._stall_ms = busy_every, stalled_every, stall_ms

    def sent(self, method: str, name: str = "") -> list[Request]:
        """The requests of a method whose path holds `name`."""
        return [request for request in self.requests if request.method == method and name in request.path]

    @property
    def is_waiting(self) -> bool:
        """Whether something that was asked for has not happened yet."""
        return bool(self._faults)

    def _serve(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        target = environ["PATH_INFO"] + (f"?{environ['QUERY_STRING']}" if environ.get("QUERY_STRING") else "")
        method, condition = environ["REQUEST_METHOD"], environ.get("HTTP_IF_NONE_MATCH", "")
        environ["wsgi.input"] = _Body(environ)
        fault = next((f for f in self._faults if f.method == method and f.name in target), None)
        if fault is not None:
            fault.times -= 1
            self._faults = [f for f in self._faults if f.times > 0]
            fault.act()
        if self._stalled_every and len(self.requests) % self._stalled_every == 7:
            SYSTEM.sleep_ms(self._stall_ms)
        with self._lock:
            is_busy = self._busy_every and len(self.requests) % self._busy_every == 3
            self.requests.append(Request(method, target, condition, environ.get("HTTP_RANGE", "")))
            if self._has_ended(environ.get("HTTP_AUTHORIZATION", "")):
                return _answered(start, "400 X", "" if method == "HEAD" else "<Error><Code>ExpiredToken</Code></Error>")
            if is_busy:
                return _answered(start, "503 X", "" if method == "HEAD" else "<Error><Code>SlowDown</Code></Error>")
            if self.ignores_conditions:
                environ.pop("HTTP_IF_NONE_MATCH", None)
            if fault is None:
                return list(self._app(environ, start))
            return self._fail(fault, environ, start)

    def _fail(self, fault: "_Fault", environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        if fault.lands:
            list(self._app(dict(environ), lambda *_: None))
            environ["wsgi.input"].rewind()
        if fault.status == "again":
            return list(self._app(environ, start))
        if fault.status == "late":
            self._late.append(dict(environ))
        if fault.status in ("lost", "late"):
            environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
            return []
        return _answered(start, fault.status, fault.body)


def _answered(start: Callable[..., Any], status: str, body: str) -> list[bytes]:
    start(status, [("Content-Length", str(len(body)))])
    return [body.encode()]


class _Fault:
    def __init__(
        self,
        method: str,
        name: str,
        times: int,
        lands: bool,
        status: str,
        body: str,
        act: Callable[[], object] = _nothing,
    ) -> None:
        self.method, self.name, self.times, self.lands = method, name, times, lands
        self.status, self.body, self.act = status, body, act


class _Body:
    """What a client sent, read to its end whoever answers: a server that closes on unread bytes resets the connection."""

    def __init__(self, environ: dict[str, Any]) -> None:
        length = int(environ.get("CONTENT_LENGTH") or 0)
        self._data = environ["wsgi.input"].read(length) if length else b""
        self.rewind()

    def rewind(self) -> None:
        self._position = 0

    def read(self, size: int = -1) -> bytes:
        end = len(self._data) if size is None or size < 0 else self._position + size
        data, self._position = self._data[self._position : end], min(end, len(self._data))
        return data


class CutAnswers:
    """A server that begins every answer with the same bytes, told to be more than they are, and hangs up."""

    def __init__(self, data: bytes, told_bytes: int) -> None:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200)
                headers = {"Content-Length": str(told_bytes), "ETag": '"x"', "Last-Modified": self.date_time_string(0)}
                for name, value in headers.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *args: Any) -> None:
                pass

        self._server, self.endpoint = _served(Handler)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class GoogleStore:
    """As much of Google's store as deleting needs; `keys` are the names in each bucket."""

    def __init__(self, keys: dict[str, set[str]]) -> None:
        self.keys = keys

        class Handler(BaseHTTPRequestHandler):
            def do_DELETE(self) -> None:
                bucket, _, key = unquote(self.path).strip("/").partition("/")
                self.send_response(204 if key in keys[bucket] else 404)
                keys[bucket].discard(key)
                self.end_headers()

            def log_message(self, *args: Any) -> None:
                pass

        self._server, self.endpoint = _served(Handler)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def _served(handler: type[BaseHTTPRequestHandler]) -> tuple[ThreadingHTTPServer, str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    return server, f"http://127.0.0.1:{server.server_port}"


class _Handler(WSGIRequestHandler):
    protocol_version = "HTTP/1.1"  # connections are kept
    disable_nagle_algorithm = True

    def log(self, type: str, message: str, *args: Any) -> None:
        pass


@pytest.fixture(scope="session")
def object_server() -> Iterator[ObjectStore]:
    """An S3 server."""
    server = ObjectStore()
    yield server
    server.close()


@pytest.fixture
def store(object_server: ObjectStore) -> Iterator[ObjectStore]:
    """The S3 server; what was asked of it before is forgotten, and so is what this test told it."""
    object_server.reset()
    yield object_server
    object_server.reset()


class GlueServer:
    """Ends with `close`."""

    def __init__(self) -> None:
        self._server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        self._server.start()
        host, port = self._server.get_host_and_port()
        self.endpoint = f"http://{host}:{port}"

    def close(self) -> None:
        self._server.stop()


def glue_properties(endpoint: str, warehouse: str) -> dict[str, str]:
    return {
        "type": "glue",
        "glue.endpoint": endpoint,
        "glue.region": "us-east-1",
        "glue.access-key-id": "key",
        "glue.secret-access-key": "glue-secret",
        "glue.max-retries": "1",
        "warehouse": warehouse,
    }


def entry_of(catalog: Any, identifier: Identifier) -> dict[str, Any]:
    database, name = identifier
    entry: dict[str, Any] = catalog._client().glue.get_table(DatabaseName=database, Name=name)["Table"]
    return entry
