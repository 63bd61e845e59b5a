"""A TCP proxy in front of a server: when a client sends given bytes, it loses the request or the answer, waits, or is gone."""

import selectors
import socket
import threading
from collections.abc import Callable
from contextlib import suppress

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
        """Accept no more; connections that stand go on."""
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
