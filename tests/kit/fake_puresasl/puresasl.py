"""Stands for pure-sasl where a test says so: Kerberos needs a realm, and this shows only what is asked of it."""

import sys
from types import ModuleType


class SASLClient:
    """A login whose ticket says whom it is for; what it wraps can be told from what it does not."""

    def __init__(self, host: str, service: str, mechanism: str) -> None:
        self.mechanism = mechanism
        self.complete = False
        self._ticket = f"{service}/{host}".encode()

    def process(self, challenge: bytes | None = None) -> bytes:
        self.complete = challenge is not None
        return b"thanks" if self.complete else self._ticket

    def wrap(self, data: bytes) -> bytes:
        return b"sealed" + data

    def unwrap(self, data: bytes) -> bytes:
        assert data.startswith(b"sealed")
        return data.removeprefix(b"sealed")

    def dispose(self) -> None:
        pass


client = sys.modules["puresasl.client"] = ModuleType("puresasl.client")
vars(client)["SASLClient"] = SASLClient
