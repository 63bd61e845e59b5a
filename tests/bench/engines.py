"""What the rivals run on: the Pythons, Iceberg Java's jars, and one configuration of Spark for all."""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
OURS = ROOT / ".venv" / "bin"
JAVAS = ROOT / ".venv-java" / "bin"


def spark_settings(driver_memory: str) -> dict[str, str]:
    """Spark's configuration, the same for all."""
    return {
        "spark.master": "local[2]",
        "spark.driver.memory": driver_memory,
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.catalogImplementation": "in-memory",
    }


def java_catalog(name: str, warehouse: str) -> dict[str, str]:
    """What Iceberg Java's Spark is told of a catalog in the layout of HadoopCatalog."""
    catalog = f"spark.sql.catalog.{name}"
    return {
        catalog: "org.apache.iceberg.spark.SparkCatalog",
        f"{catalog}.type": "hadoop",
        f"{catalog}.warehouse": warehouse,
        f"{catalog}.cache-enabled": "false",
    }


def jars() -> list[str]:
    """Iceberg Java's."""
    found = [str(jar) for jar in sorted((ROOT / ".java-env").glob("*.jar"))]
    if not found or not JAVAS.exists():
        raise SystemExit("there is no .venv-java or .java-env; run `make java-env` first")
    return found


def names_among(known: Sequence[str]) -> Callable[[str], tuple[str, ...]]:
    """What takes names between commas apart and refuses those that are not known."""

    def names(text: str) -> tuple[str, ...]:
        parts = tuple(text.split(","))
        if unknown := [part for part in parts if part not in known]:
            raise argparse.ArgumentTypeError(f"there is no {unknown[0]!r}; there is {', '.join(known)}")
        return parts

    return names
