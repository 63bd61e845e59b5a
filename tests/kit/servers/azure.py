"""Azurite, the emulator of Azure's blob storage that Microsoft makes, as npm installs it."""

import base64
import json
import socket
from itertools import count
from pathlib import Path

from pyarrow.fs import AzureFileSystem, FileSelector

from kit.servers.process import SERVERS, ServerProcess
from kit.shell import ROOT, free_port

_HOME = SERVERS / "stores" / "azurite" / "node_modules" / "azurite"
_ACCOUNT = "icekeep"
_KEY = base64.b64encode(b"the key of an account that lives as long as a test").decode()

_numbers = count(1)


class Azurite:
    """The server, which runs at once; its containers outlive `kill`."""

    name = "Azurite"
    release = json.loads((ROOT / ".ci/servers/azurite/package.json").read_text())["dependencies"]["azurite"]

    def __init__(self) -> None:
        self.authority = f"127.0.0.1:{free_port()}"
        host, _, port = self.authority.partition(":")
        command: list[str | Path] = ["node", _HOME / "dist" / "src" / "blob" / "main.js", "--location", "data"]
        self._process = ServerProcess(
            self.name,
            # pyarrow speaks a newer version of the protocol than the emulator has heard of.
            [
                *command,
                "--blobHost",
                host,
                "--blobPort",
                port,
                "--silent",
                "--disableTelemetry",
                "--skipApiVersionCheck",
            ],
            self._answers,
            environment={"AZURITE_ACCOUNTS": f"{_ACCOUNT}:{_KEY}"},
        )
        self.start, self.close = self._process.start, self._process.close
        # A crash loses what was written in the five seconds before it, which no store may lose.
        self.kill = self._process.stop
        self.start()

    def new_root(self) -> str:
        """A location in a container of its own."""
        container = f"container-{next(_numbers)}"
        self._other_client().create_dir(container)
        return f"abfs://{container}/wh"

    def properties(self, **more: str) -> dict[str, str]:
        """The catalog properties that lead here; the last three are for PyIceberg, by the client that is installed."""
        return {
            "adls.account-name": _ACCOUNT,
            "adls.account-key": _KEY,
            "adls.blob-storage-authority": self.authority,
            "adls.blob-storage-scheme": "http",
            "adls.dfs-storage-authority": self.authority,
            "adls.dfs-storage-scheme": "http",
            "py-io-impl": "pyiceberg.io.pyarrow.PyArrowFileIO",
            **more,
        }

    def names(self, root: str) -> list[str]:
        """The names of all objects below a location, as another client sees them."""
        path = root.partition("://")[2]
        found = self._other_client().get_file_info(FileSelector(path, allow_not_found=True, recursive=True))
        return sorted(info.path[len(path) + 1 :] for info in found if info.is_file)

    def _answers(self) -> bool:
        host, _, port = self.authority.partition(":")
        with socket.create_connection((host, int(port)), timeout=1):
            return True

    def _other_client(self) -> AzureFileSystem:
        return AzureFileSystem(
            account_name=_ACCOUNT,
            account_key=_KEY,
            blob_storage_authority=self.authority,
            dfs_storage_authority=self.authority,
            blob_storage_scheme="http",
            dfs_storage_scheme="http",
        )
