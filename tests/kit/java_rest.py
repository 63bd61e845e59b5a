"""Iceberg Java as a REST server, in a process of its own with a catalog of its own."""

import os
import subprocess
from pathlib import Path

from kit.java import JARS, PYTHON

WORKER = Path(__file__).with_name("java_rest_server.py")


class JavaRestServer:
    """Ends with `close`; its tables lie below `directory`, or another `warehouse`. Of Iceberg 1.12, or 1.10 if it `is_old`."""

    def __init__(self, directory: Path, *, warehouse: str = "", is_old: bool = False) -> None:
        if not PYTHON.exists() or not JARS.exists():
            raise FileNotFoundError("there is no .venv-java or no .java-env; run `make java-env` first")
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYSPARK_", "SPARK_", "PYTHON"))}
        iceberg = (JARS / "rest-1.10" if is_old else JARS).glob("iceberg-*.jar")
        found = [*iceberg, *JARS.glob("sqlite-*.jar")]
        jars = os.pathsep.join(map(str, found))
        self.log = directory / "server.log"
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [str(PYTHON), str(WORKER), jars, str(directory), warehouse or f"file://{directory}/warehouse"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**environment, "TZ": "UTC"},
            )
        assert self._process.stdout is not None
        port = self._process.stdout.readline().decode().strip()
        if not port:
            raise RuntimeError(f"the server did not start: {self.log.read_text()[-2000:]}")
        self.uri = f"http://127.0.0.1:{port}"

    @property
    def properties(self) -> dict[str, str]:
        """What our catalog is opened with."""
        return {"type": "rest", "uri": self.uri}

    def close(self) -> None:
        """End the process and Java with it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
