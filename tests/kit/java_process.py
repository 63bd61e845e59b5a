"""A Java program of one source file as a process beside the tests: it says when it is ready, and ends with its standard input."""

import os
import signal
from collections.abc import Mapping
from pathlib import Path

from kit.jvm_options import TALKING
from kit.line_process import LineProcess, environment_without
from kit.shell import ROOT

HADOOP = ROOT / ".java-env" / "hdfs"


class JavaProcess(LineProcess):
    """Started, and waited for until it has said its first line, `ready`.

    Args:
        name: what it is called where it does not start.
        source: run as it is, with Hadoop's jars.
        arguments: `{home}` stands for the directory.
        jars: more of them, as a class path.
        environment: all variables that it has; by default those of this process but for Hadoop's.
    """

    def __init__(
        self,
        name: str,
        source: Path,
        *arguments: str,
        jars: str = "",
        environment: Mapping[str, str] | None = None,
    ) -> None:
        if not HADOOP.exists():
            raise FileNotFoundError("there is no .java-env/hdfs; run `make java-env` first")
        options = ("-Xmx512m", *TALKING, "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn")
        command = ("java", *options, "-cp", f"{HADOOP}/*:{jars}", source, *arguments)
        super().__init__(name, command, environment_without("HADOOP_") if environment is None else environment)
        self.ready = self.answer()

    def tell(self, request: str) -> None:
        """Let it obey a line."""
        assert self.ask(request) == "done"

    def pause(self) -> None:
        """Let it do nothing, while its connections stand, until `go_on`."""
        self._process.send_signal(signal.SIGSTOP)
        # On a busy machine its threads run on for a while, and may answer still.
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED)

    def go_on(self) -> None:
        """End a pause."""
        self._process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        """End the process, also where it pauses, and remove what it left."""
        self.go_on()
        super().close()
