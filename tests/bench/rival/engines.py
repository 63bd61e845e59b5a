"""What a rival works with: icekeep, Iceberg Java in Spark, PyIceberg and others. Each imports its own software alone."""

import json
import os
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

Request = Mapping[str, Any]
Target = Mapping[str, Any]


class Icekeep:
    """icekeep by its door, which other checkouts have too, in a session that is warm if the request has settings for one."""

    def __init__(self, request: Request) -> None:
        import icekeep

        found = Path(icekeep.__file__)
        assert found.is_relative_to(request["lib"]), f"{found} is not below {request['lib']}"
        self.request, self.spark = request, None
        self._catalogs: dict[str, Any] = {}
        if request["spark"]:
            self.spark = icekeep.build_session("icekeep", request["spark"])
            # What a first job costs that later ones do not, whether or not the small table needs Spark.
            self.spark.range(1).count()

    def load(self, target: Target) -> Any:
        """A target's table."""
        from icekeep import load_catalog

        name = target["catalog"]
        if name not in self._catalogs:
            self._catalogs[name] = load_catalog(name, conf=self.request["conf"])
        return self._catalogs[name].load(target["name"])

    def stop(self) -> None:
        if self.spark is not None:
            self.spark.stop()


class Java:
    """Iceberg Java in a warm session of Spark; under spark-submit the session is configured already."""

    def __init__(self, request: Request) -> None:
        from pyspark.sql import SparkSession

        self.request, self._is_submitted = request, "PYSPARK_GATEWAY_PORT" in os.environ
        builder = SparkSession.builder.appName("iceberg-java")
        for key, value in ({} if self._is_submitted else request["spark"]).items():
            builder = builder.config(key, value)
        self.spark = builder.getOrCreate()
        if not self._is_submitted:
            self.spark.range(1).count()

    @property
    def ours(self) -> Any:
        """The package of `java/bench` in the JVM."""
        return self.spark._jvm.bench  # type: ignore[attr-defined]

    def full_name(self, target: Target) -> str:
        return f"{target['catalog']}.{target['name']}"

    def load(self, target: Target) -> Any:
        """A target's table, anew: one that was planned before remembers its list of manifests."""
        return self.ours.Planning.load(self.spark._jsparkSession, self.full_name(target))

    def call(self, procedure: str, target: Target, **arguments: str) -> list[Any]:
        """The rows that a procedure of Iceberg's answers for a table; the arguments are Spark's SQL."""
        named = ", ".join(
            f"{name} => {value}" for name, value in {"table": quoted(target["name"]), **arguments}.items()
        )
        return self.spark.sql(f"CALL {target['catalog']}.system.{procedure}({named})").collect()

    def stop(self) -> None:
        # A whole command is timed to its end, which comes without that too.
        if not self._is_submitted:
            self.spark.stop()


class ByRest:
    """One that works through the REST catalog of the request, `uri`, without Spark."""

    def __init__(self, request: Request) -> None:
        self.request = request

    def register(self, target: Target) -> str:
        """Let the catalog have a target's table as its files say that it is now; the name of the table."""
        metadata = Path(target["path"]) / "metadata"
        version = int((metadata / "version-hint.text").read_text())
        namespace, name = target["name"].split(".")
        place = f"/v1/namespaces/{namespace}"
        self._ask("POST", "/v1/namespaces", {"namespace": [namespace], "properties": {}}, passes=409)
        self._ask("DELETE", f"{place}/tables/{name}", None, passes=404)
        location = (metadata / f"v{version}.metadata.json").as_uri()
        self._ask("POST", f"{place}/register", {"name": name, "metadata-location": location})
        return str(target["name"])

    def _ask(self, method: str, path: str, body: Any, passes: int = 0) -> None:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(self.request["uri"] + path, data, headers, method=method)
        try:
            urllib.request.urlopen(request).close()
        except urllib.error.HTTPError as error:
            if error.code != passes:
                raise RuntimeError(f"{method} {path}: {error.read()[:500]!r}") from error

    def stop(self) -> None:
        pass


class PyIceberg(ByRest):
    """PyIceberg."""

    def load(self, target: Target) -> Any:
        from pyiceberg.catalog import load_catalog

        return load_catalog("bench", type="rest", uri=self.request["uri"]).load_table(target["name"])


class Rust(ByRest):
    """iceberg-compaction."""

    @property
    def catalog(self) -> Any:
        from iceberg_compaction import RestCatalog

        return RestCatalog("bench", uri=self.request["uri"])


class Zamboni(PyIceberg):
    """iceberg-zamboni with its own engine."""

    @property
    def session(self) -> Any:
        from pyiceberg.catalog import load_catalog
        from zamboni import CatalogSession

        catalog = load_catalog("bench", type="rest", uri=self.request["uri"])
        return CatalogSession.from_catalog(catalog, threads=os.cpu_count() or 1)


class DuckDb:
    """DuckDB with its Iceberg extension, which comes with the environment."""

    def __init__(self, request: Request) -> None:
        import duckdb
        import duckdb_extension_avro
        import duckdb_extension_iceberg

        self.request = request
        offline = {f"auto{work}_known_extensions": "false" for work in ("install", "load")}
        self.connection = duckdb.connect(config={**offline, "threads": str(os.cpu_count() or 1)})
        for module in (duckdb_extension_avro, duckdb_extension_iceberg):
            [extension] = Path(str(module.__file__)).parent.rglob("*.duckdb_extension")
            self.connection.execute(f"LOAD '{extension}'")

    def stop(self) -> None:
        self.connection.close()


ENGINES = {
    "icekeep": Icekeep,
    "java": Java,
    "pyiceberg": PyIceberg,
    "rust": Rust,
    "zamboni": Zamboni,
    "duckdb": DuckDb,
}


def quoted(value: object) -> str:
    """A text, or a map of texts, as Spark's SQL writes it."""
    if isinstance(value, Mapping):
        return f"map({', '.join(quoted(text) for pair in value.items() for text in pair)})"
    return f"'{value}'"
