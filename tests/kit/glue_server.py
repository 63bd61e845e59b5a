"""AWS Glue on this machine, as moto makes it, over HTTP."""

from typing import Any

from moto.server import ThreadedMotoServer

from icekeep.catalog.base import Identifier


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
    """What a catalog is opened with."""
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
    """What Glue has of a table."""
    database, name = identifier
    entry: dict[str, Any] = catalog._client().glue.get_table(DatabaseName=database, Name=name)["Table"]
    return entry
