"""A REST catalog as one client sees it: what it asks goes on to another server, and its commits are held or their answers lost.

Nothing of it is left to chance: a commit that is held stays where it is until the function that holds it returns.
"""

import http.client
import json
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple
from urllib.parse import urlsplit

_HOP_BY_HOP = frozenset(("connection", "keep-alive", "transfer-encoding", "content-length", "host", "date", "server"))


class Lost(NamedTuple):
    """What a client hears in place of the answer to a commit: a status and what a proxy says, or nothing if that is 0.

    The commit was carried out, unless it is not `applied`.
    """

    status: int
    applied: bool = True
    body: str = "<html><body>upstream is out of reach</body></html>"


class Commit(NamedTuple):
    """A commit that came by: the status that the server gave it (0 if it never got there), and the one that its client saw."""

    status: int
    told: int


WORK = frozenset(("add-snapshot", "remove-snapshots"))
"""The updates of commits that count: a tool may set tags or properties before it begins."""


class Gate:
    """Ends with `close`. Of commits those count that add or remove snapshots.

    Attributes:
        before_commit: called with the number of a commit, from 1, before it goes on; meanwhile its client waits.
        lost: by the number of a commit, what its client hears.
        commits: those that came by.
        failures: what `before_commit` raised.
    """

    def __init__(self, uri: str) -> None:
        self.before_commit: Callable[[int], None] | None = None
        self.lost: Mapping[int, Lost] = {}
        self.commits: list[Commit] = []
        self.failures: list[BaseException] = []
        self._upstream = urlsplit(uri)
        self._turn = threading.RLock()
        self._asked = 0
        handler = type("Handler", (_Handler,), {"gate": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self._thread.start()

    @property
    def uri(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def hand_on(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> tuple[int, Any, bytes]:
        """The server's answer: status, headers, body."""
        connection = http.client.HTTPConnection(str(self._upstream.hostname), self._upstream.port)
        try:
            kept = {key: value for key, value in headers.items() if key.lower() not in _HOP_BY_HOP}
            connection.request(method, self._upstream.path + path, body or None, kept)
            answer = connection.getresponse()
            return answer.status, answer.headers, answer.read()
        finally:
            connection.close()

    def commit(self, path: str, headers: Mapping[str, str], body: bytes) -> tuple[int, Any, bytes]:
        """What the client of a commit hears; a status of 0 is none at all. One commit at a time."""
        with self._turn:
            self._asked += 1
            number = self._asked
            if self.before_commit is not None:
                try:
                    self.before_commit(number)
                except BaseException as error:
                    self.failures.append(error)
                    raise
            lost = self.lost.get(number)
            status, answered, text = 0, {}, b""
            if lost is None or lost.applied:
                status, answered, text = self.hand_on("POST", path, headers, body)
            if lost is not None:
                self.commits.append(Commit(status, lost.status))
                return lost.status, {"Content-Type": "text/html"}, lost.body.encode()
            self.commits.append(Commit(status, status))
            return status, answered, text


class _Handler(BaseHTTPRequestHandler):
    gate: Gate
    protocol_version = "HTTP/1.1"
    wbufsize = -1
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.command == "POST" and is_commit(self.path, body):
            status, headers, text = self.gate.commit(self.path, self.headers, body)
        else:
            status, headers, text = self.gate.hand_on(self.command, self.path, self.headers, body)
        if not status:
            self.close_connection = True
            self.connection.close()
            return
        self.send_response(status)
        for name, value in headers.items():
            if name.lower() not in _HOP_BY_HOP:
                self.send_header(name, value)
        if status != 204:
            self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(text)

    do_POST = do_DELETE = do_HEAD = do_PUT = do_GET

    def log_message(self, *_: Any) -> None:
        pass


def is_commit(path: str, body: bytes) -> bool:
    """Whether a POST adds snapshots to a table, or removes some; alone, or in a transaction over several tables."""
    parts = urlsplit(path).path.strip("/").split("/")
    if parts[-2:] == ["transactions", "commit"]:
        changes = json.loads(body)["table-changes"]
    elif parts[-2:-1] == ["tables"] and parts[-4:-3] == ["namespaces"]:
        changes = [json.loads(body)]
    else:
        return False
    return any(update["action"] in WORK for change in changes for update in change["updates"])
