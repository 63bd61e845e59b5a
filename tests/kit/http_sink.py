"""A server on this machine that takes what is sent to it, refuses it, or never answers."""

import json
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple

with warnings.catch_warnings():
    # It warns once of what it can do without. In a thread that is not ours that would be an error, as pytest wants it.
    warnings.simplefilter("ignore")
    import requests  # noqa: F401


class Request(NamedTuple):
    """One request that came."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


class HttpSink:
    """`url` is where it is; `requests` are those that came, in order; `gate` holds back the answers of one that hangs."""

    def __init__(self, url: str, status: int, gate: threading.Event) -> None:
        self.url, self.status, self.gate = url, status, gate
        self.requests: list[Request] = []


@contextmanager
def http_sink(
    status: int = 200, *, hangs: bool = False, echoes: bool = False, location: str | None = None
) -> Iterator[HttpSink]:
    """A server while the block lasts, which answers with `status`, or not before the block ends.

    One that `echoes` quotes the whole request in the REST protocol's error. A `location` is where a redirect leads.
    """
    gate = threading.Event()
    if not hangs:
        gate.set()

    class Handler(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            sink.requests.append(Request(self.command, self.path, dict(self.headers), body))
            sink.gate.wait()
            try:
                said = f"{self.command} {self.path} {dict(self.headers)} {body.decode(errors='replace')}"
                error = {"error": {"message": said, "type": "EchoException", "code": sink.status}}
                answer = json.dumps(error).encode() if echoes else b""
                self.send_response(sink.status)
                if location is not None:
                    self.send_header("Location", location)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)
            except OSError:
                pass

        do_POST = do_PUT = do_GET = do_DELETE = _answer

        def log_message(self, *_: object) -> None:
            """Nothing on stderr."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    sink = HttpSink(f"http://127.0.0.1:{server.server_port}", status, gate)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield sink
    finally:
        gate.set()
        server.shutdown()
        server.server_close()
