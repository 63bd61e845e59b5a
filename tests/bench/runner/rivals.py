"""Who the rivals are, what they run on, and how one is started: Pythons, class paths, one configuration of Spark for all."""

import json
import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any, Literal, Self

import msgspec

from kit.rest_server import RestServer

TIMEOUT_S = 3600
_LOG_LINES = 12


class RivalFailedError(Exception):
    """A rival ended without an answer, or with one that cannot be; the message says so, with the end of what it wrote."""


def run(command: Sequence[str], python_path: Sequence[Path] = ()) -> dict[str, Any]:
    """Run a rival to its end; its answer is the last line of what it prints.

    Raises:
        RivalFailedError: it fails, says nothing, or takes longer than `TIMEOUT_S`.
    """
    with tempfile.TemporaryDirectory(prefix="bench-") as directory:
        log, out = Path(directory, "log"), Path(directory, "out")
        with log.open("wb") as err, out.open("wb") as answers:
            environment = _environment(command, python_path)
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=answers, stderr=err, cwd=directory, env=environment
            )
            try:
                process.wait(TIMEOUT_S)
            except subprocess.TimeoutExpired as error:
                raise RivalFailedError(f"{command[0]} has not ended after {TIMEOUT_S} s") from error
            finally:
                process.kill()
                process.wait()
        lines = out.read_text(errors="replace").splitlines()
        if process.returncode == 0 and lines:
            return dict(json.loads(lines[-1]))
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-_LOG_LINES:])
        raise RivalFailedError(f"{command[0]} ended with status {process.returncode}: {tail[-3000:]}")


def _environment(command: Sequence[str], python_path: Sequence[Path]) -> dict[str, str]:
    """The caller's environment without its Spark: the Python beside the program is that of driver and workers."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYSPARK_", "SPARK_", "PYTHON"))}
    python = str(Path(command[0]).with_name("python"))
    path = os.pathsep.join(map(str, python_path))
    return {**kept, "TZ": "UTC", "PYSPARK_PYTHON": python, "PYSPARK_DRIVER_PYTHON": python, "PYTHONPATH": path}


ROOT = Path(__file__).resolve().parents[3]
TESTS, LIB, CACHE = ROOT / "tests", ROOT / "lib", ROOT / ".bench"
OURS, JAVAS, FOREIGN = ROOT / ".venv/bin", ROOT / ".venv-java/bin", ROOT / ".venv-rivals/bin"
JUDGES = ROOT / ".venv-judges/bin"
PROCESS, COMMAND = (TESTS / "bench/rival" / name for name in ("process.py", "command.py"))

ICEKEEP, BEFORE, IN_SPARK = "icekeep", "icekeep-before", "icekeep-in-spark"
RUST, ZAMBONI, PYICEBERG, DUCKDB = "iceberg-compaction", "iceberg-zamboni", "pyiceberg", "duckdb"


class Rival(msgspec.Struct, frozen=True):
    """One that takes part.

    Attributes:
        asks: what it is asked beside what all are.
        lib: icekeep's directory of packages.
    """

    name: str
    engine: Literal["icekeep", "java", "pyiceberg", "rust", "zamboni", "duckdb"]
    asks: Mapping[str, Any] = {}
    spark: Mapping[str, str] = {}
    lib: Path = LIB

    @property
    def programs(self) -> Path:
        if self.is_foreign and not FOREIGN.exists():
            raise SystemExit("there is no .venv-rivals; run `make rivals-env` first")
        if self.is_reader and not JUDGES.exists():
            raise SystemExit("there is no .venv-judges; run `make judges-env` first")
        known = {"java": JAVAS, "rust": FOREIGN, "zamboni": FOREIGN, "duckdb": JUDGES}
        return known.get(self.engine, OURS)

    @property
    def python_path(self) -> tuple[Path, ...]:
        return (TESTS,) if self.engine == "java" or self.is_foreign or self.is_reader else (self.lib, TESTS)

    @property
    def is_foreign(self) -> bool:
        """Whether it has its packages in an environment of rivals."""
        return self.engine in ("rust", "zamboni")

    @property
    def is_reader(self) -> bool:
        """Whether it only reads tables, and has its packages in the environment of the judges."""
        return self.engine == "duckdb"

    @property
    def is_by_rest(self) -> bool:
        """Whether it changes tables through a REST catalog, since it has no catalog of files alone."""
        return self.is_foreign or self.engine == "pyiceberg"

    @property
    def is_another(self) -> bool:
        """Whether it is icekeep of another checkout."""
        return self.lib != LIB


def _planning(mode: str) -> dict[str, str]:
    return {f"spark.sql.iceberg.{kind}-planning-mode": mode for kind in ("data", "delete")}


RIVALS = {
    rival.name: rival
    for rival in (
        Rival(ICEKEEP, "icekeep"),
        # The faster mode on one machine.
        Rival("java", "java", spark=_planning("local")),
        Rival("java-distributed", "java", spark=_planning("distributed")),
        Rival("java-files", "java", asks={"work": "query_files"}),
        Rival(PYICEBERG, "pyiceberg"),
        Rival(RUST, "rust"),
        Rival(ZAMBONI, "zamboni"),
        Rival(DUCKDB, "duckdb"),
        # In a session that is given it is of use for small tables alone: all else is Spark's anyway.
        Rival(IN_SPARK, "icekeep"),
        Rival("reencode", "icekeep", asks={"stitch": "never"}),
        Rival("verify", "icekeep", asks={"verifies": True}),
        Rival(
            "spark-avro",
            "icekeep",
            asks={"module": "bench.jobs.with_spark_avro"},
            # Errors only: the Avro writer warns of each field of each file.
            spark={"spark.log.level": "ERROR"},
        ),
    )
}
"""By name. `reencode` copies neither row groups nor pages, `java-files` asks the metadata table."""


def catalog_of(rival: str) -> str:
    """The name of a catalog of a rival's own, as Spark's SQL takes it without quotes."""
    return rival.replace("-", "_")


def before(lib: Path) -> Rival:
    """icekeep as another checkout has it."""
    return Rival(BEFORE, "icekeep", lib=lib)


def spark_settings(rival: Rival, driver_memory: str, warehouses: Mapping[str, Path]) -> dict[str, str]:
    """Spark's configuration: the same for all, and for Iceberg Java what it needs besides."""
    settings = {
        "spark.master": "local[2]",
        "spark.driver.memory": driver_memory,
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.catalogImplementation": "in-memory",
        **rival.spark,
    }
    if rival.is_foreign or rival.is_reader:
        return {}
    if rival.engine != "java":
        return settings
    settings["spark.driver.extraClassPath"] = os.pathsep.join([str(compiled(CACHE / "classes")), *jars()])
    settings["spark.sql.extensions"] = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
    for name, warehouse in warehouses.items():
        catalog = f"spark.sql.catalog.{name}"
        settings |= {
            catalog: "org.apache.iceberg.spark.SparkCatalog",
            f"{catalog}.type": "hadoop",
            f"{catalog}.warehouse": warehouse.as_uri(),
            f"{catalog}.cache-enabled": "false",
        }
    return settings


