"""Clusters on this machine, tables beside them, and somebody who submits jobs; each cluster is started once."""

import tarfile
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
from hdfs_native import Client

from kit.cluster import ClusterTable, Site, site_on_hdfs, site_on_s3
from kit.foreign_software import java, postgres
from kit.java import IcebergJava, JavaRestServer
from kit.object_store import ObjectStore, object_server, store
from kit.postgres import Postgres
from kit.shell import ROOT
from kit.submitting import Hdfs, Standalone, Submitter, Yarn, bare_python, python_with_wheels, zipped_package

__all__ = ["java", "object_server", "postgres", "store"]

ARCHIVE = ROOT / "dist" / "icekeep-env.tar.gz"

_NUMBERS = count(1)


@pytest.fixture(scope="session")
def archive() -> Path:
    """The environment for executors."""
    if not ARCHIVE.exists():
        raise FileNotFoundError("there is no dist/icekeep-env.tar.gz; run `make dist-env` first")
    return ARCHIVE


@pytest.fixture(scope="session")
def unpacked(archive: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of the environment, unpacked at the machine from where jobs are submitted."""
    directory = tmp_path_factory.mktemp("unpacked")
    with tarfile.open(archive) as packed:
        packed.extractall(directory, filter="fully_trusted")
    return directory / "bin" / "python"


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python that all nodes have, with all packages but icekeep."""
    return python_with_wheels(tmp_path_factory.mktemp("wheels"))


@pytest.fixture(scope="session")
def zipped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package for `--py-files`."""
    return zipped_package(tmp_path_factory.mktemp("zipped"))


@pytest.fixture(scope="session")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What nodes have as `python3`."""
    return bare_python(tmp_path_factory.mktemp("bare"))


@pytest.fixture(scope="session")
def started_standalone(bare: Path) -> Iterator[Standalone]:
    cluster = Standalone(bare)
    yield cluster
    cluster.close()


@pytest.fixture
def standalone(started_standalone: Standalone) -> Iterator[Standalone]:
    """Spark's standalone cluster, of three workers of one core."""
    yield started_standalone
    started_standalone.forget_applications()


@pytest.fixture(scope="session")
def hdfs() -> Iterator[Hdfs]:
    cluster = Hdfs()
    yield cluster
    cluster.close()


@pytest.fixture(scope="session")
def yarn(bare: Path, hdfs: Hdfs) -> Iterator[Yarn]:
    """YARN over HDFS."""
    cluster = Yarn(bare, hdfs.uri)
    yield cluster
    cluster.close()


@pytest.fixture(scope="session")
def archive_in_hdfs(hdfs: Hdfs, archive: Path) -> str:
    """The environment where all nodes find it, and, as everyone may read it, unpack it once for all applications."""
    client = Client(hdfs.uri)
    with client.create("/icekeep-env.tar.gz") as stream, archive.open("rb") as file:
        while part := file.read(8 << 20):
            stream.write(part)
    return f"{hdfs.uri}/icekeep-env.tar.gz"


@pytest.fixture(scope="session")
def rest_server(hdfs: Hdfs, tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaRestServer]:
    """Iceberg's REST server, whose tables lie on HDFS."""
    server = JavaRestServer(tmp_path_factory.mktemp("java-rest"), warehouse=hdfs.new_root())
    yield server
    server.close()


@pytest.fixture
def on_s3(store: ObjectStore, postgres: Postgres, java: IcebergJava, tmp_path: Path) -> Site:
    """Tables on S3, their catalog in PostgreSQL."""
    return site_on_s3(store, postgres.new_database(), java, tmp_path)


@pytest.fixture
def on_hdfs(rest_server: JavaRestServer, java: IcebergJava, tmp_path: Path) -> Site:
    """Tables on HDFS, their catalog Iceberg's REST server."""
    return site_on_hdfs(rest_server, java, tmp_path)


@pytest.fixture
def s3_table(on_s3: Site) -> ClusterTable:
    return ClusterTable(on_s3, f"t{next(_NUMBERS)}")


@pytest.fixture
def by_archive(standalone: Standalone, on_s3: Site, archive: Path, unpacked: Path, tmp_path: Path) -> Submitter:
    """Submits to the standalone cluster, whose nodes have nothing."""
    return Submitter(
        tmp_path / "edge",
        on_s3.properties,
        unpacked,
        ("--master", standalone.master, "--archives", f"{archive}#env"),
        {"spark.pyspark.python": "./env/bin/python", "spark.pyspark.driver.python": str(unpacked)},
    )


@pytest.fixture
def by_zip(standalone: Standalone, on_s3: Site, zipped: Path, wheels: Path, tmp_path: Path) -> Submitter:
    """Submits to the standalone cluster, whose nodes have a Python with all packages but icekeep."""
    return Submitter.with_zip(tmp_path / "edge", on_s3.properties, standalone.master, zipped, wheels)
