"""Hive's metastore, the real one, in releases before and after it compares what it replaces (HIVE-26882)."""

import os
import shutil
import socket
from pathlib import Path
from urllib.parse import urlsplit

from kit.line_process import environment_without
from kit.postgres import Postgres
from kit.servers.process import SERVERS, ServerProcess
from kit.shell import ROOT, free_port

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
