"""The server's side of thrift's SASL transport, with tickets of `fake_puresasl`."""

from io import BytesIO
from struct import pack, unpack
from typing import Any

from thrift.transport.TTransport import TTransportBase

_START, _OK, _BAD, _COMPLETE = 1, 2, 3, 5


class SaslServerTransport(TTransportBase):
    """Lets in who has a ticket for `service`, and then reads and writes what is sealed."""

    def __init__(self, wire: Any, service: str) -> None:
        self._wire = wire
        self._read = BytesIO()
        self._written = BytesIO()
        assert self._received() == (_START, b"GSSAPI")
        status, ticket = self._received()
        if (status, ticket) != (_OK, service.encode()):
            self._say(_BAD, b"no ticket for this service")
            return
        self._say(_OK, b"who are you")
        assert self._received() == (_OK, b"thanks")
        self._say(_COMPLETE, b"")

    def read(self, size: int) -> bytes:
        found = self._read.read(size)
        if not found:
            (length,) = unpack("!i", self._wire.readAll(4))
            self._read = BytesIO(self._wire.readAll(length).removeprefix(b"sealed"))
            found = self._read.read(size)
        return found

    def write(self, data: bytes) -> None:
        self._written.write(data)

    def flush(self) -> None:
        sealed = b"sealed" + self._written.getvalue()
        self._written = BytesIO()
        self._wire.write(pack("!i", len(sealed)) + sealed)
        self._wire.flush()

    def _received(self) -> tuple[int, bytes]:
        status, length = unpack(">BI", self._wire.readAll(5))
        return status, self._wire.readAll(length) if length else b""

    def _say(self, status: int, body: bytes) -> None:
        self._wire.write(pack(">BI", status, len(body)) + body)
        self._wire.flush()
