"""A command of icekeep in a process beside Airflow's task, which is ended with it."""

import os
import signal
import subprocess
from collections.abc import Callable, Sequence

PATIENCE_S = 60
"""How long a process that was asked to end may take: a job ends at once, but for a commit that is under way."""


class Worker:
    """One process; what it prints goes on line by line."""

    def __init__(self, command: Sequence[str], say: Callable[[str], None]) -> None:
        self._command, self._say = [*command], say
        self._process: subprocess.Popen[str] | None = None

    def run(self) -> int:
        """Run it to its end and return its exit status, below 0 for a signal; whatever interrupts this ends the process.

        Raises:
            OSError: the command cannot be started.
        """
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        assert self._process.stdout is not None
        try:
            with self._process.stdout as lines:
                for line in lines:
                    self._say(line.rstrip())
            return self._process.wait()
        finally:
            self.stop()

    def stop(self) -> None:
        """Ask the process to end, and kill it and its children where it does not."""
        process = self._process
        if process is None or process.poll() is not None:
            return
        process.terminate()
        try:
            process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
