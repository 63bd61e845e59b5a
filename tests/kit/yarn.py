"""YARN for tests: a ResourceManager and a NodeManager in one Java process, on loopback, gone with the tests.

`make java-env` makes what it needs. Containers are started with an environment that has nothing of this checkout.
"""

from pathlib import Path

from kit.java_process import JavaProcess
from kit.spark_processes import SPARK_HOME, SparkProcesses, node_environment

CLUSTER = Path(__file__).with_name("java_yarn") / "Cluster.java"


class Yarn(SparkProcesses):
    """The cluster.

    Args:
        python: what the node has as `python3`.
        file_system: the default one, where applications lie before they start.
    """

    def __init__(self, python: Path, file_system: str, memory_mb: int = 4096) -> None:
        self._process = JavaProcess(
            "the YARN cluster",
            CLUSTER,
            *("{home}", file_system, str(memory_mb)),
            # Hadoop's jars lack what the ResourceManager logs by, and Spark's have it.
            jars=":".join(map(str, SPARK_HOME.glob("jars/log4j-[1ac]*.jar"))),
            environment=node_environment(python),
        )
        super().__init__(self._process.home)
        self.configuration = self._process.home / "conf"

    def settings(self) -> dict[str, str]:
        """What an application is told that need not bring Spark's jars."""
        return {"spark.yarn.jars": f"local:{SPARK_HOME}/jars/*", "spark.yarn.am.memory": "512m"}

    @property
    def rest(self) -> str:
        """Where its ResourceManager answers by REST what a scheduler asks."""
        return (self._process.home / "rest").read_text()

    def log(self, name: str) -> str:
        """What the containers of the last application have said, on `stdout` or `stderr`."""
        logs = sorted(self._process.home.glob(f"logs/application_*/container_*/{name}"))
        newest = [path for path in logs if path.parents[1] == logs[-1].parents[1]]
        return "\n".join(path.read_text(errors="replace") for path in newest)

    def close(self) -> None:
        """End the process, and remove what it left."""
        self._process.close()
