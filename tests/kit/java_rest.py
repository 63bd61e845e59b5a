"""Iceberg Java as a REST server, in a process of its own with a catalog of its own."""

import os
from pathlib import Path

from kit.java import JARS, PYTHON
from kit.line_process import LineProcess, environment_without

WORKER = Path(__file__).with_name("java_rest_server.py")


class JavaRestServer:
    """Ends with `close`; its tables lie below `directory`, or another `warehouse`. Of Iceberg 1.12, or 1.10 if it `is_old`.

    One that `keeps_keys` knows by Java's own code what became of requests that have a key.
    """

    def __init__(self, directory: Path, *, warehouse: str = "", is_old: bool = False, keeps_keys: bool = False) -> None:
        if not PYTHON.exists() or not JARS.exists():
            raise FileNotFoundError("there is no .venv-java or no .java-env; run `make java-env` first")
        self.directory = directory
        iceberg = (JARS / "rest-1.10" if is_old else JARS).glob("iceberg-*.jar")
        jars = os.pathsep.join(map(str, [*iceberg, *JARS.glob("sqlite-*.jar")]))
        keys = ["keeps-keys"] if keeps_keys else []
        command = (PYTHON, WORKER, jars, directory, warehouse or f"file://{directory}/warehouse", *keys)
        environment = environment_without("PYSPARK_", "SPARK_", "PYTHON", TZ="UTC")
        self._process = LineProcess("Iceberg Java's REST server", command, environment)
        port = self._process.answer()
        self.uri = f"http://127.0.0.1:{port}"

    @property
    def properties(self) -> dict[str, str]:
        """What our catalog is opened with."""
        return {"type": "rest", "uri": self.uri}

    def close(self) -> None:
        """End the process and Java with it."""
        self._process.close()
