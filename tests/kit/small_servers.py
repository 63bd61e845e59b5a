"""Servers as small as can be: of HTTP, of mail, and a TCP proxy that loses requests or answers, waits, or is gone."""

import json
import selectors
import socket
import socketserver
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from email import message_from_bytes, policy
from email.message import EmailMessage
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


class MailServer:
    """`port` is where it listens on 127.0.0.1; `messages` are those that came, in order."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.messages: list[EmailMessage] = []


@contextmanager
def mail_server() -> Iterator[MailServer]:
    """A server while the block lasts; it knows no logins and no encryption."""

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            self._say("220 localhost")
            while line := self.rfile.readline():
                verb = line.split()[0].upper()
                if verb == b"DATA":
                    self._say("354 go on")
                    self._take()
                self._say("221 bye" if verb == b"QUIT" else "250 ok")
                if verb == b"QUIT":
                    return

        def _take(self) -> None:
            lines = []
            while (line := self.rfile.readline()).rstrip() != b".":
                lines.append(line.removeprefix(b"."))
            server.messages.append(message_from_bytes(b"".join(lines), policy=policy.default))  # type: ignore[arg-type]

        def _say(self, text: str) -> None:
            self.wfile.write(f"{text}\r\n".encode())

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as listening:
        listening.daemon_threads = True
        server = MailServer(listening.server_address[1])
        threading.Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        try:
            yield server
        finally:
            listening.shutdown()


_Event = Callable[[bytes, socket.socket, socket.socket], bool]


class TcpProxy:
    """Passes bytes on, both ways; what is asked for happens once, to the next connection that sends the marker."""

    def __init__(self, port: int) -> None:
        self._server_port = port
        self._marker: bytes | None = None
        self._event: _Event = _pass_on
        self.port = 0
        self._clients: list[socket.socket] = []
        self._listen()

    @property
    def is_waiting(self) -> bool:
        """Whether what was asked for has not happened yet."""
        return self._marker is not None

    def close(self) -> None:
        # Closing alone does not end an accept that waits.
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def vanish(self, marker: bytes, act: Callable[[], object] = lambda: None) -> None:
        """Break the connection, after `act`, and refuse all others until `come_back`; the server sees nothing of it."""

        def event(data: bytes, client: socket.socket, server: socket.socket) -> bool:
            act()
            self.close()
            for other in self._clients:
                with suppress(OSError):
                    other.shutdown(socket.SHUT_RDWR)
            return False

        self._marker, self._event = marker, event

    def come_back(self) -> None:
        """Accept connections again, at the same port."""
        self._listen()

    def lose_request(self, marker: bytes) -> None:
        """Break the connection; the server sees nothing of what was sent."""
        self._marker, self._event = marker, _lose_request

    def lose_answer(self, marker: bytes) -> None:
        """Let the server answer, and break the connection instead of bringing its answer."""
        self._marker, self._event = marker, _lose_answer

    def swallow_answer(self, marker: bytes) -> None:
        """Let the server answer, and let the client wait until it hangs up."""
        self._marker, self._event = marker, _swallow_answer

    def deliver_late(self, marker: bytes, wait: Callable[[], object]) -> None:
        """Break the connection for the client, and pass its bytes on when `wait` is over."""

        def event(data: bytes, client: socket.socket, server: socket.socket) -> bool:
            client.shutdown(socket.SHUT_RDWR)
            wait()
            server.sendall(data)
            assert server.recv(65536)
            return False

        self._marker, self._event = marker, event

    def before(self, marker: bytes, act: Callable[[], object]) -> None:
        """Do something before the bytes are passed on."""

        def event(data: bytes, client: socket.socket, server: socket.socket) -> bool:
            act()
            return _pass_on(data, client, server)

        self._marker, self._event = marker, event

    def _listen(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", self.port))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def _accept(self, listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                client, _ = listener.accept()
                self._clients.append(client)
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        # One thread for both ways: an event has the connection to itself.
        with (
            client,
            suppress(OSError),
            socket.create_connection(("127.0.0.1", self._server_port)) as server,
            selectors.DefaultSelector() as selector,
        ):
            selector.register(client, selectors.EVENT_READ)
            selector.register(server, selectors.EVENT_READ)
            while all(self._move(key.fileobj, client, server) for key, _ in selector.select()):
                pass

    def _move(self, readable: object, client: socket.socket, server: socket.socket) -> bool:
        if readable is server:
            data = server.recv(65536)
            client.sendall(data)
            return bool(data)
        data = client.recv(65536)
        if self._marker is not None and self._marker in data:
            self._marker = None
            return self._event(data, client, server)
        return _pass_on(data, client, server)


def _pass_on(data: bytes, client: socket.socket, server: socket.socket) -> bool:
    with suppress(ConnectionError):
        server.sendall(data)
    return bool(data)


def _lose_request(data: bytes, client: socket.socket, server: socket.socket) -> bool:
    return False


def _lose_answer(data: bytes, client: socket.socket, server: socket.socket) -> bool:
    server.sendall(data)
    assert server.recv(65536)
    return False


def _swallow_answer(data: bytes, client: socket.socket, server: socket.socket) -> bool:
    server.sendall(data)
    assert server.recv(65536)
    client.recv(65536)
    return False
