"""A server of mail on this machine, as small as SMTP allows: it takes what it is sent, and keeps it."""

import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from email import message_from_bytes, policy
from email.message import EmailMessage


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
