"""A REST server that hands out keys for its tables' files, and a store that takes each of them for a while only."""

import threading
from pathlib import Path

from kit.object_store import ObjectStore
from kit.rest_server import RestServer


class Vending:
    """Tables in a bucket: every answer about one brings a new access key, good for `uses` requests, or until it is ended."""

    def __init__(self, directory: Path, store: ObjectStore, uses: int = 0) -> None:
        self.store = store
        self.server = RestServer(directory)
        self.uses = uses
        self.keys: list[str] = []
        self.ends_ms: int | None = None
        self._lock = threading.Lock()
        self.server.token = "hunter2"
        self.server.vend = self._vend
        self.server.objects = store.client
        self.bucket = store.new_bucket()

    @property
    def properties(self) -> dict[str, str]:
        """What a catalog is opened with: a token for the server is among it, and no keys for the store."""
        return {
            **self.server.properties,
            "token": "hunter2",
            "s3.endpoint": self.store.endpoint,
            "s3.region": "us-east-1",
        }

    def end_keys(self) -> None:
        """End all keys that were handed out so far."""
        for key in self.keys:
            self.store.end_key(key)

    def close(self) -> None:
        self.server.close()

    def _vend(self) -> dict[str, str]:
        with self._lock:
            key = f"vended{len(self.keys)}"
            self.keys.append(key)
        if self.uses:
            self.store.end_key(key, self.uses)
        ends = {} if self.ends_ms is None else {"s3.session-token-expires-at-ms": str(self.ends_ms)}
        return {"s3.access-key-id": key, "s3.secret-access-key": f"secret of {key}", "s3.session-token": "t", **ends}