def write_conf(path: Path, warehouses: Mapping[str, Path]) -> None:
    """A configuration file of icekeep's that names all catalogs."""
    catalogs = {name: {"type": "hadoop", "warehouse": place.as_uri()} for name, place in warehouses.items()}
    path.write_text(json.dumps({"catalogs": catalogs}))


def start(rival: Rival, request: Mapping[str, Any]) -> dict[str, Any]:
    """What a rival's process answers.

    Raises:
        RivalFailedError: it fails, or is of another checkout, which has not what it needs.
    """
    command = [str(rival.programs / "python"), str(PROCESS), json.dumps(_whole(rival, request))]
    answer = run(command, rival.python_path)
    if "unable" in answer:
        raise RivalFailedError(f"the icekeep in {rival.lib} cannot do this: {answer['unable']}")
    return answer


def ask(rival: str, module: str, work: str, **request: Any) -> Any:
    """What a function in a rival's process says, done once."""
    return start(RIVALS[rival], {"module": module, "work": work, "once": True, **request})["result"]


def time_command(rival: Rival, command: list[str]) -> dict[str, Any]:
    """A run of a command from its start to its end; raises `RivalFailedError`."""
    return run([str(rival.programs / "python"), str(COMMAND), *command], rival.python_path)


def submit(rival: Rival, spark: Mapping[str, str], script: Path, *arguments: str) -> list[str]:
    """A command that submits a script to Spark."""
    # The class path of the driver is fixed when its JVM starts: --conf comes in time, a session's builder too late.
    confs = [text for key, value in spark.items() for text in ("--conf", f"{key}={value}")]
    return [str(rival.programs / "spark-submit"), *confs, str(script), *arguments]


def submit_process(rival: Rival, request: Mapping[str, Any]) -> list[str]:
    """A command that submits a rival's process, which does its work once."""
    return submit(rival, request["spark"], PROCESS, json.dumps(_whole(rival, {**request, "once": True})))


def process(rival: Rival, request: Mapping[str, Any]) -> list[str]:
    """A command that does a rival's work once in a process of its own."""
    return [str(rival.programs / "python"), str(PROCESS), json.dumps(_whole(rival, {**request, "once": True}))]


def _whole(rival: Rival, request: Mapping[str, Any]) -> dict[str, Any]:
    whose = {"engine": rival.engine, "lib": str(rival.lib), "is_another": rival.is_another}
    return {**request, **whose, **rival.asks}


def jars() -> list[str]:
    """Iceberg Java's."""
    found = [str(jar) for jar in sorted((ROOT / ".java-env").glob("*.jar"))]
    if not found or not JAVAS.exists():
        raise SystemExit("there is no .venv-java or .java-env; run `make java-env` first")
    return found


@cache
def compiled(classes: Path) -> Path:
    """The directory of the compiled classes of `java/bench`."""
    spark = next((JAVAS.parent / "lib").glob("python*/site-packages/pyspark/jars"))
    path = os.pathsep.join([*jars(), f"{spark}/*"])
    sources = [str(source) for source in sorted((TESTS / "bench/java/bench").glob("*.java"))]
    subprocess.run(["javac", "-d", str(classes), "-cp", path, *sources], check=True)
    return classes


class RivalsCatalog:
    """The catalog, in this process, whose time and memory count for nobody; each rival registers the table that it works on."""

    def __enter__(self) -> Self:
        self._stack = ExitStack()
        self._started: RestServer | None = None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    @property
    def uri(self) -> str:
        """Where it answers, from now on."""
        return self._server.uri

    @property
    def _server(self) -> RestServer:
        if self._started is None:
            directory = self._stack.enter_context(TemporaryDirectory(prefix="bench-rest-"))
            self._started = RestServer(Path(directory))
            self._stack.callback(self._started.close)
        return self._started

    def publish(self, target: Mapping[str, Any]) -> None:
        """Let the files of a table say what the catalog has: a version more, and the hint to it."""
        metadata = Path(target["path"]) / "metadata"
        hint = metadata / "version-hint.text"
        location = self._server.pointers[tuple(target["name"].split("."))]
        last = Path(location.removeprefix("file://"))
        version = int(hint.read_text()) + 1
        if last.name == f"v{version - 1}.metadata.json":
            return
        (metadata / f"v{version}.metadata.json").write_bytes(last.read_bytes())
        hint.write_text(str(version))
